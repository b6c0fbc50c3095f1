"""Oban for Python."""

from __future__ import annotations

import asyncio

from oban import Oban as ObanApp
from oban import job
from oban.schema import install
from protocol import PLAIN_QUEUE, Board, Job, Peer, await_go, main, options, until_term

BOARD = Board(options().board)


@job(queue="default")
async def nothing(payload: str) -> None:
    BOARD.mark()


@job(queue="default")
async def hold(payload: str) -> None:
    await BOARD.hold()


class Oban(Peer):
    packages = ("oban", "psycopg", "uvloop")
    lacks = PLAIN_QUEUE | {"turn": "groups are in Oban Pro"}
    settings = {
        "results": "not kept; an end is polled for each ms",
        "rescue": "after 300 s, looked at every 60 s (default)",
    }

    async def setup(self) -> None:
        await self.open()
        await install(self._pool)
        await self.close()

    async def open(self) -> None:
        self._pool = await ObanApp.create_pool(self.url)
        self._oban = ObanApp(pool=self._pool)

    async def close(self) -> None:
        await self._pool.close()

    async def start(self, job: Job):
        return await self._oban.enqueue(_new(job))

    async def start_many(self, jobs: list[Job]) -> None:
        await self._oban.enqueue_many([_new(job) for job in jobs])

    async def call(self, job: Job) -> None:
        started = await self.start(job)
        while (await self._oban.get_job(started.id)).state != "completed":
            await asyncio.sleep(0.001)

    async def work(self, concurrency: int, kind: str) -> None:
        pool = await ObanApp.create_pool(self.url)
        await_go()
        async with ObanApp(pool=pool, queues={"default": concurrency}):
            await until_term()
        await pool.close()


def _new(started: Job):
    return {"nothing": nothing, "hold": hold}[started.kind].new(started.argument)


if __name__ == "__main__":
    main(Oban)
