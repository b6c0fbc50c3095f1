"""What becomes of starts, and of what applications leave to workers, while others hold what they are about."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from conformance.kit import Worker, checkpoint, ids, message, of_queue, record, save, settle, start, worker
from perdure.model import Limits, OnConflict, State, Unique
from perdure.stores.postgres import parse_url
from perdure.stores.postgres.listen import channel
from perdure.stores.postgres.store import PostgresStore
from servers.postgres import Postgres, migrated_postgres
from servers.postgres_locks import connection, waiting

pytestmark = pytest.mark.anyio

DEBOUNCE = "SELECT perdure.start('ship', '{}', unique_key => 'k', debounce => '1 hour')"


@pytest.fixture
def postgres_url(request: pytest.FixtureRequest) -> str:
    return migrated_postgres(request.node.nodeid)


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(parse_url(postgres_url))
    await store.open()
    yield store
    await store.close()


async def claim(connection: asyncpg.Connection[asyncpg.Record], worker: Worker) -> None:
    """What an exchange does; it is over when the transaction is."""
    await connection.execute(
        f"UPDATE perdure.live SET state = 'running', wake_at = NULL, started_at = 1, worker = {worker.id}, token = 99"
    )


@pytest.mark.parametrize(("conflict", "made"), [(OnConflict.DEBOUNCE, "second"), (OnConflict.REPLACE, "first")])
async def test_a_run_that_is_claimed_just_now_is_not_replaced(
    store: PostgresStore, postgres: Postgres, postgres_url: str, conflict: OnConflict, made: str
) -> None:
    ada = await worker(store)
    unique = Unique("k", conflict, 600_000)
    await store.enqueue([start("first", input="1", unique=unique)])
    async with connection(postgres_url) as other:
        await other.execute("BEGIN")
        await claim(other, ada)
        starting = asyncio.create_task(store.enqueue([start("second", input="2", unique=unique)]))
        await waiting(postgres, postgres_url)
        await other.execute("COMMIT")
    [answer] = await starting
    assert (answer.id, answer.existed) == (made, made == "first")
    first = await record(store, "first")
    assert (first.state, first.input) == (State.RUNNING, "1")
    if made == "second":
        assert (await record(store, "second")).input == "2"


async def test_a_key_whose_run_ends_just_now_is_free(
    store: PostgresStore, postgres: Postgres, postgres_url: str
) -> None:
    unique = Unique("k", OnConflict.REPLACE)
    await store.enqueue([start("first", unique=unique)])
    async with connection(postgres_url) as other:
        await other.execute(
            "BEGIN; SET search_path = perdure; SELECT stop(1, ARRAY[seq], 'enough', false) FROM perdure.run"
        )
        starting = asyncio.create_task(store.enqueue([start("second", unique=unique)]))
        await waiting(postgres, postgres_url)
        await other.execute("COMMIT")
    [answer] = await starting
    assert (answer.id, answer.existed) == ("second", False)


async def test_a_run_that_waits_is_replaced_and_goes_on_waiting(store: PostgresStore) -> None:
    ada = await worker(store)
    unique = Unique("k", OnConflict.REPLACE)
    await store.open_batch("b", [start("member")], start("after", input="1", unique=unique))
    for delay in (None, 1):
        [answer] = await store.enqueue([start("other", input="2", unique=unique, delay=delay)])
        assert answer.id == "after"
        after = await record(store, "after")
        assert (after.state, after.input) == (State.WAITING, "2")
    [member] = await ada.claim()
    assert member.id == "member"
    await ada.settle(member)
    assert [(each.id, each.input) for each in await ada.claim()] == [("after", "2")]


async def test_a_group_that_somebody_joins_just_now_is_kept(
    store: PostgresStore, postgres: Postgres, postgres_url: str
) -> None:
    await store.enqueue([start("there")])
    async with connection(postgres_url) as other, connection(postgres_url) as third:
        # Two starts of one id that is new to both: who comes second has made a group for nothing.
        await other.execute("SET search_path = perdure; SELECT group_of('default', 'g', 1), session_of('default', 's')")
        await third.execute(
            """BEGIN; INSERT INTO perdure.run
            SELECT (jsonb_populate_record(r, '{"seq": -5, "id": "x"}')).* FROM perdure.run AS r"""
        )
        starting = asyncio.create_task(store.enqueue([start("x", group="g", session="s")]))
        await waiting(postgres, postgres_url)
        await other.execute("BEGIN; SELECT group_of('default', 'g', 1), session_of('default', 's')")
        await third.execute("COMMIT")
        await asyncio.wait_for(starting, 5)  # It does not wait until the other one is done.
        await other.execute("COMMIT")
        assert await other.fetchval("SELECT count(*) FROM perdure.grp") == 1
        assert await other.fetchval("SELECT count(*) FROM perdure.session") == 1


async def test_groups_and_sessions_do_not_run_out_of_numbers(store: PostgresStore, postgres_url: str) -> None:
    """Each time that a group is made anew, since its last run was deleted, it takes another one."""
    async with connection(postgres_url) as other:
        for table in ("grp", "session"):
            await other.execute(f"ALTER TABLE perdure.{table} ALTER id RESTART WITH {2**31}")
        await other.execute("SELECT perdure.start('ship', '{}', id => 'x', group_key => 'h', session_key => 't')")
    ada = await worker(store, sessions=3)
    await store.enqueue([start(id, group="g", session="s") for id in ("a", "b")])
    claims = await ada.claim(3)
    assert sorted(ids(claims)) == ["a", "x"]
    await ada.exchange(settles=[settle(claim) for claim in claims])
    await store.set_limits(of_queue(), Limits(running=5), "me")
    assert ids(await ada.claim()) == ["b"]
    await store.cancel("b", "enough")
    assert await store.delete("a") == 1


async def test_workers_do_not_wait_for_a_transaction_with_a_unique_key(store: PostgresStore, postgres_url: str) -> None:
    ada, bob = await worker(store), await worker(store)
    heard: list[object] = []
    async with connection(postgres_url) as application, connection(postgres_url) as listener:
        first = await application.fetchval(DEBOUNCE)
        await application.execute(DEBOUNCE)  # A word about it is left to the workers.
        await application.execute("BEGIN")
        await application.execute(DEBOUNCE)
        await store.enqueue([start("other"), start("hearing")])
        await application.execute("SELECT perdure.signal('hearing', 'approve', '1')")
        await store.signal(message("hearing"))
        await listener.add_listener(channel("perdure"), lambda *said: heard.append(said))
        async with asyncio.timeout(5):  # Half of what a worker would wait for a lock.
            assert ids(await ada.claim()) == ["other", "hearing"]
            await bob.exchange()
            await listener.fetchval("SELECT 1")  # What was told until here has arrived.
            heard.clear()
            for each in (ada, bob, ada, bob):
                await each.exchange()
        await listener.fetchval("SELECT 1")
        assert heard == []  # They do not wake each other for what they can't do.
        assert await listener.fetchval("SELECT count(*) FROM perdure.recheck") > 0
        await application.execute("COMMIT")
        for _ in range(2):
            await ada.exchange()
        assert await listener.fetchval("SELECT count(*) FROM perdure.recheck") == 0
    assert (await record(store, first)).state is State.SCHEDULED


async def test_workers_do_not_wait_long_for_an_id_that_a_transaction_has(
    store: PostgresStore, postgres_url: str
) -> None:
    ada = await worker(store)
    async with connection(postgres_url) as application, connection(postgres_url) as other:
        held = await other.fetchval("SELECT perdure.start('ship', '{}', unique_key => 'k', delay => '1 hour')")
        replace = "SELECT perdure.start('ship', '{}', id => 'x', unique_key => 'k', on_conflict => 'replace')"
        await other.execute(replace)
        await store.cancel(held, "so that the key is free")
        await application.execute("BEGIN; SELECT perdure.start('ship', '{}', id => 'x')")
        await store.enqueue([start("other")])
        async with asyncio.timeout(5):
            assert ids(await ada.claim()) == ["other"]
        await application.execute("ROLLBACK")
        assert ids(await ada.claim()) == ["x"]


async def test_starts_of_a_key_that_a_transaction_has_hold_up_nothing_else(
    store: PostgresStore, postgres_url: str
) -> None:
    ada = await worker(store)
    async with connection(postgres_url) as application, connection(postgres_url) as other:
        await other.execute(DEBOUNCE)
        await other.execute(f"{DEBOUNCE} FROM generate_series(1, 1100)")
        await application.execute(f"BEGIN; {DEBOUNCE}")
        await store.enqueue([start("hearing")])
        await other.execute("SELECT perdure.signal('hearing', 'approve', '1')")
        await ada.exchange()
        assert await words(other) == {"start": 1100}
        await application.execute("ROLLBACK")
        while await words(other):
            await ada.exchange()


async def test_starts_whose_ids_a_transaction_has_hold_up_nothing_else(store: PostgresStore, postgres_url: str) -> None:
    ada = await worker(store)
    replace = """SELECT perdure.start('ship', id => 'new' || n, unique_key => 'k' || n, on_conflict => 'replace')
        FROM generate_series(1, 7) AS n"""
    async with connection(postgres_url) as application, connection(postgres_url) as other:
        await other.execute(
            "SELECT perdure.start('ship', id => 'old' || n, unique_key => 'k' || n, delay => '1 hour')"
            " FROM generate_series(1, 7) AS n"
        )
        await other.execute(replace)
        for number in range(1, 8):
            await store.cancel(f"old{number}", "so that the key is free")
        await application.execute(
            "BEGIN; SELECT perdure.start('ship', id => 'new' || n) FROM generate_series(1, 7) AS n"
        )
        await store.enqueue([start("hearing")])
        await other.execute("SELECT perdure.signal('hearing', 'approve', '1')")
        await ada.exchange()
        assert await words(other) == {"start": 7}
        await application.execute("ROLLBACK")
        while await words(other):
            await ada.exchange()


async def words(connection: asyncpg.Connection[asyncpg.Record]) -> dict[str, int]:
    """How many of which are left to workers."""
    rows = await connection.fetch(
        "SELECT word ->> 'what', count(*) FROM perdure.recheck WHERE word ->> 'what' <> 'count' GROUP BY 1"
    )
    return {row[0]: row[1] for row in rows}


async def test_a_run_whose_child_somebody_is_starting_comes_again_and_holds_up_no_other(
    store: PostgresStore, postgres_url: str
) -> None:
    ada = await worker(store)
    await store.enqueue([start("parent"), start("other")])
    parent, other = await ada.claim(2)
    async with connection(postgres_url) as application:
        transaction = application.transaction()
        await transaction.start()
        await application.fetchval("SELECT perdure.start('ship', '{}', id => 'kid')")
        child = save(parent, checkpoint("kid"), starts=start("kid", input="{}"))
        reply = await ada.exchange(saves=[child], settles=[settle(other)])
        assert reply.refused == [parent.token]
        assert (await record(store, "other")).state is State.SUCCEEDED
        put_off = await record(store, "parent")
        assert (put_off.state, put_off.attempt) == (State.SCHEDULED, 1)
        await transaction.rollback()
