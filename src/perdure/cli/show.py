"""`perdure runs show`: one run, drawn."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, json

from perdure.cli.output import STATE_STYLES, clean, duration, one_line, time_of_day, timestamp
from perdure.cli.plain import plain_history, plain_run
from perdure.cli.timeline import Axis, ChildRun, Mark, Row, axis, rows
from perdure.errors import RunNotFound
from perdure.explain import reason_of
from perdure.failures import decode_failure
from perdure.model import Arrived, Checkpoint, Kind, Millis, RunRecord, State
from perdure.options import check_text
from perdure.stores.base import Store
from perdure.stores.exchange import PAGE

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_MOST_CHILDREN = 20
"""Child runs that are looked up; of a run with a thousand, the list of runs tells more than the drawing."""
_CHILD_ROWS = 10

_SYMBOLS = {Kind.STEP: "●", Kind.SLEEP: "◔", Kind.SIGNAL: "◆", Kind.CHILD: "▸", Kind.RESULT: "◇", Kind.SEND: "→"}
_PLAIN_SYMBOLS = {Kind.STEP: "*", Kind.SLEEP: "z", Kind.SIGNAL: "!", Kind.CHILD: ">", Kind.RESULT: "?", Kind.SEND: "^"}
_STYLES = {Mark.OK: "green", Mark.FAILED: "red", Mark.OPEN: "yellow", Mark.WAITED: "dim", Mark.CANCELLED: "magenta"}
_SOLID = {Kind.STEP, Kind.CHILD}
"""What works; the others wait, and have a lighter bar."""


class Shown(Struct):
    """All that is known of a run, as far as it is shown."""

    run: RunRecord
    why: str
    head: list[Checkpoint]
    left_out: int
    """Checkpoints between `head` and `tail`."""
    tail: list[Checkpoint]
    children: dict[str, ChildRun]
    signals: list[Arrived]


class Progress(Struct, forbid_unknown_fields=True):
    """What `progress` keeps of a number."""

    done: int | float
    total: int | float | None = None
    note: str | None = None


async def look_up(store: Store, run_id: str, limit: int) -> Shown:
    """Reads a run, at most `limit` checkpoints of it (0: all), and some of its children."""
    run = await store.load(check_text(run_id, "the id of a run"))
    if run is None:
        raise RunNotFound(f"there is no run {run_id!r} in this store; `perdure runs list` shows those that are")
    why = await reason_of(store, run)
    head, left_out, tail = await _history(store, run_id, limit)
    starts = [kept for kept in (*head, *tail) if kept.kind is Kind.CHILD][:_MOST_CHILDREN]
    found = await asyncio.gather(*(_child(store, json.decode(kept.body or '""', type=str)) for kept in starts))
    children = {kept.key: child for kept, child in zip(starts, found, strict=True) if child is not None}
    return Shown(run, why, head, left_out, tail, children, await store.signals(run_id, limit=PAGE))


async def _history(store: Store, run_id: str, limit: int) -> tuple[list[Checkpoint], int, list[Checkpoint]]:
    """The first and the last checkpoints, and how many there are between them."""
    head: list[Checkpoint] = []
    tail: deque[Checkpoint] = deque(maxlen=limit // 2 if limit else 0)
    room = limit - limit // 2
    count = after = 0
    while page := await store.history(run_id, after=after, limit=PAGE):
        after = page[-1].position
        count += len(page)
        taken = len(page) if limit == 0 else max(0, room - len(head))
        head += page[:taken]
        tail.extend(page[taken:])
    return head, count - len(head) - len(tail), list(tail)


async def _child(store: Store, run_id: str) -> ChildRun | None:
    run = await store.load(run_id)
    if run is None:
        return None
    history = await store.history(run_id, limit=_CHILD_ROWS + 1)
    return ChildRun(run, history[:_CHILD_ROWS], more=len(history) > _CHILD_ROWS)


def as_json(shown: Shown, now: Millis) -> dict[str, Any]:
    """Everything in one object."""
    return {
        "run": plain_run(shown.run, shown.why),
        "history": plain_history(shown.run, [*shown.head, *shown.tail], now),
        "left_out": shown.left_out,
        "children": [
            {"key": key, **plain_run(child.run, ""), "history": plain_history(child.run, child.history, now)}
            for key, child in shown.children.items()
        ],
        "signals": [{"name": each.name, "value": msgspec.Raw(each.body.encode())} for each in shown.signals],
    }


def draw(console: Console, shown: Shown, now: Millis, *, traces: bool = False) -> None:
    """Draws a run: what it is, and what it did and waited for on a common axis of time."""
    for line in _header(shown, now, traces):
        console.print(line, no_wrap=True, overflow="ellipsis", crop=True)
    head = rows(shown.run, shown.head, shown.children, now)
    tail = rows(shown.run, shown.tail, shown.children, now) if shown.tail else []
    if head:
        console.print()
        painter = Painter(console, shown.run, [*head, *tail], now)
        painter.paint(head)
        if shown.left_out:
            console.print(f"  … {shown.left_out:,} more here; --limit 0 shows all", style="dim")
        painter.paint(tail)
        painter.scale()
    if shown.children:
        console.print(f"Children: perdure runs list --parent {shown.run.id}", style="dim", overflow="fold")


def _header(shown: Shown, now: Millis, traces: bool) -> list[Text]:
    from rich.text import Text

    run = shown.run
    began, ended = run.created_at, run.finished_at
    title = Text.assemble((run.workflow, "bold"), "  ", run.id, "  ", (run.state, STATE_STYLES[run.state]))
    title.append(f" after {duration(ended - began)}" if ended else f", {duration(now - began)} old", "dim")
    facts = f"queue {run.queue}, attempt {run.attempt}, made {timestamp(began)}"
    facts += f", {run.crashes} crashes in a row" if run.crashes else ""
    lines = [title, _fact("", facts, "dim")]
    if run.state in (State.FAILED, State.SCHEDULED, State.QUEUED) and run.body is not None:
        error = decode_failure(run.body)
        lines.append(_fact("error", str(error), "red"))
        if traces:
            lines += [Text(f"         {line}", "dim") for line in clean(error.traceback).splitlines()]
    if run.state not in (State.SUCCEEDED, State.FAILED):
        lines.append(_fact("why", shown.why))
    lines.append(_fact("input", run.input))
    if run.state is State.SUCCEEDED:
        lines.append(_fact("result", run.body or "null"))
    if run.status is not None:
        lines.append(_fact("progress", _progress(run.status)))
    lines += [
        _fact(name, value)
        for name, value in (
            ("parent", run.parent),
            ("group", run.group),
            ("session", run.session),
            ("version", run.version),
            ("unique", run.unique),
            ("batch", run.batch),
            ("labels", ", ".join(f"{key}={value}" for key, value in run.labels.items())),
        )
        if value
    ]
    lines += [_fact("signal", f"{each.name} {each.body} (not taken yet)") for each in shown.signals]
    return lines


def _fact(name: str, text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text.assemble((f"  {name:<6} ", "dim"), (one_line(text), style))


def _progress(status: str) -> str:
    """What a run said of its progress: a number with its total in words, anything else as it is."""
    try:
        said = json.decode(status, type=Progress)
    except msgspec.ValidationError:
        return status
    parts = [f"{said.done:,}" if said.total is None else f"{said.done:,} of {said.total:,}", said.note or ""]
    return ", ".join(filter(None, parts))


class Painter:
    """Draws rows within the width of the terminal, with the same columns for all."""

    def __init__(self, console: Console, run: RunRecord, shown: Sequence[Row], now: Millis) -> None:
        self._console = console
        self._now = now
        self._axis: Axis = axis(run, shown, now)
        self._ascii = console.options.ascii_only
        self._symbols: Mapping[Kind, str] = _PLAIN_SYMBOLS if self._ascii else _SYMBOLS
        width = min(console.width, 160)
        self._name = min(max(len(row.label) + 2 * row.depth for row in shown), width * 3 // 10)
        self._note = width // 4
        self._bar = max(10, width - self._name - self._note - 16)

    def paint(self, shown: Sequence[Row]) -> None:
        """A line for each row, and one for its error."""
        for row in shown:
            self._console.print(self._line(row), no_wrap=True, overflow="ellipsis", crop=True)
            if row.error:
                self._console.print(self._error(row), no_wrap=True, overflow="ellipsis", crop=True)

    def scale(self) -> None:
        """What the axis stands for."""
        length = duration(self._axis.end - self._axis.begin)
        rest = self._bar - len(length) - 1
        line = "-" if self._ascii else "─"
        self._console.print(f"{' ' * (self._name + 5)}0{line * max(1, rest)}{length}", style="dim")

    def _line(self, row: Row) -> Text:
        from rich.text import Text

        style = _STYLES[row.mark]
        label = one_line(row.label)
        room = self._name - 2 * row.depth
        if len(label) > room:
            label = label[: max(1, room - 1)] + ("~" if self._ascii else "…")
        took = (row.end if row.end is not None else self._now) - row.begin
        line = Text.assemble(
            ("  " * row.depth),
            (self._symbols[row.kind], style),
            f" {label:<{room}}  ",
            (self._drawn(row), style),
            f" {duration(took):>10}  ",
            (one_line(self._noted(row)), style if row.mark in (Mark.FAILED, Mark.OPEN) else "dim"),
        )
        line.rstrip()
        return line

    def _drawn(self, row: Row) -> str:
        first, last = self._axis.cells(row.begin, self._now if row.end is None else row.end, self._bar)
        full, light, more = ("#", ".", ">") if self._ascii else ("█", "░", "▶")
        cells = (full if row.kind in _SOLID else light) * (last - first)
        if row.mark is Mark.OPEN:
            cells = cells[:-1] + more
        return f"{' ' * first}{cells}".ljust(self._bar)

    def _noted(self, row: Row) -> str:
        parts: list[str] = []
        if row.attempts > 1:
            parts.append(f"attempt {row.attempts}")
        if row.mark is Mark.CANCELLED and row.kind is not Kind.CHILD:
            parts.append("ended with the run")
        elif row.note:
            parts.append(row.note)
        if row.until is not None:
            what = "again at" if row.kind is Kind.STEP else "until"
            parts.append(f"{what} {time_of_day(row.until, self._now)}")
        return ", ".join(parts)

    def _error(self, row: Row) -> Text:
        from rich.text import Text

        return Text(f"{'  ' * row.depth}  {one_line(row.error)}", "red")
