"""Unique runs: one live run per key, replaced, debounced, throttled; from clients and from workflows."""

from __future__ import annotations

import pytest

from perdure import Batch, Run, sleep, step, wait_signal
from perdure.errors import NotDurable, RunFailed

from .conftest import Play
from .kit import new_app, replay

pytestmark = pytest.mark.anyio


async def test_a_second_start_gets_the_live_run_and_is_told_so(play: Play) -> None:
    app = new_app()

    @app.workflow(unique=lambda customer, n: customer)
    async def flow(customer: str, n: int) -> int:
        await wait_signal("go")
        return n

    async with play(app) as sandbox:
        first = await flow.start("ada", 1)
        await sandbox.settle()
        second, other = await flow.start("ada", 2), await flow.start("bob", 3)
        assert (second.id, second.existed) == (first.id, True)
        assert (first.existed, other.existed) == (False, False)
        await first.signal("go")
        assert await second.result() == 1
        third = await flow.start("ada", 4)
        assert third.id != first.id and not third.existed


@pytest.mark.parametrize("end", ["fail", "cancel"])
async def test_the_key_is_free_however_the_run_ends(play: Play, end: str) -> None:
    app = new_app()

    @app.workflow(unique="key")
    async def flow() -> None:
        await wait_signal("go")
        raise ValueError("no")

    async with play(app) as sandbox:
        first = await flow.start()
        await sandbox.settle()
        await (first.signal("go") if end == "fail" else first.cancel())
        await sandbox.settle()
        assert not (await flow.start()).existed


async def test_a_run_that_would_wait_for_itself_fails(play: Play) -> None:
    app = new_app()

    @app.workflow(unique="key")
    async def flow() -> None:
        await flow.run()

    @app.workflow(unique="key")
    async def other() -> None:
        await (await other.start()).result()

    async with play(app):
        for workflow in (flow, other):
            with pytest.raises(RunFailed, match=r"InvalidInput.*would wait for its own end: it has itself the unique"):
                await workflow.run()


async def test_a_run_that_has_not_begun_is_replaced(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow(n: int) -> int:
        return n

    async with play(app) as sandbox:
        options = flow.options(unique="k", on_conflict="replace", delay=60)
        first = await options.start(1)
        assert (await options.start(2)).id == first.id
        await sandbox.advance(minutes=2)
        assert await first.result() == 2


async def test_debounce_runs_once_with_the_latest_input(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow(n: int) -> int:
        return n

    async with play(app) as sandbox:
        start = flow.options(unique="k", debounce=10).start
        runs = [await start(1)]
        for n in (2, 3):
            await sandbox.advance(seconds=6)
            runs.append(await start(n))
        assert len({run.id for run in runs}) == 1
        assert (await runs[0].status()).state == "scheduled"
        await sandbox.advance(seconds=11)
        assert await runs[0].result() == 3
        assert (await start(4)).id != runs[0].id


async def test_throttle_starts_once_in_a_period(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow(n: int) -> int:
        return n

    async with play(app) as sandbox:
        start = flow.options(unique="k", throttle=60).start
        first = await start(1)
        assert await first.result() == 1
        again = await start(2)
        assert (again.id, again.existed) == (first.id, True)
        await sandbox.advance(seconds=61)
        assert (await start(3)).id != first.id


async def test_a_child_with_a_key_that_is_taken_is_the_run_that_has_it(play: Play) -> None:
    app = new_app()

    @app.workflow(unique="the one")
    async def index() -> str:
        await wait_signal("go")
        return "indexed"

    @app.workflow
    async def flow() -> list[object]:
        run = await index.start()
        await sleep(1)
        return [run.id, run.existed, await run.result()]

    async with play(app) as sandbox:
        first = await index.start()
        flows = [await flow.start(), await flow.start()]
        await sandbox.advance(seconds=2)
        await replay(sandbox)
        await sandbox.settle()
        await first.signal("go")
        assert [await run.result() for run in flows] == [[first.id, True, "indexed"]] * 2
        assert len(await app.runs(workflow="index")) == 1


async def test_an_id_and_a_throttle_hold_as_long_as_the_run_is_kept(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow(n: int) -> int:
        return n

    async with play(app) as sandbox:
        named, throttled = flow.options(id="a"), flow.options(unique="k", throttle=3600)
        first = await named.start(1), await throttled.start(1)
        await sandbox.settle()
        assert (await named.start(1)).existed and (await throttled.start(2)).existed
        await app.prune(count=0)
        again = await named.start(2), await throttled.start(2)
        assert [run.existed for run in again] == [False, False]
        assert again[0].id == first[0].id
        assert [await run.result() for run in again] == [2, 2]


async def test_whether_a_run_existed_is_not_kept_of_an_id_that_a_workflow_gives(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def leaf(n: int) -> int:
        return n

    @step
    async def started(name: str) -> bool:
        return (await leaf.options(id=name).start(1)).existed

    def told(handle: Run[int] | Batch[int]) -> bool | str:
        try:
            return handle.existed
        except NotDurable as error:
            return str(error)

    @app.workflow
    async def flow() -> list[bool | str]:
        one, many = await leaf.options(id="taken").start(1), await leaf.start_many([1, 1], ids=["taken", "new"])
        batches = await leaf.options(id="batch").start_batch([1]), await leaf.start_batch([1])
        keyed = await leaf.options(id="other", unique="k").start(1), await leaf.options(unique="k").start(1)
        await sleep(1)
        return [*map(told, (one, *many, *batches, *keyed)), await started("taken"), await started("free")]

    async with play(app) as sandbox:
        await leaf.options(id="taken").start(1)
        await leaf.options(id="batch").start_batch([1])
        await leaf.options(unique="k", delay=60).start(1)
        run = await flow.start()
        await sandbox.advance(seconds=2)
        await replay(sandbox)
        *unknown, kept, keyed, unnamed, in_step, free = await run.result()
        assert [str(each).split(" existed is not kept")[0] for each in unknown] == [
            "whether run taken", "whether run taken", "whether run new", "whether batch batch",
        ]  # fmt: skip
        assert (kept, keyed, unnamed, in_step, free) == (False, True, True, True, False)
