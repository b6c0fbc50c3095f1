"""Chancy, with its asynchronous executor."""

from __future__ import annotations

from chancy import Chancy as ChancyApp
from chancy import Queue, Worker, job
from protocol import NO_GROUPS, PLAIN_QUEUE, Board, Job, Peer, await_go, main, options

BOARD = Board(options().board)


@job(queue="default")
async def nothing(*, payload: str) -> None:
    BOARD.mark()


@job(queue="default")
async def hold(*, payload: str) -> None:
    await BOARD.hold()


class Chancy(Peer):
    packages = ("chancy", "psycopg", "uvloop")
    lacks = PLAIN_QUEUE | NO_GROUPS
    settings = {
        "executor": "AsyncExecutor, eager_polling, polling_interval 1 s (default 5 s, which the idle cell has)",
        "send_outgoing_interval": "10 ms (default 1 s, which the idle cell has)",
        "results": "not kept; an end is polled for each ms",
        "heartbeat_timeout": "90 s (default)",
    }

    async def setup(self) -> None:
        async with ChancyApp(self.url) as app:
            await app.migrate()

    async def open(self) -> None:
        self._app = await ChancyApp(self.url).__aenter__()

    async def close(self) -> None:
        await self._app.__aexit__(None, None, None)

    async def start(self, job: Job):
        return await self._app.push(_new(job))

    async def start_many(self, jobs: list[Job]) -> None:
        async for _ in self._app.push_many([_new(each) for each in jobs]):
            pass

    async def call(self, job: Job) -> None:
        await self._app.wait_for_job(await self.start(job), interval=0.001)

    async def work(self, concurrency: int, kind: str) -> None:
        polling = {} if kind == "idle" else {"eager_polling": True, "polling_interval": 1}
        executor = "chancy.executors.asyncex.AsyncExecutor"
        async with ChancyApp(self.url) as app:
            await app.declare(Queue("default", concurrency=concurrency, executor=executor, **polling), upsert=True)
            await_go()
            worker = Worker(app)
            if kind != "idle":
                worker.send_outgoing_interval = 0.01
            async with worker:
                await worker.wait_for_shutdown()


def _new(started: Job):
    return {"nothing": nothing, "hold": hold}[started.kind].job.with_kwargs(payload=started.argument)


if __name__ == "__main__":
    main(Chancy)
