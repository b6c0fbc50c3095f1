"""dura: threads on a SQLite file."""

from __future__ import annotations

import time

from dura import DurableEngine, run_workers
from protocol import NO_GROUPS, STEPS, Job, Peer, await_go, main

_MOST = 4
"""Threads: with more it is slower."""


class Dura(Peer):
    packages = ("dura",)
    lacks = NO_GROUPS | {"bulk": "no bulk enqueue", "nap": "its runs are in no event loop"}
    settings = {
        "workers": "threads, at most 4: with more it is slower",
        "polling": "1 s (fixed)",
        "on SQLite": "as it comes: WAL, synchronous=FULL",
        "claims": "120 s (default)",
        "an end": "polled for each ms",
    }

    def setup(self) -> None:
        self.open()
        self.close()

    def open(self) -> None:
        self._engine = DurableEngine(self.url.removeprefix("sqlite:///"))

    def close(self) -> None:
        self._engine.close()

    def start(self, job: Job) -> str:
        return self._engine.spawn_task(name=job.kind, params={"payload": job.argument}).task_id

    def call(self, job: Job) -> None:
        task = self.start(job)
        while self._engine.get_task(task).state != "completed":
            time.sleep(0.001)

    def work(self, concurrency: int, kind: str) -> None:
        self.open()
        handlers = {"nothing": self._nothing, "steps": self._steps, "hold": self._hold, "wait": self._wait}
        await_go()
        run_workers(self._engine, handlers=handlers, worker_count=min(concurrency, _MOST))

    def _nothing(self, engine, task) -> int:
        self.board.mark()
        return len(task.params["payload"])

    def _steps(self, engine, task) -> int:
        payload = task.params["payload"]
        for number in range(STEPS):
            engine.checkpoint(task_id=task.task_id, step_name=f"work-{number}", fn=lambda: payload)
        self.board.mark()
        return len(payload)

    def _hold(self, engine, task) -> int:
        engine.checkpoint(task_id=task.task_id, step_name="work", fn=lambda: "x" * 16)
        engine.checkpoint(task_id=task.task_id, step_name="hold", fn=self.board.hold_thread)
        return 0

    def _wait(self, engine, task) -> int:
        self.board.mark()
        engine.wait_for_event(run_id=task.run_id, task_id=task.task_id, step_name="wait", event_name=task.task_id)
        return 0


if __name__ == "__main__":
    main(Dura)
