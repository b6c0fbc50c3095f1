"""pgtask."""

from __future__ import annotations

import asyncio

from pgtask import Client, EnqueueRequest, TaskRegistry, Worker
from protocol import DAY, NO_GROUPS, STEPS, Job, Peer, await_go, main, until_term


class Pgtask(Peer):
    packages = ("pgtask", "uvloop")
    lacks = NO_GROUPS
    settings = {"lease_duration": "30 s (default)"}

    async def setup(self) -> None:
        await self.open()
        await self._client.migrate()

    async def open(self) -> None:
        self._client = await Client.connect(self.url)

    async def start(self, job: Job):
        return await self._client.enqueue(EnqueueRequest(job.kind, job.argument))

    async def start_many(self, jobs: list[Job]) -> None:
        await self._client.enqueue_many([EnqueueRequest(job.kind, job.argument) for job in jobs])

    async def call(self, job: Job) -> None:
        await (await self.start(job)).result(timeout=30)

    async def work(self, concurrency: int, kind: str) -> None:
        worker = Worker(self.url, self._registry(), concurrency=concurrency)
        await_go()
        serving = asyncio.create_task(worker.run())
        await until_term()
        worker.shutdown()
        await serving

    def _registry(self) -> TaskRegistry:
        tasks, board = TaskRegistry(), self.board

        async def work() -> str:
            return "x" * 16

        @tasks.task("nothing")
        async def nothing(_, payload: str) -> int:
            board.mark()
            return len(payload)

        @tasks.task("steps")
        async def steps(task, payload: str) -> int:
            for number in range(STEPS):
                await task.step("work", work, number)
            board.mark()
            return len(payload)

        @tasks.task("hold")
        async def hold(task, payload: str) -> int:
            await task.step("work", work)
            await task.step("hold", board.hold)
            return len(payload)

        @tasks.task("nap")
        async def nap(task, payload: str) -> int:
            await task.step("nap", board.nap)
            board.mark()
            return len(payload)

        @tasks.task("wait")
        async def wait(task, payload: str) -> int:
            board.mark()
            await task.sleep_for("wait", DAY)
            return len(payload)

        return tasks


if __name__ == "__main__":
    main(Pgtask)
