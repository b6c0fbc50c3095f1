"""Progress, labels, watching and deleting runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from perdure import Run, RunStatus, State, progress, sleep, step, wait_signal
from perdure.errors import InvalidInput, NotInWorkflow, RunNotEnded, RunNotFound

from .conftest import Play
from .kit import Gate, new_app, replay

pytestmark = pytest.mark.anyio


async def test_changes_of_state_are_pushed(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.client._POLL", 3600.0)
    app, states = new_app(), list[str]()

    @app.workflow
    async def flow() -> None:
        await wait_signal("go")

    async with play(app) as sandbox, asyncio.timeout(20):
        run = await flow.start()
        await sandbox.settle()
        async for change in run.watch():
            states.append(change.state)
            if change.state is State.WAITING:
                await run.signal("go")
    assert (states[0], states[-1]) == ("waiting", "succeeded")


async def test_progress_is_told_and_the_last_word_is_kept(play: Play) -> None:
    app, gate = new_app(), Gate()

    @step
    async def rest() -> None:
        await gate.pass_through()

    @app.workflow
    async def flow() -> str:
        progress(1, 3, "begins")
        progress(2, 3)
        await rest()
        progress({"phase": "last", "rows": [1, 2]})
        return "done"

    async with play(app):
        run = await flow.start()
        said = [change.progress async for change in first_said(run)]
        assert said == [{"done": 2, "total": 3}]
        gate.open()
        assert await run.result() == "done"
        assert (await run.status()).progress == {"phase": "last", "rows": [1, 2]}


async def test_steps_and_sync_code_tell_progress(play: Play) -> None:
    app = new_app()

    @step
    def count() -> None:
        progress(5)

    @app.workflow
    def flow() -> None:
        count().wait()
        progress("half", note=None)

    async with play(app):
        run = await flow.start()
        await run.result()
        assert (await run.status()).progress == "half"


async def test_replay_does_not_take_progress_back(play: Play) -> None:
    app, seen = new_app(), list[Any]()

    @step
    async def work(n: int) -> int:
        return n

    @app.workflow
    async def flow() -> None:
        for n in range(5):
            progress(await work(n), 5)
        await wait_signal("go")
        for n in range(5, 8):
            progress(await work(n), 8)
            await sleep(1)

    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.settle()
        assert (await run.status()).progress == {"done": 4, "total": 5}
        watching = asyncio.create_task(collect(run, seen))
        await replay(sandbox)
        await run.signal("go")
        await sandbox.advance(seconds=5)
        await watching
    said = [each["done"] for each in seen if each is not None]
    assert said == sorted(said)
    assert seen[-1] == {"done": 7, "total": 8}


async def test_progress_belongs_into_a_run_and_fits_it(play: Play) -> None:
    app = new_app()
    with pytest.raises(NotInWorkflow):
        progress(1)

    @app.workflow
    async def flow(value: str) -> None:
        if value == "total":
            progress("no number", total=3)
        if value == "below":
            progress(-1, 5)
        progress(object())

    async with play(app):
        wrong = {
            "total": "total= and note= go with a number",
            "below": "progress goes from 0 on",
            "object": "the progress",
        }
        for value, message in wrong.items():
            run = await flow.start(value)
            with pytest.raises(Exception, match=message):
                await run.result()
            assert (await run.status()).progress is None


async def test_watching_ends_with_the_run(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> None:
        await wait_signal("go")

    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.settle()
        states: list[State] = []

        async def watch() -> None:
            async for change in run.watch():
                states.append(change.state)
                if change.state is State.WAITING:
                    await run.signal("go")

        await asyncio.wait_for(watch(), 10)
        assert states[0] is State.WAITING
        assert states[-1] is State.SUCCEEDED
        with pytest.raises(RunNotFound):
            await anext(aiter(app.run("nobody").watch()))


def test_watching_without_an_event_loop(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> None:
        progress("on its way")

    with play(app):
        run = flow.start().wait()
        changes = list(run.watch())
    assert changes[-1].state is State.SUCCEEDED
    assert changes[-1].progress == "on its way"


async def test_labels_find_runs(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow(n: int) -> None:
        await wait_signal("go")

    async with play(app) as sandbox:
        first = await flow.options(labels={"customer": "ada", "kind": "größe/東京"}).start(1)
        second = await flow.options(labels={"customer": "ada"}).start(2)
        await flow.start(3)
        await sandbox.settle()
        assert [run.id for run in await app.runs(labels={"customer": "ada"})] == [second.id, first.id]
        assert [run.id for run in await app.runs(labels={"customer": "ada", "kind": "größe/東京"})] == [first.id]
        assert await app.runs(labels={"customer": "Ada"}) == []
        await first.label(customer=None, region="eu")
        assert (await first.status()).labels == {"kind": "größe/東京", "region": "eu"}
        assert [run.id for run in await app.runs(labels={"customer": "ada"})] == [second.id]
        with pytest.raises(InvalidInput):
            first.label(region="")
        with pytest.raises(RunNotFound):
            await app.run("nobody").label(a="b")


async def test_deleting_takes_the_whole_tree(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def leaf() -> int:
        return 1

    @app.workflow
    async def flow() -> int:
        return await leaf.run() + await leaf.run()

    async with play(app) as sandbox:
        run = await flow.start()
        await run.result()
        await sandbox.settle()
        assert await run.delete() == 3
        assert await app.runs() == []
        with pytest.raises(RunNotFound):
            await run.status()
        with pytest.raises(RunNotFound):
            await run.delete()


async def test_a_deleted_run_is_not_brought_back_by_its_worker(play: Play) -> None:
    app, gate = new_app(), Gate()

    @step
    async def rest() -> None:
        await gate.pass_through()

    @app.workflow
    async def leaf() -> None:
        await rest()

    @app.workflow
    async def flow() -> None:
        await leaf.run()
        await leaf.run()

    async with play(app) as sandbox:
        run = await flow.start()
        await gate.reached()
        with pytest.raises(RunNotEnded):
            await run.delete()
        assert await run.delete(force=True) == 2
        gate.open()
        await sandbox.settle()
        assert sandbox.worker.running == 0
        assert await app.runs() == []
        assert await app.counts() == []


async def test_a_deleted_run_that_has_nothing_to_say_stops_all_the_same(play: Play) -> None:
    app, begun, stopped = new_app(), asyncio.Event(), asyncio.Event()

    @app.workflow
    async def flow() -> None:
        begun.set()
        try:
            await asyncio.sleep(1000)
        finally:
            stopped.set()

    async with play(app) as sandbox:
        run = await flow.start()
        await begun.wait()
        await run.delete(force=True)
        async with asyncio.timeout(10):
            await stopped.wait()
        assert sandbox.worker.running == 0


async def test_who_waits_for_a_run_that_is_deleted_is_told(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> None:
        await wait_signal("go")

    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.settle()
        waiting = asyncio.ensure_future(outcome(run))
        await sandbox.settle()
        await run.delete(force=True)
        async with asyncio.timeout(10):
            assert isinstance(await waiting, RunNotFound)


async def outcome(run: Run[Any]) -> object:
    try:
        return await run.result()
    except RunNotFound as error:
        return error


async def first_said(run: Run[Any]) -> AsyncIterator[RunStatus]:
    """The first status with progress in it."""
    async for change in run.watch():
        if change.progress is not None:
            yield change
            return


async def collect(run: Run[Any], seen: list[Any]) -> None:
    seen += [change.progress async for change in run.watch()]


@pytest.mark.parametrize("parked", [True, False])
async def test_a_workflow_that_waits_for_a_run_that_is_deleted_is_told(play: Play, parked: bool) -> None:
    app, gate = new_app(), Gate()

    @step
    async def rest() -> None:
        await gate.pass_through()

    @app.workflow
    async def leaf() -> None:
        await wait_signal("go")

    async def told() -> str:
        try:
            await leaf.run()
        except RunNotFound:
            return "told"
        return "not told"

    @app.workflow
    async def flow() -> list[str]:
        beside = asyncio.create_task(told())
        if not parked:
            await rest()
        return [await beside]

    async with play(app) as sandbox:
        run = await flow.start()
        if parked:
            await sandbox.settle()
        else:
            await gate.reached()
        async with asyncio.timeout(20):
            async for _ in app.client.follow(lambda store: store.counts()):
                if leaves := await app.runs(workflow="leaf", state="waiting"):
                    await app.run(leaves[0].id).delete(force=True)
                    break
            gate.open()
            assert await run.result() == ["told"]
