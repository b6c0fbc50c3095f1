"""Function libraries of other versions, which stay on a server until somebody deletes them."""

from __future__ import annotations

from perdure.stores.redis.connect import Redis
from perdure.stores.redis.scripts import libraries


async def others(redis: Redis) -> dict[int, list[bytes]]:
    """The libraries of other versions on the server of each partition."""
    found: dict[int, list[bytes]] = {}
    for partition in range(len(redis.prefixes)):
        listed = await redis.run("FUNCTION", "LIST", "LIBRARYNAME", "perdure_*", partition=partition)
        names = [each[b"library_name"] for each in listed]
        found[partition] = [name for name in names if name.decode() not in libraries()]
    return found


async def pending(redis: Redis) -> list[str]:
    """What `drop` would do."""
    return _said({name for names in (await others(redis)).values() for name in names})


async def drop(redis: Redis) -> list[str]:
    """Deletes the libraries of other versions; says what it did. A worker of such a version that is still there loads
    its own once more when the server does not know them."""
    gone: set[bytes] = set()
    for partition, names in (await others(redis)).items():
        gone |= {name for name in names if await redis.forget(name, partition=partition)}
    return _said(gone)


def _said(names: set[bytes]) -> list[str]:
    return [f"the removal of {len(names)} function libraries of other versions"] if names else []
