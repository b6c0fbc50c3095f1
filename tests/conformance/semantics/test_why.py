"""`why` of runs that back off: after what, and until when, whatever the store."""

from __future__ import annotations

import pytest

from perdure import Retry, step
from perdure.clock import moment
from perdure.model import Millis
from perdure.run import Run
from perdure.testing import Sandbox

from .conftest import Play
from .kit import Gate, new_app, replay, state

pytestmark = pytest.mark.anyio


async def crash(sandbox: Sandbox, run: Run[None], gate: Gate) -> int:
    """Lets workers die with the run, which stands in its step each time, until it stays away for a while (how long is
    drawn, from the second crash on); gives how often that was."""
    crashes = 0
    while await state(run) != "scheduled":
        crashes += 1
        await gate.reached(crashes)
        await replay(sandbox)
    return crashes


async def due(run: Run[None]) -> Millis:
    """When the run goes on."""
    record = (await run.status()).record
    at = record.waits[0].at if record.waits else record.wake_at
    assert at is not None
    return at


async def until(run: Run[None]) -> str:
    return moment(await due(run)).strftime("%Y-%m-%d %H:%M:%S UTC")


async def test_a_run_that_stays_away_after_crashes_says_so(play: Play) -> None:
    app, gate = new_app(), Gate()

    @step
    async def deadly() -> None:
        await gate.pass_through()

    @app.workflow(max_crashes=50)
    async def flow() -> None:
        await deadly()

    async with play(app) as sandbox:
        run = await flow.start()
        crashes = await crash(sandbox, run, gate)
        assert await run.why() == (
            f"backs off until {await until(run)} after attempt {crashes} was cut off when its worker died; that is"
            f" crash {crashes} without progress"
        )
        gate.open()
        await sandbox.advance(minutes=1)
        assert (await run.why()).startswith("succeeded at ")


async def test_a_crash_is_not_told_as_the_failure_before_it(play: Play) -> None:
    """The error of the attempt before the crash is kept, but is not what the run backs off for."""
    app, gate, failed = new_app(), Gate(), list[int]()

    @step
    async def deadly() -> None:
        await gate.pass_through()

    @app.workflow(max_crashes=50, retry=Retry(attempts=100, delay=60))
    async def flow() -> None:
        if not failed:
            failed.append(1)
            raise ValueError("declined")
        await deadly()

    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.settle()
        assert await run.why() == f"backs off until {await until(run)} after attempt 1 failed: ValueError: declined"
        await sandbox.advance(minutes=2, settle=False)
        await gate.reached()
        crashes = await crash(sandbox, run, gate)
        why = await run.why()
        assert f"after attempt {crashes + 1} was cut off when its worker died" in why
        assert "declined" not in why


async def test_a_step_that_backs_off_says_after_which_error(play: Play) -> None:
    app, calls = new_app(), list[int]()

    @step(retry=Retry(attempts=3, delay=60))
    async def charge() -> None:
        calls.append(1)
        if len(calls) < 3:
            raise ValueError(f"gateway down {len(calls)}")

    @app.workflow
    async def flow() -> None:
        await charge()

    async with play(app) as sandbox:
        run = await flow.start()
        for attempt in (1, 2):
            await sandbox.settle()
            assert await run.why() == (
                f"waits for {await until(run)}, when step charge is tried again: attempt {attempt} failed with"
                f" ValueError: gateway down {attempt}"
            )
            sandbox.clock.move_to(await due(run))
        await sandbox.settle()
        assert (await run.why()).startswith("succeeded at ")
