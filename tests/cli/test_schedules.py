"""`perdure schedules`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from perdure import App

from .conftest import Run

URL = ["--url", "sqlite:///shop.db"]


@pytest.fixture
def listed(perdure: Run) -> Callable[[], list[dict[str, Any]]]:
    return lambda: json.loads(perdure("schedules", "list", *URL, "--json").stdout)


@pytest.fixture(autouse=True)
def made(perdure: Run) -> None:
    """The store: looking at one makes none."""
    perdure("migrate", *URL)


def test_schedules_are_added_listed_paused_triggered_and_removed(
    perdure: Run, app: App, drain: Callable[[], None], listed: Callable[[], list[dict[str, Any]]]
) -> None:
    assert perdure("schedules", "list", *URL).output == "No schedules.\n"
    said = perdure(
        *("schedules", "add", "shop:app", "nightly", "sell", '["egg", 2]'),
        *("--cron", "30 2 * * *", "--tz", "Europe/Berlin", "--overlap", "skip", "--jitter", "5m", "--queue", "slow"),
    )
    assert said.exit_code == 0, said.output
    assert said.output.startswith("Schedule nightly starts sell 30 2 * * * (Europe/Berlin), next at 20")
    assert perdure("schedules", "add", "shop:app", "often", "sell", '["fig"]', "--every", "15m").exit_code == 0
    assert (
        perdure("schedules", "add", "shop:app", "once", "sell", '["fig"]', "--at", "2090-01-01T00:00Z").exit_code == 0
    )
    nightly, often, once = listed()
    assert (nightly["name"], nightly["queue"], nightly["input"]) == ("nightly", "slow", {"item": "egg", "count": 2})
    assert (nightly["overlap"], nightly["jitter_ms"], len(nightly["next"])) == ("skip", 300_000, 5)
    assert (often["every_ms"], once["next"], once["declared"]) == (900_000, ["2090-01-01T00:00:00Z"], False)
    lines = perdure("schedules", "list", *URL).output.splitlines()
    assert lines[0].split() == ["SCHEDULE", "WORKFLOW", "WHEN", "LAST", "NEXT"]
    assert "every 15 min" in lines[2] and lines[3].endswith("2090-01-01 00:00")

    assert perdure("schedules", "pause", "often", *URL).output == "Schedule often is paused.\n"
    assert perdure("schedules", "list", *URL).output.splitlines()[2].endswith("paused")
    assert perdure("schedules", "resume", "often", *URL).output.startswith("Schedule often is not paused, next at ")
    run = perdure("schedules", "trigger", "often", *URL).stdout.strip()
    drain()
    assert app.run(run).result().wait() == 300
    assert perdure("schedules", "remove", "often", *URL).output == "Schedule often is removed.\n"
    assert [each["name"] for each in listed()] == ["nightly", "once"]


def test_a_schedule_that_is_changed_stays_paused_and_that_is_said(perdure: Run, app: App) -> None:
    add = ("schedules", "add", "shop:app", "often", "sell", '["fig"]', "--every")
    assert "paused" not in perdure(*add, "15m").output
    perdure("schedules", "pause", "often", *URL)
    assert "it is paused, and stays so until `perdure schedules resume often`" in perdure(*add, "30m").output
    told = perdure("schedules", "list", *URL).stderr
    assert told == "No live worker serves workflow sell, which schedule often starts.\n"


def test_a_schedule_that_no_code_declares_any_more_is_told_of(
    perdure: Run, app: App, drain: Callable[[], None]
) -> None:
    app.schedule("0 3 * * *", name="old", args=("egg",))(app.find("sell"))
    drain()
    app.schedules._declared.clear()
    assert "No code declares schedule old any more" in perdure("schedules", "list", "--app", "shop").output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["add", "shop:app", "x", "sell", '["egg"]'], "one of cron, every and at"),
        (["add", "shop:app", "x", "sell", '["egg"]', "--cron", "0 0 31 2 *"], "never fires"),
        (["add", "shop:app", "x", "sell", '["egg"]', "--cron", "0 9 * * *", "--tz", "Europe/Berlinn"], "did you mean"),
        (["add", "shop:app", "x", "sell", '["egg"]', "--every", "soon"], "is no length of time"),
        (["add", "shop:app", "x", "sell", "7", "--every", "1h"], "workflow sell"),
        (["add", "shop:app", "x", "sel", '["egg"]', "--every", "1h"], "did you mean 'sell'?"),
        (["pause", "x", *URL], "x"),
        (["trigger", "x", *URL], "there is no schedule 'x'"),
        (["remove", "x", *URL], "x"),
    ],
)
def test_schedules_that_can_not_be(perdure: Run, app: App, args: list[str], message: str) -> None:
    result = perdure("schedules", *args)
    assert result.exit_code != 0
    assert message in result.output
