"""The floor: a loop on a store's bare driver that makes the durable writes of a run, and nothing else.

Runs go through in batches: one call settles what is done and claims as much again, another saves a step of all of them.
It has no leases, limits, wake-ups or workflows; that a write is refused when the claim is not one's own is in there.
"""

from __future__ import annotations

import json

from protocol import STEPS, Job, Peer, await_go, until_term

_LOOP_ONLY = "the floor is a loop without it"


class Floor(Peer):
    """The loop; each store has its calls."""

    lacks = dict.fromkeys(("turn", "hold", "nap", "wait", "result", "idle"), _LOOP_ONLY)

    async def save(self, claims: list[tuple[str, str]], step: str, body: str) -> None:
        """Keeps a checkpoint of each claimed run, in one call."""
        raise NotImplementedError

    async def exchange(self, settled: list[tuple[str, str]], slots: int) -> list[tuple[str, str]]:
        """Settles runs with their results, and claims others: their ids and payloads."""
        raise NotImplementedError

    async def insert(self, payloads: list[str]) -> None:
        """Makes runs, in one call."""
        raise NotImplementedError

    async def start(self, job: Job) -> None:
        await self.insert([json.dumps(job.argument)])

    async def start_many(self, jobs: list[Job]) -> None:
        await self.insert([json.dumps(job.argument) for job in jobs])

    async def work(self, concurrency: int, kind: str) -> None:
        await self.open()
        await_go()
        settled: list[tuple[str, str]] = []
        while claims := await self.exchange(settled, concurrency):
            if kind == "steps":
                for number in range(STEPS):
                    await self.save(claims, f"work#{number}", json.dumps("x" * 16))
            settled = []
            for run, payload in claims:
                settled.append((run, json.dumps(len(json.loads(payload)))))
                self.board.mark()
        await self.exchange(settled, 0)
        await self.close()
        await until_term()
