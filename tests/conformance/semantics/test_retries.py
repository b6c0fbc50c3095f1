"""Attempts: how often, how late, and what becomes of those that a crash cuts off."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from perdure import Retry, current_run, sleep, step, wait_signal
from perdure.errors import RunFailed, StepCutOff, StepTimedOut

from .conftest import Explore, Play
from .kit import Gate, keys, new_app, replay, state

pytestmark = pytest.mark.anyio


async def test_a_step_without_retry_fails_at_once(play: Play) -> None:
    app, ran = new_app(), list[int]()

    @step
    async def fail() -> None:
        ran.append(1)
        raise ValueError("no")

    @app.workflow
    async def flow() -> None:
        await fail()

    async with play(app):
        with pytest.raises(RunFailed, match="ValueError: no"):
            await flow.run()
        assert len(ran) == 1


async def test_the_run_is_put_away_between_two_attempts(play: Play) -> None:
    app, times = new_app(), list[timedelta]()

    @step(retry=Retry(attempts=4, delay=60, factor=2, jitter=0))
    async def unlucky() -> int:
        times.append(sandbox.clock.time - begin)
        if len(times) < 4:
            raise ConnectionError("not yet")
        return current_run().step_attempt

    @app.workflow
    async def flow() -> int:
        return await unlucky()

    async with play(app, concurrency=1) as sandbox:
        begin = sandbox.clock.time
        run = await flow.start()
        await sandbox.settle()
        assert await state(run) == "waiting"
        assert sandbox.worker.running == 0
        await sandbox.advance(minutes=10)
        assert await run.result() == 4
        assert [time.total_seconds() for time in times] == [0, 60, 180, 420]
        [event] = await run.history()
        assert (event.attempts, event.outcome) == (4, "ok")


async def test_attempts_that_are_used_up_fail_with_the_last_error(play: Play) -> None:
    app, ran = new_app(), list[int]()

    @step(retry=Retry(attempts=3, delay=1))
    async def unlucky() -> None:
        ran.append(1)
        raise ConnectionError(f"try {len(ran)}")

    @app.workflow
    async def flow() -> str:
        try:
            await unlucky()
        except ConnectionError as error:
            return str(error)
        return "none"

    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.advance(minutes=1)
        assert await run.result() == "try 3"


@pytest.mark.parametrize(
    ("retry", "error", "tries"),
    [
        (Retry(attempts=3, delay=0, on=ConnectionError), ConnectionError("x"), 3),
        (Retry(attempts=3, delay=0, on=ConnectionError), ValueError("x"), 1),
        (Retry(attempts=3, delay=0, give_up_on=LookupError), KeyError("x"), 1),
        (Retry(attempts=3, delay=0, on=(KeyError, OSError), give_up_on=FileNotFoundError), OSError("x"), 3),
    ],
)
async def test_a_retry_says_after_which_errors(play: Play, retry: Retry, error: Exception, tries: int) -> None:
    app, ran = new_app(), list[int]()

    @step(retry=retry)
    async def fail() -> None:
        ran.append(1)
        raise error

    @app.workflow
    async def flow() -> None:
        await fail()

    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.settle()
        assert await state(run) == "failed"
        assert len(ran) == tries


async def test_attempts_are_counted_across_crashes(play: Play) -> None:
    app, gate, attempts = new_app(), Gate(), list[int]()

    @step(retry=Retry(attempts=5, delay=60, jitter=0))
    async def unlucky() -> str:
        attempts.append(current_run().step_attempt)
        if len(attempts) == 1:
            raise ConnectionError("not yet")
        if len(attempts) == 2:
            await gate.pass_through()
        return "done"

    @app.workflow
    async def flow() -> str:
        return await unlucky()

    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.advance(60, settle=False)
        await sandbox.settle()
        await sandbox.advance(60, settle=False)
        await gate.reached()
        await replay(sandbox)
        await sandbox.advance(minutes=10)
        assert await run.result() == "done"
        assert attempts == [1, 2, 3]
        assert (await run.status()).attempt == 2


async def test_a_step_whose_last_attempt_was_cut_off_fails(play: Play) -> None:
    app, gate, ran = new_app(), Gate(), list[int]()

    @step(retry=Retry(attempts=2, delay=0))
    async def deadly() -> None:
        ran.append(current_run().step_attempt)
        await gate.pass_through()

    @app.workflow
    async def flow() -> str:
        try:
            await deadly()
        except StepCutOff as error:
            return str(error)
        return "none"

    async with play(app) as sandbox:
        run = await flow.start()
        await gate.reached(1)
        await replay(sandbox)
        await gate.reached(2)
        await replay(sandbox)
        await sandbox.advance(minutes=1)  # after a second crash a run stays away for a while
        assert "attempt 2 of step deadly was cut off" in await run.result()
        assert ran == [1, 2]


async def test_a_step_with_one_attempt_is_not_repeated_whatever_completes_beside_it(play: Play) -> None:
    app, gate, ran = new_app(), Gate(), list[str]()

    @step
    async def before(n: int) -> int:
        return n

    @step(retry=Retry(attempts=1))
    async def once() -> None:
        ran.append("once")
        await gate.pass_through()

    @step
    async def beside() -> None:
        ran.append("beside")
        await gate.reached()

    @app.workflow
    async def flow() -> None:
        async def long() -> None:
            for n in range(150):
                await before(n)
            await once()

        await asyncio.gather(long(), beside())

    async with play(app) as sandbox:
        run = await flow.start()
        await gate.reached()
        await sandbox.kill_worker()
        await sandbox.start_worker()
        with pytest.raises(RunFailed, match="StepCutOff: attempt 1 of step ~long/once was cut off"):
            await run.result(timeout=20)
        assert ran.count("once") == 1


@pytest.mark.parametrize("attempts", [1, 2])
async def test_a_worker_that_stops_in_good_order_after_a_crash_forgets_no_attempt(play: Play, attempts: int) -> None:
    app, before, gate, ran = new_app(), Gate(), Gate(), list[int]()

    @step(retry=Retry(attempts=attempts, delay=0))
    async def charge() -> None:
        ran.append(current_run().step_attempt)
        await gate.pass_through()

    @app.workflow
    async def flow() -> None:
        await before.pass_through()  # What takes a moment before the code comes to the step.
        await charge()

    async with play(app) as sandbox:
        before.open()
        run = await flow.start()
        for crashes in range(1, attempts + 1):
            before.open()
            await gate.reached(crashes)
            before.close()
            await replay(sandbox)
            await sandbox.advance(minutes=1, settle=False)  # after a second crash a run stays away for a while
            await before.reached(2 * crashes)
            await sandbox.worker.stop(grace=0)
            await replay(sandbox)
            await before.reached(2 * crashes + 1)
        before.open()
        gate.open()
        with pytest.raises(RunFailed, match=f"StepCutOff: attempt {attempts} of step charge was cut off"):
            await run.result()
        assert ran == list(range(1, attempts + 1))


async def test_an_attempt_that_was_counted_as_cut_off_is_counted_once(play: Play) -> None:
    app, gate, ran = new_app(), Gate(), list[int]()

    @step(retry=Retry(attempts=2, delay=0))
    async def charge() -> str:
        ran.append(current_run().step_attempt)
        await gate.pass_through()
        return "done"

    @app.workflow
    async def flow() -> str:
        return await charge()

    async with play(app) as sandbox:
        run = await flow.start()
        await gate.reached()
        await replay(sandbox)
        await gate.reached(2)
        await sandbox.worker.stop(grace=0)
        await replay(sandbox)
        gate.open()
        assert await run.result() == "done"
        assert ran == [1, 2, 2]


async def test_a_step_with_one_attempt_that_had_not_begun_begins_after_a_crash(play: Play) -> None:
    app, gate, ran = new_app(), Gate(), list[str]()

    @step
    async def slow() -> None:
        await gate.pass_through()

    @step(retry=Retry(attempts=1))
    async def once() -> str:
        ran.append("once")
        return "done"

    @app.workflow
    async def flow() -> str:
        await slow()
        return await once()

    async with play(app) as sandbox:
        run = await flow.start()
        await gate.reached()
        await replay(sandbox)
        gate.open()
        assert await run.result(timeout=20) == "done"
        assert ran == ["once"]


@pytest.mark.parametrize("delay", [0, 60])
async def test_a_step_is_tried_again_with_the_steps_in_it_that_failed(play: Play, delay: int) -> None:
    app, ran = new_app(), list[str]()

    @step
    async def good() -> None:
        ran.append("good")

    @step
    async def bad() -> str:
        ran.append("bad")
        if ran.count("bad") < 3:
            raise ValueError("not yet")
        return "done"

    @step(retry=Retry(attempts=5, delay=delay, jitter=0))
    async def outer() -> str:
        await good()
        return await bad()

    @app.workflow
    async def flow() -> str:
        return await outer()

    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.advance(hours=1)
        assert await run.result(timeout=20) == "done"
        assert ran.count("bad") == 3
        assert ran.count("good") == 1


@pytest.mark.parametrize("delay", [0, 60])
async def test_what_a_step_has_kept_of_what_it_called_is_there_for_its_next_attempt(play: Play, delay: int) -> None:
    app, ran = new_app(), list[str]()

    @step
    async def charge() -> int:
        ran.append("charge")
        return len(ran)

    @step(retry=Retry(attempts=3, delay=delay, jitter=0))
    async def outer() -> tuple[int, str, float]:
        charged = await charge.options(key="once")()
        got = await wait_signal("go", str)
        before = sandbox.clock.time
        await sleep(5)
        slept = sandbox.clock.time - before
        ran.append("outer")
        if ran.count("outer") < 3:
            raise ConnectionError("not yet")
        return charged, got, slept.total_seconds()

    @app.workflow
    async def flow() -> tuple[int, str, float]:
        return await outer()

    async with play(app) as sandbox:
        run = await flow.start()
        await run.signal("go", "one")
        await sandbox.advance(hours=1)
        assert await run.result(timeout=20) == (1, "one", 0)
        assert ran == ["charge", "outer", "outer", "outer"]


async def test_what_was_cancelled_with_its_checkpoint_on_its_way_is_there_for_the_next_attempt(play: Play) -> None:
    app, ran, calls = new_app(), list[str](), list[asyncio.Task[None]]()

    @step
    async def charge() -> None:
        ran.append("charge")
        asyncio.get_running_loop().call_soon(calls[0].cancel)  # when the checkpoint has been handed in

    @step(retry=Retry(attempts=3, delay=0))
    async def outer() -> None:
        async def call() -> None:
            await charge()

        task = asyncio.create_task(call())
        calls.append(task)
        await asyncio.wait([task])
        if task.cancelled():
            raise ConnectionError("cancelled")

    @app.workflow
    async def flow() -> None:
        await outer()

    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.advance(hours=1)
        await run.result(timeout=20)
        assert ran == ["charge"]


async def test_a_step_is_not_tried_again_beside_what_its_attempt_left_at_work(play: Play) -> None:
    app, gate, ran, strays = new_app(), Gate(), list[str](), list[asyncio.Task[None]]()

    @step
    async def slow() -> int:
        ran.append("slow")
        await gate.pass_through()
        return ran.count("slow")

    @step
    async def fails_once() -> str:
        ran.append("fails")
        if ran.count("fails") == 1:
            await gate.reached()
            raise ConnectionError("once")
        return "done"

    async def stray() -> None:
        await gate.pass_through()
        await slow()

    @step(retry=Retry(attempts=2, delay=0))
    async def outer() -> tuple[int, str]:
        if not strays:
            strays.append(asyncio.create_task(stray()))  # which begins nothing more when this attempt is over
        return await asyncio.gather(slow(), fails_once())

    @app.workflow
    async def flow() -> tuple[int, str]:
        return await outer()

    async with play(app) as sandbox:
        run = await flow.start()
        await gate.reached(2)
        while "outer" not in await keys(run):  # the failure of the first attempt
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        gate.open()
        await sandbox.advance(hours=1)
        assert await run.result(timeout=20) == (1, "done")
        assert ran == ["slow", "fails", "fails"]


async def test_a_wait_that_an_attempt_left_is_over_before_the_next_one(play: Play) -> None:
    app, seen = new_app(), list[str]()

    async def wait() -> str:
        try:
            return await wait_signal("go", str)
        except asyncio.CancelledError:
            seen.append("left")
            raise

    @step
    async def fails_once() -> None:
        seen.append("begun")
        if len(seen) == 1:
            raise ConnectionError("once")

    @step(retry=Retry(attempts=2, delay=0))
    async def outer() -> str:
        text, _ = await asyncio.gather(wait(), fails_once())
        return text

    @app.workflow
    async def flow() -> str:
        return await outer()

    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.advance(hours=1)
        assert seen == ["begun", "left", "begun"]
        await run.signal("go", "here")
        assert await run.result(timeout=20) == "here"


async def test_a_step_that_is_tried_again_calls_what_it_called_with_the_same_arguments(play: Play) -> None:
    app = new_app()

    @step
    async def inner(n: int) -> int:
        return n

    @step(retry=Retry(attempts=2, delay=0))
    async def outer() -> None:
        await inner(current_run().step_attempt)
        raise ConnectionError

    @app.workflow
    async def flow() -> None:
        await outer()

    async with play(app):
        with pytest.raises(RunFailed, match=r"outer/inner .* is called with other arguments"):
            await flow.run()


async def test_a_step_in_a_step_that_failed_in_this_attempt_has_failed_after_a_crash(play: Play) -> None:
    app, gate, ran = new_app(), Gate(), list[str]()

    @step
    async def bad() -> None:
        ran.append("bad")
        raise ValueError("no")

    @step(retry=Retry(attempts=5, delay=60, jitter=0))
    async def outer() -> str:
        try:
            await bad()
        except ValueError:
            if current_run().step_attempt == 1:
                raise
        await gate.pass_through()
        return "done"

    @app.workflow
    async def flow() -> str:
        return await outer()

    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.settle()
        await sandbox.advance(seconds=70, settle=False)
        for times in (1, 2):
            await gate.reached(times)
            await replay(sandbox)
        await sandbox.advance(minutes=1, settle=False)  # after a second crash a run stays away for a while
        gate.open()
        assert await run.result(timeout=20) == "done"
        assert ran == ["bad", "bad"]


async def test_what_failed_in_an_attempt_before_those_that_crashes_cut_off_runs_again(play: Play) -> None:
    app, ran, gate = new_app(), list[str](), Gate()

    @step
    async def inner() -> str:
        ran.append("inner")
        if ran.count("inner") == 1:
            raise ConnectionError("once")
        return "done"

    @step(retry=Retry(attempts=4, delay=0))
    async def outer() -> str:
        ran.append("outer")
        if ran.count("outer") in (2, 3):
            await gate.pass_through()
        return await inner()

    @app.workflow(max_crashes=20)
    async def flow() -> str:
        return await outer()

    async with play(app) as sandbox:
        run = await flow.start()
        for times in (1, 2):
            await gate.reached(times)
            await replay(sandbox)
        await sandbox.advance(hours=1)
        assert await run.result(timeout=20) == "done"
        assert ran == ["outer", "inner", "outer", "outer", "outer", "inner"]


async def test_a_step_without_retry_runs_again_after_each_crash(play: Play) -> None:
    app, gate, ran = new_app(), Gate(), list[int]()

    @step
    async def slow() -> int:
        ran.append(current_run().step_attempt)
        if len(ran) < 4:
            await gate.pass_through()
        return len(ran)

    @app.workflow
    async def flow() -> int:
        return await slow()

    async with play(app) as sandbox:
        run = await flow.start()
        for crash in range(1, 4):
            while gate.arrived < crash:
                await sandbox.advance(1, settle=False)
                await asyncio.sleep(0)
            await replay(sandbox)
        await sandbox.advance(minutes=2)
        assert await run.result() == 4
        assert ran == [1, 2, 3, 4]


async def test_what_was_not_reached_when_the_worker_died_has_lost_no_attempt(play: Play) -> None:
    app, gate, attempts = new_app(), Gate(), dict[str, int]()

    @step
    async def first() -> None:
        if current_run().attempt == 1:
            await gate.pass_through()

    @step(retry=Retry(attempts=2))
    async def second() -> None:
        attempts["second"] = current_run().step_attempt

    @app.workflow
    async def flow() -> None:
        await first()
        await second()

    async with play(app) as sandbox:
        run = await flow.start()
        await gate.reached()
        await replay(sandbox)
        await run.result()
        assert attempts == {"second": 1}


async def test_a_workflow_retry_keeps_what_succeeded_and_tries_again_what_failed(play: Play) -> None:
    app, ran = new_app(), list[str]()

    @step
    async def good() -> None:
        ran.append("good")

    @step
    async def bad() -> str:
        ran.append("bad")
        if ran.count("bad") < 3:
            raise ConnectionError("not yet")
        return "done"

    @app.workflow(retry=Retry(attempts=3, delay=60, jitter=0))
    async def flow() -> list[object]:
        await good()
        return [await bad(), current_run().attempt]

    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.settle()
        status = await run.status()
        assert status.state == "scheduled"
        assert status.error is not None
        assert status.error.message == "not yet"
        await sandbox.advance(minutes=3)
        assert await run.result() == ["done", 3]
        assert ran == ["good", "bad", "bad", "bad"]


async def test_a_workflow_retry_ends(play: Play) -> None:
    app, ran = new_app(), list[int]()

    @app.workflow(retry=Retry(attempts=3, delay=1))
    async def flow() -> None:
        ran.append(current_run().attempt)
        raise ValueError("no")

    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.advance(minutes=1)
        assert await state(run) == "failed"
        assert ran == [1, 2, 3]


async def test_a_failed_run_is_retried_on_request(play: Play) -> None:
    app, ran = new_app(), list[str]()

    @step
    async def note(what: str) -> str:
        ran.append(what)
        if what == "b" and ran.count("b") == 1:
            raise ValueError("once")
        return what

    @app.workflow
    async def flow() -> list[str]:
        return [await note(what) for what in "abc"]

    async with play(app):
        run = await flow.start()
        with pytest.raises(RunFailed):
            await run.result()
        await run.retry()
        assert await run.result() == ["a", "b", "c"]
        assert ran == ["a", "b", "b", "c"]
        await run.retry(from_step="note#2")
        assert await run.result() == ["a", "b", "c"]
        assert ran == ["a", "b", "b", "c", "b", "c"]


async def test_an_async_step_is_cancelled_when_its_time_is_over(play: Play) -> None:
    app, gate, cleaned = new_app(), Gate(), list[str]()

    @step(timeout=60, retry=Retry(attempts=2, delay=0))
    async def hang() -> None:
        try:
            await gate.pass_through()
        finally:
            cleaned.append("up")

    @app.workflow
    async def flow() -> str:
        try:
            await hang()
        except StepTimedOut as error:
            return str(error)
        return "none"

    async with play(app) as sandbox:
        run = await flow.start()
        for attempt in (1, 2):
            await gate.reached(attempt)
            await sandbox.advance(60, settle=False)
        assert await run.result() == "step hang took longer than its timeout of 60000 ms"
        assert cleaned == ["up", "up"]


async def test_retries_survive_a_crash_at_any_point(explore: Explore) -> None:
    app, ran = new_app(), list[int]()

    @step(retry=Retry(attempts=9, delay=60))
    async def unlucky() -> str:
        ran.append(1)
        if len(ran) < 3:
            raise ConnectionError("not yet")
        return "done"

    @app.workflow(retry=Retry(attempts=9, delay=60))
    async def flow() -> str:
        await sleep(1)
        done = await unlucky()
        if current_run().attempt == 1:
            raise ConnectionError("once more")
        return done

    report = await explore(flow, before=ran.clear)
    # A crash counts as an attempt of the run, so that a later crash saves it from the failure; steps are what counts.
    assert not [problem for problem in report.problems if "step" in problem.what], report
