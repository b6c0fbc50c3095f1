"""Which steps the runs of an app can get to, found in the code of its workflows before any run does.

Looked through are the functions and classes that the code names, and what these name in turn, across modules; not what
is installed beside the application, which calls none of its steps by name. A step that only shows when the code runs
(passed as an argument, imported inside of a function) is told apart from another one of its name when it is called.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, cast

from perdure.engine.definitions import StepDefinition, WorkflowDefinition, check_step, two_steps

_NOTHING = object()
_NAMES = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD"}
_ELSEWHERE = {*sys.stdlib_module_names, "perdure"}
_INSTALLED = {"site-packages", "dist-packages"}


def check_definitions(workflows: Sequence[WorkflowDefinition]) -> None:
    """Raises `DefinitionError` for what would only fail when a run gets there: parameters that can't travel, and two
    steps of one name, be they of one module or of several."""
    for workflow in workflows:
        workflow.signature.check()
    modules = {id(workflow.module): workflow.module for workflow in workflows}
    named: dict[str, StepDefinition] = {}
    for step in [step for module in modules.values() for step in map(_step, list(module.values())) if step is not None]:
        other = named.setdefault(step.name, step)
        if other is not step and not step.replaces(other):
            raise two_steps(other, step)
        step.signature.check()
    known: dict[str, StepDefinition] = {}
    for step in _reached([workflow.fn for workflow in workflows]):
        check_step(known, step)
        step.signature.check()


def _reached(functions: Sequence[Callable[..., Any]]) -> Iterator[StepDefinition]:
    """The steps that the code of the functions gets to."""
    own = {_package(fn.__module__) for fn in functions}
    left: deque[object] = deque(functions)
    seen: dict[int, object] = {}  # keeps them, so that no other object gets the id of one
    while left:
        value = left.popleft()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        step = _step(value)
        if step is not None:
            yield step
            left.append(step.fn)
        elif type(value) is FunctionType:
            left += _named_by(value) if _is_searched(value.__globals__.get("__name__"), own) else ()
        else:
            left += _methods(value, own)


def _step(value: object) -> StepDefinition | None:
    """The step that a value is."""
    # Statically: a proxy (a web framework's request, for example) may raise whatever it is asked.
    found = inspect.getattr_static(value, "definition", None)
    return found if isinstance(found, StepDefinition) else None


def _named_by(fn: FunctionType) -> Iterator[object]:
    """What a function's code names: globals of its module, what it takes from modules, what it closes over."""
    names: dict[str, Any] = fn.__globals__
    for cell in fn.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue  # not filled yet: a recursive function that is being made
    for code in _codes(fn.__code__):
        found: object = _NOTHING
        for instruction in dis.get_instructions(code):
            if instruction.opname in _NAMES:
                found = names.get(instruction.argval, _NOTHING)
            elif instruction.opname in _ATTRIBUTES and issubclass(type(found), ModuleType):
                found = vars(found).get(instruction.argval, _NOTHING)
            else:
                found = _NOTHING
            if found is not _NOTHING:
                yield found


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and of those inside of it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _methods(value: object, own: set[str]) -> Iterator[object]:
    """The functions and steps of a class, or of the class of any other value."""
    kind = type(value)
    for each in (cast("type", value) if issubclass(kind, type) else kind).__mro__:
        if _is_searched(each.__module__, own):
            for member in vars(each).values():
                if isinstance(member, staticmethod | classmethod):
                    yield cast("staticmethod[..., object]", member).__func__
                elif type(member) is FunctionType or _step(member) is not None:
                    yield member


def _is_searched(module: object, own: set[str]) -> bool:
    """Whether code of a module may name steps of the application."""
    if not isinstance(module, str):
        return False
    package = _package(module)
    if package in own:
        return True
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return package not in _ELSEWHERE and not _INSTALLED & set(Path(file).parts)


def _package(module: str) -> str:
    return module.partition(".")[0]
