"""`perdure limits`, `queues`, `top`, `failures`, `batches`, `prune`, and what `runs` does with groups and labels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import App

from .conftest import Run
from .kit import PATIENCE, environment, start

URL = ["--url", "sqlite:///shop.db"]


@pytest.fixture
def read(perdure: Run) -> Callable[..., Any]:
    """The JSON that a command prints."""

    def read(*args: str) -> Any:
        result = perdure(*args, *URL, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    return read


# --- limits


@pytest.fixture(autouse=True)
def made(perdure: Run) -> None:
    """The store: looking at one makes none."""
    perdure("migrate", *URL)


def test_limits_are_set_listed_and_lifted(perdure: Run, app: App, read: Callable[..., Any]) -> None:
    said = perdure("limits", "set", *URL, "-q", "mail", "--running", "5", "--rate", "100/min", "--burst", "20")
    assert said.stdout == "Queue mail: 5 at a time, 100/min, burst 20 (revision 1).\n"
    assert perdure("limits", "set", *URL, "--all", "--running", "50", "--who", "ada").exit_code == 0
    assert perdure("limits", "pause", *URL, "-g", "größe/7").output == "Group größe/7 is paused (revision 3).\n"
    lines = perdure("limits", "list", *URL).output.splitlines()
    assert lines[0].split() == ["WHAT", "RUNNING", "LIMIT", "RATE", "PAUSED", "SET", "BY", "AGO"]
    assert any(line.split()[:6] == ["queue", "mail", "0", "5", "100/min,", "burst"] for line in lines)
    found = {(each["scope"], each["name"]): each for each in read("limits", "list")}
    assert (found["namespace", None]["running"], found["namespace", None]["who"]) == (50, "ada")
    assert found["group", "größe/7"]["paused"]
    said = perdure("limits", "resume", *URL, "-g", "größe/7")
    assert said.output == "Group größe/7 is not paused (revision 4).\n"
    assert perdure("limits", "set", *URL, "-q", "mail", "--unlimited").output.startswith("Queue mail: no limit")
    history = read("limits", "history")
    assert [each["revision"] for each in history] == [5, 4, 3, 2, 1]
    assert history[0]["old"]["rate"] == "100/60s" and history[0]["new"]["rate"] is None
    shown = perdure("limits", "history", *URL).output
    assert "5 at a time, 100/min, burst 20 → no limit" in shown and "paused" in shown


def test_limits_of_code_are_applied(perdure: Run, app: App, read: Callable[..., Any]) -> None:
    assert "The code declares no limits" in perdure("limits", "apply", "--app", "shop").output
    app.limits.declare(queue="mail", running=3)
    perdure("limits", "set", *URL, "-q", "mail", "--running", "9")
    said = perdure("limits", "apply", "--app", "shop", "--who", "deploy")
    assert said.output == "Queue mail: 3 at a time (revision 2).\n"
    [found] = read("limits", "list")
    assert (found["running"], found["who"]) == (3, "deploy")


def test_a_scope_that_nothing_is_in_is_told_of_and_kept(perdure: Run, app: App, read: Callable[..., Any]) -> None:
    start(app, "refuse", "no", id="no")
    for args in (["pause"], ["resume"], ["set", "--running", "3"]):
        said = perdure("limits", *args, *URL, "--queue", "bluk")
        assert said.exit_code == 0
        assert said.stderr == "No run, worker or schedule has the queue 'bluk' yet (did you mean 'bulk'?).\n"
        assert perdure("limits", *args, *URL, "--queue", "bulk").stderr == ""
    assert perdure("limits", "pause", *URL, "-w", "refused").stderr.endswith("(did you mean 'refuse'?).\n")
    said = perdure("runs", "retry", "--failed", "--workflow", "refused", *URL).stderr
    assert said.startswith("0 runs are queued again.\nNo run, worker or schedule has the workflow 'refused'")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["set", "--running", "5"], "say of what"),
        (["set", "-q", "a", "-g", "b", "--running", "5"], "say of what"),
        (["set", "-q", "a"], "give --running or --rate or both, or --unlimited"),
        (["set", "-q", "a", "--unlimited", "--running", "5"], "give --running or --rate or both, or --unlimited"),
        (["set", "-q", "a", "--running", "0"], "0 is not in the range"),
        (["set", "-q", "a", "--rate", "lots"], "'lots' is no rate; write a count and a period"),
        (["set", "-q", "a", "--rate", "0/s"], "'0/s' is no rate"),
        (["set", "-q", "a", "--burst", "5"], "burst= goes with rate="),
        (["set", "-g", "", "--running", "1"], "a group is named by 1 to 200 characters"),
        (["pause"], "say of what"),
    ],
)
def test_limits_that_can_not_be(perdure: Run, app: App, args: list[str], message: str) -> None:
    result = perdure("limits", *args, *URL)
    assert result.exit_code != 0
    assert message in result.output


def test_nothing_limited_says_so(perdure: Run, app: App) -> None:
    assert perdure("limits", "list", *URL).output == "Nothing is limited or paused.\n"
    assert perdure("limits", "history", *URL).output == "Nothing was ever limited or paused.\n"


# --- queues


def test_queues_show_what_is_held_and_why(perdure: Run, app: App, read: Callable[..., Any]) -> None:
    assert perdure("queues", *URL).output == "No queue has runs.\n"
    for n in range(3):
        app.find("hold").options(group="customer-7").start(str(n)).wait()
    start(app, "refuse", "no", id="no")
    perdure("limits", "pause", *URL, "-q", "bulk")
    lines = perdure("queues", *URL).output.splitlines()
    assert lines[0].split()[:5] == ["QUEUE", "READY", "OLDEST", "RUNNING", "HELD"]
    default = next(line for line in lines if line.startswith("default"))
    assert (default.split()[1], default.split()[-4]) == ("1", "2")
    assert next(line for line in lines if line.startswith("bulk")).endswith("paused")
    assert any(line.startswith("  default: 2 held, ") for line in lines)
    found = {each["queue"]: each for each in read("queues")}
    assert sum(found["default"]["held"].values()) == 2
    assert found["bulk"]["paused"]


def test_queues_show_limits_and_pauses_that_hold_in_all_of_them(perdure: Run, app: App) -> None:
    start(app, "refuse", "no", id="no")
    perdure("limits", "set", *URL, "--all", "--running", "7")
    perdure("limits", "pause", *URL, "-w", "refuse")
    lines = perdure("queues", *URL).output.splitlines()
    assert lines[1].split()[:2] == ["bulk", "0"]
    assert lines[2:] == [
        "  bulk: 1 held, paused",
        "  the whole store: 7 at a time, 0 running now",
        "  workflow refuse: paused",
    ]


def test_a_drained_queue_is_paused_and_nothing_of_it_runs(perdure: Run, app: App) -> None:
    result = perdure("limits", "drain", *URL, "-q", "bulk")
    assert (result.exit_code, result.stdout) == (0, "Queue bulk is paused (revision 1), and nothing of it runs.\n")


def test_top_shows_once_where_there_is_no_terminal(perdure: Run, app: App) -> None:
    start(app, "sell", "egg", id="a")
    result = perdure("top", *URL)
    assert result.exit_code == 0
    assert "0 running, 1 ready, 0 ended in the last minute, 0 workers with 0 slots" in result.output
    assert "QUEUE" in result.output and "WORKER" in result.output


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_top_goes_on_in_a_terminal_until_q(app: App, shop: Path) -> None:
    import pty

    start(app, "sell", "egg", id="a")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "perdure", "top", *URL, "--every", "0.1"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=shop, env=environment()) as process:
        os.close(theirs)
        seen = b""
        try:
            while seen.count(b"1 ready") < 2:
                seen += os.read(ours, 65536)
            os.write(ours, b"q")
            while os.read(ours, 65536):
                pass
        except OSError:  # its end of the terminal is closed
            pass
        finally:
            os.close(ours)
            code = process.wait(PATIENCE)
    assert (code, seen.count(b"1 ready") >= 2) == (0, True), seen


# --- runs


def test_runs_are_found_by_group_label_and_batch(perdure: Run, app: App, read: Callable[..., Any]) -> None:
    sell = app.find("sell")
    started = perdure(
        *("start", "shop", "ship", '"egg"', "--id", "a", "--group", "g/7", "--session", "s", "--unique", "u"),
        *("--label", "customer=ada", "--label", "region=eu"),
    )
    assert started.exit_code == 0
    sell.options(id="b").start_batch([("bread", 1), ("salt", 2)]).wait()
    assert [each["id"] for each in read("runs", "list", "--group", "g/7")] == ["a"]
    assert [each["id"] for each in read("runs", "list", "-l", "customer=ada", "-l", "region=eu")] == ["a"]
    assert read("runs", "list", "-l", "customer=bob") == []
    assert [each["id"] for each in read("runs", "list", "--batch", "b")] == ["b/1", "b/0"]
    shown = perdure("runs", "show", "a", *URL).output
    for line in ("  group  g/7", "  session s", "  unique u", "  labels customer=ada, region=eu"):
        assert line in shown
    run = read("runs", "show", "a")["run"]
    assert (run["group"], run["labels"]) == ("g/7", {"customer": "ada", "region": "eu"})
    assert "is no label; write key=value" in perdure("runs", "list", *URL, "-l", "customer").output


def test_progress_is_shown(perdure: Run, app: App, drain: Callable[[], None]) -> None:
    start(app, "measure", 7, id="a")
    start(app, "measure", 0, id="b")
    drain()
    assert "progress 7 of 10, weighing" in perdure("runs", "show", "a", *URL).output
    assert 'progress {"phase":"empty"}' in perdure("runs", "show", "b", *URL).output


def test_a_run_is_deleted(perdure: Run, app: App, drain: Callable[[], None]) -> None:
    start(app, "sell", "egg", id="a")
    refused = perdure("runs", "delete", "a", *URL)
    assert refused.exit_code == 1 and "not ended" in refused.output
    assert perdure("runs", "delete", "a", "--force", *URL).output == "Removed 1 run.\n"
    assert perdure("runs", "show", "a", *URL).exit_code == 1


# --- failures


def test_failures_are_listed_by_cause_and_retried(
    perdure: Run, app: App, drain: Callable[[], None], read: Callable[..., Any]
) -> None:
    assert perdure("failures", *URL).output == "No failed runs.\n"
    for n in range(3):
        start(app, "refuse", f"reason {n}", id=f"no-{n}")
    app.find("refuse").options(id="ada", labels={"customer": "ada"}).start("ada").wait()
    drain()
    [cause] = read("failures")
    assert (cause["workflow"], cause["runs"], cause["cause"].partition(":")[0]) == ("refuse", 4, "ValueError in shop")
    assert perdure("failures", *URL).output.splitlines()[1].split()[:2] == ["4", "refuse"]
    would = perdure("runs", "retry", "--failed", "--cause", cause["cause"], "--dry-run", *URL)
    assert (sorted(would.stdout.split()), would.stderr) == (
        ["ada", "no-0", "no-1", "no-2"],
        "4 runs would be queued again.\n",
    )
    assert perdure("runs", "retry", "--failed", "-l", "customer=ada", *URL).stdout == "ada\n"
    assert len(read("runs", "list", "--cause", cause["cause"])) == 3
    done = perdure("runs", "retry", "--failed", "--workflow", "refuse", "--queue", "bulk", "--limit", "2", *URL)
    assert "2 runs are queued again; there may be more" in done.stderr
    for args, message in (
        ([], "name a run, or give --failed"),
        (["no-0", "--failed"], "name a run, or give --failed"),
        (["no-0", "--dry-run"], "go with --failed"),
        (["--failed", "--from-step", "x"], "goes with a run"),
    ):
        result = perdure("runs", "retry", *args, *URL)
        assert result.exit_code == 2 and message in result.output


# --- batches and retention


def test_a_batch_is_shown(perdure: Run, app: App, drain: Callable[[], None], read: Callable[..., Any]) -> None:
    app.find("refuse").options(id="b").start_batch(["one", "two"], callback=app.find("ship")).wait()
    assert read("batches", "show", "b")["left"] == 2
    drain()
    assert perdure("batches", "show", "b", *URL).output == (
        "Batch b: 2 of 2 runs have ended (0 succeeded, 2 failed, 0 cancelled), 0 runs are left.\n"
        "When all have ended, run b/callback goes on.\n"
    )
    assert read("runs", "show", "b/callback")["run"]["result"] == "shipped b"
    assert "there is no batch 'c'" in perdure("batches", "show", "c", *URL).output


def test_runs_that_ended_are_pruned(perdure: Run, app: App, drain: Callable[[], None]) -> None:
    for n in range(3):
        start(app, "sell", "egg", id=f"egg-{n}")
    start(app, "refuse", "no", id="no")
    drain()
    assert "say which runs may go" in perdure("prune", *URL).output
    assert perdure("prune", *URL, "--state", "succeeded", "--count", "1").output == "Removed 2 runs.\n"
    assert perdure("prune", *URL, "--age", "1h").output == "Removed 0 runs.\n"
    app.retain(count=0)
    assert perdure("prune", "--app", "shop").output == "Removed 2 runs.\n"
    assert (
        "workflow 'sel' yet (did you mean 'sell'?)"
        in perdure("prune", "--app", "shop", "-w", "sel", "--count", "1").stderr
    )
