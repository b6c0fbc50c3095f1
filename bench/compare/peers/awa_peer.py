"""awa."""

from __future__ import annotations

from dataclasses import dataclass

from awa import AsyncClient
from protocol import GROUPS, PLAIN_QUEUE, Job, Peer, await_go, main, until_term


@dataclass
class Nothing:
    payload: str


@dataclass
class Turn:
    payload: str


@dataclass
class Hold:
    payload: str


class Awa(Peer):
    packages = ("awa-pg", "uvloop")
    lacks = PLAIN_QUEUE | {"result": "keeps no results"}
    settings = {"storage": "queue storage (default)", "groups": "a queue for each, in one worker only"}

    async def setup(self) -> None:
        await self.open()
        await self._client.migrate()
        # Its queue storage is in use from the first worker on.
        self._define()
        await self._client.start([("default", 1)])
        await self._client.shutdown()
        await self.close()

    async def open(self) -> None:
        self._client = AsyncClient(self.url)

    async def close(self) -> None:
        await self._client.close()

    async def start(self, job: Job) -> None:
        await self._client.insert(_new(job), queue=job.group or "default")

    async def start_many(self, jobs: list[Job]) -> None:
        await self._client.enqueue_many_copy(
            [_new(job) for job in jobs], opts=[{"queue": job.group or "default"} for job in jobs]
        )

    async def work(self, concurrency: int, kind: str) -> None:
        # Each queue takes a connection for itself.
        self._client = AsyncClient(self.url, max_connections=10 + len(GROUPS))
        self._define()
        await_go()
        queues = [("default", concurrency), *((group, 1) for group in GROUPS if kind == "turn")]
        await self._client.start(queues)
        await until_term()
        await self._client.shutdown()

    def _define(self) -> None:
        @self._client.task(Nothing)
        async def nothing(job) -> None:
            self.board.mark()

        @self._client.task(Turn)
        async def turn(job) -> None:
            self.board.turn(job.args.payload)

        @self._client.task(Hold)
        async def hold(job) -> None:
            await self.board.hold()


def _new(job: Job):
    return {"nothing": Nothing, "turn": Turn, "hold": Hold}[job.kind](job.argument)


if __name__ == "__main__":
    main(Awa)
