"""DBOS on PostgreSQL or SQLite: async workflows, enqueued by its client on a queue that a worker polls."""

from __future__ import annotations

import logging
import os

from dbos import DBOS, DBOSClient
from protocol import DAY, STEPS, Job, Peer, await_go, block_term, main, until_term_plain

_POLL, _RESULT = 0.01, 0.001


class Dbos(Peer):
    packages = ("dbos", "sqlalchemy", "psycopg")
    lacks = {
        "bulk": "no bulk enqueue",
        "recovery": "another process takes over only by a call of one's own, or with Conductor (proprietary)",
    }
    settings = {
        "polling": "of a queue each 10 ms (default 1 s, which the idle cell has), for results each ms (default 1 s)",
        "executor_id": "one for each process",
        "on SQLite": "as it comes: rollback journal, synchronous=FULL",
    }

    def setup(self) -> None:
        DBOS.migrate(self.url)

    def open(self) -> None:
        self._client = DBOSClient(system_database_url=self.url, application_name="compare")

    def close(self) -> None:
        self._client.destroy()

    def start(self, job: Job):
        options = {"workflow_name": job.kind, "queue_name": "groups" if job.kind == "turn" else "runs"}
        if job.kind == "turn":
            options["queue_partition_key"] = job.group
        return self._client.enqueue(options, job.argument)

    def call(self, job: Job) -> None:
        self.start(job).get_result(polling_interval_sec=_RESULT)

    def work(self, concurrency: int, kind: str) -> None:
        block_term()
        self._define()
        own = {"system_database_url": self.url, "executor_id": str(os.getpid())}
        DBOS(config={"name": "compare", "log_level": "ERROR", **own})
        logging.getLogger("dbos").setLevel(logging.ERROR)
        await_go()
        DBOS.launch()
        poll = 1.0 if kind == "idle" else _POLL
        # Its runs that wait stay in a slot.
        slots = None if kind == "wait" else concurrency
        if kind == "turn":
            DBOS.register_queue("groups", worker_concurrency=slots, partition_concurrency=1, polling_interval_sec=poll)
        else:
            DBOS.register_queue("runs", worker_concurrency=slots, polling_interval_sec=poll)
        until_term_plain()
        DBOS.destroy()

    def _define(self) -> None:
        board = self.board

        @DBOS.step()
        async def work(payload: str) -> str:
            return payload

        @DBOS.step()
        async def nap(payload: str) -> str:
            await board.nap()
            return payload

        @DBOS.workflow(name="nothing")
        async def nothing(payload: str) -> int:
            board.mark()
            return len(payload)

        @DBOS.workflow(name="steps")
        async def steps(payload: str) -> int:
            for _ in range(STEPS):
                await work(payload)
            board.mark()
            return len(payload)

        @DBOS.workflow(name="turn")
        async def turn(payload: str) -> int:
            board.turn(payload)
            return len(payload)

        @DBOS.workflow(name="nap")
        async def napping(payload: str) -> int:
            await nap(payload)
            board.mark()
            return len(payload)

        @DBOS.workflow(name="wait")
        async def waiting(payload: str) -> int:
            board.mark()
            await DBOS.sleep_async(DAY)
            return len(payload)


if __name__ == "__main__":
    main(Dbos)
