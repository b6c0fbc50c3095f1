"""Guarantees of `docs/guarantees.md`, each shown by the smallest program that could break it."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from perdure import App, Retry, State, current_run, sleep, step, testing, wait_signal
from perdure.errors import RunFailed, StepCutOff

pytestmark = pytest.mark.anyio

calls: list[str] = []


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def app() -> App:
    calls.clear()
    return App("sqlite://")


@step
async def work(name: str) -> str:
    calls.append(name)
    return name


async def test_steps_side_by_side_end_the_same_wherever_a_worker_dies(app: App) -> None:
    @step
    async def slow(name: str, turns: int) -> str:
        for _ in range(turns):
            await asyncio.sleep(0)
        return name

    @app.workflow
    async def flow() -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(in_task(name)) for name in "ab"]
        gathered = await asyncio.gather(slow("c", 3), slow("d", 1))
        return [*(task.result() for task in tasks), *gathered]

    async def in_task(name: str) -> str:
        return await work(name) + await work(name.upper())

    report = await testing.explore_crashes(flow, pairs=True)
    report.check()
    assert report.points == 20


async def test_what_came_first_comes_first_again(app: App) -> None:
    gate = asyncio.Event()

    @step
    async def racer(name: str) -> str:
        if name == "slow" and not gate.is_set():
            await gate.wait()
        gate.set()
        return name

    @app.workflow
    async def flow() -> list[str]:
        order = [await done for done in asyncio.as_completed([racer("slow"), racer("fast")])]
        await wait_signal("go")
        return order

    async with testing.run(app) as sandbox:
        run = await flow.start()
        await sandbox.settle()
        await sandbox.kill_worker()
        await sandbox.start_worker()
        await run.signal("go")
        assert await run.result() == ["fast", "slow"]


async def test_an_attempt_that_a_crash_cut_off_counts(app: App) -> None:
    cut_off = asyncio.Event()
    attempts: list[int] = []

    @step(retry=Retry(attempts=2))
    async def fatal() -> None:
        attempts.append(current_run().step_attempt)
        cut_off.set()
        await asyncio.Event().wait()

    @app.workflow
    async def flow() -> None:
        await fatal()

    async with testing.run(app) as sandbox:
        run = await flow.start()
        for _ in range(2):
            await cut_off.wait()
            cut_off.clear()
            await sandbox.kill_worker()
            await sandbox.start_worker()
        await sandbox.advance(minutes=1)  # from its second crash on a run stays away for a while
        with pytest.raises(RunFailed, match=StepCutOff.__name__):
            await run.result()
    assert attempts == [1, 2]


async def test_a_worker_that_stops_in_good_order_counts_no_attempt(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/app.db")
    begun = asyncio.Event()
    attempts: list[tuple[int, int]] = []

    @step(retry=Retry(attempts=1))
    async def long() -> str:
        attempts.append((current_run().attempt, current_run().step_attempt))
        begun.set()
        if len(attempts) == 1:
            await asyncio.Event().wait()
        return "done"

    @app.workflow
    async def flow() -> str:
        return await long()

    async with app:
        run = await flow.start()
        async with app.worker(grace=0):
            await begun.wait()
        assert (await run.status()).state is State.QUEUED
        async with app.worker():
            assert await run.result() == "done"
    assert attempts == [(1, 1), (1, 1)]


async def test_a_failed_step_takes_no_other_steps_checkpoint_with_it(app: App) -> None:
    failed = asyncio.Event()

    @step
    async def fails() -> None:
        failed.set()
        raise ValueError("no")

    @step
    async def goes_on() -> str:
        await failed.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        return "kept"

    @app.workflow
    async def flow() -> None:
        await asyncio.gather(fails(), goes_on())

    async with testing.run(app):
        run = await flow.start()
        with pytest.raises(RunFailed):
            await run.result()
        assert {event.key: event.outcome for event in await run.history()} == {"fails": "error", "goes_on": "ok"}


async def test_running_code_is_cancelled_and_may_clean_up_with_steps(app: App) -> None:
    begun = asyncio.Event()

    @step
    async def long() -> None:
        begun.set()
        await asyncio.Event().wait()

    @app.workflow
    async def flow() -> None:
        try:
            await long()
        finally:
            await work("clean up")

    async with testing.run(app) as sandbox:
        run = await flow.start()
        await begun.wait()
        await run.cancel()
        await sandbox.settle()
        assert (await run.status()).state is State.CANCELLED
    assert calls == ["clean up"]


async def test_a_signal_is_taken_once_and_kept_from_before_the_wait(app: App) -> None:
    @app.workflow
    async def flow() -> list[int]:
        await sleep(timedelta(days=1))
        return [await wait_signal("number", int) for _ in range(3)]

    async with testing.run(app) as sandbox:
        run = await flow.start()
        for number in range(3):
            await run.signal("number", number)
        await sandbox.advance(days=1)
        assert await run.result() == [0, 1, 2]

    report = await testing.explore_crashes(flow, signals=[("number", 0), ("number", 1), ("number", 2)])
    report.check()


async def test_waiting_runs_take_no_slot_and_no_task(app: App) -> None:
    @app.workflow
    async def waits(number: int) -> int:
        await wait_signal("go", timeout=timedelta(days=1))
        return number

    async with testing.run(app, concurrency=2) as sandbox:
        await sandbox.settle()
        before = len(asyncio.all_tasks())
        await waits.start_many(range(500))
        await sandbox.settle()
        assert sandbox.worker.running == 0
        assert len(asyncio.all_tasks()) == before
        assert {count.state: count.runs for count in await app.counts()} == {State.WAITING: 500}


async def test_what_can_not_be_sent_is_refused_by_the_call_and_names_it(app: App) -> None:
    @app.workflow
    async def flow(text: str) -> str:
        return text

    with pytest.raises(ValueError, match="input of workflow flow"):
        flow.start("x" * 2_000_000)
    with pytest.raises(ValueError, match=r"workflow flow: .*text: expected `str`, got `int`"):
        flow.start(1)  # pyright: ignore[reportArgumentType]


async def test_two_apps_live_side_by_side(app: App) -> None:
    other = App("sqlite://")

    @app.workflow(name="flow")
    async def one() -> int:
        return 1

    @other.workflow(name="flow")
    async def two() -> int:
        return 2

    async with testing.run(app), testing.run(other):
        assert (await one.run(), await two.run()) == (1, 2)
