"""Others who hold locks in a database, and those who wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import asyncpg

from servers.postgres import Postgres

PATIENCE = 20
"""Seconds after which a test gives up."""


@asynccontextmanager
async def connection(url: str) -> AsyncGenerator[asyncpg.Connection[asyncpg.Record]]:
    """A connection of somebody else's; what is open on it at the end is rolled back."""
    opened = await asyncpg.connect(url, command_timeout=PATIENCE)
    try:
        yield opened
    finally:
        opened.terminate()


async def waiting(postgres: Postgres, url: str, number: int = 1) -> None:
    """Until so many wait for locks in a database."""
    database = url.rpartition("/")[2]
    asked = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{database}' AND wait_event_type = 'Lock'"
    async with asyncio.timeout(PATIENCE):
        while postgres.run(asked) != [(number,)]:
            await asyncio.sleep(0.01)
