"""Tools of the fault tests: processes that are hurt, the log that they write, and waiting for what is to happen."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import perdure
from faults.flows import GATES, LOG, Flows
from perdure import App
from perdure.errors import StoreUnavailable
from perdure.model import RunQuery, RunRecord, State
from perdure.stores.base import Store

W = TypeVar("W")

PATIENCE = 60.0
"""Seconds until a test that waits gives up: a guard against hanging, never a measure."""

_PROGRAM = Path(__file__).parent / "program.py"


async def persistently(call: Callable[[], Awaitable[W]]) -> W:
    """What a client does: repeats the same call until there is an answer."""
    while True:
        try:
            return await call()
        except StoreUnavailable:
            await asyncio.sleep(0.01)


async def until(condition: Callable[[], Any | Awaitable[Any]], what: str, *, timeout: float = PATIENCE) -> Any:
    """Waits until a condition (a function, async or not) is true, and returns what it gave."""
    try:
        async with asyncio.timeout(timeout):
            while True:
                found = condition()
                if inspect.isawaitable(found):
                    found = await found
                if found:
                    return found
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"in {timeout:g} s it did not happen that {what}") from None


class Log:
    """The lines that the processes of a test wrote, in the order of events. Read piece by piece."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: list[list[str]] = []
        self._read = 0

    @property
    def lines(self) -> list[list[str]]:
        """All lines until now, each as its words; the last one is the pid of who wrote it."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._read)
                whole, _, _ = file.read().rpartition(b"\n")
            if whole:
                self._read += len(whole) + 1
                self._lines += [line.split() for line in whole.decode().split("\n")]
        return self._lines

    def find(self, *words: object, pid: int | None = None) -> list[list[str]]:
        """The lines that begin with these words, of one process or of all."""
        wanted = [str(word) for word in words]
        return [line for line in self.lines if line[: len(wanted)] == wanted and (pid is None or line[-1] == str(pid))]

    def count(self, *words: object, pid: int | None = None) -> int:
        return len(self.find(*words, pid=pid))

    def times_ran(self) -> Counter[tuple[str, str]]:
        """How often each step of each run was begun."""
        return Counter((line[1], line[2]) for line in self.find("ran"))

    def ran_after_kept(self) -> list[tuple[str, str]]:
        """Steps that ran although a checkpoint of theirs was durable: there may be none."""
        kept: set[tuple[str, str]] = set()
        wrong: list[tuple[str, str]] = []
        for line in self.lines:
            if line[0] == "kept":
                kept.add((line[1], line[2]))
            elif line[0] == "ran" and (line[1], line[2]) in kept:
                wrong.append((line[1], line[2]))
        return wrong


class Process:
    """A process of `program.py`, or of another command, in its own session."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen
        self.pid = popen.pid

    @property
    def code(self) -> int | None:
        """The exit code once it has ended."""
        return self._popen.poll()

    def kill(self) -> None:
        """Ends it as a crash of the machine would."""
        self._popen.kill()
        self._popen.wait()

    def freeze(self) -> None:
        self._popen.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._popen.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        self._popen.send_signal(signal.SIGTERM)

    def ask(self) -> None:
        """Has a worker write down what it holds."""
        self._popen.send_signal(signal.SIGUSR1)

    async def ended(self, timeout: float = PATIENCE) -> int:
        """Waits for its end; its exit code."""
        await until(lambda: self.code is not None, f"process {self.pid} ended", timeout=timeout)
        assert self.code is not None
        return self.code


class World:
    """One store, an app on it in the test's process, and the processes that the test starts."""

    def __init__(self, url: str, directory: Path) -> None:
        self.url = url
        self.directory = directory
        self.log = Log(directory / "log")
        self.gates = directory / "gates"
        self.gates.mkdir()
        self._temporary = tempfile.mkdtemp(prefix="pf-")  # a short path, as sockets have; the killed leave theirs there
        self.app = App(url)
        self.flows = Flows(self.app)
        self.processes: list[Process] = []

    # --- processes

    def spawn(
        self,
        role: str,
        options: dict[str, Any] | None = None,
        *,
        command: Sequence[str] | None = None,
        env: dict[str, str] | None = None,
    ) -> Process:
        """Starts a process that knows the store, the log and the gates."""
        source = str(Path(perdure.__file__).parent.parent)
        paths = [source, *filter(None, [(env or {}).get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "TMPDIR": self._temporary,
            **(env or {}),
            "PYTHONPATH": os.pathsep.join(reversed(paths)),
            "FAULTS_URL": self.url,
            LOG: str(self.log.path),
            GATES: str(self.gates),
        }
        errors = (self.directory / "errors").open("ab")
        try:
            process = Process(
                subprocess.Popen(
                    command or [sys.executable, str(_PROGRAM), role, json.dumps(options or {})],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=errors,
                    stderr=errors,
                    start_new_session=True,
                )
            )
        finally:
            errors.close()
        self.processes.append(process)
        return process

    def worker(self, *, env: dict[str, str] | None = None, **options: Any) -> Process:
        return self.spawn("worker", options, env=env)

    async def serving(self, *, env: dict[str, str] | None = None, **options: Any) -> Process:
        """A worker's process, when it serves."""
        process = self.worker(env=env, **options)
        await self.serves(process)
        return process

    async def serves(self, process: Process) -> None:
        await until(
            lambda: self.log.count("serving", pid=process.pid) or process.code is not None,
            f"worker {process.pid} serves",
        )
        assert process.code is None, self.errors()

    def errors(self) -> str:
        """What the processes wrote to standard error."""
        return (self.directory / "errors").read_text(errors="replace")

    def open_gate(self, gate: str, process: Process | None = None) -> None:
        """Lets those pass that wait at a gate, in all processes or in one."""
        (self.gates / (gate if process is None else f"{gate}.{process.pid}")).touch()

    async def behind(self, wrap: Callable[[Store], W]) -> W:
        """Puts a wrapper around the store that the app in the test's process uses."""
        wrapper = wrap(await self.app.client.store())
        self.app.client._store = cast(Store, wrapper)
        return wrapper

    async def close(self) -> None:
        for process in self.processes:
            if process.code is None:
                process.thaw()
                process.kill()
        await self.app.close()
        shutil.rmtree(self._temporary, ignore_errors=True)

    # --- what is in the store

    async def states(self) -> dict[State, int]:
        """How many runs there are by state."""
        counted: Counter[State] = Counter()
        for count in await self.app.counts():
            counted[count.state] += count.runs
        return {state: runs for state, runs in counted.items() if runs}

    async def ended(self, runs: int, *, timeout: float = PATIENCE) -> None:
        """Waits until so many runs have ended, and no other is left."""

        async def all_ended() -> bool:
            states = await self.states()
            return sum(states.values()) == runs and all(state.final for state in states)

        try:
            await until(all_ended, f"{runs} runs ended", timeout=timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}; there are {await self.states()}\n{self.errors()[-3000:]}") from None

    async def all_once(self, runs: int) -> None:
        """So many runs end, all succeed, and no step runs twice."""
        await self.ended(runs)
        assert await self.states() == {State.SUCCEEDED: runs}
        assert set(self.log.times_ran().values()) == {1}
        assert {record.attempt for record in await self.records()} == {1}

    async def record(self, run_id: str) -> RunRecord:
        return (await self.app.run(run_id).status()).record

    async def records(self) -> list[RunRecord]:
        store = await self.app.client.store()
        return await store.runs(RunQuery(limit=200_000, oldest_first=True))

    async def no_workers(self) -> bool:
        """Whether no incarnation counts as alive."""
        return not await (await self.app.client.store()).workers()

    async def keys(self, run_id: str) -> set[str]:
        return {event.key for event in await self.app.run(run_id).history()}
