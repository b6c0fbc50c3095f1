"""Starting runs: once per id, later, many at a time, again as new; and what a run knows of itself."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import App, current_run, sleep, step, wait_signal
from perdure.errors import IdConflict, InvalidInput, NotInWorkflow, RunFailed, UnknownWorkflow

from .conftest import Explore, Play
from .kit import Gate, keys, new_app, replay, state

pytestmark = pytest.mark.anyio


async def test_fifty_starts_of_one_id_are_one_run(play: Play) -> None:
    app, ran = new_app(), list[int]()

    @app.workflow
    async def flow(n: int) -> int:
        ran.append(n)
        return n

    async with play(app) as sandbox:
        runs = await asyncio.gather(*(flow.options(id="order-7").start(7) for _ in range(50)))
        assert {run.id for run in runs} == {"order-7"}
        assert sorted(run.existed for run in runs) == [False] + [True] * 49
        assert await asyncio.gather(*(run.result() for run in runs)) == [7] * 50
        again = await flow.options(id="order-7").start(7)
        assert (again.existed, await again.result()) == (True, 7)
        await sandbox.settle()
        assert ran == [7]


async def test_an_id_with_another_input_is_refused(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow(n: int) -> int:
        return n

    @app.workflow
    async def other(n: int) -> int:
        return -n

    async with play(app):
        run = await flow.options(id="order-7").start(7)
        with pytest.raises(IdConflict, match="'order-7' exists with another workflow or input"):
            await flow.options(id="order-7").start(8)
        with pytest.raises(IdConflict):
            await other.options(id="order-7").start(7)
        assert await run.result() == 7


async def test_thousands_start_in_one_call_and_in_order(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow(n: int) -> int:
        return n * 2

    @app.workflow
    async def pair(a: int, b: str = "x") -> str:
        return f"{a}{b}"

    async with play(app) as sandbox:
        runs = await flow.start_many(range(2500))
        pairs = await pair.start_many([(1, "y"), (2,)])
        await sandbox.settle()
        assert [await run.result() for run in runs[::100]] == [n * 2 for n in range(0, 2500, 100)]
        assert [await run.result() for run in pairs] == ["1y", "2x"]


async def test_none_of_many_is_started_when_one_does_not_fit(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow(n: int) -> int:
        return n

    async with play(app):
        with pytest.raises(InvalidInput) as refused:
            await flow.start_many([1, 2, "three", 4])  # type: ignore[list-item]
        assert "at item 2 of start_many; no run was started" in refused.value.__notes__
        assert await app.runs() == []


async def test_many_starts_with_ids_are_made_once(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow(n: int) -> int:
        return n

    async with play(app):
        first = await flow.start_many([1, 2], ids=["one", "two"])
        again = await flow.start_many([1, 2, 3], ids=(f"{name}" for name in ("one", "two", "three")))
        assert [run.id for run in again] == ["one", "two", "three"]
        assert [run.existed for run in first + again] == [False, False, True, True, False]
        assert [await run.result() for run in again] == [1, 2, 3]
        with pytest.raises(IdConflict):
            await flow.start_many([1, 7], ids=["one", "two"])


async def test_children_that_are_started_together_may_have_ids(explore: Explore) -> None:
    app = new_app()

    @app.workflow
    async def child(n: int) -> int:
        return n

    @app.workflow
    async def flow() -> list[tuple[str, int]]:
        runs = await child.start_many([1, 2], ids=["one", "two"])
        return [(run.id, await run.result()) for run in runs]

    report = await explore(flow)
    report.check()
    assert report.undisturbed == "succeeded with [('one', 1), ('two', 2)]"


async def test_a_start_may_be_put_off(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> str:
        return "ran"

    async with play(app) as sandbox:
        at = sandbox.clock.time + timedelta(days=1)
        runs = [await flow.options(delay=timedelta(days=1)).start(), await flow.options(at=at).start()]
        await sandbox.advance(hours=23)
        assert [await state(run) for run in runs] == ["scheduled"] * 2
        await sandbox.advance(hours=1)
        assert [await run.result() for run in runs] == ["ran"] * 2


async def test_lower_priorities_come_first_and_then_the_order_of_starting(play: Play) -> None:
    app, order = new_app(), list[str]()

    @app.workflow
    async def flow(name: str) -> None:
        order.append(name)

    async with play(app, concurrency=1) as sandbox:
        await sandbox.kill_worker()
        for name, priority in [("c", 0), ("a", -1), ("d", 0), ("e", 5), ("b", -1)]:
            await flow.options(priority=priority).start(name)
        await sandbox.start_worker()
        await sandbox.settle()
        assert order == ["a", "b", "c", "d", "e"]


async def test_a_worker_serves_its_queues_alone(play: Play) -> None:
    app = new_app()

    @app.workflow(queue="mail")
    async def flow() -> str:
        return "sent"

    async with play(app) as sandbox:
        run, elsewhere = await flow.start(), await flow.options(queue="slow").start()
        assert await run.result() == "sent"
        await sandbox.settle()
        assert await state(elsewhere) == "queued"
        async with app.worker(queues=["slow"]):
            assert await elsewhere.result() == "sent"


async def test_a_worker_serves_all_queues_that_the_app_declares(play: Play) -> None:
    app = new_app(queues=["mail", "night"])

    @app.workflow(queue="mail")
    async def flow() -> str:
        return "sent"

    async with play(app):
        for start in (flow, flow.options(queue="night"), flow.options(queue="default")):
            assert await start.run() == "sent"


async def test_a_run_on_a_queue_that_nobody_serves_says_which_one_was_meant(play: Play) -> None:
    app = new_app()

    @app.workflow(queue="mail")
    async def flow() -> None: ...

    async with play(app):
        run = await flow.options(queue="mial").start()
        assert "no live worker serves queue mial (did you mean 'mail'?)" in await run.why()


async def test_continue_as_new_keeps_the_id_and_drops_the_history(play: Play) -> None:
    app = new_app()

    @step
    async def poll(n: int) -> int:
        return n + 1

    @app.workflow
    async def poller(n: int) -> int:
        n = await poll(n)
        await sleep(60)
        if n < 4:
            poller.continue_as_new(n)
        return n

    async with play(app) as sandbox:
        run = await poller.start(0)
        await sandbox.advance(minutes=10)
        assert await run.result() == 4
        assert await keys(run) == ["poll", "sleep"]
        assert (await run.status()).attempt == 1


async def test_continue_as_new_survives_a_crash_at_any_point(explore: Explore) -> None:
    app = new_app()

    @step
    async def poll(n: int) -> int:
        return n + 1

    @app.workflow
    async def poller(n: int) -> int:
        n = await poll(n)
        await sleep(60)
        if n < 3:
            poller.continue_as_new(n)
        return n

    (await explore(poller, 0)).check()


async def test_a_task_of_a_group_may_continue_the_run_as_new(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow(n: int, fails: bool = False) -> int:
        async def go_on() -> None:
            flow.continue_as_new(n + 1)

        async def fail() -> None:
            raise ValueError("other")

        if n == 2:
            return n
        async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as inner:
            inner.create_task(go_on())
            outer.create_task(sleep_long())
            if fails:
                inner.create_task(fail())
        return -1

    async def sleep_long() -> None:
        await sleep(60)

    async with play(app):
        assert await flow.run(0) == 2
        with pytest.raises(RunFailed, match="ExceptionGroup") as failed:
            await flow.run(0, fails=True)
        assert "ValueError: other" in str(failed.value)


async def test_signals_that_wait_are_kept_when_a_run_continues_as_new(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow(seen: list[int]) -> list[int]:
        seen.append(await wait_signal("n", int))
        if len(seen) < 3:
            flow.continue_as_new(seen)
        return seen

    async with play(app):
        run = await flow.start([])
        for n in range(3):
            await run.signal("n", n)
        assert await run.result() == [0, 1, 2]


async def test_continue_as_new_belongs_into_the_workflow_itself(play: Play) -> None:
    app = new_app()

    @step
    async def wrong() -> None:
        flow.continue_as_new()

    @app.workflow
    async def flow() -> None:
        await wrong()

    async with play(app):
        with pytest.raises(RunFailed, match="not in a step"):
            await flow.run()
    with pytest.raises(NotInWorkflow):
        flow.continue_as_new()


async def test_a_run_knows_itself(play: Play) -> None:
    app, gate = new_app(), Gate()

    def me() -> list[object]:
        run = current_run()
        return [run.id, run.workflow, run.attempt, run.step, run.step_attempt, run.cancelling]

    @step
    async def in_step() -> list[object]:
        await gate.pass_through()
        return me()

    @step
    def in_thread() -> list[object]:
        return me()

    @app.workflow
    async def flow() -> list[list[object]]:
        return [me(), await in_step(), await in_thread()]

    async with play(app) as sandbox:
        run = await flow.options(id="me").start()
        await gate.reached()
        await replay(sandbox)
        gate.open()
        assert await run.result() == [
            ["me", "flow", 2, None, 0, False],
            ["me", "flow", 2, "in_step", 2, False],
            ["me", "flow", 2, "in_thread", 1, False],
        ]


async def test_a_runs_logger_says_whose_lines_they_are(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> None:
        current_run().logger.warning("charging")

    async with play(app):
        run = await flow.start()
        await run.result()
    [line] = [record for record in caplog.records if record.message == "charging"]
    assert (line.__dict__["run"], line.__dict__["attempt"]) == (run.id, 1)


async def test_runs_are_listed_and_found(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow(n: int) -> int:
        return n

    async with play(app) as sandbox:
        runs = await flow.start_many(range(5))
        await sandbox.settle()
        await flow.options(delay=60).start(6)
        page = await app.runs(state="succeeded", limit=3)
        rest = await app.runs(state="succeeded", after=page[-1])
        assert [status.id for status in page + rest] == [run.id for run in reversed(runs)]
        assert {(count.workflow, count.state): count.runs for count in await app.counts()} == {
            ("flow", "succeeded"): 5,
            ("flow", "scheduled"): 1,
        }
        assert await flow.get(runs[3].id).result() == 3


def test_starts_that_cannot_be_are_refused() -> None:
    app = new_app()

    @app.workflow
    async def flow(n: int) -> int:
        return n

    untyped: Any = flow
    wrong = [
        lambda: flow.options(delay=-1),
        lambda: flow.options(at=datetime(2031, 1, 1)),
        lambda: flow.options(delay=1, at=datetime(2031, 1, 1, tzinfo=UTC)),
        lambda: flow.options(id=""),
        lambda: flow.options(queue="a,b"),
        lambda: flow.options(priority=2**40),
        untyped.start,
        lambda: untyped.start(1, 2),
        lambda: untyped.start("one"),
        lambda: untyped.start(m=1),
        lambda: flow.options(timeout=0),
        lambda: flow.options(id="a").start_many([1]),
        lambda: flow.start_many([1, 2], ids=["a"]),
        lambda: flow.start_many([1, 2], ids="ab"),
        lambda: flow.start_many([1], ids=[""]),
        lambda: flow.start_many([1], ids=5),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: App("sqlite://", queues=5),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: app.worker(queues=5),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: app.worker(name=5),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: app.worker(name="\0"),
        lambda: app.worker(sessions=True),
        lambda: app.run("one").cancel(untyped),
        lambda: app.run("one").cancel("x" * 1001),
    ]
    for call in wrong:
        with pytest.raises(InvalidInput):
            call()
    with pytest.raises(UnknownWorkflow, match="did you mean 'flow'"):
        app.find("flwo")
