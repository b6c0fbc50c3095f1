"""Keys: the same code gives the same keys, whatever ends first."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from engine.fakes import FakeExecution, as_execution
from perdure.engine.scope import Attempt, Scope, check_key, enter, scope_here, scope_needed
from perdure.errors import DefinitionError, NotInWorkflow

pytestmark = pytest.mark.anyio


def scope(prefix: str = "", **more: object) -> Scope:
    return Scope(as_execution(FakeExecution()), None, prefix, **more)  # pyright: ignore[reportArgumentType]


def test_calls_of_a_name_are_numbered_from_the_second_one() -> None:
    here = scope()
    assert [here.key(name) for name in ("a", "b", "a", "a", "b")] == ["a", "b", "a#2", "a#3", "b#2"]


def test_keys_within_a_step_begin_with_its_key_and_count_for_themselves() -> None:
    outer = scope()
    outer.key("a")
    inner = scope("outer#2/", attempt=Attempt("outer#2", 1, 0, None))
    assert [inner.key("a"), inner.key("a")] == ["outer#2/a", "outer#2/a#2"]


async def test_a_task_counts_for_itself() -> None:
    here = Scope(as_execution(FakeExecution()), asyncio.current_task())
    enter(here)

    async def two() -> list[str]:
        keys: list[str] = []
        for _ in range(2):
            await asyncio.sleep(0)
            keys.append(scope_needed("it").key("a"))
        return keys

    assert here.key("a") == "a"
    assert await asyncio.gather(two(), two()) == [["~two/a", "~two/a#2"], ["~two#2/a", "~two#2/a#2"]]
    assert scope_needed("it").key("a") == "a#2"


async def test_tasks_of_tasks_are_told_apart_and_all_are_known_to_the_execution() -> None:
    execution = FakeExecution()
    enter(Scope(as_execution(execution), asyncio.current_task()))

    async def inner() -> str:
        return scope_needed("it").key("a")

    async def outer() -> list[str]:
        scope_here()
        return list(await asyncio.gather(inner(), inner()))

    tasks = [asyncio.create_task(outer()) for _ in range(2)]
    assert await asyncio.gather(*tasks) == [
        ["~outer/~inner/a", "~outer/~inner#2/a"],
        ["~outer#2/~inner/a", "~outer#2/~inner#2/a"],
    ]
    assert set(tasks) < set(execution.tracked) and len(execution.tracked) == 6


def test_a_given_key_counts_for_the_enclosing_step_whatever_the_task() -> None:
    execution = FakeExecution()
    root = Scope(as_execution(execution), None)
    assert root.named("parse:x") == "parse:x"
    inner = Scope(as_execution(execution), None, "all/~1/", attempt=Attempt("all", 1, 0, None))
    assert inner.named("parse:x") == "all/parse:x"
    assert execution.names == ["parse:x", "all/parse:x"]


def test_a_thread_has_the_scope_of_its_context() -> None:
    here = scope()
    context = contextvars.copy_context()
    context.run(enter, here)
    found: list[Scope | None] = []
    for target in (lambda: context.run(lambda: found.append(scope_here())), lambda: found.append(scope_here())):
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
    assert found == [here, None]


def test_outside_of_a_run_there_is_no_scope() -> None:
    assert contextvars.Context().run(scope_here) is None
    with pytest.raises(NotInWorkflow, match="it works inside of a workflow"):
        contextvars.Context().run(scope_needed, "it")


@pytest.mark.parametrize("key", ["", "x" * 201, "a\nb", 7])
def test_a_key_that_cannot_be_is_refused(key: object) -> None:
    with pytest.raises(DefinitionError, match="1 to 200 printable"):
        check_key(key)  # pyright: ignore[reportArgumentType]
