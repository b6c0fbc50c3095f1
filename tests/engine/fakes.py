"""Stand-ins for what parts of the engine talk to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

from perdure.engine.execution import Execution
from perdure.model import Arrived, Checkpoint, Ended, Kind, Millis, Outcome, RunRecord, State
from perdure.stores.base import Store
from perdure.stores.exchange import PAGE, Cancelling, Claim, Exchange, Exchanged, Save, Seen, Settle, To


def claim(
    token: int = 1,
    *,
    id: str = "run",
    queue: str = "default",
    checkpoints: Sequence[Checkpoint] = (),
    signals: Sequence[Arrived] = (),
    more_checkpoints: bool = False,
    more_signals: bool = False,
    ended: Sequence[Ended] = (),
    missing: Sequence[str] = (),
    unread: Sequence[str] = (),
) -> Claim:
    return Claim(
        ref=token,
        token=token,
        id=id,
        workflow="flow",
        queue=queue,
        input="{}",
        attempt=1,
        crashes=0,
        cut_off=False,
        created_at=0,
        deadline=None,
        parent=None,
        cancelling=None,
        checkpoints=list(checkpoints),
        signals=list(signals),
        ended=list(ended),
        missing=list(missing),
        unread=list(unread),
        more_checkpoints=more_checkpoints,
        more_signals=more_signals,
    )


def kept(key: str, position: int = 0) -> Checkpoint:
    return Checkpoint(key, Kind.STEP, Outcome.OK, f'"{key}"', position=position)


def save(token: int, key: str = "step", body: str = "1") -> Save:
    return Save(token, token, Checkpoint(key, Kind.STEP, Outcome.OK, body))


def settle(token: int, to: To = To.SUCCEEDED, *, body: str = "null") -> Settle:
    return Settle(token, token, to, body)


def reply(
    *,
    claims: Sequence[Claim] = (),
    refused: Sequence[int] = (),
    cancelled: Sequence[tuple[int, Cancelling]] = (),
    seen: Sequence[Seen] = (),
    next_at: Millis | None = None,
    more: bool = False,
    gone: bool = False,
    now: Millis = 0,
) -> Exchanged:
    return Exchanged(now, list(claims), list(refused), list(cancelled), list(seen), next_at, more, gone=gone)


class FakeClock:
    """Tells a time that a test sets, and keeps the alarms that were asked for."""

    def __init__(self) -> None:
        self.time: Millis = 0
        self.alarms: list[FakeAlarm] = []

    def saw(self, now: Millis) -> None:
        self.time = max(self.time, now)

    def now(self) -> Millis:
        return self.time

    def steady(self) -> Millis:
        return self.time

    def call_at(self, at: Millis, callback: Callable[[], None]) -> FakeAlarm:
        alarm = FakeAlarm(at, callback)
        self.alarms.append(alarm)
        return alarm

    @property
    def pending(self) -> list[Millis]:
        """When those ring that have not, and will."""
        return [alarm.at for alarm in self.alarms if not alarm.cancelled and not alarm.rung]


class FakeAlarm:
    def __init__(self, at: Millis, callback: Callable[[], None]) -> None:
        self.at = at
        self._callback = callback
        self.cancelled = self.rung = False

    def ring(self) -> None:
        self.rung = True
        self._callback()

    def cancel(self) -> None:
        self.cancelled = True


class FakeOwner:
    """The execution of a run, as the exchange loop sees it."""

    def __init__(self, token: int) -> None:
        self.ref = self.token = token
        self.told: list[Any] = []

    def lost(self) -> None:
        self.told.append("lost")

    def cancel(self, cancelling: Cancelling) -> None:
        self.told.append(cancelling.reason)

    def saw(self, seen: Seen) -> None:
        self.told.append(seen.key)


class ScriptedStore:
    """Answers exchanges as a test says, one by one: each is held until the test lets it go."""

    def __init__(self) -> None:
        self.parts = 1
        self.beside = False
        self.exchanges: list[Exchange] = []
        self.answer: Callable[[Exchange], Exchanged] = lambda _: reply()
        self.gate = asyncio.Event()
        self.gate.set()
        self.made = asyncio.Condition()

    async def exchange(self, exchange: Exchange) -> Exchanged:
        copy = Exchange(
            exchange.worker,
            exchange.serial,
            exchange.repeated,
            list(exchange.saves),
            list(exchange.settles),
            exchange.slots,
            list(exchange.watches),
            list(exchange.told),
            after=exchange.after,
            owned=None if exchange.owned is None else list(exchange.owned),
        )
        async with self.made:
            self.exchanges.append(copy)
            self.made.notify_all()
        await self.gate.wait()
        return self.answer(copy)

    async def number(self, count: int) -> Exchange:
        """Waits for the exchange of that number, from 1."""
        async with asyncio.timeout(10), self.made:
            await self.made.wait_for(lambda: len(self.exchanges) >= count)
        return self.exchanges[count - 1]


class PagedStore:
    """Checkpoints and signals of one run, and ends of others, read in pages; counts the reads."""

    def __init__(
        self,
        checkpoints: Sequence[Checkpoint] = (),
        signals: Sequence[Arrived] = (),
        ended: Sequence[Ended] = (),
        runs: Sequence[str] = (),
    ) -> None:
        self.checkpoints = list(checkpoints)
        self.arrived = list(signals)
        self.ends = list(ended)
        self.runs = set(runs)
        self.reads: list[str] = []
        self.errors: list[Exception] = []

    async def history(self, run_id: str, *, after: int = 0, limit: int = PAGE) -> list[Checkpoint]:
        await self._read(f"history after {after}")
        return [each for each in self.checkpoints if each.position > after][:limit]

    async def find(self, run_id: str, key: str) -> Checkpoint | None:
        await self._read(f"find {key}")
        return next((each for each in self.checkpoints if each.key == key), None)

    async def signals(self, run_id: str, *, after: int = 0, limit: int = PAGE) -> list[Arrived]:
        await self._read(f"signals after {after}")
        return [each for each in self.arrived if each.position > after][:limit]

    async def ended(self, run_ids: Sequence[str]) -> list[Ended]:
        await self._read(f"ended {run_ids[0]}")
        return [each for each in self.ends if each.id in run_ids]

    async def missing(self, run_ids: Sequence[str]) -> list[str]:
        await self._read(f"missing {run_ids[0]}")
        return [each for each in run_ids if each not in self.runs]

    async def _read(self, what: str) -> None:
        self.reads.append(what)
        await asyncio.sleep(0)
        if self.errors:
            raise self.errors.pop(0)


def as_store(fake: Any) -> Store:
    return cast(Store, fake)


class FakeExecution:
    """What a scope needs of an execution."""

    def __init__(self) -> None:
        self.over = False
        self.names: list[str] = []
        self.tracked: list[asyncio.Task[Any]] = []

    def claim_name(self, key: str) -> None:
        self.names.append(key)

    def track(self, task: asyncio.Task[Any] | None) -> None:
        assert task is not None
        self.tracked.append(task)


def as_execution(fake: FakeExecution) -> Execution:
    return cast(Execution, fake)


def record(state: State, **more: Any) -> RunRecord:
    fields: dict[str, Any] = {
        "id": "r",
        "workflow": "ship",
        "queue": "default",
        "priority": 0,
        "attempt": 1,
        "crashes": 0,
        "input": "{}",
        "created_at": 0,
    }
    return RunRecord(state=state, **{**fields, **more})


def ended(run_id: str) -> Ended:
    return Ended(run_id, State.SUCCEEDED, "1")
