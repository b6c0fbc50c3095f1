"""What the engine knows of the user's functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from perdure.codec import Signature
from perdure.errors import DefinitionError
from perdure.model import Millis
from perdure.retry import Retry

Key: TypeAlias = str | Callable[..., str]
"""A key, or a function that makes it of a workflow's arguments."""


@dataclass(frozen=True)
class StepDefinition:
    """A step: a function whose outcome is kept. Without `retry`, its first exception is final."""

    name: str
    fn: Callable[..., Any]
    retry: Retry | None
    timeout: Millis | None
    process: bool

    @cached_property
    def signature(self) -> Signature:
        return Signature(self.fn, f"step {self.name}", open_ended=True)

    @cached_property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.fn)


@dataclass(frozen=True)
class WorkflowDefinition:
    """A workflow, and what holds for its runs unless a start says otherwise."""

    name: str
    fn: Callable[..., Any]
    queue: str
    priority: int
    retry: Retry | None
    timeout: Millis | None
    max_crashes: int
    version: str = ""
    accepts: tuple[str, ...] = ()
    """Other versions whose runs this code can take."""
    group: Key | None = None
    group_limit: int = 1
    group_keep: bool = True
    session: Key | None = None
    unique: Key | None = None

    @cached_property
    def signature(self) -> Signature:
        return Signature(self.fn, f"workflow {self.name}")

    @property
    def versions(self) -> list[str]:
        """The versions whose pinned runs it serves."""
        return [version for version in (self.version, *self.accepts) if version]

    @cached_property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.fn)


def function_name(fn: Callable[..., Any], given: str | None, what: str) -> str:
    """The name of a definition: `given`, or the function's own; `DefinitionError` when it can't be one."""
    name = fn.__name__ if given is None else given
    if not 0 < len(name) <= 200 or not name.isprintable() or any(c in "/#~" for c in name):
        raise DefinitionError(
            f"{what} {name!r}: a name has 1 to 200 printable characters, none of them / # or ~ (they separate the"
            " parts of a checkpoint's key); give another one with name="
        )
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise DefinitionError(f"{what} {name}: a generator can't be checkpointed; return a list instead")
    return name


def place(fn: Callable[..., Any]) -> str:
    """Where a function is defined, in words; tells two functions of one name apart, and a reloaded one not."""
    return f"{fn.__module__}.{fn.__qualname__}"


def check_definitions(workflows: Iterable[WorkflowDefinition]) -> None:
    """Raises `DefinitionError` for what would only fail when a run gets there: parameters that can't travel, and two
    steps of one name among those that the workflows' modules name."""
    steps: dict[str, StepDefinition] = {}
    for workflow in workflows:
        workflow.signature.check()
        for value in list(getattr(workflow.fn, "__globals__", {}).values()):
            step = getattr(value, "definition", None)
            if isinstance(step, StepDefinition):
                check_step(steps, step)
                step.signature.check()


def check_step(known: dict[str, StepDefinition], step: StepDefinition) -> None:
    """Takes a step in; `DefinitionError` when another one has its name."""
    other = known.setdefault(step.name, step)
    if other is not step and place(other.fn) != place(step.fn):
        raise DefinitionError(
            f"two steps are named {step.name!r}: {place(other.fn)} and {place(step.fn)}; a run could not tell their"
            " checkpoints apart: give one another name with name="
        )
