"""`Call`: done when awaited or waited for, once, and never by itself."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import warnings
from collections.abc import Coroutine
from typing import Any

import pytest

from perdure.call import Call, Portal
from perdure.errors import PerdureError

pytestmark = pytest.mark.anyio


def call(value: int = 7, *, error: BaseException | None = None) -> Call[int]:
    async def work() -> int:
        await asyncio.sleep(0)
        if error is not None:
            raise error
        return value

    return Call(work, "it")


async def test_awaiting_it_gives_its_value() -> None:
    assert await call() == 7


def test_waiting_for_it_gives_the_same_without_an_event_loop() -> None:
    assert call().wait() == 7


@pytest.mark.parametrize("error", [ValueError("no"), KeyError("k")])
async def test_errors_come_out_as_they_are(error: Exception) -> None:
    with pytest.raises(type(error)):
        await call(error=error)
    with pytest.raises(type(error)):
        await asyncio.to_thread(lambda: call(error=error).wait())


async def test_it_is_a_coroutine_for_everything_that_takes_one() -> None:
    assert await asyncio.gather(call(1), call(2)) == [1, 2]
    assert await asyncio.wait_for(call(3), 10) == 3
    assert await asyncio.create_task(call(4)) == 4
    async with asyncio.TaskGroup() as group:
        task = group.create_task(call(5))
    assert task.result() == 5
    done, _ = await asyncio.wait([asyncio.ensure_future(call(6))])
    assert done.pop().result() == 6


async def test_an_error_in_a_task_group_is_the_group_s() -> None:
    async def together() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(call(error=ValueError("no")))
            group.create_task(call(1))

    with pytest.raises(ExceptionGroup) as caught:
        await together()
    assert isinstance(caught.value.exceptions[0], ValueError)


async def test_a_task_made_of_it_can_be_cancelled_before_and_after_it_began() -> None:
    begun = asyncio.Event()

    async def for_ever() -> int:
        begun.set()
        await asyncio.Event().wait()
        return 1

    early = asyncio.create_task(Call(for_ever, "early"))
    early.cancel()
    late = asyncio.create_task(Call(for_ever, "late"))
    await begun.wait()
    late.cancel()
    outcomes = await asyncio.gather(early, late, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError] * 2


async def test_it_is_done_once() -> None:
    once = call()
    assert await once == 7
    with pytest.raises(PerdureError, match="it: awaited twice"):
        await once


async def test_waiting_in_an_event_loop_is_refused_and_can_still_be_awaited() -> None:
    here = call()
    with pytest.raises(PerdureError, match="would block the event loop"):
        here.wait()
    assert await here == 7


def test_what_is_never_awaited_says_so() -> None:
    def forget() -> None:
        call()
        gc.collect()

    with pytest.warns(RuntimeWarning, match="it was never awaited, so it did not happen"):
        forget()


def test_what_is_closed_is_not_complained_about() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        closed = call()
        closed.close()
        del closed
        gc.collect()


def test_nothing_happens_before_it_is_awaited() -> None:
    made: list[int] = []

    def make() -> Coroutine[Any, Any, None]:
        made.append(1)
        return asyncio.sleep(0)

    here = Call(make, "it")
    assert made == []
    here.wait()
    assert made == [1]


def test_many_threads_wait_at_once() -> None:
    results: list[int] = []
    threads = [threading.Thread(target=lambda n=n: results.append(call(n).wait())) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(results) == list(range(20))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_after_a_fork_the_child_has_a_loop_of_its_own() -> None:
    portal = Portal()

    async def pid() -> int:
        return os.getpid()

    assert portal.drive(pid()) == os.getpid()
    child = os.fork()
    if child == 0:
        os._exit(0 if portal.drive(pid()) == os.getpid() else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
