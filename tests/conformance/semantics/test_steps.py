"""Steps are kept by name, and what is kept never runs again."""

from __future__ import annotations

import asyncio
import random
from contextvars import ContextVar
from datetime import timedelta

import pytest

from perdure import current_run, sleep, step
from perdure.engine import history
from perdure.errors import DefinitionError, RunFailed

from .conftest import Explore, Play
from .kit import Gate, keys, new_app, replay

pytestmark = pytest.mark.anyio

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


async def test_steps_run_one_after_the_other_and_once_each(play: Play) -> None:
    app, ran = new_app(), list[str]()

    @step
    async def say(what: str) -> str:
        ran.append(what)
        return what.upper()

    @app.workflow
    async def flow() -> list[str]:
        first = await say("a")
        await sleep(timedelta(hours=1))
        return [first, await say("b")]

    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.advance(hours=1)
        assert await run.result() == ["A", "B"]
        assert ran == ["a", "b"]


async def test_calls_of_one_name_are_numbered_in_the_order_of_the_calls(play: Play) -> None:
    app = new_app()

    @step
    async def double(n: int) -> int:
        return n * 2

    @app.workflow
    async def flow() -> list[int]:
        calls = [double(n) for n in range(3)]
        return [await call for call in reversed(calls)]

    async with play(app):
        run = await flow.start()
        assert await run.result() == [4, 2, 0]
        assert {event.key: event.value for event in await run.history()} == {"double": 0, "double#2": 2, "double#3": 4}


async def test_keys_of_ones_own_make_steps_independent_of_their_order(play: Play) -> None:
    app, ran = new_app(), list[str]()

    @step
    async def parse(name: str) -> str:
        ran.append(name)
        return name.upper()

    orders = [["a", "b", "c"], ["c", "b", "a"]]

    @app.workflow
    async def flow() -> list[str]:
        done = [await parse.options(key=name)(name) for name in orders[current_run().attempt - 1]]
        await gate.pass_through()
        return done

    gate = Gate()
    async with play(app) as sandbox:
        run = await flow.start()
        await gate.reached()
        await replay(sandbox)
        gate.open()
        assert await run.result() == ["C", "B", "A"]
        assert ran == ["a", "b", "c"]


async def test_a_key_can_be_used_once_in_a_run(play: Play) -> None:
    app = new_app()

    @step
    async def parse(name: str) -> str:
        return name

    @app.workflow
    async def flow() -> None:
        await parse.options(key="same")("a")
        await parse.options(key="same")("b")

    async with play(app):
        run = await flow.start()
        with pytest.raises(RunFailed, match="must be unique"):
            await run.result()


async def test_a_step_has_steps_of_its_own(play: Play, explore: Explore) -> None:
    app = new_app()

    @step
    async def inner(n: int) -> int:
        return n + 1

    @step
    async def outer(n: int) -> int:
        return await inner(await inner(n))

    @app.workflow
    async def flow() -> int:
        return await outer(1) + await inner(10)

    async with play(app):
        run = await flow.start()
        assert await run.result() == 14
        assert await keys(run) == ["outer/inner", "outer/inner#2", "outer", "inner"]
    (await explore(flow)).check()


async def test_a_sync_step_has_steps_of_its_own(play: Play, explore: Explore) -> None:
    app = new_app()

    @step
    def inner(n: int) -> int:
        return n + 1

    @step
    def outer(n: int) -> int:
        return inner(n).wait() + inner(n).wait()

    @app.workflow
    async def flow() -> int:
        return await outer(1)

    async with play(app):
        run = await flow.start()
        assert await run.result() == 4
        assert await keys(run) == ["outer/inner", "outer/inner#2", "outer"]
    (await explore(flow)).check()


async def test_a_step_called_outside_of_a_run_is_the_plain_function() -> None:
    @step
    async def double(n: int) -> int:
        return n * 2

    @step
    def triple(n: int) -> int:
        return n * 3

    assert await double(2) == 4
    assert triple(2) == 6
    assert await double.options(key="x")(2) == 4


async def test_a_value_is_the_same_at_first_and_on_replay(play: Play) -> None:
    app, seen, gate = new_app(), list[object](), Gate()

    @step
    async def pair():
        return (1, {"a": (2, 3)})

    @app.workflow
    async def flow() -> None:
        seen.append(await pair())
        await gate.pass_through()

    async with play(app) as sandbox:
        run = await flow.start()
        await gate.reached()
        await replay(sandbox)
        gate.open()
        await run.result()
        assert seen == [[1, {"a": [2, 3]}]] * 2


async def test_a_step_changes_nothing_that_is_the_workflow_s(play: Play, explore: Explore) -> None:
    app = new_app()

    @step
    async def extend(order: dict[str, int], *, notes: list[str]) -> int:
        order["total"] = 99
        notes.append("extended")
        return len(order)

    @step
    def extend_in_thread(order: dict[str, int]) -> int:
        order.clear()
        return len(order)

    @app.workflow
    async def flow() -> list[object]:
        order, notes = {"id": 7}, ["new"]
        sizes = [await extend(order, notes=notes), await extend_in_thread(order)]
        return [order, notes, sizes]

    async with play(app):
        assert await flow.run() == [{"id": 7}, ["new"], [2, 0]]
    (await explore(flow)).check()


async def test_what_is_random_stays_what_it_was(explore: Explore) -> None:
    app = new_app()

    @step
    async def roll() -> float:
        return random.random()

    @step
    async def check(n: float) -> float:
        return n

    @app.workflow
    async def flow() -> bool:
        n = await roll()
        await sleep(1)
        return await check(n) == n

    (await explore(flow)).check()


async def test_changed_arguments_are_noticed(play: Play) -> None:
    app, gate, numbers = new_app(), Gate(), iter([1, 2])

    @step
    async def take(n: int) -> int:
        return n

    @app.workflow
    async def flow() -> None:
        await take(next(numbers))
        await gate.pass_through()

    async with play(app) as sandbox:
        run = await flow.start()
        await gate.reached()
        await replay(sandbox)
        with pytest.raises(RunFailed, match=f"step take of run {run.id} is called with other arguments") as failed:
            await run.result()
        assert failed.value.info.type == "perdure.errors:ArgumentsChanged"


async def test_two_steps_of_one_name_are_refused(play: Play) -> None:
    app = new_app()

    @step(name="one")
    async def first() -> None: ...

    @step(name="one")
    async def second() -> None: ...

    @app.workflow
    async def flow() -> None:
        await first()
        await second()

    with pytest.raises(DefinitionError, match="two steps are named 'one'"):
        async with play(app):
            pass


async def test_two_steps_of_one_name_that_only_show_when_they_are_called_are_refused_then(play: Play) -> None:
    app = new_app()

    @step(name="one")
    async def first() -> None: ...

    @step(name="one")
    async def second() -> None: ...

    called = [first, second]

    @app.workflow
    async def flow() -> None:
        for each in called:
            await each()

    async with play(app):
        run = await flow.start()
        with pytest.raises(RunFailed, match="two steps are named 'one'"):
            await run.result()


def test_names_that_keys_could_not_bear_are_refused() -> None:
    with pytest.raises(DefinitionError, match="a name has"):
        step(name="a/b")(lambda: None)


async def loop_with_a_crash(play: Play, monkeypatch: pytest.MonkeyPatch, many: int, page: int) -> tuple[int, int]:
    """Runs `many` steps, with a crash in the middle; how many ran twice, and the most checkpoints held at once."""
    app, gate, ran, most = new_app(), Gate(), list[int](), 0
    monkeypatch.setattr(history, "PAGE", page)
    fetch = history.History.fetch

    async def measured(self: history.History, key: str):
        nonlocal most
        found = await fetch(self, key)
        most = max(most, len(self._loaded) + 1)
        return found

    monkeypatch.setattr(history.History, "fetch", measured)

    @step
    async def work(n: int) -> int:
        if n == many // 2:
            await gate.pass_through()
        ran.append(n)
        return n

    @app.workflow
    async def flow() -> int:
        return sum([await work(n) for n in range(many)])

    async with play(app) as sandbox:
        run = await flow.start()
        await gate.reached()
        gate.open()
        await replay(sandbox)
        assert await run.result() == sum(range(many))
    return len(ran) - len(set(ran)), most


async def test_a_long_history_is_read_in_pages(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    twice, most = await loop_with_a_crash(play, monkeypatch, many=1500, page=50)
    assert twice == 0
    assert 0 < most <= 100


async def test_a_step_sees_the_context_variables_of_its_caller_and_sets_its_own(play: Play) -> None:
    app, seen = new_app(), list[str]()

    @step
    async def log_in(name: str) -> str:
        await asyncio.sleep(0)
        before = tenant.get()
        tenant.set(name)
        await asyncio.sleep(0)
        return f"{before}, {tenant.get()}"

    @app.workflow
    async def flow() -> str:
        tenant.set("bob")
        said = await log_in("ada")
        seen.append(tenant.get())
        await sleep(60)
        return said

    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.advance(hours=1)
        assert await run.result(timeout=20) == "bob, ada"
        assert seen == ["bob", "bob"]
