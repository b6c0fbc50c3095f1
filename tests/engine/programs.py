"""Workflows by chance: small programs of steps, waits, children, and of what asyncio makes of them, and what runs them.

A program is JSON, and so the argument of a workflow. What it returns does not depend on which of two things at a time
came first; in which order it saw them is written down, for each time that its code was run.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from datetime import timedelta
from typing import Any, TypeAlias

from hypothesis import strategies as st

from perdure import App, Retry, Run, current_run, sleep, step, wait_signal
from perdure.errors import RunCancelled, RunEnded

Program: TypeAlias = list[Any]
"""Statements, one after the other: each a list of its name and what belongs to it."""

app = App("sqlite:////nowhere/at/all.db")

seen: defaultdict[str, list[list[str]]] = defaultdict(list)
"""By run, for each time that its code was run: the outcomes in the order in which it saw them."""


# --- steps


@step
async def do(name: str) -> str:
    await asyncio.sleep(0)
    return name


@step
def do_in_thread(name: str) -> str:
    return name


@step
async def do_both(name: str) -> str:
    """Has steps within."""
    first, second = await asyncio.gather(do(f"{name}a"), do(f"{name}b"))
    return first + second + await do(name)


@step
async def fail(name: str) -> str:
    raise ValueError(name)


@step(retry=Retry(attempts=4, delay=1, jitter=0))
async def third_time_lucky(name: str) -> str:
    if current_run().step_attempt < 3:
        raise ConnectionError(name)
    return name


@step(retry=Retry(attempts=2, delay=1, jitter=0))
async def unlucky(name: str) -> str:
    await do(name)
    raise ConnectionError(name)


@step
async def hang() -> None:
    await asyncio.Event().wait()


STEPS = {each.name: each for each in (do, do_in_thread, do_both, fail, third_time_lucky, unlucky)}


# --- workflows


@app.workflow
async def program(statements: Program) -> Any:
    return await Interpreter().all(statements)


@app.workflow(timeout=timedelta(minutes=93))
async def hurried(statements: Program) -> Any:
    """Is cancelled after a while, if it has not ended."""
    return await Interpreter().all(statements)


class Interpreter:
    """Runs a program, once; there is another one for each replay."""

    def __init__(self) -> None:
        self._seen: list[str] = []
        seen[current_run().id].append(self._seen)

    async def all(self, statements: Program) -> Any:
        """Which error it was may differ: the last attempt of a step may be cut off."""
        try:
            return await self.run(statements)
        except Exception:
            return "failed"

    async def run(self, statements: Program, where: str = "") -> list[Any]:
        return [await self._do(f"{where}/{number}", *statement) for number, statement in enumerate(statements)]

    async def _do(self, where: str, what: str, *of: Any) -> Any:
        try:
            outcome = await getattr(self, f"_{what}")(where, *of)
        except Exception as error:
            self._saw(where, type(error).__name__)
            raise
        except GeneratorExit:
            self._seen = []  # It is put away: what it does on its way out is nothing that it has seen.
            raise
        self._saw(where, outcome)
        return outcome

    def _saw(self, where: str, outcome: object) -> None:
        self._seen.append(f"{where} {outcome}")

    async def _step(self, where: str, name: str) -> str:
        return await STEPS[name](where)

    async def _sleep(self, where: str, minutes: int) -> None:
        await sleep(timedelta(minutes=minutes))

    async def _signal(self, where: str) -> str:
        return await wait_signal("go", str)

    async def _no_signal(self, where: str, minutes: int) -> str:
        return await wait_signal("never", str, timeout=timedelta(minutes=minutes))

    async def _child(self, where: str, statements: Program) -> Any:
        return await (await self._start(statements)).result()

    async def _cancelled_child(self, where: str, statements: Program) -> Any:
        """Whether it has ended by then is not told."""
        child = await self._start(statements)
        await sleep(timedelta(minutes=22))
        await child.cancel("enough")
        try:
            self._saw(where, await child.result())
        except RunCancelled:
            self._saw(where, "cancelled")

    async def _gather(self, where: str, *branches: Program) -> list[Any]:
        """Goes on beside what fails."""
        outcomes = await asyncio.gather(*self._branches(where, branches), return_exceptions=True)
        return ["failed" if isinstance(each, Exception) else each for each in outcomes]

    async def _group(self, where: str, *branches: Program) -> list[Any]:
        """Cancels what is beside what fails."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(branch) for branch in self._branches(where, branches)]
        return [task.result() for task in tasks]

    async def _race(self, where: str, *branches: Program) -> None:
        """Cancels those that were not first."""
        tasks = [asyncio.ensure_future(branch) for branch in self._branches(where, branches)]
        done, slower = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        self._saw(where, [task in done for task in tasks])
        for task in slower:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _shield(self, where: str, statements: Program) -> list[Any]:
        return await asyncio.shield(self.run(statements, where))

    async def _within(self, where: str, statements: Program) -> list[Any]:
        """Within a time limit that is not reached."""
        async with asyncio.timeout(600):
            return await self.run(statements, where)

    async def _too_long(self, where: str) -> None:
        async with asyncio.timeout(0.005):
            await hang()

    async def _try(self, where: str, body: Program, handler: Program, last: Program) -> Any:
        try:
            return await self.run(body, f"{where}t")
        except Exception:
            return await self.run(handler, f"{where}e")
        finally:
            await self.run(last, f"{where}f")

    async def _start(self, statements: Program) -> Run[Any]:
        """Starts a child, and sends it the signals that it waits for."""
        child = await program.start(statements)
        for _ in range(_signals(statements)):
            try:
                await child.signal("go", "go")
            except RunEnded:
                pass  # It has failed.
        return child

    def _branches(self, where: str, branches: tuple[Program, ...]) -> list[Any]:
        return [self.run(branch, f"{where}.{number}") for number, branch in enumerate(branches)]


def _signals(statement: Any) -> int:
    """How many it waits for, its children left out."""
    if not isinstance(statement, list) or statement[:1] in (["child"], ["cancelled_child"]):
        return 0
    return (statement == ["signal"]) + sum(map(_signals, statement))


def expected(statements: Program) -> Any:
    """What a program comes to, in plain Python."""
    try:
        return _run(statements)
    except ValueError:
        return "failed"


def _run(statements: Program, where: str = "") -> list[Any]:
    return [_do(f"{where}/{number}", *statement) for number, statement in enumerate(statements)]


def _do(where: str, what: str, *of: Any) -> Any:
    match what:
        case "step" if of[0] in ("fail", "unlucky"):
            raise ValueError(where)
        case "no_signal" | "too_long":
            raise ValueError(where)
        case "step":
            return f"{where}a{where}b{where}" if of[0] == "do_both" else where
        case "signal":
            return "go"
        case "child":
            return expected(of[0])
        case "gather" | "group":
            outcomes = [_tried(branch, f"{where}.{number}") for number, branch in enumerate(of)]
            if what == "group" and "failed" in outcomes:
                raise ValueError(where)
            return outcomes
        case "shield" | "within":
            return _run(of[0], where)
        case "try":
            try:
                return _run(of[0], f"{where}t")
            except ValueError:
                return _run(of[1], f"{where}e")
            finally:
                _run(of[2], f"{where}f")
        case _:  # What it comes to, if to anything, depends on time.
            return None


def _tried(statements: Program, where: str) -> Any:
    try:
        return _run(statements, where)
    except ValueError:
        return "failed"


# --- programs


def programs() -> st.SearchStrategy[Program]:
    """Programs of all kinds."""
    step = st.tuples(st.just("step"), st.sampled_from(["do", "do", "do_in_thread", "do_both", "fail"]))
    simple = st.one_of(
        step,
        st.tuples(st.just("step"), st.sampled_from(["third_time_lucky", "unlucky"])),
        st.tuples(st.just("sleep"), st.sampled_from([10, 30, 60])),
        st.just(("signal",)),
        st.tuples(st.just("no_signal"), st.sampled_from([15, 45])),
        st.just(("too_long",)),
        # A timer of asyncio's keeps a run in memory: no clock of a test moves on beside it.
        st.tuples(st.just("within"), st.lists(step, min_size=1, max_size=3)),
    )

    def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        part = st.lists(inner, min_size=1, max_size=3)
        parts = st.lists(part, min_size=2, max_size=3)
        return st.one_of(
            st.tuples(st.sampled_from(["child", "cancelled_child", "shield"]), part),
            st.tuples(st.sampled_from(["gather", "group", "race"]), parts).map(lambda both: (both[0], *both[1])),
            st.tuples(st.just("try"), part, part, part),
        )

    return st.lists(st.recursive(simple, larger, max_leaves=6), min_size=1, max_size=3).map(_plain)


def _plain(value: Any) -> Any:
    """As it arrives at a workflow."""
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
