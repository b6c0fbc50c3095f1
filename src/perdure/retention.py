"""Policies of retention as users give them."""

from __future__ import annotations

from datetime import timedelta

from perdure.clock import millis
from perdure.errors import InvalidInput
from perdure.model import FINAL_STATES, Retention, State
from perdure.options import check_text

PRUNE_LIMIT = 500
"""Runs that one transaction removes, so that it holds nobody up for long."""


def make_policy(
    workflow: str | None, state: State | str | None, age: timedelta | float | None, count: int | None
) -> Retention:
    """A policy, or `InvalidInput`."""
    if workflow is not None:
        check_text(workflow, "a workflow")
    if age is None and count is None:
        raise InvalidInput("a policy of retention needs an age= or a count=")
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 0):
        raise InvalidInput(f"count= is a whole number of runs to keep, 0 or more, not {count!r}")
    if state is not None and state not in FINAL_STATES:
        raise InvalidInput(f"runs are kept or let go when they have ended: state= is one of {_ENDS}, not {state!r}")
    return Retention(
        workflow=workflow,
        state=None if state is None else State(state),
        age=None if age is None else millis(age, "age"),
        count=count,
    )


_ENDS = ", ".join(sorted(FINAL_STATES))
