"""Unique keys: which starts make a run, which lead to one that is there, and what these change about it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from perdure.model import Millis, OnConflict, Start
from perdure.stores.sqlite.executor import Transaction
from perdure.stores.sqlite.sql import encode, load

_SQL = load("unique")


class Resolved(Struct):
    """What becomes of a batch of starts. Each of them either makes a run, under its index, or leads to one."""

    starts: dict[int, Start] = field(default_factory=dict)
    led: dict[int, str] = field(default_factory=dict)
    replaced: dict[int, Start] = field(default_factory=dict)
    """By the number of a run that was there and has not begun: the start whose input and due time it takes."""


class Holder(Struct, array_like=True):
    """A run that is there and has a key (`holds`), or had it a while ago."""

    place: int
    seq: int
    id: str
    begun: bool
    holds: bool


_Holders = msgspec.json.Decoder(list[Holder])
_Ids = msgspec.json.Decoder(list[str])


def resolve(transaction: Transaction, starts: Sequence[Start]) -> Resolved:
    """Decides about starts, some of which have unique keys, in their order. Reads only."""
    asked = {(start.workflow, start.unique.key): 0 for start in starts if start.unique}
    for start in starts:
        if start.unique and start.unique.on_conflict is OnConflict.THROTTLE:
            pair = start.workflow, start.unique.key
            asked[pair] = max(asked[pair], start.unique.period)
    now = transaction.now
    keys = encode([(workflow, key, now - period) for (workflow, key), period in asked.items()])
    holding: dict[tuple[str, str], Holder] = {}
    recent: dict[tuple[str, str], Holder] = {}
    pairs = list(asked)
    found = _Holders.decode(transaction.row(_SQL["holders"], {"keys": keys})[0])
    for holder in sorted(found, key=lambda holder: holder.seq):
        (holding if holder.holds else recent)[pairs[holder.place]] = holder
    there = set(_Ids.decode(transaction.row(_SQL["ids"], {"ids": encode([start.id for start in starts])})[0]))
    return decide(starts, there, holding, recent)


def decide(
    starts: Sequence[Start],
    there: set[str],
    holding: dict[tuple[str, str], Holder],
    recent: dict[tuple[str, str], Holder],
) -> Resolved:
    """The decision itself: `there` are the ids that exist, `holding` and `recent` the runs by workflow and key."""
    resolved = Resolved()
    made: dict[tuple[str, str], int] = {}
    seen = set(there)
    for index, wanted in enumerate(starts):
        start, unique = _put_off(wanted), wanted.unique
        if unique is None or start.id in seen:
            # A start of an id that exists is that run, and nothing else about it matters.
            resolved.starts[index] = start
            seen.add(start.id)
            continue
        pair = start.workflow, unique.key
        holder = holding.get(pair)
        if holder is None and unique.on_conflict is OnConflict.THROTTLE and pair not in made:
            holder = recent.get(pair)
        if holder is not None:
            resolved.led[index] = holder.id
            if _replaces(unique.on_conflict) and not holder.begun:
                resolved.replaced[holder.seq] = start
        elif pair in made:
            first = resolved.starts[made[pair]]
            resolved.led[index] = first.id
            if _replaces(unique.on_conflict):
                resolved.starts[made[pair]] = replace(
                    first, input=start.input, at=start.at, delay=start.delay, timeout=start.timeout
                )
        else:
            resolved.starts[index] = start
            made[pair] = index
            seen.add(start.id)
    return resolved


def taken(transaction: Transaction, runs: str) -> set[int]:
    """Of runs that ended (a JSON list of their numbers), those that can't live again: another one has their key."""
    return set(msgspec.json.decode(transaction.row(_SQL["taken"], {"runs": runs})[0], type=list[int]))


def rewrite(transaction: Transaction, rows: Sequence[tuple[int, str, Millis | None, Millis | None]]) -> None:
    """Gives runs that have not begun the state, due time and deadline that are told with their numbers."""
    transaction.change(_SQL["replace"], {"runs": encode(rows), "now": transaction.now})


def _put_off(start: Start) -> Start:
    if start.unique is None or start.unique.on_conflict is not OnConflict.DEBOUNCE:
        return start
    return replace(start, at=None, delay=start.unique.period)


def _replaces(on_conflict: OnConflict) -> bool:
    return on_conflict in (OnConflict.REPLACE, OnConflict.DEBOUNCE)
