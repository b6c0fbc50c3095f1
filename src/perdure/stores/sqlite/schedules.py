"""Schedules: kept by name, and moved on by whoever sees a slot due first."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.errors import ScheduleNotFound
from perdure.model import Fire, Millis, Overlap, Schedule, ScheduleRecord, Start, Wait, WaitFor
from perdure.stores.base import Topic
from perdure.stores.shared.schedules import read_schedules
from perdure.stores.sqlite.control import cancel
from perdure.stores.sqlite.enqueue import enqueue
from perdure.stores.sqlite.executor import Transaction
from perdure.stores.sqlite.sql import encode, load

_SQL = load("schedule")


_Ids = msgspec.json.Decoder(list[str])


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
    return read_schedules(transaction.row(_SQL["all"], {"name": None})[0])


def pause(transaction: Transaction, name: str) -> ScheduleRecord:
    """Keeps a schedule from firing."""
    transaction.change(_SQL["pause"], {"name": name})
    return _one(transaction, name)


def resume(transaction: Transaction, name: str, next_slot: Millis | None) -> ScheduleRecord:
    """Lets a schedule go on that is paused."""
    transaction.change(_SQL["resume"], {"name": name, "next_slot": next_slot})
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
        if transaction.first(_SQL["stands"], {"name": each.name, "slot": each.slot}) is None:
            continue
        moved = True
        made: str | None = None
        for start in each.starts:
            made = _begin(transaction, each, start) or made
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


def _begin(transaction: Transaction, fire: Fire, start: Start) -> str | None:
    """Makes the run of a slot; None when earlier ones, which have not ended, keep it from being made."""
    behind = None
    if fire.overlap is not Overlap.ALLOW:
        live = _Ids.decode(transaction.row(_SQL["live"], {"name": fire.name})[0])
        earlier = [run_id for run_id in live if run_id != start.id]
        if earlier and fire.overlap is Overlap.SKIP:
            return None
        if fire.overlap is Overlap.CANCEL:
            for run_id in earlier:
                cancel(transaction, run_id, f"the next run of schedule {fire.name} began", children=True)
        elif earlier:
            behind = Wait(key=f"schedule:{fire.name}", what=WaitFor.SCHEDULE, target=fire.name)
    made = enqueue(transaction, [start], behind=behind)[0].id
    transaction.change(_SQL["mark"], {"name": fire.name, "id": made})
    return made


def _one(transaction: Transaction, name: str) -> ScheduleRecord:
    found = read_schedules(transaction.row(_SQL["all"], {"name": name})[0])
    if not found:
        raise _missing(name)
    return found[0]


def _missing(name: str) -> ScheduleNotFound:
    return ScheduleNotFound(f"there is no schedule {name!r} in this store")
