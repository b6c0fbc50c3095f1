"""Options that several commands take, and how their values are read."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import click

_SECONDS = {"": 1, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)\s*")


def length_of_time(value: str) -> timedelta:
    """A length of time: seconds, or numbers with units."""
    seconds, place = 0.0, 0
    while (match := _PART.match(value, place)) and match[2] in _SECONDS:
        seconds += float(match[1]) * _SECONDS[match[2]]
        place = match.end()
    if place == 0 or place < len(value) or seconds > timedelta.max.total_seconds() / 2:
        raise click.BadParameter(f"{value!r} is no length of time; write 90, 90s, 15m, 2h30m or 3d")
    return timedelta(seconds=seconds)


def moment_in_time(value: str) -> datetime:
    """A time with its zone."""
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is no time; write 2030-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        raise click.BadParameter(f"{value!r} has no time zone; add Z (UTC) or an offset such as +02:00")
    return moment


def label(value: str) -> tuple[str, str]:
    """A label as `key=value`."""
    key, equals, text = value.partition("=")
    if not (key and equals and text):
        raise click.BadParameter(f"{value!r} is no label; write key=value")
    return key, text


def each_key_once(
    _: click.Context, __: click.Parameter, labels: tuple[tuple[str, str], ...]
) -> tuple[tuple[str, str], ...]:
    """Labels, each of which has one value."""
    keys = [key for key, _ in labels]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise click.BadParameter(f"the label {twice[0]!r} is given twice; it has one value")
    return labels


label_option = click.option(
    "-l",
    "--label",
    "labels",
    type=label,
    callback=each_key_once,
    metavar="KEY=VALUE",
    multiple=True,
    help="Only with it; may be repeated.",
)
json_option = click.option("--json", "as_text", is_flag=True, help="As JSON.")


def scope_options(fn: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options that name a scope: it gets them as `scope`, as the API takes them."""

    @click.option("-q", "--queue", help="Of this queue.")
    @click.option("-w", "--workflow", help="Of this workflow.")
    @click.option("-g", "--group", help="Of this group.")
    @click.option("--all", "whole", is_flag=True, help="Of everything in the store.")
    @functools.wraps(fn)
    def command(
        *args: Any, queue: str | None, workflow: str | None, group: str | None, whole: bool, **kwargs: Any
    ) -> None:
        if [queue, workflow, group, whole or None].count(None) != 3:
            raise click.UsageError("say of what, with one of --queue, --workflow, --group and --all")
        fn(*args, scope={"queue": queue, "workflow": workflow, "group": group}, **kwargs)

    return command
