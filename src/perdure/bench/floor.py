"""The floor of `drain`: the calls to the store that its runs need at the least, made by a loop that does nothing else.

All runs of a batch go side by side: they save their n-th step in one exchange, and the exchange that settles a batch
claims the next one. A worker can't do with fewer.
"""

from __future__ import annotations

import time

from msgspec import json

from perdure.bench.bare import BareWorker, succeeded
from perdure.model import Checkpoint, Kind, Outcome, Start, Wait, WaitFor
from perdure.stores.base import Store
from perdure.stores.exchange import Claim, Save, Settle, To

_DIGEST = "0123456789abcdef"


class Floor:
    """Gets through a queue of `drain` runs. `workflow` is theirs, `leaf` that of their children."""

    def __init__(self, queue: str, workflow: str, leaf: str, *, slots: int, steps: int, children: int) -> None:
        self._queue = queue
        self._workflow = workflow
        self._leaf = leaf
        self._slots = slots
        self._steps = steps
        self._children = children
        self._saves: list[Save] = []
        self._settles: list[Settle] = []

    async def drain(self, store: Store) -> float:
        """Seconds until nothing is left."""
        began = time.perf_counter()
        worker = await BareWorker.register(store, self._queue, [self._workflow, self._leaf], self._slots)
        while True:
            reply = await worker.exchange(saves=self._saves, settles=self._settles, slots=self._slots)
            claims = reply.claims
            if reply.more and len(claims) < self._slots:
                claims += await worker.claim(self._slots - len(claims))
            if not claims:
                break
            self._saves, self._settles = [], []
            await self._advance(worker, claims)
        took = time.perf_counter() - began
        await worker.retire()
        return took

    async def _advance(self, worker: BareWorker, claims: list[Claim]) -> None:
        """Takes a batch to where nothing but its settles is left to write."""
        fresh = [claim for claim in claims if claim.workflow == self._workflow and not claim.checkpoints]
        for number in range(self._steps):
            await worker.exchange(saves=[_step(claim, number) for claim in fresh])
        for claim in claims:
            if claim.workflow == self._leaf or not self._children:
                self._settles.append(succeeded(claim, _argument(claim)))
            elif claim in fresh:
                self._start_children(claim)
            else:
                self._see_children(claim)

    def _start_children(self, claim: Claim) -> None:
        ids = [f"{claim.id}/{number}" for number in range(self._children)]
        for number, run_id in enumerate(ids):
            kept = Checkpoint(f"leaf#{number}", Kind.CHILD, Outcome.OK, json.encode(run_id).decode())
            start = Start(run_id, self._leaf, self._queue, claim.input, parent=claim.id)
            self._saves.append(Save(claim.ref, claim.token, kept, starts=start))
        self._park(claim, ids)

    def _see_children(self, claim: Claim) -> None:
        """Keeps what children have come to. The keys of these checkpoints are their ids."""
        for ended in claim.ended:
            kept = Checkpoint(ended.id, Kind.RESULT, Outcome.OK, json.encode(ended).decode())
            self._saves.append(Save(claim.ref, claim.token, kept))
        seen = {kept.key for kept in claim.checkpoints} | {ended.id for ended in claim.ended}
        missing = [run_id for number in range(self._children) if (run_id := f"{claim.id}/{number}") not in seen]
        if missing:
            self._park(claim, missing)
        else:
            self._settles.append(succeeded(claim, _argument(claim)))

    def _park(self, claim: Claim, children: list[str]) -> None:
        waits = [Wait(run_id, WaitFor.RUN, run_id) for run_id in children]
        self._settles.append(Settle(claim.ref, claim.token, To.PARK, waits=waits))


def _step(claim: Claim, number: int) -> Save:
    checkpoint = Checkpoint(
        f"work#{number}", Kind.STEP, Outcome.OK, _argument(claim), digest=_DIGEST, started_at=claim.created_at
    )
    return Save(claim.ref, claim.token, checkpoint)


def _argument(claim: Claim) -> str:
    """The only argument of the run, which its steps and itself return."""
    return json.encode(json.decode(claim.input)["payload"]).decode()
