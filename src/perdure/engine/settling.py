"""How executions end: what the store is told of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from perdure.causes import OVERDUE, deadline_exceeded
from perdure.codec import encode
from perdure.engine.halt import ContinueAsNew
from perdure.errors import ArgumentsChanged, DecodingError, DefinitionError, WouldDeadlock
from perdure.failures import cause_of, encode_failure
from perdure.model import Json
from perdure.stores.exchange import Settle, To

if TYPE_CHECKING:
    from perdure.engine.execution import Execution

_NOT_WORTH_RETRYING = (ArgumentsChanged, DecodingError, DefinitionError, WouldDeadlock)


def settle(execution: Execution, to: To, body: Json, cause: str | None = None) -> Settle:
    """It ends like this."""
    return Settle(execution.ref, execution.token, to, body, cause=cause)


def release(execution: Execution) -> Settle:
    """It is handed back."""
    return Settle(execution.ref, execution.token, To.RELEASE)


def failed(execution: Execution, error: BaseException) -> Settle:
    """Its code raised: it fails, or is tried again. It begins anew when a task of a group said so, and nothing else
    went wrong."""
    again = _continues(error)
    if again is not None:
        return settle(execution, To.CONTINUE, again.body)
    retry, attempt = execution.definition.retry, execution.claim.attempt
    body = encode_failure(error)
    if (
        retry is None
        or execution.cancelling is not None
        or isinstance(error, _NOT_WORTH_RETRYING)
        or not retry.covers(error)
        or not retry.allows(attempt)
    ):
        return settle(execution, To.FAILED, body, cause_of(error))
    delay = retry.delay_after(attempt, execution.runtime.random())
    return Settle(execution.ref, execution.token, To.RETRY, body, delay=delay)


def cancelled(execution: Execution) -> Settle:
    """It was cancelled, or its time was over."""
    cancelling = execution.cancelling
    if cancelling is not None and cancelling.deadline:
        return settle(execution, To.FAILED, deadline_exceeded(), OVERDUE)
    reason = None if cancelling is None else cancelling.reason
    return settle(execution, To.CANCELLED, encode(reason, "the reason", execution.runtime.max_value_bytes))


def _continues(error: object) -> ContinueAsNew | None:
    """What the tasks of groups raised, if that is `ContinueAsNew` and nothing else."""
    if not isinstance(error, BaseExceptionGroup):
        return error if isinstance(error, ContinueAsNew) else None
    found = [_continues(each) for each in cast("BaseExceptionGroup[BaseException]", error).exceptions]
    return found[0] if all(found) else None
