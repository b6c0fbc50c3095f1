"""Stores on PostgreSQL that can't be used: every command says what to do, in a line, and ends with 1."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from servers.postgres import Postgres, PostgresServer, free_port, own_server, store_schema

from .conftest import Run
from .kit import Perdure, environment

COMMANDS = [
    ["runs", "list"],
    ["runs", "show", "x"],
    ["why", "x"],
    ["queues"],
    ["workers"],
    ["prune", "--age", "1d"],
]

APP = """
from perdure import App

app = App({url!r})

@app.workflow
async def greet(name: str) -> str:
    return f"hello {{name}}"
"""


@pytest.fixture
def store(postgres: Postgres, postgres_url: str) -> str:
    """The URL of a database with an empty store."""
    postgres.run(store_schema(postgres_url), url=postgres_url)
    return postgres_url


@pytest.fixture
def roles(postgres: Postgres, store: str) -> Iterator[str]:
    """The same URL for a user who may do nothing; its password is `right`."""
    postgres.run("CREATE ROLE passworded")
    postgres.run("CREATE ROLE ann LOGIN PASSWORD 'right' IN ROLE passworded")
    yield store.replace("postgres@", "ann:right@")
    postgres.run("DROP OWNED BY ann", url=store)
    postgres.run("DROP ROLE ann")
    postgres.run("DROP ROLE passworded")


def refused(perdure: Run, folder: Path, url: str, *says: str, diagnosed: bool = False) -> None:
    """All commands that need a store say this; `doctor` as a diagnosis beside others, if it could look."""
    (folder / "app.py").write_text(APP.format(url=url))
    commands = [[*command, "--url", url] for command in COMMANDS]
    if diagnosed:
        result = perdure("doctor", "--url", url, "--json")
        assert result.exit_code == 1, result.output
        found = json.loads(result.stdout)
        assert len(found) > 8 and found[1]["what"].startswith("nothing between")
        for words in says:
            assert any(words in each["what"] and each["severity"] == "problem" for each in found), found
    else:
        commands.append(["doctor", "--url", url])
    commands += [["start", "app", "greet", '"ada"'], ["worker", "app"], ["worker", "app", "--processes", "2"]]
    for command in commands:
        result = perdure(*command)
        assert result.exit_code == 1, (command, result.output)
        for words in says:
            assert words in result.stderr, (command, result.stderr)
        assert "Traceback" not in result.output
        assert ":right@" not in result.output and "wrong" not in result.output
        sys.modules.pop("app", None)


def test_a_wrong_password(perdure: Run, folder: Path, roles: str) -> None:
    refused(perdure, folder, roles.replace("right", "wrong"), "refused the password: correct it in the URL")


def test_a_user_whom_the_server_does_not_know(perdure: Run, folder: Path, store: str) -> None:
    refused(perdure, folder, store.replace("postgres@", "nobody@"), "does not let this user in")


def test_a_database_that_is_not_there(perdure: Run, folder: Path, postgres: Postgres) -> None:
    url = postgres.url.removesuffix("postgres") + "nowhere"
    refused(perdure, folder, url, "has no such database: make it (createdb), or correct the URL")


def test_a_schema_that_is_not_there(perdure: Run, folder: Path, store: str) -> None:
    refused(
        perdure, folder, f"{store}?schema=elsewhere", "in its schema 'elsewhere': run `perdure migrate`", diagnosed=True
    )


def test_a_user_without_permissions(perdure: Run, folder: Path, roles: str) -> None:
    says = "does not permit that to this user: let the owner of schema 'perdure' grant it"
    refused(perdure, folder, roles, says, diagnosed=True)
    found = json.loads(perdure("doctor", "--url", roles, "--json").stdout)
    [rights] = [each for each in found if "lacks rights" in each["what"]]
    assert rights["advice"] == "GRANT USAGE ON SCHEMA perdure TO it, and the others; or have it own the schema"


def test_a_user_who_may_read_only(perdure: Run, folder: Path, roles: str, postgres: Postgres, store: str) -> None:
    postgres.run("GRANT USAGE ON SCHEMA perdure TO ann", url=store)
    postgres.run("GRANT SELECT ON ALL TABLES IN SCHEMA perdure TO ann", url=store)
    assert perdure("runs", "list", "--url", roles).exit_code == 0
    (folder / "app.py").write_text(APP.format(url=roles))
    says = "does not permit that to this user", "can't be worked on by this user, who lacks INSERT ON perdure."
    for command, words in zip((["start", "app", "greet", '"ada"'], ["worker", "app"]), says, strict=True):
        result = perdure(*command)
        assert result.exit_code == 1
        assert words in result.stderr
        assert "Traceback" not in result.output
        sys.modules.pop("app", None)


def test_a_schema_made_by_a_newer_version(perdure: Run, folder: Path, postgres: Postgres, store: str) -> None:
    postgres.run("INSERT INTO perdure.migration (version, name, oldest) VALUES (99, '0099_later', 99)", url=store)
    says = ("has version 99 of its schema 'perdure', made by a newer Perdure", "upgrade it")
    refused(perdure, folder, store, *says, diagnosed=True)
    result = perdure("migrate", "--url", store)
    assert result.exit_code == 1
    assert says[0] in result.stderr


def test_a_server_that_is_too_old(perdure: Run, folder: Path, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.stores.postgres.connect._OLDEST", 99)
    refused(perdure, folder, store, "which is too old: Perdure needs 99 or newer")


def test_no_server(perdure: Run, folder: Path) -> None:
    refused(perdure, folder, f"postgresql://postgres@127.0.0.1:{free_port()}/shop", "can't be reached")


def test_an_option_that_there_is_not(perdure: Run, folder: Path, store: str) -> None:
    result = perdure("runs", "list", "--url", f"{store}?shema=x")
    assert result.exit_code == 1
    assert "has the unknown option 'shema'; did you mean 'schema'?" in result.stderr


@pytest.fixture
def own() -> Iterator[PostgresServer]:
    server = own_server()
    try:
        server.start()
        yield server
    finally:
        server.remove()


def test_a_read_replica(perdure: Run, folder: Path, own: PostgresServer) -> None:
    own.run(store_schema(own.url))
    own.stop()
    (own.data / "standby.signal").touch()
    own.start()
    refused(perdure, folder, own.url, "is a read replica, or recovers just now; the URL must lead to the primary")


def test_ten_processes_migrate_at_once(folder: Path, postgres_url: str, postgres: Postgres) -> None:
    command = [sys.executable, "-m", "perdure", "migrate", "--url", postgres_url]
    processes = [
        subprocess.Popen(
            command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for _ in range(10)
    ]
    said = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 10, said
    applied = [line for output in said for line in output.splitlines() if line.startswith("applied")]
    assert (
        len(applied)
        == len(set(applied))
        == postgres.run("SELECT count(*) FROM perdure.migration", url=postgres_url)[0][0]
    )


def test_a_worker_says_where_the_store_is_and_serves(folder: Path, store: str) -> None:
    (folder / "app.py").write_text(APP.format(url=store))
    with Perdure(folder, "worker", "app") as worker:
        worker.says("greet")
        result = subprocess.run(
            [sys.executable, "-m", "perdure", "start", "app", "greet", '"ada"', "--wait"],
            cwd=folder, env=environment(), capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        assert "hello ada" in result.stdout
