"""What a workflow does to other runs is done once, and nothing is done by code of a run that was put away."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from perdure import App, sleep, step, wait_signal
from perdure.errors import NotDurable, RunEnded, RunFailed

from .conftest import Explore, Play
from .kit import new_app, replay, state

pytestmark = pytest.mark.anyio


@step
async def number(n: int) -> int:
    return n


async def test_a_signal_that_a_workflow_sends_arrives_once(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def receiver() -> list[int]:
        return [await wait_signal("ping", int) for _ in range(2)]

    @app.workflow
    async def sender(to: str) -> None:
        await app.run(to).signal("ping", 1)
        await sleep(10)
        await app.run(to).signal("ping", 2)

    async with play(app) as sandbox:
        receiving = await receiver.start()
        sending = await sender.start(receiving.id)
        await sandbox.settle()
        await replay(sandbox)
        await sandbox.settle()
        assert await state(receiving) == "waiting"
        await sandbox.advance(seconds=10)
        assert await receiving.result() == [1, 2]
        await sending.result()


async def test_a_signal_and_a_cancellation_survive_a_crash_at_any_point(explore: Explore) -> None:
    app = new_app()

    @app.workflow
    async def child() -> list[int]:
        return [await wait_signal("n", int), await wait_signal("n", int)]

    @app.workflow
    async def idle() -> None:
        await sleep(1000)

    @app.workflow
    async def parent() -> list[int]:
        first, second = await child.start(), await idle.start()
        await first.signal("n", await number(1))
        await first.signal("n", await number(2))
        assert await second.cancel("not needed") == "cancelled"
        return await first.result()

    (await explore(parent)).check()


async def test_an_error_of_a_signal_is_the_same_on_replay(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def quick() -> None: ...

    @app.workflow
    async def flow() -> str:
        run = await quick.start()
        await run.result()
        try:
            await run.signal("late")
        except RunEnded:
            await sleep(1)
            return "too late"
        return "sent"

    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.settle()
        await replay(sandbox)
        await sandbox.advance(seconds=1)
        assert await run.result() == "too late"


async def test_code_of_a_run_that_was_put_away_does_nothing_more(play: Play) -> None:
    app = new_app()
    gone_on: list[str] = []

    @app.workflow
    async def child() -> int:
        await sleep(600)
        return 1

    @app.workflow
    async def race() -> str:
        run = await child.start()

        async def result() -> int:
            return await run.result()

        async def signal() -> int:
            return await wait_signal("stop", int)

        tasks = [asyncio.create_task(result()), asyncio.create_task(signal())]
        with contextlib.suppress(Exception):
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        gone_on.append("after the wait")
        await run.cancel("told to stop")
        return "stopped"

    @app.workflow
    async def several() -> list[Any]:
        results = await asyncio.gather(child.run(), child.run(), return_exceptions=True)
        gone_on.append("after the gather")
        return list(results)

    async with play(app) as sandbox:
        racing, gathering = await race.start(), await several.start()
        await sandbox.settle()
        assert [await state(racing), await state(gathering)] == ["waiting", "waiting"]
        assert {status.state for status in await app.runs(workflow="child")} == {"waiting"}
        assert gone_on == []
        await sandbox.advance(seconds=600)
        assert await gathering.result() == [1, 1]
        assert gone_on.count("after the gather") == 1


async def test_what_would_be_answered_anew_at_each_replay_belongs_into_a_step(play: Play) -> None:
    app = new_app()

    @step
    async def look(run_id: str) -> str:
        return (await app.run(run_id).status()).state

    @app.workflow
    async def quick() -> None: ...

    @app.workflow
    async def flow() -> str:
        run = await quick.start()
        await run.result()
        with pytest.raises(NotDurable, match="step"):
            await run.status()
        return await look(run.id)

    async with play(app):
        assert await (await flow.start()).result() == "succeeded"


async def test_a_run_of_another_app_is_refused_in_a_workflow(play: Play) -> None:
    app, other = new_app(), App("sqlite://")

    @other.workflow
    async def theirs() -> int:
        return 1

    @app.workflow
    async def flow() -> int:
        return await theirs.run()

    async with play(app):
        with pytest.raises(RunFailed, match="another app"):
            await (await flow.start()).result()


async def test_a_sync_step_that_raises_stop_iteration_fails(play: Play) -> None:
    app = new_app()

    @step
    def first(numbers: list[int]) -> int:
        return next(n for n in numbers if n > 5)

    @app.workflow
    async def flow() -> int:
        return await first([1, 2])

    async with play(app):
        with pytest.raises(RunFailed, match="StopIteration"):
            await (await flow.start()).result()
