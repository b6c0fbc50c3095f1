"""streaQ."""

from __future__ import annotations

from protocol import NO_GROUPS, PLAIN_QUEUE, Job, Peer, await_go, main
from streaq import Worker


class Streaq(Peer):
    packages = ("streaq", "coredis", "uvloop")
    lacks = PLAIN_QUEUE | NO_GROUPS
    settings = {"idle_timeout": "60 s (default)", "serializer": "pickle (default)"}

    def __init__(self, url, board) -> None:
        super().__init__(url, board)
        self._define(50)

    def _define(self, concurrency: int) -> None:
        self._worker = worker = Worker(redis_url=self.url, concurrency=concurrency)
        board = self.board

        @worker.task
        async def nothing(payload: str) -> int:
            board.mark()
            return len(payload)

        @worker.task
        async def hold(payload: str) -> int:
            await board.hold()
            return len(payload)

        self._tasks = {"nothing": nothing, "hold": hold}

    async def open(self) -> None:
        await self._worker.__aenter__()

    async def close(self) -> None:
        await self._worker.__aexit__(None, None, None)

    async def start(self, job: Job) -> None:
        await self._tasks[job.kind].enqueue(job.argument)

    async def start_many(self, jobs: list[Job]) -> None:
        await self._worker.enqueue_many([self._tasks[job.kind].enqueue(job.argument) for job in jobs])

    async def call(self, job: Job) -> None:
        task = await self._tasks[job.kind].enqueue(job.argument)
        await task.result(timeout=30)

    async def work(self, concurrency: int, kind: str) -> None:
        self._define(concurrency)
        await_go()
        await self._worker.run_async()


if __name__ == "__main__":
    main(Streaq)
