"""Sync workflows and steps: threads, processes, and the same promises."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import current_run, sleep, step, wait_signal
from perdure.errors import RunCancelled, RunFailed, StepTimedOut

from . import jobs
from .conftest import Explore, Play
from .kit import ThreadGate, keys, new_app, replay

pytestmark = pytest.mark.anyio


@step
def double(n: int) -> int:
    return n * 2


@step
async def async_double(n: int) -> int:
    return n * 2


async def test_a_sync_workflow_does_all_that_an_async_one_does(play: Play, explore: Explore) -> None:
    app = new_app()

    @app.workflow
    def child(n: int) -> int:
        return double(n).wait()

    @app.workflow
    def flow() -> list[int]:
        first = double(1).wait()
        sleep(timedelta(days=1)).wait()
        second = async_double(first).wait()
        third = wait_signal("go", int).wait()
        run = child.start(5).wait()
        return [first, second, third, run.result().wait(), child.run(6).wait()]

    async with play(app) as sandbox:
        run = await flow.start()
        await run.signal("go", 7)
        await sandbox.advance(days=2)
        assert await run.result() == [2, 4, 7, 10, 12]
    (await explore(flow, signals=[("go", 7)])).check()


async def test_sync_code_does_not_run_in_the_thread_of_the_loop(play: Play) -> None:
    app, threads = new_app(), set[str]()

    @step
    def work() -> None:
        threads.add(threading.current_thread().name)

    @app.workflow
    def flow() -> None:
        threads.add(threading.current_thread().name)
        work().wait()

    async with play(app):
        await flow.run()
        assert len(threads) == 2
        assert threading.current_thread().name not in threads


async def test_context_variables_flow_into_threads(play: Play) -> None:
    app = new_app()
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant")

    @step
    def in_step() -> str:
        return f"{tenant.get()} {current_run().step}"

    @app.workflow
    async def flow() -> str:
        tenant.set("acme")
        return await in_step()

    @app.workflow
    def sync_flow() -> str:
        tenant.set("acme")
        return in_step().wait()

    async with play(app):
        assert await flow.run() == "acme in_step"
        assert await sync_flow.run() == "acme in_step"


async def test_twenty_sync_steps_run_at_once(play: Play) -> None:
    app, gate = new_app(), ThreadGate()

    @step
    def work(n: int) -> int:
        gate.pass_through()
        return n

    @app.workflow
    async def flow() -> int:
        return sum(await asyncio.gather(*(work(n) for n in range(20))))

    async with play(app):
        run = await flow.start()
        await gate.reached(20)
        gate.opened.set()
        assert await run.result() == sum(range(20))


async def test_sync_code_that_waits_for_sync_code_finds_a_thread(play: Play) -> None:
    app = new_app()

    @app.workflow
    def leaf(n: int) -> int:
        return double(n).wait()

    @app.workflow
    def flow() -> int:
        return sum(run.result().wait() for run in leaf.start_many(range(5)).wait())

    async with play(app, concurrency=2):
        runs = await flow.start_many([() for _ in range(4)])
        assert [await run.result() for run in runs] == [20] * 4


async def test_a_sync_step_that_a_crash_cut_off_runs_again(play: Play) -> None:
    app, gate, ran = new_app(), ThreadGate(), list[int]()

    @step
    def work() -> int:
        ran.append(current_run().step_attempt)
        if len(ran) == 1:
            gate.pass_through()
        return len(ran)

    @app.workflow
    def flow() -> int:
        return work().wait()

    async with play(app) as sandbox:
        run = await flow.start()
        await gate.reached()
        await replay(sandbox)
        assert await run.result() == 2
        gate.opened.set()
        assert ran == [1, 2]


async def test_a_sync_step_sees_its_timeout(play: Play) -> None:
    app, reached = new_app(), threading.Event()

    @step(timeout=60)
    def work() -> None:
        reached.set()
        pause = threading.Event()
        while not current_run().cancelling:
            pause.wait(0.001)

    @app.workflow
    async def flow() -> str:
        try:
            await work()
        except StepTimedOut:
            return "timed out"
        return "not"

    async with play(app) as sandbox:
        run = await flow.start()
        assert await asyncio.to_thread(reached.wait, 10)
        await sandbox.advance(60, settle=False)
        assert await run.result() == "timed out"


async def test_waiting_in_the_thread_of_the_loop_is_an_error(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> None:
        call = async_double(1)
        with pytest.raises(Exception, match="would block the event loop"):
            call.wait()
        await call

    async with play(app):
        await flow.run()


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes find the module of the jobs by the name that it has here."""
    monkeypatch.syspath_prepend(Path(jobs.__file__).parents[jobs.__name__.count(".")])


@pytest.mark.usefixtures("importable")
async def test_a_step_runs_in_a_process_of_its_own(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow(n: int) -> list[int]:
        return await jobs.where(n)

    async with play(app):
        number, process = await flow.run(3)
        assert number == 3
        assert process != os.getpid()


@pytest.mark.usefixtures("importable")
async def test_an_exception_comes_out_of_a_process_as_itself(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow(n: int) -> str:
        try:
            await jobs.refuse(n)
        except ValueError as error:
            return str(error)
        return "none"

    async with play(app):
        assert await flow.run(3) == "not 3"


@pytest.mark.usefixtures("importable")
async def test_a_step_in_a_process_that_exits_is_a_failure_as_well(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow(interrupted: bool) -> None:
        await jobs.leave(interrupted)

    async with play(app):
        for interrupted in (False, True):
            with pytest.raises(RunFailed) as failed:
                await flow.run(interrupted)
            said = "KeyboardInterrupt" if interrupted else "SystemExit: 3"
            assert failed.value.info.message == f"step leave failed with {said}"


async def gone(process: int) -> None:
    async with asyncio.timeout(10):
        while Path(f"/proc/{process}").exists():
            await asyncio.sleep(0.01)


async def written(path: Path) -> int:
    async with asyncio.timeout(30):
        while not (path.exists() and path.read_text()):
            await asyncio.sleep(0.01)
    return int(path.read_text())


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")
@pytest.mark.usefixtures("importable")
async def test_cancelling_kills_the_process_of_a_step(play: Play, tmp_path: Path) -> None:
    app, file = new_app(), tmp_path / "pid"

    @app.workflow
    async def flow(path: str) -> None:
        await jobs.hang(path)

    async with play(app):
        run = await flow.start(str(file))
        process = await written(file)
        await run.cancel("enough")
        with pytest.raises(RunCancelled, match="enough"):
            await run.result()
        await gone(process)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")
@pytest.mark.usefixtures("importable")
async def test_a_timeout_kills_the_process_of_a_step(play: Play, tmp_path: Path) -> None:
    app, file = new_app(), tmp_path / "pid"

    @app.workflow
    async def flow(path: str) -> None:
        await jobs.hang_for_a_while(path)

    async with play(app) as sandbox:
        run = await flow.start(str(file))
        process = await written(file)
        await sandbox.advance(60, settle=False)
        with pytest.raises(RunFailed, match="StepTimedOut"):
            await run.result()
        await gone(process)


async def test_a_step_in_a_process_must_be_found_there(play: Play) -> None:
    app = new_app()

    @step(process=True)
    def local() -> None: ...

    @app.workflow
    async def flow() -> None:
        await local()

    async with play(app):
        run = await flow.start()
        with pytest.raises(RunFailed, match="top level of a module"):
            await run.result()
        assert await keys(run) == ["local"]


@pytest.mark.usefixtures("importable")
async def test_a_step_in_a_process_without_the_extra_says_what_to_install(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = new_app()
    monkeypatch.setitem(sys.modules, "pebble", None)

    @app.workflow
    async def flow() -> None:
        await jobs.where(1)

    async with play(app):
        with pytest.raises(RunFailed, match=r"needs an extra: pip install 'perdure\[process\]'"):
            await flow.run()


async def test_steps_in_threads_of_the_users_own_need_the_context(play: Play) -> None:
    app = new_app()

    @step
    def double(n: int) -> int:
        return 2 * n

    @app.workflow
    def flow() -> list[int]:
        with ThreadPoolExecutor(2) as threads:
            plain = threads.submit(double, 1)
            kept = threads.submit(contextvars.copy_context().run, lambda: double(2).wait())
            return [plain.result(), kept.result()]  # pyright: ignore[reportReturnType]

    async with play(app):
        run = await flow.start()
        assert await run.result() == [2, 4]
        assert await keys(run) == ["double"]


async def test_a_call_of_sync_code_that_never_came_to_begin_leaves_no_trace(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker dies when the loop has taken the call from the thread, and has not begun it yet."""
    app, gate, handed_over, over = new_app(), ThreadGate(), threading.Event(), threading.Event()
    hand_over = asyncio.run_coroutine_threadsafe

    def handing_over(work: Any, loop: asyncio.AbstractEventLoop) -> Any:
        future = hand_over(work, loop)
        handed_over.set()
        return future

    @app.workflow
    def flow() -> None:
        gate.pass_through()
        try:
            sleep(1).wait()
        finally:
            over.set()

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", RuntimeWarning)
        async with play(app) as sandbox:
            await flow.start()
            await gate.reached()
            monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", handing_over)
            gate.opened.set()
            assert handed_over.wait(10)  # the loop stands still meanwhile
            asyncio.get_running_loop().call_soon(sandbox.worker.die)
            assert await asyncio.to_thread(over.wait, 10)
            await sandbox.kill_worker()
        gc.collect()
    assert [str(warning.message) for warning in warned] == []


@pytest.mark.parametrize("how", ["cancelled", "timed out"])
async def test_a_step_that_waits_for_a_thread_does_not_begin_when_it_is_over(play: Play, how: str) -> None:
    app, gate, ran, told = new_app(), ThreadGate(), list[int](), asyncio.Event()

    async def listen() -> None:
        try:
            await asyncio.sleep(0 if how == "timed out" else 600)
        finally:
            told.set()

    @step(timeout=None if how == "cancelled" else 60)
    def work(number: int) -> None:
        ran.append(number)
        gate.pass_through()

    @step
    def after() -> None:
        ran.append(9)

    @app.workflow
    async def flow() -> list[str]:
        outcomes = await asyncio.gather(work(0), work(1), listen(), return_exceptions=True)
        await after()
        return [type(each).__name__ for each in outcomes[:2]]

    async with play(app, concurrency=1) as sandbox:  # so there is one thread
        run = await flow.start()
        await gate.reached()
        if how == "cancelled":
            await run.cancel()
            await told.wait()
            gate.opened.set()
            with pytest.raises(RunCancelled):
                await run.result(timeout=20)
            assert ran == [0]
        else:
            await sandbox.advance(minutes=2, settle=False)
            for _ in range(20):  # turns in which the alarms reach both calls
                await asyncio.sleep(0)
            gate.opened.set()
            assert await run.result(timeout=20) == ["StepTimedOut", "StepTimedOut"]
            assert ran == [0, 9]


async def test_a_step_that_waited_for_a_thread_begins_with_a_lease_that_is_certain(play: Play) -> None:
    app, gate, did = new_app(), ThreadGate(), list[str]()

    class Lease:
        """One that ends, as far as its owner knows, while a step runs in the only thread, and is asked for anew."""

        certain = True

        def stop(self) -> None: ...

        async def hold(self) -> None:
            if not self.certain:
                did.append("asked")
                self.certain = True

    lease = Lease()

    @step
    def one() -> None:
        gate.pass_through()
        lease.certain = False
        did.append("one")

    @step
    def two() -> None:
        did.append("two")

    @app.workflow
    async def flow() -> None:
        await asyncio.gather(one(), two())

    async with play(app, concurrency=1) as sandbox:
        real = sandbox.worker.runtime.lease
        sandbox.worker.runtime.lease = lease  # pyright: ignore[reportAttributeAccessIssue]
        run = await flow.start()
        await gate.reached()
        gate.opened.set()
        await run.result(timeout=20)
        sandbox.worker.runtime.lease = real
        assert did == ["one", "asked", "two"]


class ShortLease:
    """Is certain until a test says otherwise, or else for as long as is in `left`, one after the other."""

    def __init__(self, *left: int) -> None:
        self.certain = True
        self.asked = 0
        self.lefts = list(left)

    @property
    def left(self) -> int:
        return self.lefts.pop(0) if self.lefts else 60_000

    def stop(self) -> None: ...

    async def hold(self) -> None:
        if not self.certain:
            self.asked += 1
            self.certain = True


@pytest.mark.usefixtures("importable")
async def test_a_step_that_waited_for_a_process_begins_with_a_lease_that_is_certain(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    app, file, lease = new_app(), tmp_path / "begun", ShortLease()

    @app.workflow
    async def flow() -> None:
        await asyncio.gather(jobs.meet(str(file)), jobs.where(2), jobs.where(3))

    async with play(app) as sandbox:
        real = sandbox.worker.runtime.lease
        sandbox.worker.runtime.lease = lease  # pyright: ignore[reportAttributeAccessIssue]
        run = await flow.start()
        async with asyncio.timeout(30):
            while not file.exists():
                await asyncio.sleep(0.01)
        lease.certain = False
        file.unlink()
        await run.result(timeout=30)
        sandbox.worker.runtime.lease = real
        assert lease.asked == 1


@pytest.mark.usefixtures("importable")
async def test_a_step_that_comes_to_its_process_when_the_lease_is_over_begins_when_it_is_renewed(play: Play) -> None:
    app, lease = new_app(), ShortLease(-1, -1, 60_000)

    @app.workflow
    async def flow() -> list[int]:
        return await jobs.where(2)

    async with play(app) as sandbox:
        real = sandbox.worker.runtime.lease
        sandbox.worker.runtime.lease = lease  # pyright: ignore[reportAttributeAccessIssue]
        assert (await flow.run())[0] == 2
        sandbox.worker.runtime.lease = real
        assert lease.lefts == []
