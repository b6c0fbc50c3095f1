"""Workers die, are stopped, or lose their lease; runs go on, and the guilty ones end."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

from perdure import current_run, sleep, step, wait_signal
from perdure.engine import pump
from perdure.engine.points import Point
from perdure.errors import RunFailed
from perdure.testing import Sandbox

from .conftest import Play
from .kit import Gate, ThreadGate, new_app, replay, state

pytestmark = pytest.mark.anyio


async def crash_when_back(sandbox: Sandbox, gate: Gate, times: int) -> None:
    """Lets the worker die as soon as so many have come to the gate; runs that crashed before may take their time."""
    async with asyncio.timeout(20):
        while gate.arrived < times:
            await sandbox.advance(1, settle=False)
            await asyncio.sleep(0.001)
    await replay(sandbox)


async def test_a_run_goes_on_where_it_was(play: Play) -> None:
    app, gate, ran = new_app(), Gate(), list[str]()

    @step
    async def note(what: str) -> str:
        if what == "b":
            await gate.pass_through()
        ran.append(what)
        return what

    @app.workflow
    async def flow() -> list[str]:
        return [await note(what) for what in "abc"]

    async with play(app) as sandbox:
        run = await flow.start()
        await gate.reached()
        await replay(sandbox)
        gate.open()
        assert await run.result() == ["a", "b", "c"]
        assert ran == ["a", "b", "c"]
        assert (await run.status()).attempt == 2


async def test_a_run_that_kills_its_worker_again_and_again_ends_as_failed(play: Play) -> None:
    app, gate = new_app(), Gate()

    @step
    async def deadly() -> None:
        await gate.pass_through()

    @app.workflow(max_crashes=3)
    async def flow() -> None:
        await deadly()

    async with play(app) as sandbox:
        run = await flow.start()
        for crash in (1, 2, 3):
            await crash_when_back(sandbox, gate, crash)
        with pytest.raises(RunFailed, match="Poisoned: ended its worker 3 times"):
            await run.result()
        assert gate.arrived == 3
        await run.retry()
        gate.open()
        assert await run.result() is None


async def test_poison_does_not_take_innocents_with_it(play: Play) -> None:
    app, deadly, innocent = new_app(), Gate(), Gate()

    @step
    async def die() -> None:
        await deadly.pass_through()

    @step
    async def work() -> int:
        await innocent.pass_through()
        return 1

    @app.workflow(max_crashes=3)
    async def poison() -> None:
        await die()

    @app.workflow(max_crashes=3)
    async def good() -> int:
        return await work()

    async with play(app) as sandbox:
        guilty = await poison.start()
        await crash_when_back(sandbox, deadly, 1)
        others = [await good.start() for _ in range(3)]
        for crash in (2, 3):
            await crash_when_back(sandbox, deadly, crash)
        assert await state(guilty) == "failed"
        innocent.open()
        await sandbox.advance(minutes=10)
        assert [await run.result() for run in others] == [1, 1, 1]


async def test_progress_clears_the_record_of_crashes(play: Play) -> None:
    app, gate, tried = new_app(), Gate(), set[int]()

    @step
    async def works_the_second_time(n: int) -> int:
        if n not in tried:
            tried.add(n)
            await gate.pass_through()
        return n

    @app.workflow(max_crashes=2)
    async def flow() -> int:
        return sum([await works_the_second_time(n) for n in range(4)])

    async with play(app) as sandbox:
        run = await flow.start()
        for crash in (1, 2, 3, 4):
            await crash_when_back(sandbox, gate, crash)
        assert await run.result() == 6


async def test_a_graceful_stop_lets_runs_end(play: Play) -> None:
    app, gate = new_app(), Gate()

    @step
    async def work() -> str:
        await gate.pass_through()
        return "done"

    @app.workflow
    async def flow() -> list[object]:
        return [await work(), current_run().attempt]

    # With one slot, an exchange that is under way when the worker is stopped can claim nothing either.
    async with play(app, concurrency=1) as sandbox:
        run = await flow.start()
        await gate.reached()
        stopping = asyncio.ensure_future(sandbox.worker.stop(grace=30))
        await asyncio.sleep(0)
        late = await flow.start()
        gate.open()
        await stopping
        assert await run.result() == ["done", 1]
        assert await state(late) == "queued"


async def test_a_graceful_stop_hands_back_what_does_not_end_and_counts_no_attempt(play: Play) -> None:
    app, gate = new_app(), Gate()
    attempts: list[tuple[int, int]] = []

    @step
    async def work() -> None:
        attempts.append((current_run().attempt, current_run().step_attempt))
        await gate.pass_through()

    @app.workflow
    async def flow() -> str:
        await work()
        return "done"

    async with play(app) as sandbox:
        run = await flow.start()
        await gate.reached()
        await sandbox.worker.stop(grace=0)
        status = await run.status()
        assert (status.state, status.attempt) == ("queued", 1)
        await replay(sandbox)
        await gate.reached(2)
        gate.open()
        assert await run.result() == "done"
        assert attempts == [(1, 1), (1, 1)]


async def test_a_worker_that_lost_its_lease_is_refused_and_stops_its_runs(play: Play) -> None:
    app, gate, effects = new_app(), Gate(), list[str]()

    @step
    async def work() -> str:
        mine = f"worker {current_run().attempt}"
        try:
            await gate.pass_through()
        except asyncio.CancelledError:
            effects.append(f"{mine} stopped")
            raise
        effects.append(mine)
        return mine

    @app.workflow
    async def flow() -> str:
        return await work()

    async with play(app) as sandbox:
        run = await flow.start()
        await gate.reached()
        late = sandbox.worker
        store = await app.client.store()
        assert await store.bury(late.name) == 1  # as the others do when its lease has ended
        await gate.reached(2)  # it has begun anew, and goes on with the run as its new self
        assert effects == ["worker 1 stopped"]
        gate.open()
        assert await run.result() == "worker 2"
        assert effects == ["worker 1 stopped", "worker 2"]


@pytest.mark.parametrize("where", ["before a step", "between two steps"])
async def test_a_worker_that_stood_still_for_its_lease_begins_no_step(play: Play, where: str) -> None:
    """A process that was stopped, or whose machine slept, goes on with what it knew: its runs may be elsewhere by now,
    and further."""
    app, begun, stood_still = new_app(), list[str](), list[int]()

    @step
    async def one() -> None:
        begun.append("one")

    @step
    async def two() -> None:
        begun.append("two")

    @app.workflow
    async def flow() -> None:
        if where == "before a step":
            stand_still()
        await one()
        await two()

    def stand_still() -> None:
        if stood_still:
            return
        sandbox.clock.move_to(sandbox.clock.now() + 11_000)
        other = threading.Thread(target=lambda: stood_still.append(asyncio.run(store.reclaim()).count))
        other.start()
        other.join()

    def after(point: Point, _: str, key: str) -> None:
        if where == "between two steps" and (point, key) == (Point.AFTER_CHECKPOINT, "one"):
            stand_still()

    async with play(app) as sandbox:
        store = await app.client.store()
        await sandbox.kill_worker()
        worker = app.worker(lease=10)
        worker.tap = after
        async with worker:
            await flow.run()
        assert stood_still == [1]  # that run was taken back
        assert begun == ["one", "two"]


async def test_a_worker_that_begins_anew_declares_anew(play: Play) -> None:
    app, gate = new_app(), Gate()

    @step
    async def work() -> None:
        await gate.pass_through()

    @app.workflow
    async def flow() -> None:
        await work()

    @app.schedule(every=timedelta(days=1))
    @app.workflow
    async def tick() -> None: ...

    async with play(app) as sandbox:
        run = await flow.start()
        await gate.reached()
        store = await app.client.store()
        (schedule,) = await app.schedules.list()
        await store.remove_schedule(schedule.name)  # As a store that was emptied, or went back to what was.
        await store.bury(sandbox.worker.name)
        await gate.reached(2)
        assert [each.name for each in await app.schedules.list()] == [schedule.name]
        gate.open()
        await run.result()


async def test_a_worker_whose_tokens_run_out_goes_on_as_another_incarnation(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pump, "_LAST_SERIAL", 4)
    app, attempts, alive = new_app(), list[int](), list[list[str]]()

    @step
    async def work(n: int) -> int:
        # Looked at from inside: between two incarnations, when nothing runs, the store knows no worker at all.
        alive.append([each.name for each in await (await app.client.store()).workers()])
        return n

    @app.workflow
    async def flow(n: int) -> int:
        attempts.append(current_run().attempt)
        return await work(n) + await work(n)

    async with play(app) as sandbox:
        for n in range(6):
            assert await flow.run(n) == 2 * n
        name = sandbox.worker.name
    assert attempts == [1] * 6
    assert alive[0] == [name]
    assert all(len(each) == 1 for each in alive)
    assert len({each[0] for each in alive}) > 2


async def test_what_a_late_thread_brings_counts_for_nothing(play: Play) -> None:
    app, gate, ran = new_app(), ThreadGate(), list[int]()

    @step
    def work() -> int:
        attempt = current_run().attempt
        ran.append(attempt)
        if attempt == 1:
            gate.pass_through()
        return attempt

    @app.workflow
    def flow() -> int:
        return work().wait() * 10

    async with play(app) as sandbox:
        run = await flow.start()
        await gate.reached()
        store = await app.client.store()
        await store.bury(sandbox.worker.name)
        assert await run.result() == 20
        gate.opened.set()
        await sandbox.settle()
        assert await run.result() == 20
        assert [event.value for event in await run.history()] == [2]


async def test_dead_workers_are_found_by_any_live_one(play: Play) -> None:
    app, gate = new_app(), Gate()

    @step
    async def work() -> str:
        await gate.pass_through()
        return "done"

    @app.workflow
    async def flow() -> str:
        return await work()

    async with play(app) as sandbox:
        await sandbox.kill_worker()
        first = app.worker(lease=10)
        await first.start()
        run = await flow.start()
        await gate.reached()
        await first.kill()
        await sandbox.start_worker()
        await sandbox.advance(9.9, settle=False)
        store = await app.client.store()
        assert (await store.reclaim()).count == 0
        await sandbox.advance(0.2, settle=False)
        await gate.reached(2)
        gate.open()
        assert await run.result() == "done"


async def test_waits_survive_the_death_of_the_worker(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> str:
        await sleep(60)
        return await wait_signal("go", str)

    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.settle()
        await replay(sandbox)
        await sandbox.advance(60)
        await replay(sandbox)
        await run.signal("go", "went")
        assert await run.result() == "went"
        assert (await run.status()).attempt == 1
