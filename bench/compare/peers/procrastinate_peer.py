"""Procrastinate, with its asynchronous worker."""

from __future__ import annotations

from procrastinate import App, PsycopgConnector
from protocol import PLAIN_QUEUE, Job, Peer, await_go, main


class Procrastinate(Peer):
    packages = ("procrastinate", "psycopg", "uvloop")
    lacks = PLAIN_QUEUE | {
        "result": "keeps no results",
        "recovery": "only by a periodic task that one writes oneself",
    }
    settings = {
        "pool": "20 connections",
        "listen_notify": "on (default)",
        "jobs": "kept when done (default)",
        "groups": "a lock for each, polled for each 50 ms (default 5 s)",
    }

    def __init__(self, url, board) -> None:
        super().__init__(url, board)
        self._app = app = App(connector=PsycopgConnector(conninfo=url, max_size=20))

        @app.task(name="nothing")
        async def nothing(payload: str) -> int:
            board.mark()
            return len(payload)

        @app.task(name="turn")
        async def turn(payload: str) -> int:
            board.turn(payload)
            return len(payload)

        self._tasks = {"nothing": nothing, "turn": turn}

    async def setup(self) -> None:
        async with self._app.open_async():
            await self._app.schema_manager.apply_schema_async()

    async def open(self) -> None:
        await self._app.open_async()

    async def close(self) -> None:
        await self._app.close_async()

    async def start(self, job: Job) -> None:
        await self._deferrer(job).defer_async(payload=job.argument)

    async def start_many(self, jobs: list[Job]) -> None:
        by_group: dict[str, list[Job]] = {}
        for job in jobs:
            by_group.setdefault(job.group, []).append(job)
        for each in by_group.values():
            await self._deferrer(each[0]).batch_defer_async(*({"payload": job.argument} for job in each))

    async def work(self, concurrency: int, kind: str) -> None:
        await_go()
        async with self._app.open_async():
            # What a lock held back is found by the next look alone.
            polling = {"fetch_job_polling_interval": 0.05} if kind == "turn" else {}
            await self._app.run_worker_async(concurrency=concurrency, **polling)

    def _deferrer(self, job: Job):
        task = self._tasks[job.kind]
        return task.configure(lock=job.group) if job.group else task


if __name__ == "__main__":
    main(Procrastinate)
