"""Cancelling and deadlines: at once, in good order, and final."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

from perdure import current_run, sleep, step, wait_signal
from perdure.errors import RunCancelled, RunFailed

from .conftest import Play
from .kit import Gate, ThreadGate, keys, new_app, replay, state

pytestmark = pytest.mark.anyio


async def test_a_run_that_has_not_begun_is_cancelled_at_once(play: Play) -> None:
    app, ran = new_app(), list[int]()

    @app.workflow
    async def flow() -> None:
        ran.append(1)

    async with play(app) as sandbox:
        later = await flow.options(delay=60).start()
        await sandbox.kill_worker()
        now = await flow.start()
        assert [await later.cancel(), await now.cancel()] == ["cancelled", "cancelled"]
        await sandbox.start_worker()
        await sandbox.advance(minutes=2)
        with pytest.raises(RunCancelled, match="cancelled by a client"):
            await now.result()
        assert ran == []


async def test_a_run_that_waits_is_cancelled_at_once(play: Play) -> None:
    app, ended = new_app(), list[str]()

    @app.workflow
    async def flow() -> None:
        await wait_signal("go")
        ended.append("went on")

    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.settle()
        assert await run.cancel("changed my mind") == "cancelled"
        with pytest.raises(RunCancelled) as cancelled:
            await run.result()
        assert cancelled.value.reason == "changed my mind"
        await sandbox.settle()
        assert ended == []


async def test_a_running_one_gets_cancelled_error_and_cleans_up_with_steps(play: Play) -> None:
    app, gate, undone = new_app(), Gate(), list[str]()

    @step
    async def book() -> str:
        return "booking-1"

    @step
    async def hang() -> None:
        await gate.pass_through()

    @step
    async def undo(what: str) -> None:
        undone.append(what)

    @app.workflow
    async def flow() -> None:
        booking = await book()
        try:
            await hang()
        except asyncio.CancelledError:
            assert current_run().cancelling
            await undo(booking)
            raise

    async with play(app):
        run = await flow.start()
        await gate.reached()
        assert await run.cancel() == "running"
        with pytest.raises(RunCancelled):
            await run.result()
        assert undone == ["booking-1"]
        assert "undo" in await keys(run)


async def test_a_clean_up_that_a_crash_cuts_off_goes_on(play: Play) -> None:
    app, gate, cleaning = new_app(), Gate(), Gate()
    undone: list[str] = []

    @step
    async def hang() -> None:
        await gate.pass_through()

    @step
    async def undo() -> None:
        await cleaning.pass_through()
        undone.append("undone")

    @app.workflow
    async def flow() -> None:
        try:
            await hang()
        finally:
            await undo()

    async with play(app) as sandbox:
        run = await flow.start()
        await gate.reached()
        await run.cancel()
        await cleaning.reached()
        await replay(sandbox)
        await cleaning.reached(2)
        cleaning.open()
        with pytest.raises(RunCancelled):
            await run.result()
        assert undone == ["undone"]


async def test_a_clean_up_may_wait(play: Play) -> None:
    app, gate = new_app(), Gate()

    @step
    async def hang() -> None:
        await gate.pass_through()

    @app.workflow
    async def flow() -> None:
        try:
            await hang()
        finally:
            await sleep(60)

    async with play(app) as sandbox:
        run = await flow.start()
        await gate.reached()
        await run.cancel()
        await sandbox.advance(59)
        assert await state(run) == "running"
        await sandbox.advance(1)
        with pytest.raises(RunCancelled):
            await run.result()


async def test_one_that_ends_well_in_spite_of_it_has_succeeded(play: Play) -> None:
    app, gate = new_app(), Gate()

    @step
    async def hang() -> None:
        await gate.pass_through()

    @app.workflow
    async def flow() -> str:
        try:
            await hang()
        except asyncio.CancelledError:
            return "done anyway"
        return "none"

    async with play(app):
        run = await flow.start()
        await gate.reached()
        await run.cancel()
        assert await run.result() == "done anyway"


async def test_sync_code_sees_a_flag(play: Play) -> None:
    app, begun = new_app(), threading.Event()

    @step
    def work() -> str:
        pause = threading.Event()
        begun.set()
        while not current_run().cancelling:
            pause.wait(0.001)
        return "stopped"

    @app.workflow
    def flow() -> str:
        return work().wait()

    async with play(app):
        run = await flow.start()
        assert await asyncio.to_thread(begun.wait, 10)
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result(timeout=10)


async def test_children_follow(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def grandchild() -> None:
        await wait_signal("never")

    @app.workflow
    async def child() -> None:
        await grandchild.options(id="grandchild").run()

    @app.workflow
    async def parent() -> None:
        await child.options(id="child").run()

    async with play(app) as sandbox:
        run = await parent.start()
        await sandbox.settle()
        await run.cancel()
        await sandbox.settle()
        assert [await state(app.run(one)) for one in ("child", "grandchild")] == ["cancelled", "cancelled"]


async def test_children_stay_when_told_so(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def child() -> str:
        return await wait_signal("go", str)

    @app.workflow
    async def parent() -> None:
        await child.options(id="child").run()

    async with play(app) as sandbox:
        run = await parent.start()
        await sandbox.settle()
        await run.cancel(children=False)
        await app.run("child").signal("go", "on")
        assert await app.run("child").result() == "on"
        assert await state(run) == "cancelled"


async def test_a_run_that_ended_stays_as_it_is(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> int:
        return 1

    async with play(app):
        run = await flow.start()
        await run.result()
        assert await run.cancel() == "succeeded"
        assert await run.result() == 1


async def test_a_cancelled_run_is_retried_on_request(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> str:
        return await wait_signal("go", str)

    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.settle()
        await run.cancel()
        await run.retry()
        await run.signal("go", "again")
        assert await run.result() == "again"


# --- deadlines


async def test_a_deadline_ends_a_run_that_waits(play: Play) -> None:
    app = new_app()

    @app.workflow(timeout=timedelta(hours=1))
    async def flow() -> None:
        await wait_signal("never")

    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.advance(minutes=59)
        assert await state(run) == "waiting"
        await sandbox.advance(minutes=1)
        with pytest.raises(RunFailed, match="DeadlineExceeded: did not end within its timeout"):
            await run.result()


async def test_a_deadline_ends_a_run_that_is_queued(play: Play) -> None:
    app, gate = new_app(), Gate()

    @app.workflow
    async def flow() -> None:
        await gate.pass_through()

    async with play(app, concurrency=1) as sandbox:
        first = await flow.start()
        await gate.reached()
        second = await flow.options(timeout=60).start()
        await sandbox.advance(60, settle=False)
        with pytest.raises(RunFailed, match="DeadlineExceeded"):
            await second.result(timeout=10)
        gate.open()
        await first.result()


async def test_a_deadline_cancels_a_run_at_work(play: Play) -> None:
    app, gate, cleaned = new_app(), Gate(), list[str]()

    @step
    async def hang() -> None:
        await gate.pass_through()

    @step
    async def clean_up() -> None:
        cleaned.append("up")

    @app.workflow
    async def flow() -> None:
        try:
            await hang()
        finally:
            await clean_up()

    async with play(app) as sandbox:
        run = await flow.options(timeout=60).start()
        await gate.reached()
        await sandbox.advance(59, settle=False)
        assert await state(run) == "running"
        await sandbox.advance(1, settle=False)
        with pytest.raises(RunFailed, match="DeadlineExceeded"):
            await run.result()
        assert cleaned == ["up"]


async def test_a_deadline_is_seen_by_sync_code(play: Play) -> None:
    app, gate = new_app(), ThreadGate()

    @step
    def work() -> None:
        gate.pass_through()
        pause = threading.Event()
        while not current_run().cancelling:
            pause.wait(0.001)

    @app.workflow
    async def flow() -> None:
        await work()

    async with play(app) as sandbox:
        run = await flow.options(timeout=60).start()
        await gate.reached()
        gate.opened.set()
        await sandbox.advance(60, settle=False)
        with pytest.raises(RunFailed, match="DeadlineExceeded"):
            await run.result(timeout=10)


async def test_a_deadline_counts_from_when_the_run_may_start(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> None:
        await sleep(30)

    async with play(app) as sandbox:
        run = await flow.options(delay=timedelta(hours=1), timeout=60).start()
        await sandbox.advance(hours=2)
        assert await state(run) == "succeeded"


async def test_a_child_may_have_a_deadline_of_its_own(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def child() -> None:
        await wait_signal("never")

    @app.workflow
    async def parent() -> str:
        try:
            await child.options(timeout=60).run()
        except RunFailed as error:
            return error.info.type
        return "none"

    async with play(app) as sandbox:
        run = await parent.start()
        await sandbox.advance(60)
        assert await run.result() == "perdure.errors:DeadlineExceeded"


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 4])
async def test_groups_clean_up_whole_when_the_run_is_cancelled(play: Play, depth: int, alone: bool) -> None:
    app, gate, cleaned, all_cleaned = new_app(), Gate(), list[int](), asyncio.Event()

    @step
    async def work() -> None:
        await gate.pass_through()

    async def leaf(number: int) -> None:
        try:
            await work()
        finally:
            for _ in range(30):
                await asyncio.sleep(0)
            cleaned.append(number)
            if len(cleaned) == 4 * depth:
                all_cleaned.set()

    async def branch(left: int) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(4):
                group.create_task(leaf(number))
            if left > 1:
                group.create_task(branch(left - 1))

    @app.workflow
    async def flow() -> None:
        if alone:  # in a task that nothing cancels but the run
            await asyncio.shield(asyncio.create_task(branch(depth)))
        else:
            await branch(depth)

    async with play(app):
        run = await flow.start()
        await gate.reached(4 * depth)
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result(timeout=20)
        async with asyncio.timeout(10):
            await all_cleaned.wait()
        assert sorted(cleaned) == sorted([*range(4)] * depth)


@pytest.mark.parametrize("group", [False, True])
async def test_what_cleans_up_side_by_side_is_not_cancelled_again(play: Play, group: bool) -> None:
    app, gate, ended = new_app(), Gate(), list[int]()

    @step
    async def work() -> None:
        await gate.pass_through()

    @step
    async def release(number: int) -> None:
        for _ in range(30):
            await asyncio.sleep(0)
        ended.append(number)

    @app.workflow
    async def flow() -> None:
        beside = asyncio.create_task(work())  # nothing cancels it but the run
        try:
            await work()
        except asyncio.CancelledError:
            if group:
                async with asyncio.TaskGroup() as tasks:
                    for number in range(2):
                        tasks.create_task(release(number))
            else:
                await asyncio.gather(release(0), release(1))
            raise
        await beside

    async with play(app):
        run = await flow.start()
        await gate.reached(2)
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result(timeout=20)
        assert sorted(ended) == [0, 1]


async def test_a_task_that_cleans_up_when_its_run_is_cancelled_and_its_worker_dies_goes_on(play: Play) -> None:
    app, began, cleans, waits = new_app(), list[str](), Gate(), asyncio.Event()

    @step
    async def work() -> None:
        began.append("work")
        await asyncio.Event().wait()

    @step
    async def note() -> None: ...

    @step
    async def release() -> None:
        began.append("release")
        if began.count("release") == 1:
            await cleans.pass_through()

    async def side() -> None:
        try:
            await work()
        except asyncio.CancelledError:
            await release()

    @app.workflow
    async def flow() -> None:
        task = asyncio.create_task(side())
        await asyncio.sleep(0)
        await note()
        task.cancel()
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            waits.set()
            await asyncio.wait([task])
            raise

    async with play(app) as sandbox:
        run = await flow.start()
        await cleans.reached()
        await run.cancel()
        await waits.wait()
        await replay(sandbox)
        with pytest.raises(RunCancelled):
            await run.result(timeout=20)
        assert began == ["work", "release", "release"]
