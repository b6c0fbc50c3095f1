"""Schedules over partitions: each lies where its runs are to be."""

from __future__ import annotations

from contextlib import suppress

from msgspec.structs import replace

from perdure.errors import ScheduleNotFound
from perdure.model import Millis, Schedule, ScheduleRecord
from perdure.stores.redis import timetable
from perdure.stores.redis.cluster.parts import Parts
from perdure.stores.redis.session import Session


async def listed(parts: Parts) -> list[ScheduleRecord]:
    """All schedules, by name."""
    found = [record for records in await parts.each(timetable.listed) for record in records]
    return sorted(found, key=lambda record: record.schedule.name)


async def put(parts: Parts, schedule: Schedule, next_slot: Millis | None, *, declared: bool) -> ScheduleRecord:
    """Keeps a schedule. One that is now to lie in another partition begins anew there, paused if it was.

    It is removed first: in two places it would fire in both.
    """
    target = parts.sessions[parts.target(replace(schedule.start, id=schedule.name))]
    there, record = await _find(parts, schedule.name)
    paused = False
    if record is not None and there is not target:
        if declared and not record.declared:
            return record
        with suppress(ScheduleNotFound):  # Others move it at the same time.
            await timetable.remove(there, schedule.name)
        paused = record.paused
    return await timetable.put(target, schedule, next_slot, declared=declared, paused=paused)


async def find(parts: Parts, name: str) -> Session:
    """The partition of a schedule; if there is none, that of its name."""
    return (await _find(parts, name))[0]


async def _find(parts: Parts, name: str) -> tuple[Session, ScheduleRecord | None]:
    for session, records in zip(parts.sessions, await parts.each(timetable.listed), strict=True):
        for record in records:
            if record.schedule.name == name:
                return session, record
    return parts.sessions[parts.home(name)], None
