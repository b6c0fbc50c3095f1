"""blitzq, in its reliable mode (Redis streams), which keeps results."""

from __future__ import annotations

from blitzq import Queue
from blitzq.worker import Worker
from protocol import GROUPS, PLAIN_QUEUE, Job, Peer, await_go, main


class Blitzq(Peer):
    packages = ("blitzq", "redis", "hiredis", "msgspec", "uvloop")
    lacks = PLAIN_QUEUE
    settings = {
        "mode": "reliable (default)",
        "results": "kept (default)",
        "visibility timeout": "60 s (default)",
        "groups": "a queue for each, in one worker only",
    }

    def __init__(self, url, board) -> None:
        super().__init__(url, board)
        self._queue = queue = Queue(redis_url=url)

        @queue.task(name="nothing")
        async def nothing(payload: str) -> int:
            board.mark()
            return len(payload)

        @queue.task(name="turn")
        async def turn(payload: str) -> int:
            board.turn(payload)
            return len(payload)

        @queue.task(name="hold")
        async def hold(payload: str) -> int:
            await board.hold()
            return len(payload)

        self._tasks = {"nothing": nothing, "turn": turn, "hold": hold}

    async def close(self) -> None:
        await self._queue.close()

    async def start(self, job: Job) -> None:
        await self._tasks[job.kind].enqueue(job.argument)

    async def start_many(self, jobs: list[Job]) -> None:
        by_group: dict[str, list[Job]] = {}
        for job in jobs:
            by_group.setdefault(job.group, []).append(job)
        for group, each in by_group.items():
            task = self._tasks[each[0].kind]
            task = task.options(queue=group) if group else task
            await task.enqueue_many([(job.argument,) for job in each])

    async def call(self, job: Job) -> None:
        task = await self._tasks[job.kind].enqueue(job.argument)
        await self._queue.get_result(task.id, timeout=30)

    async def work(self, concurrency: int, kind: str) -> None:
        limits = {"queues": GROUPS, "queue_concurrency": dict.fromkeys(GROUPS, 1)} if kind == "turn" else {}
        worker = Worker(self._queue, concurrency=concurrency, **limits)
        await_go()
        await worker.run()


if __name__ == "__main__":
    main(Blitzq)
