"""SAQ, on Redis or on PostgreSQL."""

from __future__ import annotations

from protocol import NO_GROUPS, PLAIN_QUEUE, Job, Peer, await_go, main, options
from saq import Job as SaqJob
from saq import Queue, Worker

_ON_POSTGRES = options().url.startswith("postgres")


class Saq(Peer):
    packages = ("saq", "psycopg") if _ON_POSTGRES else ("saq", "redis", "hiredis")
    lacks = PLAIN_QUEUE | {"bulk": "no bulk enqueue"} | ({} if _ON_POSTGRES else NO_GROUPS)
    settings = {
        "waiting for results": "polled each ms (default 500 ms)",
        "timeout": "10 s (default), looked at every 60 s (default)",
        "results": "kept for 600 s (default)",
    }

    async def setup(self) -> None:
        await self.open()
        await self.close()

    async def open(self) -> None:
        self._queue = Queue.from_url(self.url)
        await self._queue.connect()

    async def close(self) -> None:
        await self._queue.disconnect()

    async def start(self, job: Job) -> None:
        extra = {"group_key": job.group} if job.group else {}
        await self._queue.enqueue(SaqJob(job.kind, kwargs={"payload": job.argument}, retries=5, **extra))

    async def call(self, job: Job) -> None:
        await self._queue.apply(job.kind, poll_interval=0.001, payload=job.argument)

    async def work(self, concurrency: int, kind: str) -> None:
        async def nothing(_, *, payload: str) -> int:
            self.board.mark()
            return len(payload)

        async def hold(_, *, payload: str) -> int:
            await self.board.hold()
            return len(payload)

        async def turn(_, *, payload: str) -> int:
            self.board.turn(payload)
            return len(payload)

        functions = [("nothing", nothing), ("hold", hold), ("turn", turn)]
        await self.open()
        worker = Worker(self._queue, functions, concurrency=concurrency)
        await_go()
        await worker.start()


if __name__ == "__main__":
    main(Saq)
