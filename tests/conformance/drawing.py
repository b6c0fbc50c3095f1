"""What the model-based test draws: starts, waits, checkpoints and settles that fit what is there."""

from __future__ import annotations

from random import Random

from conformance.kit import BILL, DEFAULT, SHIP, URGENT, ManualClock, checkpoint, for_run, for_signal, for_timer
from conformance.reference import Reference
from conformance.runs import Run
from perdure.model import Json, Kind, OnConflict, Outcome, Start, Unique, Wait
from perdure.stores.exchange import Claim, Save, Settle, To

NAMES = ["approve", "reject"]
DELAYS = [0, 1, 500, 3_000, 60_000]


class Drawing:
    clock: ManualClock
    reference: Reference
    bodies = 0

    def body(self) -> Json:
        """A text that is used once, so that no two can be taken for each other."""
        self.bodies += 1
        return f'"body {self.bodies}"'

    def some_run(self, rng: Random) -> Run:
        return self.reference.runs[rng.choice(list(self.reference.runs))]

    def some_start(self, rng: Random, parent: str | None = None) -> Start:
        # What is replaced moves in its group, at a time that the store is free to choose: so no key goes with a group.
        keyed = parent is None and rng.random() < 0.2
        return Start(
            id=rng.choice([f"r{len(self.reference.runs)}"] * 4 + list(self.reference.runs)[-2:]),
            workflow=rng.choice([SHIP, BILL]),
            queue=rng.choice([DEFAULT, DEFAULT, URGENT]),
            input=self.body(),
            priority=rng.randint(-1, 1),
            delay=rng.choice([None, None, None, 0, 1, 500, 5_000]),
            timeout=rng.choice([None, None, None, 3_000, 30_000]),
            max_crashes=rng.choice([1, 3, 5, 5]),
            parent=parent,
            unique=Unique(rng.choice("uv"), rng.choice(list(OnConflict)), rng.choice([500, 5_000])) if keyed else None,
            group="" if keyed else rng.choice(["", "", "g", "h"]),
            group_limit=rng.choice([1, 2, 4]),
            group_keep=rng.random() < 0.5,
            session="" if keyed else rng.choice(["", "", "", "s", "t"]),
        )

    def some_waits(self, rng: Random) -> list[Wait]:
        def limit() -> int | None:
            return rng.choice([None, None, self.clock.now() + rng.choice(DELAYS)])

        waits = [for_signal(name, at=limit()) for name in NAMES if rng.random() < 0.4]
        targets = list(self.reference.runs)[-6:]
        waits += [for_run(target, at=limit()) for target in targets if rng.random() < 0.3]
        if not waits or rng.random() < 0.2:
            waits.append(for_timer(self.clock.now() + rng.choice(DELAYS)))
        return waits

    def some_save(self, rng: Random, claim: Claim) -> Save:
        run = self.reference.runs[claim.id]
        taken: int | None = None
        child: Start | None = None
        if run.signals and rng.random() < 0.5:
            taken = run.signals[0].position
        elif rng.random() < 0.25:
            child = self.some_start(rng, parent=run.id)
        kept = checkpoint(
            rng.choice("abcd"),
            self.body(),
            kind=Kind.SIGNAL if taken else Kind.CHILD if child else Kind.STEP,
            outcome=rng.choice(list(Outcome)),
        )
        return Save(ref=claim.ref, token=claim.token, checkpoint=kept, consumes=taken, starts=child)

    def some_settle(self, rng: Random, claim: Claim) -> Settle:
        to = rng.choice([*To, To.PARK, To.PARK])
        return Settle(
            ref=claim.ref,
            token=claim.token,
            to=to,
            body=self.body(),
            delay=rng.choice(DELAYS) if to == To.RETRY else 0,
            waits=self.some_waits(rng) if to == To.PARK else [],
        )
