"""`perdure start`: makes a run, and waits for its result if asked to."""

from __future__ import annotations

import asyncio
import re
import sys
from datetime import datetime, timedelta
from typing import Any

import click

from perdure.app import App
from perdure.call import Call
from perdure.cli.group import verbose_option
from perdure.cli.target import load_app, on_store
from perdure.engine.waits import result
from perdure.explain import unserved
from perdure.run import ANYTHING, Run

_SECONDS = {"": 1, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)\s*")


def _duration(value: str) -> timedelta:
    """A length of time: seconds, or numbers with units."""
    seconds, place = 0.0, 0
    while (match := _PART.match(value, place)) and match[2] in _SECONDS:
        seconds += float(match[1]) * _SECONDS[match[2]]
        place = match.end()
    if place == 0 or place < len(value) or seconds > timedelta.max.total_seconds() / 2:
        raise click.BadParameter(f"{value!r} is no length of time; write 90, 90s, 15m, 2h30m or 3d")
    return timedelta(seconds=seconds)


def _moment(value: str) -> datetime:
    """A time with its zone."""
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is no time; write 2030-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        raise click.BadParameter(f"{value!r} has no time zone; add Z (UTC) or an offset such as +02:00")
    return moment


@click.command()
@click.argument("target", metavar="MODULE:APP")
@click.argument("workflow")
@click.argument("given", metavar="[JSON]", default="")
@click.option("--id", "run_id", help="Makes the start idempotent: the same id is the same run.")
@click.option("--queue", help="Another queue than the workflow's.")
@click.option("--priority", type=int, help="Lower numbers run first.")
@click.option("--delay", type=_duration, metavar="TIME", help="Not before this has passed: 90, 15m, 2h30m, 3d.")
@click.option("--at", type=_moment, metavar="MOMENT", help="Not before this time: 2030-01-31T12:00:00Z.")
@click.option("--timeout", type=_duration, metavar="TIME", help="In which the run must end.")
@click.option("--wait", is_flag=True, help="Wait for the result and print it as JSON (and the id on stderr).")
@verbose_option
def start(
    target: str,
    workflow: str,
    given: str,
    run_id: str | None,
    queue: str | None,
    priority: int | None,
    delay: timedelta | None,
    at: datetime | None,
    timeout: timedelta | None,
    wait: bool,
) -> None:
    """Start a run and print its id.

    JSON is an object with the arguments by name, an array with them in order, or the one argument that the workflow
    takes; "-" reads it from standard input.
    """
    app = load_app(target)
    found = app.find(workflow)
    signature = found.definition.signature
    args, kwargs = signature.decode(signature.from_json(sys.stdin.read() if given == "-" else given))
    options = found.options(id=run_id, queue=queue, priority=priority, delay=delay, at=at, timeout=timeout)
    on_store(app, lambda _: _started(app, options.start(*args, **kwargs), wait))


async def _started(app: App, start: Call[Run[Any]], wait: bool) -> None:
    run = await start
    click.echo(run.id, err=wait)
    if run.existed:
        click.echo(f"Run {run.id} was there already.", err=True)
    status = await run.status()
    if not status.state.final and (reason := unserved(status.record, await (await app.client.store()).workers())):
        click.echo(f"It waits: {reason}.", err=True)
    if not wait:
        return
    try:
        ended = await app.client.ended(run.id)
    except asyncio.CancelledError:
        click.echo(f"Run {run.id} goes on without being waited for.", err=True)
        raise
    result(ended, ANYTHING)  # raises what it did
    click.echo(ended.body or "null")
