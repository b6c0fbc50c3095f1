"""The floor of PostgreSQL: asyncpg, one statement for each call."""

from __future__ import annotations

import asyncpg
from floor import Floor
from protocol import main

_TABLES = """
CREATE TABLE run (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    state smallint NOT NULL DEFAULT 0, token bigint NOT NULL DEFAULT 0, payload text NOT NULL, result text
) WITH (fillfactor = 70);
CREATE INDEX ON run (id) WHERE state = 0;
CREATE TABLE checkpoint (run bigint, step text, body text, PRIMARY KEY (run, step));
"""
_INSERT = "INSERT INTO run (payload) SELECT unnest($1::text[])"
_EXCHANGE = """
WITH done AS (
    UPDATE run SET state = 2, result = s.result FROM unnest($1::bigint[], $2::text[]) AS s (id, result)
    WHERE run.id = s.id AND run.state = 1 AND run.token = $3
), free AS MATERIALIZED (
    SELECT id FROM run WHERE state = 0 ORDER BY id LIMIT $4 FOR UPDATE SKIP LOCKED
)
UPDATE run SET state = 1, token = $3 WHERE id = ANY (ARRAY(SELECT id FROM free)) RETURNING id::text, payload
"""
_SAVE = """
INSERT INTO checkpoint (run, step, body)
SELECT id, $2, $3 FROM run WHERE id = ANY ($1::bigint[]) AND state = 1 AND token = $4
"""
_TOKEN = 17


class FloorPostgres(Floor):
    """One narrow table, an index of what is ready, and one of checkpoints."""

    packages = ("asyncpg", "uvloop")

    async def setup(self) -> None:
        await self.open()
        await self._connection.execute(_TABLES)
        await self.close()

    async def open(self) -> None:
        self._connection = await asyncpg.connect(self.url)

    async def close(self) -> None:
        await self._connection.close()

    async def insert(self, payloads: list[str]) -> None:
        await self._connection.execute(_INSERT, payloads)

    async def exchange(self, settled: list[tuple[str, str]], slots: int) -> list[tuple[str, str]]:
        ids, results = [int(run) for run, _ in settled], [result for _, result in settled]
        return await self._connection.fetch(_EXCHANGE, ids, results, _TOKEN, slots)

    async def save(self, claims: list[tuple[str, str]], step: str, body: str) -> None:
        await self._connection.execute(_SAVE, [int(run) for run, _ in claims], step, body, _TOKEN)


if __name__ == "__main__":
    main(FloorPostgres)
