"""Runs as they end: one by one, whatever their order, of any number of workflows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import App, step, testing, wait_signal
from perdure.errors import InvalidInput, NotDurable, RunFailed, RunNotFound, WouldDeadlock

from .conftest import Explore, Play
from .kit import Gate, new_app, state

pytestmark = pytest.mark.anyio


async def test_an_app_starts_many_runs_of_a_workflow(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def item(n: int) -> int:
        return n

    async with play(app):
        runs = await app.start_many(item, range(3), ids=["a", "b", "c"])
        again = await app.start_many(item.options(priority=7), [2, 3], ids=["c", "d"])
        assert [run.existed for run in runs + again] == [False, False, False, True, False]
        assert [await run.result() for run in runs + again] == [0, 1, 2, 2, 3]
        with pytest.raises(InvalidInput, match="is a workflow of the app"):
            app.start_many("item", [1])  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="<workflow item> is of another app"):
            new_app().start_many(item, [1])


async def test_a_workflow_starts_many_once(explore: Explore) -> None:
    app = new_app()

    @app.workflow
    async def item(n: int) -> int:
        return n

    @app.workflow
    async def flow() -> list[int]:
        runs = await app.start_many(item, [1, 2])
        return await asyncio.gather(*(run.result() for run in runs))

    (await explore(flow)).check()


async def test_runs_come_as_they_end(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def item(n: int) -> int:
        await wait_signal("go")
        return n

    @app.workflow
    async def other(n: int) -> int:
        await wait_signal("go")
        raise ValueError(n)

    async with play(app) as sandbox:
        runs = [*await item.start_many([0, 1]), *await other.start_many([2])]
        await sandbox.settle()
        await runs[1].signal("go")
        seen: list[str] = []
        async with asyncio.timeout(20):
            async for run in app.as_ended([*runs, runs[0]]):  # each run comes once, however often it is named
                seen.append(run.id)
                assert run in runs
                if len(seen) == 1:
                    await runs[2].signal("go")
                elif len(seen) == 2:
                    with pytest.raises(RunFailed, match="2"):
                        await run.result()
                    await runs[0].cancel()
        assert seen == [runs[1].id, runs[2].id, runs[0].id]
        assert [run async for run in app.as_ended([])] == []


async def test_a_run_that_is_not_there_comes_too(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def item(n: int) -> int:
        await wait_signal("go")
        return n

    async with play(app) as sandbox:
        runs = await item.start_many([0, 1])
        await sandbox.settle()
        came: list[str] = []
        async with asyncio.timeout(20):
            async for run in app.as_ended([*runs, app.run("nobody")]):
                came.append(run.id)
                if len(came) == 1:
                    with pytest.raises(RunNotFound):
                        await run.result()
                    await runs[0].delete(force=True)
                elif len(came) == 2:
                    await runs[1].signal("go")
        assert came == ["nobody", runs[0].id, runs[1].id]


async def test_what_can_not_be_waited_for(play: Play) -> None:
    app = new_app()

    async with play(app):
        with pytest.raises(InvalidInput, match="takes handles of runs, not 'a'"):
            app.as_ended("a")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="takes the handles of runs, not 5"):
            app.as_ended(5)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="run a is of another app"):
            app.as_ended([new_app().run("a")])


async def test_in_a_workflow_the_order_could_not_be_repeated(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow(batch: bool) -> str:
        try:
            if batch:
                app.batch("b").ended()
            else:
                app.as_ended([app.run("a")])
        except NotDurable as error:
            return str(error)
        return "nothing"

    async with play(app):
        for batch in (False, True):
            assert "in a workflow, would be done anew" in await flow.run(batch)


async def test_a_step_waits_for_no_run_with_its_slot_in_hand(play: Play) -> None:
    app, gate = new_app(), Gate()

    @app.workflow
    async def item(n: int) -> int:
        if n:
            await gate.pass_through()
        return n

    @step
    async def collect(run_ids: list[str]) -> list[Any]:
        seen: list[Any] = []
        try:
            async for run in app.as_ended([app.run(run_id) for run_id in run_ids]):
                seen += [await run.result()]
        except WouldDeadlock as error:
            seen.append(str(error))
        return seen

    @app.workflow
    async def flow(run_ids: list[str]) -> list[Any]:
        return await collect(run_ids)

    async with play(app):
        runs = await item.start_many([0, 1])
        await gate.reached()
        assert await runs[0].result() == 0
        done, refused = await flow.run([run.id for run in runs])
        assert done == 0
        assert "as_ended() in a step would wait" in refused
        gate.open()
        await runs[1].result()
        assert await flow.run([run.id for run in runs]) == [0, 1]


async def test_very_many_runs_come_as_they_end(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def item(n: int) -> int:
        return n

    async with play(app):
        runs = await app.start_many(item, range(2500))
        ids = [run.id async for run in app.as_ended(runs)]
        assert sorted(ids) == sorted(run.id for run in runs)
        assert await state(runs[0]) == "succeeded"


def test_a_program_without_an_event_loop_goes_through_them() -> None:
    app = App("sqlite://")

    @app.workflow
    async def item(n: int) -> int:
        return n * 10

    with testing.run(app):
        runs = app.start_many(item, [1, 2, 3]).wait()
        assert sorted(run.result().wait() for run in app.as_ended(runs)) == [10, 20, 30]
