"""A worker of a user's whose steps commit their effect with their checkpoint, and which is killed at a given place.

`committing.py URL RUN PLACE` serves until the run has ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import asyncpg
import psycopg

from perdure import App, step

PLACES = ("after the effect", "before the commit", "after the commit", "after the step")


def serve(url: str, run_id: str, place: str) -> None:
    """Executes what there is, until one run has ended."""
    app = App(url)

    def passed(here: str) -> None:
        if here == place:
            os.kill(os.getpid(), signal.SIGKILL)

    @asynccontextmanager
    async def begin() -> AsyncGenerator[asyncpg.Connection[Any]]:
        connection: asyncpg.Connection[Any] = await asyncpg.connect(url)
        try:
            async with connection.transaction():
                yield connection
                passed("before the commit")
            passed("after the commit")
        finally:
            await connection.close()

    @contextmanager
    def begin_in_thread() -> Generator[psycopg.Connection[Any]]:
        with psycopg.connect(url) as connection:
            yield connection
            passed("before the commit")
        passed("after the commit")

    @step(transaction=begin)
    async def pay(connection: asyncpg.Connection[Any], cents: int) -> int:
        await connection.execute("INSERT INTO effect VALUES ($1)", cents)
        passed("after the effect")
        return cents * 2

    @step(transaction=begin_in_thread)
    def pay_in_thread(connection: psycopg.Connection[Any], cents: int) -> int:
        connection.execute("INSERT INTO effect VALUES (%s)", (cents,))
        passed("after the effect")
        return cents * 2

    @app.workflow
    async def buy(cents: int, thread: bool) -> int:
        paid = await (pay_in_thread(cents) if thread else pay(cents))
        passed("after the step")
        return paid

    async def until_ended() -> None:
        async with app, app.worker(lease=1):
            await buy.get(run_id).result(30)

    asyncio.run(until_ended())


if __name__ == "__main__":
    serve(*sys.argv[1:4])
