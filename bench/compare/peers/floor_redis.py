"""The floor of Redis: hiredis on a socket that blocks, one function for each call."""

from __future__ import annotations

import socket
from typing import Any
from urllib.parse import urlsplit

import hiredis
from floor import Floor
from protocol import main

_FUNCTIONS = """#!lua name=floor
redis.register_function('floor_insert', function(_, ARGV)
local last = redis.call('INCRBY', 'serial', #ARGV)
local ids = {}
for n, payload in ipairs(ARGV) do
  ids[n] = last - #ARGV + n
  redis.call('HSET', 'run:' .. ids[n], 'state', 'ready', 'payload', payload)
end
redis.call('RPUSH', 'ready', unpack(ids))
end)
redis.register_function('floor_exchange', function(_, ARGV)
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
end)
"""
_TOKEN = "17"


class FloorRedis(Floor):
    """A list of what is ready, a hash for each run and one for its checkpoints."""

    packages = ("hiredis", "uvloop")

    async def open(self) -> None:
        url = urlsplit(self.url)
        self._socket = socket.create_connection((url.hostname, url.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader(encoding="utf-8")
        self._run(("SELECT", url.path.lstrip("/") or "0"), ("FUNCTION", "LOAD", "REPLACE", _FUNCTIONS))

    async def close(self) -> None:
        self._socket.close()

    async def insert(self, payloads: list[str]) -> None:
        self._run(("FCALL", "floor_insert", "0", *payloads))

    async def exchange(self, settled: list[tuple[str, str]], slots: int) -> list[tuple[str, str]]:
        pairs = [each for pair in settled for each in pair]
        (claims,) = self._run(("FCALL", "floor_exchange", "0", _TOKEN, str(slots), *pairs))
        return list(zip(claims[::2], claims[1::2], strict=True))

    async def save(self, claims: list[tuple[str, str]], step: str, body: str) -> None:
        self._run(*(("HSET", f"steps:{run}", step, body) for run, _ in claims))

    def _run(self, *commands: tuple[str, ...]) -> list[Any]:
        """Sends commands together and returns their replies. It blocks: nothing else is to be done meanwhile."""
        self._socket.sendall(b"".join(map(hiredis.pack_command, commands)))
        replies: list[Any] = []
        while len(replies) < len(commands):
            reply = self._reader.gets()
            if reply is False:
                self._reader.feed(self._socket.recv(1 << 16))
            elif isinstance(reply, hiredis.ReplyError):
                raise reply
            else:
                replies.append(reply)
        return replies


if __name__ == "__main__":
    main(FloorRedis)
