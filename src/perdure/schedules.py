"""Schedules of an app: starts that recur, kept in the store, each slot fired once for the whole fleet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from msgspec.structs import replace

from perdure.call import Call
from perdure.clock import epoch_millis, millis, moment
from perdure.cron import next_slots, validate
from perdure.errors import DefinitionError, InvalidInput, PerdureError, ScheduleNotFound
from perdure.model import Missed, Overlap, Schedule, ScheduleRecord, Start
from perdure.options import check_name, check_text
from perdure.run import Run
from perdure.stores.base import Store

if TYPE_CHECKING:
    from perdure.app import App

T = TypeVar("T")
Choice = TypeVar("Choice", bound=StrEnum)

_SHOWN = 5
_LONGEST_NAME = 170
"""The ids of its runs are made of it, with the time behind it, and have at most 200 characters."""

logger = logging.getLogger("perdure.worker")


@runtime_checkable
class Starter(Protocol):
    """What a schedule starts: a workflow, or one with options."""

    def make_recurring(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Start: ...


@dataclass(frozen=True)
class ScheduleStatus:
    """A schedule as it stands."""

    record: ScheduleRecord
    upcoming: list[datetime]
    """The next five times, in UTC; none when it is over. A paused one has them too, but does not fire."""
    broken: str | None = None
    """Why it can't be read here, and so is fired by no worker like this: its time zone is unknown on this machine, or
    newer code has put it into the store."""

    @property
    def name(self) -> str:
        """The name that it was declared or added under."""
        return self.record.schedule.name

    @property
    def paused(self) -> bool:
        """Whether it starts nothing until it is resumed."""
        return self.record.paused

    @property
    def declared(self) -> bool:
        """Whether code declared it; otherwise it was added at run time."""
        return self.record.declared


class ScheduleControl:
    """`app.schedules`: adds, lists, pauses, triggers and removes schedules at run time.

    await app.schedules.add("nightly", report, "0 3 * * *", tz="Europe/Berlin")
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._declared: dict[str, tuple[Schedule, Callable[[], Start]]] = {}

    @property
    def declared(self) -> dict[str, Schedule]:
        """What code asks for with `@app.schedule`, by name."""
        return {name: replace(timing, start=_made(name, start)) for name, (timing, start) in self._declared.items()}

    def declare(self, timing: Schedule, start: Callable[[], Start]) -> None:
        """Has a schedule put into the store when a worker starts; `DefinitionError` when the name is another's.

        `start` is made then: types that its arguments need may be defined further down in the module.
        """
        known = self._declared.get(timing.name)
        if known is not None and known[0] != timing:
            raise DefinitionError(f"two schedules are named {timing.name!r}; give one another name with name=")
        self._declared[timing.name] = (timing, start)

    def add(
        self,
        name: str,
        workflow: Starter,
        cron: str | None = None,
        *,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        every: timedelta | float | None = None,
        at: datetime | None = None,
        tz: str = "UTC",
        missed: Missed | str = Missed.LAST,
        missed_limit: int = 100,
        overlap: Overlap | str = Overlap.ALLOW,
        jitter: timedelta | float = 0,
    ) -> Call[ScheduleStatus]:
        """Adds a schedule, or changes the one of that name. See `App.schedule` for the parameters.

        `workflow` may have options for the runs: `report.options(queue="slow")`; their ids and times come from the
        schedule. `args` and `kwargs` are the arguments of each. A schedule that is paused stays so. Raises
        `InvalidInput` for what can't be, such as a single time (`at`) that has passed.
        """
        if not isinstance(workflow, Starter):
            raise InvalidInput(f"a schedule starts a workflow of the app, not {workflow!r}")
        timing = make_timing(
            name,
            cron,
            every=every,
            at=at,
            tz=tz,
            missed=missed,
            missed_limit=missed_limit,
            overlap=overlap,
            jitter=jitter,
        )
        if not isinstance(kwargs, dict | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(f"kwargs= is a dict of the arguments by name, not {kwargs!r}")
        schedule = replace(timing, start=workflow.make_recurring(check_args(args), kwargs or {}))

        async def add(store: Store) -> ScheduleStatus:
            now = await store.now()
            if schedule.at is not None and schedule.at <= now:
                raise InvalidInput(f"the time of schedule {name!r} has passed: {moment(schedule.at)} is not after now")
            return _status(await _put(store, schedule, declared=False))

        return self._app.client.call(add, "schedules.add()")

    def list(self) -> Call[Sequence[ScheduleStatus]]:
        """All schedules of the store, by name, each with its next five times."""

        async def all_of_them(store: Store) -> Sequence[ScheduleStatus]:
            return [_status(record) for record in await store.schedules()]

        return self._app.client.call(all_of_them, "schedules.list()")

    def pause(self, name: str) -> Call[ScheduleStatus]:
        """Keeps a schedule from firing. Raises `ScheduleNotFound`."""
        check_text(name, "the name of a schedule")

        async def pause(store: Store) -> ScheduleStatus:
            return _status(await store.pause_schedule(name))

        return self._app.client.call(pause, "schedules.pause()")

    def resume(self, name: str) -> Call[ScheduleStatus]:
        """Lets it fire again, from its next time on: those that passed during the pause are left out, whatever
        `missed` says. Raises `ScheduleNotFound`."""

        async def resume(store: Store) -> ScheduleStatus:
            schedule = (await self._find(store, name)).schedule
            upcoming = next_slots(schedule, await store.now(), 1)
            return _status(await store.resume_schedule(name, upcoming[0] if upcoming else None))

        return self._app.client.call(resume, "schedules.resume()")

    def trigger(self, name: str) -> Call[Run[Any]]:
        """Starts a run of the schedule now, beside its times. Raises `ScheduleNotFound`."""

        async def trigger(store: Store) -> Run[Any]:
            start = (await self._find(store, name)).schedule.start
            [started] = await store.enqueue([replace(start, id=f"{name}/now-{token_hex(4)}")])
            return self._app.run(started.id)

        return self._app.client.call(trigger, "schedules.trigger()")

    def remove(self, name: str) -> Call[None]:
        """Removes it; runs that it made stay. One that code declares comes back when a worker starts, until its
        declaration goes too. Raises `ScheduleNotFound`."""
        check_text(name, "the name of a schedule")
        return self._app.client.call(lambda store: store.remove_schedule(name), "schedules.remove()")

    async def declare_all(self, store: Store) -> None:
        """For a worker that starts: puts what code declares, and says what the store has beside it."""
        declared = self.declared
        before = {record.schedule.name: record.schedule for record in await store.schedules()}
        for schedule in declared.values():
            record = await _put(store, schedule, declared=True)
            known, now = before.get(schedule.name), record.schedule
            if known is not None and show_timing(known) != show_timing(now):
                logger.warning(
                    "schedule %s was %s and is %s from now on, as the code of this worker declares it",
                    schedule.name,
                    show_timing(known),
                    show_timing(now),
                )
            if not record.declared:
                logger.warning(
                    "schedule %s was added or changed at run time, and that stands; `perdure schedules remove %s` and a"
                    " restart bring back what code declares",
                    schedule.name,
                    schedule.name,
                )
            elif schedule.at is not None and record.next_slot is None and record.last_slot != schedule.at:
                logger.warning(
                    "schedule %s does not fire: its one time, %s, passed without it", schedule.name, moment(schedule.at)
                )
        for name in await self.renamed(store):
            logger.warning(
                "schedule %s is in the store, and no code declares it (was it renamed?): it goes on firing; remove it"
                " with `perdure schedules remove %s`",
                name,
                name,
            )
        for name, workflow in await self.unserved(store):
            if workflow not in self._app.workflows:
                logger.warning(
                    "schedule %s starts workflow %s, which no live worker serves: its runs wait; start a worker whose"
                    " app defines it, or remove it with `perdure schedules remove %s`",
                    name,
                    workflow,
                    name,
                )

    async def unserved(self, store: Store) -> Sequence[tuple[str, str]]:
        """Schedules whose workflow no live worker serves, with its name."""
        served = {workflow for worker in await store.workers() for workflow in worker.workflows}
        starting = [(each.schedule.name, each.schedule.start.workflow) for each in await store.schedules()]
        return [(name, workflow) for name, workflow in starting if workflow not in served]

    async def renamed(self, store: Store) -> Sequence[str]:
        """Schedules of this app's workflows that code declared once, and does not any more."""
        return [
            record.schedule.name
            for record in await store.schedules()
            if record.declared
            and record.schedule.name not in self._declared
            and record.schedule.start.workflow in self._app.workflows
        ]

    async def _find(self, store: Store, name: str) -> ScheduleRecord:
        for record in await store.schedules():
            if record.schedule.name == name:
                if record.broken is not None:
                    raise PerdureError(f"schedule {name!r} was put here by newer code, which can: {record.broken}")
                return record
        raise ScheduleNotFound(f"there is no schedule {name!r} in this store; `perdure schedules list` shows them")


def make_timing(
    name: str,
    cron: str | None,
    *,
    every: timedelta | float | None,
    at: datetime | None,
    tz: str,
    missed: Missed | str,
    missed_limit: int,
    overlap: Overlap | str,
    jitter: timedelta | float,
) -> Schedule:
    """A schedule that starts nothing yet, checked: `InvalidInput` names what can't be."""
    if len(check_name(name, "a schedule")) > _LONGEST_NAME:
        raise InvalidInput(
            f"a schedule is named by at most {_LONGEST_NAME} characters, not by {len(name)}: the ids of its runs begin"
            " with its name; give it a shorter one with name="
        )
    schedule = Schedule(
        name=name,
        cron=cron,
        tz=tz,
        every=None if every is None else millis(every, "every"),
        at=None if at is None else epoch_millis(at, "at"),
        start=Start("", "", "", "{}"),
        missed=_one_of(Missed, missed, "missed"),
        missed_limit=missed_limit,
        overlap=_one_of(Overlap, overlap, "overlap"),
        jitter=millis(jitter, "jitter"),
    )
    validate(schedule)
    return schedule


def show_timing(schedule: Schedule) -> str:
    """When a schedule fires, in words."""
    if schedule.cron is not None:
        return f"{schedule.cron} ({schedule.tz})"
    if schedule.every is not None:
        return f"every {timedelta(milliseconds=schedule.every)}"
    return f"at {moment(schedule.at or 0):%Y-%m-%d %H:%M:%S} UTC"


def _made(name: str, start: Callable[[], Start]) -> Start:
    """The start that code declares; an error about it names the schedule."""
    try:
        return start()
    except PerdureError as error:
        raise DefinitionError(f"schedule {name!r}: {error}") from error


def _one_of(kind: type[Choice], given: Choice | str, what: str) -> Choice:
    try:
        return kind(given)
    except ValueError:
        known = ", ".join(kind)
        raise InvalidInput(f"{what}= is one of {known}, not {given!r}") from None


async def _put(store: Store, schedule: Schedule, *, declared: bool) -> ScheduleRecord:
    upcoming = next_slots(schedule, await store.now(), 1)
    return await store.put_schedule(schedule, upcoming[0] if upcoming else None, declared=declared)


def _status(record: ScheduleRecord) -> ScheduleStatus:
    if record.next_slot is None or record.broken is not None:
        return ScheduleStatus(record, [], record.broken)
    try:
        later = next_slots(record.schedule, record.next_slot, _SHOWN - 1)
    except InvalidInput as error:
        return ScheduleStatus(record, [], str(error))
    return ScheduleStatus(record, [moment(slot) for slot in (record.next_slot, *later)])


def check_args(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of each run of a schedule, by position. Raises `InvalidInput`."""
    if not isinstance(args, tuple | list):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"args= is a tuple of the arguments by position, not {args!r}")
    return tuple(args)
