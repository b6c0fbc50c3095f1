"""Where in a run the code is: gives steps and waits the keys under which their checkpoints are found.

A key is a name, `#n` for the n-th of that name, with the key of the enclosing step before it (`outer/inner#2`). Numbers
are given when a step is *called*, so `gather(a(1), a(2))` is `a` and `a#2` whichever ends first. Code that runs in an
asyncio task of its own counts for itself (`~both/a` in a task of the coroutine function `both`, `~both#2/a` in the
second such task), because two tasks that go on side by side would otherwise take each other's numbers.
"""

from __future__ import annotations

import asyncio
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from perdure.errors import DefinitionError, NotDurable, NotInWorkflow, WouldDeadlock

if TYPE_CHECKING:
    from perdure.engine.execution import Execution
    from perdure.model import Checkpoint
    from perdure.stores.base import Store

    class Client(Protocol):
        """Knows its store."""

        def is_on(self, store: Store) -> bool: ...


class Attempt:
    """One attempt of a step, as all the code in it sees it, in whatever task or thread."""

    __slots__ = ("cancelled", "key", "number", "over", "since", "within")

    def __init__(self, key: str, number: int, since: int, within: dict[str, Checkpoint] | None) -> None:
        self.key = key
        self.number = number
        self.since = since
        """Where in the history it began, as far as it is known: what failed in the step before that failed in an
        attempt that is over."""
        self.within = within
        """What was kept within the outermost step here that may be tried again, by key: its next attempt finds it."""
        self.cancelled = False
        """Whether it was cancelled by itself (its timeout), for sync code to look at."""
        self.over = False
        """Whether it has ended, so that code that it has left behind begins nothing more."""


class Scope:
    """A stretch of a run's code whose calls are numbered together."""

    __slots__ = ("_counts", "attempt", "depth", "execution", "prefix", "task")

    def __init__(
        self,
        execution: Execution,
        task: asyncio.Task[Any] | None,
        prefix: str = "",
        *,
        depth: int = 0,
        attempt: Attempt | None = None,
    ) -> None:
        self.execution = execution
        self.task = task
        self.prefix = prefix
        self.depth = depth
        self.attempt = attempt
        """That of the innermost step that the code is part of; None in the code of the workflow itself."""
        self._counts: dict[str, int] = {}

    def key(self, name: str) -> str:
        """The key of the next call of that name here."""
        count = self._counts.get(name, 0) + 1
        self._counts[name] = count
        return f"{self.prefix}{name}" if count == 1 else f"{self.prefix}{name}#{count}"

    def named(self, key: str) -> str:
        """The key that the user gave with `.options(key=…)`: once per enclosing step, whatever the task."""
        full = f"{self.attempt.key}/{key}" if self.attempt else key
        self.execution.claim_name(full)
        return full

    def fork(self, task: asyncio.Task[Any]) -> Scope:
        """The scope of an asyncio task that was made from here, named by the function that the task runs."""
        name = getattr(task.get_coro(), "__name__", "task")
        return Scope(self.execution, task, f"{self.key(f'~{name}')}/", depth=self.depth, attempt=self.attempt)


_scope: ContextVar[Scope | None] = ContextVar("perdure_scope", default=None)


def enter(scope: Scope) -> None:
    """Makes `scope` the one of the current task or thread."""
    _scope.set(scope)


def leave(execution: Execution) -> None:
    """The current task, if it ran code of that run, is in no scope from here on, and holds on to nothing of it."""
    scope = _scope.get()
    if scope is not None and scope.execution is execution:
        _scope.set(None)


def scope_here() -> Scope | None:
    """The scope of the calling code; None outside of a run."""
    scope = _scope.get()
    if scope is None:
        return None
    try:
        task = asyncio.current_task()
    except RuntimeError:  # a thread: sync code of a workflow or step
        return scope
    if task is None or task is scope.task or scope.execution.over:
        return scope
    scope = scope.fork(task)
    scope.execution.track(task)
    _scope.set(scope)
    return scope


def attempt_here() -> Attempt | None:
    """The attempt of the innermost step that the calling code is part of."""
    scope = _scope.get()
    return None if scope is None else scope.attempt


def kept_within() -> dict[str, Checkpoint] | None:
    """What the steps that the calling code is part of have kept, where one of them may be tried again."""
    attempt = attempt_here()
    return None if attempt is None else attempt.within


def scope_of_creator(context: Context | None) -> Scope | None:
    """The scope of code that makes a task to run in `context`, or (None) in its own."""
    return _scope.get() if context is None else context.get(_scope)


def scope_needed(what: str) -> Scope:
    """The scope of the calling code; `NotInWorkflow` outside of a run."""
    scope = scope_here()
    if scope is None:
        raise NotInWorkflow(f"{what} works inside of a workflow that a worker runs; this code isn't in one")
    return scope


def workflow_scope(client: Client, what: str) -> Scope | None:
    """The scope of workflow code that is about to do something with a run; None outside of a run, and in a step, where
    it is done as anywhere else: what's kept is the step.

    Raises `NotDurable` for a run of another app, whose store and this one's can't change together.
    """
    scope = scope_here()
    if scope is None or scope.attempt is not None:
        return None
    if not client.is_on(scope.execution.runtime.store):
        raise NotDurable(f"{what} is of another app than the calling workflow, on another store: do it in a step")
    return scope


def step_scope(what: str) -> Scope | None:
    """The scope of a step that is about to ask the store something, or to change it; None outside of a run.

    Raises `NotDurable` in the code of a workflow itself, where it would be done, or answered otherwise, at each replay.
    """
    scope = scope_here()
    if scope is not None and scope.attempt is None:
        raise NotDurable(f"{what}, in a workflow, would be done anew each time that the run goes on: do it in a step")
    return scope


def holds_slot(client: Client) -> bool:
    """Whether the calling code is in a step, whose slot other runs of that store may need."""
    scope = scope_here()
    return scope is not None and scope.attempt is not None and client.is_on(scope.execution.runtime.store)


def wait_in_step(what: str) -> WouldDeadlock:
    """What to say of a wait that `holds_slot`."""
    return WouldDeadlock(
        f"{what} in a step would wait with a slot of its worker in hand, which the other run may need: do it in the"
        " workflow, where a wait takes no slot, or use result(timeout=…)"
    )


def in_key(name: str) -> str:
    """A name that may have a `#` (of a signal, of a run) as a part of a key, in which `#` begins the number of a call:
    doubled, so that `a#2` is no second `a`."""
    return name.replace("#", "##")


def check_key(key: str) -> str:
    """A key given by the user, or `DefinitionError`."""
    if not isinstance(key, str) or not 0 < len(key) <= 200 or not key.isprintable():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(f"a step's key must be a string of 1 to 200 printable characters, not {key!r}")
    return key
