from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Iterator

import pytest

from perdure.errors import RunNotFound, StoreError
from perdure.stores.sqlite.connect import connect, parse_url
from perdure.stores.sqlite.executor import Executor, Transaction


class Commits:
    """Counts what is committed, and keeps the thread busy until it is released."""

    def __init__(self) -> None:
        self.count = 0
        self.busy = threading.Event()
        self.free = threading.Event()

    def committing(self, _: Transaction) -> None:
        self.count += 1

    def block(self, _: Transaction) -> None:
        self.busy.set()
        self.free.wait(10)


@pytest.fixture
def commits() -> Commits:
    return Commits()


@pytest.fixture
def executor(commits: Commits) -> Iterator[Executor]:
    connection = connect(parse_url("sqlite://"))
    connection.execute("CREATE TABLE kept (value INTEGER PRIMARY KEY)")
    executor = Executor(connection, "test", begin="BEGIN IMMEDIATE", clock=None, before_commit=commits.committing)
    yield executor
    executor.close()


def keep(value: int, error: Exception | None = None):
    def operation(transaction: Transaction) -> int:
        transaction.change("INSERT INTO kept VALUES (:value)", {"value": value})
        if error is not None:
            raise error
        return value

    return operation


def kept(executor: Executor) -> list[int]:
    return executor.run_blocking(lambda tx: [row[0] for row in tx.connection.execute("SELECT value FROM kept")])


def refuse(_: Transaction) -> None:
    raise RunNotFound("no such run")


async def together(executor: Executor, commits: Commits, *operations: object) -> list[object]:
    """Hands in operations while the thread is busy, so that they are in one group."""
    blocked = asyncio.ensure_future(executor.run(commits.block))
    await asyncio.to_thread(commits.busy.wait, 10)
    waiting = [asyncio.ensure_future(executor.run(operation)) for operation in operations]  # type: ignore[arg-type]
    await asyncio.sleep(0)
    commits.free.set()
    await blocked
    return await asyncio.gather(*waiting, return_exceptions=True)


def test_what_waits_is_committed_once(executor: Executor, commits: Commits) -> None:
    assert asyncio.run(together(executor, commits, *(keep(n) for n in range(100)))) == list(range(100))
    assert commits.count == 1
    assert kept(executor) == list(range(100))


def test_a_bad_operation_fails_alone(executor: Executor, commits: Commits) -> None:
    broken = keep(2, ValueError("broken"))
    one, two, three, again = asyncio.run(together(executor, commits, keep(1), broken, keep(3), keep(1)))
    assert (one, three) == (1, 3)
    assert isinstance(two, ValueError)
    assert isinstance(again, StoreError) and isinstance(again.__cause__, sqlite3.IntegrityError)
    assert kept(executor) == [1, 3]


def test_one_that_refuses_before_it_writes_undoes_nothing(executor: Executor, commits: Commits) -> None:
    one, two, three = asyncio.run(together(executor, commits, keep(1), refuse, keep(3)))
    assert (one, three) == (1, 3) and isinstance(two, RunNotFound)
    assert commits.count == 1


def test_a_cancelled_caller_leaves_the_thread_alone(executor: Executor, commits: Commits) -> None:
    async def give_up() -> None:
        blocked = asyncio.ensure_future(executor.run(commits.block))
        waiting = asyncio.ensure_future(executor.run(keep(1)))
        await asyncio.to_thread(commits.busy.wait, 10)
        waiting.cancel()
        commits.free.set()
        await blocked
        assert await executor.run(keep(2)) == 2

    asyncio.run(give_up())
    assert kept(executor) == [1, 2]


def test_a_loop_that_closed_meanwhile_leaves_the_thread_alone(executor: Executor, commits: Commits) -> None:
    async def leave() -> None:
        asyncio.ensure_future(executor.run(commits.block))  # noqa: RUF006
        await asyncio.to_thread(commits.busy.wait, 10)

    asyncio.run(leave())
    commits.free.set()
    assert asyncio.run(executor.run(keep(1))) == 1


def test_a_closed_executor_refuses(executor: Executor) -> None:
    executor.close()
    with pytest.raises(StoreError, match="closed"):
        executor.run_blocking(keep(1))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_told_to_open_its_own(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    with pytest.raises(StoreError, match="fork"):
        executor.run_blocking(keep(1))
    monkeypatch.undo()
