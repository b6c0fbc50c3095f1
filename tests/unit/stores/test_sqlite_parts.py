from __future__ import annotations

import asyncio
import re
import sqlite3
from pathlib import Path

import pytest

from perdure.model import Checkpoint, Kind, Outcome, Signal, Start
from perdure.stores import open_store
from perdure.stores.base import Finding, Registration, Severity
from perdure.stores.exchange import Exchange, Save, Settle, To
from perdure.stores.sqlite.lists import _statement
from perdure.stores.sqlite.sql import load, migrations, parse, statements


def test_a_file_is_split_into_its_statements() -> None:
    assert parse("-- about\n\n-- name: one\n-- why\nSELECT 1;\n\n-- name: two\nSELECT\n    2;\n") == {
        "one": "SELECT 1",
        "two": "SELECT\n    2",
    }


def test_a_trigger_is_one_statement() -> None:
    script = "CREATE TABLE a (b);\nCREATE TRIGGER c AFTER UPDATE ON a\nBEGIN\nDELETE FROM a;\nEND;\n-- end\nSELECT 1;\n"
    assert [statement.split()[0] for statement in statements(script)] == ["CREATE", "CREATE", "--"]


def test_migrations_are_numbered_without_gaps() -> None:
    assert [number for number, _, _ in migrations()] == list(range(1, len(migrations()) + 1))


@pytest.mark.parametrize(
    "file",
    [
        "claim",
        "control",
        "enqueue",
        "exchange",
        "limits",
        "migrate",
        "queues",
        "read",
        "reasons",
        "wake",
        "worker",
    ],
)
def test_every_statement_is_there(file: str) -> None:
    assert all(load(file).values())


def test_the_doctor_finds_a_new_store_healthy(tmp_path: Path) -> None:
    async def check() -> set[Severity]:
        store = open_store(f"sqlite:///{tmp_path}/a.db?synchronous=normal")
        await store.open()
        findings = await store.check()
        await store.close()
        return {finding.severity for finding in findings if "synchronous" not in finding.what}

    assert asyncio.run(check()) == {Severity.OK}


@pytest.mark.parametrize(
    ("change", "severity", "what"),
    [
        ("DROP INDEX run_ready", Severity.PROBLEM, "changed the schema: index run_ready"),
        ("DROP TRIGGER run_ended", Severity.PROBLEM, "changed the schema: trigger run_ended"),
        ("ALTER TABLE run ADD COLUMN mine TEXT", Severity.PROBLEM, "changed the schema: table run"),
        ("CREATE INDEX mine ON run (created_at)", Severity.WARNING, "not of this library: index mine"),
        ("ANALYZE", None, ""),
    ],
)
def test_the_doctor_finds_what_somebody_changed(
    tmp_path: Path, change: str, severity: Severity | None, what: str
) -> None:
    async def check() -> list[Finding]:
        store = open_store(f"sqlite:///{tmp_path}/a.db")
        await store.open()
        connection = sqlite3.connect(tmp_path / "a.db")
        connection.execute(change)
        connection.commit()
        connection.close()
        findings = await store.check()
        await store.close()
        return [finding for finding in findings if finding.severity != Severity.OK]

    bad = asyncio.run(check())
    assert [finding.severity for finding in bad] == ([] if severity is None else [severity])
    assert all(what in finding.what and finding.advice for finding in bad)


def plan_of(file: str, name: str, params: dict[str, object], path: Path) -> str:
    return plan_of_text(load(file)[name], params, path)


def plan_of_text(sql: str, params: dict[str, object], path: Path) -> str:
    async def explain() -> str:
        store = open_store(f"sqlite:///{path}/a.db")
        await store.open()
        rows = await store._read(  # type: ignore[attr-defined]
            lambda tx: tx.connection.execute("EXPLAIN QUERY PLAN " + sql, params).fetchall()
        )
        await store.close()
        return "\n".join(row[3] for row in rows)

    return asyncio.run(explain())


def scanned(sql: str, plan: str) -> list[str]:
    """The lines of a plan that scan runs, by whatever name the statement has for them. (A walk of an index in its order
    says `USING`.)"""
    names = {"run", *re.findall(r"(?<!\.)\brun AS (\w+)", sql)}
    found = [line for line in plan.splitlines() if line.startswith("SCAN ") and "USING" not in line]
    return [line for line in found if line.split()[1] in names]


def test_a_scan_of_runs_is_found_by_their_alias(tmp_path: Path) -> None:
    sql = "SELECT z.id FROM json_each(:ids) AS e CROSS JOIN run AS z WHERE z.created_at > e.value"
    assert scanned(sql, plan_of_text(sql, {"ids": "[]"}, tmp_path)) == ["SCAN z"]
    found = sql.replace("z.created_at > ", "z.id = ")
    assert scanned(found, plan_of_text(found, {"ids": "[]"}, tmp_path)) == []


def test_a_claim_walks_the_ready_index_and_no_table(tmp_path: Path) -> None:
    params = dict.fromkeys(("worker", "slots", "after"), 1)
    plan = plan_of("claim", "turns", {**params}, tmp_path)
    assert "SEARCH q USING COVERING INDEX run_ready (lane=? AND owner=?)" in plan or (
        "SEARCH q USING INDEX run_ready (lane=? AND owner=?)" in plan
    )
    assert scanned(load("claim")["turns"], plan) == []


def test_due_timers_and_deadlines_use_their_indexes(tmp_path: Path) -> None:
    params: dict[str, object] = {"now": 1, "limit": 1}
    assert "run_timer (wake_at<?)" in plan_of("exchange", "promote", params, tmp_path)
    assert "run_deadline (deadline<?)" in plan_of("exchange", "overdue", params, tmp_path)


def test_heads_and_replies_scan_no_runs(tmp_path: Path) -> None:
    head = plan_of("exchange", "head", {"refs": "{}", "worker": 1, "skips": "[]", "now": 1}, tmp_path)
    params: dict[str, object] = {"worker": 1, "first": 1, "last": 2, "page": 3, "page_bytes": 4, "now": 1, "due": 1}
    params["skips"] = "[]"
    reply = plan_of("exchange", "reply", params, tmp_path)
    assert scanned(load("exchange")["head"], head) == []
    assert scanned(load("exchange")["reply"], reply) == []


def test_unique_keys_are_found_by_their_index(tmp_path: Path) -> None:
    plan = plan_of("unique", "holders", {"keys": "[]"}, tmp_path)
    assert "run_unique (unique_key=? AND finished_at=?)" in plan
    assert "run_unique (unique_key=? AND finished_at>?)" in plan
    assert "run_unique" in plan_of("unique", "taken", {"runs": "[]"}, tmp_path)


def test_what_is_pruned_is_walked_in_the_order_of_finishing(tmp_path: Path) -> None:
    plan = plan_of("retention", "ended", {"lane": 1, "state": "failed"}, tmp_path)
    assert plan == "SEARCH run USING INDEX run_prunable (lane=? AND state=?)"
    assert "SEARCH run USING INTEGER PRIMARY KEY" in plan_of("retention", "prune", {"ended": "[]"}, tmp_path)


def test_what_keeps_runs_from_being_pruned_is_found_by_its_index(tmp_path: Path) -> None:
    keepers = plan_of("retention", "keepers", {"limit": 1}, tmp_path)
    assert "run_kept (kept>?)" in keepers
    assert "batch_empty (empty_since<?)" in plan_of("retention", "empty", {"before": 1, "limit": 1}, tmp_path)


def test_the_live_runs_of_a_schedule_are_found_by_their_index(tmp_path: Path) -> None:
    assert plan_of("schedule", "live", {"name": "s"}, tmp_path).count("run_schedule (schedule=?)") == 1


def test_lists_walk_their_index_in_order(tmp_path: Path) -> None:
    walks = {
        "all": "r",
        "failed": "run_failed",
        "children": "run_child",
        "batch": "run_batch",
        "cause": "failure_cause",
    }
    walks["label"] = "label_value"
    names = ("states", "workflow", "queue", "parent", "batch", "group", "cause", "labels", "limit", "after")
    for walk, index in walks.items():
        for direction in ("newest", "oldest"):
            plan = plan_of_text(_statement(direction, walk), {**dict.fromkeys(names)}, tmp_path)
            assert index in plan
            assert "TEMP B-TREE" not in plan, f"{walk}, {direction}: {plan}"
    # A group may have runs on several queues, which are put into order.
    assert "run_group" in plan_of_text(_statement("newest", "group"), {**dict.fromkeys(names)}, tmp_path)


def test_counts_walk_no_runs_that_are_queued_or_running_or_have_ended(tmp_path: Path) -> None:
    plan = plan_of("read", "counts", {}, tmp_path)
    walks = {line for line in plan.splitlines() if " run " in line}
    assert walks == {"SCAN run USING COVERING INDEX run_away"}


def test_a_claim_within_budgets_reads_heads_of_lanes_and_no_table(tmp_path: Path) -> None:
    plan = plan_of("claim", "heads", {"worker": 1, "least": -1, "slots": 3}, tmp_path)
    assert "run_ready (lane=? AND owner=?)" in plan
    assert scanned(load("claim")["heads"], plan) == []
    assert plan_of("claim", "running", {}, tmp_path) == "SCAN lane"
    assert "scope_budget" in plan_of("claim", "budgets", {"groups": "[]"}, tmp_path)
    ahead = plan_of("claim", "ahead", {"runs": "[]", "most": 1}, tmp_path)
    assert "run_put_off (grp=? AND priority<?)" in ahead
    assert "run_put_off (grp=? AND priority=? AND place<?)" in ahead


def test_what_is_kept_of_a_run_that_continues_for_ever_does_not_grow(tmp_path: Path) -> None:
    async def poll() -> int:
        store = open_store(f"sqlite:///{tmp_path}/a.db")
        await store.open()
        await store.enqueue([Start("r", "w", "q", "0")])
        worker = await store.register(
            Registration(name="w", host="h", pid=1, queues=["q"], workflows=["w"], concurrency=1, lease=60_000)
        )
        for serial in range(1, 40, 2):
            await store.signal(Signal(f"signal {serial}", "r", "go", "1"))
            [claim] = (await store.exchange(Exchange(worker, serial, slots=1))).claims
            kept = Checkpoint("got", Kind.SIGNAL, Outcome.OK, "1")
            saves = [Save(claim.ref, claim.token, kept, consumes=claim.signals[0].position)]
            settles = [Settle(claim.ref, claim.token, To.CONTINUE, "0")]
            await store.exchange(Exchange(worker, serial + 1, saves=saves, settles=settles))
        left = await store._read(lambda tx: int(tx.row("SELECT count(*) FROM signal")[0]))  # type: ignore[attr-defined]
        await store.close()
        return left

    assert asyncio.run(poll()) == 1
