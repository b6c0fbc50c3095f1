"""What Perdure raises. Every error derives from `PerdureError`, and its message says what to do next."""

from __future__ import annotations

import sys
from pathlib import Path

from msgspec import Struct


class PerdureError(Exception):
    """The root of all errors that Perdure raises."""


# --- mistakes in the program, found as early as possible


class DefinitionError(PerdureError):
    """A workflow or step is defined in a way that can't work: two with one name, parameters that can't travel."""


class InvalidInput(PerdureError, ValueError):
    """An argument that can't be: a negative delay, a naive datetime, arguments that don't fit the workflow."""


class EncodingError(InvalidInput):
    """A value that can't be written as JSON; the message names the value and its type."""


class ValueTooLarge(InvalidInput):
    """A value whose JSON is larger than the app allows (`max_value_bytes`); the message names both sizes."""


class DecodingError(PerdureError):
    """A value that does not fit the type that the code asks for: stored JSON, for example after a deploy changed the
    type, or what a step or a workflow has returned."""


class ArgumentsChanged(PerdureError):
    """A step, or a child, was called with other arguments than in the attempt before: the workflow isn't
    deterministic."""


class NotInWorkflow(PerdureError):
    """Something that only makes sense inside of a workflow was called outside of one."""


class NotDurable(PerdureError):
    """Something called in a workflow that would be done, or answered otherwise, each time that the run goes on; in a
    step it is kept."""


class UnknownWorkflow(PerdureError):
    """The app has no workflow of that name."""


class UnknownQueue(InvalidInput):
    """The app declares its queues (`App(url, queues=…)`), and that is none of them."""


# --- runs


class RunNotFound(PerdureError):
    """There is no run of that id in the store."""


class RunEnded(PerdureError):
    """The run has ended, and what was asked for needs one that has not: a signal, for example."""


class RunNotEnded(PerdureError):
    """The run has not ended, and what was asked for needs one that has: a retry, for example."""


class KeyTaken(PerdureError):
    """Another live run has the unique key of the run that was to be retried."""


class WouldDeadlock(PerdureError):
    """A wait for another run that might never end, because who waits keeps what the other one may need: its place in
    their group, or (in a step) its worker's slot. The message says what to do instead."""


class CheckpointNotFound(PerdureError):
    """The run has no checkpoint of that key."""


class BatchNotFound(PerdureError):
    """There is no batch of that id in the store."""


class ScheduleNotFound(PerdureError):
    """There is no schedule of that name in the store."""


class IdConflict(PerdureError):
    """A run with that id exists, with another workflow or another input, or a batch with other runs."""


def id_conflict(run_id: str, start: str) -> IdConflict:
    """What to say of a start whose id is taken by something else."""
    return IdConflict(
        f"run {run_id!r} exists with another workflow or input than {start}; an id names one piece of work:"
        " use another id, or app.run(id) for the one that exists"
    )


def not_of_batch(run_id: str) -> IdConflict:
    """What to say of a batch of which the id of a run, or of the callback, is taken."""
    return IdConflict(
        f"run {run_id!r} exists and is not of this batch (it was started in another way, or has another workflow or"
        " input), so the batch was not made; an id names one piece of work for ever: use another id for the batch"
    )


def batch_conflict(batch: str, what: str) -> IdConflict:
    """What to say of a batch that is opened again as another one."""
    return IdConflict(f"batch {batch!r} exists {what}; an id names one batch: use another id")


def kept_type(cls: type[BaseException]) -> str:
    """What is kept of an exception's class: the module and the name."""
    module = main_module() if cls.__module__ == "__main__" else cls.__module__
    return f"{module}:{cls.__qualname__}"


def main_module() -> str:
    """The name by which other processes import the module that this one runs, as far as that can be told."""
    main = sys.modules["__main__"]
    if main.__spec__ is not None:
        return main.__spec__.name
    file = getattr(main, "__file__", None)
    return "__main__" if file is None else Path(file).stem


class ErrorInfo(Struct, omit_defaults=True):
    """An exception as it is kept: its type, message and traceback as text, and what it came from."""

    type: str
    message: str
    traceback: str = ""
    args: list[object] | None = None
    """The arguments to make it again from, when they could be kept."""
    attributes: dict[str, object] | None = None
    """What it has beside them, as far as that could be kept."""
    cause: ErrorInfo | None = None

    def __str__(self) -> str:
        return f"{self.type.rpartition(':')[2]}: {self.message}" if self.message else self.type.rpartition(":")[2]


class StepFailed(PerdureError):
    """A step failed for good with an exception that can't be made again from what was kept; `info` tells of it."""

    def __init__(self, key: str, info: ErrorInfo) -> None:
        super().__init__(f"step {key} failed with {info}")
        self.key = key
        self.info = info


class StepCutOff(PerdureError):
    """The last attempt that a step's `Retry` allows was cut off by a crash of the worker."""

    def __init__(self, message: str, since: int = 0) -> None:
        super().__init__(message, since)
        self.since = since
        """Where in the run's history the attempt began that was cut off, and that the next one goes on with."""

    def __str__(self) -> str:
        return str(self.args[0])


class StepCancelled(PerdureError):
    """Kept of a step that the workflow's own code cancelled, by a task group or a time limit of asyncio, say: at each
    replay its call waits to be cancelled again, and the step does not run. Raised when nothing cancels it any more."""


class StepTimedOut(PerdureError, TimeoutError):
    """A step took longer than its `timeout`."""


class StepProcessDied(PerdureError):
    """The process that a step with `process=True` ran in ended before the step did."""


class RunFailed(PerdureError):
    """Raised to those who wait for the result of a run that failed; `info` tells of the exception that ended it."""

    def __init__(self, run_id: str, info: ErrorInfo) -> None:
        self.summary = f"run {run_id} failed with {info}"
        """The text of this error without the traceback."""
        super().__init__(f"{self.summary}\n\n{info.traceback}" if info.traceback else self.summary)
        self.run_id = run_id
        self.info = info


class RunCancelled(PerdureError):
    """Raised to those who wait for the result of a run that was cancelled."""

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(f"run {run_id} was cancelled: {reason}")
        self.run_id = run_id
        self.reason = reason


class DeadlineExceeded(PerdureError, TimeoutError):
    """A run did not end within its `timeout`."""


class Poisoned(PerdureError):
    """A run ended the process of its worker so often that it isn't tried any more."""


class SignalTimedOut(PerdureError, TimeoutError):
    """No signal came within the `timeout` of `wait_signal`."""


# --- the store


class StoreError(PerdureError):
    """Something is wrong with the store, and waiting will not mend it; the message says what to do."""


class StoreUrlError(StoreError):
    """A store URL with an unknown scheme, an unknown option, or a part that can't be."""


class SchemaTooNew(StoreError):
    """The store was made or migrated by a newer version of Perdure than this one."""


class StoreUnavailable(StoreError):
    """The store can't be reached, is locked or full just now; what failed may be tried again."""
