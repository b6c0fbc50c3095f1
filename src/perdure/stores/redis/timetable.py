"""Schedules: kept by name, and read whatever code has put them there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from perdure.errors import ScheduleNotFound
from perdure.model import Millis, Schedule, ScheduleRecord
from perdure.stores.redis.session import Session
from perdure.stores.shared.schedules import read_schedules


class Row(Struct):
    """A schedule as scripts tell of it; `spec` is the JSON that it was put with."""

    name: str
    spec: str
    paused: bool
    declared: bool
    next_slot: Millis | None = None
    last_slot: Millis | None = None
    last_run: str | None = None


_Rows = msgspec.msgpack.Decoder(list[Row])


async def put(
    db: Session, schedule: Schedule, next_slot: Millis | None, *, declared: bool, paused: bool = False
) -> ScheduleRecord:
    """Keeps a schedule, and returns what is kept; one that was `paused` elsewhere is so here."""
    timing = [schedule.cron, schedule.tz, schedule.every, schedule.at]
    asked = {
        **_named(schedule.name, next_slot),
        "spec": msgspec.json.encode(schedule).decode(),
        "timing": msgspec.json.encode(timing).decode(),
        "declared": declared,
        "paused": paused,
    }
    return _one(schedule.name, await db.call("put_schedule", asked, durable=True, reads=_Rows))


async def listed(db: Session) -> list[ScheduleRecord]:
    """All schedules, by name."""
    return records(sorted(await db.call("schedules", reads=_Rows), key=lambda row: row.name))


async def pause(db: Session, name: str) -> ScheduleRecord:
    """Keeps a schedule from firing."""
    return _one(name, await db.call("pause_schedule", {"name": name, "paused": True}, durable=True, reads=_Rows))


async def resume(db: Session, name: str, next_slot: Millis | None) -> ScheduleRecord:
    """Lets a schedule go on that is paused."""
    return _one(name, await db.call("pause_schedule", _named(name, next_slot), durable=True, reads=_Rows))


async def remove(db: Session, name: str) -> None:
    """Forgets a schedule; the runs that it made stay."""
    if not await db.call("remove_schedule", {"name": name}, durable=True):
        raise _missing(name)


def _named(name: str, next_slot: Millis | None) -> dict[str, Any]:
    return {"name": name} if next_slot is None else {"name": name, "next_slot": next_slot}


def _one(name: str, rows: Sequence[Row]) -> ScheduleRecord:
    if not rows:
        raise _missing(name)
    return records(rows)[0]


def _missing(name: str) -> ScheduleNotFound:
    return ScheduleNotFound(f"there is no schedule {name!r} in this store")


def records(rows: Sequence[Row]) -> list[ScheduleRecord]:
    """Schedules from what scripts tell of them."""
    if not rows:
        return []
    listed = [
        {
            "name": row.name,
            "spec": msgspec.Raw(row.spec.encode()),
            "paused": row.paused,
            "next_slot": row.next_slot,
            "last_slot": row.last_slot,
            "last_run": row.last_run,
            "declared": row.declared,
        }
        for row in rows
    ]
    return read_schedules(msgspec.json.encode(listed).decode())
