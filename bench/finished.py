"""Whether starts, claims, lists, counts and pruning keep their speed whatever number of runs has finished.

    PYTHONPATH=src:tests python bench/finished.py [--runs 10000000] [--url URL]

Measures with nothing finished, then with so many; a server of its own does not wait for the disk. Times are the
processor's, of the server, of calls after the first ten; where that can't be seen, those of the clock. Pruning is
compared with how fast runs can be made.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from perdure.model import Retention, RunQuery, Start, State
from perdure.stores.base import Registration, Store
from perdure.stores.exchange import Exchange, Exchanged, Settle, To
from perdure.stores.postgres import PostgresStore, parse_url

sys.path.insert(0, str(Path(__file__).parent / "dequeue"))

from layouts import Perdure
from measure import busy_for

from servers.postgres import Postgres, PostgresServer, own_server

CALLS = 60
_numbers = itertools.count(1)


class Bench:
    """A worker and a client of a store with one connection."""

    def __init__(self, store: Store, worker: int, pids: list[int]) -> None:
        self.store = store
        self._worker = worker
        self._pids = pids
        self._serial = 0

    async def measure(self, call: Callable[[], Awaitable[object]]) -> float:
        """The median of some calls, in milliseconds."""
        busy: list[float] = []
        for number in range(10 + CALLS):
            spent, begin = self._busy(), time.perf_counter()
            await call()
            if number >= 10:
                busy.append((self._busy() - spent) or (time.perf_counter() - begin) * 1000)
        return statistics.median(busy)

    def _busy(self) -> float:
        return sum(map(busy_for, self._pids))

    async def start(self) -> object:
        return await self.store.enqueue([_start()])

    async def start_many(self) -> object:
        return await self.store.enqueue([_start() for _ in range(1000)])

    async def claim(self) -> object:
        """Claims a batch, and ends it."""
        claims = (await self._exchange(64)).claims
        return await self._exchange(0, [Settle(claim.ref, claim.token, To.SUCCEEDED, "1") for claim in claims])

    async def newest(self) -> object:
        return await self.store.runs(RunQuery(limit=50))

    async def failed(self) -> object:
        return await self.store.runs(RunQuery(limit=50, states=[State.FAILED]))

    async def counts(self) -> object:
        return await self.store.counts()

    async def queues(self) -> object:
        return await self.store.queues()

    async def _exchange(self, slots: int, settles: list[Settle] | None = None) -> Exchanged:
        self._serial += 1
        return await self.store.exchange(
            Exchange(worker=self._worker, serial=self._serial, slots=slots, settles=settles or [])
        )


def _start() -> Start:
    return Start(f"bench-{next(_numbers)}", "work", "default", '{"order": 17}')


MEASURED = ["start", "start_many", "claim", "newest", "failed", "counts", "queues"]


async def run(url: str, runs: int) -> int:
    layout = Perdure(url)
    await layout.build()
    store = PostgresStore(parse_url(url + "?pool=1"))
    worker = await store.register(
        Registration(
            name="bench",
            host="bench",
            pid=1,
            queues=["default"],
            workflows=["work"],
            concurrency=1000,
            lease=86_400_000,
        )
    )
    pids = [(await each.rows("SELECT pg_backend_pid()"))[0][0] for each in (store._db, store._workers)]
    bench = Bench(store, worker, pids)
    before = {name: await bench.measure(getattr(bench, name)) for name in MEASURED}
    begin = time.monotonic()
    for first in range(0, runs, 500_000):
        await layout.fill("finished", min(500_000, runs - first))
        print(f"{first:,} finished, {time.monotonic() - begin:.0f} s", file=sys.stderr)
    await layout.run("VACUUM ANALYZE")
    after = {name: await bench.measure(getattr(bench, name)) for name in MEASURED}
    print(f"| Call, ms of the server's processor | nothing finished | {runs:,} finished | times |")
    print("|---|---|---|---|")
    for name in MEASURED:
        print(f"| {name} | {before[name]:.3f} | {after[name]:.3f} | {after[name] / before[name]:.2f} |")
    begin, removed = time.monotonic(), 0
    while time.monotonic() - begin < 20:
        gone = await store.prune([Retention(age=0)], limit=5_000)
        removed += gone
        if not gone:
            break
    pruned = removed / (time.monotonic() - begin)
    begin = time.monotonic()
    for _ in range(20):
        await bench.start_many()
    made = 20_000 / (time.monotonic() - begin)
    print(f"\npruned {pruned:,.0f} runs/s; made {made:,.0f} runs/s in bulk")
    await store.close()
    return 0 if all(after[name] <= 1.5 * before[name] + 0.1 for name in MEASURED) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description="What finished runs cost.")
    parser.add_argument("--runs", type=int, default=10_000_000)
    parser.add_argument("--url", help="a server's maintenance database")
    options = parser.parse_args()
    server = (
        Postgres(options.url)
        if options.url
        else own_server(
            settings={"shared_buffers": "1GB", "max_wal_size": "8GB", "fsync": "off", "synchronous_commit": "off"},
            durable=True,  # so many don't fit into memory
        )
    )
    if isinstance(server, PostgresServer):
        server.start()
    try:
        return asyncio.run(run(server.database(), options.runs))
    finally:
        if isinstance(server, PostgresServer):
            server.remove()


if __name__ == "__main__":
    raise SystemExit(main())
