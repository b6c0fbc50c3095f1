"""`perdure runs`, `perdure failures`, `perdure why`: what runs do, and what can be done to them."""

from __future__ import annotations

import asyncio
import time

import click
import msgspec
from msgspec import json

from perdure.app import App
from perdure.cli.group import Commands, verbose
from perdure.cli.known import unknown
from perdure.cli.output import STATE_STYLES, console, duration, one_line, print_json, print_table
from perdure.cli.params import json_option, label_option
from perdure.cli.plain import plain_run
from perdure.cli.show import as_json, draw, look_up
from perdure.cli.target import on_store, with_store
from perdure.clock import moment
from perdure.errors import InvalidInput, RunNotFound
from perdure.explain import reason_of
from perdure.failures import decode_failure
from perdure.model import RunQuery, RunRecord, State
from perdure.stores.base import Store
from perdure.wording import counted, did_you_mean, does

_PAGE = 200


def _state(value: str) -> State:
    names = [state.value for state in State]
    if value not in names:
        hint = did_you_mean(value, names)
        raise click.BadParameter(f"there is no state {value!r}{hint}; there are: {', '.join(names)}")
    return State(value)


@click.group(cls=Commands)
def runs() -> None:
    """List, show, cancel, retry and signal runs."""


@runs.command("list")
@with_store
@click.option(
    "-s", "--state", "states", type=_state, metavar="STATE", multiple=True, help="Only in this state; may be repeated."
)
@click.option("-w", "--workflow", help="Only of this workflow.")
@click.option("-q", "--queue", help="Only of this queue.")
@click.option("--parent", metavar="RUN", help="Only children of this run.")
@click.option("-g", "--group", help="Only of this group.")
@click.option("--batch", help="Only of this batch.")
@click.option("--cause", help="Only failed ones with this cause, as `perdure failures` has it.")
@label_option
@click.option("-n", "--limit", type=click.IntRange(0), default=50, show_default=True, help="At most so many; 0: all.")
@click.option("--json", "as_text", is_flag=True, help="As a JSON array.")
def list_runs(
    app: App,
    states: tuple[State, ...],
    workflow: str | None,
    queue: str | None,
    parent: str | None,
    group: str | None,
    batch: str | None,
    cause: str | None,
    labels: tuple[tuple[str, str], ...],
    limit: int,
    as_text: bool,
) -> None:
    """List runs, newest first."""
    query = RunQuery(
        states=list(states),
        workflow=workflow,
        queue=queue,
        parent=parent,
        group=group,
        batch=batch,
        cause=cause,
        labels=dict(labels),
    )

    async def work(store: Store) -> tuple[list[tuple[RunRecord, str]], bool, str]:
        found, more = await _pages(store, query, limit)
        live = await store.workers()

        reasons = await asyncio.gather(*(reason_of(store, run, live) for run in found))
        hint = "" if found else await _nothing(store, workflow, queue)
        return list(zip(found, reasons, strict=True)), more, hint

    found, more, hint = on_store(app, work)
    if as_text:
        print_json([plain_run(run, why) for run, why in found])
    elif found:
        _print_runs(found)
        if more:
            click.echo(f"There are more than these {limit}; --limit says how many to show.", err=True)
    if hint:
        click.echo(hint, err=True)


@runs.command()
@click.argument("run")
@with_store
@click.option("-n", "--limit", type=click.IntRange(0), default=100, show_default=True, help="Of the rows; 0: all.")
@click.option("--json", "as_text", is_flag=True, help="As one JSON object.")
@click.pass_context
def show(ctx: click.Context, app: App, run: str, limit: int, as_text: bool) -> None:
    """Draw what a run did and waited for, and when.

    ● is a step, ◔ a sleep, ◆ a signal, ▸ a child run, ◇ the result of another run. With -v the traceback of a failure
    is shown too.
    """
    shown = on_store(app, lambda store: look_up(store, run, limit))
    if as_text:
        print_json(as_json(shown, _now()))
    else:
        draw(console(wide=100), shown, _now(), traces=verbose(ctx))


@runs.command()
@click.argument("run")
@with_store
@click.option("--reason", default="cancelled from the command line", show_default=True, help="Shown to who looks.")
@click.option("--no-children", is_flag=True, help="Let its children go on.")
def cancel(app: App, run: str, reason: str, no_children: bool) -> None:
    """Cancel a run, and its children."""
    state = on_store(app, lambda _: app.run(run).cancel(reason, children=not no_children))
    match state:
        case State.CANCELLED:
            click.echo(f"Run {run} is cancelled.")
        case State.RUNNING:
            click.echo(f"Run {run} is running; it was asked to end.")
        case _:
            click.echo(f"Run {run} had ended before: {state}.")


@runs.command()
@click.argument("run", required=False)
@with_store
@click.option("--from-step", metavar="KEY", help="Do this step, and all after it, again; KEY as `show` has it.")
@click.option("--failed", is_flag=True, help="Instead of RUN: all that failed, and to which the filters fit.")
@click.option("-w", "--workflow", help="With --failed: only of this workflow.")
@click.option("--cause", help="With --failed: only with this cause, as `perdure failures` has it.")
@click.option("-q", "--queue", help="With --failed: only of this queue.")
@label_option
@click.option("-n", "--limit", type=click.IntRange(1), default=1000, show_default=True, help="With --failed: at most.")
@click.option("--dry-run", is_flag=True, help="With --failed: only say which ones.")
def retry(
    app: App,
    run: str | None,
    from_step: str | None,
    failed: bool,
    workflow: str | None,
    cause: str | None,
    queue: str | None,
    labels: tuple[tuple[str, str], ...],
    limit: int,
    dry_run: bool,
) -> None:
    """Queue a run that failed or was cancelled once more, or all that failed.

    What its steps have kept stays. With --from-step also one that succeeded.
    """
    if failed == (run is not None):
        raise click.UsageError("name a run, or give --failed for all that failed")
    if run is not None:
        if workflow or cause or queue or labels or dry_run:
            raise click.UsageError("filters and --dry-run go with --failed, not with a run")
        on_store(app, lambda _: app.run(run).retry(from_step=from_step))
        click.echo(f"Run {run} is queued again.")
        return
    if from_step is not None:
        raise click.UsageError("--from-step goes with a run, not with --failed")

    async def work(store: Store) -> tuple[list[str], str]:
        hint = await unknown(app, store, workflow=workflow, queue=queue)
        retried = await app.retry_failed(
            workflow=workflow, cause=cause, queue=queue, labels=dict(labels), limit=limit, dry_run=dry_run
        )
        return retried, hint

    found, hint = on_store(app, work)
    for each in found:
        click.echo(each)
    does_what = "would be" if dry_run else does(len(found), "is")
    more = f"; there may be more, --limit says how many ({limit})" if len(found) == limit else ""
    click.echo(f"{counted(len(found), 'run')} {does_what} queued again{more}.", err=True)
    if hint:
        click.echo(hint, err=True)


@runs.command()
@click.argument("run")
@with_store
@click.option("--force", is_flag=True, help="Even if it has not ended.")
def delete(app: App, run: str, force: bool) -> None:
    """Remove a run and its children, with all that is kept of them. There is no way back."""
    count = on_store(app, lambda _: app.run(run).delete(force=force))
    click.echo(f"Removed {count} run{'' if count == 1 else 's'}.")


@click.command()
@with_store
@click.option("-w", "--workflow", help="Only of this workflow.")
@click.option("-q", "--queue", help="Only of this queue.")
@label_option
@click.option("-n", "--limit", type=click.IntRange(1), default=50, show_default=True, help="At most so many causes.")
@json_option
def failures(
    app: App,
    workflow: str | None,
    queue: str | None,
    labels: tuple[tuple[str, str], ...],
    limit: int,
    as_text: bool,
) -> None:
    """List what runs failed of, the most frequent first; `perdure runs retry --failed` queues them again."""
    found = on_store(app, lambda _: app.failures(workflow=workflow, queue=queue, labels=dict(labels), limit=limit))
    if as_text:
        print_json(
            [
                {
                    "workflow": each.workflow,
                    "cause": each.cause,
                    "runs": each.runs,
                    "last_at": moment(each.last_at),
                    "example": each.example,
                }
                for each in found
            ]
        )
    elif not found:
        click.echo("No failed runs.", err=True)
    else:
        now = _now()
        print_table(
            ["RUNS", "WORKFLOW", "CAUSE", "LAST", "EXAMPLE"],
            (
                [f"{each.runs:,}", each.workflow, each.cause, f"{duration(now - each.last_at)} ago", each.example]
                for each in found
            ),
        )


@runs.command()
@click.argument("run")
@click.argument("name")
@click.argument("value", metavar="[JSON]", default="null")
@with_store
def signal(app: App, run: str, name: str, value: str) -> None:
    """Send a run the signal NAME, with a value as JSON."""
    try:
        decoded: object = json.decode(value)
    except msgspec.DecodeError as error:
        raise InvalidInput(f"the value is not JSON ({error}); a text needs its quotes: '\"{value}\"'") from None
    on_store(app, lambda _: app.run(run).signal(name, decoded))
    click.echo(f"Run {run} has the signal {name}.")


@click.command()
@click.argument("run")
@with_store
def why(app: App, run: str) -> None:
    """Say why a run is in the state that it is in, and what would change that."""

    async def work(store: Store) -> str:
        handle, record = app.run(run), await store.load(run)
        if record is None:
            raise RunNotFound(f"there is no run {run!r} in this store; `perdure runs list` shows those that are")
        return f"Run {run} ({record.workflow}) {await handle.why()}"

    click.echo(one_line(on_store(app, work)))


# ---


async def _pages(store: Store, query: RunQuery, limit: int) -> tuple[list[RunRecord], bool]:
    """At most `limit` runs (0: all), and whether there are more."""
    found: list[RunRecord] = []
    while True:
        query.limit = min(_PAGE, limit + 1 - len(found)) if limit else _PAGE
        page = await store.runs(query)
        found += page
        if limit and len(found) > limit:
            return found[:limit], True
        if len(page) < query.limit:
            return found, False
        query.after = page[-1].position


async def _nothing(store: Store, workflow: str | None, queue: str | None) -> str:
    """What to say when no run is found: perhaps a name was mistyped."""
    counts = await store.counts()
    for what, given, known in (
        ("workflow", workflow, {each.workflow for each in counts}),
        ("queue", queue, {each.queue for each in counts}),
    ):
        if given is not None and given not in known:
            there = f"; there are runs of: {', '.join(sorted(known))}" if known else ""
            return f"No run has the {what} {given!r}{did_you_mean(given, sorted(known))}{there}"
    return "No runs." if counts == [] else "No such runs."


def _print_runs(found: list[tuple[RunRecord, str]]) -> None:
    from rich.text import Text

    now = _now()
    print_table(
        ["RUN", "WORKFLOW", "STATE", "TRY", "AGE", "TOOK", "WHY"],
        (
            [
                run.id,
                run.workflow,
                Text(run.state, STATE_STYLES[run.state]),
                str(run.attempt),
                duration(now - run.created_at),
                "" if run.started_at is None else duration((run.finished_at or now) - run.started_at),
                one_line(_short(run, why))[:500],
            ]
            for run, why in found
        ),
    )


def _short(run: RunRecord, why: str) -> str:
    """The reason, without what the other columns say."""
    match run.state:
        case State.SUCCEEDED:
            return ""
        case State.FAILED:
            return str(decode_failure(run.body or "null"))
        case State.CANCELLED:
            return str(json.decode(run.body or '""'))
        case _:
            return why


def _now() -> int:
    """By this machine's clock, which is good enough to say how long ago something was."""
    return int(time.time() * 1000)
