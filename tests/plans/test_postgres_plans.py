"""No plan of the PostgreSQL store depends on what the server knows of its tables: nothing walks a table, or sorts more
than a batch, and how many pages are looked at does not depend on how many runs there are."""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from conformance.kit import (
    Worker,
    checkpoint,
    for_run,
    for_signal,
    message,
    of_group,
    of_queue,
    save,
    settle,
    start,
    watch,
    worker,
)
from perdure.model import Limits, Retention, RunQuery, RunRecord, State, Unique
from perdure.stores import open_store
from perdure.stores.base import Store
from perdure.stores.exchange import Claim, To
from plans.kit import Listener, Plan, explain_all, listener
from servers.postgres import postgres, store_schema

pytestmark = pytest.mark.anyio

__all__ = ["listener"]

LARGE = 4_000
BIG = {"run", "live", "ended", "checkpoint", "signal", "wait", "label", "status"}
"""Tables that grow with the number of runs."""
COUNTED = {"live_away"}
"""Indexes that a count walks."""
BATCH = 1_000
"""More rows than these are never sorted."""
STATES = ["empty", "tiny", "large", "never analysed", "grown since", "vacuumed under a snapshot"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def fill(state: str, url: str) -> None:
    """Brings the schema of the store into a state."""
    server = postgres()
    server.run(store_schema(url), url=url)
    for table in sorted(BIG):
        server.run(f"ALTER TABLE perdure.{table} SET (autovacuum_enabled = off)", url=url)
    if state == "grown since":
        server.run("ANALYZE", url=url)
    if state != "empty":
        script = (Path(__file__).parent / "fill.sql").read_text(encoding="utf-8")
        number = 2 if state == "tiny" else LARGE
        server.run(f"SET search_path = perdure; {script.format(number=number, now=int(time.time() * 1000))}", url=url)
    if state in ("tiny", "large"):
        server.run("ANALYZE", url=url)
    if state == "vacuumed under a snapshot":
        server.run("VACUUM", url=url)
        # As it leaves it where nearly all has gone, and somebody may see it still: many pages, and no rows.
        server.run("UPDATE pg_class SET reltuples = 0 WHERE oid = 'perdure.live'::regclass", url=url)


@pytest.fixture(params=STATES)
async def store(request: pytest.FixtureRequest, listener: Listener) -> AsyncIterator[Store]:
    """With a database of its own: what one test leaves would be ready for the claims of the next."""
    url = postgres().copy(f"plans {request.param}", functools.partial(fill, request.param))
    explain_all(postgres(), url)
    store = open_store(url)
    await store.open()
    yield store
    await store.close()
    postgres().drop(url)


def wrong(plans: list[Plan]) -> list[str]:
    """What a plan must not have."""
    found: list[str] = []
    for plan in plans:
        for node in plan.nodes():
            kind, rows = node["Node Type"], node.get("Actual Rows", 0) * node.get("Actual Loops", 1)
            query = " ".join(plan.query.split())[:160]
            if kind == "Seq Scan" and node.get("Relation Name") in BIG:
                found.append(f"walks {node['Relation Name']}: {query}")
            walked = rows + node.get("Rows Removed by Filter", 0) * node.get("Actual Loops", 1)
            whole = kind.startswith("Index") and "Index Cond" not in node and node["Index Name"] not in COUNTED
            if whole and walked > BATCH:
                found.append(f"walks {node['Index Name']}: {query}")
            if "Sort" in kind and rows > BATCH:
                found.append(f"sorts {rows} rows: {query}")
            compared = node.get("Rows Removed by Join Filter", 0) * node.get("Actual Loops", 1)
            if compared > 30 * BATCH:
                found.append(f"compares {compared} pairs of rows: {query}")
            if "JIT" in plan.root:
                found.append(f"compiles: {query}")
    return found


Doing = Callable[[Store, Worker], Awaitable[object]]


async def _claim(store: Store, ada: Worker) -> object:
    return await ada.claim(20)


async def _settle(store: Store, ada: Worker) -> object:
    claims = await ada.claim(20)
    settles = [settle(claim, To.FAILED if number % 2 else To.SUCCEEDED, "1") for number, claim in enumerate(claims)]
    return await ada.exchange(settles=settles, slots=5)


async def _save(store: Store, ada: Worker) -> object:
    claims = await ada.claim(5)
    saves = [save(claim, checkpoint("step:2"), starts=start(parent=claim.id)) for claim in claims]
    return await ada.exchange(saves=saves)


async def _move(store: Store, ada: Worker) -> object:
    await store.enqueue([start() for _ in range(8)])
    claims = await ada.claim(8)
    moves = [
        settle(claims[0], To.RETRY, "1"), settle(claims[1], To.RETRY, "1", delay=1),
        settle(claims[2], To.RELEASE), settle(claims[3], To.CONTINUE, "2"),
        settle(claims[4], To.PARK, waits=[for_signal()]), settle(claims[5], To.PARK, waits=[for_run(claims[6].id)]),
    ]  # fmt: skip
    await ada.exchange(settles=moves)
    await store.signal(message(claims[4].id))
    watches = [watch(claims[7], for_signal()), watch(claims[7], for_run(claims[6].id))]
    return await ada.exchange(
        settles=[settle(claims[6])], watches=watches, owned=[(claims[7].ref, claims[7].token)], slots=3
    )


async def _promote(store: Store, ada: Worker) -> object:
    await store.enqueue([start(delay=1, timeout=1), *(start(delay=1) for _ in range(4))])
    found: list[str] = []
    while not found:
        found = [claim.id for claim in await ada.claim(64)]
    return await ada.exchange(slots=5)


async def _groups(store: Store, ada: Worker) -> object:
    await store.enqueue([start(group="g", session="s", labels={"color": "red"}) for _ in range(4)])
    await store.pause(of_group("g"), "me")
    await store.pause(of_group("g"), "me", paused=False)
    await store.set_limits(of_queue("urgent"), Limits(running=100), "me")
    bob = await worker(store, sessions=3)
    claims = await bob.claim(5)
    return await bob.exchange(settles=[settle(claim) for claim in claims], slots=5)


async def _enqueue(store: Store, ada: Worker) -> object:
    made = [start() for _ in range(200)]
    await store.enqueue(made)
    await store.enqueue([*made, *(start() for _ in range(200))])
    await store.enqueue([start(unique=Unique(key="k")), start(unique=Unique(key="k"))])
    return await store.open_batch(f"batch {time.monotonic()}", [start() for _ in range(3)], start())


async def _cancel(store: Store, ada: Worker) -> object:
    made = [start() for _ in range(3)]
    await store.enqueue(made)
    await store.cancel(made[0].id, "why")
    await store.retry(made[0].id)
    await store.label(made[0].id, {"color": "blue"})
    await store.delete(made[1].id, force=True)
    return await store.retry_many(RunQuery(limit=10))


async def _reclaim(store: Store, ada: Worker) -> object:
    await ada.claim(10)
    await store.bury(ada.name)
    bob = await worker(store, lease=0)
    await bob.claim(3)
    await store.reclaim()
    carl = await worker(store)
    await carl.claim(3)
    return await store.retire(carl.id)


async def _prune(store: Store, ada: Worker) -> object:
    return await store.prune([Retention(age=0), Retention(state=State.FAILED, count=10)], limit=400)


async def _read(store: Store, ada: Worker) -> object:
    ids = [f"filled-{number}" for number in range(1, 20)]
    await store.ended(ids)
    await store.missing(ids)
    for run_id in ids[:7]:  # More than five, after which a plan is kept.
        await store.load(run_id)
        await store.history(run_id)
        await store.signals(run_id)
        await store.find(run_id, "step:1")
        await store.ahead(run_id)
    return await store.batch("none")


async def _list(store: Store, ada: Worker) -> object:
    queries = [
        {}, {"states": [State.FAILED]}, {"states": [State.RUNNING]}, {"states": [State.QUEUED]},
        {"parent": "filled-49"}, {"batch": "b"}, {"group": "g"}, {"cause": "ValueError at ship"},
        {"labels": {"color": "c7"}}, {"queue": "default"}, {"workflow": "ship"},
    ]  # fmt: skip
    page: list[RunRecord] = []
    for query in queries:
        for _ in range(7):
            await store.runs(RunQuery(**query, limit=20))  # type: ignore[arg-type]
        page = await store.runs(RunQuery(**query, limit=20, oldest_first=True))  # type: ignore[arg-type]
        if page:
            await store.runs(RunQuery(**query, limit=20, after=page[-1].position))  # type: ignore[arg-type]
    return page


async def _count(store: Store, ada: Worker) -> object:
    await store.counts()
    await store.workers()
    return await store.limits()


LOOK: dict[Doing, int] = {
    _claim: 1_000, _settle: 1_500, _save: 1_500, _move: 1_000, _promote: 1_500, _groups: 2_000, _enqueue: 10_000,
    _cancel: 1_000, _reclaim: 1_000, _prune: 12_000, _read: 500, _list: 5_000, _count: 2_000,
}  # fmt: skip
"""The most pages that any one call of each may look at."""


@pytest.mark.parametrize("doing", LOOK, ids=lambda doing: str(doing).split()[1][1:])
async def test_plans(store: Store, listener: Listener, doing: Doing) -> None:
    ada = await worker(store)
    await doing(store, ada)  # The first time, catalogs are read.
    with listener.listening() as plans:
        for _ in range(2):
            await doing(store, ada)
    assert plans, "the server told no plan"
    assert "\n".join(sorted(set(wrong(plans)))) == ""
    looked = max((plan.pages, plan.query) for plan in plans if '"perdure".' in plan.query)
    assert looked[0] <= LOOK[doing], looked


async def test_what_a_worker_with_many_runs_leaves_is_not_compared_with_each_other(
    store: Store, listener: Listener
) -> None:
    await store.enqueue([start(max_crashes=1 + number % 2) for number in range(600)])
    doomed = await worker(store)
    held = 0
    while held < 600:
        held += len(await doomed.claim(100))
    with listener.listening() as plans:
        assert await store.bury(doomed.name) == held
    assert "\n".join(sorted(set(wrong(plans)))) == ""


async def _many(store: Store, count: int = 600) -> tuple[Worker, list[Claim]]:
    await store.enqueue([start() for _ in range(count)])
    ada = await worker(store)
    claims: list[Claim] = []
    while len(claims) < count:
        claims += await ada.claim(100)
    return ada, claims


async def _end_many(store: Store) -> object:
    await store.enqueue([start("parent"), *(start(parent="parent") for _ in range(600))])
    return await store.cancel("parent", "why")


async def _move_many(store: Store) -> object:
    ada, claims = await _many(store)
    return await ada.exchange(
        settles=[settle(claim, To.CONTINUE if number % 2 else To.RETRY, "1") for number, claim in enumerate(claims)]
    )


async def _save_many(store: Store) -> object:
    ada, claims = await _many(store)
    await ada.exchange(saves=[save(claim, checkpoint("signal:1"), consumes=1) for claim in claims])
    await ada.exchange(saves=[save(claim, checkpoint("signal:1"), gives_back=True) for claim in claims])
    return await ada.exchange(
        saves=[save(claim, checkpoint("child:1"), starts=start(parent=claim.id)) for claim in claims]
    )


@pytest.mark.parametrize("doing", [_end_many, _move_many, _save_many], ids=lambda doing: str(doing).split()[1][1:])
async def test_many_runs_of_one_call_are_not_compared_with_each_other(
    store: Store, listener: Listener, doing: Callable[[Store], Awaitable[object]]
) -> None:
    with listener.listening() as plans:
        await doing(store)
    assert "\n".join(sorted(set(wrong(plans)))) == ""
