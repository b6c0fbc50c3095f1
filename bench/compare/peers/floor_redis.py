"""The floor of Redis: redis-py with hiredis, one script for each call."""

from __future__ import annotations

import redis.asyncio
from floor import Floor
from protocol import main

_INSERT = """
local last = redis.call('INCRBY', 'serial', #ARGV)
local ids = {}
for n, payload in ipairs(ARGV) do
  ids[n] = last - #ARGV + n
  redis.call('HSET', 'run:' .. ids[n], 'state', 'ready', 'payload', payload)
end
redis.call('RPUSH', 'ready', unpack(ids))
"""
_EXCHANGE = """
local token, slots, now = ARGV[1], tonumber(ARGV[2]), redis.call('TIME')
for n = 3, #ARGV, 2 do
  local key = 'run:' .. ARGV[n]
  if redis.call('HGET', key, 'token') == token then
    redis.call('HSET', key, 'state', 'done', 'result', ARGV[n + 1])
    redis.call('HDEL', key, 'token')
    redis.call('ZREM', 'leases', ARGV[n])
  end
end
if slots == 0 then return {} end
local ids = redis.call('LPOP', 'ready', slots)
local claims = {}
for _, id in ipairs(ids or {}) do
  redis.call('HSET', 'run:' .. id, 'state', 'running', 'token', token)
  redis.call('ZADD', 'leases', now[1], id)
  claims[#claims + 1] = id
  claims[#claims + 1] = redis.call('HGET', 'run:' .. id, 'payload')
end
return claims
"""
_TOKEN = "17"


class FloorRedis(Floor):
    """A list of what is ready, a hash for each run and one for its checkpoints."""

    packages = ("redis", "hiredis", "uvloop")

    async def open(self) -> None:
        self._redis = redis.asyncio.from_url(self.url, decode_responses=True)
        self._insert = self._redis.register_script(_INSERT)
        self._exchange = self._redis.register_script(_EXCHANGE)

    async def close(self) -> None:
        await self._redis.aclose()

    async def insert(self, payloads: list[str]) -> None:
        await self._insert(args=payloads)

    async def exchange(self, settled: list[tuple[str, str]], slots: int) -> list[tuple[str, str]]:
        pairs = [each for pair in settled for each in pair]
        claims = await self._exchange(args=[_TOKEN, slots, *pairs])
        return list(zip(claims[::2], claims[1::2], strict=True))

    async def save(self, claims: list[tuple[str, str]], step: str, body: str) -> None:
        async with self._redis.pipeline(transaction=False) as pipe:
            for run, _ in claims:
                pipe.hset(f"steps:{run}", step, body)
            await pipe.execute()


if __name__ == "__main__":
    main(FloorRedis)
