"""Runs the survey in two worker processes, and kills one of them half way."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import json

from perdure.demo import journal
from perdure.demo.analysis import PackageFacts
from perdure.demo.app import Job, app, package, survey
from perdure.demo.display import Display
from perdure.demo.journal import Note
from perdure.errors import PerdureError
from perdure.model import State

PROCESSES = 2
CONCURRENCY = 4

_SHORTEST = 4.0
"""Seconds that the work takes at the least: with few files it is slowed down, so that it has a middle."""

_LOOK = 0.1


@dataclass
class Crash:
    """The death of a worker: what it was working on, and which files were safely parsed when it had happened."""

    pid: int
    at: float
    lost: dict[str, str]
    """The packages that it worked on, by the id of their run."""
    saved: set[str] = field(default_factory=set[str])
    """The files whose step had a checkpoint."""

    def first_after(self, notes: list[Note]) -> Note | None:
        """When another worker first went on with something of it."""
        later = [note for note in notes if note.run in self.lost and note.pid != self.pid and note.at > self.at]
        return min(later, default=None)


@dataclass
class Outcome:
    """What came of it."""

    results: list[PackageFacts]
    notes: list[Note]
    crash: Crash | None


async def perform(root: Path, files: int, directory: Path, display: Display) -> Outcome:
    """Surveys the files below `root`, with store, journal and log in `directory`."""
    notes = directory / "journal.txt"
    pace = min(1.0, _SHORTEST * PROCESSES * CONCURRENCY / files)
    async with app, _workers(directory / "workers.log") as workers:
        run = await survey.options(id="survey").start(Job(str(root), str(notes), pace))
        crash: Crash | None = None
        told = False
        while not (await run.status()).state.final:
            if workers.returncode is not None:
                raise PerdureError(f"the workers ended by themselves; {directory / 'workers.log'} says why")
            busy = await _busy()
            done = len({note.file for note in journal.read(notes)})
            display.progress(done, {pid: list(packages.values()) for pid, packages in busy.items()})
            if crash is None and busy and 2 * done >= files:
                crash = await _kill(busy)
                display.say(
                    f"killed worker {crash.pid} (SIGKILL) at work on: {', '.join(crash.lost.values())}", "bold red"
                )
            elif crash is not None and not told and (note := crash.first_after(journal.read(notes))):
                told = True
                display.say(
                    f"worker {note.pid} goes on with it, {note.at - crash.at:.1f} s after the kill", "bold green"
                )
            await asyncio.sleep(_LOOK)
        results = await run.result()
        display.progress(files, {})
    return Outcome(results, journal.read(notes), crash)


@asynccontextmanager
async def _workers(log: Path) -> AsyncGenerator[Process]:
    """The worker processes, under the command that one would use oneself."""
    command = ["worker", "perdure.demo.app:app", "--processes", str(PROCESSES), "--concurrency", str(CONCURRENCY)]
    command += ["--grace", "2"]  # when the demonstration is broken off
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "perdure", *command, stdin=DEVNULL, stdout=output, stderr=output
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def _busy() -> dict[int, dict[str, str]]:
    """The packages that each worker process is at, by the id of their run."""
    pids = {worker.name: worker.pid for worker in await (await app.client.store()).workers()}
    busy: dict[int, dict[str, str]] = defaultdict(dict)
    for run in await app.runs(state=State.RUNNING, workflow=package.name):
        if run.record.worker in pids:
            busy[pids[run.record.worker]][run.id] = json.decode(run.record.input)["name"]
    return busy


async def _kill(busy: dict[int, dict[str, str]]) -> Crash:
    """Kills the worker that has the most to lose."""
    pid = max(busy, key=lambda pid: len(busy[pid]))
    os.kill(pid, signal.SIGKILL)
    crash = Crash(pid, time.time(), busy[pid])
    for run in await app.runs(workflow=package.name, limit=100_000):
        events = await app.run(run.id).history()
        crash.saved.update(event.value["file"] for event in events if (event.kind, event.outcome) == ("step", "ok"))
    return crash
