"""PgQueuer on asyncpg, and a second time with no cap on what runs at once, which is its fastest way."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.core.completion import CompletionWatcher
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries
from protocol import GROUPS, PLAIN_QUEUE, Job, Peer, await_go, main, until_term

_UNCAPPED = os.environ.get("COMPARE_VARIANT") == "uncapped"


class Pgqueuer(Peer):
    packages = ("pgqueuer", "asyncpg", "uvloop")
    lacks = PLAIN_QUEUE | (dict.fromkeys(("c1", "recovery"), "has no cap: see PgQueuer") if _UNCAPPED else {})
    settings = {
        "cap": "none, batches of 500" if _UNCAPPED else "in the store, batches of half of it; two at once is its least",
        "groups": "an entrypoint with a limit for each",
        "results": "not kept; an end is waited for",
        "heartbeat_timeout": "30 s (default)",
    }

    async def setup(self) -> None:
        await self.open()
        await self._queries.install()
        await self.close()

    async def open(self) -> None:
        self._connection = await asyncpg.connect(self.url)
        self._driver = AsyncpgDriver(self._connection)
        self._queries = Queries(self._driver)

    async def close(self) -> None:
        await self._connection.close()

    async def start(self, job: Job):
        return await self._queries.enqueue(job.group or job.kind, job.argument.encode())

    async def start_many(self, jobs: list[Job]) -> None:
        count = len(jobs)
        payloads = [job.argument.encode() for job in jobs]
        await self._queries.enqueue([job.group or job.kind for job in jobs], payloads, [0] * count)

    async def call(self, job: Job) -> None:
        watching = CompletionWatcher(self._driver, queries=self._queries, debounce=timedelta(milliseconds=1))
        async with watching as watcher:
            (started,) = await self.start(job)
            await watcher.wait_for(started)

    async def work(self, concurrency: int, kind: str) -> None:
        await self.open()
        app = PgQueuer(self._driver)

        @app.entrypoint("nothing")
        async def nothing(job) -> None:
            self.board.mark()

        @app.entrypoint("hold")
        async def hold(job) -> None:
            await self.board.hold()

        for group in GROUPS if kind == "turn" else ():

            @app.entrypoint(group, concurrency_limit=1)
            async def turn(job) -> None:
                self.board.turn(job.entrypoint)

        await_go()
        limits = {"max_concurrent_tasks": max(2, concurrency), "batch_size": max(1, concurrency // 2)}
        if _UNCAPPED:
            limits = {"batch_size": 500}
        serving = asyncio.create_task(app.run(**limits))
        await until_term()
        app.shutdown.set()
        await serving


if __name__ == "__main__":
    main(Pgqueuer)
