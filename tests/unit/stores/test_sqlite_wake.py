"""Wake-ups by sockets: what happens to those that die, fork, or can't be reached for a moment."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from perdure.errors import StoreError
from perdure.model import Start
from perdure.stores.base import Topic
from perdure.stores.sqlite import SqliteStore, parse_url, sockets
from perdure.stores.sqlite.wake import Remote

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs sockets in the file system")

T = TypeVar("T")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory for temporary files, with room for the names of sockets."""
    directory = tempfile.mkdtemp(prefix="t", dir="/tmp")
    monkeypatch.setattr(tempfile, "tempdir", directory)
    yield Path(directory)
    shutil.rmtree(directory)


def on_store(path: Path, work: Callable[[SqliteStore], Awaitable[T]]) -> T:
    async def run() -> T:
        store = SqliteStore(parse_url(f"sqlite:///{path}/a.db"))
        await store.open()
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


async def listeners(store: SqliteStore) -> list[str]:
    return await store._read(lambda tx: [row[0] for row in tx.connection.execute("SELECT path FROM listener")])


async def make(store: SqliteStore, *runs: str) -> None:
    for run in runs:
        await store.enqueue([Start(run, "w", "q", "1")])


def dead() -> int:
    """The number of a process that is gone."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def abandon(temporary: Path, pid: int, *names: str) -> Path:
    """What a process leaves behind that was killed."""
    directory = temporary / f"perdure-{pid}-abc"
    directory.mkdir()
    for name in names:
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        bound.bind(str(directory / name))
        bound.close()
    return directory


def test_without_descriptors_work_goes_on(temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async def work(store: SqliteStore) -> None:
        subscription = await store.subscribe(Topic.WORK, lambda: None)
        with monkeypatch.context() as patch:
            patch.setattr(socket, "socket", exhausted)
            await make(store, "a")
            await (await store.subscribe(Topic.WORK, lambda: None)).close()
        await make(store, "b")
        await subscription.close()

    on_store(tmp_path, work)


def test_without_room_for_sockets_others_of_the_process_are_woken(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(store: SqliteStore) -> None:
        woken = asyncio.Event()
        subscription = await store.subscribe(Topic.WORK, woken.set)
        await make(store, "a")
        async with asyncio.timeout(10):
            await woken.wait()
        await subscription.close()

    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "missing"))
    on_store(tmp_path, work)


def test_a_process_leaves_nothing_behind(temporary: Path, tmp_path: Path) -> None:
    async def work(store: SqliteStore) -> None:
        await (await store.subscribe(Topic.WORK, lambda: None)).close()
        subscription = await store.subscribe(Topic.ENDED, lambda: None)
        assert isinstance(subscription, Remote)
        asyncio.get_running_loop().remove_reader(subscription._receiver)
        subscription._receiver.close()
        assert [str(os.getpid()) in path.name for path in temporary.iterdir()] == [True]

    on_store(tmp_path, work)
    assert list(temporary.iterdir()) == []


def test_a_forked_child_leaves_its_parents_sockets_alone(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(store: SqliteStore) -> None:
        woken = asyncio.Event()
        subscription = await store.subscribe(Topic.WORK, woken.set)
        wakeups, parent = store._wakeups, os.getpid()
        assert wakeups is not None
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: parent + 1)
            await subscription.close()
            wakeups.close()
        assert len(await listeners(store)) == 1
        await make(store, "a")
        async with asyncio.timeout(10):
            await woken.wait()
        await subscription.close()

    on_store(tmp_path, work)


def test_a_listener_that_could_not_be_reached_comes_back(temporary: Path, tmp_path: Path) -> None:
    async def work(store: SqliteStore) -> None:
        woken = asyncio.Event()
        subscription = await store.subscribe(Topic.WORK, woken.set)
        assert isinstance(subscription, Remote)
        [path] = await listeners(store)
        await subscription.check()
        assert not woken.is_set()

        os.rename(path, path + "~")
        await make(store, "a", "b")
        assert await listeners(store) == []
        os.rename(path + "~", path)

        await subscription.check()
        assert woken.is_set()
        assert await listeners(store) == [path]
        woken.clear()
        await make(store, "c")
        async with asyncio.timeout(10):
            await woken.wait()
        await subscription.close()
        await subscription.check()
        assert await listeners(store) == []

    on_store(tmp_path, work)


def test_a_subscription_of_a_closed_store_checks_nothing(temporary: Path, tmp_path: Path) -> None:
    async def work() -> None:
        store = SqliteStore(parse_url(f"sqlite:///{tmp_path}/a.db"))
        await store.open()
        subscription = await store.subscribe(Topic.WORK, lambda: None)
        assert isinstance(subscription, Remote)
        await store.close()
        await subscription.check()
        await subscription.close()
        with pytest.raises(StoreError):
            await store.subscribe(Topic.WORK, lambda: None)

    asyncio.run(work())


def test_what_a_killed_process_left_is_removed_with_its_row(temporary: Path, tmp_path: Path) -> None:
    async def work(store: SqliteStore) -> None:
        subscription = await store.subscribe(Topic.WORK, lambda: None)
        directory = abandon(temporary, dead(), "s")
        row = {"path": str(directory / "s")}
        await store._write(lambda tx: tx.change("INSERT INTO listener VALUES (:path, 'work', 1)", row))
        await make(store, "a", "b")
        assert not directory.exists()
        assert len(await listeners(store)) == 1
        await subscription.close()

    on_store(tmp_path, work)


def test_what_is_no_socket_of_ours_is_not_removed(temporary: Path, tmp_path: Path) -> None:
    async def work(store: SqliteStore) -> None:
        other = temporary / "other"
        other.mkdir()
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        bound.bind(str(other / "s"))
        bound.close()
        (temporary / "perdure-1-a").mkdir()
        plain = temporary / "perdure-1-a" / "plain"
        plain.touch()
        for path in (other / "s", plain):
            row = {"path": str(path)}
            await store._write(lambda tx, row=row: tx.change("INSERT INTO listener VALUES (:path, 'work', 1)", row))
        await make(store, "a", "b")
        assert (other / "s").exists() and plain.exists()

    on_store(tmp_path, work)


def test_directories_of_processes_that_are_gone_are_swept(temporary: Path) -> None:
    gone, empty = abandon(temporary, dead(), "a", "b"), abandon(temporary, dead())
    alive = abandon(temporary, os.getpid(), "a")
    kept = temporary / "perdure-notes"
    kept.mkdir()
    (temporary / "perdure-1-file").touch()
    heard = abandon(temporary, dead())
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.bind(str(heard / "s"))
    sockets.sweep(str(temporary))
    assert (gone.exists(), empty.exists()) == (False, False)
    assert alive.exists() and kept.exists() and heard.exists()
    listening.close()
    sockets.sweep(str(temporary))
    assert not heard.exists()
    sockets.sweep(str(temporary / "missing"))


def test_a_sweep_is_bounded(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_REMOVED", 2)
    pid = dead()
    for number in range(3):
        (temporary / f"perdure-{pid}-{number}").mkdir()
    sockets.sweep(str(temporary))
    assert len(list(temporary.iterdir())) == 1


def test_closing_a_subscription_does_not_wait_for_a_file_that_somebody_locks(temporary: Path, tmp_path: Path) -> None:
    async def work(store: SqliteStore) -> None:
        subscription = await store.subscribe(Topic.WORK, lambda: None)
        writer = store._writer
        assert writer is not None
        other = SqliteStore(parse_url(f"sqlite:///{tmp_path}/a.db"))
        await other.open()
        other_writer = other._writer
        assert other_writer is not None
        other_writer._connection.execute("BEGIN IMMEDIATE")
        async with asyncio.timeout(5):
            await subscription.close()
            await store.close()
        other_writer._connection.execute("ROLLBACK")
        await other.close()

    on_store(tmp_path, work)
