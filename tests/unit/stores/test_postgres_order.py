"""Calls that would meet head-on if they did not lock in one order, and what others hold that holds up nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import msgspec
import pytest

from conformance.kit import checkpoint, record, save, settle, start, worker
from perdure.cron import due_fires
from perdure.model import Schedule, State, Unique
from perdure.stores.exchange import Exchanged
from perdure.stores.postgres import parse_url
from perdure.stores.postgres.drift import drift
from perdure.stores.postgres.store import PostgresStore
from servers.postgres import Postgres, migrated_postgres
from servers.postgres_locks import connection, waiting

pytestmark = pytest.mark.anyio

REPLACE = "SELECT perdure.start('ship', '{}', unique_key => 'k', on_conflict => 'replace', delay => '1 hour')"


@pytest.fixture
def postgres_url(request: pytest.FixtureRequest) -> str:
    return migrated_postgres(request.node.nodeid)


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(parse_url(postgres_url))
    await store.open()
    yield store
    await store.close()


async def test_lists_with_the_same_keys_in_other_orders(
    store: PostgresStore, postgres_url: str, postgres: Postgres
) -> None:
    def enqueue(by: asyncpg.Connection[asyncpg.Record], keys: str) -> asyncio.Task[Any]:
        starts = msgspec.json.encode([start(unique=Unique(key)) for key in keys]).decode()
        return asyncio.create_task(by.fetch("SELECT * FROM perdure.enqueue_all(NULL, $1)", starts))

    await store.enqueue([start("first")])
    async with connection(postgres_url) as holder, connection(postgres_url) as one, connection(postgres_url) as other:
        await holder.execute("BEGIN; SET LOCAL search_path = perdure")
        await holder.execute("SELECT pg_advisory_xact_lock(key_lock('ship', 'm'))")
        calls = [enqueue(one, "amb"), enqueue(other, "bma")]
        await waiting(postgres, postgres_url, 2)
        await holder.execute("COMMIT")
        await asyncio.gather(*calls)


async def test_ends_and_a_cancel(store: PostgresStore, postgres_url: str, postgres: Postgres) -> None:
    ada = await worker(store)
    await store.enqueue([start("r1"), start("r2"), start("r3", parent="r1")])
    claims = {claim.id: claim for claim in await ada.claim()}
    ends = [claims[run] for run in ("r1", "r2", "r3")]
    async with connection(postgres_url) as holder, connection(postgres_url) as other:
        await holder.execute("BEGIN")
        await holder.fetch("SELECT 1 FROM perdure.live WHERE seq = $1 FOR UPDATE", ends[1].ref)
        ending = asyncio.create_task(ada.exchange(settles=[settle(claim) for claim in ends]))
        await waiting(postgres, postgres_url)
        cancelling = asyncio.create_task(other.fetch("SELECT perdure.cancel(NULL, 'r1', 'enough', true)"))
        await waiting(postgres, postgres_url, 2)
        await holder.execute("COMMIT")
        await asyncio.gather(ending, cancelling)


async def test_a_child_that_somebody_is_starting_holds_up_no_other_runs_child(
    store: PostgresStore, postgres_url: str
) -> None:
    ada = await worker(store)
    await store.enqueue([start("bad"), start("good")])
    claims = await ada.claim()
    async with connection(postgres_url) as application:
        await application.execute("BEGIN; SELECT perdure.start('ship', '{}', id => 'kid-bad')")
        starts = [
            save(claim, checkpoint(key), starts=start(f"{key}-{claim.id}", input="{}"))
            for claim in claims
            for key in ("kid", "more")
        ]
        reply = await ada.exchange(saves=starts)
        assert reply.refused == [claims[0].token]
        assert (await record(store, "good")).state is State.RUNNING
        assert [await store.load(f"{key}-good") is not None for key in ("kid", "more")] == [True, True]
        assert (await record(store, "bad")).state is State.SCHEDULED


async def test_a_schedule_that_meets_a_transaction_holds_up_no_other(store: PostgresStore, postgres_url: str) -> None:
    async def fire(reply: Exchanged) -> dict[str, bool]:
        await ada.exchange(fires=[fire for schedule in reply.due for fire in due_fires(schedule, reply.now)])
        return {record.schedule.name: record.last_run is not None for record in await store.schedules()}

    ada = await worker(store)
    slot = await store.now() // 3_600_000 * 3_600_000
    for name, unique in (("bad", Unique("k")), ("good", None)):
        schedule = Schedule(name=name, every=3_600_000, start=start("", unique=unique))
        await store.put_schedule(schedule, slot, declared=True)
    async with connection(postgres_url) as application:
        await application.execute("BEGIN")
        await application.execute(REPLACE)
        assert await fire(await ada.exchange()) == {"bad": False, "good": True}
        await application.execute("ROLLBACK")
        assert await fire(await ada.exchange()) == {"bad": True, "good": True}


async def test_what_a_transaction_holds_is_looked_at_now_and_then(store: PostgresStore, postgres_url: str) -> None:
    ada = await worker(store)
    async with connection(postgres_url) as application, connection(postgres_url) as other:
        await application.execute(REPLACE)
        await application.execute(REPLACE)  # A word about it is left to the workers.
        await other.execute(
            "BEGIN; SET LOCAL search_path = perdure; SELECT pg_advisory_xact_lock(key_lock('ship', 'k'))"
        )
        await ada.exchange()
        reply = await ada.exchange()
        assert reply.next_at is not None and reply.next_at - reply.now > 500
        await other.execute("COMMIT")
        await ada.exchange()
        assert await other.fetchval("SELECT count(*) FROM perdure.recheck") == 0


async def test_a_run_that_is_retried_before_a_worker_came_is_of_its_group(
    store: PostgresStore, postgres_url: str
) -> None:
    started = (
        "SELECT perdure.start('ship', '{}', id => $1, group_key => 'g'),"
        " perdure.start('ship', '{}', id => $2, session_key => 's')"
    )
    async with connection(postgres_url) as application:
        for run in ("a", "b"):
            await application.fetch(started, run, f"{run}{run}")
            for each in (run, f"{run}{run}"):
                await store.cancel(each, "by mistake")
                await store.retry(each)
    ada = await worker(store, sessions=1)
    await ada.exchange()
    claims = await ada.claim()
    assert [(claim.id, claim.group, claim.session) for claim in claims if claim.group] == [("a", "g", "")]
    assert sorted((claim.id, claim.session) for claim in claims if not claim.group) == [("aa", "s"), ("bb", "s")]


async def test_only_workers_that_would_take_it_are_known(store: PostgresStore, postgres_url: str) -> None:
    await worker(store, versions={"ship": ["v1"]})
    known = "SELECT perdure.start('ship', '{}', version => $1, known => true)"
    async with connection(postgres_url) as application:
        await application.fetch(known, "v1")
        await application.fetch(known, None)
        with pytest.raises(asyncpg.PostgresError, match="no live worker serves workflow ship of version v2 on queue"):
            await application.fetch(known, "v2")
        await application.execute("UPDATE perdure.lease SET until = 1")
        with pytest.raises(asyncpg.PostgresError, match="no live worker serves workflow ship on queue default"):
            await application.fetch(known, None)


async def test_settings_and_rights_of_functions_are_compared(store: PostgresStore, postgres_url: str) -> None:
    assert (await drift(parse_url(postgres_url))).changed == []
    async with connection(postgres_url) as hand:
        await hand.execute("ALTER FUNCTION perdure.renew(bigint, bigint, bigint) RESET search_path")
        await hand.execute("GRANT EXECUTE ON FUNCTION perdure.start_within(text) TO PUBLIC")
    changed = (await drift(parse_url(postgres_url))).changed
    assert [each.partition("(")[0] for each in changed] == ["function renew", "function start_within"]


@pytest.mark.parametrize("rows", [0, 1, 5])
async def test_claims_are_in_order_whatever_the_planner_believes_of_the_tables(
    store: PostgresStore, postgres_url: str, rows: int
) -> None:
    await store.enqueue([start(delay=60_000) for _ in range(rows)])
    async with connection(postgres_url) as hand:
        await hand.execute("ANALYZE perdure.run")
    ada = await worker(store)
    await store.enqueue([start("low", priority=5), start("first"), start("second"), start("urgent", priority=-1)])
    assert [claim.id for claim in await ada.claim()] == ["urgent", "first", "second", "low"]
