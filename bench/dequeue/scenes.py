"""What lies in the queue beside the runs that can be claimed."""

from __future__ import annotations

from dataclasses import dataclass

FREE = 10_000
"""Runs that can be claimed, behind all others."""


@dataclass(frozen=True)
class Scene:
    """A queue as it may be found."""

    name: str
    title: str
    fills: tuple[tuple[str, int], ...] = ()
    """What comes before the free runs: the name of a statement in `fill.sql`, and how many rows."""
    passing: int = 0
    """Runs that come, are claimed and end while somebody holds a snapshot."""
    claimers: int = 1
    expired: int = 0
    """Runs of a worker that died, beside fresh work that never ends."""
    within: float = 1.5
    """How many times what it takes in an empty queue a claim may take."""


SCENES = [
    Scene("empty", "nothing else"),
    Scene("claimed", "200,000 claimed at the head", (("claimed", 200_000),)),
    Scene("future", "1,000,000 that become visible later", (("future", 1_000_000),)),
    Scene("queue", "100,000 of another queue", (("queue", 100_000),)),
    Scene("sessions", "100,000 of others' sessions", (("sessions", 100_000),)),
    Scene("groups", "100,000 held by full groups", (("groups", 100_000),)),
    Scene("unknown", "100,000 of unknown workflows", (("unknown", 100_000),)),
    Scene("finished", "5,000,000 finished", (("finished", 5_000_000),)),
    Scene("snapshot", "a snapshot held while 350,000 pass", passing=350_000, within=3),
    Scene("claimers", "64 claimers at once", claimers=64),
    Scene("expired", "100 expired leases beside endless fresh work", expired=100),
]
