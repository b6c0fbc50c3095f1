"""Calls that are part of the application's own transaction."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.call import Call
from perdure.engine.scope import Scope
from perdure.errors import NotDurable, PerdureError
from perdure.stores.base import Within

if TYPE_CHECKING:
    from perdure.client import Client

T = TypeVar("T")


def call_within(
    client: Client,
    connection: object,
    scope: Scope | None,
    what: str,
    work: Callable[[Within], Coroutine[Any, Any, T]],
) -> Call[T]:
    """Does `work` on a connection of the application, in whose thread or event loop it stays.

    Raises `NotDurable` in a workflow itself, whose transactions are gone when it is replayed, and what
    `Client.within` raises.
    """
    if scope is not None:
        raise NotDurable(f"{what}: a transaction is not there any more when the workflow is replayed; do it in a step")
    within = client.within(connection)
    return Call(lambda: work(within), what, _InLoop(what) if within.is_async else _IN_PLACE)


class _InPlace:
    """Does the work of a blocking connection in the thread that waits for it: none of it ever suspends."""

    over = False

    def drive(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            work.send(None)
        except StopIteration as done:
            return done.value
        work.close()
        raise PerdureError("the work of a blocking connection has to be done in place, and suspended")


class _InLoop:
    """The connection of an event loop can't be waited for from elsewhere."""

    over = False

    def __init__(self, what: str) -> None:
        self._what = what

    def drive(self, work: Coroutine[Any, Any, T]) -> T:
        work.close()
        raise PerdureError(f"{self._what}: the connection belongs to an event loop; use await there, not wait()")


_IN_PLACE = _InPlace()
