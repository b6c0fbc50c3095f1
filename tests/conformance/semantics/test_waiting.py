"""Waiting is free, and comes true once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from perdure import current_run, sleep, sleep_until, step, wait_signal
from perdure import run as run_module
from perdure.errors import DecodingError, InvalidInput, NotInWorkflow, RunEnded, RunFailed, RunNotFound, SignalTimedOut

from .conftest import Explore, Play
from .kit import Gate, deploy, keys, new_app, replay, state

pytestmark = pytest.mark.anyio


@dataclass
class Approval:
    by: str
    at: datetime


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_sleep_is_shown_as_over_when_it_is(play: Play, cancelled: bool) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> None:
        await sleep(60)
        await sleep(60)

    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.advance(seconds=90)
        assert [event.outcome for event in await run.history()] == ["ok", "open"]
        if cancelled:
            await run.cancel()
        await sandbox.advance(seconds=60)
        assert [event.outcome for event in await run.history()] == ["ok", "open" if cancelled else "ok"]


async def test_a_sleep_takes_its_time_across_crashes(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> None:
        await sleep(timedelta(days=3))

    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.advance(days=1)
        await replay(sandbox)
        await sandbox.advance(days=1.99)
        assert await state(run) == "waiting"
        await sandbox.advance(days=0.01)
        await run.result()
        status = await run.status()
        assert status.finished_at == status.created_at + timedelta(days=3)


async def test_a_sleep_until_a_moment(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow(when: datetime) -> None:
        await sleep_until(when)

    async with play(app) as sandbox:
        when = sandbox.clock.time + timedelta(days=1)
        run, late = await flow.start(when), await flow.start(when - timedelta(days=2))
        await sandbox.settle()
        assert [await state(run), await state(late)] == ["waiting", "succeeded"]
        await sandbox.advance(days=1)
        assert await state(run) == "succeeded"


async def test_a_signal_may_come_before_or_after_the_run_waits(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> list[int]:
        return [await wait_signal("n", int), await wait_signal("n", int)]

    async with play(app) as sandbox:
        run = await flow.options(delay=60).start()
        await run.signal("n", 1)
        await sandbox.advance(60)
        assert await state(run) == "waiting"
        await run.signal("n", 2)
        assert await run.result() == [1, 2]


async def test_signals_come_in_order_by_name_and_once(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> list[object]:
        last = await wait_signal("b")
        return [last, *[await wait_signal("a") for _ in range(3)]]

    async with play(app) as sandbox:
        run = await flow.start()
        for n in range(3):
            await run.signal("a", n)
        await sandbox.settle()
        await replay(sandbox)
        await run.signal("b", "go")
        assert await run.result() == ["go", 0, 1, 2]


async def test_a_name_that_looks_like_the_number_of_a_call_is_none(play: Play) -> None:
    app, given = new_app(), list[list[str]]()

    @app.workflow
    async def echo(word: str) -> str:
        return word

    @app.workflow
    async def flow() -> None:
        signals = [await wait_signal(name, str) for name in ("a", "a", "a#2", "a#", "a#")]
        order, other = app.run("order"), app.run("order#2")
        results = [await order.result(), await order.result(), await other.result()]
        for name in ("b", "b", "b#2"):
            await app.run("listener").signal(name, name)
        given.append([*signals, *results])
        await sleep(10)

    @app.workflow
    async def listener() -> list[str]:
        return [await wait_signal(name, str) for name in ("b", "b", "b#2")]

    async with play(app) as sandbox:
        await listener.options(id="listener").start()
        for run_id in ("order", "order#2"):
            await echo.options(id=run_id).start(run_id)
        run = await flow.start()
        for name, value in (("a", "1"), ("a", "2"), ("a#2", "3"), ("a#", "4"), ("a#", "5")):
            await run.signal(name, value)
        await sandbox.advance(seconds=5)
        await replay(sandbox)
        await sandbox.advance(seconds=10)
        assert await state(run) == "succeeded"
        assert given == [["1", "2", "3", "4", "5", "order", "order", "order#2"]] * 2
        assert await app.run("listener").result() == ["b", "b", "b#2"]
        waits = [key for key in await keys(run) if key.startswith("signal:")]
        assert waits == ["signal:a", "signal:a#2", "signal:a##2", "signal:a##", "signal:a###2"]


async def test_hundreds_of_signals_come_in_order(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> list[int]:
        return [await wait_signal("n", int) for _ in range(600)]

    async with play(app):
        run = await flow.options(delay=0).start()
        for n in range(600):
            await run.signal("n", n)
        assert await run.result() == list(range(600))


async def test_a_signal_is_read_as_its_type(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> str:
        approval = await wait_signal("approve", Approval)
        return f"{approval.by} {approval.at.year}"

    async with play(app):
        run = await flow.start()
        await run.signal("approve", Approval("ada", datetime(2031, 1, 1, tzinfo=UTC)))
        assert await run.result() == "ada 2031"


async def test_a_signal_that_does_not_fit_its_type_can_be_handled(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> int:
        while True:
            try:
                return await wait_signal("n", int)
            except DecodingError:
                continue

    async with play(app):
        run = await flow.start()
        await run.signal("n", "three")
        await run.signal("n", 3)
        assert await run.result() == 3


async def test_a_signal_that_did_not_fit_is_there_again_for_a_retry(play: Play) -> None:
    app, fixed = new_app(), new_app()

    @app.workflow(name="flow")
    async def flow() -> int:
        return await wait_signal("n", int)

    @fixed.workflow(name="flow")
    async def flow_of_any() -> object:
        return await wait_signal("n", int | str)

    async with play(app) as sandbox:
        run = await flow.start()
        await run.signal("n", "three")
        await run.signal("n", 4)
        with pytest.raises(RunFailed, match=r"DecodingError: .* catch DecodingError to wait for the next one"):
            await run.result()
        await deploy(sandbox, fixed)
        await fixed.run(run.id).retry()
        assert await flow_of_any.get(run.id).result() == "three"


async def _first_of(*names: str) -> list[str]:
    tasks = [asyncio.ensure_future(wait_signal(name, str)) for name in names]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    return [task.result() for task in tasks if task in done]


async def test_a_signal_whose_wait_lost_a_race_waits_for_the_next_one(play: Play, explore: Explore) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> list[str]:
        got: list[str] = []
        for _ in range(3):
            got += await _first_of("a", "b")
        return got

    async with play(app) as sandbox:
        there = await flow.start()
        for name, text in (("a", "a1"), ("b", "b1"), ("b", "b2")):
            await there.signal(name, text)
        assert sorted(await there.result(timeout=20)) == ["a1", "b1", "b2"]
        later = await flow.start()
        await sandbox.settle()
        await asyncio.gather(later.signal("b", "b1"), later.signal("a", "a1"))
        await sandbox.settle()
        await replay(sandbox)
        await later.signal("b", "b2")
        got = await later.result(timeout=20)
        assert sorted(got) == ["a1", "b1", "b2"]
        assert got.index("b1") < got.index("b2")
    (await explore(flow, signals=[("a", "a1"), ("a", "a2"), ("b", "b1")])).check()


async def test_a_signal_that_came_with_the_end_of_a_sleep_is_not_lost(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def poll(rounds: int) -> list[str]:
        tasks = [asyncio.ensure_future(sleep(60)), asyncio.ensure_future(wait_signal("go", str))]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        got = [str(task.result()) for task in done if task is tasks[1]]
        if rounds and not got:
            poll.continue_as_new(rounds - 1)
        return got

    async with play(app) as sandbox:
        run = await poll.start(3)
        await sandbox.settle()
        await sandbox.kill_worker()
        await run.signal("go", "there")
        await sandbox.advance(seconds=60, settle=False)
        await sandbox.start_worker()
        await sandbox.advance(minutes=10)
        assert await run.result(timeout=20) == ["there"]


async def test_a_wait_for_a_signal_gives_up_in_time(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> str:
        try:
            return await wait_signal("go", str, timeout=timedelta(days=7))
        except SignalTimedOut:
            await sleep(1)
            return "too late"

    async with play(app) as sandbox:
        timely, late = await flow.start(), await flow.start()
        await sandbox.advance(days=6)
        await replay(sandbox)
        await timely.signal("go", "here")
        await sandbox.advance(days=2)
        assert [await timely.result(), await late.result()] == ["here", "too late"]


async def test_a_wait_of_no_time_sees_what_has_come_since_the_run_began(play: Play) -> None:
    app, gate, looks = new_app(), Gate(), list[str]()

    @app.workflow
    async def other() -> str:
        return "done"

    @step
    async def work() -> None:
        await gate.pass_through()

    async def look(id: str) -> None:
        try:
            looks.append(await wait_signal("go", str, timeout=0))
        except SignalTimedOut:
            looks.append("nothing")
        try:
            looks.append(await app.run(id).result(timeout=0))
        except TimeoutError:
            looks.append("goes on")

    @app.workflow
    async def flow(id: str) -> None:
        await look(id)
        await work()
        await look(id)

    async with play(app) as sandbox:
        await other.options(id="late", delay=60).start()
        run = await flow.start("late")
        await gate.reached()
        await run.signal("go", "now")
        await sandbox.advance(seconds=60, settle=False)
        await app.run("late").result(timeout=20)
        gate.open()
        await run.result(timeout=20)
        assert looks == ["nothing", "goes on", "now", "done"]


async def test_a_signal_to_a_run_that_ended_is_refused(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> None: ...

    async with play(app):
        run = await flow.start()
        await run.result()
        with pytest.raises(RunEnded):
            await run.signal("go")
        with pytest.raises(RunNotFound):
            await app.run("nobody").signal("go")


async def test_a_million_may_wait_for_each_slot(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> None:
        await wait_signal("go")

    @app.workflow
    async def other() -> str:
        return "served"

    async with play(app, concurrency=1) as sandbox:
        runs = await flow.start_many([()] * 200)
        await sandbox.settle()
        assert sandbox.worker.running == 0
        assert await other.run() == "served"
        for run in runs:
            await run.signal("go")
        await asyncio.gather(*(run.result() for run in runs))


async def test_waiting_in_a_step_keeps_the_run_in_memory(play: Play) -> None:
    app, ran = new_app(), list[int]()

    @step
    async def ask() -> str:
        ran.append(1)
        return await wait_signal("answer", str, timeout=60)

    @app.workflow
    async def flow() -> str:
        return await ask()

    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.settle()
        assert await state(run) == "running"
        await run.signal("answer", "yes")
        assert await run.result() == "yes"
        assert len(ran) == 1


async def test_short_code_between_waits_runs_once_for_each_wake(play: Play) -> None:
    app, passes = new_app(), list[int]()

    @app.workflow
    async def flow() -> None:
        passes.append(current_run().attempt)
        await sleep(1)
        await sleep(1)

    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.advance(5)
        await run.result()
        assert passes == [1, 1, 1], "waits are not attempts"


async def test_code_that_is_put_away_may_clean_up_but_not_begin_anything(play: Play) -> None:
    app, left, ran = new_app(), list[str](), list[str]()

    @step
    async def clean_up() -> None:
        ran.append("clean up")

    @app.workflow
    async def flow() -> None:
        try:
            await sleep(60)
        finally:
            left.append("left")
            await clean_up()

    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.settle()
        assert await state(run) == "waiting"
        assert ran == []
        await sandbox.advance(60)
        await run.result()
        assert ran == ["clean up"]
        assert left[-1] == "left"


@pytest.mark.parametrize("how", ["gather", "group"])
async def test_a_wait_that_begins_just_before_a_step_is_watched_beside_it(play: Play, how: str) -> None:
    app, gate, seen = new_app(), Gate(), asyncio.Event()

    @step
    async def work() -> None:
        await gate.pass_through()

    async def listen() -> str:
        value = await wait_signal("go", str)
        seen.set()
        return value

    @app.workflow
    async def flow() -> str:
        if how == "gather":
            return (await asyncio.gather(listen(), work()))[0]
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(listen())
            group.create_task(work())
        return waiting.result()

    async with play(app):
        run = await flow.start()
        await gate.reached()
        await run.signal("go", "now")
        async with asyncio.timeout(10):
            await seen.wait()
        gate.open()
        assert await run.result(timeout=20) == "now"


async def test_code_that_is_handed_back_calls_nothing_for_real_while_it_cleans_up(play: Play) -> None:
    app, ran, waits = new_app(), list[str](), asyncio.Event()

    @step
    async def clean_up() -> None:
        ran.append("step")

    @app.workflow
    async def other() -> None:
        ran.append("run")

    @app.workflow
    async def flow() -> None:
        try:
            async with asyncio.timeout(600):  # so it stays in memory
                waits.set()
                await wait_signal("go")
        finally:
            try:
                await clean_up()
            finally:
                await other.start()

    async with play(app) as sandbox:
        await sandbox.kill_worker()
        run = await flow.start()
        worker = app.worker()
        await worker.start()
        await waits.wait()
        await asyncio.sleep(0)
        await worker.stop(grace=0)
        assert ran == []
        assert await state(run) == "queued"
        assert {each.id for each in await app.runs()} == {run.id}


@pytest.mark.parametrize("call", [lambda: sleep(1), lambda: wait_signal("x"), current_run])
def test_waits_outside_of_a_run_are_refused(call) -> None:
    with pytest.raises(NotInWorkflow):
        call()


def test_times_that_cannot_be_are_refused() -> None:
    for wrong in (lambda: sleep(-1), lambda: sleep_until(datetime(2031, 1, 1)), lambda: sleep(float("nan"))):
        with pytest.raises(InvalidInput):
            wrong()


async def test_waits_of_all_kinds_survive_a_crash_at_any_point(explore: Explore) -> None:
    app, gate = new_app(), Gate()
    gate.open()

    @app.workflow
    async def child(n: int) -> int:
        await sleep(timedelta(hours=n))
        if n == 2:
            raise ValueError(n)
        return n

    @app.workflow
    async def flow() -> list[object]:
        seen: list[object] = [await wait_signal("a", int)]
        try:
            seen.append(await wait_signal("b", int, timeout=60))
        except SignalTimedOut:
            seen.append("timed out")
        for n in (1, 2):
            try:
                seen.append(await child.run(n))
            except RunFailed as error:
                seen.append(error.info.message)
        return seen

    report = await explore(flow, signals=[("a", 1)])
    report.check()
    assert report.undisturbed == "succeeded with [1, 'timed out', 1, '2']"


async def test_a_result_with_no_time_is_looked_for_once(play: Play) -> None:
    app, gate = new_app(), Gate()

    @step
    async def pass_gate() -> None:
        await gate.pass_through()

    @app.workflow
    async def flow(n: int) -> int:
        if n == 0:
            raise ValueError("none")
        if n == 3:
            await pass_gate()
        return n

    async with play(app) as sandbox:
        good, bad, gone, busy = await flow.start_many([1, 0, 2, 3])
        await gate.reached()
        await asyncio.gather(good.result(), bad.result(), gone.result(), return_exceptions=True)
        await gone.delete()
        assert await good.result(timeout=0) == 1
        with pytest.raises(RunFailed, match="none"):
            await bad.result(timeout=0)
        for nothing in (gone, flow.get("nope")):
            with pytest.raises(RunNotFound):
                await nothing.result(timeout=0)
        with pytest.raises(TimeoutError, match="has not ended within 0 s; it goes on"):
            await busy.result(timeout=0)
        gate.open()
        await sandbox.settle()


async def test_a_result_is_not_waited_for_beyond_its_time_where_the_store_hangs(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "_LAST_LOOK", 0.01)
    app, never = new_app(), asyncio.Event()

    @app.workflow
    async def flow() -> None:
        await sleep(60)

    async def hang(*_: object) -> None:
        await never.wait()

    async with play(app):
        run = await flow.start()
        store = await app.client.store()
        with monkeypatch.context() as hung:
            for verb in ("load", "ended", "missing"):
                hung.setattr(store, verb, hang)
            async with asyncio.timeout(20):
                with pytest.raises(TimeoutError, match="has not ended within"):
                    await run.result(timeout=0.01)
        never.set()
