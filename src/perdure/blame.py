"""Which run is to blame when a worker dies. Nobody saw it, so the suspects are pulled apart until one stands alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from perdure.model import Millis, State

_CERTAIN_ALL_THE_SAME = 4
"""How many times `max_crashes` a run may have been among several suspects before it ends all the same: several may
really be poison."""


class Suspect(NamedTuple):
    """A run whose owner died. `ref` is how the store finds it; a higher `token` was claimed later."""

    worker: int
    ref: int
    token: int
    crashes: int
    max_crashes: int
    cancelling: bool


class Verdict(NamedTuple):
    """What becomes of it: queued, scheduled (backing off until `wake_at`) or failed."""

    ref: int
    state: State
    crashes: int
    wake_at: Millis | None


def judge(
    suspects: Sequence[Suspect], now: Millis, draw: Callable[[float, float], float] = random.uniform
) -> list[Verdict]:
    """Decides about the runs of dead workers.

    Of the runs of one dead worker, those with the most crashes are blamed: theirs counts one up. One that is blamed
    alone, and has reached its `max_crashes`, fails. Where several are, nobody knows which one it was: the one that was
    claimed last comes back first and the others stay away, so that next time they don't go down together. (A long run
    beside one that dies early would else collect as many crashes as the culprit.) From the second crash on a blamed run
    backs off for up to `crash_backoff`; one that is being cancelled does not: whoever claims it next ends it.

    (That next one has its code clean up. Where nobody may claim it when it comes back, after a crash as from a worker
    that hands it back, the store ends it at once: while its queue, workflow, group or the store is paused, while its
    group has more runs than its limit, and when it is pinned to a version which no live worker serves while workers of
    other versions live.)
    """
    most: dict[int, int] = {}
    for suspect in suspects:
        most[suspect.worker] = max(most.get(suspect.worker, 0), suspect.crashes)
    blamed: dict[int, _Blamed] = {}
    for suspect in suspects:
        if suspect.crashes == most[suspect.worker]:
            number, last = blamed.get(suspect.worker, _Blamed(0, 0))
            blamed[suspect.worker] = _Blamed(number + 1, max(last, suspect.token))
    return [
        _verdict(suspect, blamed[suspect.worker], now, draw)
        if suspect.crashes == most[suspect.worker]
        else Verdict(suspect.ref, State.QUEUED, suspect.crashes, None)
        for suspect in suspects
    ]


class _Blamed(NamedTuple):
    """Those of one worker's runs that are to blame: how many they are, and the token of the one claimed last."""

    number: int
    last: int


def _verdict(suspect: Suspect, blamed: _Blamed, now: Millis, draw: Callable[[float, float], float]) -> Verdict:
    crashes = suspect.crashes + 1
    alone = blamed.number == 1
    if crashes >= suspect.max_crashes * (1 if alone else _CERTAIN_ALL_THE_SAME):
        return Verdict(suspect.ref, State.FAILED, crashes, None)
    longest = crash_backoff(crashes)
    first = not alone and suspect.token == blamed.last
    pause = 0 if first else int(draw(0 if alone else longest / 2, longest))
    if pause == 0 or suspect.cancelling:
        return Verdict(suspect.ref, State.QUEUED, crashes, None)
    return Verdict(suspect.ref, State.SCHEDULED, crashes, now + pause)


def crash_backoff(crashes: int) -> Millis:
    """The longest time that a run stays away after it crashed its worker; the store draws a time below it.

    The first crash costs nothing: most are deploys and machines that go away. From the second on, the random wait
    pulls apart runs that went down together, so that the blame ends up with the one that does it.
    """
    return 0 if crashes < 2 else min(60_000, 500 * 2**crashes)
