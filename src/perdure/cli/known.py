"""Names of queues and workflows that nothing in a store bears: perhaps they were mistyped."""

from __future__ import annotations

from perdure.app import App
from perdure.stores.base import Store
from perdure.wording import did_you_mean


async def unknown(app: App, store: Store, *, workflow: str | None = None, queue: str | None = None) -> str:
    """What to say of a name that no run, worker, schedule or code has; nothing when it is known."""
    runs, live, schedules = await store.counts(), await store.workers(), await store.schedules()
    starts = [each.schedule.start for each in schedules]
    for what, given, known in (
        (
            "workflow",
            workflow,
            {
                *app.workflows,
                *(each.workflow for each in (*runs, *starts)),
                *(name for worker in live for name in worker.workflows),
            },
        ),
        (
            "queue",
            queue,
            {
                *app.queue_names,
                *(each.queue for each in (*runs, *starts)),
                *(name for worker in live for name in worker.queues),
            },
        ),
    ):
        if given is not None and given not in known:
            return f"No run, worker or schedule has the {what} {given!r} yet{did_you_mean(given, sorted(known))}."
    return ""
