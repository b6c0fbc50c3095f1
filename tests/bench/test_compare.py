"""The comparison with peers, of what needs no installing: Perdure and the floor, with sizes that take no time."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from servers.redis import installed, own_server

COMPARE = Path(__file__).parents[2] / "bench" / "compare"


def compare(*arguments: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, COMPARE, *arguments], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_comparison_measures_its_systems_and_writes_tables_of_them(tmp_path: Path) -> None:
    chosen = ["--stores", "sqlite", "--systems", "perdure,floor", "--workloads", "c50,groups10"]
    compare("run", "--tiny", "--rounds", "2", *chosen, "--out", tmp_path)

    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    cells = results["cells"]
    for workload, system in [("c50", "Perdure"), ("c50", "floor"), ("groups10", "Perdure")]:
        cell = cells[workload][f"{system}/sqlite"]
        assert "failures" not in cell
        assert [each["per_second"] > 0 for each in cell["rounds"]] == [True, True]
    assert cells["c50"]["Perdure/sqlite"]["rounds"][1]["runs"] == cells["c50"]["Perdure/sqlite"]["rounds"][1]["asked"]
    assert results["systems"]["Perdure/sqlite"]["versions"]["python"]
    tables = (tmp_path / "results.md").read_text(encoding="utf-8")
    assert "of the floor]" in tables
    assert "the floor is a loop without it" in tables, "a cell that can't be measured says why"


def test_tables_go_to_their_place_in_a_page(tmp_path: Path) -> None:
    cell = {"rounds": [{"per_second": 100.0}, {"per_second": 300.0}, {"per_second": 200.0}]}
    peer = {"rounds": [{"per_second": 50.0, "runs": 7351, "asked": 20_000}]}
    workload = {"name": "c1", "title": "Drain", "unit": "runs/s", "figure": "per_second"}
    results = {
        "machine": {"date": "today"},
        "rounds": 3,
        "stores": {"sqlite": {"server": "SQLite"}},
        "systems": {
            "Perdure/sqlite": {"name": "Perdure", "store": "sqlite", "versions": {"perdure": "1"}},
            "slow/sqlite": {"name": "slow", "store": "sqlite", "versions": {"slow": "2"}},
            "gone/sqlite": {"name": "gone", "store": "sqlite", "missing": "could not be installed: no such package"},
        },
        "workloads": [workload | {"more_is_better": True, "table": "Throughput"}],
        "cells": {"c1": {"Perdure/sqlite": cell, "slow/sqlite": peer, "gone/sqlite": {}}},
    }
    source, page = tmp_path / "results.json", tmp_path / "page.md"
    source.write_text(json.dumps(results), encoding="utf-8")
    page.write_text("before\n<!-- comparison -->\nold\n<!-- end of the comparison -->\nafter\n", encoding="utf-8")

    compare("tables", source, "--into", page)

    text = page.read_text(encoding="utf-8")
    assert "| Perdure | **200 (100–300)** |" in text
    assert "| slow | 50.0 (7,351 of 20,000) [4.0] |" in text, "a cell that is not whole says so"
    assert "| gone | could not be installed: no such package |" in text
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")


def test_results_have_as_many_rounds_as_all_workloads_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(COMPARE)
    known = import_module("workloads")
    workloads = [replace(known.WORKLOADS[0], name=name) for name in ("first", "second")]
    runner = import_module("runner").Runner({}, [], workloads, known.TINY, 3, {}, {})

    assert [each["rounds"] for each in runner.results()] == [1, 1, 1, 2, 2, 3]


@pytest.mark.skipif(not installed(), reason="there is no Redis or Valkey")
def test_commands_inside_of_scripts_are_not_among_those_that_clients_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(COMPARE)
    redis = import_module("throwaway").Redis
    script = "for n = 1, 100 do redis.call('INCR', 'n') end"
    with own_server() as server, redis(server, "none").fresh("anything", lambda url: None) as fresh:
        before = fresh.statements()
        server.run("EVAL", script, 0)
        server.run("GET", "n")
        after = fresh.statements()

        assert before is not None
        assert after == before + 2
        assert fresh.statements() == after, "asking is not counted"
