"""Slots of schedules: tables over the days on which clocks change, and what holds for any line."""

from __future__ import annotations

import sys
import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from perdure.cron import ON_TIME, due_fires, next_slots, parse, run_id, start_of, validate, zone
from perdure.errors import InvalidInput
from perdure.model import Fire, Millis, Missed, Overlap, Schedule, ScheduleRecord, Start

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Australia/Sydney"]
START = Start(id="", workflow="report", queue="default", input="null")


def cron(line: str, tz: str = "UTC", **options: object) -> Schedule:
    return replace(Schedule(name="s", cron=line, tz=tz, start=START), **options)


def every(ms: Millis, **options: object) -> Schedule:
    return replace(Schedule(name="s", every=ms, start=START), **options)


def ms(text: str) -> Millis:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def utc(slots: list[Millis]) -> list[str]:
    return [datetime.fromtimestamp(slot / 1000, UTC).strftime("%m-%d %H:%M") for slot in slots]


# --- the days on which the clocks change; all instants in UTC

TABLE = [
    # Berlin, 2026-03-29: 02:00 becomes 03:00 at 01:00 UTC.
    ("Europe/Berlin", "30 2 * * *", "2026-03-28", ["03-28 01:30", "03-29 01:00", "03-30 00:30"]),
    ("Europe/Berlin", "0 3 * * *", "2026-03-28", ["03-28 02:00", "03-29 01:00", "03-30 01:00"]),
    ("Europe/Berlin", "*/30 * * * *", "2026-03-29 00:15", ["03-29 00:30", "03-29 01:00", "03-29 01:30"]),
    ("Europe/Berlin", "*/30 2 * * *", "2026-03-28 23:00", ["03-29 01:00", "03-30 00:00", "03-30 00:30"]),
    ("Europe/Berlin", "0 2,3 * * *", "2026-03-28 12:00", ["03-29 01:00", "03-30 00:00", "03-30 01:00"]),
    # Berlin, 2026-10-25: 03:00 becomes 02:00 at 01:00 UTC.
    ("Europe/Berlin", "30 2 * * *", "2026-10-24", ["10-24 00:30", "10-25 00:30", "10-26 01:30"]),
    ("Europe/Berlin", "0 * * * *", "2026-10-24 23:30", ["10-25 00:00", "10-25 01:00", "10-25 02:00"]),
    ("Europe/Berlin", "*/30 2 * * *", "2026-10-24 23:00", ["10-25 00:00", "10-25 00:30", "10-26 01:00"]),
    # New York, 2026-03-08: 02:00 becomes 03:00 at 07:00 UTC; 2026-11-01: 02:00 becomes 01:00 at 06:00 UTC.
    ("America/New_York", "15 2 * * *", "2026-03-07", ["03-07 07:15", "03-08 07:00", "03-09 06:15"]),
    ("America/New_York", "0 9 * * mon-fri", "2026-03-06", ["03-06 14:00", "03-09 13:00", "03-10 13:00"]),
    ("America/New_York", "30 1 * * *", "2026-10-31", ["10-31 05:30", "11-01 05:30", "11-02 06:30"]),
    ("America/New_York", "20,40 * * * *", "2026-11-01 05:30", ["11-01 05:40", "11-01 06:20", "11-01 06:40"]),
    # Lord Howe, 2026-04-05: 02:00 becomes 01:30 at 15:00 UTC of the day before; 2026-10-04: 02:00 becomes 02:30.
    ("Australia/Lord_Howe", "45 1 * * *", "2026-04-03", ["04-03 14:45", "04-04 14:45", "04-05 15:15"]),
    ("Australia/Lord_Howe", "15 2 * * *", "2026-10-02", ["10-02 15:45", "10-03 15:30", "10-04 15:15"]),
    ("Australia/Lord_Howe", "40 * * * *", "2026-04-04 14:00", ["04-04 14:40", "04-04 15:10", "04-04 16:10"]),
    ("Australia/Lord_Howe", "40 * * * *", "2026-10-03 14:00", ["10-03 14:10", "10-03 15:10", "10-03 15:40"]),
    # Sydney, 2026-04-05: 03:00 becomes 02:00 at 16:00 UTC of the day before; 2026-10-04: 02:00 becomes 03:00.
    ("Australia/Sydney", "30 2 * * *", "2026-04-03", ["04-03 15:30", "04-04 15:30", "04-05 16:30"]),
    ("Australia/Sydney", "30 2 * * *", "2026-10-02", ["10-02 16:30", "10-03 16:00", "10-04 15:30"]),
]


@pytest.mark.parametrize(("tz", "line", "after", "expected"), TABLE)
def test_slots_when_clocks_change(tz: str, line: str, after: str, expected: list[str]) -> None:
    assert utc(next_slots(cron(line, tz), ms(after), 3)) == expected


@pytest.mark.parametrize("tz", ZONES)
@pytest.mark.parametrize("hour", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("minute", [0, 15, 30, 45])
def test_a_daily_time_fires_once_on_every_day_of_a_year(tz: str, hour: int, minute: int) -> None:
    slots = next_slots(cron(f"{minute} {hour} * * *", tz), ms("2026-01-01"), 365)
    days = [datetime.fromtimestamp(slot / 1000, ZoneInfo(tz)).date() for slot in slots]
    assert days == [days[0] + timedelta(days=n) for n in range(365)]


@pytest.mark.parametrize(
    ("line", "after", "expected"),
    [
        ("0 12 29 2 *", "2025-01-01", ["02-29 12:00", "02-29 12:00"]),
        ("0 0 29 2 mon", "2026-02-01", ["02-02 00:00", "02-09 00:00"]),
        ("0 0 31 * *", "2026-01-31", ["03-31 00:00", "05-31 00:00"]),
        ("0 0 1 jan *", "2026-01-01", ["01-01 00:00", "01-01 00:00"]),
        ("0 0 13 * fri", "2026-02-01", ["02-06 00:00", "02-13 00:00"]),
        ("0 0 L * *", "2026-01-31 00:00", ["02-28 00:00", "03-31 00:00"]),
        ("0 0 * * 7", "2026-01-01", ["01-04 00:00", "01-11 00:00"]),
        ("@daily", "2026-01-01", ["01-02 00:00", "01-03 00:00"]),
        ("  5   4 * *  SUN ", "2026-01-01", ["01-04 04:05", "01-11 04:05"]),
    ],
)
def test_fields(line: str, after: str, expected: list[str]) -> None:
    assert utc(next_slots(cron(line), ms(after), 2)) == expected


def test_of_two_day_fields_one_is_enough() -> None:
    days = [
        datetime.fromtimestamp(slot / 1000, UTC) for slot in next_slots(cron("0 0 1-31/10 * tue"), ms("2026-01-01"), 9)
    ]
    assert all(day.weekday() == 1 or day.day in (1, 11, 21, 31) for day in days)
    assert {day.weekday() for day in days} > {1}


def test_the_29th_of_february_comes_in_leap_years_only() -> None:
    slots = next_slots(cron("0 0 29 2 *"), ms("2025-01-01"), 3)
    assert [datetime.fromtimestamp(slot / 1000, UTC).year for slot in slots] == [2028, 2032, 2036]


# --- what holds for any line

stars = st.sampled_from(["*", "*/2", "*/15", "*/7"])
minutes = stars | st.integers(0, 59).map(str) | st.sampled_from(["0,30", "10-20", "5-55/10"])
hours = st.sampled_from(["*", "*/2", "*/3", "1,2,3", "0-4", "22-23"]) | st.integers(0, 23).map(str)
days = st.sampled_from(["*", "*", "1", "5", "25", "29", "*/3"])
weekdays = st.sampled_from(["*", "*", "sun", "mon-fri", "0,6"])
lines = st.builds(lambda *fields: " ".join(fields), minutes, hours, days, st.just("*"), weekdays).filter(
    lambda line: "*/3 * *" in line or " */3 * " not in line  # a step of days beside weekdays is ambiguous
)
changes = [ms("2026-03-08"), ms("2026-03-29"), ms("2026-04-04"), ms("2026-10-03"), ms("2026-10-25"), ms("2026-11-01")]
moments = st.builds(lambda at, off: at + off, st.sampled_from(changes), st.integers(-2 * DAY, 2 * DAY))


@settings(deadline=None, max_examples=150)
@given(lines, st.sampled_from(ZONES), moments)
def test_slots_increase_and_none_comes_early_or_is_forgotten(line: str, tz: str, after: Millis) -> None:
    schedule = cron(line, tz)
    slots = next_slots(schedule, after, 12)
    assert all(slot > after for slot in slots)
    assert slots == sorted(set(slots))
    # Wherever one begins, the slots that follow are the same.
    assert next_slots(schedule, slots[0], 11) == slots[1:]
    assert next_slots(schedule, slots[5] - 1, 7) == slots[5:]


@settings(deadline=None, max_examples=60)
@given(lines, st.sampled_from(ZONES), moments)
def test_slots_are_what_a_search_finds(line: str, tz: str, after: Millis) -> None:
    """Minute by minute for two days, against the clock on the wall."""
    after -= after % MINUTE
    fixed = not line.split()[1].startswith("*")
    place = ZoneInfo(tz)
    walls = set(slots_between(cron(line), after - 2 * DAY, after + 4 * DAY))
    found: set[Millis] = set()
    seen: set[Millis] = set()
    before = datetime.fromtimestamp((after - DAY) / 1000 - 60, place).utcoffset()
    for at in range(after - DAY, after + 2 * DAY + 1, MINUTE):
        offset = datetime.fromtimestamp(at / 1000, place).utcoffset()
        assert offset is not None and before is not None
        wall = at + offset // timedelta(milliseconds=1)
        gap = (offset - before) // timedelta(milliseconds=1)
        before = offset
        skipped = gap > 0 and any(wall - gap <= missing < wall for missing in walls)
        if (wall in walls and not (fixed and wall in seen)) or (fixed and skipped):
            found.add(at)
        seen.add(wall)
    expected = sorted(at for at in found if after < at <= after + 2 * DAY)
    assert slots_between(cron(line, tz), after, after + 2 * DAY) == expected


def slots_between(schedule: Schedule, after: Millis, until: Millis) -> list[Millis]:
    found = next_slots(schedule, after, 100)
    while found[-1] <= until:
        found += next_slots(schedule, found[-1], 100)
    return [slot for slot in found if slot <= until]


@given(st.integers(100, 10 * DAY), st.integers(0, 10**13))
def test_intervals_lie_at_whole_multiples(length: Millis, after: Millis) -> None:
    slots = next_slots(every(length), after, 3)
    assert slots[0] - length <= after < slots[0]
    assert [slot % length for slot in slots] == [0, 0, 0]
    assert slots == [slots[0], slots[0] + length, slots[0] + 2 * length]


def test_a_single_slot_comes_once() -> None:
    once = Schedule(name="s", at=1000, start=START)
    assert next_slots(once, 999, 5) == [1000]
    assert next_slots(once, 1000, 5) == []


# --- what can't be


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("0 0 31 2 *", "never fires"),
        ("0 0 30,31 feb *", "never fires"),
        ("0 0 31 4,6,9,11 *", "never fires"),
        ("", "0 fields"),
        ("* * * *", "4 fields"),
        ("0 0 0 * * *", "6 fields.*for seconds use every"),
        ("61 * * * *", "'61' as minute"),
        ("0 24 * * *", "'24' as hour"),
        ("0 0 0 * *", "'0' as day of month"),
        ("0 0 * 13 *", "'13' as month"),
        ("0 0 * * 8", "'8' as day of week"),
        ("0 0 * * mon-sun", "'mon-sun' as day of week"),
        ("0 0 ? * *", r"'\?' as day of month"),
        ("*/0 * * * *", r"'\*/0' as minute"),
        ("5/15 * * * *", "write '5-59/15'"),
        ("0 0 1/2 * *", "write '1-31/2'"),
        ("0 0 */2 * mon", "fit one of the two, some those that fit both"),
        ("0 0 13 * */2", "fit one of the two, some those that fit both"),
        ("*/100 * * * *", r"'\*/100' as minute has a step over the whole range, so that only 0 is left"),
        ("*/60 * * * *", r"'\*/60' as minute"),
        ("0 */24 * * *", r"'\*/24' as hour"),
        ("0 0 */40 * *", r"'\*/40' as day of month.*write '1'"),
        ("every day", "2 fields"),
        ("@reboot", "@daily"),
        ("@fortnightly", "@daily"),
        ("a b c d e", "'a' as minute"),
        ("٣ * * * *", "as minute"),
        ("-1 * * * *", "as minute"),
        ("1,,2 * * * *", "as minute"),
    ],
)
def test_lines_that_cant_be(line: str, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        parse(line)


@pytest.mark.parametrize(
    ("schedule", "told"),
    [
        (Schedule(name="", every=1000, start=START), "needs a name"),
        (Schedule(name="s", start=START), "one of cron, every and at; it has none"),
        (Schedule(name="s", cron="* * * * *", every=1000, start=START), "cron and every"),
        (cron("0 9 * * *", "Europe/Berln"), "did you mean 'Europe/Berlin'"),
        (cron("0 9 * * *", "Mars"), "no time zone 'Mars'"),
        (cron("0 9 * * *", "../etc/passwd"), "no time zone"),
        (cron("0 9 * * *", "Europe"), "no time zone"),
        (cron("0 9 * * *", ""), "no time zone"),
        (every(0), "every"),
        (every(-5), "every"),
        (every(99), "every"),
        (every(10**16), "every"),
        (every(1000, jitter=1001), "jitter"),
        (every(1000, jitter=-1), "jitter"),
        (every(1000, missed_limit=0), "missed_limit"),
        (Schedule(name="s", at=-1, start=START), "at lies"),
        (every(1000, start=replace(START, at=5)), "time of its own"),
    ],
)
def test_schedules_that_cant_be(schedule: Schedule, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        validate(schedule)


def test_schedules_that_can() -> None:
    for schedule in (cron("0 9 * * mon-fri", "Europe/Berlin"), every(1000, jitter=1000), cron("@hourly", jitter=5)):
        validate(schedule)
    validate(Schedule(name="s", at=0, start=START))


# --- what is due


def record(schedule: Schedule, next_slot: Millis | None, **options: object) -> ScheduleRecord:
    return replace(ScheduleRecord(schedule=schedule, paused=False, next_slot=next_slot), **options)


def fired(fires: list[Fire]) -> list[Millis]:
    """The slots that make runs; checks that the fires make a chain."""
    for one, other in pairwise(fires):
        assert one.next_slot == other.slot
    return [fire.slot for fire in fires if fire.starts]


def test_nothing_is_due_early_or_while_paused() -> None:
    schedule = every(1000)
    assert due_fires(record(schedule, 2000), 1999) == []
    assert due_fires(record(schedule, 2000, paused=True), 5000) == []
    assert due_fires(record(schedule, None), 5000) == []


def test_one_slot_fires_and_the_next_one_is_told() -> None:
    schedule = cron("30 2 * * *", "Europe/Berlin", overlap=Overlap.SKIP)
    slot = ms("2026-10-25 00:30")
    [fire] = due_fires(record(schedule, slot), slot)
    assert (fire.name, fire.slot, fire.overlap) == ("s", slot, Overlap.SKIP)
    assert [start.id for start in fire.starts] == ["s@2026-10-25T00:30:00Z"]
    assert fire.next_slot == next_slots(schedule, slot, 1)[0]


@pytest.mark.parametrize(
    ("missed", "late", "expected"),
    [
        (Missed.LAST, 0, [50 * MINUTE]),
        (Missed.LAST, 9 * MINUTE, [50 * MINUTE]),
        (Missed.SKIP, 0, [50 * MINUTE]),
        (Missed.SKIP, ON_TIME - 1, [50 * MINUTE]),
        (Missed.SKIP, ON_TIME, []),
        (Missed.ALL, 9 * MINUTE, [30 * MINUTE, 40 * MINUTE, 50 * MINUTE]),
    ],
)
def test_missed_slots(missed: Missed, late: Millis, expected: list[Millis]) -> None:
    schedule = every(10 * MINUTE, missed=missed, missed_limit=3)
    fires = due_fires(record(schedule, 10 * MINUTE), 50 * MINUTE + late)
    assert fired(fires) == expected
    assert fires[0].slot == 10 * MINUTE and fires[-1].next_slot == 60 * MINUTE


@pytest.mark.parametrize("missed", list(Missed))
def test_a_year_of_missed_minutes_is_not_walked_through(missed: Missed) -> None:
    schedule = cron("* * * * *", "Europe/Berlin", missed=missed)
    now = ms("2026-10-25 02:00")
    fires = due_fires(record(schedule, now - 365 * DAY), now)
    assert fired(fires)[-1] == now
    assert len(fired(fires)) == (100 if missed == Missed.ALL else 1)


def test_a_single_slot_that_was_missed() -> None:
    once = Schedule(name="s", at=1000, start=START, missed=Missed.LAST)
    [fire] = due_fires(record(once, 1000), DAY)
    assert (len(fire.starts), fire.next_slot) == (1, None)
    [fire] = due_fires(record(replace(once, missed=Missed.SKIP), 1000), DAY)
    assert (fire.starts, fire.next_slot) == ([], None)


@given(st.integers(1, DAY), st.integers(0, 10**13), st.text(min_size=1))
def test_jitter_puts_off_by_less_than_it_says_and_always_the_same(jitter: Millis, slot: Millis, name: str) -> None:
    schedule = every(DAY, jitter=jitter, name=name)
    start = start_of(schedule, slot)
    assert start.at is not None and slot <= start.at < slot + jitter
    assert start == start_of(schedule, slot)


def test_jitter_spreads() -> None:
    schedule = every(HOUR, jitter=HOUR)
    parts = [(start_of(schedule, n * HOUR).at or 0) - n * HOUR for n in range(400)]
    assert len(set(parts)) > 390 and min(parts) < HOUR / 10 and max(parts) > HOUR * 9 / 10


def test_ids_tell_schedule_and_slot() -> None:
    assert run_id("name", ms("2026-10-25 01:30")) == "name@2026-10-25T01:30:00Z"
    assert run_id("name", ms("2026-10-25 01:30") + 100) == "name@2026-10-25T01:30:00.100Z"


# --- machines without zones (Alpine, distroless)


@pytest.fixture
def no_zones(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Takes the database of zones away, and the package that would replace it."""
    before = zoneinfo.TZPATH
    monkeypatch.setitem(sys.modules, "tzdata", None)
    monkeypatch.setitem(sys.modules, "tzdata.zoneinfo", None)
    zoneinfo.reset_tzpath(())
    ZoneInfo.clear_cache()
    yield
    zoneinfo.reset_tzpath(before)
    ZoneInfo.clear_cache()


@pytest.mark.usefixtures("no_zones")
@pytest.mark.parametrize("line", ["0 9 * * *", "*/15 * * * *"])
def test_utc_needs_no_database_of_zones(line: str) -> None:
    validate(cron(line))
    assert next_slots(cron(line), ms("2026-10-25T08:50"), 1) == [ms("2026-10-25T09:00")]


@pytest.mark.usefixtures("no_zones")
def test_where_there_are_no_zones_another_one_than_utc_says_what_to_install() -> None:
    with pytest.raises(InvalidInput, match=r"no time zones.*'Europe/Berlin'.*pip install tzdata"):
        validate(cron("0 9 * * *", "Europe/Berlin"))


@pytest.mark.parametrize("name", ["localtime", "posixrules"])
def test_what_differs_from_machine_to_machine_is_no_time_zone(name: str) -> None:
    with pytest.raises(InvalidInput, match="whatever the machine that reads it is set to"):
        zone(name)
