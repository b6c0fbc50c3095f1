"""Room in the log of SQLite: it is made, and nothing is lost by it."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.stores.sqlite.connect import connect, parse_url
from perdure.stores.sqlite.log import LogRoom

_FULL = 16 << 20


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = connect(parse_url(f"sqlite:///{tmp_path}/a.db"))
    connection.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, body TEXT)")
    yield connection
    connection.close()


def commit(connection: sqlite3.Connection, room: LogRoom, size: int) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO t (body) VALUES (?)", ["x" * size])
    room.make()
    connection.execute("COMMIT")


def length(directory: Path) -> int:
    return (directory / "a.db-wal").stat().st_size


def rows(path: Path) -> int:
    with sqlite3.connect(path) as other:
        assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return other.execute("SELECT count(*) FROM t").fetchone()[0]


def test_a_log_that_is_written_much_gets_its_length_ahead_of_the_commits(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    room = LogRoom(f"{tmp_path}/a.db")
    for _ in range(48):
        commit(database, room, 80_000)
    assert length(tmp_path) >= _FULL
    written = length(tmp_path)
    commit(database, room, 80_000)
    assert length(tmp_path) == written
    assert rows(tmp_path / "a.db") == 49


def test_who_writes_little_makes_no_room(database: sqlite3.Connection, tmp_path: Path) -> None:
    room = LogRoom(f"{tmp_path}/a.db")
    for _ in range(64):
        commit(database, room, 10)
    assert length(tmp_path) < 1 << 20


def test_what_was_committed_before_a_crash_is_found_behind_which_there_is_room(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    room = LogRoom(f"{tmp_path}/a.db")
    for number in range(40):
        commit(database, room, 80_000)
        if number == 20:
            assert 1 << 20 < length(tmp_path) < _FULL  # in the middle of it
            crashed = tmp_path / "first"
            crashed.mkdir()
            for name in ("a.db", "a.db-wal"):
                shutil.copy(tmp_path / name, crashed / name)
            assert rows(crashed / "a.db") == 21
    crashed = tmp_path / "second"
    crashed.mkdir()
    for name in ("a.db", "a.db-wal"):
        shutil.copy(tmp_path / name, crashed / name)
    assert rows(crashed / "a.db") == 40


def test_two_that_make_room_at_once_lose_nothing_of_each_other(database: sqlite3.Connection, tmp_path: Path) -> None:
    other = connect(parse_url(f"sqlite:///{tmp_path}/a.db"))
    rooms = [(database, LogRoom(f"{tmp_path}/a.db")), (other, LogRoom(f"{tmp_path}/a.db"))]
    for number in range(120):
        connection, room = rooms[number % 2]
        commit(connection, room, 80_000)
    assert rows(tmp_path / "a.db") == 120
    assert length(tmp_path) < _FULL + (2 << 20)
    other.close()


def test_a_log_that_can_not_be_made_longer_is_left_as_it_is(
    database: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("perdure.stores.sqlite.log.os.write", full)
    room = LogRoom(f"{tmp_path}/a.db")
    for _ in range(40):
        commit(database, room, 80_000)
    assert rows(tmp_path / "a.db") == 40
