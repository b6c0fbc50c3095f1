"""Which server has the keys of a partition just now."""

from __future__ import annotations

import binascii
import random
from collections.abc import Sequence
from typing import Any

import hiredis

from perdure.errors import StoreUnavailable
from perdure.stores.redis.url import Address, Kind, Location
from perdure.stores.redis.wire import ask_sentinels, dial

_SLOTS = 16384


def slot(key: bytes) -> int:
    """The slot of a cluster that a key belongs to, by its hash tag where it has one."""
    start = key.find(b"{")
    end = key.find(b"}", start + 1)
    tag = key[start + 1 : end] if start >= 0 and end > start + 1 else key
    return binascii.crc_hqx(tag, 0) % _SLOTS


class Route:
    """What is known of the servers of a store, for all event loops of a process."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self.known: dict[int, Address] = {}
        """The address of the server of each partition, as far as it was heard of."""
        self._slots = [slot(prefix) for prefix in location.prefixes]
        self._nodes: list[Address] = list(location.hosts)
        """Of a cluster: those that were seen last, and those of the URL."""
        if location.kind is Kind.PLAIN:
            self.known[0] = location.hosts[0]

    async def learn(self) -> None:
        """Asks where the partitions are. Errors as those of `dial`."""
        if self.location.kind is Kind.SENTINEL:
            self.known[0] = await ask_sentinels(self.location)
        elif self.location.kind is Kind.CLUSTER:
            await self._ask_cluster()

    def of(self, partition: int) -> Address:
        """The address of a partition. Raises `StoreUnavailable` when there is none."""
        if partition not in self.known:
            raise StoreUnavailable(
                f"the store {self.location.name} is a cluster in which no node has slot {self._slots[partition]}"
            )
        return self.known[partition]

    def forget(self, address: Address) -> None:
        """A server that can't be reached, or takes no writes: where its partitions are has to be found out anew."""
        if self.location.kind is not Kind.PLAIN:
            self.known = {partition: known for partition, known in self.known.items() if known != address}

    def moved(self, partition: int, error: hiredis.ReplyError, by: Address) -> None:
        """Takes note of where a node (`by`) says that a partition is: `MOVED slot host:port`."""
        host, _, port = str(error).split()[2].rpartition(":")
        self.known[partition] = (host or by[0], int(port))

    async def _ask_cluster(self) -> None:
        """Asks one node after the other, in any order, until one answers."""
        failed: Exception | None = None
        for address in random.sample(self._nodes, len(self._nodes)):
            try:
                connection = await dial(self.location, address, any_role=True)
                try:
                    return self._learn(await connection.run("CLUSTER", "SLOTS"), address)
                finally:
                    connection.abort()
            except (hiredis.HiredisError, OSError) as error:
                failed = error
        raise failed or StoreUnavailable(f"the store {self.location.name} has no nodes")

    def _learn(self, ranges: Sequence[Sequence[Any]], by: Address) -> None:
        """Takes note of what CLUSTER SLOTS says: first and last slot, the primary, and its replicas."""
        seen: set[Address] = set()
        for first, last, primary, *replicas in ranges:
            for host, port, *_ in (primary, *replicas):
                seen.add(((host or b"").decode() or by[0], int(port)))
            at = ((primary[0] or b"").decode() or by[0], int(primary[1]))
            self.known.update({n: at for n, slot in enumerate(self._slots) if first <= slot <= last})
        self._nodes = [*dict.fromkeys((*seen, *self.location.hosts))]
