"""`perdure workers`, `perdure migrate`, `perdure doctor`."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from perdure import App
from perdure.cli.admin import unserved
from perdure.cli.output import duration
from perdure.model import Limits, QueueReport, Unserved

from .conftest import Run
from .kit import Perdure, start

URL = ["--url", "sqlite:///shop.db"]


def test_workers_lists_those_that_live(perdure: Run, shop: Path) -> None:
    perdure("migrate", *URL)
    assert perdure("workers", *URL).stderr == "No live worker; start one with `perdure worker MODULE:APP`.\n"
    with Perdure(shop, "worker", "shop", "--queues", "bulk", "--concurrency", "3") as worker:
        worker.says("Ctrl-C stops")
        lines = perdure("workers", *URL).stdout.splitlines()
        assert lines[0].split() == ["WORKER", "PID", "RUNS", "FOR", "QUEUES", "WORKFLOWS"]
        assert lines[1].split()[1:3] == [str(worker.pid), "0/3"]
        (found,) = json.loads(perdure("workers", *URL, "--json").stdout)
        assert (found["pid"], found["queues"], found["concurrency"]) == (worker.pid, ["bulk"], 3)


def test_migrate_says_what_it_did(perdure: Run, folder: Path) -> None:
    first = perdure("migrate", *URL).output.splitlines()
    assert first[0].startswith("applied ") and first[-1] == "sqlite:///shop.db is up to date."
    assert perdure("migrate", *URL).output == "sqlite:///shop.db is up to date.\n"


def test_migrate_checks_and_prints_without_doing(perdure: Run, folder: Path) -> None:
    there_is = perdure("migrate", *URL, "--check")
    assert (there_is.exit_code, there_is.output) == (1, "to be applied: 0001_first\n")
    script = perdure("migrate", *URL, "--print").output
    assert not (folder / "shop.db").exists()
    connection = sqlite3.connect("shop.db")
    connection.executescript(script)
    connection.close()
    assert perdure("migrate", *URL, "--check").output == "sqlite:///shop.db is up to date.\n"
    assert perdure("migrate", *URL, "--print").output == ""
    assert perdure("migrate", *URL).output == "sqlite:///shop.db is up to date.\n"
    assert "schema version 1, as it was made" in perdure("doctor", *URL).output
    assert "exclude each other" in perdure("migrate", *URL, "--print", "--check").output


def test_a_store_of_a_newer_version_is_refused(perdure: Run, folder: Path) -> None:
    perdure("migrate", *URL)
    connection = sqlite3.connect("shop.db")
    connection.execute("PRAGMA user_version = 9999")
    connection.close()
    for command in (["migrate"], ["doctor"], ["runs", "list"]):
        result = perdure(*command, *URL)
        assert result.exit_code == 1 and "error: the store " in result.stderr and "upgrade" in result.stderr


def test_doctor_shows_findings(perdure: Run, app: App) -> None:
    start(app, "ship", "7", id="one")
    result = perdure("doctor", "--app", "shop")
    assert result.exit_code == 0
    assert "8 workflows are well defined" in result.output
    assert "warning  no live worker takes 1 run of workflow ship, ready on queue default" in result.output


def test_doctor_ends_with_1_when_there_is_a_problem(
    perdure: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    perdure("migrate", *URL)
    monkeypatch.setattr("perdure.stores.sqlite.doctor.mounted_on_network", lambda _: "nfs")
    result = perdure("doctor", *URL)
    assert result.exit_code == 1
    assert "problem  network file system nfs" in result.output
    found = json.loads(perdure("doctor", *URL, "--json").stdout)
    assert {
        "severity": "problem",
        "what": "network file system nfs",
        "advice": "move the file to a local disk",
    } in found


def test_doctor_is_read_whole_in_a_narrow_terminal(perdure: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    perdure("migrate", *URL)
    monkeypatch.setattr("perdure.stores.sqlite.doctor.mounted_on_network", lambda _: "nfs")
    monkeypatch.setenv("COLUMNS", "30")
    said = perdure("doctor", *URL).output
    assert all(len(line) <= 30 for line in said.splitlines())
    assert "problem network file system nfs what to do: move the file to a local disk" in " ".join(said.split())


def test_doctor_of_an_app_with_a_definition_that_can_not_work(perdure: Run, folder: Path) -> None:
    (folder / "odd.py").write_text(
        "from perdure import App\napp = App('sqlite:///odd.db')\n@app.workflow\ndef f(*args: int): ...\n"
    )
    result = perdure("doctor", "--app", "odd")
    assert result.exit_code == 1 and "error: workflow f has the parameter *args" in result.stderr


def test_runs_that_no_live_worker_takes_are_found() -> None:
    report = QueueReport(
        queue="q", ready=0, oldest_ready_at=None, running=0, scheduled=0, waiting=0, held=[], kept=[],
        unserved=[Unserved("f", "", 2), Unserved("g", "3", 1)], paused=False, limits=Limits(), ended_last_minute=0,
    )  # fmt: skip
    one, other = unserved([report])
    assert one.what == "no live worker takes 2 runs of workflow f, ready on queue q"
    assert other.what == "no live worker takes 1 run of workflow g, pinned to version 3, ready on queue q"
    assert "accepts=" in other.advice and "accepts=" not in one.advice


@pytest.mark.parametrize(
    ("millis", "text"),
    [
        (-5, "0 ms"),
        (999, "999 ms"),
        (1000, "1.0 s"),
        (59_900, "59.9 s"),
        (60_000, "1 min"),
        (200_000, "3 min 20 s"),
        (3_600_000, "1 h"),
        (7_500_000, "2 h 5 min"),
        (90_000_000, "1 d 1 h"),
    ],
)
def test_durations_are_short(millis: int, text: str) -> None:
    assert duration(millis) == text


def test_looking_makes_no_store(perdure: Run, folder: Path) -> None:
    for command in (["runs", "list"], ["why", "x"], ["doctor"]):
        result = perdure(*command, *URL)
        assert result.exit_code == 1
        assert "there is no store at sqlite:///shop.db" in result.stderr
    assert list(folder.iterdir()) == []
    assert perdure("migrate", *URL).exit_code == 0
    assert perdure("runs", "list", *URL).exit_code == 0
