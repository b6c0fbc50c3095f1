"""Many starts in parts that a store takes in one call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perdure.model import Start

_BYTES = 8 * 1024 * 1024
"""The most bytes of inputs in a part, unless a single one is larger: no store takes a call of any size."""


def in_chunks(starts: Sequence[Start], most: int) -> Iterator[Sequence[Start]]:
    """The starts in order, in parts of at most `most` and of so many bytes."""
    first = size = 0
    for place, start in enumerate(starts):
        more = len(start.input.encode())
        if place > first and (place - first == most or size + more > _BYTES):
            yield starts[first:place]
            first, size = place, 0
        size += more
    if first < len(starts):
        yield starts[first:]
