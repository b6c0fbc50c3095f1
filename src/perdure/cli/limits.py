"""`perdure limits`: what may run at a time, how many may begin in a time, and what is paused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import click

from perdure.app import App
from perdure.cli.group import Commands
from perdure.cli.known import unknown
from perdure.cli.output import duration, print_json, print_table, timestamp
from perdure.cli.params import json_option, scope_options
from perdure.cli.target import on_store, with_store
from perdure.clock import moment
from perdure.model import LimitRecord, Limits, Millis, Revision, Scope
from perdure.rates import show_limits, show_rate, show_scope
from perdure.stores.base import Store

who_option = click.option("--who", metavar="NAME", help="Kept with the change.  [default: user and host]")


@click.group(cls=Commands)
def limits() -> None:
    """Limit, pause and resume queues, workflows, groups, or everything.

    What is set is kept in the store and holds for all workers at once, whatever their code says.
    """


@limits.command("set")
@with_store
@scope_options
@click.option("--running", type=click.IntRange(1), metavar="N", help="At most so many runs at a time.")
@click.option("--rate", metavar="N/PERIOD", help="At most so many begin: 100/min, 5/s, 1000/2h.")
@click.option("--burst", type=click.IntRange(1), metavar="N", help="So many may begin at once after a quiet time.")
@click.option("--unlimited", is_flag=True, help="Lift the limits.")
@who_option
def set_limits(
    app: App,
    scope: dict[str, Any],
    running: int | None,
    rate: str | None,
    burst: int | None,
    unlimited: bool,
    who: str | None,
) -> None:
    """Set the limits of a scope; what is not given is unlimited."""
    if unlimited == (running is not None or rate is not None or burst is not None):
        raise click.UsageError("give --running or --rate or both, or --unlimited")
    record = _change_scope(
        app, scope, lambda: app.limits.set(**scope, running=running, rate=rate, burst=burst, who=who)
    )
    click.echo(f"{_named(record.scope)}: {show_limits(record.limits)} (revision {record.revision}).")


@limits.command()
@with_store
@scope_options
@who_option
def pause(app: App, scope: dict[str, Any], who: str | None) -> None:
    """Keep runs of a scope from beginning. What runs goes on; starts are accepted, and wait."""
    record = _change_scope(app, scope, lambda: app.limits.pause(**scope, who=who))
    click.echo(f"{_named(record.scope)} is paused (revision {record.revision}).")


@limits.command()
@with_store
@scope_options
@who_option
def resume(app: App, scope: dict[str, Any], who: str | None) -> None:
    """End a pause."""
    record = _change_scope(app, scope, lambda: app.limits.resume(**scope, who=who))
    click.echo(f"{_named(record.scope)} is not paused (revision {record.revision}).")


@limits.command()
@with_store
@scope_options
@who_option
def drain(app: App, scope: dict[str, Any], who: str | None) -> None:
    """Pause a scope and wait until nothing of it runs. Ctrl-C ends the waiting, and the pause stays."""

    async def drained() -> LimitRecord:
        try:
            return await app.limits.drain(**scope, who=who)
        except asyncio.CancelledError:
            click.echo("It is not waited for any more; the pause stays until `perdure limits resume`.", err=True)
            raise

    record = _change_scope(app, scope, drained)
    click.echo(f"{_named(record.scope)} is paused (revision {record.revision}), and nothing of it runs.")


@limits.command("list")
@with_store
@json_option
def list_limits(app: App, as_text: bool) -> None:
    """List what is limited or paused, and how many runs count against it now."""

    async def work(store: Store) -> tuple[Millis, Sequence[LimitRecord]]:
        return await store.now(), await store.limits()

    now, found = on_store(app, work)
    if as_text:
        print_json([_plain(record) for record in found])
    elif not found:
        click.echo("Nothing is limited or paused.", err=True)
    else:
        _print(found, now)


@limits.command()
@with_store
@click.option("-n", "--limit", type=click.IntRange(1), default=50, show_default=True, help="At most so many.")
@json_option
def history(app: App, limit: int, as_text: bool) -> None:
    """List the changes, latest first: who, when, from what to what."""
    found = on_store(app, lambda _: app.limits.history(limit=limit))
    if as_text:
        print_json([_plain_revision(revision) for revision in found])
    elif not found:
        click.echo("Nothing was ever limited or paused.", err=True)
    else:
        print_table(
            ["REVISION", "WHEN", "WHAT", "CHANGE", "BY"],
            (
                [str(each.revision), timestamp(each.at), show_scope(each.scope), _change(each), each.who]
                for each in found
            ),
        )


@limits.command()
@with_store
@who_option
def apply(app: App, who: str | None) -> None:
    """Make the limits that the app's code declares hold: a step of a deploy. It needs --app."""
    if not app.limits.declared:
        click.echo("The code declares no limits (app.limits.declare).", err=True)
        return
    for record in on_store(app, lambda _: app.limits.apply(who=who)):
        click.echo(f"{_named(record.scope)}: {show_limits(record.limits)} (revision {record.revision}).")


# ---


def _change_scope(app: App, scope: dict[str, Any], change: Callable[[], Awaitable[LimitRecord]]) -> LimitRecord:
    """Changes a scope. It may be one that is used later on, but its name may be mistyped too."""

    async def work(store: Store) -> tuple[LimitRecord, str]:
        return await change(), await unknown(app, store, workflow=scope["workflow"], queue=scope["queue"])

    record, hint = on_store(app, work)
    if hint:
        click.echo(hint, err=True)
    return record


def plain_limits(limits: Limits) -> dict[str, object]:
    """Limits as plain values."""
    rate = limits.rate
    return {
        "running": limits.running,
        "rate": None if rate is None else f"{rate.count}/{rate.period / 1000:g}s",
        "burst": None if rate is None else rate.burst,
    }


def _plain(record: LimitRecord) -> dict[str, object]:
    return {
        "scope": record.scope.kind,
        "name": record.scope.name or None,
        **plain_limits(record.limits),
        "paused": record.paused,
        "counted": record.running,
        "queues": record.queues,
        "revision": record.revision,
        "who": record.who,
        "at": moment(record.at),
    }


def _plain_revision(revision: Revision) -> dict[str, object]:
    return {
        "revision": revision.revision,
        "scope": revision.scope.kind,
        "name": revision.scope.name or None,
        "at": moment(revision.at),
        "who": revision.who,
        "old": {**plain_limits(revision.old), "paused": revision.was_paused},
        "new": {**plain_limits(revision.new), "paused": revision.paused},
    }


def _print(found: Sequence[LimitRecord], now: Millis) -> None:
    print_table(
        ["WHAT", "RUNNING", "LIMIT", "RATE", "PAUSED", "SET BY", "AGO"],
        (
            [
                show_scope(each.scope),
                str(each.running),
                _limit(each),
                "-" if each.limits.rate is None else show_rate(each.limits.rate),
                "yes" if each.paused else "",
                each.who,
                duration(now - each.at),
            ]
            for each in found
        ),
    )


def _limit(record: LimitRecord) -> str:
    if record.limits.running is None:
        return "-"
    return f"{record.limits.running}{f' on each of {record.queues} queues' if record.queues > 1 else ''}"


def _change(revision: Revision) -> str:
    if revision.old == revision.new:
        return "paused" if revision.paused else "resumed"
    return f"{show_limits(revision.old)} → {show_limits(revision.new)}"


def _named(scope: Scope) -> str:
    name = show_scope(scope)
    return name[0].upper() + name[1:]
