"""The exchange loop: what waits while a call is under way goes into the next one, and nothing is lost to an error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from engine.fakes import FakeClock, FakeOwner, ScriptedStore, as_store, claim, reply, save, settle
from perdure.engine import fitting, watching
from perdure.engine import pump as module
from perdure.engine.pump import Pump
from perdure.errors import StoreError, StoreUnavailable
from perdure.model import Arrived, Start, Wait, WaitFor
from perdure.stores.exchange import Cancelling, Claim, Exchange, Exchanged, Seen, To, Told, Watch

pytestmark = pytest.mark.anyio


class Bench:
    """A pump on a scripted store, with slots that a test counts by hand."""

    def __init__(self) -> None:
        self.store = ScriptedStore()
        self.clock = FakeClock()
        self.free = 5
        self.begun: list[Claim] = []
        self.pump = Pump(as_store(self.store), self.clock, free=lambda: self.free, begin=self.begun.append)
        self.pump.assign(9)
        self.running: asyncio.Task[bool] | None = None

    def start(self) -> asyncio.Task[bool]:
        self.running = asyncio.ensure_future(self.pump.run())
        return self.running

    def answer(self, *answers: Exchanged | Exception) -> None:
        """Answers in this order; after that there is nothing to tell."""
        left = list(answers)

        def answer(_: Exchange) -> Exchanged:
            if not left:
                return reply()
            following = left.pop(0)
            if isinstance(following, Exception):
                raise following
            return following

        self.store.answer = answer

    def owner(self, token: int) -> FakeOwner:
        owner = FakeOwner(token)
        self.pump.owners[token] = owner
        return owner


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(module, "POLL", 1000.0)  # only what a test does wakes the loop
    monkeypatch.setattr(module, "_LONGEST_PAUSE", 0.01)
    bench = Bench()
    running = bench.start()
    await bench.store.number(1)
    yield bench
    bench.store.gate.set()
    bench.pump.stop()
    async with asyncio.timeout(10):
        await running


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_it_begins_with_a_look_for_work(bench: Bench) -> None:
    first = bench.store.exchanges[0]
    assert (first.worker, first.serial, first.slots, first.repeated) == (9, 1, 5, False)


async def test_what_comes_while_an_exchange_is_under_way_goes_into_the_next_one_together(bench: Bench) -> None:
    bench.store.gate.clear()
    first = bench.pump.save(save(1, "a"))
    await bench.store.number(2)
    others = [bench.pump.save(save(token, "b")) for token in (1, 2, 3)]
    bench.pump.settle(settle(4))
    await turns()
    assert len(bench.store.exchanges) == 2 and not first.done()
    bench.store.gate.set()
    await asyncio.gather(first, *others)
    third = await bench.store.number(3)
    assert [each.token for each in third.saves] == [1, 2, 3]
    assert [each.token for each in third.settles] == [4]


async def test_what_a_part_of_the_store_did_not_take_is_said_again_and_the_rest_goes_on(bench: Bench) -> None:
    lost, fine = bench.owner(1), bench.owner(2)
    bench.answer(msgspec.structs.replace(reply(), unsaid=[1]))
    first, other = bench.pump.save(save(1, "a")), bench.pump.save(save(2, "a"))
    bench.pump.settle(settle(1))
    bench.pump.settle(settle(2))
    bench.pump.tell(Told(1, 1, "on its way"))
    await other
    assert (first.done(), [*bench.pump.owners.values()], fine in bench.pump.owners.values()) == (False, [lost], False)
    later = bench.pump.save(save(1, "b"))
    again = await bench.store.number(3)
    assert [each.checkpoint.key for each in again.saves] == ["a", "b"]
    assert ([each.token for each in again.settles], [each.token for each in again.told]) == ([1], [1])
    assert not again.repeated
    await asyncio.gather(first, later)
    assert bench.pump.owners == {}


async def test_what_was_not_taken_is_said_again_by_itself(bench: Bench) -> None:
    bench.answer(*(msgspec.structs.replace(reply(), unsaid=[1]) for _ in range(3)))
    await bench.pump.save(save(1))
    assert len(bench.store.exchanges) == 5


async def test_the_end_does_not_wait_for_a_part_of_the_store_that_is_lost(bench: Bench) -> None:
    bench.answer(*(msgspec.structs.replace(reply(), unsaid=[1]) for _ in range(3)))
    bench.pump.settle(settle(1))
    await bench.store.number(2)
    bench.pump.stop()
    assert bench.running is not None
    await bench.running
    with pytest.raises(StoreUnavailable, match="a part of the store can't be reached"):
        await bench.pump.flush()


async def test_a_fan_out_is_carried_in_parts_and_no_settle_overtakes_a_save(bench: Bench) -> None:
    futures = [bench.pump.save(save(1, f"s{number}")) for number in range(fitting.MOST_SAVES + 10)]
    bench.pump.settle(settle(1))
    await asyncio.gather(*futures)
    await bench.store.number(3)
    parts = [(len(each.saves), len(each.settles)) for each in bench.store.exchanges[1:]]
    assert parts == [(fitting.MOST_SAVES, 0), (10, 1)]


async def test_a_save_that_starts_a_run_counts_as_two(bench: Bench) -> None:
    saves = [save(1, f"s{number}") for number in range(fitting.MOST_SAVES)]
    for each in saves:
        each.starts = Start(each.checkpoint.key, "ship", "default", "1")
    await asyncio.gather(*map(bench.pump.save, saves))
    assert [len(each.saves) for each in bench.store.exchanges[1:]] == [fitting.MOST_SAVES // 2] * 2


async def test_one_exchange_carries_a_bounded_number_of_ends(bench: Bench) -> None:
    for token in range(fitting.MOST_SETTLES + 10):
        bench.pump.settle(settle(token))
    await bench.store.number(3)
    assert [len(each.settles) for each in bench.store.exchanges[1:]] == [fitting.MOST_SETTLES, 10]


async def test_one_exchange_carries_bounded_bytes_but_always_one_save(bench: Bench) -> None:
    large = "x" * fitting.MOST_BYTES
    await asyncio.gather(*(bench.pump.save(save(token, body=large)) for token in (1, 2, 3)))
    assert [len(each.saves) for each in bench.store.exchanges[1:]] == [1, 1, 1]


async def test_ends_and_saves_share_the_bytes_of_an_exchange(bench: Bench) -> None:
    large = "x" * (fitting.MOST_BYTES // 2)
    saving = bench.pump.save(save(1, body=large))
    for token in range(2, 7):
        bench.pump.settle(settle(token, body=large))
    await saving
    await bench.store.number(4)
    assert [(len(each.saves), len(each.settles)) for each in bench.store.exchanges[1:]] == [(1, 1), (0, 2), (0, 2)]


async def test_an_end_that_is_too_large_for_any_exchange_goes_alone(bench: Bench) -> None:
    large = "x" * (fitting.MOST_BYTES + 1)
    for token in (1, 2):
        bench.pump.settle(settle(token, body=large))
    bench.pump.settle(settle(3))
    await bench.store.number(4)
    assert [[each.token for each in said.settles] for said in bench.store.exchanges[1:]] == [[1], [2], [3]]


def watch(number: int) -> Watch:
    return Watch(1, 1, Wait(f"signal:{number}", WaitFor.SIGNAL, str(number)))


async def test_new_watches_are_asked_for_at_once_and_the_others_by_turns(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "MOST_WATCHES", 4)

    def asked(exchange: Exchange) -> list[int]:
        return [int(each.wait.target) for each in exchange.watches]

    for number in range(10):
        bench.pump.watch(watch(number))
    assert asked(await bench.store.number(2)) == list(range(10))
    await turns()
    bench.pump.watch(watch(10))
    bench.pump.watch(watch(3))
    assert asked(await bench.store.number(3)) == [0, 1, 2, 3, 10]
    await turns()
    assert len(bench.store.exchanges) == 3 and bench.pump._looking is None
    bench.pump.unwatch(1, "signal:4")
    bench.pump.hint()  # all of them are asked for then, in some exchanges
    await bench.store.number(6)
    await turns()
    assert bench.pump._looking is None
    assert [asked(each) for each in bench.store.exchanges[3:]] == [[5, 6, 7, 8], [9, 0, 1, 2], [3, 10, 5, 6]]
    bench.pump.hint()
    await bench.store.number(7)
    for number in range(11):
        bench.pump.unwatch(1, f"signal:{number}")
    await bench.store.number(8)
    await turns()
    assert [len(each.watches) for each in bench.store.exchanges[6:]] == [4, 0]
    assert bench.pump._looking is None


async def test_very_many_new_watches_are_asked_for_one_exchange_after_the_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "MOST_NEW", 4)
    for number in range(10):
        bench.pump.watch(watch(number))
    await bench.store.number(4)
    await turns()
    new = [each.wait.target for said in bench.store.exchanges[1:] for each in said.watches]
    assert [len(said.watches) for said in bench.store.exchanges[1:]] == [4, 8, 10]
    assert sorted(set(new), key=int) == [str(number) for number in range(10)] and bench.pump._looking is None


async def test_a_hint_is_followed_when_there_is_room(bench: Bench) -> None:
    bench.answer(reply(claims=[claim(1), claim(2)]))
    bench.pump.hint()
    await bench.store.number(2)
    await turns()
    assert [each.token for each in bench.begun] == [1, 2]


@pytest.mark.parametrize("beside", [False, True])
async def test_runs_that_all_wait_for_one_answer_are_halved_where_the_store_works_beside_them(
    bench: Bench, beside: bool
) -> None:
    bench.store.beside, bench.free = beside, 100
    bench.pump._begin = lambda claimed: asyncio.get_running_loop().call_soon(bench.pump.settle, settle(claimed.token))  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    bench.answer(reply(claims=[claim(token) for token in range(10)]))
    bench.pump.hint()
    await bench.store.number(4 if beside else 3)
    said = [[each.token for each in exchange.settles] for exchange in bench.store.exchanges[2:]]
    assert said == ([[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]] if beside else [list(range(10))])


async def test_saves_that_all_wait_for_one_answer_are_halved_too(bench: Bench) -> None:
    bench.store.beside = True
    done: list[int] = []

    async def go(token: int) -> None:
        await bench.pump.save(save(token, "a"))
        await bench.pump.save(save(token, "b"))
        done.append(token)

    await asyncio.gather(*(go(token) for token in range(10)))
    assert sorted(done) == list(range(10))
    assert [len(each.saves) for each in bench.store.exchanges[1:]] == [10, 5, 5]


async def test_a_worker_that_dies_between_two_halves_begins_nothing_more(bench: Bench) -> None:
    bench.store.beside, bench.free = True, 100

    def begin(claimed: Claim) -> None:
        bench.begun.append(claimed)
        bench.pump.dead = True

    bench.pump._begin = begin  # pyright: ignore[reportPrivateUsage]
    bench.answer(reply(claims=[claim(token) for token in range(10)]))
    bench.pump.hint()
    await bench.store.number(2)
    await turns()
    assert [each.token for each in bench.begun] == [0, 1, 2, 3, 4]


async def test_more_work_is_fetched_at_once_as_long_as_there_is_room(bench: Bench) -> None:
    bench.answer(reply(more=True), reply(more=True), reply())
    bench.pump.hint()
    await bench.store.number(4)
    await turns()
    assert len(bench.store.exchanges) == 4


async def test_the_turns_of_queues_go_on_behind_that_of_the_last_claim(bench: Bench) -> None:
    assert (await bench.store.number(1)).after == ""
    bench.answer(reply(claims=[claim(1, queue="a"), claim(2, queue="b")]), reply())
    bench.pump.hint()
    await bench.store.number(2)
    for number in (3, 4):
        await turns()
        bench.pump.hint()
        assert (await bench.store.number(number)).after == "b"


async def test_many_hints_without_room_become_one_look(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.free = 0
    for _ in range(50):
        bench.pump.hint()
        await turns(2)
    assert len(bench.store.exchanges) == 1
    look = await bench.store.number(2)  # a moment later, for cancellations
    assert look.slots == 0
    await turns()
    assert len(bench.store.exchanges) == 2


async def test_nothing_is_claimed_when_it_does_not_claim(bench: Bench) -> None:
    bench.pump.claiming = False
    await bench.pump.save(save(1))
    assert (await bench.store.number(2)).slots == 0


async def test_what_was_claimed_for_a_worker_that_stops_is_handed_back(bench: Bench) -> None:
    bench.pump.claiming = False
    bench.answer(reply(claims=[claim(7)]))
    bench.pump.hint()
    await bench.pump.save(save(1))
    said = await bench.store.number(3)
    assert [(each.token, each.to) for each in said.settles] == [(7, To.RELEASE)]
    assert bench.begun == []


async def test_an_exchange_without_an_answer_is_repeated_under_its_serial(bench: Bench) -> None:
    bench.answer(StoreUnavailable("away"), StoreUnavailable("away"), reply(claims=[claim(7)]))
    future = bench.pump.save(save(1))
    await future
    tries = bench.store.exchanges[1:]
    assert [(each.serial, each.repeated) for each in tries] == [(2, False), (2, True), (2, True)]
    assert [each.token for each in bench.begun] == [7]
    await bench.pump.save(save(1, "next"))
    assert bench.store.exchanges[-1].serial == 3


async def test_what_is_refused_is_told_to_its_run_alone(bench: Bench) -> None:
    late, good = bench.owner(1), bench.owner(2)
    bench.answer(reply(refused=[1]))
    refused, kept = bench.pump.save(save(1)), bench.pump.save(save(2))
    await kept
    with pytest.raises(asyncio.CancelledError):
        await refused
    assert (late.told, good.told) == (["lost"], [])


async def test_cancellations_and_watches_that_came_true_go_to_their_runs(bench: Bench) -> None:
    first, second = bench.owner(1), bench.owner(2)
    seen = Seen(2, 2, "signal:go", signal=Arrived(1, "go", "1"))
    bench.answer(reply(cancelled=[(1, Cancelling("enough")), (99, Cancelling("unknown"))], seen=[seen]))
    bench.pump.watch(Watch(2, 2, Wait("signal:go", WaitFor.SIGNAL, "go")))
    exchange = await bench.store.number(2)
    await turns()
    assert len(exchange.watches) == 1
    assert (first.told, second.told) == (["enough"], ["signal:go"])
    bench.pump.unwatch(2, "signal:go")
    await bench.pump.save(save(2))
    assert bench.store.exchanges[-1].watches == []


async def test_one_bad_item_fails_alone(bench: Bench) -> None:
    bad_save, bad_settle = 2, 5

    def answer(exchange: Exchange) -> Exchanged:
        named = {each.token for each in exchange.saves} | {
            each.token for each in exchange.settles if each.to is not To.FAILED
        }
        if named & {bad_save, bad_settle}:
            raise StoreError("too large for this store")
        return reply()

    bench.store.answer = answer
    unlucky = bench.owner(bad_settle)
    futures = {token: bench.pump.save(save(token)) for token in (1, 2, 3)}
    for token in (4, 5, 6):
        bench.pump.settle(settle(token))
    await asyncio.gather(futures[1], futures[3])
    with pytest.raises(StoreError, match="too large"):
        await futures[2]
    # The run whose outcome can't be kept fails, with an outcome that can.
    async with asyncio.timeout(10):
        while not (found := [s for each in bench.store.exchanges for s in each.settles if s.to is To.FAILED]):
            await asyncio.sleep(0)
    assert found[0].token == bad_settle and "too large" in (found[0].body or "")
    assert unlucky.told == ["lost"]
    alone = [each.settles[0].token for each in bench.store.exchanges if len(each.settles) == 1]
    assert alone == [4, 5, 6, 5]
    serials = [each.serial for each in bench.store.exchanges]
    assert sorted(set(serials)) == serials


@pytest.mark.parametrize("error", [StoreError("closed"), ValueError("not of ours")])
async def test_a_store_that_takes_nothing_is_no_fault_of_what_is_said(bench: Bench, error: Exception) -> None:
    broken = True

    def answer(_: Exchange) -> Exchanged:
        if broken:
            raise error
        return reply()

    bench.store.answer = answer
    owner = bench.owner(2)
    future = bench.pump.save(save(1))
    bench.pump.settle(settle(2))
    await bench.store.number(6)
    assert not future.done() and owner.told == []
    broken = False
    await future
    last = bench.store.exchanges[-1]
    assert ([each.token for each in last.saves], [each.token for each in last.settles]) == ([1], [2])


async def test_the_next_time_is_waited_for_with_one_alarm(bench: Bench) -> None:
    bench.answer(reply(next_at=500), reply(next_at=500), reply(next_at=300), reply(next_at=None))
    for _ in range(2):
        await bench.pump.save(save(1))
    assert bench.clock.pending == [500]
    await bench.pump.save(save(1))
    assert bench.clock.pending == [300]
    count = len(bench.store.exchanges)
    bench.clock.alarms[-1].ring()
    await bench.store.number(count + 1)
    await turns()
    assert bench.clock.pending == []  # it rang, and the store knows of no other time


async def test_a_time_that_has_passed_is_waited_for_again_after_its_alarm(bench: Bench) -> None:
    """More timers were due than one exchange takes up: the next one is in the past already."""
    bench.answer(reply(next_at=100), reply(next_at=100))
    await bench.pump.save(save(1))
    bench.clock.alarms[-1].ring()
    await bench.store.number(3)
    await turns()
    assert len(bench.clock.alarms) == 2


@pytest.mark.parametrize("parts", [1, 4])
async def test_an_incarnation_without_serials_claims_no_more_and_ends_with_its_last_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    bench.owner(1)
    bench.store.parts = parts
    monkeypatch.setattr(module, "_LAST_SERIAL", 3 * parts)
    await bench.pump.save(save(1, "a"))
    await bench.pump.save(save(1, "b"))
    assert [each.slots for each in bench.store.exchanges] == [5, 5, 0]
    assert bench.running is not None and not bench.running.done()
    bench.pump.settle(settle(1))
    async with asyncio.timeout(10):
        assert await bench.running


async def test_an_incarnation_that_is_gone_ends_the_loop_and_its_saves() -> None:
    bench = Bench()
    bench.answer(reply(gone=True))
    future = bench.pump.save(save(1))
    async with asyncio.timeout(10):
        assert await bench.pump.run() is True
    with pytest.raises(asyncio.CancelledError):
        await future
    bench.pump.assign(10)
    again = bench.start()
    exchange = await bench.store.number(2)
    assert (exchange.worker, exchange.serial) == (10, 1)
    bench.pump.stop()
    assert await again is False


async def test_what_is_left_at_the_end_is_flushed(bench: Bench) -> None:
    bench.pump.stop()
    await turns()
    future = bench.pump.save(save(1))
    bench.pump.settle(settle(1))
    await bench.pump.flush()
    assert future.done()
    assert [each.token for each in bench.store.exchanges[-1].settles] == [1]


async def test_a_dead_worker_says_nothing_more(bench: Bench) -> None:
    bench.pump.dead = True
    bench.answer(reply(claims=[claim(1)]))
    future = bench.pump.save(save(1))
    await bench.store.number(2)
    await turns()
    assert bench.begun == [] and not future.done()


async def test_a_poll_asks_whether_runs_are_still_owned_and_other_exchanges_do_not(bench: Bench) -> None:
    owner = bench.owner(1)
    bench.pump.hint()
    await bench.store.number(2)
    bench.answer(reply(refused=[1]))
    bench.pump._poll()
    await bench.store.number(3)
    await turns()
    assert [each.owned for each in bench.store.exchanges] == [[], None, [(1, 1)]]
    assert owner.told == ["lost"]
