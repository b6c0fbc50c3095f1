"""ardiq; the ten groups are lanes with a limit, which holds within one worker."""

from __future__ import annotations

import asyncio

from ardiq import Ardiq as ArdiqApp
from protocol import GROUPS, PLAIN_QUEUE, Job, Peer, await_go, main, until_term


class Ardiq(Peer):
    packages = ("ardiq", "uvloop")
    lacks = PLAIN_QUEUE
    settings = {"idle timeout": "60 s (default)", "groups": "lanes with a limit, in one worker only"}

    def __init__(self, url, board) -> None:
        super().__init__(url, board)
        self._define(50, "nothing")

    def _define(self, concurrency: int, kind: str) -> None:
        board = self.board
        lanes = {}
        if kind == "turn":
            lanes = {
                "priorities": list(GROUPS),
                "limits": dict.fromkeys(GROUPS, 1),
                "weights": dict.fromkeys(GROUPS, 1),
            }
        self._app = app = ArdiqApp(self.url, concurrency=concurrency, **lanes)

        @app.task(name="nothing")
        async def nothing(payload: str) -> int:
            board.mark()
            return len(payload)

        @app.task(name="turn")
        async def turn(payload: str) -> int:
            board.turn(payload)
            return len(payload)

        @app.task(name="hold")
        async def hold(payload: str) -> int:
            await board.hold()
            return len(payload)

        self._tasks = {"nothing": nothing, "turn": turn, "hold": hold}

    async def start(self, job: Job):
        return await self._bound(job).enqueue(job.argument)

    async def start_many(self, jobs: list[Job]) -> None:
        prepared = [self._bound(job).prepare(job.argument) for job in jobs]
        await self._app.enqueue_many(prepared)

    async def call(self, job: Job) -> None:
        await (await self.start(job)).result(timeout=30)

    async def work(self, concurrency: int, kind: str) -> None:
        self._define(concurrency, kind)
        await_go()
        serving = asyncio.create_task(self._app.run())
        await until_term()
        self._app.stop()
        await serving

    def _bound(self, job: Job):
        if not job.group:
            return self._tasks[job.kind]
        if len(self._app.priorities) != len(GROUPS):
            self._define(50, "turn")
        return self._tasks[job.kind].options(priority=job.group)


if __name__ == "__main__":
    main(Ardiq)
