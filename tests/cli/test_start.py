"""`perdure start`."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from perdure import App, State

from .conftest import Run
from .kit import Perdure


@pytest.mark.parametrize("given", ['{"item": "fig", "count": 2}', '["fig", 2]', "-"])
def test_it_prints_the_id_of_the_run_that_it_made(
    perdure: Run, app: App, drain: Callable[[], None], given: str
) -> None:
    result = perdure("start", "shop:app", "sell", given, input='{"item": "fig", "count": 2}')
    assert result.exit_code == 0
    (run_id,) = result.stdout.split()
    drain()
    assert app.run(run_id).result().wait() == 600


def test_options_are_those_of_a_start(perdure: Run, app: App) -> None:
    args = ["--id", "one", "--queue", "q", "--priority", "-3", "--at", "2100-01-31T12:00:00+01:00", "--timeout", "1h"]
    assert perdure("start", "shop:app", "sell", '["fig"]', *args).stdout == "one\n"
    record = app.run("one").status().wait().record
    due = datetime(2100, 1, 31, 11, tzinfo=UTC).timestamp() * 1000
    assert (record.queue, record.priority, record.state) == ("q", -3, State.SCHEDULED)
    assert (record.wake_at, record.deadline) == (due, due + 3_600_000)


@pytest.mark.parametrize(
    ("typed", "millis"), [("90", 90_000), ("1.5s", 1500), ("15m", 900_000), ("2h30m", 9_000_000), ("3d", 259_200_000)]
)
def test_a_delay_has_units(perdure: Run, app: App, typed: str, millis: int) -> None:
    run_id = perdure("start", "shop", "sell", '["fig"]', "--delay", typed).stdout.strip()
    record = app.run(run_id).status().wait().record
    assert record.wake_at is not None and record.wake_at - record.created_at == millis


def test_the_same_id_is_the_same_run(perdure: Run, app: App) -> None:
    perdure("start", "shop", "sell", '["fig"]', "--id", "one")
    result = perdure("start", "shop", "sell", '["fig"]', "--id", "one")
    assert (result.stdout, result.exit_code) == ("one\n", 0)
    assert result.stderr.startswith("Run one was there already.\n")
    result = perdure("start", "shop", "sell", '["apple"]', "--id", "one")
    assert result.exit_code == 1 and "error: run 'one' exists with another workflow or input" in result.stderr


def test_it_says_when_no_worker_serves_it(perdure: Run, shop: Path) -> None:
    result = perdure("start", "shop", "sell", '["fig"]')
    assert "It waits: no live worker serves workflow sell: start one with `perdure worker" in result.stderr
    with Perdure(shop, "worker", "shop", "--queues", "bulk") as worker:
        worker.says("Ctrl-C stops")
        assert "no live worker serves queue default" in perdure("start", "shop", "sell", '["fig"]').stderr
        assert perdure("start", "shop", "refuse", '"no"').stderr == ""


def test_waiting_says_when_no_worker_serves_it(perdure: Run, shop: Path) -> None:
    with Perdure(shop, "start", "shop", "sell", '["fig"]', "--wait") as waiting:
        waiting.says("It waits: no live worker serves workflow sell: start one with `perdure worker")


def test_a_start_in_a_store_that_is_paused_says_that(perdure: Run, shop: Path) -> None:
    url = ["--url", "sqlite:///shop.db"]
    perdure("limits", "pause", *url, "--all")
    said, why = perdure("start", "shop", "sell", '["fig"]', "--id", "r").stderr, perdure("why", *url, "r").stdout
    assert "It waits: the whole store is paused" in said and "the whole store is paused" in why


def test_it_says_when_nothing_has_the_queue_and_which_one_was_meant(perdure: Run, shop: Path) -> None:
    result = perdure("start", "shop", "sell", '["fig"]', "--queue", "blk")
    assert "No run, worker or schedule has the queue 'blk' yet (did you mean 'bulk'?)." in result.stderr
    assert "It waits: no live worker serves workflow sell on queue blk: start one" in result.stderr
    with Perdure(shop, "worker", "shop", "--queues", "other") as worker:
        worker.says("Ctrl-C stops")
        assert perdure("start", "shop", "sell", '["fig"]', "--queue", "other").stderr == ""


def test_a_queue_that_the_app_does_not_declare_makes_no_run(perdure: Run, shop: Path) -> None:
    text = (shop / "shop.py").read_text()
    (shop / "strict.py").write_text(text.replace("App(", "App(queues=['bulk'], url=", 1))
    for args in (("start", "strict", "sell", '["fig"]', "--queue", "blk"), ("worker", "strict", "--queues", "blk")):
        result = perdure(*args)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "error: this app has no queue 'blk' (did you mean 'bulk'?); it declares: bulk, default" in result.stderr


def test_waiting_prints_the_result_as_json(perdure: Run, shop: Path) -> None:
    with Perdure(shop, "worker", "shop") as worker:
        worker.says("Ctrl-C stops")
        result = perdure("start", "shop", "ship", '"7"', "--wait", "--id", "one")
        assert (result.stderr, json.loads(result.stdout), result.exit_code) == ("one\n", "shipped 7", 0)
        result = perdure("start", "shop", "refuse", '"no way"', "--wait", "--id", "two")
        assert (result.stdout, result.exit_code) == ("", 1)
        assert "error: run two failed with ValueError: no way" in result.stderr
        assert "raise ValueError(reason)" in result.stderr, "where it was raised"


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["shop", "sel", "{}"], 1, "error: this app has no workflow 'sel' (did you mean 'sell'?)"),
        (["shop", "sell", "{item"], 1, "error: workflow sell: what was given is not JSON"),
        (["shop", "sell"], 1, "missing a required argument: 'item'; it takes (item: str, count: int = 1)"),
        (["shop", "sell", '["fig", "two"]'], 1, "count: expected `int`, got `str`"),
        (["shop", "sell", '{"itme": "fig"}'], 1, "error: workflow sell: "),
        (["shop", "ship", "null"], 1, "error: workflow ship: order: expected `str`, got `null`; it takes (order: str)"),
        (["shop", "ship", '"x"', "--delay", "soon"], 2, "'soon' is no length of time; write 90, 90s, 15m, 2h30m or 3d"),
        (["shop", "ship", '"x"', "--delay", "5 weeks"], 2, "'5 weeks' is no length of time"),
        (["shop", "ship", '"x"', "--at", "tomorrow"], 2, "'tomorrow' is no time; write 2030-01-31T12:00:00Z"),
        (["shop", "ship", '"x"', "--at", "2030-01-31T12:00:00"], 2, "has no time zone; add Z (UTC) or an offset"),
        (
            ["shop", "ship", '"x"', "--at", "2030-01-31T12:00Z", "--delay", "1"],
            1,
            "error: give delay= or at=, not both",
        ),
        (["shop", "ship", '"x"', "--label", "a=1", "--label", "a=2"], 2, "the label 'a' is given twice"),
        (["shop", "ship", '"x"', "--queue", "a,b"], 1, "error: a queue's name is a string"),
        (["shpo", "ship", '"x"'], 1, "error: there is no module 'shpo'"),
    ],
)
def test_what_is_wrong_makes_no_run(perdure: Run, app: App, args: list[str], code: int, says: str) -> None:
    result = perdure("start", *args)
    assert (result.exit_code, result.stdout) == (code, "")
    assert says in result.stderr.replace("\n", " ")
    assert app.runs().wait() == []
