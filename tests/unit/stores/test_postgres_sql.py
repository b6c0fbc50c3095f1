"""Starts, signals and cancelling from SQL, within transactions of anybody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import contextmanager
from json import dumps
from secrets import token_hex
from typing import Any, LiteralString, cast
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from perdure import App, State, wait_signal
from perdure.errors import IdConflict, RunEnded
from perdure.model import RunQuery
from servers.postgres import migrated_postgres

pytestmark = pytest.mark.anyio


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return migrated_postgres(request.node.nodeid)


@pytest.fixture
async def app(url: str) -> AsyncIterator[App]:
    app = App(url)

    @app.workflow
    async def add(one: int, other: int = 1) -> int:
        return one + other

    @app.workflow
    async def hear(name: str) -> Any:
        return [await wait_signal(name) for _ in range(2)]

    yield app
    await app.close()


@contextmanager
def session(url: str, *, autocommit: bool = False) -> Generator[psycopg.Connection[Any]]:
    """A session that no lock makes wait for long: a test that would hang fails."""
    with psycopg.connect(url, autocommit=autocommit, options="-c lock_timeout=2000") as connection:
        yield connection


def run(connection: psycopg.Connection[Any], statement: str, *args: Any) -> Any:
    cursor = connection.execute(cast("LiteralString", statement), args)
    row = cursor.fetchone() if cursor.description else None
    return None if row is None else row[0]


def one(url: str, statement: str, *args: Any) -> Any:
    with session(url, autocommit=True) as connection:
        return run(connection, statement, *args)


async def test_a_start_counts_when_its_transaction_commits(app: App, url: str) -> None:
    async with app.worker():
        with session(url) as connection:
            run(connection, "SELECT perdure.start('add', '{\"one\": 1}', id => 'no')")
            connection.rollback()
            run(connection, "SELECT perdure.start('add', '{\"one\": 1, \"other\": 2}', id => 'yes')")
            connection.commit()
        assert await app.run("yes").result(10) == 3
        made = one(url, "SELECT perdure.start('add', jsonb_build_object('one', 5))")
        assert len(made) == 24
        assert await app.run(made).result(10) == 6
        assert {each.id for each in await app.runs()} == {"yes", made}


async def test_all_that_a_start_can_say(app: App, url: str) -> None:
    one(
        url,
        """SELECT perdure.start('add', '{"one": 1}', id => 'a', queue => 'q', priority => -2, delay => '1 hour',
        timeout => '1 day', group_key => 'g', group_limit => 3, session_key => 's', unique_key => 'u',
        labels => '{"customer": "7"}', version => 'v1', max_crashes => 2)""",
    )
    one(url, "SELECT perdure.start('add', '{\"one\": 1}', id => 'b', parent => 'a', at => '2100-01-01 00:00Z')")
    store = await app.client.store()
    parent, child = await store.load("a"), await store.load("b")
    assert parent is not None and child is not None
    assert (parent.queue, parent.priority, parent.state, parent.unique) == ("q", -2, State.SCHEDULED, "u")
    assert (parent.labels, parent.version) == ({"customer": "7"}, "v1")
    assert parent.wake_at == parent.created_at + 3_600_000
    assert parent.deadline == parent.created_at + 90_000_000
    assert (child.parent, child.wake_at) == ("a", 4_102_444_800_000)
    async with app.worker():  # which looks after groups and sessions
        while (await store.load("a") or parent).group == "":
            await asyncio.sleep(0.01)
    joined = await store.load("a")
    assert joined is not None and (joined.group, joined.session) == ("g", "s")


async def test_groups_sessions_and_order(app: App, url: str) -> None:
    async with app.worker(sessions=1):
        grouped = (
            "SELECT perdure.start('add', jsonb_build_object('one', %s::int), group_key => 'g',"
            " session_key => CASE WHEN %s > 1 THEN 's' END)"
        )
        with session(url) as connection:
            ids = [run(connection, grouped, n, n) for n in range(4)]
            ids.append(run(connection, "SELECT perdure.start('add', '{\"one\": 4}', session_key => 's')"))
        assert [await app.run(each).result(10) for each in ids] == [1, 2, 3, 4, 5]
        store = await app.client.store()
        ends = [record.started_at for record in await store.runs(RunQuery(group="g", oldest_first=True))]
        assert len(ends) == 4 and ends == sorted(cast("list[int]", ends))


async def test_a_signal_arrives_when_its_transaction_commits(app: App, url: str) -> None:
    async with app.worker():
        handle = await app.workflows["hear"].options(id="h").start("go")
        with session(url) as connection:
            run(connection, "SELECT perdure.signal('h', 'go', '{\"by\": \"ada\"}', id => 's1')")
            run(connection, "SELECT perdure.signal('h', 'go', '{\"by\": \"ada\"}', id => 's1')")
            run(connection, "SELECT perdure.signal('h', 'go', '2')")
            assert await (await app.client.store()).signals("h") == []
        assert await handle.result(10) == [{"by": "ada"}, 2]
    with pytest.raises(psycopg.Error, match="takes no signals any more") as caught:
        one(url, "SELECT perdure.signal('h', 'go')")
    assert caught.value.sqlstate == "PD002"
    with pytest.raises(RunEnded):
        await handle.signal("go")


async def test_many_signals_keep_their_order(app: App, url: str) -> None:
    async with app.worker(), app.worker():
        with session(url, autocommit=True) as connection:
            run(connection, "SELECT perdure.start('hear', '{\"name\": \"go\"}', id => 'h')")
            for n in range(500):
                run(connection, "SELECT perdure.signal('h', 'other', to_jsonb(%s::int))", n)
            run(connection, "SELECT perdure.signal('h', 'go', '1')")
            run(connection, "SELECT perdure.signal('h', 'go', '2')")
        assert await app.run("h").result(10) == [1, 2]
    found = await (await app.client.store()).signals("h", limit=1000)
    assert [each.body for each in found] == [str(n) for n in range(500)]


async def test_cancelling(app: App, url: str) -> None:
    async with app.worker():
        handle = await app.workflows["hear"].options(id="h").start("go")
        child = one(url, "SELECT perdure.start('hear', '{\"name\": \"go\"}', parent => 'h')")
        one(url, "SELECT perdure.cancel('h', 'not any more')")
        while [(await each.status()).state for each in (handle, app.run(child))] != [State.CANCELLED] * 2:
            await asyncio.sleep(0.01)


async def test_nobody_waits_for_an_open_transaction(app: App, url: str) -> None:
    options = "group_key => 'g', session_key => 's', labels => '{\"k\": \"v\"}', queue => 'default'"
    add = app.workflows["add"]
    async with app.worker(sessions=1):
        hearing = await app.workflows["hear"].options(id="h").start("go")
        held = await add.options(id="held", delay=600, unique="u").start(1)
        while (await hearing.status()).state is not State.WAITING:
            await asyncio.sleep(0.01)
        with session(url) as connection:
            for n in range(3):  # of workflows, groups, sessions and a unique key that nobody has used before
                run(connection, f"SELECT perdure.start('add', '{{\"one\": {n}}}', {options})")
            run(connection, f"SELECT perdure.start('add', '{{\"one\": 7}}', {options}, unique_key => 'mine')")
            again = run(
                connection, "SELECT perdure.start('add', '{\"one\": 9}', unique_key => 'u', on_conflict => 'replace')"
            )
            assert again == "held"
            run(connection, "SELECT perdure.signal('h', 'go', '1')")
            run(connection, "SELECT perdure.cancel('held')")
            # Everybody goes on: the same workflow, group, session, queue, and the runs that it is about.
            same = add.options(group="g", session="s", labels={"k": "v"})
            for n in range(3):
                assert await (await same.start(n)).result(5) == n + 1
            await hearing.signal("go", "first")
            await held.label(some="label")
            assert await (await add.options(group="g", unique="other").start(5)).result(5) == 6
            waiting = run(connection, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
            assert waiting == 0
        assert await hearing.result(10) == ["first", 1]
        while (await held.status()).state is not State.CANCELLED:
            await asyncio.sleep(0.01)
        while any(not each.state.final for each in await app.runs()):
            await asyncio.sleep(0.01)
        assert len(await app.runs(state="succeeded")) == 9


async def test_ids_and_unique_keys_are_those_of_the_python_client(app: App, url: str) -> None:
    add = app.workflows["add"]
    await add.options(id="a").start(1, other=2)
    assert one(url, "SELECT perdure.start('add', '{\"other\": 2, \"one\": 1}', id => 'a')") == "a"
    one(url, "SELECT perdure.start('add', '{\"one\": 1, \"other\": 2}', id => 'b')")
    assert (await add.options(id="b").start(1, other=2)).existed
    with pytest.raises(IdConflict):
        await add.options(id="b").start(1, other=3)
    first = await add.options(unique="u").start(1)
    assert one(url, "SELECT perdure.start('add', '{\"one\": 2}', unique_key => 'u')") == first.id
    with session(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(psycopg.Error) as caught:
            run(connection, "SELECT perdure.start('add', '{\"one\": 2}', unique_key => 'u')")
    assert caught.value.sqlstate == "PD020" and "READ COMMITTED" in str(caught.value)


async def test_replace_and_debounce(app: App, url: str) -> None:
    replace = "SELECT perdure.start('add', jsonb_build_object('one', %s::int), unique_key => 'r', delay => %s, {})"
    first = one(url, replace.format("id => 'r'"), 1, "1 hour")
    assert one(url, replace.format("on_conflict => 'replace'"), 7, "1 ms") == first
    calm = "SELECT perdure.start('add', jsonb_build_object('one', %s::int), unique_key => 'd', debounce => '50 ms')"
    second = one(url, calm, 1)
    assert one(url, calm, 8) == second
    async with app.worker():
        assert await app.run(first).result(10) == 8
        assert await app.run(second).result(10) == 9
    throttle = "SELECT perdure.start('add', '{\"one\": 1}', unique_key => 't', throttle => '1 hour')"
    assert one(url, throttle) == one(url, throttle)


async def test_they_are_counted_before_any_worker_comes(app: App, url: str) -> None:
    with session(url) as connection:
        for _ in range(3):
            run(connection, "SELECT perdure.start('add', '{\"one\": 1}')")
    store = await app.client.store()
    assert [(each.workflow, each.state, each.runs) for each in await store.counts()] == [("add", State.QUEUED, 3)]
    async with app.worker():
        while await app.runs(state="queued"):
            await asyncio.sleep(0.01)
    while [(each.state, each.runs) for each in await store.counts()] != [(State.SUCCEEDED, 3)]:
        await asyncio.sleep(0.01)


async def test_what_is_left_to_workers_can_be_looked_at_before_one_comes(app: App, url: str) -> None:
    one(url, "SELECT perdure.start('add', '{\"one\": 1}', id => 'g', group_key => 'g', session_key => 's')")
    one(url, "SELECT perdure.start('add', '{\"one\": 1}', id => 's', session_key => 's', delay => '1 hour')")
    one(url, "SELECT perdure.start('add', '{\"one\": 1}', id => 'c', group_key => 'g')")
    status = await app.run("g").status()
    assert status.state is State.QUEUED
    assert "no live worker" in await app.run("g").why()
    assert await app.run("s").why()
    assert [each.queue for each in await app.queues()] == ["default"]
    assert await app.run("c").cancel() is State.CANCELLED
    await app.run("c").retry()
    async with app.worker(sessions=1):
        assert await app.run("g").result(10) == 2
        assert await app.run("c").result(10) == 2


async def test_a_workflow_that_nobody_serves_is_told_of(app: App, url: str) -> None:
    with session(url, autocommit=True) as connection:
        told: list[str] = []
        connection.add_notice_handler(lambda notice: told.append(f"{notice.sqlstate} {notice.message_primary}"))
        run(connection, "SELECT perdure.start('ad', '{\"one\": 1}')")
        assert told == ["PD023 no live worker serves workflow ad on queue default: its run waits for one"]
        with pytest.raises(psycopg.Error, match="no live worker serves workflow ad on queue default"):
            run(connection, "SELECT perdure.start('ad', '{\"one\": 1}', known => true)")
        async with app.worker():
            assert run(connection, "SELECT perdure.start('add', '{\"one\": 1}', known => true)")
        assert len(told) == 1
        run(connection, "SELECT count(perdure.start('ad', '{\"one\": 1}')) FROM generate_series(1, 50)")
        assert len(told) == 2


@pytest.mark.parametrize(
    ("call", "code", "said"),
    [
        ("start(NULL)", "PD020", "the name of the workflow is NULL"),
        ("start('')", "PD020", "the name of the workflow is empty"),
        ("start('a/b')", "PD020", "the name of the workflow can have none of these"),
        ("start(repeat('x', 201))", "PD020", "has 201 characters, and 200 are the most"),
        ("start(E'a\\nb')", "PD020", "has a control character or a line break"),
        ("start('w', NULL)", "PD020", "the input of workflow w is NULL"),
        ("start('w', '[1]')", "PD020", "is the JSON array: give an object with the arguments by name"),
        ("start('w', '{\"a\":')", "22P02", "invalid input syntax for type json"),
        ("start('w', '{\"a\": \"\\u0000\"}')", "22P05", "unsupported Unicode escape sequence"),
        ("start('w', jsonb_build_object('a', repeat('x', 1048577)))", "PD021", "the limit is 1048576"),
        ("start('w', '{\"a\": 1}', max_bytes => 5)", "PD021", "takes 8 bytes as JSON, and the limit is 5"),
        ("start('w', id => '')", "PD020", "the id is empty"),
        ("start('w', queue => 'a,b')", "PD020", "the queue can have none of these"),
        ("start('w', group_key => '')", "PD020", "the group is empty"),
        ("start('w', delay => '-1 s')", "PD020", "delay must lie between 0 and 100 years, not -00:00:01"),
        ("start('w', delay => '1 s', at => now())", "PD020", "give delay or at, not both"),
        ("start('w', at => 'infinity')", "PD020", "at must lie between the years 1970 and 3000, not at infinity"),
        ("start('w', id => U&'a\\202Eb')", "PD020", "the id has a character that can't be seen, U+202E"),
        ("start('w', timeout => '0')", "PD020", "timeout must be longer than nothing"),
        ("start('w', group_limit => 0)", "PD020", "group_limit and max_crashes are 1 or more"),
        ("start('w', on_conflict => 'replace')", "PD020", "go with unique_key"),
        ("start('w', unique_key => 'u', on_conflict => 'x')", "PD020", "is 'existing' or 'replace', not 'x'"),
        ("start('w', unique_key => 'u', debounce => '1 s', throttle => '1 s')", "PD020", "give one of"),
        ("start('w', unique_key => 'u', debounce => '1 s', delay => '1 s')", "PD020", "leave out delay and at"),
        ("start('w', labels => '[]')", "PD020", "labels are a JSON object of texts"),
        ("start('w', labels => '{\"a\": 1}')", "PD020", "label a is the JSON number"),
        ("start('w', parent => 'nobody')", "PD001", "there is no run 'nobody'"),
        ("signal('nobody', 'x')", "PD001", "there is no run 'nobody'"),
        ("signal('nobody', '')", "PD020", "the name of the signal is empty"),
        ("signal('nobody', 'x', NULL)", "PD020", "the value of signal x is NULL"),
        ("signal('nobody', 'x', '[1, 2]', max_bytes => 2)", "PD021", "takes 6 bytes"),
        ("cancel('nobody')", "PD001", "there is no run 'nobody'"),
        ("cancel('nobody', NULL)", "PD020", "a reason is a text of at most 1000 characters"),
    ],
)
async def test_what_can_not_be_is_named(call: str, code: str, said: str) -> None:
    url = migrated_postgres(__name__)
    with pytest.raises(psycopg.Error) as caught:
        one(url, f"SELECT perdure.{call}")
    assert caught.value.sqlstate == code
    assert said in str(caught.value)
    assert one(url, "SELECT count(*) FROM perdure.run") == 0


@pytest.fixture
def as_role(url: str) -> Iterator[str]:
    """The URL for a role that may do nothing yet."""
    role = "perdure_shop"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE ROLE perdure_shop LOGIN")
        parts = urlsplit(url)
        yield urlunsplit(parts._replace(netloc=f"{role}@{parts.netloc.rpartition('@')[2]}"))
        connection.execute("DROP OWNED BY perdure_shop; DROP ROLE perdure_shop")


async def test_a_role_that_may_start_only(url: str, as_role: str) -> None:
    start = "SELECT perdure.start('add', '{\"one\": 1}', id => 'x')"
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        one(as_role, start)
    one(url, "GRANT USAGE ON SCHEMA perdure TO perdure_shop")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        one(as_role, start)
    one(url, "GRANT EXECUTE ON FUNCTION perdure.start TO perdure_shop")
    with session(as_role) as connection:
        # What the caller names like a table of ours is not taken for it.
        connection.execute("CREATE TEMP TABLE run (seq int); CREATE TEMP TABLE recheck (id int)")
        assert run(connection, start) == "x"
    for refused in ("SELECT perdure.signal('x', 'n')", "SELECT perdure.cancel('x')", "SELECT id FROM perdure.run"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            one(as_role, refused)
    assert one(url, "SELECT id FROM perdure.run") == "x"


@pytest.mark.parametrize(
    ("function", "said", "named"),
    [
        ("signal", {"run_id": "held", "id": "s", "body": "1"}, "the name of the signal"),
        ("signal", {"run_id": "held", "id": "s" * 12_000, "name": "go", "body": "1"}, "the id of the signal"),
        ("signal", {"run_id": "held", "id": "s", "name": "go"}, "the value of signal go"),
        ("cancel", {"run_id": "held", "reason": "r" * 1001, "children": True}, "a reason"),
        ("start", {"starts": [{"id": "x", "workflow": "add", "queue": "q", "group": "g" * 201}]}, "the group"),
        ("start", {"starts": [{"id": "x", "workflow": "add", "queue": "q", "unique": {}}]}, "the unique key"),
        ("start", {"starts": [{"id": "x", "workflow": "add", "queue": "q", "labels": {"k": ""}}]}, "label k"),
        ("start", {"starts": [{"id": "x", "workflow": "add"}]}, "the queue"),
        ("start", {"starts": [{"id": "x", "workflow": "add", "queue": "q", "at": 4e13}]}, "at must lie between"),
        ("start", {"starts": [{"id": "x", "workflow": "add", "queue": "q", "timeout": -1}]}, "timeout must lie"),
    ],
)
async def test_what_can_not_be_is_refused_at_once(
    app: App, url: str, function: str, said: dict[str, Any], named: str
) -> None:
    await app.workflows["add"].options(id="held", delay=600).start(1)
    with pytest.raises(psycopg.Error, match=named) as caught:
        one(url, f"SELECT perdure.{function}_within(%s)", dumps(said))
    assert caught.value.sqlstate == "PD020"


async def test_what_makes_no_sense_is_in_nobodys_way(app: App, url: str) -> None:
    key = {"key": "u", "on_conflict": "replace"}
    start = {"id": "x", "workflow": "add", "queue": "default", "input": "{}", "priority": "high", "unique": key}
    words: list[dict[str, Any]] = [
        {"what": "start", "start": start},
        {"what": "signal", "run": "held", "id": "s", "body": "1"},
        {"what": "signal", "run": "held", "id": token_hex(6000), "name": "go", "body": "1"},
        {"what": "join", "runs": [1], "queue": "default", "group": token_hex(6000), "limit": 1, "session": ""},
    ]
    await app.workflows["add"].options(id="held", unique="u", delay=600).start(1)
    for word in words:
        one(url, "INSERT INTO perdure.recheck (word) VALUES (%s)", dumps(word))
    one(url, """SELECT perdure.signal('held', 'go', '1')""")
    async with app.worker():
        assert await app.workflows["add"].run(1) == 2
        while not await (await app.client.store()).signals("held"):
            await asyncio.sleep(0.01)
    assert one(url, "SELECT count(*) FROM perdure.recheck") == 0
