"""The workflows of the demonstration: a survey has a child run for each package, and that a step for each file.

Serve them with `perdure worker perdure.demo.app:app --processes 2`.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path

from perdure import App, current_run, step
from perdure.demo import URL_VARIABLE, journal
from perdure.demo.analysis import FileFacts, PackageFacts, analyse, combine, find_packages

app = App(os.environ.get(URL_VARIABLE, "sqlite:///demo.db"))


@dataclass
class Job:
    """What to survey. Each start of a step is noted in `journal`; `pace` is the least that a step takes, in seconds."""

    root: str
    journal: str
    pace: float


@step
def list_packages(job: Job) -> dict[str, list[str]]:
    """A step, because what is in a directory may be something else in the next attempt."""
    return find_packages(Path(job.root))


@step
def parse(job: Job, file: str) -> FileFacts:
    """A plain function, so it runs in a thread."""
    journal.note(Path(job.journal), current_run().id, file)
    began = time.monotonic()
    facts = analyse(Path(job.root), file)
    time.sleep(max(0.0, began + job.pace - time.monotonic()))
    return facts


@app.workflow
async def package(job: Job, name: str, files: list[str]) -> PackageFacts:
    """Parses the files of one package side by side. What is parsed stays parsed, whatever happens to the worker."""
    steps = [parse.options(key=f"{number}:{file}"[:200])(job, file) for number, file in enumerate(files, 1)]
    return combine(name, await asyncio.gather(*steps))


@app.workflow
async def survey(job: Job) -> list[PackageFacts]:
    """Has all packages surveyed, and waits for them without holding a slot, a thread or a connection."""
    packages = await list_packages(job)
    return await asyncio.gather(*(package.run(job, name, files) for name, files in packages.items()))
