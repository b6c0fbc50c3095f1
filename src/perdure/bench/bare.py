"""Work on a store with no engine: its verbs, called in a loop."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from secrets import token_hex

from perdure.model import Millis, Start
from perdure.stores.base import Registration, Store
from perdure.stores.exchange import Claim, Exchange, Exchanged, Save, Settle, To

HOUR: Millis = 3_600_000
DAY: Millis = 24 * HOUR
_BATCH = 1000


class BareWorker:
    """An incarnation that exchanges when told to. Its lease is longer than any measurement, and never renewed."""

    def __init__(self, store: Store, number: int) -> None:
        self.store = store
        self._number = number
        self._serial = 0

    @classmethod
    async def register(
        cls, store: Store, queue: str, workflows: Sequence[str], slots: int, *, sessions: int = 0
    ) -> BareWorker:
        """Begins an incarnation that claims these workflows on the queue."""
        name = f"bench-{token_hex(4)}"
        return cls(
            store,
            await store.register(
                Registration(
                    name=name,
                    host=socket.gethostname(),
                    pid=os.getpid(),
                    queues=[queue],
                    workflows=list(workflows),
                    sessions=sessions,
                    concurrency=slots,
                    lease=HOUR,
                )
            ),
        )

    async def exchange(
        self, *, saves: Sequence[Save] = (), settles: Sequence[Settle] = (), slots: int = 0
    ) -> Exchanged:
        """One exchange, under the next serial."""
        self._serial += 1
        return await self.store.exchange(
            Exchange(self._number, self._serial, saves=list(saves), settles=list(settles), slots=slots)
        )

    async def claim(self, slots: int) -> list[Claim]:
        """Claims until the slots are full or nothing is ready."""
        claims: list[Claim] = []
        while len(claims) < slots:
            reply = await self.exchange(slots=slots - len(claims))
            claims += reply.claims
            if not reply.claims:
                break
        return claims

    async def retire(self) -> None:
        await self.store.retire(self._number)


def succeeded(claim: Claim, body: str = "null") -> Settle:
    """The settle of a claim that went well."""
    return Settle(claim.ref, claim.token, To.SUCCEEDED, body)


class Crowd:
    """Runs that are only there to be there. They have a parent in common, so that one call can end them all."""

    def __init__(self, store: Store, workflow: str, queue: str) -> None:
        self._store = store
        self._workflow = workflow
        self._queue = queue
        self._hub = f"bench-{token_hex(8)}"
        self._made = 0

    async def add(
        self,
        count: int,
        input: str,
        *,
        queue: str | None = None,
        workflow: str | None = None,
        delay: Millis | None = None,
        group: str = "",
        session: str = "",
    ) -> None:
        """Makes runs, in batches."""
        if not self._made:
            # Nobody serves its workflow: it stays until it is cancelled.
            await self._store.enqueue([Start(self._hub, "bench.hub", self._queue, "null", delay=DAY)])
        for first in range(0, count, _BATCH):
            await self._store.enqueue(
                [
                    Start(
                        f"{self._hub}-{self._made + number}",
                        workflow or self._workflow,
                        queue or self._queue,
                        input,
                        delay=delay,
                        parent=self._hub,
                        group=group,
                        session=session,
                    )
                    for number in range(min(_BATCH, count - first))
                ]
            )
            self._made += min(_BATCH, count - first)

    async def end(self) -> None:
        """Cancels those that have not ended."""
        if self._made:
            await self._store.cancel(self._hub, "the measurement is over")
