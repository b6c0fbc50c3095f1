"""Why the store itself ends a run as failed, or asks for its end: it is poison, or too late."""

from __future__ import annotations

from msgspec import json

from perdure.errors import DeadlineExceeded, ErrorInfo, PerdureError, Poisoned, kept_type
from perdure.model import Json

POISONED = kept_type(Poisoned)
OVERDUE = kept_type(DeadlineExceeded)
"""The causes of runs that the store itself ends as failed."""


def poisoned(crashes: int) -> Json:
    """The error of a run that ended its worker `crashes` times."""
    return _error(Poisoned, f"ended its worker {crashes} times; retry it when the cause is mended")


DEADLINE_PASSED = "its deadline passed"
"""Why a run whose deadline passed while it was running is to be cancelled; it fails with `deadline_exceeded`."""

PARENT_DEADLINE_PASSED = "the deadline of the run that it descends from passed"
"""Why what descends from such a run is cancelled."""


def deadline_exceeded() -> Json:
    """The error of a run that did not end within its `timeout`."""
    return _error(DeadlineExceeded, "did not end within its timeout")


def _error(kind: type[PerdureError], message: str) -> Json:
    return json.encode(ErrorInfo(type=kept_type(kind), message=message, args=[message])).decode()
