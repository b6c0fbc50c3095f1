"""Tokens and claims, as scripts tell of them: lists, since maps with their names cost twice as much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from perdure.model import Arrived, Checkpoint, Ended, Millis, State, WaitFor
from perdure.stores.exchange import Cancelling, Claim
from perdure.stores.redis.parking import waits_in

_LOW = (1 << 40) - 1


def token_parts(token: int) -> tuple[int, int]:
    """A token as scripts know it: its worker, and what is left. A number of Lua has no room for it."""
    return token >> 40, token & _LOW


def token_of(worker: int, low: int) -> int:
    """A token from its parts."""
    return (worker << 40) + low


class ShownEnd(Struct):
    """The outcome of a run."""

    id: str
    state: State
    body: str | None = None


class Kind(Struct, array_like=True, gc=False):
    """What many claims have in common."""

    workflow: str
    queue: str
    version: str
    group: str
    session: str
    parent: str | Literal[False]


class ShownMore(Struct, frozen=True):
    """What few claims have."""

    crashes: int = 0
    cut_off: bool = False
    deadline: Millis | None = None
    cancelling: Cancelling | None = None
    checkpoints: list[Checkpoint] = []
    signals: list[Arrived] = []
    more_checkpoints: bool = False
    more_signals: bool = False
    ended: list[ShownEnd] = []
    unread: list[str] = []
    missing: list[str] = []
    """Runs that it was parked for and that are not there."""
    labels: dict[str, str] = {}
    away: list[str] = []
    """Runs of other partitions that it was parked for."""
    waits: str | None = None
    """What it was parked for, as it is kept: where some of that is missing, or away, or so much that the script did not
    look at it."""


NO_MORE = ShownMore()


class ShownClaim(Struct, array_like=True):
    """A claim; `number` tells it from the others of its exchange, `kind` is the number of its kind there."""

    id: str
    number: int
    kind: int
    input: str
    created_at: Millis
    attempt: int
    more: ShownMore = NO_MORE


def claim_of(claim: ShownClaim, kinds: Sequence[Kind], worker: int, serial: int) -> Claim:
    """A claim that was made in an exchange, by its serial."""
    kind, more = kinds[claim.kind], claim.more
    return Claim(
        ref=claim.id,
        token=(worker << 40) + (serial << 8) + claim.number,
        id=claim.id,
        workflow=kind.workflow,
        queue=kind.queue,
        input=claim.input,
        attempt=claim.attempt,
        crashes=more.crashes,
        cut_off=more.cut_off,
        created_at=claim.created_at,
        deadline=more.deadline,
        parent=kind.parent or None,
        cancelling=more.cancelling,
        checkpoints=more.checkpoints,
        signals=more.signals,
        ended=ends_of(more.ended),
        missing=[key for target in more.missing for key in keys_of(more)[target]],
        more_checkpoints=more.more_checkpoints,
        more_signals=more.more_signals,
        group=kind.group,
        session=kind.session,
        version=kind.version,
        labels=dict(more.labels),
        unread=list(more.unread),
    )


def keys_of(more: ShownMore) -> dict[str, list[str]]:
    """The keys of the waits for runs, by the run."""
    keys: dict[str, list[str]] = {}
    for wait in waits_in(more.waits or "[]"):
        if wait.what is WaitFor.RUN:
            keys.setdefault(wait.target, []).append(wait.key)
    return keys


def unseen(more: ShownMore) -> dict[str, list[str]]:
    """Of runs that it was parked for those that the script did not look at, with the keys of its waits for them."""
    if more.waits is None or (more.missing and not more.away):
        return {}
    keys = keys_of(more)
    return {target: keys[target] for target in more.away} if more.away else keys


def end_of(found: ShownEnd | None) -> Ended | None:
    """The outcome of a run, if there is one."""
    return None if found is None else ends_of([found])[0]


def ends_of(found: Sequence[ShownEnd]) -> list[Ended]:
    """Outcomes of runs."""
    return [Ended(each.id, each.state, each.body) for each in found]
