"""How long the scripts of a Redis store are, in commands: their time depends on the machine, and these don't."""

from __future__ import annotations

import re
from typing import Any

import anyio
import pytest

from perdure.stores.redis.connect import Redis
from perdure.stores.redis.scripts import Script

_CALLS = re.compile(rb"cmdstat_([a-z|]+):calls=(\d+)")


class Meter:
    """Counts the commands of each call, from now on; `most` is how many one may have."""

    def __init__(self, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = most
        self.calls: list[tuple[int, str]] = []
        call, turn = Redis.call, anyio.Lock()

        async def counted(redis: Redis, script: Script, *args: Any, **options: Any) -> Any:
            async with turn:  # Calls may overlap.
                before = await _total(redis)
                try:
                    return await call(redis, script, *args, **options)
                finally:
                    self.calls.append((await _total(redis) - before, script.name))

        monkeypatch.setattr(Redis, "call", counted)

    def check(self, most: int | None = None) -> None:
        """Raises when a call since the last look has had more than may be, or there was none."""
        longest = max(self.calls)
        self.calls = []
        assert longest[0] <= (most or self.most), f"{longest[1]} runs {longest[0]} commands in one call"


async def _total(redis: Redis) -> int:
    said = bytes(await redis.run("INFO", "commandstats"))
    return sum(int(calls) for name, calls in _CALLS.findall(said) if name not in (b"info", b"fcall"))
