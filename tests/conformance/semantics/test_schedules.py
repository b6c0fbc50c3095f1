"""Schedules with a worker and a clock that the test moves: each slot makes one run, whatever happens."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import replace as changed

from perdure import App, current_run, step, wait_signal
from perdure.clock import moment
from perdure.errors import InvalidInput, ScheduleNotFound
from perdure.testing import VirtualClock

from .conftest import Play
from .kit import Gate, deploy, new_app, replay

pytestmark = pytest.mark.anyio

BERLIN = ZoneInfo("Europe/Berlin")


def at(*moment: int) -> VirtualClock:
    return VirtualClock(datetime(*moment, tzinfo=UTC))  # pyright: ignore[reportArgumentType]


def reporting(**options: Any) -> tuple[App, list[datetime]]:
    """An app with a schedule, and the times at which its runs began."""
    app, times = new_app(), list[datetime]()

    @app.schedule(**options)
    @app.workflow
    async def report() -> None:
        times.append(moment(app.clock.now()))

    return app, times


async def slots(app: App) -> list[str]:
    """The runs of slots, oldest first, as their ids tell."""
    runs = await app.runs(limit=1000)
    return [run.id.partition("@")[2] for run in reversed(runs)]


async def test_a_cron_line_fires_on_its_days(play: Play) -> None:
    app, times = reporting(cron="0 9 * * mon-fri", tz="Europe/Berlin")
    async with play(app, at(2030, 1, 7, 7, 59)) as sandbox:
        await sandbox.advance(days=9)
    assert [f"{time.astimezone(BERLIN):%a %d %H:%M}" for time in times] == [
        *("Mon 07 09:00", "Tue 08 09:00", "Wed 09 09:00", "Thu 10 09:00", "Fri 11 09:00"),
        *("Mon 14 09:00", "Tue 15 09:00"),
    ]


@pytest.mark.parametrize(
    ("start", "line", "hours", "expected"),
    [
        ((2030, 3, 29, 12), "30 2 * * *", 96, ["30T01:30", "31T01:00", "01T00:30", "02T00:30"]),
        ((2030, 10, 25, 12), "30 2 * * *", 96, ["26T00:30", "27T00:30", "28T01:30", "29T01:30"]),
        ((2030, 10, 26, 23, 45), "0 * * * *", 3, ["27T00:00", "27T01:00", "27T02:00"]),
    ],
)
async def test_a_daily_time_fires_once_a_day_over_daylight_saving(
    play: Play, start: tuple[int, ...], line: str, hours: int, expected: list[str]
) -> None:
    app, _ = reporting(cron=line, tz="Europe/Berlin")
    async with play(app, at(*start)) as sandbox:
        await sandbox.advance(hours=hours)
        assert [slot[8:16] for slot in await slots(app)] == expected


async def test_an_interval_does_not_drift(play: Play) -> None:
    app, times = reporting(every=timedelta(minutes=10))
    async with play(app, at(2030, 1, 1, 0, 3)) as sandbox:
        await sandbox.advance(minutes=40)
        await replay(sandbox)
        await sandbox.advance(minutes=10)
    assert [time.minute for time in times] == [10, 20, 30, 40, 50]


async def test_a_single_time_fires_once(play: Play) -> None:
    app, times = reporting(at=datetime(2030, 1, 2, tzinfo=UTC), name="once")
    async with play(app, at(2030, 1, 1)) as sandbox:
        await sandbox.advance(days=3)
        await replay(sandbox)
        await sandbox.advance(days=3)
        [status] = await app.schedules.list()
        assert status.upcoming == []
    assert len(times) == 1


async def test_a_saturated_worker_fires(play: Play) -> None:
    app, gate = new_app(), Gate()

    @step
    async def rest() -> None:
        await gate.pass_through()

    @app.schedule(every=60)
    @app.workflow
    async def flow() -> None:
        await rest()

    async with play(app, at(2030, 1, 1), concurrency=1) as sandbox:
        await sandbox.advance(seconds=60, settle=False)
        await gate.reached()
        for fired in (2, 3):
            await sandbox.advance(seconds=60, settle=False)
            async for _ in app.client.follow(lambda store: store.counts()):
                if sum(count.runs for count in await app.counts()) == fired:
                    break
        gate.open()
        await sandbox.settle()
        assert await slots(app) == [f"2030-01-01T00:0{n}:00Z" for n in (1, 2, 3)]


@pytest.mark.parametrize(
    ("missed", "expected"),
    [("skip", ["05:00"]), ("last", ["04:00", "05:00"]), ("all", ["01:00", "02:00", "03:00", "04:00", "05:00"])],
)
async def test_what_becomes_of_times_that_nobody_saw(play: Play, missed: str, expected: list[str]) -> None:
    app, _ = reporting(cron="0 * * * *", missed=missed)
    async with play(app, at(2030, 1, 1, 0, 30)) as sandbox:
        await sandbox.kill_worker()
        await sandbox.advance(hours=4)
        await sandbox.start_worker()
        await sandbox.advance(hours=1)
        assert [slot[11:16] for slot in await slots(app)] == expected


@pytest.mark.parametrize(
    ("overlap", "states"),
    [
        ("allow", ["waiting", "waiting", "waiting"]),
        ("skip", ["waiting"]),
        ("queue", ["waiting", "waiting", "waiting"]),
        ("cancel", ["cancelled", "cancelled", "waiting"]),
    ],
)
async def test_what_happens_while_the_run_before_goes_on(play: Play, overlap: str, states: list[str]) -> None:
    app, begun = new_app(), list[str]()

    @app.schedule(every=60, overlap=overlap)
    @app.workflow
    async def flow() -> None:
        if current_run().id not in begun:
            begun.append(current_run().id)
        await wait_signal("go")

    async with play(app, at(2030, 1, 1)) as sandbox:
        await sandbox.advance(minutes=3)
        runs = list(reversed(await app.runs()))
        assert [run.state for run in runs] == states
        assert len(begun) == (1 if overlap in ("skip", "queue") else 3)
        if overlap == "queue":
            assert runs[0].id in await app.run(runs[1].id).why()
            await app.run(runs[0].id).signal("go")
            await sandbox.settle()
            assert begun == [runs[0].id, runs[1].id]


async def test_schedules_are_added_changed_paused_triggered_and_removed(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def add(a: int, b: int = 1) -> int:
        return a + b

    async with play(app, at(2030, 1, 1)) as sandbox:
        status = await app.schedules.add("sums", add.options(labels={"by": "hand"}), "0 3 * * *", args=(1,))
        assert status.upcoming == [datetime(2030, 1, day, 3, tzinfo=UTC) for day in range(1, 6)]
        assert (status.name, status.paused, status.declared) == ("sums", False, False)
        await sandbox.advance(days=1)
        [run] = await app.runs(labels={"by": "hand"})
        assert await app.run(run.id).result() == 2
        triggered = await app.schedules.trigger("sums")
        assert await triggered.result() == 2
        assert (await app.schedules.pause("sums")).paused
        await sandbox.advance(days=3)
        assert len(await app.runs()) == 2
        status = await app.schedules.resume("sums")
        assert status.upcoming[0] == datetime(2030, 1, 5, 3, tzinfo=UTC)
        await sandbox.settle()
        assert len(await app.runs()) == 2
        changed = await app.schedules.add("sums", add, every=timedelta(hours=1), args=(5,))
        await sandbox.advance(hours=1)
        assert changed.record.schedule.cron is None
        assert await app.run((await app.runs())[0].id).result() == 6
        await app.schedules.remove("sums")
        await sandbox.advance(days=1)
        assert len(await app.runs()) == 3
        for change in (app.schedules.pause, app.schedules.resume, app.schedules.trigger, app.schedules.remove):
            with pytest.raises(ScheduleNotFound):
                await change("sums")


async def test_a_renamed_schedule_is_visible(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    app, _ = reporting(cron="0 3 * * *", name="old")
    async with play(app, at(2030, 1, 1)) as sandbox:
        new, _ = reporting(cron="0 3 * * *", name="new")
        with caplog.at_level(logging.WARNING, "perdure.worker"):
            await deploy(sandbox, new)
        assert "schedule old is in the store, and no code declares it (was it renamed?)" in caplog.text
        assert [status.name for status in await new.schedules.list()] == ["new", "old"]
        await new.schedules.remove("old")
        caplog.clear()
        await replay(sandbox)
        assert "no code declares" not in caplog.text


async def test_a_schedule_whose_workflow_no_worker_serves_is_visible(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    app, _ = reporting(cron="0 3 * * *", name="old")
    async with play(app, at(2030, 1, 1)) as sandbox:
        other = new_app()

        @other.workflow
        async def something() -> None: ...

        with caplog.at_level(logging.WARNING, "perdure.worker"):
            await deploy(sandbox, other)
        assert "schedule old starts workflow report, which no live worker serves: its runs wait" in caplog.text
        assert await other.schedules.unserved(await other.client.store()) == [("old", "report")]


async def test_a_deploy_changes_the_time_and_keeps_the_pause(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    app, _ = reporting(cron="0 3 * * *", name="nightly")
    async with play(app, at(2030, 1, 1)) as sandbox:
        await app.schedules.pause("nightly")
        other, _ = reporting(cron="0 4 * * *", name="nightly")
        with caplog.at_level(logging.WARNING, "perdure.worker"):
            await deploy(sandbox, other)
        assert "schedule nightly was 0 3 * * * (UTC) and is 0 4 * * * (UTC) from now on" in caplog.text
        [status] = await other.schedules.list()
        assert (status.paused, status.upcoming[0].hour) == (True, 4)
        await other.schedules.add("nightly", other.find("report"), "0 5 * * *")
        with caplog.at_level(logging.WARNING, "perdure.worker"):
            await replay(sandbox)
        assert "schedule nightly was added or changed at run time, and that stands" in caplog.text
        assert [each.upcoming[0].hour for each in await other.schedules.list()] == [5]


async def test_jitter_puts_each_run_off_by_a_fixed_amount(play: Play) -> None:
    app, times = reporting(cron="0 * * * *", jitter=600)
    async with play(app, at(2030, 1, 1, 0, 30)) as sandbox:
        await sandbox.advance(hours=5)
    assert len(times) == 5 and len({(time.minute, time.second) for time in times}) > 2
    assert all(time.minute < 10 for time in times)


async def test_schedules_that_cant_be_read_are_shown_and_keep_nobody_from_firing(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    app, times = reporting(every=timedelta(minutes=1), name="good")
    async with play(app, at(2030, 1, 1)) as sandbox:
        store = sandbox.worker.runtime.store
        [good] = await store.schedules()
        for n in range(25):
            bad = changed(good.schedule, name=f"bad{n}", every=None, cron="* * * * *", tz="No/Where")
            await store.put_schedule(bad, app.clock.now() + 1, declared=False)
        await sandbox.advance(minutes=5)
        assert len(times) == 5
        listed = {status.name: status for status in await app.schedules.list()}
        assert listed["good"].broken is None and len(listed["good"].upcoming) == 5
        assert "No/Where" in (listed["bad7"].broken or "") and listed["bad7"].upcoming == []
        await app.schedules.remove("bad7")
    said = [record for record in caplog.records if "can't be read" in record.getMessage()]
    assert len(said) == 25


async def test_a_single_time_that_has_passed_is_refused_or_warned_of(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    app, times = reporting(at=datetime(2029, 1, 1, tzinfo=UTC), name="late")
    async with play(app, at(2030, 1, 1)) as sandbox:
        assert "late does not fire" in caplog.text
        with pytest.raises(InvalidInput, match="has passed"):
            await app.schedules.add("once", app.find("report"), at=datetime(2029, 12, 31, tzinfo=UTC))
        await sandbox.advance(days=1)
        assert times == []
        assert [status.name for status in await app.schedules.list()] == ["late"]


async def test_a_single_time_that_fired_is_not_warned_of(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    app, times = reporting(at=datetime(2030, 1, 2, tzinfo=UTC), name="once")
    async with play(app, at(2030, 1, 1)) as sandbox:
        await sandbox.advance(days=3)
        await replay(sandbox)
        assert len(times) == 1 and "does not fire" not in caplog.text


async def test_a_single_time_that_passed_during_a_pause_is_left_out(play: Play) -> None:
    app, times = reporting(at=datetime(2030, 1, 2, tzinfo=UTC), name="once")
    async with play(app, at(2030, 1, 1)) as sandbox:
        await app.schedules.pause("once")
        await sandbox.advance(days=3)
        assert (await app.schedules.resume("once")).upcoming == []
        await sandbox.advance(days=3)
        assert times == []


@pytest.mark.parametrize("given", [{"args": 5}, {"args": "ab"}, {"kwargs": 5}, {"kwargs": [("n", 1)]}])
async def test_arguments_that_are_none_are_refused(play: Play, given: dict[str, Any]) -> None:
    app = new_app()

    @app.workflow
    async def flow(a: str, b: str) -> None: ...

    what = "args= is a tuple" if "args" in given else "kwargs= is a dict"
    async with play(app):
        with pytest.raises(InvalidInput, match=f"{what} .*, not "):
            app.schedules.add("s", flow, "* * * * *", **given)
        if "args" in given:
            with pytest.raises(InvalidInput, match=f"{what} .*, not "):
                app.schedule("* * * * *", **given)
