"""Listening to what the server says of the plans of all statements, also of those within functions."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec import Struct

from perdure.stores.postgres import pool
from servers.postgres import Postgres

SETTINGS = {
    "session_preload_libraries": "auto_explain",
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_nested_statements": "on",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_timing": "off",
    "auto_explain.log_buffers": "on",
    "auto_explain.log_format": "json",
    "auto_explain.log_level": "notice",
}


class Plan(Struct):
    """How a statement was done."""

    query: str
    root: dict[str, Any]

    def nodes(self) -> Iterator[dict[str, Any]]:
        """All parts of it."""
        waiting = [self.root]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.get("Plans", [])

    @property
    def pages(self) -> int:
        """How many pages it looked at."""
        return int(self.root["Shared Hit Blocks"]) + int(self.root["Shared Read Blocks"])


class Listener:
    """The plans of what the store does."""

    def __init__(self) -> None:
        self._plans: list[Plan] = []

    def hear(self, _: object, message: Any) -> None:
        _, found, plan = message.message.partition("plan:\n")
        if found:
            told = json.loads(plan)
            self._plans.append(Plan(told["Query Text"], told["Plan"]))

    @contextmanager
    def listening(self) -> Generator[list[Plan]]:
        """The plans of the statements inside, the outermost last."""
        self._plans.clear()
        yield self._plans


def explain_all(postgres: Postgres, url: str) -> None:
    """Has each session of a database tell its plans."""
    name = url.rpartition("/")[2]
    for setting, value in SETTINGS.items():
        postgres.run(f"ALTER DATABASE {name} SET {setting} = '{value}'")


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Listener:
    """Hears what all connections of stores are told."""
    listener = Listener()
    connect, find_way = pool.connect, pool.find_way

    async def connect_and_listen(*args: Any, **options: Any) -> Any:
        connection = await connect(*args, **options)
        connection.add_log_listener(listener.hear)
        return connection

    async def find_way_and_listen(*args: Any, **options: Any) -> Any:
        way, connection = await find_way(*args, **options)
        connection.add_log_listener(listener.hear)
        return way, connection

    monkeypatch.setattr(pool, "connect", connect_and_listen)
    monkeypatch.setattr(pool, "find_way", find_way_and_listen)
    return listener
