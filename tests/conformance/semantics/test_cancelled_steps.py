"""Steps that are cancelled: by the workflow's own code, or with their run."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

from perdure import App, current_run, sleep, step
from perdure.errors import RunCancelled, RunFailed, StepCancelled, StepFailed
from perdure.step import Step
from perdure.workflow import Workflow

from .conftest import Explore, Play
from .kit import Gate, ThreadGate, new_app, replay

pytestmark = pytest.mark.anyio


def beside_a_failure(app: App, log: list[str], mail: Step[[], None]) -> Workflow[[], str]:
    """A workflow with a step in a group beside another one, which fails when the first has begun; then it is put away
    again and again."""

    @step
    async def fails() -> None:
        while "mail" not in log:
            await asyncio.sleep(0)
        raise ValueError

    @app.workflow
    async def flow() -> str:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(mail())
                group.create_task(fails())
        except* ValueError:
            pass
        for _ in range(3):
            await sleep(timedelta(hours=1))
        return "done"

    return flow


async def test_a_step_that_a_group_cancels_does_not_run_again(play: Play, explore: Explore) -> None:
    app, log = new_app(), list[str]()

    @step
    async def mail() -> None:
        log.append("mail")
        await asyncio.Event().wait()

    flow = beside_a_failure(app, log, mail)
    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.advance(days=1)
        assert await run.result() == "done"
        assert log == ["mail"]
        [event] = [each for each in await run.history() if each.key == "mail"]
        assert event.error is not None
        assert event.error.type.endswith("StepCancelled")
    (await explore(flow, before=log.clear)).check()


async def test_a_step_in_a_thread_that_the_code_cancels_does_not_run_again(play: Play) -> None:
    app, log = new_app(), list[str]()

    @step
    def mail() -> None:
        log.append("mail")
        while not current_run().cancelling:
            time.sleep(0.001)

    flow = beside_a_failure(app, log, mail)
    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.advance(days=1)
        assert await run.result() == "done"
        assert log == ["mail"]


async def test_a_step_that_loses_a_race_does_not_run_again(play: Play, explore: Explore) -> None:
    app, log = new_app(), list[str]()

    @step
    async def fast() -> str:
        while "slow" not in log:
            await asyncio.sleep(0)
        return "fast"

    @step
    async def slow() -> str:
        log.append("slow")
        await asyncio.Event().wait()
        return "slow"

    @app.workflow
    async def flow() -> str:
        tasks = [asyncio.ensure_future(slow()), asyncio.ensure_future(fast())]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await sleep(timedelta(hours=1))
        return done.pop().result()

    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.advance(days=1)
        assert await run.result() == "fast"
        assert log == ["slow"]
        await replay(sandbox)
    (await explore(flow, before=log.clear)).check()


async def test_a_step_within_a_time_limit_that_ran_out_does_not_run_again(play: Play) -> None:
    app, log = new_app(), list[str]()

    @step
    async def slow() -> None:
        log.append("slow")
        await asyncio.Event().wait()

    @app.workflow
    async def flow() -> str:
        try:
            async with asyncio.timeout(0.05):
                await slow()
        except TimeoutError:
            await sleep(timedelta(hours=1))
            return "too slow"
        return "in time"

    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.advance(days=1)
        assert await run.result(timeout=20) == "too slow"
        assert log == ["slow"]


async def test_a_step_whose_checkpoint_was_on_its_way_when_the_code_cancelled_it_is_kept_as_cancelled(
    play: Play,
) -> None:
    app, seen, ran = new_app(), list[str](), list[str]()

    @step
    async def work() -> None:
        ran.append("work")
        time.sleep(0.06)  # the loop comes to the time limit when the step has ended, and before the store has answered

    @app.workflow
    async def flow() -> str:
        try:
            async with asyncio.timeout(0.05):
                await work()
            seen.append("in time")
        except TimeoutError:
            seen.append("too late")
        await sleep(timedelta(hours=1))
        return seen[-1]

    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.advance(hours=2)
        assert await run.result(timeout=20) == "too late"
        assert seen == ["too late", "too late"]
        assert ran == ["work"]


async def test_a_step_that_is_not_cancelled_any_more_is_told_of(play: Play) -> None:
    app, gate = new_app(), Gate()

    @step
    async def slow() -> None:
        await gate.pass_through()

    @app.workflow
    async def flow() -> None:
        task = asyncio.ensure_future(slow())
        if current_run().attempt == 1 and gate.arrived == 0:
            while gate.arrived == 0:
                await asyncio.sleep(0)
            task.cancel()
            await sleep(timedelta(hours=1))
        await task

    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.advance(days=1)
        with pytest.raises(RunFailed, match="nothing cancels it") as failed:
            await run.result(timeout=20)
        assert failed.value.info.type.endswith(StepCancelled.__name__)
        assert gate.arrived == 1


async def test_a_step_within_a_step_runs_again_when_that_one_does(play: Play) -> None:
    app, log = new_app(), list[str]()

    @step
    async def inner() -> str:
        log.append("inner")
        if len(log) == 1:
            await asyncio.Event().wait()
        return "inner"

    @step
    async def outer() -> str:
        try:
            async with asyncio.timeout(0.05 if not log else None):
                return await inner()
        except TimeoutError:
            return await inner()

    @app.workflow
    async def flow() -> str:
        return await outer()

    async with play(app):
        assert await (await flow.start()).result(timeout=20) == "inner"
        assert log == ["inner", "inner"]


async def test_a_step_that_cancels_itself_has_failed(play: Play) -> None:
    app, log = new_app(), list[str]()

    @step
    async def gives_up() -> None:
        log.append("begun")
        raise asyncio.CancelledError("enough")

    @app.workflow
    async def flow() -> str:
        [found] = await asyncio.gather(gives_up(), return_exceptions=True)
        await sleep(timedelta(hours=1))
        assert isinstance(found, StepFailed)
        return str(found)

    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.advance(days=1)
        assert "enough" in await run.result()
        assert log == ["begun"]


async def test_what_a_thread_has_done_when_its_run_is_cancelled_is_kept_for_a_retry(play: Play) -> None:
    app, gate, log = new_app(), ThreadGate(), list[str]()

    @step
    def charge() -> str:
        log.append("charged")
        gate.came.release()
        while not current_run().cancelling:
            time.sleep(0.001)
        return "receipt"

    @app.workflow
    async def flow() -> str:
        return await charge()

    async with play(app):
        run = await flow.start()
        await gate.reached()
        await run.cancel("not needed")
        with pytest.raises(RunCancelled):
            await run.result(timeout=20)
        assert [event.value for event in await run.history()] == ["receipt"]
        await run.retry()
        assert await run.result(timeout=20) == "receipt"
        assert log == ["charged"]
