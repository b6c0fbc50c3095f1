"""What the runner and the scripts of all systems agree on.

A script is a program: `python arq_peer.py URL COMMAND [options]`. It prints JSON, one object a line.

- `info`: versions, settings, what the system lacks, by kind of run, and whether its store has to be set up.
- `setup`: makes what the store needs. Called once, on an empty store.
- `enqueue --count N [--seconds S] [--bulk]`: starts runs, one at a time or in bulk, until so many are there or the time
  is over; tells how many, and how long it took.
- `call --count N [--seconds S]`: starts a run and waits for its result, again and again; tells each time it took.
  With `--warm N` both begin after so many that do not count, since some connect at the first.
- `work --concurrency C`: says that it is ready, waits for a line, and serves until SIGTERM.

Handlers call the `Board`, a folder in which each process keeps how many runs it has ended, and when the first began and
the last ended by the machine's monotonic clock: the runner reads it without asking the system or its store.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import inspect
import json
import mmap
import os
import random
import struct
import sys
import threading
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

KINDS = ("nothing", "steps", "turn", "hold", "nap", "wait", "idle")
"""A run that does nothing; with three durable steps; of a group; that holds on after a step; that naps in a step;
that waits for a day without a slot. `idle` is for workers: they serve `nothing`, and poll as they do by default."""

STEPS = 3
NAP = 1.0
"""Seconds that a step of a `nap` takes."""

DAY = 86_400

PLAIN_QUEUE = {"steps": "no durable steps", "nap": "no durable steps", "wait": "no durable waits"}
"""What queues lack that only run jobs."""

NO_GROUPS = {"turn": "no groups"}

GROUPS = ("large", *(f"group-{number}" for number in range(10)))
"""All that there are, for systems that have to know them when a worker starts."""
_SLOT = struct.Struct("<qqq")
_LAG = struct.Struct("<qq")
_TICK = 0.005
_BULK = 1000


class Board:
    """What handlers tell the runner. Safe in threads and after a fork."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def mark(self) -> None:
        """A run is about to end."""
        now = time.monotonic_ns()
        with self._lock:
            if self._slot is None:
                with (self._folder / f"{os.getpid()}.slot").open("w+b") as file:
                    file.truncate(_SLOT.size)
                    self._slot = mmap.mmap(file.fileno(), _SLOT.size)
            if not self._count:
                self._first = now
            self._count += 1
            _SLOT.pack_into(self._slot, 0, self._count, self._first, now)

    def event(self, name: str) -> None:
        """Something that happens seldom, in the order in which it happens."""
        with (self._folder / "events").open("a", encoding="ascii") as file:
            file.write(f"{time.monotonic_ns()} {os.getpid()} {name}\n")

    def turn(self, group: str) -> None:
        """A run of a group ends; those of the large one are counted only."""
        if group != "large":
            self.event(f"turn:{group}")
        self.mark()

    def held(self) -> bool:
        """Says that the holding run has come to its second step, and whether that is the first time."""
        events = self._folder / "events"
        first = not events.exists() or " hold" not in events.read_text(encoding="ascii")
        self.event("hold")
        return first

    async def hold(self) -> None:
        """The step of the run whose worker will be killed: only the first try takes long."""
        if self.held():
            await asyncio.sleep(3600)
        self.mark()

    def hold_thread(self) -> None:
        """The same in a thread."""
        if self.held():
            time.sleep(3600)
        self.mark()

    async def nap(self) -> None:
        """A step that waits for something else, while the lateness of its event loop is watched."""
        self.watch()
        await asyncio.sleep(NAP)

    def watch(self) -> None:
        """Keeps how late the running loop is, from the first call on."""
        if self._ticker is None:
            self._ticker = asyncio.get_running_loop().create_task(self._tick())

    async def _tick(self) -> None:
        with (self._folder / f"{os.getpid()}.lag").open("wb", buffering=0) as file:
            while True:
                due = time.monotonic_ns() + int(_TICK * 1e9)
                await asyncio.sleep(_TICK)
                now = time.monotonic_ns()
                file.write(_LAG.pack(now, now - due))

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._slot: mmap.mmap | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._count = self._first = 0


class Job:
    """A run to be started."""

    def __init__(self, kind: str, payload: str, group: str = "") -> None:
        self.kind = kind
        self.payload = payload
        self.group = group

    @property
    def argument(self) -> str:
        """The only argument of its function: the payload, or for a `turn` its group."""
        return self.group if self.kind == "turn" else self.payload


class Peer:
    """A system under test. The methods are all plain, or all of them coroutines."""

    packages: tuple[str, ...] = ()
    """The distributions whose versions matter."""

    lacks: dict[str, str] = {}
    """What can't be measured, and why: a kind of run, or `bulk`, `result`."""

    settings: dict[str, str] = {}
    """What was chosen, where there is a choice."""

    def __init__(self, url: str, board: Board) -> None:
        self.url = url
        self.board = board

    def setup(self) -> Any:
        """Makes what the store needs."""

    def open(self) -> Any:
        """Connects a client."""

    def close(self) -> Any:
        """Ends what `open` began."""

    def start(self, job: Job) -> Any:
        """Starts one run."""
        raise NotImplementedError

    def start_many(self, jobs: list[Job]) -> Any:
        """Starts runs in the best way that there is for many."""
        raise NotImplementedError

    def call(self, job: Job) -> Any:
        """Starts a run and waits for its result."""
        raise NotImplementedError

    def work(self, concurrency: int, kind: str) -> Any:
        """Serves runs until SIGTERM."""
        raise NotImplementedError


async def until_term() -> None:
    """Returns when the process is asked to stop."""
    import signal

    asked = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, asked.set)
    await asked.wait()


def until_term_plain() -> None:
    """The same for a program of threads."""
    import signal

    signal.sigwait({signal.SIGTERM, signal.SIGINT})


def block_term() -> None:
    """Keeps SIGTERM for `until_term_plain`. Called before threads start, which take the mask over."""
    import signal

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})


def say(**values: Any) -> None:
    """Prints one line of the protocol."""
    print(json.dumps(values), flush=True)


def await_go() -> None:
    """All that can be done before the runs are served is done; the runner says when to begin."""
    say(ready=True)
    sys.stdin.readline()


def options() -> argparse.Namespace:
    """The command line of every script."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("command", choices=["info", "setup", "enqueue", "call", "work"])
    parser.add_argument("--kind", choices=KINDS, default="nothing")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--bytes", type=int, default=16)
    parser.add_argument("--groups", type=int, default=0)
    parser.add_argument("--group", default="")
    parser.add_argument("--bulk", action="store_true")
    parser.add_argument("--warm", type=int, default=0)
    parser.add_argument("--concurrency", type=int, default=50)
    parser.add_argument("--board", type=Path, default=Path())
    return parser.parse_args()


def main(cls: type[Peer]) -> None:
    """Runs a script's command."""
    given = options()
    peer = cls(given.url, Board(given.board))
    command = _Command(peer, given).run()
    if inspect.iscoroutinefunction(peer.start):
        try:
            import uvloop
        except ImportError:
            asyncio.run(command)
        else:
            uvloop.run(command)
        return
    try:  # Nothing of a plain peer ever waits for a loop.
        command.send(None)
    except StopIteration:
        pass


class _Command:
    def __init__(self, peer: Peer, given: argparse.Namespace) -> None:
        self._peer = peer
        self._given = given
        # Text that no store can compress.
        self._payload = base64.b64encode(random.Random(1).randbytes(given.bytes)).decode()[: given.bytes]

    async def run(self) -> None:
        given, peer = self._given, self._peer
        if given.command == "info":
            self._info()
            return
        if given.command == "setup":
            await _done(peer.setup())
            return
        if given.command == "work":
            await _done(peer.work(given.concurrency, given.kind))
            return
        await _done(peer.open())
        try:
            await getattr(self, f"_{given.command}")()
        finally:
            await _done(peer.close())

    def _info(self) -> None:
        versions = {"python": sys.version.split()[0]}
        for package in self._peer.packages:
            try:
                versions[package] = version(package)
            except PackageNotFoundError:
                pass
        say(
            versions=versions,
            lacks=self._peer.lacks,
            settings=self._peer.settings,
            setup=type(self._peer).setup is not Peer.setup,
        )

    async def _enqueue(self) -> None:
        given = self._given
        for number in range(given.warm):
            await _done(self._peer.start(self._job(number)))
        began, made = time.perf_counter(), 0
        until = began + given.seconds
        while made < given.count and time.perf_counter() < until:
            if given.bulk and "bulk" not in self._peer.lacks:
                jobs = [self._job(made + n) for n in range(min(_BULK, given.count - made))]
                await _done(self._peer.start_many(jobs))
                made += len(jobs)
            else:
                await _done(self._peer.start(self._job(made)))
                made += 1
        say(count=made, seconds=time.perf_counter() - began)

    async def _call(self) -> None:
        given = self._given
        for number in range(given.warm):
            await _done(self._peer.call(self._job(number)))
        took: list[float] = []
        until = time.perf_counter() + given.seconds
        while len(took) < given.count and time.perf_counter() < until:
            began = time.perf_counter()
            await _done(self._peer.call(self._job(len(took))))
            took.append(round((time.perf_counter() - began) * 1000, 4))
        say(milliseconds=took)

    def _job(self, number: int) -> Job:
        given = self._given
        group = f"group-{number % given.groups}" if given.groups else given.group
        return Job(given.kind, self._payload, group)


async def _done(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
