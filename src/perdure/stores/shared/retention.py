"""What retention lets go: decided and parted, whatever the store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from perdure.model import Retention, State

PRUNE_ROWS = 10_000
"""The most checkpoints and signals that one transaction removes with their runs, unless it is one run."""


class Ending(NamedTuple):
    """A run that ended: its place in the order of finishing, and its number."""

    finish: int
    seq: int


class Due(NamedTuple):
    """What is to be pruned, and the parents and batches that ended since some of their runs were passed over."""

    keepers: list[str]
    endings: list[Ending]
    sizes: list[int]
    """How many rows are kept of each."""
    empty: list[str]
    """Batches that have nothing that would take them along."""

    @property
    def nothing(self) -> bool:
        """Whether there is nothing to be done."""
        return not (self.keepers or self.endings or self.empty)

    def parts(self) -> Iterator[Due]:
        """What one transaction takes at a time: so many rows, but always one run."""
        first, rows = 0, 0
        for number, size in enumerate(self.sizes):
            if rows + size > PRUNE_ROWS and number > first:
                yield self._part(first, number)
                first, rows = number, 0
            rows += size
        yield self._part(first, len(self.sizes))

    def _part(self, first: int, end: int) -> Due:
        endings, sizes = self.endings[first:end], self.sizes[first:end]
        return Due([], endings, sizes, []) if first else Due(self.keepers, endings, sizes, self.empty)


def choose(policies: Sequence[Retention], workflow: str, state: State) -> Retention | None:
    """The policy that holds for runs of a workflow that ended in a state: the most specific one, the last of equals."""
    fitting = [policy for policy in policies if policy.workflow in (None, workflow) and policy.state in (None, state)]
    return max(
        reversed(fitting), key=lambda policy: (policy.workflow is not None, policy.state is not None), default=None
    )
