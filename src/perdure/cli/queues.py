"""`perdure queues` and `perdure top`: how the queues are, once and live."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import click

from perdure.app import App
from perdure.cli.limits import plain_limits
from perdure.cli.output import console, duration, print_json, print_table
from perdure.cli.params import json_option
from perdure.cli.target import on_store, with_store
from perdure.clock import moment
from perdure.model import LimitRecord, Limits, Millis, QueueReport, ScopeKind, Unserved, WorkerRecord
from perdure.rates import show_limits, show_scope
from perdure.stores.base import Store
from perdure.wording import counted, shown_url

if TYPE_CHECKING:
    from rich.console import RenderableType

_COLUMNS = ["QUEUE", "READY", "OLDEST", "RUNNING", "HELD", "SCHEDULED", "WAITING", "PER MIN", "LIMITS"]
_WORKER_COLUMNS = ["WORKER", "PID", "RUNS", "FOR", "QUEUES"]


@click.command()
@with_store
@json_option
def queues(app: App, as_text: bool) -> None:
    """Show each queue: how many runs are ready, running and held, and why."""
    seen = on_store(app, _look)
    if as_text:
        print_json([_plain(report) for report in seen.reports])
    elif not seen.reports:
        click.echo("No queue has runs.", err=True)
    else:
        print_table(_COLUMNS, (_row(report, seen.now) for report in seen.reports))
        for line in (*_held(seen.reports), *_around(seen.limits)):
            click.echo(line)


@click.command()
@with_store
@click.option("--every", type=click.FloatRange(0.1), default=1.0, show_default=True, help="Seconds between two looks.")
def top(app: App, every: float) -> None:
    """Watch queues and workers in the terminal; q or Ctrl-C ends it. Where there is no terminal it shows them once."""
    try:
        on_store(app, lambda store: _watch(app, store, every))
    except KeyboardInterrupt:
        pass


class _Seen(NamedTuple):
    """All that is shown, and when it was so: ages are by the store's clock, as what they are told of is."""

    now: Millis
    reports: Sequence[QueueReport]
    workers: Sequence[WorkerRecord]
    limits: Sequence[LimitRecord]


async def _look(store: Store) -> _Seen:
    return _Seen(await store.now(), await store.queues(), await store.workers(), await store.limits())


async def _watch(app: App, store: Store, every: float) -> None:
    from rich.live import Live

    out = console()
    if not sys.stdout.isatty():
        out.print(_screen(app, await _look(store)))
        return
    quit_asked = asyncio.Event()
    with _keys(quit_asked), Live(console=out, screen=True, auto_refresh=False) as live:
        while not quit_asked.is_set():
            live.update(_screen(app, await _look(store)), refresh=True)
            try:
                async with asyncio.timeout(every):
                    await quit_asked.wait()
            except TimeoutError:
                pass


@contextmanager
def _keys(quit_asked: asyncio.Event) -> Generator[None]:
    """Listens for a q, where a terminal tells of keys one by one (not on Windows: there Ctrl-C ends it)."""
    try:
        import termios
        import tty
    except ImportError:
        yield
        return
    if not sys.stdin.isatty():
        yield
        return
    loop, terminal = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def read() -> None:
        if sys.stdin.read(1) in ("q", "Q", ""):
            quit_asked.set()

    tty.setcbreak(terminal)
    loop.add_reader(terminal, read)
    try:
        yield
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _screen(app: App, seen: _Seen) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    now, reports, workers, limits = seen
    ready, running = sum(each.ready for each in reports), sum(each.running for each in reports)
    slots = sum(each.concurrency for each in workers)
    ended = sum(each.ended_last_minute for each in reports)
    head = Text.assemble(
        (shown_url(app.url), "bold"),
        f"  {moment(now):%H:%M:%S} UTC  {running:,} running, {ready:,} ready, {ended:,} ended in the last minute,"
        f" {counted(len(workers), 'worker')} with {counted(slots, 'slot')}",
    )
    return Group(
        head,
        "",
        _table(_COLUMNS, [_row(report, now) for report in reports]),
        *_held(reports),
        *_around(limits),
        "",
        _table(_WORKER_COLUMNS, [_worker(each, now) for each in workers]),
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> RenderableType:
    from rich.table import Table

    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*row)
    return table


def _row(report: QueueReport, now: int) -> list[str]:
    held = sum(each.runs for each in report.held)
    oldest = "" if report.oldest_ready_at is None else duration(now - report.oldest_ready_at)
    limits = show_limits(report.limits)
    if report.paused:
        limits = "paused" if limits == "no limit" else f"paused, {limits}"
    return [
        report.queue,
        f"{report.ready:,}",
        oldest,
        f"{report.running:,}",
        f"{held:,}",
        f"{report.scheduled:,}",
        f"{report.waiting:,}",
        f"{report.ended_last_minute:,}",
        "" if limits == "no limit" else limits,
    ]


def _held(reports: Sequence[QueueReport]) -> list[str]:
    """A line for each reason that holds runs, or keeps those that are ready, and for runs that no worker takes."""
    lines: list[str] = []
    for report in reports:
        lines += [f"  {report.queue}: {each.runs:,} held, {each.reason}" for each in report.held]
        lines += [f"  {report.queue}: {reason}" for reason in report.kept]
        lines += [f"  {report.queue}: no live worker takes {show_unserved(each)}" for each in report.unserved]
    return lines


def show_unserved(runs: Unserved) -> str:
    """Runs that no live worker takes, in words."""
    version = f", pinned to version {runs.version}" if runs.version else ""
    return f"{counted(runs.runs, 'run')} of workflow {runs.workflow}{version}"


def _around(limits: Sequence[LimitRecord]) -> list[str]:
    """A line for each limit and pause of the whole store and of workflows: they hold in every queue."""
    lines: list[str] = []
    for each in limits:
        if each.scope.kind in (ScopeKind.NAMESPACE, ScopeKind.WORKFLOW):
            said = ["paused"] if each.paused else []
            if each.limits != Limits():
                said.append(f"{show_limits(each.limits)}, {each.running:,} running now")
            if said:
                lines.append(f"  {show_scope(each.scope)}: {', '.join(said)}")
    return lines


def _worker(worker: WorkerRecord, now: int) -> list[str]:
    return [
        worker.name,
        str(worker.pid),
        f"{worker.running}/{worker.concurrency}",
        duration(now - worker.started_at),
        ",".join(worker.queues),
    ]


def _plain(report: QueueReport) -> dict[str, object]:
    return {
        "queue": report.queue,
        "ready": report.ready,
        "oldest_ready_at": None if report.oldest_ready_at is None else moment(report.oldest_ready_at),
        "running": report.running,
        "held": {each.reason: each.runs for each in report.held},
        "kept": report.kept,
        "unserved": [
            {"workflow": each.workflow, "version": each.version or None, "runs": each.runs} for each in report.unserved
        ],
        "scheduled": report.scheduled,
        "waiting": report.waiting,
        "ended_last_minute": report.ended_last_minute,
        "paused": report.paused,
        "limits": plain_limits(report.limits),
    }
