"""Dramatiq, with results on Redis."""

from __future__ import annotations

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend
from protocol import NO_GROUPS, PLAIN_QUEUE, Job, Peer, await_go, block_term, main, until_term_plain


class Dramatiq(Peer):
    packages = ("dramatiq", "redis", "hiredis")
    lacks = PLAIN_QUEUE | NO_GROUPS | {"bulk": "no bulk enqueue"}
    settings = {
        "workers": "threads",
        "worker_timeout": "10 ms (default 1 s, which the idle cell has)",
        "queue_prefetch": "128 (default twice the threads)",
        "heartbeat": "60 s (default)",
        "results": "kept for 600 s (default)",
    }

    def __init__(self, url, board) -> None:
        super().__init__(url, board)
        self._broker = RedisBroker(url=url)
        self._broker.add_middleware(Results(backend=RedisBackend(url=url)))
        dramatiq.set_broker(self._broker)

        @dramatiq.actor(actor_name="nothing", store_results=True)
        def nothing(payload: str) -> int:
            board.mark()
            return len(payload)

        @dramatiq.actor(actor_name="hold", store_results=True, time_limit=float("inf"))
        def hold(payload: str) -> int:
            board.hold_thread()
            return len(payload)

        self._actors = {"nothing": nothing, "hold": hold}

    def close(self) -> None:
        self._broker.close()

    def start(self, job: Job):
        return self._actors[job.kind].send(job.argument)

    def call(self, job: Job) -> None:
        self.start(job).get_result(block=True, timeout=30_000)

    def work(self, concurrency: int, kind: str) -> None:
        block_term()
        worker = dramatiq.Worker(
            self._broker, worker_threads=concurrency, worker_timeout=1000 if kind == "idle" else 10
        )
        worker.queue_prefetch = 128
        await_go()
        worker.start()
        until_term_plain()
        worker.stop(timeout=2_000)


if __name__ == "__main__":
    main(Dramatiq)
