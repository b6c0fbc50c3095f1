"""Connections that nobody wants any more while they are made."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from perdure.stores.postgres.connect import connect
from perdure.stores.postgres.url import parse_url
from servers.postgres import Postgres

pytestmark = pytest.mark.anyio


async def test_one_that_is_cut_off_at_any_turn_leaves_nothing_behind(postgres: Postgres) -> None:
    unseen: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unseen.append(context))
    location = parse_url(postgres.url)
    gc.collect()
    gc.freeze()  # what was there before need not be looked at each time
    for turns in range(1, 40):
        connecting = asyncio.ensure_future(connect(location))
        for _ in range(turns):
            await asyncio.sleep(0)
        connecting.cancel()
        await asyncio.wait([connecting])
        if not connecting.cancelled():  # It was quicker.
            connecting.result().terminate()
        del connecting
        gc.collect()
    gc.unfreeze()
    assert unseen == []
