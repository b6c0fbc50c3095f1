"""Failed runs by cause, retried one by one or by filter; and what retention leaves."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from perdure import State, step

from .conftest import Play
from .kit import new_app

pytestmark = pytest.mark.anyio


async def test_failures_are_grouped_by_type_and_place(play: Play) -> None:
    app, broken = new_app(), [True]

    @step
    async def charge(n: int) -> int:
        if broken[0]:
            raise ConnectionError(f"host {n}")
        return n

    @app.workflow
    async def pay(n: int) -> int:
        return sum([await charge(n), await charge(n + 1)])

    @app.workflow(queue="other")
    async def stumble(n: int) -> int:
        if broken[0]:
            raise ValueError(f"row {n}")
        return n

    async with play(app) as sandbox:
        await pay.start_many(range(3))
        await stumble.options(labels={"customer": "ada"}).start(7)
        await stumble.start(8)
        await sandbox.settle()
        paid, stumbled = await app.failures()
        line = stumble.fn.__code__.co_firstlineno + 3
        assert (paid.workflow, paid.cause, paid.runs) == ("pay", "ConnectionError in charge", 3)
        assert (stumbled.workflow, stumbled.runs) == ("stumble", 2)
        assert stumbled.cause == f"ValueError in {__name__}:{line}"
        assert {run.id for run in await app.runs(cause=paid.cause)} == {f.id for f in await app.runs(workflow="pay")}

        would = await app.retry_failed(cause=paid.cause, dry_run=True)
        assert len(would) == 3 and len(await app.runs(state="failed")) == 5
        broken[0] = False
        assert await app.retry_failed(labels={"customer": "ada"}) != []
        assert sorted(await app.retry_failed(cause=paid.cause)) == sorted(would)
        await sandbox.settle()
        assert [each.cause for each in await app.failures()] == [stumbled.cause]
        assert {run.state for run in await app.runs(workflow="pay")} == {State.SUCCEEDED}
        assert await app.retry_failed(queue="nowhere") == []


async def test_a_step_that_failed_before_a_crash_is_the_cause_after_it_too(play: Play) -> None:
    app = new_app()

    @step
    async def charge() -> None:
        raise ValueError("no")

    @app.workflow
    async def pay() -> None:
        try:
            await charge()
        except ValueError:
            from perdure import sleep

            await sleep(5)
            raise

    async with play(app) as sandbox:
        await pay.start()
        await sandbox.settle()
        await sandbox.kill_worker()
        await sandbox.start_worker()
        await sandbox.advance(seconds=10)
        assert [each.cause for each in await app.failures()] == ["ValueError in charge"]


async def test_a_worker_prunes_in_the_background(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.engine.worker.PRUNE_PAUSE", 0.01)
    app = new_app()

    @app.workflow
    async def item(n: int) -> int:
        return n

    app.retain(count=1)
    async with play(app):
        await item.start_many(range(5))
        async for left in app.client.follow(lambda store: store.counts()):
            if [count.runs for count in left] == [1]:
                break


async def test_pruning_goes_by_the_most_specific_policy(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def item(n: int) -> int:
        if n < 0:
            raise ValueError("below")
        return n

    app.retain(count=3)
    app.retain(state="failed", age=timedelta(days=10))
    async with play(app) as sandbox:
        for n in (-2, -1, 1, 2, 3, 4, 5):
            await item.start(n)
            await sandbox.advance(seconds=1)
        await app.prune()
        assert len(await app.runs(state="failed")) == 2
        assert [run.record.input for run in await app.runs(state="succeeded")] == ['{"n":5}', '{"n":4}', '{"n":3}']
        await sandbox.advance(days=11)
        assert await app.prune() == 2
        assert await app.prune(count=1) == 2
        assert await app.prune(count=0) == 1
        assert await app.runs() == []


async def test_a_policy_for_a_workflow_that_nothing_has_is_told_of(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    app = new_app()

    @app.workflow
    async def item() -> None: ...

    app.retain(workflow="item", count=1)
    app.retain(workflow="itme", count=1)
    with caplog.at_level(logging.WARNING, "perdure.worker"):
        async with play(app):
            pass
    [told] = [record.getMessage() for record in caplog.records]
    assert told == "app.retain(workflow='itme') lets nothing go: no run has that workflow (did you mean 'item'?)"
