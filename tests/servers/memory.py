"""Where files cost no waiting for a disk: for tests that do not end the machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

PREFIX = "perdure-test-"
_MEMORY = Path("/dev/shm")
_NEEDED = 2 << 30


def memory() -> Path | None:
    """A folder in memory, if there is one with room enough. What is made in it is named `PREFIX`, and then the number
    of a process: when that has ended it is removed, since there it takes memory."""
    for path in _MEMORY.glob(f"{PREFIX}*"):
        if not Path(f"/proc/{path.name.removeprefix(PREFIX).partition('-')[0]}").exists():
            shutil.rmtree(path, ignore_errors=True)
    if not os.access(_MEMORY, os.W_OK) or shutil.disk_usage(_MEMORY).free < _NEEDED:
        return None
    return _MEMORY
