"""Limits, rates and pauses of scopes: each change is a revision, and takes effect in the same script."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from perdure.model import LimitRecord, Limits, Millis, Revision, Scope, ScopeKind
from perdure.stores.redis.chores import finish_left
from perdure.stores.redis.session import Session
from perdure.stores.shared.limits import check_scope, limits_of


class _Limits(Struct, frozen=True):
    running: int | None = None
    count: int | None = None
    period: Millis | None = None
    burst: int | None = None

    def read(self) -> Limits:
        return limits_of(self.running, self.count, self.period, self.burst)


class Row(_Limits, frozen=True, kw_only=True):
    """What holds for a scope, as scripts tell of it."""

    kind: ScopeKind
    name: str
    paused: bool
    revision: int
    who: str
    at: Millis
    used: int
    queues: int = 1


class _Revision(Struct):
    number: int
    kind: ScopeKind
    name: str
    who: str
    at: Millis
    was_paused: bool
    paused: bool
    old: _Limits = _Limits()
    new: _Limits = _Limits()


_Rows = msgspec.msgpack.Decoder(list[Row])
_Told = msgspec.msgpack.Decoder(tuple[int, list[Row]])
_Revisions = msgspec.msgpack.Decoder(list[_Revision])


async def set_limits(db: Session, scope: Scope, limits: Limits, who: str, *, declared: bool) -> LimitRecord:
    """Sets what holds for a scope from now on, as a revision if it differs; returns what holds."""
    check_scope(scope, limits)
    asked = {**_named(scope, who, db), "limits": _asked(limits), "declared": declared}
    return one(scope, await change(db, "set_limits", asked))


async def pause(db: Session, scope: Scope, who: str, *, paused: bool) -> LimitRecord:
    """Keeps runs of a scope from beginning, or lets them again, as a revision if it differs; returns what holds."""
    check_scope(scope, Limits())
    asked = {**_named(scope, who, db), "paused": paused}
    return one(scope, await change(db, "pause", asked))


async def limits(db: Session) -> list[LimitRecord]:
    """What is stored for scopes, with how much of it is used."""
    found = await db.call("limits", reads=_Rows)
    return [record(row) for row in sorted(found, key=lambda row: (row.kind, row.name))]


async def revisions(db: Session, scope: Scope | None, limit: int) -> list[Revision]:
    """The changes, latest first."""
    asked: dict[str, Any] = {"limit": limit}
    if scope is not None:
        asked["scope"] = f"{scope.kind}:{scope.name}"
    return [
        Revision(
            revision=row.number,
            scope=Scope(row.kind, row.name),
            who=row.who,
            at=row.at,
            old=row.old.read(),
            new=row.new.read(),
            was_paused=row.was_paused,
            paused=row.paused,
        )
        for row in await db.call("revisions", asked, reads=_Revisions)
    ]


async def change(db: Session, script: str, asked: dict[str, Any]) -> list[Row]:
    """Has a scope go by something else from now on; returns what holds, when all runs do."""
    left, rows = await db.call(script, asked, durable=True, reads=_Told)
    await finish_left(db, left)
    return rows


def _named(scope: Scope, who: str, db: Session) -> dict[str, Any]:
    return {"kind": scope.kind, "name": scope.name, "who": who, **parts_of(db)}


def parts_of(db: Session) -> dict[str, int]:
    """Over how many partitions a limit is divided."""
    partitions = len(db.redis.prefixes)
    return {"partitions": partitions} if partitions > 1 else {}


def _asked(limits: Limits) -> dict[str, int]:
    asked = {} if limits.running is None else {"running": limits.running}
    if limits.rate is not None:
        asked.update(count=limits.rate.count, period=limits.rate.period, burst=limits.rate.burst)
    return asked


def record(row: Row) -> LimitRecord:
    """A row as clients see it."""
    return LimitRecord(
        scope=Scope(row.kind, row.name),
        limits=row.read(),
        paused=row.paused,
        revision=row.revision,
        who=row.who,
        at=row.at,
        running=row.used,
        queues=max(1, row.queues),
    )


def one(scope: Scope, rows: list[Row]) -> LimitRecord:
    """What holds for a scope, be it nothing."""
    if not rows:
        return LimitRecord(scope=scope, limits=Limits(), paused=False, revision=0, who="", at=0)
    return record(rows[0])
