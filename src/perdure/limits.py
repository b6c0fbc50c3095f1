"""Limits, rates and pauses of an app's store: they hold for the whole fleet and change at run time."""

from __future__ import annotations

import getpass
import logging
import socket
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeVar

from perdure.call import Call
from perdure.errors import InvalidInput
from perdure.model import LimitRecord, Limits, Revision, RunQuery, Scope, ScopeKind, State
from perdure.options import check_name, check_queue
from perdure.rates import check_count, check_limit, parse_rate, show_limits, show_scope
from perdure.stores.base import Store, Topic

if TYPE_CHECKING:
    from perdure.app import App

T = TypeVar("T")

logger = logging.getLogger("perdure.worker")


class LimitControl:
    """`app.limits`: what may run at a time, how many may begin in a time, and what is paused.

    A scope is a queue, a workflow, a group, or (none of them given) the whole store. What is set is kept in the store,
    holds for all workers whatever their code says, and each change is a revision with who and when.

        await app.limits.set(queue="mail", running=5, rate="100/min", burst=20)
        await app.limits.pause(queue="mail")
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._declared: dict[Scope, Limits] = {}

    @property
    def declared(self) -> dict[Scope, Limits]:
        """What code asks for; see `declare`."""
        return dict(self._declared)

    def declare(
        self,
        *,
        queue: str | None = None,
        workflow: str | None = None,
        group: str | None = None,
        running: int | None = None,
        rate: str | None = None,
        burst: int | None = None,
    ) -> None:
        """What a scope starts out with: set when a worker starts, if nothing was ever set for the scope.

        If something was, that stands, and a worker that declares another limit says so in its log; `perdure limits
        apply` makes what code declares hold. Raises `InvalidInput`, and `UnknownQueue` for a queue that an app which
        declares its queues does not have.
        """
        if queue is not None:
            self._app.known_queue(queue)
        self._declared[scope_of(queue, workflow, group)] = limits_of(running, rate, burst)

    def set(
        self,
        *,
        queue: str | None = None,
        workflow: str | None = None,
        group: str | None = None,
        running: int | None = None,
        rate: str | None = None,
        burst: int | None = None,
        who: str | None = None,
    ) -> Call[LimitRecord]:
        """Sets the limits of a scope, from now on and for the whole fleet; what isn't given is unlimited.

        Lowering a limit takes nothing from what runs. The limit of a group is for each queue, its rate for all queues
        together. `who` is kept with the change (user and host when not given).
        Raises `InvalidInput`.
        """
        scope, limits = scope_of(queue, workflow, group), limits_of(running, rate, burst)
        by = _named(who)
        return self._app.client.call(lambda store: store.set_limits(scope, limits, by), "limits.set()")

    def apply(self, *, who: str | None = None) -> Call[Sequence[LimitRecord]]:
        """Makes what code declares hold, whatever is stored: for a step of a deploy."""
        by = _named(who)
        return self._app.client.call(lambda store: self._put(store, by, declared=False), "limits.apply()")

    def pause(
        self, *, queue: str | None = None, workflow: str | None = None, group: str | None = None, who: str | None = None
    ) -> Call[LimitRecord]:
        """Keeps runs of a scope from beginning. What runs goes on, and starts are accepted: they wait."""
        scope, by = scope_of(queue, workflow, group), _named(who)
        return self._app.client.call(lambda store: store.pause(scope, by, paused=True), "limits.pause()")

    def resume(
        self, *, queue: str | None = None, workflow: str | None = None, group: str | None = None, who: str | None = None
    ) -> Call[LimitRecord]:
        """Ends a pause."""
        scope, by = scope_of(queue, workflow, group), _named(who)
        return self._app.client.call(lambda store: store.pause(scope, by, paused=False), "limits.resume()")

    def drain(
        self, *, queue: str | None = None, workflow: str | None = None, group: str | None = None, who: str | None = None
    ) -> Call[LimitRecord]:
        """Pauses a scope, and waits until nothing of it runs: for as long as that takes. What was put away to wait for
        something stays away. `resume` ends the pause.

            async with asyncio.timeout(600):
                await app.limits.drain(queue="mail")
        """
        scope, by = scope_of(queue, workflow, group), _named(who)
        running = RunQuery(states=[State.RUNNING], queue=queue, workflow=workflow, group=group, limit=1)

        async def drain(store: Store) -> LimitRecord:
            record = await store.pause(scope, by, paused=True)
            async with aclosing(self._app.client.follow(lambda store: store.runs(running), Topic.ENDED)) as looks:
                async for left in looks:
                    if not left:
                        break
            return record

        return self._app.client.call(drain, "limits.drain()")

    def list(self) -> Call[Sequence[LimitRecord]]:
        """What is stored, with how many runs count against each now."""
        return self._app.client.call(lambda store: store.limits(), "limits.list()")

    def history(self, *, limit: int = 50) -> Call[Sequence[Revision]]:
        """The changes, latest first, at most `limit`."""
        check_count(limit, "limit")
        return self._app.client.call(lambda store: store.revisions(limit=limit), "limits.history()")

    async def declare_all(self, store: Store) -> None:
        """For a worker that starts: puts what code declares where nothing was set, and says what stands instead."""
        for record in await self._put(store, whoami(), declared=True):
            wanted = self._declared[record.scope]
            if record.limits != wanted:
                logger.warning(
                    "code declares %s for %s, and %s stands (revision %d, by %s); `perdure limits apply` changes that",
                    show_limits(wanted),
                    show_scope(record.scope),
                    show_limits(record.limits),
                    record.revision,
                    record.who,
                )

    async def _put(self, store: Store, who: str, *, declared: bool) -> Sequence[LimitRecord]:
        return [
            await store.set_limits(scope, limits, who, declared=declared) for scope, limits in self._declared.items()
        ]


def scope_of(queue: str | None, workflow: str | None, group: str | None) -> Scope:
    """The one scope that is named; the namespace when none is."""
    named = {
        kind: name
        for kind, name in ((ScopeKind.QUEUE, queue), (ScopeKind.WORKFLOW, workflow), (ScopeKind.GROUP, group))
        if name is not None
    }
    if len(named) > 1:
        raise InvalidInput("name one of queue, workflow and group, not several: each scope has limits of its own")
    for kind, name in named.items():
        return Scope(kind, check_queue(name) if kind is ScopeKind.QUEUE else check_name(name, f"a {kind}"))
    return Scope(ScopeKind.NAMESPACE)


def limits_of(running: int | None, rate: str | None, burst: int | None) -> Limits:
    """The limits as given, checked."""
    if burst is not None and rate is None:
        raise InvalidInput("burst= goes with rate=")
    return Limits(
        None if running is None else check_limit(running, "running"), None if rate is None else parse_rate(rate, burst)
    )


def _named(who: str | None) -> str:
    """Who is kept with a change: whoever is named, as long as that can be shown, or the user of this process."""
    return check_name(who, "who made a change") if who else whoami()


def whoami() -> str:
    """The user and host of this process, for revisions."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container without users
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
