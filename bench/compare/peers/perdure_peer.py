"""Perdure on any of its stores."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta

from protocol import DAY, STEPS, Job, Peer, await_go, main, until_term

from perdure import App, sleep, step

_NORMAL = os.environ.get("COMPARE_VARIANT") == "normal"


class Perdure(Peer):
    """One worker process with an event loop; the settings are those that it has by itself."""

    packages = ("perdure", "asyncpg", "redis", "uvloop")
    settings = {"lease": "10 s (default)", "on SQLite": f"WAL, synchronous={'NORMAL' if _NORMAL else 'FULL (default)'}"}

    def __init__(self, url, board) -> None:
        super().__init__(url + "?synchronous=normal" if _NORMAL else url, board)
        self._app = app = App(self.url)

        @step
        async def work(payload: str) -> str:
            return payload

        @step
        async def hold(payload: str) -> str:
            await board.hold()
            return payload

        @step
        async def nap(payload: str) -> str:
            await board.nap()
            return payload

        @app.workflow(name="nothing")
        async def nothing(payload: str) -> int:
            board.mark()
            return len(payload)

        @app.workflow(name="steps")
        async def steps(payload: str) -> int:
            for _ in range(STEPS):
                await work(payload)
            board.mark()
            return len(payload)

        @app.workflow(name="turn", group=lambda payload: payload, group_limit=1)
        async def turn(payload: str) -> int:
            board.turn(payload)
            return len(payload)

        @app.workflow(name="hold")
        async def holding(payload: str) -> int:
            await work(payload)
            await hold(payload)
            return len(payload)

        @app.workflow(name="nap")
        async def napping(payload: str) -> int:
            await nap(payload)
            board.mark()
            return len(payload)

        @app.workflow(name="wait")
        async def waiting(payload: str) -> int:
            board.mark()
            await sleep(timedelta(seconds=DAY))
            return len(payload)

        self._workflows = {each.name: each for each in (nothing, steps, turn, holding, napping, waiting)}

    async def setup(self) -> None:
        # The documented way to make the schema: a program that starts never does it on PostgreSQL.
        subprocess.run([sys.executable, "-m", "perdure", "migrate", "--url", self.url], check=True, stdout=sys.stderr)

    async def close(self) -> None:
        await self._app.close()

    async def start(self, job: Job) -> None:
        await self._workflows[job.kind].start(job.argument)

    async def start_many(self, jobs: list[Job]) -> None:
        await self._workflows[jobs[0].kind].start_many([job.argument for job in jobs])

    async def call(self, job: Job) -> None:
        run = await self._workflows[job.kind].start(job.argument)
        await run.result()

    async def work(self, concurrency: int, kind: str) -> None:
        await_go()
        async with self._app, self._app.worker(concurrency=concurrency):
            await until_term()


if __name__ == "__main__":
    main(Perdure)
