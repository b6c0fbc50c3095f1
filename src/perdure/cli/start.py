"""`perdure start`: makes a run, and waits for its result if asked to."""

from __future__ import annotations

import asyncio
import sys
from datetime import datetime, timedelta
from typing import Any

import click

from perdure.app import App
from perdure.call import Call
from perdure.cli.group import verbose_option
from perdure.cli.known import unknown
from perdure.cli.output import one_line
from perdure.cli.params import each_key_once, label, length_of_time, moment_in_time
from perdure.cli.target import load_app, on_store
from perdure.engine.waits import result
from perdure.explain import unserved
from perdure.run import ANYTHING, Run
from perdure.stores.base import Store


@click.command()
@click.argument("target", metavar="MODULE:APP")
@click.argument("workflow")
@click.argument("given", metavar="[JSON]", default="")
@click.option("--id", "run_id", help="Makes the start idempotent: the same id is the same run.")
@click.option("--queue", help="Another queue than the workflow's.")
@click.option("--priority", type=int, help="Lower numbers run first.")
@click.option("--delay", type=length_of_time, metavar="TIME", help="Not before this has passed: 90, 15m, 2h30m, 3d.")
@click.option("--at", type=moment_in_time, metavar="MOMENT", help="Not before this time: 2030-01-31T12:00:00Z.")
@click.option("--timeout", type=length_of_time, metavar="TIME", help="In which the run must end.")
@click.option("--group", metavar="KEY", help="Runs of one group go one after the other.")
@click.option("--session", metavar="KEY", help="Runs of one session go to the worker that owns it.")
@click.option("--unique", metavar="KEY", help="One live run per key: a second start finds the first.")
@click.option(
    "--label", "labels", type=label, callback=each_key_once, metavar="KEY=VALUE", multiple=True, help="May be repeated."
)
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
    group: str | None,
    session: str | None,
    unique: str | None,
    labels: tuple[tuple[str, str], ...],
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
    options = found.options(
        id=run_id,
        queue=queue,
        priority=priority,
        delay=delay,
        at=at,
        timeout=timeout,
        group=group,
        session=session,
        unique=unique,
        labels=dict(labels) or None,
    )

    async def work(store: Store) -> None:
        # Asked before the run is there, which has the queue too.
        if queue is not None and (hint := await unknown(app, store, queue=queue)):
            click.echo(hint, err=True)
        await _started(app, options.start(*args, **kwargs), wait)

    on_store(app, work)


async def _started(app: App, start: Call[Run[Any]], wait: bool) -> None:
    run = await start
    click.echo(run.id, err=wait)
    if run.existed:
        click.echo(f"Run {run.id} was there already.", err=True)
    status = await run.status()
    if not status.state.final and (reason := unserved(status.record, await (await app.client.store()).workers())):
        click.echo(f"It waits: {one_line(status.record.held or reason)}.", err=True)
    if not wait:
        return
    try:
        ended = await app.client.ended(run.id)
    except asyncio.CancelledError:
        click.echo(f"Run {run.id} goes on without being waited for.", err=True)
        raise
    result(ended, ANYTHING)  # raises what it did
    click.echo(ended.body or "null")
