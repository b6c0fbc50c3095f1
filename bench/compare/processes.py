"""The processes of a cell, and the board that they write on."""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from systems import System, command, environment

_SLOT = struct.Struct("<qqq")
_LAG = struct.Struct("<qq")
_LOOK = 0.005
_GRACE = 2.0
_NS = 1e9


class CellError(Exception):
    """Why a cell has no figure."""


class LongerError(CellError):
    """What is measured takes longer than the workload waits."""


class Board:
    """The runner's end of what handlers tell."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self) -> tuple[int, float, float]:
        """How many runs have ended, when the first of them began and the last ended (seconds)."""
        slots = [
            _SLOT.unpack(data) for path in self.folder.glob("*.slot") if len(data := path.read_bytes()) == _SLOT.size
        ]
        slots = [slot for slot in slots if slot[0]]
        if not slots:
            return 0, 0.0, 0.0
        return sum(s[0] for s in slots), min(s[1] for s in slots) / _NS, max(s[2] for s in slots) / _NS

    def wait(self, count: int, seconds: float, workers: Workers | None = None) -> tuple[int, float, float]:
        """Waits until so many runs have ended or the time is over; raises when a worker ends by itself."""
        until = time.monotonic() + seconds
        while True:
            found = self.read()
            if found[0] >= count or time.monotonic() > until:
                return found
            if workers is not None:
                workers.check()
            time.sleep(_LOOK)

    def events(self, name: str) -> list[float]:
        """When something happened (seconds)."""
        path = self.folder / "events"
        lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
        words = [line.split(" ", 2) for line in lines]
        return [int(at) / _NS for at, _, what in words if what.startswith(name)]

    def lags(self) -> list[tuple[float, float]]:
        """When event loops were looked at (seconds), and how late they were (milliseconds)."""
        data = b"".join(path.read_bytes() for path in self.folder.glob("*.lag"))
        data = data[: len(data) // _LAG.size * _LAG.size]
        return [(at / _NS, late / 1e6) for at, late in _LAG.iter_unpack(data)]


class Workers:
    """Worker processes of one system, each with all of its children in a process group of its own."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]], logs: Sequence[Path]) -> None:
        self._processes = processes
        self._logs = logs

    def check(self) -> None:
        """Raises when one of them is gone."""
        for process, log in zip(self._processes, self._logs, strict=True):
            if process.poll() is not None:
                raise CellError(f"the worker ended: {_tail(log)}")

    def kill(self, number: int = 0) -> None:
        """Ends one at once, with its children, as a crash does."""
        _signal(self._processes[number], signal.SIGKILL)
        self._processes[number].wait()

    def tree(self) -> list[int]:
        """All of their processes."""
        found, new = [], [process.pid for process in self._processes]
        while new:
            found += new
            new = [child for pid in new for child in _children(pid)]
        return found

    def stop(self) -> None:
        """Asks them to end; after a while makes them."""
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        until = time.monotonic() + _GRACE
        for process in self._processes:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
            # What is left of its group.
            _signal(process, signal.SIGKILL)
            process.wait()


@contextmanager
def board() -> Iterator[Board]:
    """A new board, in memory where that can be."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="compare-", dir=memory if memory.is_dir() else None) as folder:
        yield Board(Path(folder))


@contextmanager
def workers(
    system: System, url: str, on: Board, *, concurrency: int, kind: str, count: int = 1, patience: float = 60.0
) -> Iterator[Workers]:
    """Worker processes that begin to serve all at once."""
    processes: list[subprocess.Popen[str]] = []
    logs = [on.folder / f"worker-{time.monotonic_ns()}-{number}.log" for number in range(count)]
    words = ["work", "--concurrency", str(concurrency), "--kind", kind, "--board", str(on.folder)]
    made = Workers(processes, logs)
    try:
        processes.extend(_open(system, url, words, log) for log in logs)
        for process, log in zip(processes, logs, strict=True):
            _await_ready(process, log, patience)
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        yield made
    finally:
        made.stop()


def call(system: System, url: str, *words: str, patience: float = 120.0) -> dict[str, Any]:
    """Runs a command of a system's script, and returns the last line that it said."""
    with tempfile.NamedTemporaryFile("r+", suffix=".log") as log:
        process = _open(system, url, words, Path(log.name))
        try:
            output, _ = process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            raise CellError(f"`{words[0]}` took more than {patience:.0f} s") from None
        finally:
            _signal(process, signal.SIGKILL)
            process.wait()
        if process.returncode:
            raise CellError(f"`{words[0]}` failed: {_tail(Path(log.name))}")
    said = [line for line in output.splitlines() if line.startswith("{")]
    return json.loads(said[-1]) if said else {}


def memory_of(pids: Sequence[int]) -> int:
    """The bytes of memory that processes hold for themselves (proportional set size)."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def processor_of(pids: Sequence[int]) -> float:
    """The seconds of processor time that processes have had."""
    total = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def _open(system: System, url: str, words: Sequence[str], log: Path) -> subprocess.Popen[str]:
    script, *_ = command(system), None
    with log.open("ab") as errors:
        return subprocess.Popen(
            [*script, url, *words],
            env={**os.environ, **environment(system)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )


def _await_ready(process: subprocess.Popen[str], log: Path, patience: float) -> None:
    timer = threading.Timer(patience, process.kill)
    timer.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith('{"ready"'):
                # What it says from now on must not fill the pipe.
                threading.Thread(target=process.stdout.read, daemon=True).start()
                return
    finally:
        timer.cancel()
    raise CellError(f"the worker did not start: {_tail(log)}")


def _signal(process: subprocess.Popen[str], number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        pass


def _children(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    except OSError:
        return []


def _tail(log: Path) -> str:
    """The line that tells most: the last one with an error."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Failure)\b", line)] or lines
    return telling[-1][:300] if telling else "it said nothing"
