from __future__ import annotations

import asyncio
import os
import sqlite3
from pathlib import Path

import pytest

from perdure.errors import SchemaTooNew, StoreError, StoreUnavailable, StoreUrlError
from perdure.stores import open_store
from perdure.stores.sqlite.connect import parse_url
from perdure.stores.sqlite.errors import translate
from perdure.stores.sqlite.filesystem import network_filesystem


def test_paths_and_options_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_url("sqlite:///shop.db").path == str(tmp_path / "shop.db")
    assert parse_url("sqlite:////var/lib/my%20shop.db").path == "/var/lib/my shop.db"
    assert parse_url("sqlite://").path is None
    assert parse_url("sqlite:///:memory:").path is None
    location = parse_url("sqlite:///a.db?synchronous=normal&busy_timeout=50")
    assert (location.synchronous, location.busy_timeout) == ("normal", 50)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("shop.db", "is not a store URL"),
        ("sqlit:///shop.db", "did you mean 'sqlite'"),
        ("shop.db", "'postgresql://host/name' or 'redis://host'"),
        ("mysql://host/db", "there are sqlite, postgresql, redis, valkey"),
        ("reds://host", "did you mean 'redis'"),
        ("sqlite://shop.db", "'sqlite:///shop.db'"),
        ("sqlite:///", "names no file"),
        ("sqlite:///a.db?syncronous=full", "did you mean 'synchronous'"),
        ("sqlite:///a.db?colour=red", "there are busy_timeout, synchronous"),
        ("sqlite:///a.db?synchronous=off", "there are full, normal"),
        ("sqlite:///a.db?busy_timeout=soon", "milliseconds"),
        ("sqlite:///a.db?busy_timeout=-1", "milliseconds"),
        ("sqlite:///a.db?busy_timeout=1&busy_timeout=2", "twice"),
    ],
)
def test_a_url_that_cannot_be_says_what_can(url: str, said: str) -> None:
    with pytest.raises(StoreUrlError) as raised:
        open_store(url)
    assert said in str(raised.value)


MOUNTS = """\
/dev/vda / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
/dev/vdb /home/ada ext4 rw 0 0
//nas/share /mnt/my\\040share cifs rw 0 0
host: /mnt/ssh fuse.sshfs rw 0 0
tmpfs /over tmpfs rw 0 0
nas:/over /over nfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/a.db", None),
        ("/home/bob/a.db", "nfs4"),
        ("/home/ada/a.db", None),
        ("/homework/a.db", None),
        ("/mnt/my share/a.db", "cifs"),
        ("/mnt/ssh/a.db", "fuse.sshfs"),
        ("/over/a.db", "nfs"),
    ],
)
def test_network_file_systems_are_told_by_the_mounts(path: str, kind: str | None) -> None:
    assert network_filesystem(MOUNTS, path) == kind


def test_no_mounts_mean_no_network() -> None:
    assert network_filesystem("", "/a.db") is None


def refused(url: str) -> str:
    store = open_store(url)
    with pytest.raises(StoreError) as raised:
        asyncio.run(store.open())
    return str(raised.value)


def test_a_path_that_cannot_be_says_what_to_do(tmp_path: Path) -> None:
    assert "create it" in refused(f"sqlite:///{tmp_path}/missing/a.db")
    assert "is a directory" in refused(f"sqlite:///{tmp_path}")
    for name in ("x" * 300, "\ud800.db"):
        assert "give it another path" in refused(f"sqlite:///{tmp_path}/{name}")
    (tmp_path / "text.db").write_text("no database, but a text that is long enough to be taken for one" * 20)
    assert "is not an SQLite database" in refused(f"sqlite:///{tmp_path}/text.db")


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() == 0, reason="root may write everywhere")
def test_a_read_only_file_says_so(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    file.touch(mode=0o400)
    assert "read-only" in refused(f"sqlite:///{file}")


def test_a_file_of_another_application_is_left_alone(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "a.db")
    connection.execute("PRAGMA user_version = 7")
    connection.close()
    assert "another application" in refused(f"sqlite:///{tmp_path}/a.db")


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    async def make() -> None:
        store = open_store(f"sqlite:///{tmp_path}/a.db")
        await store.open()
        await store.close()

    asyncio.run(make())
    connection = sqlite3.connect(tmp_path / "a.db")
    connection.execute("PRAGMA user_version = 999")
    connection.close()
    with pytest.raises(SchemaTooNew, match="upgrade"):
        asyncio.run(make())


def test_a_locked_file_is_unavailable_for_now(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    one, other = (sqlite3.connect(path, timeout=0, isolation_level=None) for _ in range(2))
    one.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError) as raised:
        other.execute("BEGIN IMMEDIATE")
    translated = translate(raised.value, "a.db")
    assert isinstance(translated, StoreUnavailable) and "locked" in str(translated)
    one.close()
    other.close()
