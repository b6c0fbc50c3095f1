"""Runs that are claimed before there is a slot for them: how many, and what becomes of them when they can't begin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from engine.fakes import FakeClock, ScriptedStore, as_store, claim, reply, settle
from perdure import App
from perdure.engine import ahead as module
from perdure.engine.ahead import Ahead
from perdure.engine.pump import Pump
from perdure.stores.exchange import Cancelling, Claim, Settle, To

pytestmark = pytest.mark.anyio


class Bench:
    """Runs claimed ahead at a pace that a test sets."""

    def __init__(self) -> None:
        self.time = 100.0
        self.back: list[int] = []
        self.ahead = Ahead(10, lambda claim: self.back.append(claim.token), time=lambda: self.time)

    def end(self, count: int, *, each: float, more: bool = True) -> None:
        """So many runs end, one after the other, and are told of by an exchange each."""
        for _ in range(count):
            self.time += each
            self.ahead.answered(1, more)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    bench.ahead.close()


async def test_nothing_is_claimed_ahead_before_a_pace_is_known(bench: Bench) -> None:
    assert bench.ahead.room == 0


async def test_so_many_are_as_begin_soon(bench: Bench) -> None:
    bench.end(50, each=0.002)
    assert bench.ahead.room == 5
    bench.end(50, each=0.01)
    assert bench.ahead.room == 1
    bench.end(50, each=0.0001)
    assert bench.ahead.room == 10  # and no more than that, ever


async def test_of_long_runs_none_is(bench: Bench) -> None:
    bench.end(50, each=0.1)
    assert bench.ahead.room == 0


async def test_exchanges_in_the_middle_of_a_run_change_nothing(bench: Bench) -> None:
    bench.end(50, each=0.002)
    for _ in range(20):
        bench.ahead.answered(0, True)
    assert bench.ahead.room == 5


async def test_where_the_store_has_no_more_none_is(bench: Bench) -> None:
    bench.end(50, each=0.001, more=False)
    assert bench.ahead.room == 0


async def test_those_in_hand_count(bench: Bench) -> None:
    bench.end(50, each=0.002)
    bench.ahead.put(claim(1))
    bench.ahead.put(claim(2))
    assert (len(bench.ahead), bench.ahead.room) == (2, 3)
    assert [bench.ahead.take().token, bench.ahead.take().token] == [1, 2]
    assert (len(bench.ahead), bench.ahead.room) == (0, 5)


async def test_those_that_can_not_begin_are_handed_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.001)
    bench.end(50, each=0.001)
    for token in (1, 2, 3):
        bench.ahead.put(claim(token))
    while not bench.back:
        await asyncio.sleep(0)
    assert bench.back == [1, 2, 3] and bench.ahead.room == 0
    bench.end(1, each=1.0)
    assert bench.ahead.room == 0, "the pace of before counts no more"


async def test_as_long_as_some_begin_the_others_stay(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[None] = []
    look = Ahead._look

    def looked(self: Ahead) -> None:
        look(self)
        looks.append(None)

    monkeypatch.setattr(Ahead, "_look", looked)
    monkeypatch.setattr(module, "PATIENCE", 0.001)
    for token in range(5):
        bench.ahead.put(claim(token))
    for begun in range(4):
        assert bench.ahead.take().token == begun
        while len(looks) <= begun:
            await asyncio.sleep(0)
    assert bench.back == [] and len(bench.ahead) == 1


class Worker:
    """An exchange loop with one slot, whose store has more than that."""

    def __init__(self) -> None:
        self.store = ScriptedStore()
        self.running: list[int] = []
        self.begun: list[int] = []
        self.pump = Pump(
            as_store(self.store), FakeClock(), free=lambda: 1 - len(self.running), begin=self._begin, ahead=10
        )
        self.pump.assign(9)

    def _begin(self, claim: Claim) -> None:
        self.running.append(claim.token)
        self.begun.append(claim.token)

    def end(self, token: int) -> None:
        """A run ends."""
        self.pump.settle(settle(token))
        self.running.remove(token)
        self.pump.freed()

    @property
    def settled(self) -> list[Settle]:
        return [each for exchange in self.store.exchanges for each in exchange.settles]


@pytest.fixture
async def worker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Worker]:
    """One that has claimed runs 1 to 4, of which 1 has begun."""
    monkeypatch.setattr("perdure.engine.pump.POLL", 1000.0)
    monkeypatch.setattr(module, "PATIENCE", 1000.0)
    worker = Worker()
    answers = [reply(claims=[claim(token) for token in (1, 2, 3, 4)], more=False)]
    worker.store.answer = lambda _: answers.pop() if answers else reply()
    running = asyncio.ensure_future(worker.pump.run())
    await worker.store.number(1)
    while not worker.running:
        await asyncio.sleep(0)
    yield worker
    worker.pump.stop()
    async with asyncio.timeout(10):
        await running


async def test_they_begin_one_by_one_in_their_order(worker: Worker) -> None:
    assert worker.begun == [1] and set(worker.pump.owners) == {2, 3, 4}
    worker.end(1)
    assert worker.begun == [1, 2]
    worker.end(2)
    worker.end(3)
    worker.end(4)
    second = await worker.store.number(2)
    assert worker.begun == [1, 2, 3, 4]
    assert [each.token for each in second.settles] == [1, 2, 3, 4], "they go together"


async def test_what_comes_later_does_not_overtake_them(worker: Worker) -> None:
    worker.store.answer = lambda exchange: reply(claims=[claim(5)] if exchange.serial == 2 else [])
    worker.pump.look()
    await worker.store.number(2)
    for token in (1, 2, 3, 4):
        worker.end(token)
    await worker.store.number(3)
    assert worker.begun == [1, 2, 3, 4, 5]


async def test_the_store_hears_that_they_are_owned(worker: Worker) -> None:
    worker.pump.look_everywhere()
    second = await worker.store.number(2)
    assert second.owned is not None and {token for _, token in second.owned} >= {2, 3, 4}


async def test_one_that_was_lost_does_not_begin(worker: Worker) -> None:
    worker.store.answer = lambda exchange: reply(refused=[2] if exchange.serial == 2 else [])
    worker.pump.look()
    await worker.store.number(2)
    while 2 in worker.pump.owners and worker.pump._ahead and len(worker.pump._ahead) == 3:
        await asyncio.sleep(0)
    worker.end(1)
    assert worker.begun == [1, 3]


async def test_one_that_is_cancelled_begins_as_such(worker: Worker) -> None:
    worker.pump.owners[2].cancel(Cancelling("not needed"))
    began: list[Claim] = []
    worker.pump._begin = began.append
    worker.end(1)
    assert began[0].cancelling == Cancelling("not needed")


async def test_a_worker_that_ends_hands_them_back(worker: Worker) -> None:
    worker.pump.drain()
    second = await worker.store.number(2)
    assert [(each.token, each.to) for each in second.settles] == [(token, To.RELEASE) for token in (2, 3, 4)]
    worker.end(1)
    assert worker.begun == [1]


async def test_an_incarnation_that_is_gone_takes_them_along(worker: Worker) -> None:
    worker.store.answer = lambda _: reply(gone=True)
    worker.pump.look()
    await worker.store.number(2)
    await asyncio.sleep(0)
    worker.end(1)
    assert worker.begun == [1]


async def test_one_run_at_a_time_goes_on_while_an_exchange_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SOON", 1000.0)  # at any pace
    app = App("sqlite:///:memory:")
    at_work = most = 0

    @app.workflow
    async def short(number: int) -> None:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0)
        at_work -= 1

    async with app:
        runs = await short.start_many(range(500))
        async with app.worker(concurrency=1) as worker, asyncio.timeout(60):
            for run in runs:
                await run.result()
            exchanges = worker.runtime.pump.exchanges
    assert most == 1 and exchanges < 400
