"""Schedules: kept by name, and moved on by whoever sees a slot due first."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.errors import ScheduleNotFound
from perdure.model import Fire, Millis, Overlap, Schedule, ScheduleRecord, Start, Wait, WaitFor
from perdure.stores.base import Topic
from perdure.stores.sqlite.control import cancel
from perdure.stores.sqlite.enqueue import enqueue
from perdure.stores.sqlite.executor import Transaction
from perdure.stores.sqlite.sql import encode, load

_SQL = load("schedule")
_Records = msgspec.json.Decoder(list[ScheduleRecord])


def put(transaction: Transaction, schedule: Schedule, next_slot: Millis | None, *, declared: bool) -> ScheduleRecord:
    """Keeps a schedule, and returns what is kept."""
    transaction.change(
        _SQL["put"],
        {
            "name": schedule.name,
            "spec": encode(schedule),
            "timing": encode([schedule.cron, schedule.tz, schedule.every, schedule.at]),
            "declared": declared,
            "next_slot": next_slot,
        },
    )
    # Workers that sleep may have to wake earlier than they meant to.
    transaction.tell.add(Topic.WORK)
    return _one(transaction, schedule.name)


def listed(transaction: Transaction) -> list[ScheduleRecord]:
    """All schedules, by name."""
    return _Records.decode(transaction.row(_SQL["all"], {"name": None})[0])


def pause(transaction: Transaction, name: str, *, paused: bool, next_slot: Millis | None) -> ScheduleRecord:
    """Keeps a schedule from firing, or lets it go on."""
    transaction.change(_SQL["pause"], {"name": name, "paused": paused, "next_slot": None if paused else next_slot})
    transaction.tell.add(Topic.WORK)
    return _one(transaction, name)


def remove(transaction: Transaction, name: str) -> None:
    """Forgets a schedule; the runs that it made stay."""
    if not transaction.change(_SQL["remove"], {"name": name}):
        raise _missing(name)


def fire(transaction: Transaction, fires: Sequence[Fire]) -> bool:
    """Makes the runs of slots that nobody has fired yet; returns whether there were any such slots.

    Fires go one by one: what one of them does depends on the run that the one before it made.
    """
    moved = False
    for each in fires:
        found = transaction.first(_SQL["stands"], {"name": each.name, "slot": each.slot})
        if found is None:
            continue
        moved = True
        earlier, live = found
        made: str | None = None
        for start in each.starts:
            run_id = _begin(transaction, each, start, earlier if live else None)
            if run_id is not None:
                made, earlier, live = run_id, run_id, True
        transaction.change(
            _SQL["move_on"],
            {
                "name": each.name,
                "next_slot": each.next_slot,
                "last_slot": None if made is None else each.slot,
                "last_run": made,
            },
        )
    return moved


def _begin(transaction: Transaction, fire: Fire, start: Start, earlier: str | None) -> str | None:
    """Makes the run of a slot; None when the earlier one, which has not ended, keeps it from being made."""
    behind = None
    if earlier is not None and earlier != start.id:
        if fire.overlap is Overlap.SKIP:
            return None
        if fire.overlap is Overlap.CANCEL:
            cancel(transaction, earlier, f"the next run of schedule {fire.name} began", children=True)
        elif fire.overlap is Overlap.QUEUE:
            behind = Wait(key=f"schedule:{fire.name}", what=WaitFor.RUN, target=earlier)
    return enqueue(transaction, [start], behind=behind)[0].id


def _one(transaction: Transaction, name: str) -> ScheduleRecord:
    found = _Records.decode(transaction.row(_SQL["all"], {"name": name})[0])
    if not found:
        raise _missing(name)
    return found[0]


def _missing(name: str) -> ScheduleNotFound:
    return ScheduleNotFound(f"there is no schedule {name!r} in this store")
