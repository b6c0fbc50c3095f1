"""Steps side by side: `gather`, task groups, helpers; and what replay makes of them."""

from __future__ import annotations

import asyncio
import gc
from datetime import timedelta

import pytest

from perdure import sleep, step, wait_signal
from perdure.errors import RunFailed

from .conftest import Explore, Play
from .kit import Gate, keys, new_app, replay, state

pytestmark = pytest.mark.anyio


@step
async def double(n: int) -> int:
    return n * 2


@step
async def add(a: int, b: int) -> int:
    return a + b


@step
def sync_double(n: int) -> int:
    return n * 2


async def test_a_gather_of_steps_survives_a_crash_at_any_point(explore: Explore) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> list[int]:
        return await asyncio.gather(*(double(n) for n in range(4)), sync_double(9))

    report = await explore(flow)
    report.check()
    assert report.points > 15


async def test_a_task_group_of_steps_survives_a_crash_at_any_point(explore: Explore) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> list[int]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(double(n)) for n in range(4)]
        return [task.result() for task in tasks]

    (await explore(flow)).check()


async def test_helpers_with_several_steps_each_survive_a_crash_at_any_point(explore: Explore) -> None:
    app = new_app()

    async def helper(n: int) -> int:
        first = await double(n)
        second = await double(first)
        return await add(first, second)

    @app.workflow
    async def flow() -> list[int]:
        return list(await asyncio.gather(*(helper(n) for n in range(3))))

    (await explore(flow)).check()


async def test_helpers_with_waits_between_their_steps_survive_a_crash_at_any_point(explore: Explore) -> None:
    app = new_app()

    async def helper(n: int) -> int:
        first = await double(n)
        await sleep(timedelta(hours=n))
        return await double(first)

    @app.workflow
    async def flow() -> list[int]:
        return [*await asyncio.gather(helper(3), helper(1), helper(2))]

    (await explore(flow)).check()


async def test_helpers_side_by_side_do_not_take_each_others_numbers(play: Play) -> None:
    app, gate, ran = new_app(), Gate(), list[str]()

    @step
    async def say(what: str) -> str:
        ran.append(what)
        return what

    async def helper(name: str, pause: int) -> list[str]:
        first = await say(f"{name}1")
        for _ in range(pause):  # another order among the helpers than that of their beginning
            await asyncio.sleep(0)
        return [first, await say(f"{name}2")]

    pauses = iter([5, 0, 0, 5])

    @app.workflow
    async def flow() -> list[list[str]]:
        done = [*await asyncio.gather(helper("a", next(pauses)), helper("b", next(pauses)))]
        await gate.pass_through()
        return done

    async with play(app) as sandbox:
        run = await flow.start()
        await gate.reached()
        await replay(sandbox)
        gate.open()
        assert await run.result() == [["a1", "a2"], ["b1", "b2"]]
        assert sorted(ran) == ["a1", "a2", "b1", "b2"]


@pytest.mark.parametrize("how", ["as_completed", "wait"])
async def test_who_was_first_stays_first(play: Play, how: str) -> None:
    app, orders, end = new_app(), list[list[str]](), Gate()
    gates = {name: Gate() for name in "abc"}

    @step
    async def race(name: str) -> str:
        await gates[name].pass_through()
        return name

    async def finishers() -> list[str]:
        tasks = [asyncio.ensure_future(race(name)) for name in "abc"]
        if how == "as_completed":
            return [await one for one in asyncio.as_completed(tasks)]
        order: list[str] = []
        left = set(tasks)
        while left:
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            order += sorted(task.result() for task in done)
        return order

    @app.workflow
    async def flow() -> list[str]:
        order = await finishers()
        orders.append(order)
        await end.pass_through()
        return order

    async with play(app) as sandbox:
        run = await flow.start()
        for number, name in enumerate("cab", start=2):
            await gates[name].reached()
            gates[name].open()
            while len(await keys(run)) < number - 1:
                await asyncio.sleep(0)
        await end.reached()
        await replay(sandbox)
        end.open()
        assert await run.result() == ["c", "a", "b"]
        assert orders == [["c", "a", "b"]] * 2


async def test_waits_that_end_together_are_told_apart_the_same_on_replay(play: Play) -> None:
    app, slow, end, seen = new_app(), Gate(), Gate(), list[int]()

    @step
    async def hang(gate: str) -> None:
        await {"slow": slow, "end": end}[gate].pass_through()

    @app.workflow
    async def flow() -> None:
        held = asyncio.ensure_future(hang("slow"))  # so that the sleeps end in memory
        sleeps = [asyncio.ensure_future(sleep(60)) for _ in range(2)]
        done, _ = await asyncio.wait(sleeps, return_when=asyncio.FIRST_COMPLETED)
        seen.append(len(done))
        await held
        await hang("end")

    async with play(app) as sandbox:
        run = await flow.start()
        await slow.reached()
        while len(await keys(run)) < 2:
            await asyncio.sleep(0)
        await sandbox.advance(60, settle=False)
        slow.open()
        await end.reached()
        await replay(sandbox)
        await end.reached(2)
        end.open()
        await run.result()
        assert seen == [1, 1]


async def test_a_failure_waits_for_the_checkpoints_of_those_beside_it(play: Play) -> None:
    app, gate = new_app(), Gate()

    @step
    async def fails() -> None:
        await gate.reached()
        raise ValueError("no")

    @step
    async def slow() -> str:
        await gate.pass_through()
        return "kept"

    @app.workflow
    async def flow() -> None:
        await asyncio.gather(fails(), slow())

    async with play(app):
        run = await flow.start()
        while "fails" not in await keys(run):
            await asyncio.sleep(0)
        assert await state(run) == "running"
        gate.open()
        with pytest.raises(RunFailed, match="ValueError: no"):
            await run.result()
        assert {event.key: event.value for event in await run.history()} == {"fails": None, "slow": "kept"}


@pytest.mark.parametrize("fails", [True, False])
async def test_an_end_waits_for_steps_with_steps_of_their_own(play: Play, fails: bool) -> None:
    app, gate = new_app(), Gate()

    @step
    async def quick() -> None:
        await gate.reached()
        if fails:
            raise ValueError("no")

    @step
    async def slow() -> int:
        await gate.pass_through()
        return await double(1) + await sync_double(2)

    @app.workflow
    async def flow() -> None:
        beside = asyncio.ensure_future(slow())
        await asyncio.wait([beside, asyncio.ensure_future(quick())], return_when=asyncio.FIRST_COMPLETED)
        if fails:
            raise ValueError("no")

    async with play(app):
        run = await flow.start()
        while "quick" not in await keys(run):
            await asyncio.sleep(0)
        gate.open()
        if fails:
            with pytest.raises(RunFailed, match="ValueError: no"):
                await run.result()
        else:
            await run.result()
        kept = {event.key: event.value for event in await run.history()}
        assert kept == {"quick": None, "slow/double": 2, "slow/sync_double": 4, "slow": 6}


async def test_a_failure_in_a_task_group_survives_a_crash_at_any_point(explore: Explore) -> None:
    app = new_app()

    @step
    async def fails() -> None:
        raise ValueError("no")

    @app.workflow
    async def flow() -> str:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fails())
                group.create_task(sync_double(1))
        except ExceptionGroup as errors:
            return str(errors.exceptions)
        return "not reached"

    (await explore(flow)).check()


async def test_waits_and_steps_side_by_side_survive_a_crash_at_any_point(explore: Explore) -> None:
    app = new_app()

    @app.workflow
    async def child() -> int:
        await sleep(timedelta(hours=5))
        return 4

    @app.workflow
    async def flow() -> list[object]:
        waits = sleep(timedelta(days=1)), wait_signal("go", int)
        return [*await asyncio.gather(*waits, double(1), child.run())]

    (await explore(flow, signals=[("go", 3)])).check()


async def test_waits_beside_a_step_come_true_in_memory(play: Play) -> None:
    app, gate, done = new_app(), Gate(), list[str]()

    @step
    async def slow() -> None:
        await gate.pass_through()
        done.append("step")

    @step
    async def note(what: str) -> None:
        done.append(what)

    @app.workflow
    async def child() -> None:
        await wait_signal("child")

    async def after_sleep() -> None:
        await sleep(timedelta(hours=1))
        await note("sleep")

    async def after_signal() -> None:
        await wait_signal("go")
        await note("signal")

    async def after_child() -> None:
        await (await child.options(id="kid").start()).result()
        await note("child")

    @app.workflow
    async def flow() -> None:
        await asyncio.gather(slow(), after_sleep(), after_signal(), after_child())

    async with play(app) as sandbox:
        run = await flow.start()
        await gate.reached()
        await run.signal("go")
        while "signal" not in done:
            await asyncio.sleep(0)
        while await state(app.run("kid")) != "waiting":
            await asyncio.sleep(0)
        await app.run("kid").signal("child")
        while "child" not in done:
            await asyncio.sleep(0)
        await sandbox.advance(hours=1, settle=False)
        while "sleep" not in done:
            await asyncio.sleep(0)
        status = await run.status()
        assert (status.state, status.attempt) == ("running", 1)
        gate.open()
        await run.result()
        assert done == ["signal", "child", "sleep", "step"]


async def test_a_wait_that_loses_a_race_leaves_no_trace(play: Play, explore: Explore) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> str:
        reply = asyncio.ensure_future(wait_signal("reply", str))
        timer = asyncio.ensure_future(sleep(timedelta(hours=1)))
        done, pending = await asyncio.wait({reply, timer}, return_when=asyncio.FIRST_COMPLETED)
        for one in pending:
            one.cancel()
        first = "reply" if reply in done else "timer"
        await sleep(timedelta(days=1))
        return first

    async with play(app) as sandbox:
        timely, late = await flow.start(), await flow.start()
        await sandbox.settle()
        await timely.signal("reply", "here")
        await sandbox.advance(days=2)
        assert [await timely.result(), await late.result()] == ["reply", "timer"]
    (await explore(flow, signals=[("reply", "here")])).check()


async def test_tasks_of_a_run_that_is_put_away_end_without_a_word(play: Play) -> None:
    app, complaints = new_app(), list[str]()

    @app.workflow
    async def flow() -> str:
        async def helper() -> str:
            return await wait_signal("go", str)

        tasks = [asyncio.ensure_future(helper()), asyncio.ensure_future(sleep(60))]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return str(done.pop().result())

    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.settle()
        assert await state(run) == "waiting"
        gc.collect()
        await run.signal("go", "went")
        assert await run.result() == "went"
    gc.collect()
    assert complaints == []


async def test_more_steps_than_slots_run_side_by_side(play: Play) -> None:
    app, gate = new_app(), Gate()

    @step
    async def wait(n: int) -> int:
        await gate.pass_through()
        return n

    @app.workflow
    async def flow() -> int:
        return sum(await asyncio.gather(*(wait(n) for n in range(200))))

    async with play(app, concurrency=1):
        run = await flow.start()
        await gate.reached(200)
        gate.open()
        assert await run.result() == sum(range(200))
