"""Huey on Redis or SQLite, with threads; it takes a task out of the store before it runs it."""

from __future__ import annotations

from huey import RedisHuey, SqliteHuey
from protocol import NO_GROUPS, PLAIN_QUEUE, Job, Peer, await_go, main, options

_ON_SQLITE = options().url.startswith("sqlite")


class Huey(Peer):
    packages = ("huey",) if _ON_SQLITE else ("huey", "redis", "hiredis")
    lacks = PLAIN_QUEUE | NO_GROUPS | {"bulk": "no bulk enqueue", "recovery": "a killed worker's tasks are lost"}
    settings = {
        "workers": "threads",
        "polling": "10 ms, no backoff, where it can't block (default 100 ms to 10 s, which the idle cell has)",
        "results": "notify_result=True on Redis (default False), polled each ms on SQLite (default 100 ms and more)",
        "on SQLite": "WAL, fsync on: synchronous=FULL",
    }

    def __init__(self, url, board) -> None:
        super().__init__(url, board)
        if _ON_SQLITE:
            self._huey = SqliteHuey("compare", filename=url.removeprefix("sqlite:///"), fsync=True)
        else:
            self._huey = RedisHuey("compare", url=url, notify_result=True)

        @self._huey.task(name="nothing")
        def nothing(payload: str) -> int:
            board.mark()
            return len(payload)

        self._tasks = {"nothing": nothing}

    def start(self, job: Job):
        return self._tasks[job.kind](job.argument)

    def call(self, job: Job) -> None:
        self.start(job).get(blocking=True, timeout=30, backoff=1.0, max_delay=0.001)

    def work(self, concurrency: int, kind: str) -> None:
        polling = {} if kind == "idle" else {"initial_delay": 0.01, "backoff": 1.0, "max_delay": 0.01}
        consumer = self._huey.create_consumer(workers=concurrency, worker_type="thread", **polling)
        await_go()
        consumer.run()


if __name__ == "__main__":
    main(Huey)
