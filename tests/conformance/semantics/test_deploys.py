"""Deploys while runs are in flight: steps that come, go, and change their names."""

from __future__ import annotations

import pytest

from perdure import sleep, step
from perdure.errors import RunFailed

from .conftest import Play
from .kit import Gate, deploy, new_app

pytestmark = pytest.mark.anyio


async def test_a_deploy_may_add_a_step_between_two_others(play: Play) -> None:
    gate, ran = Gate(), list[str]()

    @step
    async def say(what: str) -> str:
        ran.append(what)
        return what

    @step
    async def new(what: str) -> str:
        ran.append(what)
        return what

    async def before() -> list[str]:
        first = [await say("a"), await say("b")]
        await gate.pass_through()
        return [*first, await say("c")]

    async def after() -> list[str]:
        return [await say("a"), await new("between"), await say("b"), await say("c")]

    app, next_version = new_app(), new_app()
    flow = app.workflow(name="flow")(before)
    next_version.workflow(name="flow")(after)
    async with play(app) as sandbox:
        run = await flow.start()
        await gate.reached()
        await deploy(sandbox, next_version)
        assert await run.result() == ["a", "between", "b", "c"]
        assert ran == ["a", "b", "between", "c"]


async def test_a_deploy_may_remove_a_step(play: Play) -> None:
    gate, ran = Gate(), list[str]()

    @step
    async def kept(what: str) -> str:
        ran.append(what)
        return what

    @step
    async def removed(what: str) -> str:
        ran.append(what)
        return what

    async def before() -> list[str]:
        first = [await removed("a"), await kept("b")]
        await gate.pass_through()
        return first

    async def after() -> list[str]:
        return [await kept("b")]

    app, next_version = new_app(), new_app()
    flow = app.workflow(name="flow")(before)
    next_version.workflow(name="flow")(after)
    async with play(app) as sandbox:
        run = await flow.start()
        await gate.reached()
        await deploy(sandbox, next_version)
        assert await run.result() == ["b"]
        assert ran == ["a", "b"]


async def test_a_renamed_step_runs_again_unless_it_keeps_its_name(play: Play) -> None:
    gate, ran = Gate(), list[str]()

    @step
    async def one() -> None:
        ran.append("one")

    @step
    async def two() -> None:
        ran.append("two")

    @step
    async def uno() -> None:
        ran.append("uno")

    @step(name="two")
    async def due() -> None:
        ran.append("due")

    async def before() -> None:
        await one()
        await two()
        await gate.pass_through()

    async def after() -> None:
        await uno()
        await due()

    app, next_version = new_app(), new_app()
    flow = app.workflow(name="flow")(before)
    next_version.workflow(name="flow")(after)
    async with play(app) as sandbox:
        run = await flow.start()
        await gate.reached()
        await deploy(sandbox, next_version)
        await run.result()
        assert ran == ["one", "two", "uno"]


async def test_a_name_that_becomes_something_else_is_noticed(play: Play) -> None:
    gate = Gate()

    @step(name="sleep")
    async def nap() -> None: ...

    async def before() -> None:
        await nap()
        await gate.pass_through()

    async def after() -> None:
        await sleep(1)

    app, next_version = new_app(), new_app()
    flow = app.workflow(name="flow")(before)
    next_version.workflow(name="flow")(after)
    async with play(app) as sandbox:
        run = await flow.start()
        await gate.reached()
        await deploy(sandbox, next_version)
        with pytest.raises(RunFailed, match="sleep was a step in an earlier attempt"):
            await run.result()
