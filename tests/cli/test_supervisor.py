"""Several worker processes: restarted when they die, their runs handed back at once, none left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from perdure import App, State
from perdure.engine.supervisor import MARGIN, Child, bury, how_it_ended, pause_after
from perdure.stores import open_store
from perdure.stores.base import Registration

from .kit import QUITS, Perdure, alive, locked, pids, start, until

HOUR = ["--lease", "3600"]
"""So that nothing goes on because a lease ended."""


def test_the_runs_of_a_killed_process_go_on_in_another_one_at_once(app: App, shop: Path) -> None:
    with Perdure(shop, "worker", "shop:app", "--processes", "2", *HOUR) as workers:
        workers.says("serving as", times=2)
        start(app, "hold", "a", id="a")
        (first,) = until(lambda: pids(shop, "a"), "the run")
        os.kill(first, signal.SIGKILL)
        (second,) = until(lambda: [pid for pid in pids(shop, "a") if pid != first], "the run in another process")
        (shop / "a.go").touch()
        assert app.run("a").result(timeout=30).wait() == second
        workers.says("was ended by SIGKILL")
        workers.says("handed back 1 of its runs")
        workers.says("serving as", times=3)
    assert app.run("a").status().wait().record.crashes == 1


def test_a_process_that_dies_again_and_again_is_started_again_and_again(app: App, shop: Path) -> None:
    with Perdure(shop, "worker", "shop:app", "--processes", "2", *HOUR) as workers:
        dead: set[int] = set()
        for count in range(2, 6):
            workers.says("serving as", times=count)
            serving = [line.split("[")[1].split("]")[0] for line in workers.lines if "serving as" in line]
            pid = next(int(each) for each in serving if int(each) not in dead)
            dead.add(pid)
            os.kill(pid, signal.SIGKILL)
        workers.says("serving as", times=6)
        start(app, "sell", "apple", id="one")
        assert app.run("one").result(timeout=30).wait() == 500


def test_the_runs_of_a_process_that_ends_by_itself_go_on_at_once(shop: Path) -> None:
    (shop / "quits.py").write_text(QUITS)
    with Perdure(shop, "worker", "quits", "--processes", "2", *HOUR) as workers:
        workers.says("serving as", times=2)
        with Perdure(shop, "start", "quits", "quit", "--wait") as run:
            assert run.ended() == 0
        workers.says("ended with exit code 0")
        workers.says("handed back 1 of its runs")


def test_a_stop_does_not_wait_for_a_store_that_is_locked(app: App, shop: Path) -> None:
    with Perdure(shop, "worker", "shop:app", "--processes", "2", "--grace", "0.5", *HOUR) as workers:
        workers.says("serving as", times=2)
        start(app, "hold", "a", id="a")
        until(lambda: pids(shop, "a"), "the run")
        with locked(shop / "shop.db"):
            began = time.monotonic()
            workers.signal(signal.SIGTERM)
            assert workers.ended() == 0
            assert time.monotonic() - began < 0.5 + MARGIN + 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_lets_the_runs_of_all_processes_end(app: App, shop: Path, number: signal.Signals) -> None:
    with Perdure(shop, "worker", "shop:app", "--processes", "2", *HOUR) as workers:
        workers.says("serving as", times=2)
        start(app, "hold", "a", id="a")
        (child,) = until(lambda: pids(shop, "a"), "the run")
        workers.signal(number)
        workers.says("stopping", times=2)
        (shop / "a.go").touch()
        assert workers.ended() == 0
        assert not alive(child)
    assert app.run("a").result(timeout=30).wait() == child


def test_a_second_signal_reaches_the_processes(app: App, shop: Path) -> None:
    with Perdure(shop, "worker", "shop:app", "--processes", "2", "--grace", "3600", *HOUR) as workers:
        workers.says("serving as", times=2)
        start(app, "hold", "a", id="a")
        until(lambda: pids(shop, "a"), "the run")
        workers.signal(signal.SIGTERM)
        workers.says("stopping", times=2)
        workers.signal(signal.SIGTERM)
        assert workers.ended() == 0
    status = app.run("a").status().wait()
    assert (status.state, status.record.crashes) == (State.QUEUED, 0)


def test_a_process_that_does_not_stop_is_killed_and_its_runs_are_handed_back(app: App, shop: Path) -> None:
    with Perdure(shop, "worker", "shop:app", "--processes", "2", "--grace", "0.1", *HOUR) as workers:
        workers.says("serving as", times=2)
        start(app, "block", "b", id="b")
        (child,) = until(lambda: pids(shop, "b"), "the run")
        workers.signal(signal.SIGTERM)
        assert workers.ended() == 0
        workers.says("does not end; it is killed")
        assert not alive(child)
    assert app.run("b").status().wait().state is State.QUEUED


def test_no_process_outlives_its_parent(app: App, shop: Path) -> None:
    with Perdure(shop, "worker", "shop:app", "--processes", "2", *HOUR) as workers:
        workers.says("serving as", times=2)
        start(app, "hold", "a", id="a")
        (child,) = until(lambda: pids(shop, "a"), "the run")
        workers.signal(signal.SIGKILL)
        workers.says("stopping", times=2)
        assert alive(child), "it stops gracefully"
        (shop / "a.go").touch()
        until(lambda: not alive(child), "the end of the process")
    assert app.run("a").result(timeout=30).wait() == child


def test_what_steps_start_does_not_read_the_lifeline(shop: Path) -> None:
    (shop / "reader.py").write_text(
        "import subprocess, sys\nfrom perdure import App\napp = App('sqlite:///reader.db')\n"
        "@app.workflow\ndef read() -> str:\n"
        "    return subprocess.run([sys.executable, '-c', 'import sys; print(repr(sys.stdin.read()))'],"
        " capture_output=True, text=True).stdout\n"
    )
    with (
        Perdure(shop, "worker", "reader", "--processes", "2"),
        Perdure(shop, "start", "reader", "read", "--wait") as run,
    ):
        run.says(r"''\n")


# --- its parts


def test_all_incarnations_of_a_name_are_buried(tmp_path: Path) -> None:
    async def buried() -> list[str]:
        store = open_store(f"sqlite:///{tmp_path}/s.db")
        await store.open()
        for name in ("one", "one.2", "one.3", "one-more", "two.2"):
            await store.register(
                Registration(name=name, host="h", pid=1, queues=["q"], workflows=["w"], concurrency=1, lease=3_600_000)
            )
        await bury(store, "one")
        left = [worker.name for worker in await store.workers()]
        await store.close()
        return left

    assert sorted(asyncio.run(buried())) == ["one-more", "two.2"]


def test_pauses_grow_from_nothing_to_a_limit() -> None:
    assert [pause_after(deaths) for deaths in range(5)] == [0, 0, 0.25, 0.5, 1]
    assert pause_after(1_000_000) == 30


@pytest.mark.parametrize(
    ("code", "says"), [(3, "ended with exit code 3"), (-9, "was ended by SIGKILL"), (-99, "was ended by signal 99")]
)
def test_an_exit_code_in_words(code: int, says: str) -> None:
    assert how_it_ended(code) == says


def test_a_child_ends_when_its_lifeline_does() -> None:
    async def code() -> int:
        child = await Child.spawn("c", [sys.executable, "-c", "import sys; sys.stdin.read(); sys.exit(7)"])
        return await child.end(30, asyncio.Event())

    assert asyncio.run(code()) == 7
