"""Schedules, from the rows that a store keeps of them."""

from __future__ import annotations

import msgspec

from perdure.model import Millis, Schedule, ScheduleRecord, Start


class _Row(msgspec.Struct):
    name: str
    spec: msgspec.Raw
    paused: bool
    next_slot: Millis | None
    last_slot: Millis | None
    last_run: str | None
    declared: bool


_Rows = msgspec.json.Decoder(list[_Row])
_Spec = msgspec.json.Decoder(Schedule)


def read_schedules(rows: str) -> list[ScheduleRecord]:
    """Schedules as they are kept. One that newer code has put there, and that can't be read, is told of as broken: it
    must not take the others with it."""
    return [_record(row) for row in _Rows.decode(rows)]


def _record(row: _Row) -> ScheduleRecord:
    broken = None
    try:
        schedule = _Spec.decode(row.spec)
    except msgspec.ValidationError as error:
        schedule, broken = Schedule(name=row.name, start=Start("", "", "", "null")), str(error)
    return ScheduleRecord(
        schedule=schedule,
        paused=row.paused,
        next_slot=row.next_slot,
        last_slot=row.last_slot,
        last_run=row.last_run,
        declared=row.declared,
        broken=broken,
    )
