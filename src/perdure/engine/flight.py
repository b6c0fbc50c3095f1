"""Stretches of a run that are more than waiting."""

from __future__ import annotations

from typing import Protocol


class _Run(Protocol):
    def begin(self) -> None: ...
    def end(self) -> None: ...


class InFlight:
    """While something of a run is at work. (A generator with `contextmanager` takes four times as long.)"""

    __slots__ = ("_run",)

    def __init__(self, run: _Run) -> None:
        self._run = run

    def __enter__(self) -> None:
        self._run.begin()

    def __exit__(self, *_: object) -> None:
        self._run.end()
