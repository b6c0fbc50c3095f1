"""What the engine knows of the user's functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from types import CodeType
from typing import Any, TypeAlias

from perdure.codec import Signature
from perdure.errors import DefinitionError
from perdure.model import Millis
from perdure.retry import Retry

Key: TypeAlias = str | Callable[..., str]
"""A key, or a function that makes it of a workflow's arguments."""


@dataclass(frozen=True)
class Function:
    """A function of the user's, and where it is from."""

    name: str
    fn: Callable[..., Any]
    execution: object = field(init=False, repr=False, compare=False)
    """Stands for the execution of its module that defined it: a reload gives a module another `__spec__`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "execution", self.module.get("__spec__"))

    @property
    def module(self) -> dict[str, Any]:
        """The names of its module."""
        return getattr(inspect.unwrap(self.fn), "__globals__", {})

    @property
    def code(self) -> CodeType | None:
        return getattr(inspect.unwrap(self.fn), "__code__", None)

    @property
    def place(self) -> str:
        """Where it is defined, in words."""
        where = "" if self.code is None else f" ({self.code.co_filename}:{self.code.co_firstlineno})"
        return f"{self.fn.__module__}.{self.fn.__qualname__}{where}"

    def replaces(self, other: Function) -> bool:
        """Whether this is the other one defined anew, by a reload of its module or at a prompt, and not a second one
        of its name."""
        if (self.fn.__module__, self.fn.__qualname__) != (other.fn.__module__, other.fn.__qualname__):
            return False
        if self.module is not other.module:
            return _file(self.code) == _file(other.code)  # the module was imported afresh
        return self.execution is not other.execution or "__file__" not in self.module


@dataclass(frozen=True)
class StepDefinition(Function):
    """A step: a function whose outcome is kept. Without `retry`, its first exception is final."""

    retry: Retry | None
    timeout: Millis | None
    process: bool
    transaction: Callable[[], Any] | None = None
    """Opens the transaction that its effect and its outcome are kept in; the function gets what that yields first."""

    @cached_property
    def signature(self) -> Signature:
        return Signature(self.fn, f"step {self.name}", open_ended=True, given=0 if self.transaction is None else 1)

    @cached_property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.fn)


@dataclass(frozen=True)
class WorkflowDefinition(Function):
    """A workflow, and what holds for its runs unless a start says otherwise."""

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
    name: object = getattr(fn, "__name__", None) if given is None else given
    if name is None:
        raise DefinitionError(f"a {what} is a function with a name, not {fn!r}: write one with def")
    if not isinstance(name, str):
        raise DefinitionError(f"the name of a {what} is a str, not {name!r}")
    if not 0 < len(name) <= 200 or not name.isprintable() or any(c in "/#~[]" for c in name):
        raise DefinitionError(
            f"{what} {name!r}: a name has 1 to 200 printable characters, none of them / # ~ [ or ] (they separate the"
            " parts of a checkpoint's key); give another one with name="
        )
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise DefinitionError(f"{what} {name}: a generator can't be checkpointed; return a list instead")
    return name


def check_step(known: dict[str, StepDefinition], step: StepDefinition) -> None:
    """Takes a step in; `DefinitionError` when another one has its name. A local function's code is the same in each
    call of the function around it."""
    other = known.get(step.name)
    if other is not None and other is not step and other.code is not step.code and not step.replaces(other):
        raise two_steps(other, step)
    known[step.name] = step


def check_not_defined(step: StepDefinition) -> None:
    """`DefinitionError` when the step takes the name of another one in its module away."""
    other = getattr(step.module.get(step.fn.__qualname__), "definition", None)
    if not isinstance(other, StepDefinition) or other.name != step.name or other.module is not step.module:
        return
    if not step.replaces(other):
        raise two_steps(other, step)


def check_takes_connection(step: StepDefinition) -> None:
    """`DefinitionError` for a step with a transaction that has no parameter to get it by."""
    kinds = [parameter.kind for parameter in inspect.signature(step.fn).parameters.values()]
    if not kinds or kinds[0] not in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
        raise DefinitionError(f"step {step.name}: with transaction= it gets the connection as its first argument")


def two_steps(one: StepDefinition, other: StepDefinition) -> DefinitionError:
    """The error about two steps of one name."""
    return DefinitionError(
        f"two steps are named {one.name!r}: {one.place} and {other.place}; a run could not tell their checkpoints"
        " apart: give one another name with name="
    )


def _file(code: CodeType | None) -> str:
    return "" if code is None else code.co_filename
