"""Tokens and claims, as scripts tell of them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from perdure.model import Arrived, Checkpoint, Ended, Millis, State
from perdure.stores.base import PAGE, Cancelling, Claim

_LOW = (1 << 40) - 1


def token_text(token: int) -> str:
    """A token as scripts know it: its worker, and what is left. A number of Lua has no room for it."""
    return f"{token >> 40}-{token & _LOW}"


def token_number(text: str) -> int:
    """A token from its text."""
    worker, _, low = text.rpartition("-")
    return (int(worker) << 40) + int(low)


class ShownEnd(Struct):
    """The outcome of a run."""

    id: str
    state: State
    body: str | None = None


class ShownClaim(Struct):
    """A claim; `number` tells it from the others of its exchange."""

    id: str
    number: int
    workflow: str
    queue: str
    input: str
    created_at: Millis
    attempt: int = 1
    crashes: int = 0
    cut_off: bool = False
    deadline: Millis | None = None
    parent: str | None = None
    cancelling: Cancelling | None = None
    checkpoints: list[Checkpoint] = []
    signals: list[Arrived] = []
    ended: list[ShownEnd] = []
    missing: list[str] = []
    group: str = ""
    session: str = ""
    version: str = ""
    labels: dict[str, str] = {}
    away: list[tuple[str, str]] = []
    """Key and run of its waits for runs of other partitions."""


def claim_of(claim: ShownClaim, worker: int, serial: int) -> Claim:
    """A claim that was made in an exchange, by its serial."""
    return Claim(
        ref=claim.id,
        token=(worker << 40) + (serial << 8) + claim.number,
        id=claim.id,
        workflow=claim.workflow,
        queue=claim.queue,
        input=claim.input,
        attempt=claim.attempt,
        crashes=claim.crashes,
        cut_off=claim.cut_off,
        created_at=claim.created_at,
        deadline=claim.deadline,
        parent=claim.parent,
        cancelling=claim.cancelling,
        checkpoints=claim.checkpoints[:PAGE],
        signals=claim.signals[:PAGE],
        ended=ends_of(claim.ended),
        missing=claim.missing,
        more_checkpoints=len(claim.checkpoints) > PAGE,
        more_signals=len(claim.signals) > PAGE,
        group=claim.group,
        session=claim.session,
        version=claim.version,
        labels=claim.labels,
    )


def end_of(found: ShownEnd | None) -> Ended | None:
    """The outcome of a run, if there is one."""
    return None if found is None else ends_of([found])[0]


def ends_of(found: Sequence[ShownEnd]) -> list[Ended]:
    """Outcomes of runs."""
    return [Ended(each.id, each.state, each.body) for each in found]
