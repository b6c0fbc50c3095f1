"""taskiq on Redis streams, with results on Redis."""

from __future__ import annotations

import asyncio

from protocol import NO_GROUPS, PLAIN_QUEUE, Job, Peer, await_go, main, until_term
from taskiq.api import run_receiver_task
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker


class Taskiq(Peer):
    packages = ("taskiq", "taskiq-redis", "redis", "hiredis", "uvloop")
    lacks = PLAIN_QUEUE | NO_GROUPS | {"bulk": "no bulk enqueue"}
    settings = {"idle_timeout": "600 s (default)", "waiting for results": "polled each ms (default 200 ms)"}

    def __init__(self, url, board) -> None:
        super().__init__(url, board)
        self._broker = broker = RedisStreamBroker(url).with_result_backend(RedisAsyncResultBackend(url))

        @broker.task(task_name="nothing")
        async def nothing(payload: str) -> int:
            board.mark()
            return len(payload)

        @broker.task(task_name="hold")
        async def hold(payload: str) -> int:
            await board.hold()
            return len(payload)

        self._tasks = {"nothing": nothing, "hold": hold}

    async def open(self) -> None:
        await self._broker.startup()

    async def close(self) -> None:
        await self._broker.shutdown()

    async def start(self, job: Job):
        return await self._tasks[job.kind].kiq(job.argument)

    async def call(self, job: Job) -> None:
        await (await self.start(job)).wait_result(check_interval=0.001, timeout=30)

    async def work(self, concurrency: int, kind: str) -> None:
        self._broker.is_worker_process = True
        await self._broker.startup()
        await_go()
        serving = asyncio.create_task(run_receiver_task(self._broker, max_async_tasks=concurrency))
        await until_term()
        serving.cancel()


if __name__ == "__main__":
    main(Taskiq)
