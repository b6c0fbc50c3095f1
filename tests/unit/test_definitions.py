"""Two definitions of one name are told from one that is defined anew."""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from perdure import App, step
from perdure.engine.definitions import StepDefinition, check_step
from perdure.errors import DefinitionError

Write = Callable[[str], ModuleType]

HEAD = "from perdure import App, step\napp = App('sqlite://')\n"
WORKFLOW = "@app.workflow\nasync def pay() -> None: ...\n"
STEP = "@step\nasync def pay() -> None: ...\n"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a module below the head, and imports or reloads it."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(text: str) -> ModuleType:
        (tmp_path / "defined.py").write_text(HEAD + text)
        importlib.invalidate_caches()
        module = sys.modules.get("defined")
        return importlib.import_module("defined") if module is None else importlib.reload(module)

    yield write
    sys.modules.pop("defined", None)


@pytest.mark.parametrize(("text", "what"), [(WORKFLOW, "workflows"), (STEP, "steps")])
def test_a_second_function_of_that_name_in_a_module_is_refused(write: Write, text: str, what: str) -> None:
    with pytest.raises(DefinitionError, match=f"two {what} are named 'pay'") as refused:
        write(text * 2)
    assert re.findall(r"defined\.py:(\d+)", str(refused.value)) == ["3", "5"]


@pytest.mark.parametrize("text", [WORKFLOW, STEP])
def test_a_function_in_between_makes_no_difference(write: Write, text: str) -> None:
    with pytest.raises(DefinitionError, match="are named 'pay'"):
        write(text + "\ndef other() -> None: ...\n\n" + text)


def test_two_workflows_of_one_factory_are_refused(write: Write) -> None:
    with pytest.raises(DefinitionError, match="two workflows are named 'flow'"):
        write(
            "def make(app, kind):\n"
            "    @app.workflow\n"
            "    async def flow() -> str:\n"
            "        return kind\n"
            "    return flow\n"
            "one, two = make(app, 'one'), make(app, 'two')\n"
        )


def test_a_factory_that_names_its_workflows_is_fine(write: Write) -> None:
    module = write(
        "def make(app, kind):\n"
        "    @app.workflow(name=kind)\n"
        "    async def flow() -> str:\n"
        "        return kind\n"
        "    return flow\n"
        "one, two = make(app, 'one'), make(app, 'two')\n"
    )
    assert sorted(module.app.workflows) == ["one", "two"]


@pytest.mark.parametrize("shift", ["", "\n\nlimit = 3\n"])
def test_a_module_may_be_reloaded(write: Write, shift: str) -> None:
    keep = "app = globals().setdefault('kept', app)\n"  # the worst case: the app outlives the reload
    old = write(keep + WORKFLOW + STEP.replace("pay", "charge"))
    before = old.app.workflows["pay"]
    new = write(keep + shift + WORKFLOW + STEP.replace("pay", "charge"))
    assert new.app.workflows["pay"] is new.pay is not before


def test_a_module_that_was_reloaded_is_still_checked(write: Write) -> None:
    keep = "app = globals().setdefault('kept', app)\n"
    write(keep + WORKFLOW)
    with pytest.raises(DefinitionError, match="two workflows are named 'pay'"):
        write(keep + WORKFLOW * 2)


def test_what_is_typed_at_a_prompt_may_be_typed_again() -> None:
    prompt: dict[str, object] = {"__name__": "__main__", "app": App("sqlite://"), "step": step}
    for number in range(2):
        for text in (WORKFLOW, "\n" * number + STEP.replace("pay", "charge")):
            exec(compile(text, f"<input {number}>", "exec"), prompt)


def local_step(value: int) -> StepDefinition:
    @step
    async def pay() -> int:
        return value

    return pay.definition


def wrapped(fn: Callable[[], int]) -> Callable[[], int]:
    @functools.wraps(fn)
    def call() -> int:
        return fn()

    return call


def test_a_local_step_is_defined_anew_with_each_call() -> None:
    known: dict[str, StepDefinition] = {}
    first, second = local_step(1), local_step(2)
    check_step(known, first)
    check_step(known, second)
    assert known["pay"] is second


def test_two_local_steps_of_one_name_are_refused() -> None:
    def one() -> int:
        return 1

    def other() -> int:
        return 2

    other.__qualname__ = one.__qualname__  # as when both are named `one`
    known: dict[str, StepDefinition] = {}
    check_step(known, step(name="pay")(wrapped(one)).definition)
    with pytest.raises(DefinitionError, match="two steps are named 'pay'") as refused:
        check_step(known, step(name="pay")(wrapped(other)).definition)
    assert len(set(re.findall(r"test_definitions\.py:(\d+)", str(refused.value)))) == 2


def test_two_steps_of_one_factory_in_a_module_are_refused(write: Write) -> None:
    module = write(
        "def make(kind):\n"
        "    @step\n"
        "    async def pay() -> str:\n"
        "        return kind\n"
        "    return pay\n"
        "one, two = make('one'), make('two')\n" + WORKFLOW.replace("pay", "flow")
    )
    with pytest.raises(DefinitionError, match="two steps are named 'pay'"):
        module.app.worker()


class Caller:
    def __call__(self) -> int:
        return 1


@pytest.mark.parametrize("fn", [Caller(), functools.partial(int, 1)])
def test_what_has_no_name_is_no_function(fn: Callable[[], int]) -> None:
    with pytest.raises(DefinitionError, match=r"a workflow is a function with a name, not .*: write one with def"):
        App("sqlite://").workflow(fn)
    with pytest.raises(DefinitionError, match=r"a step is a function with a name, not .*: write one with def"):
        step(fn)


def test_a_name_is_text() -> None:
    five: str = 5  # pyright: ignore[reportAssignmentType]
    with pytest.raises(DefinitionError, match="the name of a step is a str, not 5"):
        step(name=five)(lambda: None)
    with pytest.raises(DefinitionError, match="the name of a workflow is a str, not 5"):
        App("sqlite://").workflow(name=five)(lambda: None)
