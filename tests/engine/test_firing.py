"""Schedules that are due: those that can't be read are set aside for a while, and said once."""

from __future__ import annotations

import logging

import pytest

from perdure.engine.firing import _AGAIN, Firing
from perdure.model import Millis, Schedule, ScheduleRecord, Start

START = Start("", "ship", "default", "null")


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def due(name: str, tz: str = "UTC", *, at: Millis = 60_000, broken: str | None = None) -> ScheduleRecord:
    schedule = Schedule(name=name, cron="* * * * *", tz=tz, start=START)
    return ScheduleRecord(schedule=schedule, paused=False, next_slot=at, broken=broken)


def test_what_cant_be_read_is_set_aside_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    time = Time()
    firing = Firing(time)
    told = [due("bad", "No/Where"), due("new", broken="Invalid enum value 'later'"), due("good")]
    assert [fire.name for fire in firing.fires(told, 60_000)] == ["good"]
    assert firing.skips() == ["bad", "new"]
    time.now += _AGAIN + 1
    assert firing.skips() == []
    assert [fire.name for fire in firing.fires(told[:2], 60_000)] == []
    assert firing.skips() == ["bad", "new"]
    assert [(record.levelno, record.exc_info) for record in caplog.records] == [(logging.ERROR, None)] * 2
    assert "No/Where" in caplog.text and "'later'" in caplog.text


def test_one_that_can_be_read_again_is_said_anew_if_it_breaks_again(caplog: pytest.LogCaptureFixture) -> None:
    firing = Firing(Time())
    for tz in ("No/Where", "UTC", "No/Where"):
        firing.fires([due("s", tz)], 60_000)
    assert len(caplog.records) == 2


def test_an_error_that_nobody_expected_is_told_with_its_place(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*_: object) -> None:
        raise RuntimeError("wrong")

    monkeypatch.setattr("perdure.engine.firing.due_fires", wrong)
    assert Firing(Time()).fires([due("s")], 60_000) == []
    assert caplog.records[0].exc_info is not None
