"""arq."""

from __future__ import annotations

from arq import create_pool, func
from arq.connections import RedisSettings
from arq.worker import Worker
from protocol import NO_GROUPS, PLAIN_QUEUE, Job, Peer, await_go, main

_POLL = 0.001


class Arq(Peer):
    packages = ("arq", "redis", "hiredis", "uvloop")
    lacks = PLAIN_QUEUE | NO_GROUPS | {"bulk": "no bulk enqueue"}
    settings = {
        "poll_delay": "1 ms, of the queue and for results (default 0.5 s, which the idle and recovery cells have)",
        "job_timeout": "300 s (default)",
    }

    async def open(self) -> None:
        self._pool = await create_pool(RedisSettings.from_dsn(self.url))

    async def close(self) -> None:
        await self._pool.aclose()

    async def start(self, job: Job) -> None:
        await self._pool.enqueue_job(job.kind, job.argument)

    async def call(self, job: Job) -> None:
        started = await self._pool.enqueue_job(job.kind, job.argument)
        await started.result(poll_delay=_POLL)

    async def work(self, concurrency: int, kind: str) -> None:
        async def nothing(_, payload: str) -> int:
            self.board.mark()
            return len(payload)

        async def hold(_, payload: str) -> int:
            await self.board.hold()
            return len(payload)

        worker = Worker(
            [func(nothing, name="nothing"), func(hold, name="hold")],
            redis_settings=RedisSettings.from_dsn(self.url),
            max_jobs=concurrency,
            poll_delay=_POLL if kind == "nothing" else 0.5,
        )
        await_go()
        await worker.async_run()


if __name__ == "__main__":
    main(Arq)
