"""`perdure runs` and `perdure why`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from perdure import App, State, sleep
from perdure.cli import cli

from .conftest import Run
from .kit import start

URL = ["--url", "sqlite:///shop.db"]


@pytest.fixture
def three(app: App, drain: Callable[[], None]) -> App:
    """A run that waits, with a child that succeeded, and one that failed."""
    start(app, "fulfil", "7", id="order-7")
    start(app, "refuse", "it is\nsold out", id="no")
    drain()
    return app


def listed(perdure: Run, *args: str) -> list[dict[str, Any]]:
    result = perdure("runs", "list", *URL, "--json", *args)
    assert result.exit_code == 0
    return json.loads(result.stdout)


# --- list


def test_list_is_a_table(perdure: Run, three: App) -> None:
    lines = perdure("runs", "list", *URL).output.splitlines()
    assert lines[0].split() == ["RUN", "WORKFLOW", "STATE", "TRY", "AGE", "TOOK", "WHY"]
    assert lines[1].startswith("order-7/ship.") and lines[1].split()[1:4] == ["ship", "succeeded", "1"]
    assert lines[2].startswith("no ") and lines[2].endswith("  ValueError: it is sold out")
    assert lines[3].startswith("order-7 ") and "  waits for signal approve (until " in lines[3]


def test_a_table_fits_the_terminal(perdure: Run, three: App) -> None:
    lines = perdure("runs", "list", *URL, env={"COLUMNS": "80"}).output.splitlines()
    assert max(map(len, lines)) == 80
    assert lines[3].endswith("…")


@pytest.mark.parametrize(
    ("args", "found"),
    [
        ([], ["order-7/ship", "no", "order-7"]),
        (["--state", "failed"], ["no"]),
        (["--state", "failed", "--state", "waiting"], ["no", "order-7"]),
        (["--workflow", "fulfil"], ["order-7"]),
        (["--queue", "bulk"], ["no"]),
        (["--parent", "order-7"], ["order-7/ship"]),
        (["--limit", "1"], ["order-7/ship"]),
        (["--limit", "0"], ["order-7/ship", "no", "order-7"]),
        (["--state", "running"], []),
    ],
)
def test_list_takes_filters(perdure: Run, three: App, args: list[str], found: list[str]) -> None:
    assert [run["id"].partition(".")[0] for run in listed(perdure, *args)] == found


def test_json_has_values_and_times(perdure: Run, three: App) -> None:
    child, failed, waiting = listed(perdure)
    assert (child["input"], child["result"], child["parent"]) == ({"order": "7"}, "shipped 7", "order-7")
    assert (failed["error"]["type"], failed["error"]["message"]) == ("builtins:ValueError", "it is\nsold out")
    assert failed["finished_at"] >= failed["started_at"] >= failed["created_at"]
    assert [(wait["for"], wait["target"]) for wait in waiting["waits"]] == [("signal", "approve")]


def test_more_runs_than_are_shown_are_mentioned(perdure: Run, three: App) -> None:
    result = perdure("runs", "list", *URL, "--limit", "2")
    assert (len(result.stdout.splitlines()), "There are more" in result.stderr) == (3, True)
    assert "There are more" not in perdure("runs", "list", *URL, "--limit", "3").stderr


def test_all_pages_are_listed(perdure: Run, app: App) -> None:
    app.find("ship").start_many([str(number) for number in range(450)]).wait()
    assert len(listed(perdure, "--limit", "0")) == len({run["id"] for run in listed(perdure, "-n", "449")}) + 1 == 450


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--queue", "blk"], "No run has the queue 'blk' (did you mean 'bulk'?); there are runs of: bulk, default"),
        (["--workflow", "fullfil"], "No run has the workflow 'fullfil' (did you mean 'fulfil'?)"),
        (["--state", "running"], "No such runs."),
    ],
)
def test_nothing_found_says_what_may_be_wrong(perdure: Run, three: App, args: list[str], says: str) -> None:
    result = perdure("runs", "list", *URL, *args)
    assert (result.exit_code, result.stdout) == (0, "")
    assert says in result.stderr


def test_a_mistyped_state(perdure: Run, three: App) -> None:
    result = perdure("runs", "list", *URL, "--state", "faild")
    assert result.exit_code == 2
    assert "there is no state 'faild' (did you mean 'failed'?); there are: scheduled," in result.output


# --- which store


@pytest.mark.parametrize(
    ("args", "env"),
    [
        (["--app", "shop:app"], {}),
        (["-a", "shop"], {"PERDURE_URL": "sqlite:///nothing.db"}),
        ([], {"PERDURE_URL": "sqlite:///shop.db"}),
        ([], {"PERDURE_APP": "shop"}),
        (["-u", "sqlite:///shop.db"], {"PERDURE_APP": "nothing"}),
    ],
)
def test_the_store_is_named_by_app_url_or_environment(
    perdure: Run, three: App, args: list[str], env: dict[str, str | None]
) -> None:
    assert "order-7" in perdure("runs", "list", *args, env=env).output


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        ([], 2, "say which store: --app MODULE:APP or --url URL"),
        (["-a", "shop", *URL], 2, "--app and --url exclude each other"),
        (["-u", "shop.db"], 1, "error: 'shop.db' is not a store URL; write 'sqlite:///name.db'"),
        (["-u", "sqlit:///shop.db"], 1, "did you mean 'sqlite'?"),
        (["-u", "sqlite:////proc/nowhere/shop.db"], 1, "/proc/nowhere"),
        (["-a", "shpo"], 1, "error: there is no module 'shpo'"),
    ],
)
def test_a_store_that_is_not_there(perdure: Run, shop: object, args: list[str], code: int, says: str) -> None:
    result = perdure("runs", "list", *args)
    assert (result.exit_code, result.stdout) == (code, "")
    assert says in result.stderr


# --- show


def test_show_draws_what_the_run_did(perdure: Run, three: App) -> None:
    lines = perdure("runs", "show", "order-7", *URL).output.splitlines()
    assert lines[0].startswith("fulfil  order-7  waiting, ")
    assert lines[2].startswith("  why    waits for signal approve (until ")
    assert lines[3] == '  input  {"order":"7"}'
    child, sleep, signal = [line.split() for line in lines[5:8]]
    assert child[:2] == ["▸", "ship"] and child[-1] == "succeeded"
    assert sleep[:2] == ["◔", "sleep"] and lines[6].startswith("  ◔")
    assert signal[:2] == ["◆", "signal:approve"] and "▶" in lines[7] and "waiting, until" in lines[7]
    assert lines[-1] == "Children: perdure runs list --parent order-7"


def test_show_of_a_failed_run(perdure: Run, three: App) -> None:
    result = perdure("runs", "show", "no", *URL)
    assert "\n  error  ValueError: it is sold out\n" in result.output
    assert "raise ValueError" not in result.output
    assert "raise ValueError(reason)" in perdure("runs", "show", "no", "-v", *URL).output


def test_show_nests_steps_and_has_the_result(perdure: Run, app: App, drain: Callable[[], None]) -> None:
    start(app, "sell", "fig", 3, id="one")
    drain()
    lines = perdure("runs", "show", "one", *URL).output.splitlines()
    assert lines[3] == "  result 900"
    assert lines[5].startswith("● look_up ") and lines[6].startswith("  ● price ")


def test_show_fits_80_columns_without_colours_and_in_ascii(perdure: Run, three: App) -> None:
    text = perdure("runs", "show", "order-7", *URL, env={"COLUMNS": "80"}).output
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    text = CliRunner(charset="ascii").invoke(cli, ["runs", "show", "order-7", *URL]).output
    assert "> ship" in text and "#" in text


def test_show_as_json_is_one_object_with_everything(perdure: Run, three: App) -> None:
    three.run("order-7").signal("later", {"x": 1}).wait()
    shown = json.loads(perdure("runs", "show", "order-7", *URL, "--json").stdout)
    assert shown["run"]["state"] == "waiting" and shown["run"]["why"].startswith("waits for signal approve")
    assert [(each["key"], each["kind"], each["outcome"]) for each in shown["history"]] == [
        ("ship", "child", "ok"),
        ("signal:approve", "signal", "open"),
    ]
    (child,) = shown["children"]
    assert (child["key"], child["result"], child["history"][0]["kind"]) == ("ship", "shipped 7", "sleep")
    assert shown["signals"] == [{"name": "later", "value": {"x": 1}}]


def test_long_histories_are_cut_in_the_middle(perdure: Run, app: App, drain: Callable[[], None]) -> None:
    @app.workflow
    async def many(count: int) -> None:
        for _ in range(count):
            await sleep(0)

    many.options(id="m").start(300).wait()
    drain()
    text = perdure("runs", "show", "m", *URL, "--limit", "5").output
    rows = [line.split()[1] for line in text.splitlines() if line.startswith("◔")]
    assert rows == ["sleep", "sleep#2", "sleep#3", "sleep#299", "sleep#300"]
    assert "  … 295 more here; --limit 0 shows all" in text
    assert perdure("runs", "show", "m", *URL, "--limit", "0").output.count("◔") == 300


# --- what can be done to a run


def test_signal_sends_json(perdure: Run, three: App, drain: Callable[[], None]) -> None:
    assert (
        perdure("runs", "signal", "order-7", "approve", "true", *URL).output == "Run order-7 has the signal approve.\n"
    )
    drain()
    assert three.run("order-7").result().wait() == "shipped 7: True"


def test_signal_wants_json(perdure: Run, three: App) -> None:
    result = perdure("runs", "signal", "order-7", "approve", "yes", *URL)
    assert result.exit_code == 1
    assert "error: the value is not JSON" in result.stderr and """its quotes: '"yes"'""" in result.stderr


def test_cancel(perdure: Run, three: App) -> None:
    result = perdure("runs", "cancel", "order-7", *URL, "--reason", "changed my mind")
    assert result.output == "Run order-7 is cancelled.\n"
    assert three.run("order-7").status().wait().state is State.CANCELLED
    assert "changed my mind" in perdure("runs", "list", *URL).output
    assert perdure("why", "order-7", *URL).output.endswith(" UTC: changed my mind\n")
    assert perdure("runs", "cancel", "no", *URL).output == "Run no had ended before: failed.\n"


@pytest.mark.parametrize(("args", "state"), [([], State.CANCELLED), (["--no-children"], State.WAITING)])
def test_children_are_cancelled_unless_told_otherwise(perdure: Run, app: App, args: list[str], state: State) -> None:
    @app.workflow
    async def parent() -> None:
        await app.find("fulfil").options(id="child").start("7")
        await app.run("child").result()

    parent.options(id="parent").start().wait()

    async def until_waiting() -> None:
        async with app, app.worker():
            while [each.state for each in await app.runs(workflow="fulfil")] != [State.WAITING]:
                await asyncio.sleep(0.01)

    asyncio.run(until_waiting())
    perdure("runs", "cancel", "parent", *URL, *args)
    assert app.run("child").status().wait().state is state


def test_retry(perdure: Run, three: App) -> None:
    assert perdure("runs", "retry", "no", *URL).output == "Run no is queued again.\n"
    status = three.run("no").status().wait()
    assert (status.state, status.attempt) == (State.QUEUED, 2)


def test_retry_from_a_step(perdure: Run, app: App, drain: Callable[[], None]) -> None:
    start(app, "sell", "fig", id="one")
    drain()
    result = perdure("runs", "retry", "one", *URL)
    assert result.exit_code == 1 and "error: run one has succeeded" in result.stderr
    result = perdure("runs", "retry", "one", *URL, "--from-step", "price")
    assert result.exit_code == 1 and "error: run one has no checkpoint 'price'" in result.stderr
    assert perdure("runs", "retry", "one", *URL, "--from-step", "look_up").exit_code == 0
    assert [event.key for event in app.run("one").history().wait()] == []


@pytest.mark.parametrize(
    "args",
    [["runs", "show"], ["runs", "cancel"], ["runs", "retry"], ["why"], ["runs", "signal"]],
    ids=lambda args: args[-1],
)
def test_an_unknown_run(perdure: Run, three: App, args: list[str]) -> None:
    more = ["go"] if args[-1] == "signal" else []
    result = perdure(*args, "order-8", *more, *URL)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "error: there is no run 'order-8'" in result.stderr


@pytest.mark.parametrize(
    ("run", "says"),
    [
        ("order-7", "Run order-7 (fulfil) waits for signal approve (until "),
        ("no", "Run no (refuse) failed at "),
    ],
)
def test_why(perdure: Run, three: App, run: str, says: str) -> None:
    result = perdure("why", run, "--app", "shop")
    assert result.exit_code == 0 and result.stdout.startswith(says)


def test_what_an_error_says_can_not_control_the_terminal(perdure: Run, app: App, drain: Callable[[], None]) -> None:
    text = "red \x1b[31m title \x1b]0;owned\x07 back\rover"
    start(app, "refuse", text, id="bad")
    drain()
    for args in (["why"], ["-v", "runs", "show"], ["runs", "show"]):
        result = perdure(*args, "bad", "--app", "shop")
        assert "ValueError: red [31m title ]0;owned back over" in result.output
        assert not {"\x1b", "\x07", "\r"} & set(result.output)
    assert "  File " in perdure("-v", "runs", "show", "bad", "--app", "shop").output, "indents are kept"
    result = perdure("start", "shop", "refuse", json.dumps(text), "--id", "bad", "--wait")
    assert result.exit_code == 1 and not {"\x1b", "\x07", "\r"} & set(result.output)
