"""Schedules of an app: starts that recur, kept in the store, each slot fired once for the whole fleet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.call import Call
from perdure.clock import epoch_millis, millis, moment
from perdure.cron import check_schedule, next_slots, slot_run_id
from perdure.errors import DefinitionError, ScheduleNotFound
from perdure.model import Millis, Missed, Overlap, Schedule, ScheduleRecord
from perdure.run import Run
from perdure.stores.base import Store

if TYPE_CHECKING:
    from perdure.app import App
    from perdure.workflow import Workflow

T = TypeVar("T")
W = TypeVar("W", bound="Workflow[..., Any]")

logger = logging.getLogger("perdure.worker")


@dataclass(frozen=True)
class ScheduleStatus:
    """A schedule as it stands."""

    record: ScheduleRecord
    upcoming: list[datetime]
    """The next five slots; none when it is over. A paused one has them too: they will not fire while it is paused."""

    @property
    def name(self) -> str:
        return self.record.schedule.name

    @property
    def paused(self) -> bool:
        return self.record.paused


class ScheduleControl:
    """`app.schedules`: adds, lists, pauses, triggers and removes schedules at run time.

        await app.schedules.add("nightly", report, "0 3 * * *", tz="Europe/Berlin")
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._declared: dict[str, Schedule] = {}

    @property
    def declared(self) -> dict[str, Schedule]:
        """What code asks for with `@app.schedule`, by name."""
        return dict(self._declared)

    def declare(self, schedule: Schedule) -> None:
        """Has a schedule put into the store when a worker starts; `DefinitionError` when the name is taken."""
        known = self._declared.get(schedule.name)
        if known is not None and known.start.workflow != schedule.start.workflow:
            raise DefinitionError(f"two schedules are named {schedule.name!r}; give one another name with name=")
        self._declared[schedule.name] = schedule

    def add(
        self,
        name: str,
        workflow: Workflow[..., Any],
        cron: str | None = None,
        *,
        args: tuple[Any, ...] = (),
        every: timedelta | float | None = None,
        at: datetime | None = None,
        tz: str = "UTC",
        missed: Missed | str = Missed.LAST,
        missed_limit: int = 100,
        overlap: Overlap | str = Overlap.ALLOW,
        jitter: timedelta | float = 0,
    ) -> Call[ScheduleStatus]:
        """Adds a schedule, or changes the one of that name. See `App.schedule` for the parameters."""
        schedule = make_schedule(
            name, workflow, cron, args=args, every=every, at=at, tz=tz, missed=missed, missed_limit=missed_limit,
            overlap=overlap, jitter=jitter,
        )

        async def add(store: Store) -> ScheduleStatus:
            return self._status(await _put(store, schedule, declared=False))

        return self._call(add, "schedules.add()")

    def list(self) -> Call[list[ScheduleStatus]]:
        """All schedules of the store, by name, each with its next five slots."""

        async def list_(store: Store) -> list[ScheduleStatus]:
            return [self._status(record) for record in await store.schedules()]

        return self._call(list_, "schedules.list()")

    def pause(self, name: str) -> Call[ScheduleStatus]:
        """Keeps a schedule from firing. Raises `ScheduleNotFound`."""

        async def pause(store: Store) -> ScheduleStatus:
            return self._status(await store.pause_schedule(name, paused=True))

        return self._call(pause, "schedules.pause()")

    def resume(self, name: str) -> Call[ScheduleStatus]:
        """Lets it fire again; slots of the pause are treated as missed ones. Raises `ScheduleNotFound`."""

        async def resume(store: Store) -> ScheduleStatus:
            return self._status(await store.pause_schedule(name, paused=False))

        return self._call(resume, "schedules.resume()")

    def trigger(self, name: str) -> Call[Run[Any]]:
        """Starts a run of the schedule now, beside its slots. Raises `ScheduleNotFound`."""

        async def trigger(store: Store) -> Run[Any]:
            from secrets import token_hex

            from msgspec.structs import replace

            for record in await store.schedules():
                if record.schedule.name == name:
                    start = replace(record.schedule.start, id=f"{name}@now-{token_hex(4)}")
                    await store.enqueue([start])
                    return self._app.run(start.id)
            raise ScheduleNotFound(f"there is no schedule {name!r}")

        return self._call(trigger, "schedules.trigger()")

    def remove(self, name: str) -> Call[None]:
        """Removes it; runs that it made stay. One that code declares comes back when a worker starts, until its
        declaration goes too. Raises `ScheduleNotFound`."""
        return self._call(lambda store: store.remove_schedule(name), "schedules.remove()")

    async def declare_all(self, store: Store) -> None:
        """For a worker that starts: puts what code declares, and says what the store has beside it."""
        for schedule in self._declared.values():
            await _put(store, schedule, declared=True)
        for record in await store.schedules():
            name = record.schedule.name
            if record.declared and name not in self._declared and record.schedule.start.workflow in self._app.workflows:
                logger.warning(
                    "schedule %s is in the store, and no code declares it (renamed?): it goes on firing; remove it with"
                    " `perdure schedules remove %s`", name, name,
                )

    def _status(self, record: ScheduleRecord) -> ScheduleStatus:
        upcoming: list[Millis] = []
        if record.next_slot is not None:
            upcoming = [record.next_slot, *next_slots(record.schedule, record.next_slot, 4)]
        return ScheduleStatus(record, [moment(slot) for slot in upcoming])

    def _call(self, work: Callable[[Store], Coroutine[Any, Any, T]], what: str) -> Call[T]:
        async def call() -> T:
            return await work(await self._app.client.store())

        return Call(call, what)


def make_schedule(
    name: str,
    workflow: Workflow[..., Any],
    cron: str | None,
    *,
    args: tuple[Any, ...],
    every: timedelta | float | None,
    at: datetime | None,
    tz: str,
    missed: Missed | str,
    missed_limit: int,
    overlap: Overlap | str,
    jitter: timedelta | float,
) -> Schedule:
    """A schedule, checked: `InvalidInput` names what can't be."""
    schedule = Schedule(
        name=name,
        cron=cron,
        tz=tz,
        every=None if every is None else millis(every, "every"),
        at=None if at is None else epoch_millis(at, "at"),
        start=workflow.make_start(args, {}),
        missed=missed,  # pyright: ignore[reportArgumentType] (checked below)
        missed_limit=missed_limit,
        overlap=overlap,  # pyright: ignore[reportArgumentType]
        jitter=millis(jitter, "jitter"),
    )
    check_schedule(schedule)
    return schedule


async def _put(store: Store, schedule: Schedule, *, declared: bool) -> ScheduleRecord:
    now = await store.now()
    upcoming = next_slots(schedule, now, 1)
    return await store.put_schedule(schedule, upcoming[0] if upcoming else None, declared=declared)


__all__ = ["ScheduleControl", "ScheduleStatus", "make_schedule", "slot_run_id"]
