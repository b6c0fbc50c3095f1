"""One call per wake of a worker: what it says as parallel arrays, and the reply."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import Struct

from perdure.causes import DEADLINE_PASSED, OVERDUE, PARENT_DEADLINE_PASSED, deadline_exceeded
from perdure.model import Arrived, Checkpoint, Ended, Kind, Millis, Outcome
from perdure.stores.exchange import (
    CLAIM_BYTES,
    CLAIM_LIMIT,
    Cancelling,
    Claim,
    Exchange,
    Exchanged,
    Existed,
    Save,
    Seen,
    Settle,
    To,
)
from perdure.stores.postgres.session import Session, encode, parse, unless_all
from perdure.stores.postgres.starts import check
from perdure.stores.shared.schedules import read_schedules

_ENDS = {To.SUCCEEDED, To.FAILED, To.CANCELLED}
_OVERDUE = [deadline_exceeded(), OVERDUE, DEADLINE_PASSED, PARENT_DEADLINE_PASSED]


_LOOK = 1.0
"""Seconds after which a worker looks for new lanes in any case."""


class Particulars(Struct):
    """What few claimed runs have."""

    crashes: int = 0
    cut_off: bool = False
    deadline: Millis | None = None
    parent: str | None = None
    cancelling: Cancelling | None = None
    group: str | None = None
    session: str | None = None
    labels: dict[str, str] | None = None
    checkpoints: list[Checkpoint] | None = None
    signals: list[Arrived] | None = None
    more_checkpoints: bool | None = None
    more_signals: bool | None = None
    ended: list[Ended] | None = None
    unread: list[str] | None = None
    missing: list[str] | None = None


_Particulars = msgspec.json.Decoder(Particulars)
_Cancelled = msgspec.json.Decoder(list[tuple[int, Cancelling]])
_Seen = msgspec.json.Decoder(list[Seen])
_Existed = msgspec.json.Decoder(list[Existed])
_Floors = msgspec.json.Decoder(list[tuple[int, int, int]])
_Lanes = msgspec.json.Decoder(list[tuple[int, str, str, str]])


class Floors(Struct):
    """Where a worker's claims begin while the entries of runs that were claimed long ago can't be removed."""

    until: float
    """When a claim looks at all again: places that were passed may have become ready since, where a start or another
    one's claim was not committed yet, or was taken back."""
    rewind: int
    places: dict[int, tuple[int, int]]
    """By lane: a priority, and up to which place there is nothing ready in it."""


class Desk:
    """Exchanges for the workers of this process. It knows by number which lanes they serve."""

    def __init__(self, db: Session, look_again: Callable[[], None]) -> None:
        self._db = db
        self._look_again = look_again
        self._served: dict[int, tuple[float, int | None, list[int]]] = {}
        """By worker: when it looked, the state of the lanes (None when some were being made), and their numbers."""
        self._names: dict[int, tuple[str, str, str]] = {}
        """By number: queue, workflow, version. Lanes never change."""
        self._floors: dict[int, Floors] = {}

    async def exchange(self, exchange: Exchange) -> Exchanged:
        begun = time.monotonic()
        looked, topology, lanes = self._served.get(exchange.worker, (begun, None, None))
        if begun - looked > _LOOK:
            topology = None  # A lane may have been made while it looked, and its number moved on before.
        row = await self._db.call(
            "exchange",
            self._db.clock(),
            exchange.worker,
            exchange.serial,
            exchange.repeated,
            min(exchange.slots, CLAIM_LIMIT),
            lanes,
            topology,
            exchange.after,
            CLAIM_BYTES,
            _OVERDUE,
            *_saves(exchange.saves),
            *_settles(exchange.settles),
            *_told(exchange),
            *_watches(exchange),
            encode(exchange.fires) if exchange.fires else None,
            [ref for ref, _ in exchange.owned] if exchange.owned else None,
            [token for _, token in exchange.owned] if exchange.owned else None,
            exchange.skips or None,
            exchange.draining,
            *self._begin_at(exchange.worker, begun),
        )
        if row["gone"]:
            self.forget(exchange.worker)
            return Exchanged(row["now"], [], sorted(row["refused"] or ()), [], [], None, more=False, gone=True)
        if row["lanes"] is not None:
            found = _Lanes.decode(row["lanes"])
            self._names.update((number, (queue, workflow, version)) for number, queue, workflow, version in found)
            self._served[exchange.worker] = begun, row["topology"], [number for number, *_ in found]
        claims = self._claims(row)
        if exchange.slots:
            self._note(exchange.worker, row, begun)
        if len(claims) < exchange.slots and (lanes is None or exchange.slots == len(exchange.settles)):
            # It was not there until now, or busy. Who started a run in this moment did not see it, and did not call.
            self._look_again()
        return Exchanged(
            now=row["now"],
            claims=claims,
            refused=sorted(row["refused"] or ()),
            cancelled=parse(_Cancelled, row["cancelled"]),
            seen=parse(_Seen, row["seen"]),
            next_at=row["next_at"],
            more=row["more"],
            due=read_schedules(row["due"] or "[]"),
            existed=parse(_Existed, row["existed"]),
        )

    def forget(self, worker: int) -> None:
        """Drops what was known of a worker that is no more."""
        self._served.pop(worker, None)
        self._floors.pop(worker, None)

    def _begin_at(self, worker: int, now: float) -> list[Any]:
        floors = self._floors.get(worker)
        if floors is None or floors.until < now:
            return _FROM_THE_START
        priorities = [priority for priority, _ in floors.places.values()]
        return [floors.rewind, list(floors.places), priorities, [place for _, place in floors.places.values()]]

    def _note(self, worker: int, row: Any, begun: float) -> None:
        if row["floors"] is None:
            self._floors.pop(worker, None)
            return
        places = {lane: (priority, place) for lane, priority, place in _Floors.decode(row["floors"])}
        floors = self._floors.get(worker)
        if row["floored"] and floors is not None:
            floors.places.update(places)
        else:
            now = time.monotonic()
            # A walk marks the entries that nobody can see any more, and later ones pass these by: only the second long
            # one in a row tells that they are there to stay.
            until = now + max(_LOOK_AT_ALL, _LOOK_SHARE * (now - begun)) if floors is not None else 0.0
            self._floors[worker] = Floors(until, row["rewind"], places)

    def _claims(self, row: Any) -> list[Claim]:
        if row["tokens"] is None:
            return []
        names = self._names
        claims: list[Claim] = []
        for token, ref, run_id, lane, body, attempt, created_at, rest in zip(
            row["tokens"], row["refs"], row["ids"], row["lane_ids"], row["inputs"], row["attempts"],
            row["created_ats"], row["particulars"], strict=True,
        ):  # fmt: skip
            queue, workflow, version = names[lane]
            more = _NOTHING if rest is None else _Particulars.decode(rest)
            claims.append(
                Claim(
                    ref=ref,
                    token=token,
                    id=run_id,
                    workflow=workflow,
                    queue=queue,
                    input=body,
                    attempt=attempt,
                    crashes=more.crashes,
                    cut_off=more.cut_off,
                    created_at=created_at,
                    deadline=more.deadline,
                    parent=more.parent,
                    cancelling=more.cancelling,
                    checkpoints=more.checkpoints or [],
                    signals=more.signals or [],
                    ended=more.ended or [],
                    missing=more.missing or [],
                    more_checkpoints=bool(more.more_checkpoints),
                    more_signals=bool(more.more_signals),
                    group=more.group or "",
                    session=more.session or "",
                    version=version,
                    labels=more.labels or {},
                    unread=more.unread or [],
                )
            )
        claims.sort(key=_token)
        return claims


_NOTHING = Particulars()
_FROM_THE_START = [None] * 4
_LOOK_AT_ALL, _LOOK_SHARE = 1.0, 10
"""Seconds between claims that look at all, at least; and how many times as long as one of these took."""
_token = attrgetter("token")
_NO_SAVES = [None] * 13
_NO_ENDS = [None] * 5
_NO_MOVES = [None] * 7


def _saves(saves: Sequence[Save]) -> list[Any]:
    if not saves:
        return _NO_SAVES
    checkpoints = [save.checkpoint for save in saves]
    check([save.starts for save in saves if save.starts is not None])
    starting = [(place, save.starts) for place, save in enumerate(saves, 1) if save.starts is not None]
    return [
        [save.ref for save in saves],
        [save.token for save in saves],
        [kept.key for kept in checkpoints],
        unless_all(Kind.STEP, [kept.kind for kept in checkpoints]),
        unless_all(Outcome.OK, [kept.outcome for kept in checkpoints]),
        [kept.body for kept in checkpoints],
        unless_all(1, [kept.attempts for kept in checkpoints]),
        [kept.digest for kept in checkpoints],
        unless_all(None, [kept.at for kept in checkpoints]),
        [kept.started_at for kept in checkpoints],
        unless_all(None, [0 if save.gives_back else save.consumes for save in saves]),
        encode([start for _, start in starting]) if starting else None,
        [place for place, _ in starting] if starting else None,
    ]


def _settles(settles: Iterable[Settle]) -> list[Any]:
    first: dict[int, Settle] = {}
    for settle in settles:
        first.setdefault(settle.token, settle)
    if not first:
        return [*_NO_ENDS, *_NO_MOVES]
    ends = [settle for settle in first.values() if settle.to in _ENDS]
    moves = [settle for settle in first.values() if settle.to not in _ENDS]
    return [*_ends(ends), *_moves(moves)]


def _ends(ends: Sequence[Settle]) -> list[Any]:
    if not ends:
        return _NO_ENDS
    return [
        [settle.ref for settle in ends],
        [settle.token for settle in ends],
        unless_all(To.SUCCEEDED, [settle.to for settle in ends]),
        [settle.body for settle in ends],
        unless_all(None, [(settle.cause or None) if settle.to is To.FAILED else None for settle in ends]),
    ]


def _moves(moves: Sequence[Settle]) -> list[Any]:
    if not moves:
        return _NO_MOVES
    waits = [
        {"run": settle.ref, "key": wait.key, "what": wait.what, "target": wait.target, "at": wait.at}
        for settle in moves
        for wait in settle.waits
    ]
    return [
        [settle.ref for settle in moves],
        [settle.token for settle in moves],
        [settle.to for settle in moves],
        [settle.body for settle in moves],
        [settle.delay for settle in moves],
        [min((wait.at for wait in settle.waits if wait.at is not None), default=None) for settle in moves],
        encode(waits),
    ]


def _told(exchange: Exchange) -> list[Any]:
    if not exchange.told:
        return [None] * 3
    last = {said.token: said for said in exchange.told}.values()
    return [[said.ref for said in last], [said.token for said in last], [said.status for said in last]]


def _watches(exchange: Exchange) -> list[Any]:
    if not exchange.watches:
        return [None] * 3
    settled = {settle.token for settle in exchange.settles}
    watches = [watch for watch in exchange.watches if watch.token not in settled]
    rows = [
        {
            "ref": watch.ref, "token": watch.token, "key": watch.wait.key, "what": watch.wait.what,
            "target": watch.wait.target, "at": watch.wait.at,
        }
        for watch in watches
    ]  # fmt: skip
    return [[watch.ref for watch in watches], [watch.token for watch in watches], encode(rows)]
