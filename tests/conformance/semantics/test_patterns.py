"""What people build of steps and waits, with a crash at each point of it."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from perdure import Retry, sleep, step, wait_signal

from .conftest import Explore
from .kit import new_app

pytestmark = pytest.mark.anyio


@step
async def add(a: int, b: int) -> int:
    return a + b


@step
def double(n: int) -> int:
    return n * 2


@step(retry=Retry(attempts=6, delay=1))
async def both(n: int) -> int:
    one, two = await asyncio.gather(add(n, 1), double(n))
    await sleep(60)
    return one + two


async def test_helpers_behind_a_semaphore(explore: Explore) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> list[int]:
        two_at_once = asyncio.Semaphore(2)

        async def helper(n: int) -> int:
            async with two_at_once:
                one = await add(n, 1)
                await sleep(timedelta(hours=n))
                return await double(one)

        return [*await asyncio.gather(*(helper(n) for n in range(5)))]

    (await explore(flow)).check()


async def test_consumers_of_a_queue(explore: Explore) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> list[int]:
        queue: asyncio.Queue[int | None] = asyncio.Queue()
        done: list[int] = []

        async def consume() -> None:
            while (n := await queue.get()) is not None:
                done.append(await add(n, 1))

        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(consume())
            for n in [*range(7), None, None, None]:
                queue.put_nowait(n)
        return sorted(done)  # what ends first among those that run at once is not promised

    (await explore(flow)).check()


async def test_a_race_of_waits(explore: Explore) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> list[str]:
        async def quick() -> str:
            return f"quick {await add(1, 1)}"

        async def timer() -> str:
            await sleep(10)
            return "timer"

        async def signal() -> str:
            return f"signal {await wait_signal('go', int, timeout=5)}"

        async def in_vain() -> str:
            try:
                return await wait_signal("never", str, timeout=5)
            except TimeoutError:
                return "in vain"

        tasks = [asyncio.ensure_future(one) for one in (quick(), timer(), signal(), in_vain())]
        order: list[str] = []
        for first in asyncio.as_completed(tasks):
            order.append(await first)
            await add(len(order), 0)
        return order

    report = await explore(flow, signals=[("go", 3)])
    report.check()
    assert report.undisturbed == "succeeded with ['quick 2', 'signal 3', 'in vain', 'timer']"


async def test_groups_in_groups_with_children_of_both_kinds(explore: Explore) -> None:
    app = new_app()

    @app.workflow
    async def child(n: int) -> int:
        await sleep(n)
        return await add(n, 1)

    @app.workflow
    def sync_child(n: int) -> int:
        sleep(n).wait()
        return double(n).wait()

    @app.workflow
    async def flow() -> int:
        async def group(n: int) -> int:
            async with asyncio.TaskGroup() as tasks:
                two = [tasks.create_task(both(n + more)) for more in range(2)]
            return sum(task.result() for task in two)

        return sum(await asyncio.gather(group(1), group(5), child.run(3), sync_child.run(2)))

    (await explore(flow)).check()


async def test_a_saga_that_undoes_what_was_done(explore: Explore) -> None:
    app = new_app()

    @step
    async def undo(n: int) -> str:
        return f"undid {n}"

    @app.workflow
    async def flow() -> list[str]:
        done: list[int] = []
        try:
            done.append(await add(1, 1))
            done.append(await both(2))
            raise ValueError("sold out")
        except ValueError:
            return [await undo(n) for n in reversed(done)]

    (await explore(flow)).check()


async def test_the_first_of_many_children(explore: Explore) -> None:
    app = new_app()

    @app.workflow
    async def child(n: int) -> int:
        await sleep(n)
        return n

    @app.workflow
    async def flow() -> list[int]:
        runs = await child.start_many([3, 1, 2])
        left = {asyncio.ensure_future(run.result()) for run in runs}
        order: list[int] = []
        while left:
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            order += [task.result() for task in done]
            await add(len(order), 0)
        return order

    (await explore(flow)).check()


async def test_a_step_that_the_workflow_gives_up_on(explore: Explore) -> None:
    app = new_app()

    @step
    async def slow() -> str:
        await sleep(timedelta(hours=1))
        return "slow"

    @app.workflow
    async def flow() -> str:
        task = asyncio.ensure_future(slow())
        timer = asyncio.ensure_future(sleep(60))
        await asyncio.wait({task, timer}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
        await add(1, 1)
        return "gave up" if task.cancelled() else task.result()

    report = await explore(flow)
    report.check()
    assert report.undisturbed == "succeeded with 'gave up'"
