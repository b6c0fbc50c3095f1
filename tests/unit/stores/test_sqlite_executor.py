from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from perdure.errors import RunNotFound, StoreError, StoreUnavailable
from perdure.stores.base import Topic
from perdure.stores.sqlite.connect import Location, connect, parse_url
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


def exhausted(*_: object) -> None:
    raise OSError(errno.EMFILE, "Too many open files")


def telling(value: int):
    def operation(transaction: Transaction) -> int:
        transaction.tell.add(Topic.WORK)
        return keep(value)(transaction)

    return operation


@pytest.fixture
def file(tmp_path: Path) -> Location:
    location = parse_url(f"sqlite:///{tmp_path}/a.db")
    connection = connect(location)
    connection.execute("CREATE TABLE kept (value INTEGER PRIMARY KEY)")
    connection.close()
    return location


def test_wake_ups_that_fail_take_nothing_else_with_them(caplog: pytest.LogCaptureFixture) -> None:
    connection = connect(parse_url("sqlite://"))
    connection.execute("CREATE TABLE kept (value INTEGER PRIMARY KEY)")
    executor = Executor(connection, "test", begin="BEGIN IMMEDIATE", clock=None, after_commit=exhausted)
    assert [executor.run_blocking(telling(n)) for n in (1, 2)] == [1, 2]
    assert kept(executor) == [1, 2]
    assert "wake-ups of the store test were lost" in caplog.text
    executor.close()


class Ended(BaseException):
    """What no operation is expected to raise."""


def test_the_thread_survives_what_nobody_expects(executor: Executor, caplog: pytest.LogCaptureFixture) -> None:
    def end(transaction: Transaction) -> None:
        keep(1)(transaction)
        raise Ended

    with pytest.raises(StoreUnavailable, match="Ended"):
        executor.run_blocking(end)
    assert executor.run_blocking(keep(2)) == 2
    assert kept(executor) == [2]
    assert "did not expect" in caplog.text


def test_a_thread_that_ends_all_the_same_leaves_nobody_waiting(
    executor: Executor, commits: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def end() -> Sequence[BaseException | int]:
        blocked = asyncio.ensure_future(executor.run(commits.block))
        await asyncio.to_thread(commits.busy.wait, 10)
        waiting = asyncio.ensure_future(executor.run(keep(1)))
        await asyncio.sleep(0)
        monkeypatch.setattr(threading, "excepthook", lambda _: None)
        monkeypatch.setattr(executor, "_take", exhausted)
        commits.free.set()
        await blocked
        return await asyncio.gather(waiting, return_exceptions=True)

    [error] = asyncio.run(end())
    assert isinstance(error, StoreError)
    with pytest.raises(StoreError, match="closed"):
        executor.run_blocking(keep(2))


def waiting_for_the_lock(file: Location) -> tuple[Executor, threading.Event]:
    """An executor, and whether it has come to ask for a lock."""
    connection, asks = connect(file), threading.Event()
    connection.set_trace_callback(lambda sql: asks.set() if sql == "BEGIN IMMEDIATE" else None)
    return Executor(connection, "test", begin="BEGIN IMMEDIATE", busy_timeout=60_000, clock=None), asks


def test_closing_does_not_wait_for_a_file_that_somebody_locks(file: Location) -> None:
    other = connect(file)
    other.execute("BEGIN IMMEDIATE")
    executor, asks = waiting_for_the_lock(file)
    failed: list[BaseException] = []

    def write() -> None:
        try:
            executor.run_blocking(keep(1))
        except StoreError as error:
            failed.append(error)

    writing = threading.Thread(target=write)
    writing.start()
    assert asks.wait(10)
    start = time.monotonic()
    executor.close()
    assert time.monotonic() - start < 10
    writing.join(10)
    assert [type(error) for error in failed] == [StoreUnavailable]
    other.close()


def test_closing_waits_for_a_lock_that_is_soon_free(file: Location) -> None:
    other = connect(file)
    other.execute("BEGIN IMMEDIATE")
    executor, asks = waiting_for_the_lock(file)

    async def write() -> int:
        writing = asyncio.ensure_future(executor.run(keep(1)))
        assert await asyncio.to_thread(asks.wait, 10)
        executor.end()  # which is how closing begins
        other.execute("COMMIT")
        await asyncio.to_thread(executor.close)
        return await writing

    assert asyncio.run(write()) == 1
    other.close()


def test_closing_does_not_wait_for_an_operation_without_end(executor: Executor, commits: Commits) -> None:
    running = threading.Thread(target=executor.run_blocking, args=(commits.block,))
    running.start()
    commits.busy.wait(10)
    start = time.monotonic()
    executor.close()
    assert 1 < time.monotonic() - start < 8
    commits.free.set()
    running.join(10)
