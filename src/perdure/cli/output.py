"""How things look in a terminal, and as JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from perdure.clock import moment
from perdure.model import Millis, State

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

STATE_STYLES = {
    State.SCHEDULED: "blue",
    State.QUEUED: "cyan",
    State.RUNNING: "bold green",
    State.WAITING: "yellow",
    State.SUCCEEDED: "green",
    State.FAILED: "bold red",
    State.CANCELLED: "magenta",
}

_WIDE = 100_000
"""For what is not read in a terminal: a table is as wide as what is in it, and nothing is cut."""

_UNITS = (("d", 86_400_000, "h", 3_600_000), ("h", 3_600_000, "min", 60_000), ("min", 60_000, "s", 1000))


def console(*, wide: int = _WIDE) -> Console:
    """The terminal; `wide` is the width when there is none, and the environment does not say it (COLUMNS)."""
    from rich.console import Console

    known = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return Console(highlight=False, markup=False, emoji=False, width=None if known else wide, soft_wrap=False)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> None:
    """A table, each column as wide as what is in it; what goes over the edge of the terminal is cut at the right."""
    from rich.text import Text

    head = [Text(column, "bold") for column in columns]
    lines = [head, *([Text(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)]
    widths = [max(line[number].cell_len for line in lines) for number in range(len(columns))]
    out = console()
    for line in lines:
        for cell, width in zip(line, widths, strict=True):
            cell.pad_right(width - cell.cell_len)
        whole = Text("  ").join(line)
        whole.rstrip()
        out.print(whole, no_wrap=True, overflow="ellipsis", crop=True)


def print_json(value: Any) -> None:
    """A value as readable JSON."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def duration(millis: float) -> str:
    """A length of time in two units at most: `850 ms`, `2.4 s`, `3 min 20 s`, `2 d 4 h`."""
    if millis < 1000:
        return f"{max(0, millis):.0f} ms"
    if millis < 60_000:
        return f"{millis / 1000:.1f} s"
    for name, size, smaller, small in _UNITS:
        if millis >= size:
            rest = int(millis % size // small)
            return f"{millis // size:.0f} {name}{f' {rest} {smaller}' if rest else ''}"
    raise AssertionError(millis)


def timestamp(at: Millis) -> str:
    """A time to the second, in UTC as everywhere in Perdure's messages."""
    return moment(at).strftime("%Y-%m-%d %H:%M:%S UTC")


def time_of_day(at: Millis, now: Millis) -> str:
    """A time as short as it can be seen from now: without the date if it is today's."""
    then = moment(at)
    return then.strftime("%H:%M:%S" if then.date() == moment(now).date() else "%Y-%m-%d %H:%M")


def clean(text: str) -> str:
    """A text of a user's for a terminal: without what could control that, but with its lines and indents."""
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text)


def one_line(text: str) -> str:
    """A text without line breaks and control characters, which a table can't show."""
    return " ".join(clean(text).split())
