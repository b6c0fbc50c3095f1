"""Celery: no pool for one at a time, threads for more; it acknowledges late, so that a crash loses nothing."""

from __future__ import annotations

from celery import Celery as CeleryApp
from protocol import NO_GROUPS, PLAIN_QUEUE, Job, Peer, await_go, main


class Celery(Peer):
    packages = ("celery", "kombu", "redis", "hiredis")
    lacks = PLAIN_QUEUE | NO_GROUPS | {"bulk": "no bulk enqueue"}
    settings = {
        "pool": "solo for one at a time, threads for more",
        "acknowledgement": "late",
        "prefetch": "128, or twice the threads",
        "visibility timeout": "3,600 s (default)",
    }

    def __init__(self, url, board) -> None:
        super().__init__(url, board)
        self._app = app = CeleryApp("compare", broker=url, backend=url)
        app.conf.update(
            task_acks_late=True,
            worker_enable_remote_control=False,
            broker_connection_retry_on_startup=True,
            task_reject_on_worker_lost=True,
        )

        @app.task(name="nothing")
        def nothing(payload: str) -> int:
            board.mark()
            return len(payload)

        @app.task(name="hold")
        def hold(payload: str) -> int:
            board.hold_thread()
            return len(payload)

        self._tasks = {"nothing": nothing, "hold": hold}

    def open(self) -> None:
        self._producers = self._app.producer_pool.acquire(block=True)

    def close(self) -> None:
        self._producers.release()
        self._app.close()

    def start(self, job: Job) -> None:
        self._tasks[job.kind].apply_async((job.argument,), producer=self._producers)

    def call(self, job: Job) -> None:
        self._tasks[job.kind].delay(job.argument).get(timeout=30)

    def work(self, concurrency: int, kind: str) -> None:
        one = concurrency == 1
        self._app.conf.worker_prefetch_multiplier = 128 if one else max(2, 128 // concurrency)
        pool = ["--pool=solo"] if one else ["--pool=threads", f"--concurrency={concurrency}"]
        await_go()
        self._app.worker_main(
            ["worker", *pool, "--loglevel=WARNING", "--without-gossip", "--without-mingle", "--without-heartbeat"]
        )


if __name__ == "__main__":
    main(Celery)
