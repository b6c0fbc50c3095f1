"""The measurements, with sizes that take no time: they must tell all that they promise. How fast is not asked here."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perdure import App
from perdure.bench.report import percentile
from perdure.cli import cli
from perdure.model import State

SIZES = {
    "drain": "--runs 20 --concurrency 5 --steps 2 --children 2 --payload-bytes 9 --groups 3 --group-limit 2 --repeat 1",
    "latency": "--runs 5 --payload-bytes 9",
    "enqueue": "--runs 50 --single 5 --payload-bytes 9 --repeat 2",
    "claim": "--claimed 100 --delayed 30 --finished 150 --other-queue 20 --held 30 --paused 20 --unknown 20"
    " --other-session 60 --runs 20 --batch 10",
    "fairness": "--large 60 --small 3 --each 2 --workers 2 --concurrency 4",
    "waiting": "--runs 30 --wakes 3",
    "lag": "--runs 100 --seconds 0.1",
}

FIGURES = {
    "drain": ["per_second", "floor_per_second", "share_of_floor"],
    "latency": ["p50_ms", "p95_ms", "p99_ms"],
    "enqueue": ["per_second", "single_per_second"],
    "claim": ["claim_ms", "claim_ms_empty", "ratio"],
    "fairness": ["total_s", "last_small_s", "share"],
    "waiting": ["bytes_per_run", "wake_lag_ms", "wake_lag_p99_ms", "signal_lag_ms", "signal_lag_p99_ms"],
    "lag": ["lag_p50_ms", "lag_p99_ms", "lag_max_ms", "threads"],
}


def bench(*args: str) -> str:
    result = CliRunner().invoke(cli, ["bench", *args], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def as_json(*args: str) -> dict[str, Any]:
    """The report, which must be one object on one line."""
    output = bench(*args, "--json")
    assert output.count("\n") == 1
    return json.loads(output)


@pytest.mark.parametrize("name", SIZES)
def test_a_report_tells_figures_and_circumstances(name: str) -> None:
    report = as_json(name, *SIZES[name].split())
    assert report["bench"] == name
    for figure in FIGURES[name]:
        assert isinstance(report[figure], int | float), figure
        assert report[figure] >= 0, figure
    words = SIZES[name].split()
    given = {word[2:].replace("-", "_"): value for word, value in zip(words[::2], words[1::2], strict=True)}
    assert {key: str(value) for key, value in report["parameters"].items()} == given
    assert {"cpu", "cores", "memory_bytes", "python"} <= report["machine"].keys()
    assert {"perdure", "python", "sqlite", "msgspec", "uvloop"} <= report["versions"].keys()
    assert report["settings"]["store"] == "sqlite"
    assert report["settings"]["durability"] == "synchronous=FULL"


@pytest.mark.parametrize("name", SIZES)
def test_a_store_that_was_named_is_left_with_nothing_to_do(name: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'named.db'}?synchronous=normal"
    report = as_json(name, *SIZES[name].split(), "--url", url)
    assert report["settings"]["durability"] == "synchronous=NORMAL"

    async def states() -> set[State]:
        async with App(url) as app:
            return {count.state for count in await app.counts()}

    assert asyncio.run(states()) <= {State.SUCCEEDED, State.CANCELLED}


def test_people_get_lines_and_how_to_read_them() -> None:
    output = bench("drain", "--runs", "5", "--repeat", "1")
    assert "per_second" in output
    assert "bare loop" in output
    assert "synchronous=FULL" in output


def test_shares_are_of_the_medians() -> None:
    report = as_json("drain", "--runs", "10", "--repeat", "3")
    assert len(report["rounds"]) == 3
    assert report["share_of_floor"] == pytest.approx(report["per_second"] / report["floor_per_second"], abs=0.01)


def test_a_wrong_url_is_refused() -> None:
    result = CliRunner().invoke(cli, ["bench", "latency", "--url", "sqlit:///x.db"])
    assert result.exit_code == 1
    assert "did you mean 'sqlite'" in result.output


@pytest.mark.parametrize("name", ["latency", "waiting"])
def test_a_store_that_can_not_be_opened_is_refused_before_a_worker_is_started(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.db").write_bytes(b"no database at all" * 100)
    result = CliRunner().invoke(cli, ["bench", name, "--url", f"sqlite:///{tmp_path}/a.db"])
    assert result.exit_code == 1
    assert "a.db" in result.output
    assert capfd.readouterr().err == ""  # no worker's process met it


@pytest.mark.parametrize("name", ["latency", "claim", "waiting"])
def test_a_store_in_memory_is_refused_where_it_cannot_be_measured(name: str) -> None:
    result = CliRunner().invoke(cli, ["bench", name, "--url", "sqlite://"])
    assert result.exit_code == 1
    assert "name a file" in result.output


def test_percentiles() -> None:
    values = list(range(1, 101))
    assert [percentile(values, percent) for percent in (0, 50, 99, 100)] == [1, 51, 100, 100]
    assert percentile([7.0], 99) == 7.0
