"""The floor of SQLite: the standard library's module, one transaction for each call."""

from __future__ import annotations

import sqlite3

from floor import Floor
from protocol import main

_TABLES = """
CREATE TABLE run (
    id INTEGER PRIMARY KEY, state INTEGER NOT NULL DEFAULT 0, token INTEGER NOT NULL DEFAULT 0, payload TEXT NOT NULL,
    result TEXT
);
CREATE INDEX ready ON run (id) WHERE state = 0;
CREATE TABLE checkpoint (run INTEGER, step TEXT, body TEXT, PRIMARY KEY (run, step)) WITHOUT ROWID;
"""
_SETTLE = "UPDATE run SET state = 2, result = ? WHERE id = ? AND state = 1 AND token = ?"
_CLAIM = """
UPDATE run SET state = 1, token = ? WHERE id IN (SELECT id FROM run WHERE state = 0 ORDER BY id LIMIT ?)
RETURNING CAST(id AS TEXT), payload
"""
_SAVE = "INSERT INTO checkpoint SELECT id, ?, ? FROM run WHERE id = ? AND state = 1 AND token = ?"
_TOKEN = 17


class FloorSqlite(Floor):
    """WAL, and a commit waits for the disk."""

    packages = ("uvloop",)
    settings = {"durability": "WAL, synchronous=FULL", "sqlite": sqlite3.sqlite_version}

    async def setup(self) -> None:
        await self.open()
        self._connection.executescript(_TABLES)
        await self.close()

    async def open(self) -> None:
        self._connection = sqlite3.connect(self.url.removeprefix("sqlite:///"), isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")

    async def close(self) -> None:
        self._connection.close()

    async def insert(self, payloads: list[str]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany("INSERT INTO run (payload) VALUES (?)", [(each,) for each in payloads])
        self._connection.execute("COMMIT")

    async def exchange(self, settled: list[tuple[str, str]], slots: int) -> list[tuple[str, str]]:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(_SETTLE, [(result, int(run), _TOKEN) for run, result in settled])
        claims = self._connection.execute(_CLAIM, (_TOKEN, slots)).fetchall() if slots else []
        self._connection.execute("COMMIT")
        return claims

    async def save(self, claims: list[tuple[str, str]], step: str, body: str) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(_SAVE, [(step, body, int(run), _TOKEN) for run, _ in claims])
        self._connection.execute("COMMIT")


if __name__ == "__main__":
    main(FloorSqlite)
