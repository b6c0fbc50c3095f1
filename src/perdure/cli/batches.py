"""`perdure batches`: runs that were started together."""

from __future__ import annotations

import click

from perdure.app import App
from perdure.cli.group import Commands
from perdure.cli.output import print_json
from perdure.cli.params import json_option
from perdure.cli.target import on_store, with_store
from perdure.errors import BatchNotFound
from perdure.model import BatchRecord
from perdure.stores.base import Store
from perdure.wording import counted, does


@click.group(cls=Commands)
def batches() -> None:
    """Look at batches; `perdure runs list --batch` lists their runs."""


@batches.command()
@click.argument("batch")
@with_store
@json_option
def show(app: App, batch: str, as_text: bool) -> None:
    """Show how far a batch has come."""

    async def work(store: Store) -> BatchRecord:
        found = await store.batch(batch)
        if found is None:
            raise BatchNotFound(f"there is no batch {batch!r} in this store")
        return found

    found = on_store(app, work)
    done = found.succeeded + found.failed + found.cancelled
    if as_text:
        print_json(
            {
                "id": found.id,
                "total": found.total,
                "done": done,
                "left": found.total - done,
                "succeeded": found.succeeded,
                "failed": found.failed,
                "cancelled": found.cancelled,
                "callback": found.callback,
            }
        )
        return
    left = found.total - done
    click.echo(
        f"Batch {batch}: {done:,} of {found.total:,} runs have ended ({found.succeeded:,} succeeded,"
        f" {found.failed:,} failed, {found.cancelled:,} cancelled), {counted(left, 'run')} {does(left, 'is')} left."
    )
    if found.callback is not None:
        click.echo(f"When all have ended, run {found.callback} goes on.")
