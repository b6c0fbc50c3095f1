"""Schedules: kept by name, and read whatever code has put them there."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from perdure.model import Millis, ScheduleRecord
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
