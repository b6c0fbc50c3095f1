"""What a call of a script costs by ways to speak with Redis: round trip and processor time of the client.

    pip install redis; PYTHONPATH=tests python bench/redis_drivers.py

The ways take turns, and the best round of each counts, so that others on the same machine matter little.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

import redis.asyncio as redis_py
import uvloop

from perdure.stores.redis.connect import Redis
from perdure.stores.redis.scripts import Script
from perdure.stores.redis.url import parse_url
from perdure.stores.redis.wire import dial, pack
from servers.redis import own_server

ROUNDS, CALLS, SIDE_BY_SIDE = 7, 2000, 50
ARGS = ("", b"x" * 300)
SCRIPT = Script.of("reply", "return {ARGV[2], 1, 2, 3}")

Call = Callable[[], Awaitable[object]]


async def one_by_one(call: Call, count: int) -> None:
    for _ in range(count):
        await call()


async def together(call: Call, count: int) -> None:
    await asyncio.gather(*(one_by_one(call, count // SIDE_BY_SIDE) for _ in range(SIDE_BY_SIDE)))


async def measure(url: str) -> None:
    ours = Redis(parse_url(url))
    await ours.call(SCRIPT, *ARGS)
    theirs = redis_py.Redis.from_url(url)
    bare = await theirs.connection_pool.get_connection()
    prefix = ours.prefixes[0]

    async def of_a_connection() -> object:
        packed = bare.pack_command("EVALSHA", SCRIPT.call[1], 1, prefix, *ARGS)
        await bare.send_packed_command(packed, check_health=False)
        return await bare.read_response()

    ways: dict[str, Call] = {
        "redis-py": lambda: theirs.evalsha(SCRIPT.call[1], 1, prefix, *ARGS),
        "redis-py, a connection of its own": of_a_connection,
        "ours, on hiredis": lambda: ours.call(SCRIPT, *ARGS),
    }
    for name, run in (("one by one", one_by_one), (f"{SIDE_BY_SIDE} side by side", together)):
        best: dict[str, tuple[float, float]] = {}
        for _ in range(ROUNDS):
            for way, call in ways.items():
                if call is of_a_connection and run is together:
                    continue  # It takes one call at a time.
                start, used = time.perf_counter(), time.process_time()
                await run(call, CALLS)
                took = (time.perf_counter() - start) / CALLS * 1e6, (time.process_time() - used) / CALLS * 1e6
                best[way] = min(best.get(way, took), took)
        for way, (trip, cpu) in best.items():
            print(f"| {name}, {way} | {trip:.0f} / {cpu:.0f} |")
    await theirs.connection_pool.release(bare)
    await theirs.aclose()
    await ours.close()


async def hear(url: str) -> None:
    """How long a message takes to a subscriber in its loop, and to one that a thread tells of it."""
    location = parse_url(url)
    loop, heard = asyncio.get_running_loop(), asyncio.Event()
    telling = await dial(location, location.hosts[0])
    here = await dial(location, location.hosts[0], pushed=lambda _: heard.set())
    await here.run("SUBSCRIBE", "here")

    async def listen() -> Callable[[], None]:
        there = await dial(location, location.hosts[0], pushed=lambda _: loop.call_soon_threadsafe(heard.set))
        await there.run("SUBSCRIBE", "there")
        return there.abort

    async def message(channel: str) -> None:
        telling.send(packed[channel])
        await heard.wait()
        heard.clear()

    packed = {channel: pack("PUBLISH", channel, ARGS[1]) for channel in ("here", "there")}
    other = asyncio.new_event_loop()
    thread = threading.Thread(target=other.run_forever, daemon=True)
    thread.start()
    abort = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(listen(), other))
    best: dict[str, tuple[float, float]] = {}
    for _ in range(ROUNDS):
        for channel in packed:
            start, used = time.perf_counter(), time.process_time()
            await one_by_one(lambda channel=channel: message(channel), CALLS)
            took = (time.perf_counter() - start) / CALLS * 1e6, (time.process_time() - used) / CALLS * 1e6
            best[channel] = min(best.get(channel, took), took)
    print(f"| a message, in the loop | {best['here'][0]:.0f} / {best['here'][1]:.0f} |")
    print(f"| a message, by a thread | {best['there'][0]:.0f} / {best['there'][1]:.0f} |")
    other.call_soon_threadsafe(abort)
    other.call_soon_threadsafe(other.stop)
    thread.join()
    other.close()
    for connection in (here, telling):
        connection.abort()


def main() -> None:
    with own_server() as server:
        for name, run in (("asyncio", asyncio.run), ("uvloop", uvloop.run)):
            print(f"{name}:")
            run(measure(server.url))
            run(hear(server.url))


if __name__ == "__main__":
    main()
