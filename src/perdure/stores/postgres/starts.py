"""Making runs: plain ones by parallel arrays, the others by JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from perdure.errors import InvalidInput
from perdure.model import Start, Started
from perdure.stores.postgres.session import Session, encode, unless_all

_BATCH = 1000
"""The most plain runs of one call: more would hold up others for no gain."""


async def enqueue(db: Session, starts: Sequence[Start]) -> list[Started]:
    """Makes runs in order, all of one transaction."""
    if not starts:
        return []
    check(starts)
    if all(map(_plain, starts)):
        row = await db.call("enqueue", db.clock(), *_columns(starts))
        if row[0] is None:
            return [Started(start.id, existed=False, same=True) for start in starts]
        return [
            Started(start.id, existed=existed, same=same)
            for start, existed, same in zip(starts, row[0], row[1], strict=True)
        ]
    return answers(await db.call("enqueue_all", db.clock(), encode(starts)))


async def open_batch(db: Session, batch: str, starts: Sequence[Start], callback: Start | None) -> list[Started]:
    """Makes the runs of a batch and its callback."""
    check(starts)
    members = encode([replace(start, batch=batch) for start in starts])
    called_back = None if callback is None else encode(callback)
    return answers(await db.call("open_batch", db.clock(), batch, members, called_back))


def answers(row: Any) -> list[Started]:
    """The answers to starts, from the row of a call."""
    ids, existed, same, limits = row
    limits = limits or [None] * len(ids or ())
    return [Started(*each) for each in zip(ids or (), existed or (), same or (), limits, strict=True)]


def check(starts: Sequence[Start]) -> None:
    """Refuses what PostgreSQL can't keep in a text."""
    for start in starts:
        texts = [start.id, start.queue, start.workflow, start.version, start.group, start.session, start.batch]
        if start.unique is not None:
            texts.append(start.unique.key)
        if start.labels:
            texts += [*start.labels, *start.labels.values()]
        if "\0" in "".join(texts):
            raise InvalidInput(f"a name, key or label of run {start.id!r} has a NUL, which can't be kept")


def _plain(start: Start) -> bool:
    return not (start.group or start.session or start.unique or start.labels or start.batch)


def _columns(starts: Sequence[Start]) -> list[object]:
    lanes: dict[tuple[str, str, str], int] = {}
    places = [lanes.setdefault((s.queue, s.workflow, s.version), len(lanes) + 1) for s in starts]
    parents = [s.parent for s in starts]
    ats, delays, timeouts = ([getattr(s, name) for s in starts] for name in ("at", "delay", "timeout"))
    return [
        [s.id for s in starts],
        [s.input for s in starts],
        unless_all(1, places),
        [queue for queue, _, _ in lanes],
        [workflow for _, workflow, _ in lanes],
        [version for _, _, version in lanes],
        unless_all(0, [s.priority for s in starts]),
        unless_all(None, ats),
        unless_all(None, delays),
        unless_all(None, timeouts),
        unless_all(5, [s.max_crashes for s in starts]),
        unless_all(None, parents),
    ]
