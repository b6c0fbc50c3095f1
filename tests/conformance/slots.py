"""Schedules as the plain model has them: where each one stands, and whether a fire moves it on."""

from __future__ import annotations

from msgspec.structs import replace

from perdure.model import Fire, Millis, Schedule, ScheduleRecord


class Schedules:
    def __init__(self) -> None:
        self._kept: dict[str, ScheduleRecord] = {}

    def all(self) -> list[ScheduleRecord]:
        return sorted(self._kept.values(), key=lambda each: each.schedule.name)

    def put(self, schedule: Schedule, next_slot: Millis, *, declared: bool) -> ScheduleRecord:
        kept = self._kept.get(schedule.name)
        if kept is None:
            kept = ScheduleRecord(schedule=schedule, paused=False, next_slot=next_slot, declared=declared)
        elif kept.declared or not declared:
            if schedule.every != kept.schedule.every:
                kept = replace(kept, next_slot=next_slot)
            kept = replace(kept, schedule=schedule, declared=declared)
        self._kept[schedule.name] = kept
        return kept

    def pause(self, name: str) -> ScheduleRecord:
        kept = self._kept[name] = replace(self._kept[name], paused=True)
        return kept

    def resume(self, name: str, next_slot: Millis | None) -> ScheduleRecord:
        kept = self._kept[name]
        if kept.paused:
            slots = [slot for slot in (next_slot, kept.next_slot) if slot is not None]
            kept = replace(kept, paused=False, next_slot=max(slots) if len(slots) == 2 else None)
        self._kept[name] = kept
        return kept

    def remove(self, name: str) -> None:
        del self._kept[name]

    def due(self, now: Millis) -> list[ScheduleRecord]:
        return [each for each in self._going() if each.next_slot is not None and each.next_slot <= now]

    def times(self, now: Millis) -> list[Millis]:
        """The slots to come."""
        return [each.next_slot for each in self._going() if each.next_slot is not None and each.next_slot > now]

    def stands(self, fire: Fire) -> ScheduleRecord | None:
        """The schedule that a fire moves on: one that stands at its slot."""
        kept = self._kept.get(fire.name)
        return kept if kept is not None and not kept.paused and kept.next_slot == fire.slot else None

    def move_on(self, fire: Fire, made: str | None) -> None:
        kept = replace(self._kept[fire.name], next_slot=fire.next_slot)
        if made is not None:
            kept = replace(kept, last_slot=fire.slot, last_run=made)
        self._kept[fire.name] = kept

    def _going(self) -> list[ScheduleRecord]:
        return [each for each in self.all() if not each.paused]
