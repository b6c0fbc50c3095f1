"""Processes that run `perdure`, and waiting for what they do."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

import perdure
from perdure import App

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds that a machine under load may take for anything."""

SHOP = '''
import asyncio, os, time
from pathlib import Path
from perdure import App, Retry, current_run, progress, sleep, step, wait_signal

app = App("sqlite:///shop.db")

@step
async def price(item: str) -> int:
    """In cents."""
    return len(item) * 100

@step
async def look_up(item: str) -> int:
    return await price(item)

@app.workflow
async def sell(item: str, count: int = 1) -> int:
    return await look_up(item) * count

@app.workflow
async def ship(order: str) -> str:
    await sleep(0.05)
    return f"shipped {order}"

@app.workflow
async def fulfil(order: str) -> str:
    shipment = await ship.start(order)
    approved = await wait_signal("approve", bool, timeout=3600)
    return f"{await shipment.result()}: {approved}"

@app.workflow(queue="bulk")
async def refuse(reason: str) -> None:
    raise ValueError(reason)

@app.workflow
async def measure(grams: int) -> None:
    if grams:
        progress(grams, 10, "weighing")
    else:
        progress({"phase": "empty"})

@app.workflow
async def hold(name: str) -> int:
    """Says where it runs, and waits for a file, in memory."""
    Path(f"{name}.{os.getpid()}").touch()
    while not Path(f"{name}.go").exists():
        await asyncio.sleep(0.01)
    return os.getpid()

@app.workflow
async def block(name: str) -> None:
    """Holds up the event loop, deaf to everything."""
    Path(f"{name}.{os.getpid()}").touch()
    while True:
        time.sleep(0.05)

@app.workflow
def hang(name: str) -> None:
    """A thread that never ends."""
    Path(f"{name}.{os.getpid()}").touch()
    while True:
        time.sleep(0.05)
'''

QUITS = """
import os
from pathlib import Path
from perdure import App, step

app = App("sqlite:///quits.db")

@step
def leave() -> int:
    if not Path("left").exists():
        Path("left").touch()
        os._exit(0)
    return os.getpid()

@app.workflow
def quit() -> int:
    return leave().wait()
"""
"""Its step ends its process as if all was well, the first time."""


def until(condition: Callable[[], T | None], what: str) -> T:
    """The first true value of the condition."""
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < end, f"waited {PATIENCE} s for {what}"
        time.sleep(0.02)
    return value


class Perdure:
    """The command as a process of its own; its output is kept as it comes."""

    def __init__(self, folder: Path, *args: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "perdure", *args],
            cwd=folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.pid = self._process.pid
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Perdure:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        # Processes below it hold the pipe open until they have ended too.
        self._reader.join(PATIENCE)
        assert not self._reader.is_alive(), f"something below it is still alive; {self.output}"
        if self._process.stdout is not None:
            self._process.stdout.close()

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def says(self, text: str, *, times: int = 1) -> None:
        """Waits until a text has been in so many lines of the output."""
        until(lambda: self._count(text) >= times or self._reader_done(text, times), f"{text!r} in:\n{self.output}")

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def ended(self) -> int:
        """Waits for its end and gives the exit code."""
        return self._process.wait(PATIENCE)

    def _count(self, text: str) -> int:
        return sum(text in line for line in self.lines)

    def _reader_done(self, text: str, times: int) -> bool:
        if not self._reader.is_alive() and self._count(text) < times:
            raise AssertionError(f"it ended without saying {text!r}:\n{self.output}")
        return False

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))


def environment() -> dict[str, str]:
    """The environment, with the package that is under test in it, and no target of another test's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    return kept | {"PYTHONPATH": str(Path(perdure.__path__[0]).parent), "PYTHONUNBUFFERED": "1"}


def pids(folder: Path, name: str) -> list[int]:
    """The processes in which a run of `hold` and the like has been, as the files say that it leaves."""
    found = [path.suffix.removeprefix(".") for path in folder.glob(f"{name}.*")]
    return [int(suffix) for suffix in found if suffix.isdigit()]


def alive(pid: int) -> bool:
    """Whether a process is there and is more than its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def locked(file: Path) -> Generator[None]:
    """Holds the lock of a store's file: nobody can write."""
    with closing(sqlite3.connect(file, timeout=PATIENCE, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield


def start(app: App, workflow: str, *args: object, id: str) -> None:
    """Makes a run."""
    app.find(workflow).options(id=id).start(*args).wait()
