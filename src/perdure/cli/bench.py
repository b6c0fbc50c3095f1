"""`perdure bench`: how fast this machine, this store and this version are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click

from perdure.bench.report import Report
from perdure.bench.target import Target, loop_factory, open_target
from perdure.cli.group import Commands
from perdure.cli.output import console

F = TypeVar("F", bound=Callable[..., Any])

COUNT = click.IntRange(min=0)
POSITIVE = click.IntRange(min=1)


def _option(name: str, default: int, help: str, kind: click.IntRange = POSITIVE) -> Callable[[F], F]:
    return click.option(name, type=kind, default=default, show_default=True, help=help)


def _where(command: F) -> F:
    """The options that all measurements have."""
    as_json = click.option("--json", "as_json", is_flag=True, help="One JSON object on one line.")
    url = click.option(
        "--url",
        help="The store to measure, best one that is made for it: what is measured stays in there as runs that ended."
        "  [default: a temporary SQLite file]",
    )
    return url(as_json(command))


@click.group(cls=Commands)
def bench() -> None:
    """Measure a store, and the engine on it.

    Figures depend on the machine, its disk, and what else it does: compare what one machine measured in one hour, and
    shares and ratios rather than speeds.
    """


@bench.command()
@_where
@_option("--runs", 10_000, "Runs to drain in each round.")
@_option("--concurrency", 50, "Runs that the worker executes at once.")
@_option("--steps", 0, "Steps of each run, one after another.", COUNT)
@_option("--children", 0, "Child runs that each run starts and awaits, all at once.", COUNT)
@_option("--payload-bytes", 0, "Size of each input, step argument, step result and result.", COUNT)
@_option("--groups", 0, "Groups that the runs are in, evenly.", COUNT)
@_option("--group-limit", 0, "Runs of a group at a time; 0: so many that the groups together fill the slots.", COUNT)
@_option("--repeat", 3, "Rounds; the median counts.")
def drain(
    url: str | None,
    as_json: bool,
    runs: int,
    concurrency: int,
    steps: int,
    children: int,
    payload_bytes: int,
    groups: int,
    group_limit: int,
    repeat: int,
) -> None:
    """How fast one worker process drains a queue.

    Beside it a bare loop makes the same calls to the store: the floor, of which the engine leaves a share.
    """
    from perdure.bench.drain import Shape, measure

    most = group_limit or max(1, -(-concurrency // (groups or 1)))
    shape = Shape(runs, concurrency, steps, children, payload_bytes, groups, most)
    _report(url, as_json, lambda target: measure(target, shape, repeat))


@bench.command()
@_where
@_option("--runs", 500, "Runs to start, one after another.")
@_option("--payload-bytes", 0, "Size of each input and result.", COUNT)
def latency(url: str | None, as_json: bool, runs: int, payload_bytes: int) -> None:
    """Milliseconds from start to result.

    The worker is idle, and in a process of its own.
    """
    from perdure.bench.latency import measure

    _report(url, as_json, lambda target: measure(target, runs, payload_bytes))


@bench.command()
@_where
@_option("--runs", 20_000, "Runs to make with one start_many.")
@_option("--single", 500, "Runs to make with a start for each.")
@_option("--payload-bytes", 0, "Size of each input.", COUNT)
@_option("--repeat", 3, "Rounds; the median counts.")
def enqueue(url: str | None, as_json: bool, runs: int, single: int, payload_bytes: int, repeat: int) -> None:
    """How fast runs are made.

    In bulk (per_second), and one by one (single_per_second).
    """
    from perdure.bench.enqueue import measure

    _report(url, as_json, lambda target: measure(target, runs, single, payload_bytes, repeat))


@bench.command()
@_where
@_option("--claimed", 20_000, "Runs that another worker owns.", COUNT)
@_option("--delayed", 20_000, "Runs that are due tomorrow.", COUNT)
@_option("--finished", 50_000, "Runs that have ended.", COUNT)
@_option("--other-queue", 10_000, "Runs that are ready on another queue.", COUNT)
@_option("--held", 10_000, "Runs of a group that is full.", COUNT)
@_option("--paused", 10_000, "Runs of a workflow that is paused.", COUNT)
@_option("--unknown", 10_000, "Runs of a workflow that no worker knows.", COUNT)
@_option("--other-session", 10_000, "Runs of sessions that another worker owns.", COUNT)
@_option("--runs", 10_000, "Runs to claim.")
@_option("--batch", 50, "Runs to claim in one exchange, up to 64.")
def claim(
    url: str | None,
    as_json: bool,
    claimed: int,
    delayed: int,
    finished: int,
    other_queue: int,
    held: int,
    paused: int,
    unknown: int,
    other_session: int,
    runs: int,
    batch: int,
) -> None:
    """What a claim costs beside other runs.

    These are owned by another worker, delayed, finished, on another queue, or held: by a full group, a pause, workers
    that don't know them, another worker's session. It is compared with a store that has none of them.
    """
    from perdure.bench.claim import Noise, measure

    noise = Noise(claimed, delayed, finished, other_queue, held, paused, unknown, other_session)

    async def compare(target: Target) -> Report:
        if not target.temporary:
            return await measure(target, None, noise, runs, batch)
        with open_target(None) as quiet:
            return await measure(target, quiet, noise, runs, batch)

    _report(url, as_json, compare)


@bench.command()
@_where
@_option("--large", 20_000, "Runs of the large group.")
@_option("--small", 50, "Small groups.")
@_option("--each", 20, "Runs of each small group.")
@_option("--workers", 2, "Workers, in one process.")
@_option("--concurrency", 50, "Runs that each worker executes at once.")
def fairness(url: str | None, as_json: bool, large: int, small: int, each: int, workers: int, concurrency: int) -> None:
    """How long small groups wait beside a large one that was there first."""
    from perdure.bench.fairness import Groups, measure

    _report(url, as_json, lambda target: measure(target, Groups(large, small, each), workers, concurrency))


@bench.command()
@_where
@_option("--runs", 10_000, "Runs to park, half of them on timers, half on signals.")
@_option("--wakes", 200, "Runs more of either kind to wake, one after another.")
def waiting(url: str | None, as_json: bool, runs: int, wakes: int) -> None:
    """What parked runs cost, and how late they wake."""
    from perdure.bench.waiting import measure

    _report(url, as_json, lambda target: measure(target, runs, wakes))


@bench.command()
@_where
@_option("--runs", 10_000, "Runs to execute at once, each awaiting a step.")
@click.option("--seconds", type=click.FloatRange(min=0), default=5.0, show_default=True, help="Over which steps end.")
def lag(url: str | None, as_json: bool, runs: int, seconds: float) -> None:
    """How late the event loop is with very many runs."""
    from perdure.bench.lag import measure

    _report(url, as_json, lambda target: measure(target, runs, seconds))


def _report(url: str | None, as_json: bool, measure: Callable[[Target], Coroutine[Any, Any, Report]]) -> None:
    with open_target(url) as target, asyncio.Runner(loop_factory=loop_factory()) as runner:
        report = runner.run(measure(target))
    if as_json:
        click.echo(report.as_json())
    else:
        _show(report)


def _show(report: Report) -> None:
    """The figures for people."""
    out = console(wide=100)
    out.print(f"perdure bench {report.bench}", style="bold")
    figures = {name: _text(value) for name, value in report.figures.items() if not isinstance(value, list)}
    widths = [max(map(len, column)) for column in (figures, figures.values())]
    for name, text in figures.items():
        out.print(f"  {name:<{widths[0]}}  {text:>{widths[1]}}")
    out.print(report.reading)
    for title, facts in report.context().items():
        out.print(f"{title}: " + ", ".join(f"{name} {_text(value)}" for name, value in facts.items()), style="dim")


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:,.4g}"
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
