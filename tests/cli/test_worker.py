"""`perdure worker` as a process: serving, stopping, and what can be wrong from the start."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from perdure import App, State
from perdure.engine.supervisor import MARGIN

from .conftest import Run
from .kit import Perdure, alive, locked, pids, start, until


def test_it_says_what_it_serves_and_runs_it(app: App, shop: Path) -> None:
    with Perdure(shop, "worker", "shop:app") as worker:
        worker.says("Ctrl-C stops: runs have 30 s to end")
        assert worker.lines[0] == (
            "Serving 8 workflows (block, fulfil, hang, hold, measure, …) on queues bulk, default of sqlite:///shop.db,"
            " 50 at once."
        )
        start(app, "sell", "apple", 2, id="one")
        assert app.run("one").result(timeout=30).wait() == 1000
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_lets_runs_end(app: App, shop: Path, number: signal.Signals) -> None:
    start(app, "hold", "a", id="a")
    with Perdure(shop, "worker", "shop:app") as worker:
        until(lambda: pids(shop, "a"), "the run")
        worker.signal(number)
        worker.says("stopping: 1 runs in flight have 30 s to end")
        (shop / "a.go").touch()
        assert worker.ended() == 0
    assert app.run("a").result(timeout=30).wait() == worker.pid


def test_what_has_not_ended_within_the_grace_is_handed_back(app: App, shop: Path) -> None:
    start(app, "hold", "a", id="a")
    with Perdure(shop, "worker", "shop:app", "--grace", "0.1", "--lease", "60") as worker:
        until(lambda: pids(shop, "a"), "the run")
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
    status = app.run("a").status().wait()
    assert (status.state, status.attempt, status.record.crashes) == (State.QUEUED, 1, 0)


def test_a_second_signal_hands_back_at_once(app: App, shop: Path) -> None:
    start(app, "hold", "a", id="a")
    with Perdure(shop, "worker", "shop:app", "--grace", "3600", "--lease", "60") as worker:
        until(lambda: pids(shop, "a"), "the run")
        worker.signal(signal.SIGINT)
        worker.says("stopping")
        worker.signal(signal.SIGINT)
        assert worker.ended() == 0
    assert app.run("a").status().wait().state is State.QUEUED


def test_a_third_signal_ends_a_process_whose_event_loop_is_blocked(app: App, shop: Path) -> None:
    start(app, "block", "b", id="b")
    with Perdure(shop, "worker", "shop:app") as worker:
        until(lambda: pids(shop, "b"), "the run")

        def gone() -> bool:
            """Signals that come while one is handled are one, so it takes as many as it takes."""
            worker.signal(signal.SIGTERM)
            return not alive(worker.pid)

        until(gone, "the end")
        assert worker.ended() == 128 + signal.SIGTERM


def test_it_ends_even_when_a_thread_never_does(app: App, shop: Path) -> None:
    start(app, "hang", "h", id="h")
    with Perdure(shop, "worker", "shop:app", "--grace", "0.1") as worker:
        until(lambda: pids(shop, "h"), "the run")
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0


def test_it_ends_well_and_soon_while_the_store_is_locked(app: App, shop: Path) -> None:
    start(app, "hold", "a", id="a")
    with Perdure(shop, "worker", "shop:app", "--grace", "0.5") as worker:
        until(lambda: pids(shop, "a"), "the run")
        with locked(shop / "shop.db"):
            began = time.monotonic()
            worker.signal(signal.SIGTERM)
            assert worker.ended() == 0
            assert time.monotonic() - began < 0.5 + MARGIN
        worker.says("what is left is freed when the lease ends")


def test_only_the_queues_that_are_named_are_served(app: App, shop: Path) -> None:
    start(app, "sell", "apple", id="no")
    start(app, "refuse", "because", id="yes")
    with Perdure(shop, "worker", "shop:app", "--queues", "bulk,defualt") as worker:
        worker.says("on queues bulk, defualt of")
        worker.says("no workflow names queue 'defualt' (did you mean 'default'?)")
        until(lambda: app.run("yes").status().wait().state is State.FAILED, "the run of queue bulk")
    assert app.run("no").status().wait().state is State.QUEUED


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["shpo:app"], 1, "error: there is no module 'shpo'"),
        (["shop:app", "--concurrency", "0"], 1, "error: a worker's concurrency is a whole number from 1 on"),
        (["shop:app", "--lease", "0.01"], 1, "error: a lease must be at least 100 ms"),
        (["shop:app", "--grace=-1"], 1, "error: grace must lie between 0 and 100 years"),
        (["shop:app", "--queues", ","], 2, "--queues names no queue"),
        (["shop:app", "--processes", "0"], 2, "--processes"),
        (["bare:app"], 1, "has no workflows: nothing to serve"),
        (["far:app"], 1, "error: "),
        (["twice:app"], 1, "two workflows are named 'f'"),
    ],
)
def test_what_is_wrong_is_said_at_once(shop: Path, perdure: Run, args: list[str], code: int, says: str) -> None:
    (shop / "bare.py").write_text("from perdure import App\napp = App('sqlite:///bare.db')\n")
    (shop / "far.py").write_text(
        "from perdure import App\napp = App('sqlite:////proc/nowhere/x.db')\n@app.workflow\ndef f(): ...\n"
    )
    (shop / "twice.py").write_text(
        "from perdure import App\napp = App('sqlite://')\n@app.workflow\ndef f(): ...\n"
        "@app.workflow(name='f')\ndef g(): ...\n"
    )
    result = perdure("worker", *args)
    assert result.exit_code == code
    assert says in result.output
    assert "site-packages" not in result.output
