"""`perdure workers`, `perdure migrate`, `perdure doctor`: the store and who serves it."""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from importlib.metadata import version
from textwrap import wrap
from typing import Any, TypeVar

import click

from perdure.app import App
from perdure.cli.known import unknown
from perdure.cli.output import console, duration, one_line, print_json, print_table
from perdure.cli.params import length_of_time
from perdure.cli.queues import show_unserved
from perdure.cli.target import on_store, with_store
from perdure.clock import moment
from perdure.errors import StoreError
from perdure.model import QueueReport, WorkerRecord
from perdure.stores import open_store
from perdure.stores.base import Finding, Severity, Store
from perdure.wording import counted, does, shown_url

T = TypeVar("T")

_INDENT = max(map(len, Severity)) + 2
_STYLES = {Severity.OK: "green", Severity.WARNING: "yellow", Severity.PROBLEM: "bold red"}


@click.command()
@with_store
@click.option("--json", "as_text", is_flag=True, help="As a JSON array.")
def workers(app: App, as_text: bool) -> None:
    """List the workers that are alive."""
    found = on_store(app, lambda store: store.workers())
    if as_text:
        print_json([_plain_worker(each) for each in found])
    elif not found:
        click.echo("No live worker; start one with `perdure worker MODULE:APP`.", err=True)
    else:
        _print_workers(found)


@click.command()
@with_store
@click.option("--check", is_flag=True, help="Only say what there is to do; ends with 1 when there is something.")
@click.option("--print", "as_script", is_flag=True, help="Only print the SQL that it would run, for sqlite3 or psql.")
def migrate(app: App, check: bool, as_script: bool) -> None:
    """Bring the store's schema up to date. Safe at any time, from any number of machines."""
    if check and as_script:
        raise click.UsageError("--check and --print exclude each other")
    if as_script:
        click.echo(_ask(app.url, lambda store: store.script()), nl=False)
        return
    missing = _ask(app.url, lambda store: store.pending() if check else store.migrate())
    for name in missing:
        click.echo(f"{'to be applied:' if check else 'applied'} {name}")
    if check and missing:
        raise SystemExit(1)
    click.echo(f"{shown_url(app.url)} is up to date.")


@click.command()
@with_store
@click.option("-w", "--workflow", help="Only of this workflow.")
@click.option("-s", "--state", type=click.Choice(["succeeded", "failed", "cancelled"]), help="Only with this outcome.")
@click.option("--age", type=length_of_time, metavar="TIME", help="Those that ended longer ago: 12h, 30d.")
@click.option("--count", type=click.IntRange(0), metavar="N", help="All but the latest N.")
def prune(app: App, workflow: str | None, state: str | None, age: timedelta | None, count: int | None) -> None:
    """Remove runs that ended, by the app's own policies (app.retain) or by the one that is given."""

    async def work(store: Store) -> tuple[int, str]:
        hint = await unknown(app, store, workflow=workflow)
        return await app.prune(workflow=workflow, state=state, age=age, count=count), hint

    removed, hint = on_store(app, work)
    click.echo(f"Removed {counted(removed, 'run')}.")
    if hint:
        click.echo(hint, err=True)


@click.command()
@with_store
@click.option("--json", "as_text", is_flag=True, help="As a JSON array.")
def doctor(app: App, as_text: bool) -> None:
    """Look for what is wrong with the store, the app and its workers. Ends with 1 when there is a problem."""
    findings = _ask(app.url, lambda store: _examine(app, store))
    if as_text:
        print_json(findings)
    else:
        _print_findings(findings)
    if any(each.severity is Severity.PROBLEM for each in findings):
        raise SystemExit(1)


def _ask(url: str, question: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
    """Asks a store that is not opened: its schema may be one that can't be used."""

    async def asked() -> T:
        store = open_store(url)
        try:
            return await question(store)
        finally:
            await store.close()

    return asyncio.run(asked())


async def _examine(app: App, store: Store) -> list[Finding]:
    findings = [Finding(Severity.OK, f"Perdure {version('perdure')} on Python {platform.python_version()}")]
    if app.workflows:
        app.worker()  # raises what is wrong with a definition
        count = len(app.workflows)
        findings.append(Finding(Severity.OK, f"{counted(count, 'workflow')} {does(count, 'is')} well defined"))
    findings += await store.check()
    try:
        await store.open()
        findings += unserved(await store.queues())
    except StoreError as error:
        if not any(str(error) in each.what for each in findings):
            advice = "do what is said there or in the other lines, and look again"
            findings.append(Finding(Severity.PROBLEM, f"the queues can't be looked at: {error}", advice))
    return findings


def unserved(reports: Sequence[QueueReport]) -> list[Finding]:
    """A warning for each kind of runs that are ready and that no live worker takes."""
    return [
        Finding(
            Severity.WARNING,
            f"no live worker takes {show_unserved(each)}, ready on queue {report.queue}",
            "start a worker with that code, or let newer code take them with accepts=[…]"
            if each.version
            else "start a worker whose app defines it, with that queue",
        )
        for report in reports
        for each in report.unserved
    ]


# ---


def _plain_worker(worker: WorkerRecord) -> dict[str, object]:
    return {
        "name": worker.name,
        "host": worker.host,
        "pid": worker.pid,
        "queues": worker.queues,
        "workflows": worker.workflows,
        "concurrency": worker.concurrency,
        "running": worker.running,
        "started_at": moment(worker.started_at),
        "lease_until": moment(worker.lease_until),
    }


def _print_workers(found: Sequence[WorkerRecord]) -> None:
    now = time.time() * 1000
    print_table(
        ["WORKER", "PID", "RUNS", "FOR", "QUEUES", "WORKFLOWS"],
        (
            [
                each.name,
                str(each.pid),
                f"{each.running}/{each.concurrency}",
                duration(now - each.started_at),
                ",".join(each.queues),
                ", ".join(each.workflows),
            ]
            for each in found
        ),
    )


def _print_findings(findings: Sequence[Finding]) -> None:
    """Whole, in lines that the terminal has room for: what counts is said last."""
    from rich.text import Text

    out = console()
    for each in findings:
        said = [one_line(each.what), *([f"what to do: {one_line(each.advice)}"] if each.advice else [])]
        lines = [
            line for text in said for line in wrap(text, max(out.width - _INDENT, _INDENT), break_on_hyphens=False)
        ]
        head = Text(each.severity.ljust(_INDENT), _STYLES[each.severity])
        out.print(head + f"\n{' ' * _INDENT}".join(lines), soft_wrap=True)
