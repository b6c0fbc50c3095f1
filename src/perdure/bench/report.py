"""What a measurement tells: its figures, and all that one has to know to compare them with others."""

from __future__ import annotations

import asyncio
import os
import platform
import sqlite3
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from msgspec import Struct, json

from perdure.bench.target import settings


class Report(Struct):
    """One measurement. `reading` says in a line how to read the figures."""

    bench: str
    url: str
    parameters: dict[str, object]
    figures: dict[str, object]
    reading: str

    def as_json(self) -> str:
        """One object on one line: the figures at the top, the rest under `parameters`, `machine` and so on."""
        return json.encode({"bench": self.bench, **self.figures, **self.context()}).decode()

    def context(self) -> dict[str, dict[str, object]]:
        """What was measured, and where."""
        return {
            "parameters": self.parameters,
            "machine": machine(),
            "versions": versions(),
            "settings": settings(self.url),
        }


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that `percent` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def machine() -> dict[str, object]:
    """The machine that measured."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": _memory(),
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }


def versions() -> dict[str, object]:
    """Of all that has a part in the figures."""
    return {
        "perdure": _version("perdure"),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "msgspec": _version("msgspec"),
        "uvloop": _version("uvloop"),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


class Ticker:
    """Measures how late an event loop is, while it is open: a short sleep again and again, and what it took over."""

    def __init__(self, pause: float = 0.005) -> None:
        self.lags_ms: list[float] = []
        self._pause = pause
        self._open = True
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Ticker:
        self._task = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        # The sleep that is under way is measured to its end: what came last may have been what held up the loop.
        self._open = False
        if self._task is not None:
            await self._task

    async def _tick(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(self._pause)
            self.lags_ms.append(max(0.0, time.perf_counter() - began - self._pause) * 1000)
            if not self._open:
                break
