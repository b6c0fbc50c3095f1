"""A run is put away when nothing of it can go on by itself, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

import pytest

from perdure import current_run, step, wait_signal
from perdure.errors import RunFailed, RunNotFound
from perdure.run import Run

from .conftest import Play
from .kit import Gate, new_app, state

pytestmark = pytest.mark.anyio


@step
async def number(n: int) -> int:
    return n


async def nested(depth: int, n: int) -> int:
    if depth == 0:
        return await number(n)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(nested(depth - 1, n))
    return task.result()


async def turns(count: int, n: int) -> int:
    for _ in range(count):
        await asyncio.sleep(0)
    return await number(n)


async def queued(_: int, n: int) -> int:
    queue: asyncio.Queue[int] = asyncio.Queue()
    lock = asyncio.Lock()

    async def put() -> None:
        async with lock:
            await queue.put(await number(n))

    task = asyncio.create_task(put())
    async with lock:
        await asyncio.sleep(0)
    value = await queue.get()
    await task
    return value


async def slept(_: int, n: int) -> int:
    await asyncio.sleep(0.02)
    return await number(n)


@pytest.mark.parametrize(
    ("way", "much"),
    [(nested, 2), (nested, 6), (turns, 100), (queued, 0), (slept, 0)],
    ids=["groups-2", "groups-6", "turns", "queue", "timer"],
)
async def test_plumbing_between_two_steps_goes_on_beside_a_wait(
    play: Play, way: Callable[[int, int], Awaitable[int]], much: int
) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> int:
        async def work() -> int:
            return await way(much, 1) + await way(much, 2)

        waiting = asyncio.create_task(_signal())
        working = asyncio.create_task(work())
        done, _ = await asyncio.wait([working, waiting], return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()

    async def _signal() -> int:
        return await wait_signal("stop", int)

    async with play(app):
        run = await flow.start()
        assert await run.result(timeout=20) == 3


async def test_a_run_whose_tasks_wait_for_each_other_and_a_signal_is_put_away(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> int:
        lock, queue = asyncio.Lock(), asyncio.Queue[int]()

        async def first() -> None:
            async with lock:
                await queue.put(await wait_signal("go", int))

        async def second() -> int:
            async with lock:
                return await queue.get()

        async with asyncio.TaskGroup() as group:
            group.create_task(first())
            task = group.create_task(second())
        return task.result()

    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.settle()
        assert await state(run) == "waiting"
        await run.signal("go", 7)
        assert await run.result(timeout=20) == 7


async def _text() -> str:
    return await wait_signal("text", str)


async def _in_wait_for() -> str:
    return await asyncio.wait_for(asyncio.create_task(_text()), 0.05)


async def _in_timeout() -> str:
    async with asyncio.timeout(0.05):
        return await _text()


async def _in_timeout_set_later() -> str:
    async with asyncio.timeout(None) as limit:
        limit.reschedule(asyncio.get_running_loop().time() + 0.05)
        return await _text()


async def _in_group_in_timeout() -> str:
    async with asyncio.timeout(0.05), asyncio.TaskGroup() as group:
        task = group.create_task(_text())
    return task.result()


async def _in_as_completed() -> str:
    for first in asyncio.as_completed([_text()], timeout=0.05):
        return await first
    return "nothing"


async def _in_wait() -> str:
    _, pending = await asyncio.wait([asyncio.create_task(_text())], timeout=0.05)
    if pending:
        raise TimeoutError
    return "nothing"


@pytest.mark.parametrize(
    "limited", [_in_wait_for, _in_timeout, _in_timeout_set_later, _in_group_in_timeout, _in_as_completed, _in_wait]
)
async def test_a_time_limit_of_asyncio_around_a_wait_works_in_memory(
    play: Play, limited: Callable[[], Coroutine[None, None, str]]
) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> str:
        try:
            return await limited()
        except TimeoutError:
            return "too late"

    async with play(app):
        assert await (await flow.start()).result(timeout=20) == "too late"


async def test_a_run_is_put_away_within_a_time_limit_that_is_not_set(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> str:
        async with asyncio.timeout(None):
            return await _text()

    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.settle()
        assert await state(run) == "waiting"
        await run.signal("text", "here")
        assert await run.result(timeout=20) == "here"


async def test_a_workflow_that_cancels_itself_fails_once(play: Play) -> None:
    app = new_app()
    begun: list[int] = []

    @app.workflow
    async def flow() -> None:
        begun.append(current_run().attempt)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await number(1)

    async with play(app):
        with pytest.raises(RunFailed, match="CancelledError"):
            await (await flow.start()).result(timeout=20)
    assert begun == [1]


async def test_waiting_for_a_run_that_does_not_exist_fails(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> None:
        try:
            await app.run("nobody").result()
        except RunNotFound:
            return

    async with play(app):
        await (await flow.start()).result(timeout=20)


async def _child_in_time(child: Run[str]) -> str:
    async with asyncio.timeout(600):
        return await child.result()


async def _child_waited_for(child: Run[str]) -> str:
    return await asyncio.wait_for(child.result(), 600)


async def _child_in_done(child: Run[str]) -> str:
    done, _ = await asyncio.wait([asyncio.ensure_future(child.result())], timeout=600)
    return done.pop().result()


@pytest.mark.parametrize("limited", [_child_in_time, _child_waited_for, _child_in_done])
async def test_a_run_that_waits_within_a_time_limit_leaves_its_slot_to_others(
    play: Play, limited: Callable[[Run[str]], Coroutine[None, None, str]]
) -> None:
    app = new_app()

    @app.workflow
    async def child() -> str:
        return "done"

    @app.workflow
    async def parent() -> str:
        return await limited(await child.start())

    async with play(app, concurrency=1):
        parents = [await parent.start() for _ in range(3)]
        assert [await run.result(timeout=20) for run in parents] == ["done"] * 3


async def test_a_run_that_left_its_slot_takes_one_before_its_next_step(play: Play) -> None:
    app, gate, ran = new_app(), Gate(), list[str]()

    @step
    async def hold() -> None:
        await gate.pass_through()
        ran.append("hold")

    @step
    async def after() -> None:
        ran.append("after")

    @app.workflow
    async def other() -> None:
        await hold()

    @app.workflow
    async def flow() -> None:
        async with asyncio.timeout(600):
            await wait_signal("go")
        seen.set()
        await asyncio.gather(after(), after())

    seen = asyncio.Event()
    async with play(app, concurrency=1):
        run = await flow.start()
        holds = await other.start()
        await gate.reached()  # it has the slot
        await run.signal("go")
        await seen.wait()
        for _ in range(50):
            await asyncio.sleep(0)
        assert ran == []
        gate.open()
        await run.result(timeout=20)
        await holds.result(timeout=20)
        assert ran == ["hold", "after", "after"]


async def test_a_run_is_put_away_though_what_it_waits_for_is_shielded(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> str:
        return await asyncio.shield(asyncio.create_task(_text()))

    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.settle()
        assert await state(run) == "waiting"
        await run.signal("text", "here")
        assert await run.result(timeout=20) == "here"
