"""Absurd, with its asynchronous client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from absurd_sdk import AsyncAbsurd
from protocol import DAY, NO_GROUPS, STEPS, Job, Peer, await_go, main, until_term


class Absurd(Peer):
    packages = ("absurd-sdk", "psycopg", "uvloop")
    lacks = NO_GROUPS | {"bulk": "no bulk enqueue"}
    settings = {"claim_timeout": "120 s (default)", "poll_interval": "10 ms (default 250 ms, which the idle cell has)"}

    async def setup(self) -> None:
        subprocess.run(
            [Path(sys.executable).parent / "absurdctl", "init", "-d", self.url], check=True, stdout=sys.stderr
        )
        await self.open()
        await self._app.create_queue("default")
        await self.close()

    async def open(self) -> None:
        self._app = AsyncAbsurd(self.url)

    async def close(self) -> None:
        await self._app.close()

    async def start(self, job: Job):
        return await self._app.spawn(job.kind, job.argument, queue="default")

    async def call(self, job: Job) -> None:
        await self._app.await_task_result((await self.start(job))["task_id"])

    async def work(self, concurrency: int, kind: str) -> None:
        await self.open()
        self._define()
        await_go()
        poll = 0.25 if kind == "idle" else 0.01
        import asyncio

        serving = asyncio.create_task(self._app.start_worker(concurrency=concurrency, poll_interval=poll))
        await until_term()
        self._app.stop_worker()
        await serving

    def _define(self) -> None:
        board = self.board

        async def work() -> str:
            return "x" * 16

        @self._app.register_task("nothing")
        async def nothing(payload, _ctx) -> int:
            board.mark()
            return len(payload)

        @self._app.register_task("steps")
        async def steps(payload, ctx) -> int:
            for _ in range(STEPS):
                await ctx.step("work", work)
            board.mark()
            return len(payload)

        @self._app.register_task("hold")
        async def hold(payload, ctx) -> int:
            await ctx.step("work", work)
            await ctx.step("hold", board.hold)
            return len(payload)

        @self._app.register_task("nap")
        async def nap(payload, ctx) -> int:
            await ctx.step("nap", board.nap)
            board.mark()
            return len(payload)

        @self._app.register_task("wait")
        async def wait(payload, ctx) -> int:
            board.mark()
            await ctx.sleep_for("wait", DAY)
            return len(payload)


if __name__ == "__main__":
    main(Absurd)
