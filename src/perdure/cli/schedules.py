"""`perdure schedules`: starts that recur."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import click
import msgspec

from perdure.app import App
from perdure.cli.group import Commands
from perdure.cli.output import duration, print_json, print_table
from perdure.cli.params import json_option, length_of_time, moment_in_time
from perdure.cli.target import load_app, on_store, with_store
from perdure.clock import moment
from perdure.model import Missed, Overlap, Schedule
from perdure.schedules import ScheduleStatus
from perdure.stores.base import Store


@click.group(cls=Commands)
def schedules() -> None:
    """Add, list, pause, trigger and remove schedules."""


@schedules.command("add")
@click.argument("target", metavar="MODULE:APP")
@click.argument("name")
@click.argument("workflow")
@click.argument("given", metavar="[JSON]", default="")
@click.option("--cron", metavar="LINE", help="Minute, hour, day of month, month, day of week: '0 9 * * mon-fri'.")
@click.option("--tz", default="UTC", show_default=True, help="The time zone of --cron, such as Europe/Berlin.")
@click.option("--every", type=length_of_time, metavar="TIME", help="Instead of --cron: 30s, 15m, 2h, 1d.")
@click.option("--at", type=moment_in_time, metavar="MOMENT", help="Instead of --cron, once: 2030-01-31T12:00:00Z.")
@click.option(
    "--missed",
    type=click.Choice([each.value for each in Missed]),
    default=Missed.LAST.value,
    show_default=True,
    help="Times that passed while no worker lived.",
)
@click.option(
    "--overlap",
    type=click.Choice([each.value for each in Overlap]),
    default=Overlap.ALLOW.value,
    show_default=True,
    help="While the run before goes on.",
)
@click.option("--jitter", type=length_of_time, metavar="TIME", default="0", help="Put each off by up to this.")
@click.option("--queue", help="Another queue than the workflow's.")
def add_schedule(
    target: str,
    name: str,
    workflow: str,
    given: str,
    cron: str | None,
    tz: str,
    every: timedelta | None,
    at: datetime | None,
    missed: str,
    overlap: str,
    jitter: timedelta,
    queue: str | None,
) -> None:
    """Add a schedule for a workflow, or change the one of that name.

    JSON is the input of its runs, as `perdure start` takes it.
    """
    app = load_app(target)
    found = app.find(workflow)
    signature = found.definition.signature
    args, kwargs = signature.decode(signature.from_json(given))
    options = found.options(queue=queue)
    status = on_store(
        app,
        lambda _: app.schedules.add(
            name,
            options,
            cron,
            args=args,
            kwargs=kwargs,
            tz=tz,
            every=every,
            at=at,
            missed=missed,
            overlap=overlap,
            jitter=jitter,
        ),
    )
    paused = f"; it is paused, and stays so until `perdure schedules resume {name}`" if status.paused else ""
    click.echo(f"Schedule {name} starts {workflow} {timing(status.record.schedule)}{_next(status)}{paused}.")


@schedules.command("list")
@with_store
@json_option
def list_schedules(app: App, as_text: bool) -> None:
    """List schedules, each with its next five times (in UTC)."""

    async def work(store: Store) -> tuple[Sequence[ScheduleStatus], Sequence[str], Sequence[tuple[str, str]]]:
        control = app.schedules
        return await control.list(), await control.renamed(store), await control.unserved(store)

    found, renamed, unserved = on_store(app, work)
    if as_text:
        print_json([_plain(status) for status in found])
        return
    if not found:
        click.echo("No schedules.", err=True)
        return
    print_table(
        ["SCHEDULE", "WORKFLOW", "WHEN", "LAST", "NEXT"],
        (
            [
                status.name,
                status.record.schedule.start.workflow,
                timing(status.record.schedule),
                "" if status.record.last_slot is None else _time(moment(status.record.last_slot)),
                _when(status),
            ]
            for status in found
        ),
    )
    for name in renamed:
        click.echo(f"No code declares schedule {name} any more (was it renamed?); it goes on until it is removed.")
    for name, workflow in unserved:
        click.echo(f"No live worker serves workflow {workflow}, which schedule {name} starts.", err=True)


@schedules.command()
@click.argument("name")
@with_store
def pause(app: App, name: str) -> None:
    """Keep a schedule from firing."""
    on_store(app, lambda _: app.schedules.pause(name))
    click.echo(f"Schedule {name} is paused.")


@schedules.command()
@click.argument("name")
@with_store
def resume(app: App, name: str) -> None:
    """Let a schedule fire again, from its next time on."""
    status = on_store(app, lambda _: app.schedules.resume(name))
    click.echo(f"Schedule {name} is not paused{_next(status)}.")


@schedules.command()
@click.argument("name")
@with_store
def trigger(app: App, name: str) -> None:
    """Start a run of a schedule now, and print its id."""
    click.echo(on_store(app, lambda _: app.schedules.trigger(name)).id)


@schedules.command()
@click.argument("name")
@with_store
def remove(app: App, name: str) -> None:
    """Remove a schedule; runs that it made stay."""
    on_store(app, lambda _: app.schedules.remove(name))
    click.echo(f"Schedule {name} is removed.")


# ---


def timing(schedule: Schedule) -> str:
    """When a schedule fires, in words."""
    if schedule.cron is not None:
        return f"{schedule.cron} ({schedule.tz})"
    if schedule.every is not None:
        return f"every {duration(schedule.every)}"
    return "" if schedule.at is None else f"at {_time(moment(schedule.at))}"


def _when(status: ScheduleStatus) -> str:
    if status.broken is not None:
        return f"broken: {status.broken}"
    return "paused" if status.paused else ", ".join(map(_time, status.upcoming)) or "over"


def _next(status: ScheduleStatus) -> str:
    return f", next at {_time(status.upcoming[0])} UTC" if status.upcoming else ", and has no time to come"


def _time(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M" if at.second == 0 else "%Y-%m-%d %H:%M:%S")


def _plain(status: ScheduleStatus) -> dict[str, Any]:
    schedule, record = status.record.schedule, status.record
    return {
        "name": status.name,
        "workflow": schedule.start.workflow,
        "queue": schedule.start.queue,
        "input": msgspec.Raw(schedule.start.input.encode()),
        "cron": schedule.cron,
        "tz": schedule.tz,
        "every_ms": schedule.every,
        "at": None if schedule.at is None else moment(schedule.at),
        "missed": schedule.missed,
        "overlap": schedule.overlap,
        "jitter_ms": schedule.jitter,
        "paused": status.paused,
        "broken": status.broken,
        "declared": status.declared,
        "last_at": None if record.last_slot is None else moment(record.last_slot),
        "last_run": record.last_run,
        "next": status.upcoming,
    }
