"""A hundred thousand runs that wait cost their worker nothing, and wake when they should."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from faults.kit import Process, World, until
from perdure.model import Checkpoint, Kind, Millis, Outcome, Start, State, Wait, WaitFor
from perdure.stores.base import Registration, Store
from perdure.stores.exchange import CLAIM_LIMIT, Claim, Exchange, Save, Settle, To

pytestmark = pytest.mark.anyio

TIMERS = 90_000
SIGNALS = 10_000
SAMPLE = 20


class Parker:
    """A bare worker that parks what it claims, as the engine would, without running any code."""

    def __init__(self, store: Store, worker: int) -> None:
        self._store = store
        self._worker = worker
        self._serial = 0

    @classmethod
    async def begin(cls, store: Store) -> Parker:
        registration = Registration(
            name="parker", host="", pid=0, queues=["default"], workflows=["parked"], concurrency=64, lease=600_000
        )
        return cls(store, await store.register(registration))

    async def park(self, starts: Sequence[Start], at: Millis | None) -> None:
        for first in range(0, len(starts), 1000):
            await self._store.enqueue(starts[first : first + 1000])
        held: list[Claim] = []
        done = 0
        while done < len(starts):
            self._serial += 1
            reply = await self._store.exchange(
                Exchange(
                    self._worker,
                    self._serial,
                    saves=[Save(claim.ref, claim.token, _checkpoint(at)) for claim in held],
                    settles=[Settle(claim.ref, claim.token, To.PARK, waits=[_wait(at)]) for claim in held],
                    slots=CLAIM_LIMIT,
                )
            )
            done += len(held)
            held = reply.claims

    async def end(self) -> None:
        await self._store.retire(self._worker)


def _checkpoint(at: Millis | None) -> Checkpoint:
    if at is None:
        return Checkpoint("signal:wake", Kind.SIGNAL, Outcome.OPEN, started_at=1)
    return Checkpoint("sleep", Kind.SLEEP, Outcome.OPEN, at=at, started_at=1)


def _wait(at: Millis | None) -> Wait:
    return Wait("signal:wake", WaitFor.SIGNAL, "wake") if at is None else Wait("sleep", WaitFor.TIMER, at=at)


def _starts(prefix: str, count: int, until: datetime | None) -> list[Start]:
    when = "null" if until is None else f'"{until.isoformat()}"'
    return [Start(f"{prefix}{number}", "parked", "default", f'{{"until":{when}}}') for number in range(count)]


async def holdings(world: World, process: Process) -> tuple[int, int, int, int]:
    """What a worker's process holds: tasks, threads, open files, kilobytes."""
    before = world.log.count("holds", pid=process.pid)
    process.ask()
    await until(lambda: world.log.count("holds", pid=process.pid) > before, "the worker tells what it holds")
    tasks, threads, files, memory = (int(word) for word in world.log.find("holds", pid=process.pid)[-1][1:5])
    return tasks, threads, files, memory


async def waiting(world: World) -> int:
    return (await world.states()).get(State.WAITING, 0)


async def test_a_hundred_thousand_parked_runs_cost_nothing_and_wake_in_time(world: World) -> None:
    store = await world.app.client.store()
    fresh = await world.serving(lease=60, queues=["elsewhere"])
    nothing = await holdings(world, fresh)
    fresh.kill()
    parker = await Parker.begin(store)
    began = time.monotonic()
    await parker.park(_starts("signal-", SIGNALS, None), None)
    # All timers are due at one instant, some seconds after the last one is parked.
    slow = (time.monotonic() - began) * TIMERS / SIGNALS
    due = datetime.now(UTC) + timedelta(seconds=1.6 * slow + 6)
    at = round(due.timestamp() * 1000)
    await parker.park(_starts("timer-", TIMERS, due), at)
    await parker.end()
    assert datetime.now(UTC) < due

    worker = await world.serving(lease=60, concurrency=50)
    # Parked by the engine itself, due a little before all the others.
    sooner = [due - timedelta(milliseconds=500 + 50 * number) for number in range(SAMPLE)]
    sample = [await world.flows.parked.start(moment) for moment in sooner]
    await until(lambda: parked_all(world), "all runs are parked")
    tasks, threads, files, memory = await holdings(world, worker)
    assert tasks <= nothing[0] + 2
    assert threads <= nothing[1] + 2
    assert files <= nothing[2] + 2
    assert memory <= nothing[3] + 10_000

    for number in range(SAMPLE):
        run = world.flows.parked.get(f"signal-{number}")
        sent = time.monotonic()
        await run.signal("wake", "ada")
        assert await run.result(timeout=30) == "ada"
        assert time.monotonic() - sent < 5
    for moment, run in zip(sooner, sample, strict=True):
        assert await run.result(timeout=60) == "slept"
        record = await world.record(run.id)
        assert record.finished_at is not None
        assert 0 <= record.finished_at - moment.timestamp() * 1000 < 5000

    # Other work goes on while the many are woken, step by step.
    beside = 0
    await until(lambda: still_waiting(world, TIMERS), "the many begin to be woken")
    while (left := await waiting(world)) > SIGNALS:
        asked = time.monotonic()
        run = await world.flows.leaf.options(priority=-1).start(1)
        await run.result(timeout=30)
        assert time.monotonic() - asked < 10
        beside += await waiting(world) > SIGNALS
    assert beside >= 3, f"{left} were woken in steps that are too large"
    states = await world.states()
    assert states[State.WAITING] == SIGNALS - SAMPLE
    assert states[State.SUCCEEDED] > 0
    assert (await holdings(world, worker))[3] <= nothing[3] + 30_000
    worker.terminate()
    await worker.ended()
    assert sum((await world.states()).values()) == sum(states.values())


async def parked_all(world: World) -> bool:
    return await waiting(world) == TIMERS + SIGNALS + SAMPLE


async def still_waiting(world: World, count: int) -> bool:
    return await waiting(world) < SIGNALS - SAMPLE + count
