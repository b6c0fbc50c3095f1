"""Functions that run in processes of their own, which find them here."""

from __future__ import annotations

import os
import time
from pathlib import Path

from perdure import step


@step(process=True)
def where(n: int) -> list[int]:
    """The process that it runs in."""
    return [n, os.getpid()]


@step(process=True)
def refuse(n: int) -> int:
    raise ValueError(f"not {n}")


@step(process=True)
def hang(path: str) -> None:
    """Tells its process by a file, and does not end by itself."""
    Path(path).write_text(str(os.getpid()), encoding="utf-8")
    time.sleep(600)


@step(process=True, timeout=60)
def hang_for_a_while(path: str) -> None:
    Path(path).write_text(str(os.getpid()), encoding="utf-8")
    time.sleep(600)


@step(process=True)
def meet(path: str) -> None:
    """Tells by a file that it has begun, and ends when that is gone."""
    Path(path).touch()
    while Path(path).exists():
        time.sleep(0.01)


@step(process=True)
def leave(interrupted: bool) -> None:
    raise KeyboardInterrupt if interrupted else SystemExit(3)
