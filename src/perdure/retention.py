"""Policies of retention as users give them."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Collection, Iterable
from datetime import timedelta

from perdure.clock import millis
from perdure.errors import InvalidInput
from perdure.model import FINAL_STATES, Retention, State
from perdure.options import check_text

logger = logging.getLogger("perdure.worker")


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


def warn_of_unknown(names: Iterable[str], known: Collection[str]) -> None:
    """For a worker that starts: says which workflows have policies, and are not among those that are known."""
    for name in sorted({*names} - {*known}):
        close = difflib.get_close_matches(name, known, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        logger.warning("app.retain(workflow=%r) lets nothing go: no run has that workflow%s", name, hint)


_ENDS = ", ".join(sorted(FINAL_STATES))
