"""What a worker knows of the partitions between its exchanges: which may have something for it, and whose turn it is.

A wake-up tells of which partition it is. Those are asked first, with those that had more to give. The others are asked
from time to time as well, since wake-ups may be lost: all of them, if nobody listens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from perdure.model import Millis
from perdure.stores.base import Registration
from perdure.stores.redis.exchange import Reply

_LOOK = 0.75
"""Seconds after which a partition of which nothing was heard is asked all the same."""
_MOST_LOOKS = 64
"""How many of these are asked at a time."""


class Wakes:
    """How often each partition has told that it may have something, for all workers of a store."""

    def __init__(self, partitions: int) -> None:
        self.told = [0] * partitions
        self.listeners = 0

    def note(self, partition: int) -> None:
        self.told[partition] += 1

    def note_all(self) -> None:
        self.told = [told + 1 for told in self.told]


@dataclass(slots=True)
class Part:
    """A partition, as a worker knows it."""

    told: int = -1
    more: bool = False
    next_at: Millis | None = None
    looked: float = 0.0
    after: str = ""
    sessions: int = 0
    wants: bool = True
    """Whether it has runs of sessions that nobody owns."""


@dataclass(slots=True)
class Unheard:
    """An exchange with a partition whose answer was lost: it may have claimed so many runs."""

    serial: int
    slots: int


@dataclass
class Rounds:
    """What one worker knows."""

    wakes: Wakes
    given: Callable[[], Millis] | None = None
    """A clock that is used instead of the servers'."""
    registration: Registration | None = None
    parts: list[Part] = field(default_factory=list[Part])
    unheard: dict[int, Unheard] = field(default_factory=dict[int, Unheard])
    schedules: dict[str, int] = field(default_factory=dict[str, int])
    """The partitions of the schedules that were told of as due."""
    last: dict[int, int] = field(default_factory=dict[int, int])
    """The slots that partitions were given in the exchange that was the last one."""
    clock: tuple[Millis, float] = (0, 0.0)
    """The latest time that a partition told, and when that was."""
    turn: int = 0

    def __post_init__(self) -> None:
        self.parts = [Part() for _ in self.wakes.told]

    def now(self) -> Millis:
        """About the store's time."""
        if self.given is not None:
            return self.given()
        told, then = self.clock
        return told + int((time.monotonic() - then) * 1000) + 1

    def hot(self) -> list[int]:
        """The partitions that may have something, in the order of their turns: the first one is another each time."""
        now, then, listened = self.now(), time.monotonic(), self.wakes.listeners > 0
        order = [*range(self.turn, len(self.parts)), *range(self.turn)]
        stale = sorted(order, key=lambda partition: self.parts[partition].looked)[:_MOST_LOOKS]
        looks = {partition for partition in stale if then - self.parts[partition].looked > _LOOK}

        def is_hot(partition: int) -> bool:
            part = self.parts[partition]
            return (
                not listened
                or self.has_more(partition)
                or part.told != self.wakes.told[partition]
                or (part.next_at is not None and part.next_at <= now)
            )

        return [*filter(is_hot, order), *(each for each in order if each in looks and not is_hot(each))]

    def stalest(self, out: Collection[int]) -> int:
        """The partition that was asked longest ago, of those that are not out of reach."""
        near = [partition for partition in range(len(self.parts)) if partition not in out]
        return min(near, key=lambda partition: self.parts[partition].looked)

    def has_more(self, partition: int) -> bool:
        """Whether it had more than it could give, be it for want of slots or of sessions."""
        part = self.parts[partition]
        return part.more or (part.wants and self.free_sessions > 0)

    def share(self, slots: int, among: Iterable[int]) -> dict[int, int]:
        """Gives the slots to partitions, as evenly as they go; the first ones get what is left over."""
        order = [*among]
        if not order:
            return {}
        each, over = divmod(slots, len(order))
        self.turn = (order[min(over, len(order)) - 1] + 1) % len(self.parts)
        return {partition: each + (n < over) for n, partition in enumerate(order)}

    def rooms(self, among: Sequence[int]) -> Mapping[int, int]:
        """How many more sessions it may own in each partition."""
        if self.registration is None or not self.registration.sessions:
            return {}
        return self.share(self.free_sessions, [each for each in among if self.parts[each].wants] or among)

    @property
    def free_sessions(self) -> int:
        if self.registration is None:
            return 0
        return max(0, self.registration.sessions - sum(part.sessions for part in self.parts))

    def reserved(self) -> int:
        """How many runs may be claimed that it has not heard of."""
        return sum(unheard.slots for unheard in self.unheard.values())

    def note(self, partition: int, told: int, reply: Reply) -> None:
        """Takes note of an answer; `told` is how often the partition had told something when it was asked."""
        part = self.parts[partition]
        part.told, part.more, part.next_at = told, reply.more, reply.next_at
        part.sessions, part.wants = reply.sessions, reply.wants
        part.looked = time.monotonic()
        if reply.claims:
            part.after = reply.kinds[reply.claims[-1].kind].queue
        if reply.now >= self.clock[0]:
            self.clock = reply.now, part.looked
        self.schedules.update({row.name: partition for row in reply.due})

    def next_at(self, out: Collection[int]) -> Millis | None:
        """When the next timer is due of those partitions that are not out of reach."""
        times = (part.next_at for partition, part in enumerate(self.parts) if partition not in out)
        return min((at for at in times if at is not None), default=None)

    def more(self, out: Collection[int]) -> bool:
        """Whether one of these had more than it could give."""
        return any(part.more for partition, part in enumerate(self.parts) if partition not in out)
