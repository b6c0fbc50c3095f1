"""The servers that other tests rely on."""

from __future__ import annotations

import psycopg
import pytest

from perdure.stores.redis.url import parse_url
from servers import redis
from servers.postgres import Postgres, installed, own_server


def test_a_database_is_empty_and_of_its_own(postgres: Postgres, postgres_url: str) -> None:
    postgres.run("CREATE TABLE here ()", url=postgres_url)
    other = postgres.database()
    assert postgres.run("SELECT to_regclass('here')", url=other) == [(None,)]
    postgres.drop(other)
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        postgres.run("SELECT 1", url=other)


def test_a_copy_has_what_the_first_one_was_filled_with(postgres: Postgres) -> None:
    def fill(url: str) -> None:
        postgres.run("CREATE TABLE filled ()", url=url)

    urls = [postgres.copy("filled", fill) for _ in range(2)]
    for url in urls:
        assert postgres.run("SELECT count(*) FROM filled", url=url) == [(0,)]
        postgres.drop(url)


@pytest.mark.parametrize("version", installed())
def test_a_server_keeps_what_was_committed_when_it_is_killed(version: str) -> None:
    server = own_server(version)
    try:
        server.start()
        assert server.run("SHOW server_version")[0][0].startswith(version)
        server.run("CREATE TABLE kept AS SELECT 1 AS one")
        server.kill9()
        with pytest.raises(psycopg.OperationalError):
            server.run("SELECT 1")
        server.start()
        assert server.run("SELECT one FROM kept", url=server.socket_url) == [(1,)]
        server.restart()
        assert server.run("SELECT one FROM kept") == [(1,)]
    finally:
        server.remove()
    assert not server.directory.exists()


@pytest.mark.parametrize("kind", redis.installed())
def test_a_durable_redis_keeps_what_was_written_when_it_is_killed(kind: str) -> None:
    with redis.own_server(kind=kind, durable=True) as server:
        server.run("SET", "kept", 1)
        server.kill9()
        with pytest.raises(OSError, match="refused"):
            server.run("PING")
        server.start()
        assert server.run("GET", "kept") == b"1"
        server.restart()
        assert server.run("GET", "kept") == b"1"
    assert not server.directory.exists()


def test_a_namespace_is_empty_and_of_its_own() -> None:
    shared = redis.redis()
    here, there = shared.namespace(), shared.namespace()
    shared.run("SET", parse_url(here).prefixes[0] + b":x", 1)
    assert len(shared.keys(here)) == 1
    assert shared.keys(there) == []
    shared.drop(here)
    assert shared.keys(here) == []
