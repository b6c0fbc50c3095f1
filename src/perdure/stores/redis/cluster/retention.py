"""What retention lets go, over all partitions: as many of each as are among the oldest of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from perdure.model import Retention
from perdure.stores.redis import endings, retention
from perdure.stores.redis.cluster.parts import together
from perdure.stores.redis.cluster.places import Places
from perdure.stores.redis.endings import Line
from perdure.stores.redis.session import Session

_NUMBERS_A_MILLISECOND = 100
"""As scripts number what has ended."""


async def prune(places: Places, policies: Sequence[Retention], limit: int) -> int:
    """Removes runs that policies let go, oldest end first; returns how many."""
    parts = places.parts
    removed, before = 0, None
    while removed < limit:
        wanted, last = await _choose(places, policies, limit - removed)
        if (wanted, last) == before:
            break
        before = wanted, last
        removed += sum(
            await together(
                retention.prune(parts.sessions[partition], policies, most, last[partition])
                for partition, most in wanted.items()
            )
        )
    # What nothing is counted of: batches that were opened empty, and runs that were kept by what has ended since.
    if removed < limit:
        nothing = {policy: -1 for policy in policies if policy.count is not None}
        for session in parts.sessions:
            removed += await retention.prune(session, policies, limit - removed, nothing)
    await places.tidy()
    return removed


async def _choose(
    places: Places, policies: Sequence[Retention], limit: int
) -> tuple[Counter[int], list[dict[Retention, int]]]:
    """How many runs of each partition are to go, and the last one in each that is beyond the count of a policy."""

    async def oldest(session: Session) -> tuple[int, dict[Retention, tuple[int, list[int]]]]:
        found = await endings.read(session, policies)
        return found.number, {policy: (line.total, await _numbers(line, limit)) for policy, line in found.lines.items()}

    found = await places.parts.each(oldest)
    last: list[dict[Retention, int]] = [{} for _ in found]
    going: list[tuple[int, int]] = []
    for policy in {policy for _, told in found for policy in told}:
        numbers = sorted(
            (number, partition) for partition, (_, told) in enumerate(found) for number in told.get(policy, (0, []))[1]
        )
        beyond = 0
        if policy.count is not None:
            beyond = max(0, sum(told[policy][0] for _, told in found if policy in told) - policy.count)
            counted = {partition: number for number, partition in numbers[:beyond]}
            for partition, of in enumerate(last):
                of[policy] = counted.get(partition, -1)
        going += [
            (number, partition)
            for n, (number, partition) in enumerate(numbers)
            if n < beyond or (policy.age is not None and number < _end(found[partition][0], policy.age))
        ]
    return Counter(partition for _, partition in sorted(going)[:limit]), last


async def _numbers(line: Line, most: int) -> list[int]:
    """Those of the first runs."""
    found: list[int] = []
    while len(found) < most and line.next is not None:
        found.append(line.next[0])
        await line.step()
    return found


def _end(now: int, age: int) -> int:
    """The first number of what has not ended so long ago."""
    return now + (1 - age) * _NUMBERS_A_MILLISECOND
