"""How long the scripts of a Redis store are, in commands: their time depends on the machine, and these don't."""

from __future__ import annotations

import re
from collections.abc import Sized
from typing import Any

import anyio
import pytest

from perdure.stores.redis.connect import Redis
from perdure.stores.redis.scripts import Script

_CALLS = re.compile(rb"cmdstat_([a-z|]+):calls=(\d+)")


class Meter:
    """Counts the commands of each call, from now on, and the bytes of its reply; `most` and `bytes` are how many of
    them one may have."""

    def __init__(self, most: int, monkeypatch: pytest.MonkeyPatch, *, bytes: int = 1 << 30) -> None:
        self.most = most
        self.bytes = bytes
        self.calls: list[tuple[int, str]] = []
        self.replies: list[tuple[int, str]] = []
        call, turn = Redis.call, anyio.Lock()

        async def counted(redis: Redis, script: Script, *args: Any, **options: Any) -> Any:
            async with turn:  # Calls may overlap.
                before = await _total(redis)
                try:
                    reply = await call(redis, script, *args, **options)
                    self.replies.append((len(reply) if isinstance(reply, Sized) else 0, script.name))
                    return reply
                finally:
                    self.calls.append((await _total(redis) - before, script.name))

        monkeypatch.setattr(Redis, "call", counted)

    def check(self, most: int | None = None, *, bytes: int | None = None) -> None:
        """Raises when a call since the last look has had more than may be, or there was none."""
        longest, largest = max(self.calls), max(self.replies)
        self.calls, self.replies = [], []
        assert largest[0] <= (bytes or self.bytes), f"{largest[1]} brings {largest[0]} bytes with one call"
        assert longest[0] <= (most or self.most), f"{longest[1]} runs {longest[0]} commands in one call"


async def _total(redis: Redis) -> int:
    said = bytes(await redis.run("INFO", "commandstats"))
    return sum(int(calls) for name, calls in _CALLS.findall(said) if name not in (b"info", b"fcall"))
