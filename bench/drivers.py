"""What a call costs with each PostgreSQL driver: round trip (median) and processor time of the client.

    PYTHONPATH=tests python bench/drivers.py

The calls are of the kind that the store makes: one function, parallel arrays, rows with texts.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

import asyncpg
import psycopg
import uvloop

from servers.postgres import own_server

ROUNDS, CALLS = 9, 300
SCHEMA = """
CREATE UNLOGGED TABLE bulk (id text, body text, at bigint);
CREATE FUNCTION tiny(n bigint) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RETURN n; END $$;
CREATE FUNCTION settle(refs bigint[], bodies text[]) RETURNS TABLE (ref bigint, body text) LANGUAGE plpgsql AS $$
BEGIN RETURN QUERY SELECT * FROM unnest(refs, bodies); END $$;
"""
TINY, SETTLE = "SELECT tiny({0})", "SELECT * FROM settle({0}, {1})"
BULK = "INSERT INTO bulk SELECT * FROM unnest({0}::text[], {1}::text[], {2}::bigint[])"
SETTLES = ([(1 << 40) + n for n in range(50)], ['{"text": "' + "x" * 300 + '"}' for _ in range(50)])
ROWS = ([f"run-{n:040}" for n in range(1000)], ["y" * 200 for _ in range(1000)], list(range(1000)))

CASES = [("tiny", TINY, (7,), CALLS), ("50 settles", SETTLE, SETTLES, CALLS), ("1000 rows", BULK, ROWS, CALLS // 10)]
Call = Callable[[str, tuple[object, ...]], Awaitable[object]]


async def measure(call: Call, statement: str, values: tuple[object, ...], calls: int) -> tuple[float, float]:
    """Median of the round trip and mean of the processor time, in microseconds."""
    trips: list[float] = []
    await call(statement, values)
    begin = time.process_time()
    for _ in range(calls):
        start = time.perf_counter()
        await call(statement, values)
        trips.append(time.perf_counter() - start)
    return statistics.median(trips) * 1e6, (time.process_time() - begin) / calls * 1e6


async def compare(url: str, results: dict[tuple[str, str], list[tuple[float, float]]], loop: str) -> None:
    prepared = await asyncpg.connect(url)
    plain = await asyncpg.connect(url, statement_cache_size=0)
    modern = await psycopg.AsyncConnection.connect(url, autocommit=True, prepare_threshold=0)
    dollars = ("$1", "$2", "$3")

    async def by_psycopg(statement: str, values: tuple[object, ...]) -> object:
        cursor = await modern.cursor(binary=True).execute(statement.format("%b", "%b", "%b").encode(), values)
        return await cursor.fetchall() if cursor.description else None

    drivers: dict[str, Call] = {
        "asyncpg": lambda statement, values: prepared.fetch(statement.format(*dollars), *values),
        "asyncpg, no statement cache": lambda statement, values: plain.fetch(statement.format(*dollars), *values),
        "psycopg 3 (C), prepared, binary": by_psycopg,
    }
    for _ in range(ROUNDS):
        for name, call in drivers.items():
            for case, statement, values, calls in CASES:
                found = await measure(call, statement, values, calls)
                results.setdefault((f"{name}, {loop}", case), []).append(found)
    await prepared.close()
    await plain.close()
    await modern.close()


def main() -> None:
    results: dict[tuple[str, str], list[tuple[float, float]]] = {}
    server = own_server(durable=True)
    try:
        server.start()
        for statement in SCHEMA.split(";\n"):
            if statement.strip():
                server.run(statement)
        asyncio.run(compare(server.url, results, "asyncio"))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(compare(server.url, results, "uvloop"))
    finally:
        server.remove()
    names = list(dict.fromkeys(name for name, _ in results))
    print("| driver |", " | ".join(case for case, *_ in CASES), "|")
    print("|---|" + "---|" * len(CASES))
    for name in names:
        cells = (results[name, case] for case, *_ in CASES)
        texts = (f"{statistics.median(t for t, _ in c):.0f} / {statistics.median(p for _, p in c):.0f}" for c in cells)
        print(f"| {name} |", " | ".join(texts), "|")


if __name__ == "__main__":
    main()
