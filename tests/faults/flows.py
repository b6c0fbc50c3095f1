"""The workflows that the faults happen to, and the log that their steps write: one line for each thing that happened.

Lines are appended with O_APPEND, so that their order in the file is the order of events across all processes.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import time
from datetime import datetime
from pathlib import Path

from perdure import App, Retry, Run, Workflow, current_run, sleep, sleep_until, step, wait_signal

LOG = "FAULTS_LOG"
"""The environment variable with the log's path."""
GROUP_LIMIT = "FAULTS_GROUP_LIMIT"
"""The environment variable with how many of a group a process asks for, of visits."""
GATES = "FAULTS_GATES"
"""The environment variable with the directory in which tests open gates."""

_SLICE = 0.02


def log(*words: object) -> None:
    """Writes a line, whole and at once."""
    line = " ".join(str(word) for word in (*words, os.getpid()))
    file = os.open(os.environ[LOG], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


def _ran() -> None:
    here = current_run()
    log("ran", here.id, here.step)


def _kept(key: str) -> None:
    """Says that a step has returned: its checkpoint is durable, and it may never run again."""
    log("kept", current_run().id, key)


def _open(gate: str) -> bool:
    """Whether a gate is open for this process: to all, or to its pid."""
    gates = Path(os.environ[GATES])
    return (gates / gate).exists() or (gates / f"{gate}.{os.getpid()}").exists()


# --- steps


@step
async def add(a: int, b: int) -> int:
    _ran()
    await asyncio.sleep(_SLICE)
    return a + b


@step
async def note(number: int) -> int:
    _ran()
    return number


@step
def double(a: int) -> int:
    _ran()
    time.sleep(_SLICE)
    return 2 * a


@step
async def hold(gate: str) -> int:
    """Goes on until the gate is open; tells of its begin, and of its cancellation."""
    _ran()
    try:
        while not _open(gate):
            await asyncio.sleep(_SLICE)
    except asyncio.CancelledError:
        log("cancelled", current_run().id, gate)
        raise
    return os.getpid()


@step
def hold_thread(gate: str) -> int:
    """The same in a thread."""
    _ran()
    while not _open(gate):
        if current_run().cancelling:
            log("cancelled", current_run().id, gate)
            break
        time.sleep(_SLICE)
    return os.getpid()


@step
async def block(seconds: float, spin: bool) -> int:
    """Blocks the event loop: asleep, or spinning with the interpreter's lock in hand."""
    _ran()
    until = time.monotonic() + seconds
    if spin:
        while time.monotonic() < until:
            pass
    else:
        time.sleep(seconds)
    return os.getpid()


@step
async def grip(seconds: int) -> int:
    """Holds the interpreter's lock in one call, the first time."""
    _ran()
    if current_run().attempt == 1:
        ctypes.PyDLL(None).sleep(seconds)
    return os.getpid()


@step(process=True)
def hold_process(gate: str) -> int:
    """The same in a process of its own, which has a file locked for as long as it lives."""
    with Path(os.environ[GATES], f"{gate}.{os.getpid()}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        log("process", gate, os.getppid())
        while not _open(gate):
            time.sleep(_SLICE)
    return os.getppid()


@step
def never_return() -> None:
    _ran()
    while True:
        time.sleep(1)


@step
async def die() -> None:
    _ran()
    os._exit(3)


@step(retry=Retry(attempts=3, delay=0.4, jitter=0))
async def third_time() -> int:
    _ran()
    attempt = current_run().step_attempt
    if attempt < 3:
        raise ValueError("not yet")
    return attempt


# --- workflows


class Flows:
    """The workflows, on one app."""

    def __init__(self, app: App) -> None:
        @app.workflow
        async def leaf(n: int) -> int:
            value = await add(n, 1)
            _kept("add")
            return value

        @app.workflow
        async def journey(n: int) -> int:
            """Steps one after the other and side by side, in the loop and in threads; some sleep, some have a child."""
            first = await add(n, 1)
            _kept("add")
            second, third = await asyncio.gather(add(first, 10), double(first))
            _kept("add#2")
            _kept("double")
            if n % 5 == 0:
                await sleep(0.05)
            fourth = await leaf.run(n) if n % 7 == 0 else 0
            return first + second + third + fourth

        @app.workflow
        async def holding(gate: str, thread: bool = False) -> int:
            return await (hold_thread(gate) if thread else hold(gate))

        @app.workflow
        async def apart(gate: str) -> int:
            return await hold_process(gate)

        @app.workflow
        async def blocking(seconds: float, spin: bool) -> int:
            return await block(seconds, spin)

        @app.workflow
        async def gripping(seconds: int) -> int:
            return await grip(seconds)

        @app.workflow(max_crashes=3)
        async def poison() -> None:
            await die()

        @app.workflow
        async def working(steps: int) -> int:
            """Runs long, and makes progress."""
            value = 0
            for _ in range(steps):
                value = await add(value, 1)
            return value

        @app.workflow
        async def long_past(steps: int) -> int:
            """Has many small steps behind it, then waits at a gate."""
            for number in range(steps):
                await note(number)
            return await hold("gate")

        @app.workflow
        async def deaf() -> None:
            await never_return()

        @app.workflow
        async def timed() -> int:
            """Sleeps, is tried again after a while, waits for a signal that comes late."""
            await sleep(0.5)
            attempts = await third_time()
            return attempts + await wait_signal("go", int, timeout=60)

        @app.workflow
        async def retrying(n: int) -> int:
            """A step that is kept, then one that is tried three times."""
            return await add(n, 1) + await third_time()

        @app.workflow
        async def asking() -> list[int]:
            """Takes three signals."""
            return [await wait_signal("number", int) for _ in range(3)]

        @app.workflow
        async def parked(until: datetime | None) -> str:
            """Away until a time, or until a signal."""
            if until is None:
                return await wait_signal("wake", str)
            await sleep_until(until)
            return "slept"

        group_limit = int(os.environ.get(GROUP_LIMIT, "2"))

        @app.workflow(queue="limited", group=lambda n, group: group or f"alone-{n}", group_limit=group_limit)
        async def visiting(n: int, group: str) -> None:
            """Says when it is inside; a visit is short, and its code has nothing behind it when it is tried again."""
            log("in", n, group or "-")
            await asyncio.sleep(_SLICE)
            log("out", n, group or "-")

        self.visiting = visiting
        self.leaf: Workflow[[int], int] = leaf
        self.journey: Workflow[[int], int] = journey
        self.holding = holding
        self.apart = apart
        self.blocking = blocking
        self.gripping = gripping
        self.poison = poison
        self.working = working
        self.long_past = long_past
        self.deaf = deaf
        self.timed = timed
        self.retrying = retrying
        self.asking = asking
        self.parked = parked


def journey_result(n: int) -> int:
    """What a journey comes to."""
    first = n + 1
    return first + (first + 10) + 2 * first + (n + 1 if n % 7 == 0 else 0)


__all__ = ["Flows", "Run", "journey_result"]
