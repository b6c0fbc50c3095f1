"""When schedules fire: which slots they have, and what is to be made of those that are due. Pure decisions, no clock.

A cron line is read by the wall clock of its zone. Where its hour does not begin with `*`, each of its times fires once
a day: one that does not exist on the day that the clocks go forward fires at the first instant that does, and one that
comes twice on the day that they go back fires the first time. Where its hour begins with `*`, it fires whenever the
clock shows what it asks for, so that `*/15 * * * *` keeps its quarter of an hour on those days too.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError
from msgspec.structs import replace

from perdure.clock import epoch_millis, moment
from perdure.errors import InvalidInput
from perdure.model import Fire, Millis, Missed, Schedule, ScheduleRecord, Start

_NO_ZONES = {"localtime", "posixrules"}
"""Files among those of the zones that differ from machine to machine."""
ON_TIME: Millis = 60_000
"""The latest of the slots that are due counts as missed when it is older than this."""
SHORTEST: Millis = 100
LONGEST: Millis = 100 * 366 * 24 * 60 * 60 * 1000
MOST_MISSED = 10_000

_FIELDS = ("minute", "hour", "day of month", "month", "day of week")
_RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
_ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_WALL = datetime(2000, 1, 1)  # noqa: DTZ001  a clock on the wall tells no zone
_SECOND, _DAY = timedelta(seconds=1), timedelta(days=1)
_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000
_BACK = (_HOUR_MS, _DAY_MS, 32 * _DAY_MS, 366 * _DAY_MS, 30 * 366 * _DAY_MS, LONGEST)


def validate(schedule: Schedule) -> None:
    """Raises `InvalidInput` for a schedule that can't be: no name, no timing or two, a cron line that never fires."""
    if not schedule.name:
        raise InvalidInput("a schedule needs a name")
    given = [name for name in ("cron", "every", "at") if getattr(schedule, name) is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        raise InvalidInput(f"schedule {schedule.name!r} takes one of cron, every and at; it has {found}")
    zone(schedule.tz)
    if schedule.cron is not None:
        if not isinstance(schedule.cron, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(f"cron is a line such as '0 9 * * mon-fri', not {schedule.cron!r}")
        parse(schedule.cron)
    if schedule.every is not None:
        _within("every", schedule.every, SHORTEST, LONGEST)
    if schedule.at is not None:
        _within("at", schedule.at, 0, 2 * LONGEST)
    _within("jitter", schedule.jitter, 0, LONGEST if schedule.every is None else schedule.every)
    _within("missed_limit", schedule.missed_limit, 1, MOST_MISSED, unit="", per_unit=1)
    if schedule.start.at is not None:
        raise InvalidInput(f"the start of schedule {schedule.name!r} has a time of its own; its slots give it one")


def next_slots(schedule: Schedule, after: Millis, count: int) -> list[Millis]:
    """The first slots after a time, at most `count`: fewer when no more will come."""
    return list(islice(_slots(schedule, after), count))


def due_fires(record: ScheduleRecord, now: Millis) -> list[Fire]:
    """What is to be done about a schedule at a time: fires that take it from the slot where it stands to the first one
    after `now`, one after the other. None when nothing is due.

    Of the slots that are due those are missed that came before another one, or that are older than `ON_TIME`.
    """
    first = record.next_slot
    if record.paused or first is None or first > now:
        return []
    schedule = record.schedule
    upcoming = next(_slots(schedule, now), None)
    chosen = _choose(schedule, _latest(schedule, first, now), now)
    if not chosen:
        return [Fire(schedule.name, first, [], upcoming)]
    fires = [] if chosen[0] == first else [Fire(schedule.name, first, [], chosen[0])]
    fires += [
        Fire(schedule.name, slot, [start_of(schedule, slot)], following, schedule.overlap)
        for slot, following in pairwise([*chosen, upcoming])
        if slot is not None
    ]
    return fires


def start_of(schedule: Schedule, slot: Millis) -> Start:
    """The run of a slot. It is put off by a part of the jitter that depends on the schedule's name and the slot."""
    at = None
    if schedule.jitter:
        digest = hashlib.blake2b(f"{schedule.name}@{slot}".encode(), digest_size=8).digest()
        at = slot + int.from_bytes(digest) % schedule.jitter
    return replace(
        schedule.start, id=run_id(schedule.name, slot), at=at, delay=None if at is not None else schedule.start.delay
    )


def run_id(name: str, slot: Millis) -> str:
    """The id of the run of a slot, such as `name@2026-10-25T01:30:00Z`."""
    at = moment(slot).replace(tzinfo=None)
    return f"{name}@{at.isoformat(timespec='milliseconds' if slot % 1000 else 'seconds')}Z"


def zone(name: str) -> tzinfo:
    """A time zone by its name; `InvalidInput` when there is none. UTC is there on every machine, others only where it
    has a database of zones, or the package tzdata."""
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"tz is the name of a time zone, such as 'Europe/Berlin', not {name!r}")
    if name == "UTC":
        return UTC
    if name in _NO_ZONES:
        raise InvalidInput(
            f"{name!r} is whatever the machine that reads it is set to, and no time zone;"
            " write one like 'Europe/Berlin'"
        )
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:  # OSError: the name of a folder of zones
        known = available_timezones()
        if not known:
            raise InvalidInput(
                f"this machine has no time zones but UTC, so {name!r} can't be read: `pip install tzdata` brings them"
            ) from error
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "write one like 'Europe/Berlin'"
        raise InvalidInput(f"there is no time zone {name!r}; {hint}") from error


@lru_cache(maxsize=256)
def parse(line: str) -> str:
    """A cron line as five fields; `InvalidInput` when it can't be, never fires, or is read differently elsewhere."""
    text = _ALIASES.get(line.strip().lower(), line)
    if text.lstrip().startswith("@"):
        raise InvalidInput(f"the cron line {line!r} is none of {', '.join(_ALIASES)}")
    fields = text.split()
    if len(fields) != len(_FIELDS):
        hint = "; for seconds use every" if len(fields) == 6 else ""
        raise InvalidInput(f"the cron line {line!r} has {len(fields)} fields, not five ({', '.join(_FIELDS)}){hint}")
    for index, field in enumerate(fields):
        _check_field(line, index, field)
    if fields[2] != "*" and fields[4] != "*" and (fields[2].startswith("*") or fields[4].startswith("*")):
        raise InvalidInput(
            f"the cron line {line!r} names days of the month and of the week, one of them as '*' with a step: some"
            " programs take the days that fit one of the two, some those that fit both; write 1-31 or 0-6 instead of"
            " the '*' for those that fit one, or let one of them be '*'"
        )
    if not fields[1].startswith("*") and fields[0].startswith("*"):
        fields[0] = "0-59" + fields[0][1:]  # the same minutes; written so, they are of fixed hours for the reader too
    if next(_walls(" ".join(fields), _WALL), None) is None:
        raise InvalidInput(f"the cron line {line!r} never fires: there is no such day")
    return " ".join(fields)


def _check_field(line: str, index: int, field: str) -> None:
    name, (first, last) = _FIELDS[index], _RANGES[index]
    for term in field.split(","):
        base, slash, step = term.partition("/")
        if slash and base != "*" and "-" not in base:
            raise InvalidInput(
                f"the cron line {line!r}: {term!r} as {name} is read differently by different programs; "
                f"write '{base}-{last}/{step}'"
            )
        if base == "*" and step.isdecimal() and int(step) > last - first:
            raise InvalidInput(
                f"the cron line {line!r}: {term!r} as {name} has a step over the whole range, so that only {first} is"
                f" left of it; write '{first}' for that, or use every= for longer times"
            )
    try:
        CronSim(" ".join([*["*"] * index, field, *["*"] * (4 - index)]), _WALL)
    except CronSimError as error:
        hint = "; ranges go upwards: of one that goes round give the two parts" if "-" in field else ""
        raise InvalidInput(f"the cron line {line!r} has {field!r} as {name}, which can't be{hint}") from error


def _within(name: str, value: int, least: int, most: int, unit: str = " seconds", per_unit: int = 1000) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        said = value / per_unit if isinstance(value, int) else value
        raise InvalidInput(
            f"{name} lies between {least / per_unit:,g} and {most / per_unit:,.0f}{unit}; it can't be {said!r}"
        )


def _choose(schedule: Schedule, slots: list[Millis], now: Millis) -> list[Millis]:
    """Of the latest slots that are due, those that fire."""
    match schedule.missed:
        case Missed.ALL:
            return slots[-schedule.missed_limit :]
        case Missed.LAST:
            return slots[-1:]
        case Missed.SKIP:
            return [slot for slot in slots[-1:] if now - slot < ON_TIME]


def _latest(schedule: Schedule, first: Millis, now: Millis) -> list[Millis]:
    """The latest slots from `first` to `now`, in order: at least as many as may fire, if there are so many.

    They are looked for in ever longer times before `now`, so that a year of missed minutes is not walked through.
    """
    wanted = schedule.missed_limit if schedule.missed is Missed.ALL else 1
    for back in _BACK:
        begin = max(first, now - back)
        slots = list(takewhile(lambda slot: slot <= now, _slots(schedule, begin - 1)))
        if begin == first or len(slots) >= wanted:
            return slots
    return []


def _slots(schedule: Schedule, after: Millis) -> Iterator[Millis]:
    if schedule.at is not None:
        if schedule.at > after:
            yield schedule.at
    elif schedule.every is not None:
        slot = (after // schedule.every + 1) * schedule.every
        while True:
            yield slot
            slot += schedule.every
    elif schedule.cron is not None:
        line, place = parse(schedule.cron), zone(schedule.tz)
        start = moment(after)
        wild = line.split()[1].startswith("*")
        for slot in _shown(line, place, start) if wild else _daily(line, place, start):
            if slot > start:
                yield epoch_millis(slot, "a slot")


def _walls(line: str, after: datetime) -> Iterator[datetime]:
    """What the clock on the wall shows whenever a line fires, from a naive time on."""
    try:
        yield from CronSim(line, after)
    except (CronSimError, OverflowError):
        # A day that no month has, or the end of the calendar.
        return


def _daily(line: str, place: tzinfo, after: datetime) -> Iterator[datetime]:
    """The instants of a line of fixed hours: one for each time that it names, in order."""
    last = None
    for wall in _walls(line, after.astimezone(place).replace(tzinfo=None) - _DAY):
        instant = wall.replace(tzinfo=place).astimezone(UTC)
        if instant.astimezone(place).replace(tzinfo=None) != wall:
            # The clocks skip it: taken with the offset of either side, it lies on the other side of the change.
            instant = _change(place, wall.replace(tzinfo=place, fold=1).astimezone(UTC), instant)
        if last is None or instant > last:
            yield instant
            last = instant


def _shown(line: str, place: tzinfo, after: datetime) -> Iterator[datetime]:
    """All instants at which the clock shows what a line asks for: between two changes of the clock, one by one."""
    since = after.replace(second=0, microsecond=0)
    while True:
        offset = _offset(place, since)
        change = None
        for wall in _walls(line, (since + offset).replace(tzinfo=None) - _SECOND):
            instant = wall.replace(tzinfo=UTC) - offset
            change = _next_change(place, since, instant)
            if change is not None:
                break
            yield instant
            since = instant
        if change is None:
            return
        since = change


def _next_change(place: tzinfo, since: datetime, until: datetime) -> datetime | None:
    """The first instant after `since`, and not after `until`, from which the offset is another one."""
    while since < until:
        step = min(since + _DAY, until)
        if _offset(place, step) != _offset(place, since):
            return _change(place, since, step)
        since = step
    return None


def _change(place: tzinfo, before: datetime, after: datetime) -> datetime:
    """The first whole second from which the offset is that of `after`; it is another one at `before`."""
    offset = _offset(place, after)
    low, high = 0, int((after - before).total_seconds())
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(place, before + middle * _SECOND) == offset:
            high = middle
        else:
            low = middle
    return before + high * _SECOND


def _offset(place: tzinfo, instant: datetime) -> timedelta:
    # What a clock shows less what it shows in UTC. (`utcoffset()` of it says the same, but may be None by its type.)
    return instant.astimezone(place).replace(tzinfo=UTC) - instant
