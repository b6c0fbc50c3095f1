"""duroxide on PostgreSQL or SQLite: orchestrations that replay, with activities as steps."""

from __future__ import annotations

import uuid

from duroxide import Client, PostgresProvider, Runtime, RuntimeOptions, SqliteProvider
from protocol import DAY, NO_GROUPS, STEPS, Job, Peer, await_go, block_term, main, options, until_term_plain

_ON_SQLITE = options().url.startswith("sqlite")
_MOST = 4
"""At a time: with more it is slower."""


class Duroxide(Peer):
    packages = ("duroxide",)
    lacks = NO_GROUPS | {"bulk": "no bulk enqueue", "nap": "its steps are in no event loop"}
    settings = {
        "concurrency": "of orchestrations and activities, at most 4: with more it is slower",
        "dispatcher_poll_interval": "10 ms (the idle cell has the default)",
        "locks": "as they come",
        "on SQLite": "as it comes: WAL; a commit does not wait for the disk",
    }

    def setup(self) -> None:
        self.open()

    def open(self) -> None:
        self._client = Client(self._provider())

    def start(self, job: Job) -> str:
        instance = uuid.uuid4().hex
        self._client.start_orchestration(instance, job.kind, job.argument)
        return instance

    def call(self, job: Job) -> None:
        self._client.wait_for_orchestration(self.start(job), 30_000)

    def work(self, concurrency: int, kind: str) -> None:
        block_term()
        polling = {} if kind == "idle" else {"dispatcher_poll_interval_ms": 10}
        slots = min(concurrency, _MOST)
        runtime = Runtime(
            self._provider(),
            RuntimeOptions(orchestration_concurrency=slots, worker_concurrency=slots, log_level="error", **polling),
        )
        self._define(runtime)
        await_go()
        runtime.start()
        until_term_plain()
        runtime.shutdown(2_000)

    def _provider(self):
        if _ON_SQLITE:
            return SqliteProvider.open(self.url)
        return PostgresProvider.connect(self.url)

    def _define(self, runtime: Runtime) -> None:
        board = self.board

        @runtime.register_activity("work")
        def work(_, payload: str) -> str:
            return payload

        @runtime.register_activity("hold")
        def hold(_, payload: str) -> str:
            board.hold_thread()
            return payload

        @runtime.register_orchestration("nothing")
        def nothing(_, payload: str):
            board.mark()
            return len(payload)
            yield

        @runtime.register_orchestration("steps")
        def steps(ctx, payload: str):
            for _ in range(STEPS):
                yield ctx.schedule_activity("work", payload)
            board.mark()
            return len(payload)

        @runtime.register_orchestration("hold")
        def holding(ctx, payload: str):
            yield ctx.schedule_activity("work", payload)
            yield ctx.schedule_activity("hold", payload)
            return len(payload)

        @runtime.register_orchestration("wait")
        def waiting(ctx, payload: str):
            board.mark()
            yield ctx.schedule_timer(DAY * 1000)
            return len(payload)


if __name__ == "__main__":
    main(Duroxide)
