"""cairnq on PostgreSQL or SQLite; the ten groups are resources, which hold within one worker."""

from __future__ import annotations

from cairnq import CairnQ, Worker
from protocol import GROUPS, PLAIN_QUEUE, Job, Peer, await_go, main, options

_ON_SQLITE = options().url.startswith("sqlite")
_POLL, _RESULT = 10, 1


class Cairnq(Peer):
    packages = ("cairnq", "uvloop") if _ON_SQLITE else ("cairnq", "asyncpg", "uvloop")
    lacks = PLAIN_QUEUE | {"bulk": "no bulk enqueue"}
    settings = {
        "polling": "of a queue each 10 ms (default 500 ms, which the idle cell has), for results each ms",
        "lease": "30 s (default)",
        "groups": "a resource for each, in one worker only",
        "on SQLite": "as it comes: WAL, synchronous=FULL",
    }

    async def setup(self) -> None:
        await self.open()
        await self.close()

    async def open(self) -> None:
        self._tasks = CairnQ.sqlite(_path(self.url)) if _ON_SQLITE else CairnQ.postgres(self.url)
        await self._tasks.connect()

    async def close(self) -> None:
        await self._tasks.close()

    async def start(self, job: Job) -> None:
        await self._tasks.submit(job.group or job.kind, {"payload": job.argument})

    async def call(self, job: Job) -> None:
        await self._tasks.call(job.kind, {"payload": job.argument}, poll_ms=_RESULT, max_poll_ms=_RESULT)

    async def work(self, concurrency: int, kind: str) -> None:
        make, board = (Worker.sqlite, self.board) if _ON_SQLITE else (Worker.postgres, self.board)
        groups = GROUPS if kind == "turn" else ()
        worker = make(
            _path(self.url),
            concurrency=concurrency,
            poll_interval_ms=500 if kind == "idle" else _POLL,
            resources=dict.fromkeys(groups, 1) or None,
        )

        @worker.task("nothing")
        async def nothing(ctx, payload) -> dict[str, int]:
            board.mark()
            return {"length": len(payload["payload"])}

        @worker.task("hold")
        async def hold(ctx, payload) -> None:
            await board.hold()

        for group in groups:

            @worker.task(group, resource=group)
            async def turn(ctx, payload) -> None:
                board.turn(payload["payload"])

        await_go()
        await worker.run()


def _path(url: str) -> str:
    return url.removeprefix("sqlite:///")


if __name__ == "__main__":
    main(Cairnq)
