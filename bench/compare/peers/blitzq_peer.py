"""blitzq, in its reliable mode (Redis streams), which keeps results."""

from __future__ import annotations

from blitzq import Queue
from blitzq.worker import Worker
from protocol import NO_GROUPS, PLAIN_QUEUE, Job, Peer, await_go, main


class Blitzq(Peer):
    packages = ("blitzq", "redis", "hiredis", "msgspec", "uvloop")
    lacks = PLAIN_QUEUE | NO_GROUPS
    settings = {"mode": "reliable (default)", "results": "kept (default)", "visibility timeout": "60 s (default)"}

    def __init__(self, url, board) -> None:
        super().__init__(url, board)
        self._queue = queue = Queue(redis_url=url)

        @queue.task(name="nothing")
        async def nothing(payload: str) -> int:
            board.mark()
            return len(payload)

        @queue.task(name="hold")
        async def hold(payload: str) -> int:
            await board.hold()
            return len(payload)

        self._tasks = {"nothing": nothing, "hold": hold}

    async def close(self) -> None:
        await self._queue.close()

    async def start(self, job: Job) -> None:
        await self._tasks[job.kind].enqueue(job.argument)

    async def start_many(self, jobs: list[Job]) -> None:
        await self._tasks[jobs[0].kind].enqueue_many([(job.argument,) for job in jobs])

    async def call(self, job: Job) -> None:
        task = await self._tasks[job.kind].enqueue(job.argument)
        await self._queue.get_result(task.id, timeout=30)

    async def work(self, concurrency: int, kind: str) -> None:
        worker = Worker(self._queue, concurrency=concurrency)
        await_go()
        await worker.run()


if __name__ == "__main__":
    main(Blitzq)
