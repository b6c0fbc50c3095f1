"""What code inside of a run can ask for: sleep, wait, know who it is."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from typing import Any, TypeVar, overload

from perdure.call import Call
from perdure.clock import epoch_millis, millis
from perdure.codec import Decoder, encode
from perdure.engine.scope import Scope, in_key, scope_needed
from perdure.engine.waits import signal_for, sleep_for
from perdure.errors import InvalidInput
from perdure.options import check_signal

T = TypeVar("T")


class RunContext:
    """The run that the calling code belongs to."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    @property
    def id(self) -> str:
        """The id of the run, the same for all its attempts: good as part of an idempotency key."""
        return self._scope.execution.claim.id

    @property
    def workflow(self) -> str:
        """The name of its workflow."""
        return self._scope.execution.definition.name

    @property
    def group(self) -> str:
        """The key of the run's group; empty when it has none."""
        return self._scope.execution.claim.group

    @property
    def session(self) -> str:
        """The session that the run belongs to; empty when it has none."""
        return self._scope.execution.claim.session

    @property
    def labels(self) -> dict[str, str]:
        """The run's labels as they were when this worker claimed it."""
        return dict(self._scope.execution.claim.labels)

    @property
    def attempt(self) -> int:
        """The number of the run's attempt, from 1; failures and crashes count, waits and shutdowns don't."""
        return self._scope.execution.claim.attempt

    @property
    def step(self) -> str | None:
        """The key of the step that the code is in; None in the workflow itself."""
        attempt = self._scope.attempt
        return None if attempt is None else attempt.key

    @property
    def step_attempt(self) -> int:
        """The number of the step's attempt, from 1; 0 in the workflow itself."""
        attempt = self._scope.attempt
        return 0 if attempt is None else attempt.number

    @property
    def cancelling(self) -> bool:
        """Whether this code should come to an end: the run is being cancelled or was lost, the step's time is over, or
        the worker stops. Sync code that takes long looks here from time to time."""
        execution, attempt = self._scope.execution, self._scope.attempt
        ended = attempt is not None and (attempt.cancelled or attempt.over)
        return ended or execution.over or execution.cancelling is not None

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry `run` and `attempt`."""
        return self._scope.execution.logger


def current_run() -> RunContext:
    """The run that the calling code belongs to; raises `NotInWorkflow` outside of one.

    current_run().logger.info("charging")
    """
    return RunContext(scope_needed("current_run()"))


def sleep(duration: timedelta | float) -> Call[None]:
    """Sleeps durably: the run is put away and goes on when the time has come, whatever happens meanwhile.

    `duration` is a timedelta or seconds, from the first time that the run gets here. In a workflow it holds no slot,
    thread or connection; in a step, which is not put away, it holds the step's slot. `NotInWorkflow` outside of a run.

        await sleep(timedelta(days=2))
    """
    delay = millis(duration, "the duration of a sleep")
    scope = scope_needed("sleep()")
    return _call(scope, "sleep", lambda key: sleep_for(scope.execution, key, delay=delay))


def sleep_until(when: datetime) -> Call[None]:
    """Sleeps durably until an aware datetime; a moment that has passed does not wait. In a step it holds the slot, as
    `sleep` does. `NotInWorkflow` outside of a run."""
    at = epoch_millis(when, "the end of a sleep")
    scope = scope_needed("sleep_until()")
    return _call(scope, "sleep", lambda key: sleep_for(scope.execution, key, at=at))


@overload
def wait_signal(name: str, type: type[T], *, timeout: timedelta | float | None = None) -> Call[T]: ...
@overload
def wait_signal(name: str, type: Any = None, *, timeout: timedelta | float | None = None) -> Call[Any]: ...
def wait_signal(name: str, type: Any = None, *, timeout: timedelta | float | None = None) -> Call[Any]:
    """Waits durably for the next signal of that name, sent with `run.signal(name, value)`.

    Signals are kept from before the run waits, in order; each is taken once. The value is read as `type` (plain JSON
    values when not given); `DecodingError` when it doesn't fit. After `timeout` (seconds or a timedelta, from the
    first time that the run gets here) without one: `SignalTimedOut`. Only inside of a workflow.

        approval = await wait_signal("approve", Approval, timeout=timedelta(days=7))
    """
    limit = None if timeout is None else millis(timeout, "timeout")
    check_signal(name)
    scope = scope_needed("wait_signal()")
    decoder: Decoder[Any] = Decoder(Any if type is None else type, f"signal {name}")
    return _call(scope, f"signal:{in_key(name)}", lambda key: signal_for(scope.execution, key, name, decoder, limit))


def progress(done: object, total: float | None = None, note: str | None = None) -> None:
    """Says how far the run is: `run.status().progress` has the last word, and `run.watch()` follows it.

    Either a number from 0 on, with the `total` that it goes to (an estimate, which it may pass) and a `note`, or any
    one value that can be encoded. `InvalidInput` for a number below 0. It is kept
    soon, not at once, and may be said as often as wanted: of many words in a moment only the last one is written.
    Nothing waits for it, and it is no checkpoint: steps may say it too. Only inside of a run.

        progress(rows_done, rows, note="importing")
    """
    scope = scope_needed("progress()")
    value = done
    if isinstance(done, int | float) and not isinstance(done, bool):
        if done < 0 or (total is not None and total < 0):
            raise InvalidInput(f"progress goes from 0 on: {done!r} of {total!r} can't be")
        value = {"done": done, "total": total, "note": note}
        value = {name: each for name, each in value.items() if each is not None}
    elif total is not None or note is not None:
        raise InvalidInput(f"total= and note= go with a number that is done, not with {done!r}")
    execution = scope.execution
    status = encode(value, "the progress", execution.runtime.max_value_bytes)
    if threading.get_ident() == execution.runtime.thread:
        execution.tell(status)
    else:
        execution.runtime.loop.call_soon_threadsafe(execution.tell, status)


def _call(scope: Scope, name: str, work: Callable[[str], Coroutine[Any, Any, T]]) -> Call[T]:
    key = scope.key(name)
    return Call(lambda: work(key), key, scope.execution)
