"""An app in a sandbox: the clock is the test's, and nothing waits for real time."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from perdure import App, Retry, current_run, sleep, sleep_until, step, testing, wait_signal
from perdure.errors import PerdureError, StepTimedOut

pytestmark = pytest.mark.anyio

app = App("sqlite:////nowhere/at/all.db")  # a sandbox never opens it

order: list[object] = []
attempts: list[datetime] = []
began = asyncio.Event()
NEVER = timedelta(days=365)


@pytest.fixture(autouse=True)
def fresh() -> None:
    global began
    order.clear()
    attempts.clear()
    began = asyncio.Event()


@step
async def note(what: str) -> str:
    order.append(what)
    return what


@step(retry=Retry(attempts=4, delay=60, factor=2, jitter=0))
async def flaky() -> int:
    order.append("try")
    if len(order) < 4:
        raise ConnectionError("not yet")
    return len(order)


@step(timeout=30)
async def hang() -> None:
    began.set()
    await asyncio.Event().wait()


@step
async def nap() -> str:
    await sleep(timedelta(hours=1))
    return "rested"


@app.workflow
async def nap_for(name: str, hours: float) -> str:
    await sleep(timedelta(hours=hours))
    return await note(name)


@app.workflow
async def approve() -> str:
    return await wait_signal("approve", str, timeout=timedelta(days=7))


@app.workflow
async def try_hard() -> int:
    return await flaky()


@app.workflow
async def hang_on() -> str:
    try:
        await hang()
    except StepTimedOut:
        return "timed out"
    return "ended"


@app.workflow
async def rest() -> str:
    return await nap()


@app.workflow
def plain(hours: float) -> str:
    sleep(timedelta(hours=hours)).wait()
    return current_run().id


@app.workflow
async def until(when: datetime) -> None:
    await sleep_until(when)


async def test_advancing_runs_what_comes_due_in_order() -> None:
    async with testing.run(app) as sandbox:
        runs = [await nap_for.start(name, hours) for name, hours in [("c", 30), ("a", 1), ("d", 71), ("b", 2)]]
        await sandbox.advance(days=2)
        assert order == ["a", "b", "c"]
        assert [(await run.status()).state for run in runs] == ["succeeded", "succeeded", "waiting", "succeeded"]
        await sandbox.advance(days=1)
        assert order == ["a", "b", "c", "d"]


async def test_a_run_is_not_woken_before_its_time() -> None:
    async with testing.run(app) as sandbox:
        run = await nap_for.start("late", 1)
        await sandbox.advance(minutes=59, seconds=59.999)
        assert (await run.status()).state == "waiting"
        await sandbox.advance(0.001)
        assert await run.result() == "late"


async def test_the_clock_begins_where_the_test_says() -> None:
    start = datetime(2031, 5, 6, 7, tzinfo=UTC)
    async with testing.run(app, start=start) as sandbox:
        run = await nap_for.start("x", 1)
        assert sandbox.clock.time == start
        await sandbox.advance(hours=1)
        assert sandbox.clock.time == start + timedelta(hours=1)
        status = await run.status()
        assert (status.created_at, status.finished_at) == (start, start + timedelta(hours=1))


async def test_chains_of_waits_take_place_at_their_own_times() -> None:
    async with testing.run(app) as sandbox:
        begin = sandbox.clock.time
        run = await try_hard.start()
        await sandbox.advance(days=1)
        assert await run.result() == 4
        status = await run.status()
        assert status.finished_at == begin + timedelta(seconds=60 + 120 + 240)


async def test_a_delayed_start_and_a_deadline_go_by_the_clock() -> None:
    async with testing.run(app) as sandbox:
        run = await approve.options(delay=timedelta(days=1), timeout=timedelta(hours=1)).start()
        await sandbox.advance(hours=23)
        assert (await run.status()).state == "scheduled"
        await sandbox.advance(hours=1.5)
        assert (await run.status()).state == "waiting"
        await sandbox.advance(hours=0.5)
        assert (await run.status()).state == "failed"


async def test_settling_waits_for_all_that_can_be_done_now() -> None:
    async with testing.run(app, concurrency=2) as sandbox:
        runs = await nap_for.start_many([(str(number), 0) for number in range(50)])
        await sandbox.settle()
        assert {(await run.status()).state for run in runs} == {"succeeded"}


async def test_a_step_that_waits_itself_does_not_keep_the_clock_from_moving() -> None:
    async with testing.run(app) as sandbox:
        run = await rest.start()
        await sandbox.settle()
        assert (await run.status()).state == "running"
        await sandbox.advance(hours=1)
        assert await run.result() == "rested"


async def test_a_hanging_step_is_ended_by_its_timeout() -> None:
    async with testing.run(app) as sandbox:
        run = await hang_on.start()
        await began.wait()
        await sandbox.advance(seconds=29, settle=False)
        assert (await run.status()).state == "running"
        await sandbox.advance(seconds=1, settle=False)
        assert await run.result() == "timed out"


async def test_a_hanging_step_is_named_when_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.testing.sandbox._PATIENCE", 0.02)
    async with testing.run(app) as sandbox:
        run = await hang_on.start()
        with pytest.raises(TimeoutError, match=rf"run {run.id} \(hang_on\) is in step hang"):
            await sandbox.advance(days=1)


async def test_a_killed_worker_leaves_its_runs_to_the_next_one() -> None:
    async with testing.run(app) as sandbox:
        run = await hang_on.start()
        await began.wait()
        began.clear()
        await sandbox.kill_worker()
        assert (await run.status()).state == "queued"
        with pytest.raises(PerdureError, match="no worker"):
            _ = sandbox.worker
        await sandbox.start_worker()
        await began.wait()
        await sandbox.advance(seconds=30, settle=False)
        assert await run.result() == "timed out"


async def test_time_without_a_worker_is_made_up_for() -> None:
    async with testing.run(app) as sandbox:
        run = await nap_for.start("x", 1)
        await sandbox.settle()
        await sandbox.kill_worker()
        await sandbox.advance(days=1)
        assert order == []
        await sandbox.start_worker()
        assert await run.result() == "x"


async def test_the_worker_lives_on_for_years() -> None:
    async with testing.run(app) as sandbox:
        run = await nap_for.start("x", 24 * 365 * 20)
        await sandbox.advance(days=365 * 20)
        assert await run.result() == "x"
        assert (await run.status()).attempt == 1


async def test_the_app_is_as_it_was_afterwards() -> None:
    before = (app.client, app.clock)
    async with testing.run(app):
        assert app.client is not before[0]
    assert (app.client, app.clock) == before


async def test_each_sandbox_has_an_empty_store() -> None:
    for _ in range(2):
        async with testing.run(app) as sandbox:
            run = await nap_for.options(id="the-same").start("x", 0)
            assert not run.existed
            await sandbox.settle()


def test_it_works_without_an_event_loop() -> None:
    with testing.run(app) as sandbox:
        run = plain.start(30).wait()
        sandbox.advance(days=1).wait()
        assert run.status().wait().state == "waiting"
        sandbox.advance(days=1).wait()
        assert run.result().wait() == run.id
        sandbox.kill_worker().wait()
        sandbox.start_worker().wait()
        assert until.run(sandbox.clock.time).wait() is None


async def test_a_thousand_sleeping_runs_take_moments() -> None:
    async with testing.run(app) as sandbox:
        runs = await nap_for.start_many([(str(number), 1 + number % 70) for number in range(1000)])
        begin = time.perf_counter()
        await sandbox.advance(days=3)
        assert time.perf_counter() - begin < 10, "it takes less than one second where nothing else runs"
        assert len(order) == 1000
        assert {state.state for state in await app.runs(limit=2000)} == {"succeeded"}
        assert len(runs) == 1000


async def test_a_negative_time_is_refused() -> None:
    async with testing.run(app) as sandbox:
        with pytest.raises(PerdureError, match="time to advance"):
            await sandbox.advance(-1)
