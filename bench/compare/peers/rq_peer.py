"""RQ, with the worker that does not fork for each job: its quicker one."""

from __future__ import annotations

from protocol import NO_GROUPS, PLAIN_QUEUE, Board, Job, Peer, await_go, main, options
from redis import Redis
from rq import Queue, SimpleWorker

BOARD = Board(options().board)


def nothing(payload: str) -> int:
    BOARD.mark()
    return len(payload)


def hold(payload: str) -> int:
    BOARD.hold_thread()
    return len(payload)


class Rq(Peer):
    packages = ("rq", "redis", "hiredis")
    lacks = (
        PLAIN_QUEUE
        | NO_GROUPS
        | {
            "c50": "one job at a time in a process",
            "payload64k": "one job at a time in a process",
        }
    )
    settings = {
        "worker": "SimpleWorker (no fork)",
        "processes": "one job at a time in each",
        "results": "kept for 500 s (default)",
    }

    def __init__(self, url, board) -> None:
        super().__init__(url, board)
        self._redis = Redis.from_url(url)
        self._queue = Queue("compare", connection=self._redis)

    def start(self, job: Job):
        # A worker imports them by their names, which can't be in `__main__`.
        return self._queue.enqueue(f"rq_peer.{job.kind}", job.argument, job_timeout=3600)

    def start_many(self, jobs: list[Job]) -> None:
        self._queue.enqueue_many([Queue.prepare_data(f"rq_peer.{job.kind}", (job.argument,)) for job in jobs])

    def call(self, job: Job) -> None:
        self.start(job).latest_result(timeout=30)

    def work(self, concurrency: int, kind: str) -> None:
        worker = SimpleWorker([self._queue], connection=self._redis)
        await_go()
        worker.work(logging_level="WARNING")


if __name__ == "__main__":
    main(Rq)
