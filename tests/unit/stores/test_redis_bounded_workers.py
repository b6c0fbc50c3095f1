"""No call keeps a Redis server busy for long, however much one run has, or one worker: what a script does is counted in
commands, and in bytes that it brings."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

import pytest

from conformance.kit import (
    ManualClock,
    Worker,
    checkpoint,
    for_run,
    for_signal,
    save,
    settle,
    start,
    with_token,
    worker,
)
from perdure.errors import RunNotEnded
from perdure.model import Outcome, RunQuery, Signal, State
from perdure.stores import open_store
from perdure.stores.base import Store
from perdure.stores.exchange import CLAIM_LIMIT, PAGE, Claim, To
from servers.redis import RedisServer, own_server
from servers.redis_books import Books
from servers.redis_meter import Meter

pytestmark = pytest.mark.anyio

MANY = 2_000
MOST = 1_000
"""The most commands of one script,"""
BYTES = 1024 * 1024
"""and the most bytes of its reply."""
LONG = '"' + "x" * 20_000 + '"'


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with own_server() as server:
        yield server


@pytest.fixture
async def store(server: RedisServer, clock: ManualClock) -> AsyncIterator[Store]:
    server.run("FLUSHALL")
    store = open_store(server.url, now=clock.now)
    await store.open()
    yield store
    await store.close()
    Books(server, server.url).check()


@pytest.fixture
def meter(store: Store, monkeypatch: pytest.MonkeyPatch) -> Meter:
    return Meter(MOST, monkeypatch, bytes=BYTES)


# --- one run


async def claimed(store: Store) -> tuple[Worker, Claim]:
    await store.enqueue([start("r")])
    ada = await worker(store)
    [claim] = await ada.claim()
    return ada, claim


async def checkpoints(
    ada: Worker, claim: Claim, number: int, body: str = "1", *, failed: bool = False, prefix: str = ""
) -> None:
    outcome = Outcome.ERROR if failed else Outcome.OK
    for first in range(0, number, 100):
        kept = [checkpoint(f"{prefix}k{n}", body, outcome=outcome) for n in range(first, min(number, first + 100))]
        await ada.exchange(saves=[save(claim, each) for each in kept])


async def until_claimed(ada: Worker) -> Claim:
    for _ in range(MANY):
        for claim in await ada.claim():
            return claim
    raise AssertionError("it is not queued")


@pytest.mark.parametrize("failed", [False, True])
async def test_a_retry_of_much(store: Store, meter: Meter, failed: bool) -> None:
    ada, claim = await claimed(store)
    await checkpoints(ada, claim, MANY, failed=failed)
    await ada.settle(claim, To.FAILED, "null")
    await store.retry("r", from_key="k1")
    [claim] = await ada.claim()
    assert [each.key for each in claim.checkpoints] == ([] if failed else ["k0"])
    meter.check()


@pytest.mark.parametrize("within", [True, False])
async def test_a_retry_from_a_step_of_a_long_run(store: Store, meter: Meter, within: bool) -> None:
    ada, claim = await claimed(store)
    await checkpoints(ada, claim, 5 * MANY, prefix="step/" if within else "other/")
    await ada.save(claim, checkpoint("step"))
    await ada.settle(claim, To.FAILED, "null")
    meter.check()
    await store.retry("r", from_key="step")
    assert "go_on" in [name for _, name in meter.calls], "one script does not walk all of it"
    meter.check()
    [claim] = await ada.claim()
    assert len(claim.checkpoints) == (0 if within else PAGE)


async def test_an_attempt_of_which_much_failed(store: Store, meter: Meter, clock: ManualClock) -> None:
    ada, claim = await claimed(store)
    await checkpoints(ada, claim, MANY, failed=True)
    await ada.exchange(settles=[settle(claim, To.RETRY, "null", delay=1_000)])
    assert await ada.claim() == []
    with pytest.raises(RunNotEnded):
        await store.retry("r")
    clock.advance(ms=1_000)
    claim = await until_claimed(ada)
    assert (claim.attempt, claim.checkpoints) == (2, [])
    meter.check()


async def test_signals_that_wait_again(store: Store, meter: Meter) -> None:
    ada, claim = await claimed(store)
    for n in range(MANY):
        await store.signal(Signal(f"s{n}", "r", "go", "1"))
    for first in range(0, MANY, 50):
        saves = [save(claim, checkpoint(f"k{n}"), consumes=n + 1) for n in range(first, first + 50)]
        await ada.exchange(saves=saves)
    assert await store.signals("r") == []
    undone = checkpoint("k7", None, outcome=Outcome.OPEN)
    await ada.exchange(saves=[save(claim, undone, gives_back=True)])
    assert [each.position for each in await store.signals("r")] == [8]
    await ada.settle(claim, To.FAILED, "null")
    await store.retry("r", from_key="k0")
    assert [each.position for each in await store.signals("r", limit=MANY)] == [*range(1, MANY + 1)]
    [claim] = await ada.claim()
    await ada.exchange(saves=[save(claim, checkpoint("k"), consumes=1)])
    for _ in range(2):
        await store.signal(Signal("s0", "r", "go", "1"))  # Still known, and when it has continued.
        assert len(await store.signals("r", limit=2 * MANY)) == MANY - 1
        await ada.settle(claim, To.CONTINUE, "1")
        [claim] = await ada.claim()
    await store.signal(Signal("s0", "r", "go", "1"))
    assert len(await store.signals("r", limit=2 * MANY)) == MANY
    meter.check()


async def test_a_retry_whose_caller_is_gone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ada, claim = await claimed(store)
    await checkpoints(ada, claim, MANY)
    await ada.settle(claim)
    with monkeypatch.context() as within:
        within.setattr("perdure.stores.redis.control.finish_left", nothing)
        await store.retry("r", from_key="k1")
    assert len(await store.history("r", limit=MANY)) > 1
    claim = await until_claimed(ada)
    assert [each.key for each in claim.checkpoints] == ["k0"], "it begins when all is cleared"


async def test_one_that_is_cancelled_while_it_is_cleared(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ada, claim = await claimed(store)
    await checkpoints(ada, claim, MANY)
    await ada.settle(claim)
    with monkeypatch.context() as within:
        within.setattr("perdure.stores.redis.control.finish_left", nothing)
        await store.retry("r", from_key="k1")
    assert await store.cancel("r", "enough") == State.CANCELLED
    while (await ada.exchange()).more:
        pass
    assert (await store.ended(["r"]))[0].state == State.CANCELLED


async def test_pages_of_long_ones(store: Store, meter: Meter) -> None:
    ada, claim = await claimed(store)
    await checkpoints(ada, claim, 300, LONG)
    for n in range(300):
        await store.signal(Signal(f"s{n}", "r", "go", LONG))
    assert [each.key for each in await store.history("r", limit=MANY)] == [f"k{n}" for n in range(300)]
    assert [each.position for each in await store.history("r", after=10, limit=200)] == [*range(11, 211)]
    assert [each.position for each in await store.signals("r")] == [*range(1, 257)]
    await ada.settle(claim, To.RELEASE)
    [claim] = await ada.claim()
    assert claim.more_checkpoints and claim.more_signals
    assert claim.checkpoints[-1].position < 100 > claim.signals[-1].position
    meter.check()


async def test_a_page_as_long_as_anybody_asks_for(store: Store, meter: Meter) -> None:
    ada, claim = await claimed(store)
    await checkpoints(ada, claim, 10_000)
    assert len(await store.history("r", limit=20_000)) == 10_000
    meter.check()


async def test_lists_and_outcomes_of_long_ones(store: Store, meter: Meter) -> None:
    await store.enqueue([start(f"r{n:03}", input=LONG) for n in range(300)])
    ada = await worker(store)
    for _ in range(5):
        await ada.exchange(settles=[settle(claim, body=LONG) for claim in await ada.claim()])
    found = await store.runs(RunQuery(limit=250, oldest_first=True))
    assert [record.id for record in found] == [f"r{n:03}" for n in range(250)]
    assert len(await store.ended([record.id for record in found])) == 250
    meter.check(bytes=3 * BYTES)  # What is claimed is more.


# --- one worker


async def owning(store: Store, number: int = MANY) -> tuple[Worker, list[Claim]]:
    """A worker that runs very much."""
    await store.enqueue([start(f"c{n}") for n in range(number)])
    ada = await worker(store, concurrency=number)
    return ada, [claim for _ in range(number // CLAIM_LIMIT + 1) for claim in await ada.claim()]


def all_of(claims: Sequence[Claim]) -> list[tuple[int | str, int]]:
    return [(claim.ref, claim.token) for claim in claims]


async def running(store: Store) -> int:
    return sum(count.runs for count in await store.counts() if count.state is State.RUNNING)


async def test_all_that_a_worker_owns(store: Store, meter: Meter) -> None:
    ada, claims = await owning(store)
    assert (await ada.exchange(owned=all_of(claims))).refused == []
    assert await running(store) == MANY
    await store.cancel(claims[0].id, "x")
    stale = with_token(claims[1], claims[1].token + (1 << 30))
    reply = await ada.exchange(owned=all_of([*claims, stale]), settles=[settle(claims[2])])
    assert reply.refused == [stale.token]
    assert [token for token, _ in reply.cancelled] == [claims[0].token]
    meter.check()


@pytest.mark.parametrize("many", [False, True])
async def test_what_a_worker_does_not_know_of_is_given_back(store: Store, meter: Meter, many: bool) -> None:
    ada, claims = await owning(store)
    known = claims[: MANY - 300] if many else claims[:5]
    reply = await ada.exchange(owned=all_of(known), slots=3)
    assert (reply.refused, len(reply.claims)) == ([], 0)
    assert await running(store) == len(known)
    reply = await ada.exchange(slots=3)
    assert len(reply.claims) == 3
    reply = await ada.exchange(owned=all_of(known), slots=2)
    assert await running(store) == len(known) + 2, "what this exchange claims is not given back"
    meter.check()


async def test_a_repeated_claim_of_a_worker_that_owns_much(store: Store, meter: Meter) -> None:
    ada, _ = await owning(store)
    await store.enqueue([start(f"d{n}") for n in range(10)])
    first = await ada.exchange(slots=4)
    again = await ada.repeat()
    assert [claim.token for claim in again.claims] == [claim.token for claim in first.claims]
    assert len(again.claims) == 4 and await running(store) == MANY + 4
    meter.check()


async def test_pages_of_running_runs(store: Store, meter: Meter) -> None:
    await owning(store)
    query = RunQuery(states=[State.RUNNING], limit=50)
    first = await store.runs(query)
    assert [record.id for record in first] == [f"c{n}" for n in range(MANY - 1, MANY - 51, -1)]
    query.after = first[-1].position
    assert (await store.runs(query))[0].id == f"c{MANY - 51}"
    assert len(await store.runs(RunQuery(states=[State.RUNNING], limit=MANY))) == MANY
    old = await store.runs(RunQuery(states=[State.RUNNING], limit=150, oldest_first=True, workflow="ship"))
    assert [record.id for record in old] == [f"c{n}" for n in range(150)]
    assert await store.runs(RunQuery(states=[State.RUNNING], workflow="other")) == []
    meter.check()


async def test_a_worker_that_is_to_stop_much(store: Store, meter: Meter) -> None:
    await store.enqueue([start("p", priority=-1)])
    await store.enqueue([start(f"c{n}", parent="p") for n in range(MANY)])
    ada = await worker(store, concurrency=MANY + 1)
    claims = [claim for _ in range(MANY // CLAIM_LIMIT + 1) for claim in await ada.claim()]
    await store.cancel("p", "enough")
    told: set[int] = set()
    while True:
        reply = await ada.exchange()
        told |= {token for token, _ in reply.cancelled}
        if not reply.more:
            break
    assert told == {claim.token for claim in claims}
    meter.check()


async def test_a_worker_with_many_sessions_drains(store: Store, meter: Meter) -> None:
    await store.enqueue([start(f"c{n}", session=f"s{n}") for n in range(600)])
    ada = await worker(store, sessions=600, concurrency=600)
    claims: list[Claim] = []
    while len(claims) < 600:
        claims += await ada.claim()
    for first in range(0, 500, 50):
        part = claims[first : first + 50]
        await ada.exchange(settles=[settle(claim, To.RETRY, "null", delay=1_000) for claim in part])
    while (await ada.exchange(draining=True)).more:
        pass
    assert (await store.workers())[0].owned_sessions == 100, "those of which runs are running"
    for claim in claims[500:]:
        await ada.exchange(settles=[settle(claim)], draining=True)
    while (await store.workers())[0].owned_sessions:
        await ada.exchange(draining=True)
    meter.check()


async def test_a_run_that_waits_for_much_and_is_signalled(store: Store, meter: Meter) -> None:
    ada, claim = await claimed(store)
    await ada.exchange(settles=[settle(claim, To.PARK, waits=[for_signal(f"n{n}") for n in range(MANY)])])
    await store.signal(Signal("s", "r", f"n{MANY - 1}", "1"))
    claim = await until_claimed(ada)
    assert [signal.name for signal in claim.signals] == [f"n{MANY - 1}"]
    meter.check()


@pytest.mark.parametrize("kept", [0, 1, 20, MANY // 4, MANY - 5])
async def test_one_that_waits_for_others_than_before(
    store: Store, server: RedisServer, meter: Meter, kept: int
) -> None:
    """It is taken out where it waits no more, and stays where it does, in however many parts these are."""
    await store.enqueue([start("r", priority=-1), *[start(f"c{n}", queue="other") for n in range(MANY)]])
    ada = await worker(store)
    [claim] = await ada.claim()
    first, second = [f"c{n}" for n in range(MANY)], [f"c{n}" for n in range(MANY - kept, MANY)]
    for turn, waited in enumerate((first, second, first, second)):
        waits = [*map(for_run, waited), for_signal("go")]
        await ada.exchange(settles=[settle(claim, To.PARK, waits=waits)])
        while (await ada.exchange()).more:
            pass
        parked = {key.rpartition(b":")[2].decode() for key in server.keys(server.url) if b":parked:" in key}
        assert parked == {*waited}
        await store.signal(Signal(f"s{turn}", "r", "go", "1"))
        [claim] = await ada.claim()
        await ada.exchange(saves=[save(claim, checkpoint("k"), consumes=claim.signals[0].position)])
    await ada.settle(claim)
    while (await ada.exchange()).more:
        pass
    assert not [key for key in server.keys(server.url) if b":parked:" in key]
    meter.check()


async def nothing(*_: object) -> None:
    """What a program does that has ended."""
