"""Claims while somebody holds a snapshot: they do not walk what was claimed before, and keep the order all the same."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import psycopg
import pytest

from conformance.kit import ManualClock, Worker, for_signal, for_timer, ids, message, settle, start, worker
from perdure.stores import open_store
from perdure.stores.base import Store
from perdure.stores.exchange import Claim, Settle, To
from perdure.stores.postgres import exchange as module
from servers.postgres import migrated_postgres

pytestmark = pytest.mark.anyio

PASSED = 1_500
"""More than are walked without looking for a shorter way."""

LATE = """
    WITH made AS (
        INSERT INTO perdure.run (seq, id, lane, priority, max_crashes, created_at, ties, input)
        SELECT nextval('perdure.place'), 'late', id, 0, 5, 0, 0, 'null' FROM perdure.lane
        RETURNING seq, lane
    )
    INSERT INTO perdure.live (seq, place, lane, priority, max_crashes, ties, state)
    SELECT seq, seq, lane, 0, 5, 0, 'queued' FROM made
"""
"""What a start does that is not committed for some time."""


@pytest.fixture
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return migrated_postgres(str(tmp_path_factory.mktemp("floors")))


@pytest.fixture
async def store(url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    monkeypatch.setattr(module, "_LOOK_AT_ALL", 3600.0)
    store = open_store(url, now=clock.now)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def snapshot(url: str) -> Iterator[psycopg.Connection]:
    """Somebody who looks at the database for a long time."""
    with psycopg.connect(url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT 1 FROM pg_class LIMIT 1")
        yield connection


async def pass_by(store: Store, ada: Worker) -> None:
    """Many runs come, are claimed and end; and then there are more, of which some are claimed."""
    await store.enqueue([start() for _ in range(PASSED)])
    settles: list[Settle] = []
    while True:
        claims = (await ada.exchange(slots=64, settles=settles)).claims
        settles = [settle(claim) for claim in claims]
        if not claims:
            break
    await store.enqueue([start(f"fresh-{number:03}") for number in range(300)])
    # The first long walk may have been the one that marks what is gone; the second one tells that it can't be.
    assert ids(await ada.claim(1)) == ["fresh-000"]
    assert ids(await ada.claim(1)) == ["fresh-001"]


def has_floors(store: Store, ada: Worker) -> bool:
    """Whether its next claim begins behind what was claimed."""
    return ada.id in store._desk._floors  # type: ignore[attr-defined]


async def test_claims_do_not_walk_what_was_claimed(store: Store, snapshot: psycopg.Connection) -> None:
    ada = await worker(store)
    await pass_by(store, ada)
    assert has_floors(store, ada)
    assert ids(await ada.claim(5)) == [f"fresh-{number:03}" for number in range(2, 7)]
    reply = await ada.exchange(slots=5)
    assert ids(reply.claims) == [f"fresh-{number:03}" for number in range(7, 12)]
    assert reply.more
    walked = await explained(store, ada)
    assert walked < PASSED // 4, f"a claim looked at {walked} pages"


async def explained(store: Store, ada: Worker) -> int:
    """Pages that a claim looks at."""
    db = store._desk._db  # type: ignore[attr-defined]
    asked: list[object] = []
    call = db.call

    async def record(name: str, *args: object) -> object:
        asked[:] = args
        return await call(name, *args)

    db.call = record
    await ada.exchange(slots=1)
    db.call = call
    floors = store._desk._begin_at(ada.id, 0.0)  # type: ignore[attr-defined]
    ada.serial += 1
    asked[2], asked[-4:] = ada.serial, floors
    rows = await db.rows(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {db.sql['call']['exchange']}", *asked)
    plan = json.loads(rows[0][0])[0]["Plan"]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


Comes = Callable[[Store, Worker, Claim, ManualClock], Awaitable[object]]


async def _release(store: Store, bob: Worker, claim: Claim, clock: ManualClock) -> object:
    return await bob.settle(claim, To.RELEASE)


async def _retry(store: Store, bob: Worker, claim: Claim, clock: ManualClock) -> object:
    return await bob.settle(claim, To.RETRY, '"failed"')


async def _backoff(store: Store, bob: Worker, claim: Claim, clock: ManualClock) -> object:
    await bob.settle(claim, To.RETRY, '"failed"', delay=1000)
    return clock.advance(ms=1000)


async def _continue(store: Store, bob: Worker, claim: Claim, clock: ManualClock) -> object:
    return await bob.settle(claim, To.CONTINUE, "1")


async def _timer(store: Store, bob: Worker, claim: Claim, clock: ManualClock) -> object:
    await bob.park(claim, for_timer(clock.now() + 1000))
    return clock.advance(ms=1000)


async def _signal(store: Store, bob: Worker, claim: Claim, clock: ManualClock) -> object:
    await bob.park(claim, for_signal())
    return await store.signal(message(claim.id))


async def _again(store: Store, bob: Worker, claim: Claim, clock: ManualClock) -> object:
    await bob.settle(claim, To.FAILED, '"failed"')
    return await store.retry(claim.id)


async def _buried(store: Store, bob: Worker, claim: Claim, clock: ManualClock) -> object:
    return await store.bury(bob.name)


async def _retired(store: Store, bob: Worker, claim: Claim, clock: ManualClock) -> object:
    return await store.retire(bob.id)


@pytest.mark.parametrize(
    "comes",
    [_release, _retry, _backoff, _continue, _timer, _signal, _again, _buried, _retired],
    ids=lambda f: f.__name__,
)
async def test_what_comes_back_to_its_place_is_claimed_first(
    store: Store, clock: ManualClock, snapshot: psycopg.Connection, comes: Comes
) -> None:
    ada, bob = await worker(store), await worker(store)
    await store.enqueue([start("old")])
    old = await bob.claim_one()
    await pass_by(store, ada)
    assert has_floors(store, ada)
    await ada.claim(2)
    await comes(store, bob, old, clock)
    assert "old" in ids(await ada.claim(2))


async def test_a_group_lets_through_what_has_its_place(
    store: Store, clock: ManualClock, snapshot: psycopg.Connection
) -> None:
    ada, bob = await worker(store), await worker(store)
    await store.enqueue([start("first", group="g"), start("second", group="g")])
    first = await bob.claim_one()
    await pass_by(store, ada)
    await bob.settle(first, To.RETRY, '"failed"')
    assert "first" in ids(await ada.claim(2))


async def test_better_priorities_come_first(store: Store, snapshot: psycopg.Connection) -> None:
    ada = await worker(store)
    await pass_by(store, ada)
    await store.enqueue([start("urgent", priority=-1), start("late", priority=1)])
    assert ids(await ada.claim(2)) == ["urgent", "fresh-002"]
    assert ids(await ada.claim(2)) == ["fresh-003", "fresh-004"]


async def test_what_was_committed_late_is_found_when_there_is_room(
    store: Store, url: str, snapshot: psycopg.Connection
) -> None:
    ada = await worker(store)
    await store.enqueue([start()])
    with psycopg.connect(url) as late:
        late.execute(LATE)
        await pass_by(store, ada)
        late.commit()
    assert ids(await ada.claim(2)) == ["fresh-002", "fresh-003"]
    found: list[str] = []
    while len(claims := await ada.claim(64)) == 64:
        found += ids(claims)
    assert "late" not in found
    assert claims[0].id == "late"


async def test_now_and_then_a_claim_looks_at_all(
    store: Store, url: str, snapshot: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOOK_AT_ALL", 0.0)
    monkeypatch.setattr(module, "_LOOK_SHARE", 0)
    ada = await worker(store)
    await store.enqueue([start()])
    with psycopg.connect(url) as late:
        late.execute(LATE)
        await pass_by(store, ada)
        late.commit()
    assert ids(await ada.claim(2)) == ["late", "fresh-002"]
