"""Notes of each start of a step, in a file beside the store, so that what the store says can be checked."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple


class Note(NamedTuple):
    """A process began with a file, for a run."""

    at: float
    pid: int
    run: str
    file: str


def note(journal: Path, run: str, file: str) -> None:
    """Adds a line. Processes that append at the same time don't get into each other's way."""
    line = f"{time.time()}\t{os.getpid()}\t{run}\t{file}\n".encode()
    descriptor = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def read(journal: Path) -> list[Note]:
    """All notes so far, in order."""
    if not journal.exists():
        return []
    lines = journal.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    fields = (line.split("\t", 3) for line in lines)
    return [Note(float(at), int(pid), run, file) for at, pid, run, file in fields]
