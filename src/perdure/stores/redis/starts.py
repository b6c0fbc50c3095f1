"""Starts as scripts take them, and their answers."""

from __future__ import annotations

from collections.abc import Sequence
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


_CHUNK = 200
"""The most runs that one call makes: it bounds how long a server is kept busy by it."""


async def enqueue(db: Session, starts: Sequence[Start]) -> list[Started]:
    """Makes runs in order."""
    asked = [ask(start) for start in starts]  # All of them, before any is sent: what can't be is refused as a whole.
    made: list[Started] = []
    for first in range(0, len(starts), _CHUNK):
        chunk = slice(first, first + _CHUNK)
        found = await db.call("enqueue", {"starts": asked[chunk]}, durable=True, reads=Answers)
        made += answers(starts[chunk], found)
    return made


def ask(start: Start, *, parent: str = "", batch: str = "", place: str | None = None) -> Asked:
    """A start as scripts take it; `parent` and `batch` are for one that names none, `place` is where it is to be made
    in a cluster. Raises `InvalidInput` for a NUL."""
    unique = start.unique
    texts = [start.id, start.queue, start.workflow, start.version, start.group, start.session, start.batch or batch]
    texts += [unique.key if unique else "", *start.labels, *start.labels.values()]
    if "\0" in "".join(texts):
        raise InvalidInput(f"a name, key or label of run {start.id!r} has a NUL, which no store keeps")
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
    return Asked(
        start.id,
        _encoder.encode(facts).decode(),
        start.input,
        start.at,
        start.delay,
        start.timeout,
        {"on": unique.on_conflict, "period": unique.period} if unique else None,
        start.labels or None,
        place,
    )


def answers(starts: Sequence[Start], found: Sequence[int | Answer]) -> list[Started]:
    """What became of starts."""
    return [
        Started(start.id, existed=False, same=True)
        if isinstance(each, int)
        else Started(each.id, each.existed, each.same, each.group_limit)
        for start, each in zip(starts, found, strict=True)
    ]
