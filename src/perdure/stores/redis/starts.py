"""Starts as scripts take them, and their answers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from perdure.errors import InvalidInput
from perdure.model import Millis, OnConflict, Start, Started
from perdure.stores.redis.session import Session

_encoder = msgspec.json.Encoder()


class Facts(Struct, omit_defaults=True):
    """What never changes about a run: kept as it is encoded here, in JSON, and the same for all runs that are alike."""

    workflow: str
    queue: str
    version: str = ""
    priority: int = 0
    parent: str = ""
    group: str = ""
    group_limit: int = 1
    no_keep: bool = False
    session: str = ""
    unique: str | None = None
    debounced: bool = False
    batch: str = ""
    max_crashes: int = 5


class Asked(Struct, omit_defaults=True):
    """A start: what makes its run, and what it is for those that are there."""

    id: str
    facts: str
    input: str
    at: Millis | None = None
    delay: Millis | None = None
    timeout: Millis | None = None
    unique: dict[str, Any] | None = None
    labels: dict[str, str] | None = None
    place: str | None = None
    """In a cluster: what the entry at the home of its id says, unless its run is made at that home."""


class Answer(Struct):
    """What became of a start that did not make the run that it asked for."""

    id: str
    existed: bool
    same: bool
    group_limit: int | None = None
    place: str | None = None
    """In a cluster, of one that was not made as it is not to be made here: what is to be looked at, "" for its home."""


Answers = msgspec.msgpack.Decoder(list[int | Answer])


class Alike(Struct):
    """Starts that differ in nothing but these: they are made with a few commands for all of them."""

    facts: str
    ids: list[str]
    inputs: list[str]


_MOST = 200
"""The most work that one call makes, in plain starts: it bounds how long a server is kept busy by it."""
_INPUT = 4096
"""So much input is as much work as a start."""
_LANE = 3
"""As much work as so many starts is another queue, workflow or version."""
_MANY = 16
"""From so many on, runs are not pushed, one by one, to workers that wait: these come for them."""
_AHEAD = 2
"""How many calls are under way: while the server makes some runs, the call for the next ones is written."""


def chunks(starts: Sequence[Start]) -> Iterator[slice]:
    """What is made with one call each, of starts that are made in order."""
    lanes: set[tuple[str, str, str]] = set()
    first = work = 0
    for at, start in enumerate(starts):
        its = _work(start)
        lane = start.queue, start.workflow, start.version
        if lanes and lane not in lanes:
            its += _LANE
        if work + its > _MOST and at > first:
            yield slice(first, at)
            first, work = at, 0
            lanes.clear()
        work += its
        lanes.add(lane)
    if first < len(starts):
        yield slice(first, len(starts))


def _work(start: Start) -> int:
    work = 1 + len(start.input) // _INPUT
    if start.group or start.session or start.unique is not None or start.labels:
        options = (start.group, start.session, start.unique, start.labels)
        work += sum(map(bool, options)) + len(start.labels) // 2
    return work


async def enqueue(db: Session, starts: Sequence[Start]) -> list[Started]:
    """Makes runs in order."""
    for start in starts:
        _check(start)  # All of them, before any is sent: what can't be is refused as a whole.
    parts = chunks(starts)
    part = next(parts, None)
    if part is None or part.stop == len(starts):
        return await _make(db, starts) if part else []
    made: list[Started] = []
    calls: deque[asyncio.Task[list[Started]]] = deque()
    try:
        while part:
            if len(calls) == _AHEAD:
                made += await calls.popleft()
            # They share a connection, so that the server gets them in this order.
            calls.append(asyncio.create_task(_make(db, starts[part])))
            part = next(parts, None)
        while calls:
            made += await calls.popleft()
    finally:
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    return made


async def _make(db: Session, starts: Sequence[Start]) -> list[Started]:
    asked = _alike(starts) or {"starts": [ask(start) for start in starts]}
    return answers(starts, await db.call("enqueue", asked, durable=True, reads=Answers))


def _alike(starts: Sequence[Start]) -> dict[str, Alike] | None:
    """Many starts that differ in their ids and inputs alone, and have nothing that few have, as such."""
    if len(starts) < _MANY:
        return None
    first = starts[0]
    sort = first.workflow, first.queue, first.version, first.priority, first.max_crashes
    for each in starts:
        if (each.workflow, each.queue, each.version, each.priority, each.max_crashes) != sort or (
            each.group
            or each.session
            or each.parent
            or each.batch
            or each.labels
            or each.unique is not None
            or each.at is not None
            or each.delay is not None
            or each.timeout is not None
        ):
            return None
    return {"alike": Alike(_facts(first), [each.id for each in starts], [each.input for each in starts])}


def ask(start: Start, *, parent: str = "", batch: str = "", place: str | None = None) -> Asked:
    """A start as scripts take it; `parent` and `batch` are for one that names none, `place` is where it is to be made
    in a cluster. Raises `InvalidInput` for a NUL."""
    _check(start)
    unique = start.unique
    return Asked(
        start.id,
        _facts(start, parent, batch),
        start.input,
        start.at,
        start.delay,
        start.timeout,
        {"on": unique.on_conflict, "period": unique.period} if unique else None,
        start.labels or None,
        place,
    )


def _facts(start: Start, parent: str = "", batch: str = "") -> str:
    unique = start.unique
    facts = Facts(
        start.workflow,
        start.queue,
        start.version,
        start.priority,
        start.parent or parent,
        start.group,
        start.group_limit,
        not start.group_keep,
        start.session,
        unique.key if unique else None,
        unique is not None and unique.on_conflict is OnConflict.DEBOUNCE,
        start.batch or batch,
        start.max_crashes,
    )
    return _encoder.encode(facts).decode()


def _check(start: Start) -> None:
    texts = f"{start.id}{start.queue}{start.workflow}{start.version}{start.group}{start.session}{start.batch}"
    if start.unique is not None:
        texts += start.unique.key
    if start.labels:
        texts += "".join(start.labels) + "".join(start.labels.values())
    if "\0" in texts:
        raise InvalidInput(f"a name, key or label of run {start.id!r} has a NUL, which no store keeps")


def answers(starts: Sequence[Start], found: Sequence[int | Answer]) -> list[Started]:
    """What became of starts; nothing is said of them when all were made as asked."""
    if not found:
        return [Started(start.id, existed=False, same=True) for start in starts]
    return [
        Started(start.id, existed=False, same=True)
        if isinstance(each, int)
        else Started(each.id, each.existed, each.same, each.group_limit)
        for start, each in zip(starts, found, strict=True)
    ]
