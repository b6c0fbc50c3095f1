"""What asks the store, or changes it, is not for a workflow's own code, which does it anew at each replay."""

from __future__ import annotations

import typing
from collections.abc import AsyncIterable, Callable
from typing import Any

import pytest

from perdure import App, step
from perdure.batch import Batch
from perdure.call import Call, Stream
from perdure.errors import PerdureError
from perdure.limits import LimitControl
from perdure.run import Run
from perdure.schedules import ScheduleControl
from perdure.testing import run as play

pytestmark = pytest.mark.anyio

app = App("sqlite://")


@app.workflow
async def other() -> None: ...


CALLS: dict[str, Callable[[], Call[Any] | Stream[Any]]] = {
    "App.runs": app.runs,
    "App.as_ended": lambda: app.as_ended([app.run("r")]),
    "App.counts": app.counts,
    "App.queues": app.queues,
    "App.failures": app.failures,
    "App.retry_failed": app.retry_failed,
    "App.prune": lambda: app.prune(age=1),
    "Run.status": lambda: app.run("r").status(),
    "Run.history": lambda: app.run("r").history(),
    "Run.why": lambda: app.run("r").why(),
    "Run.watch": lambda: app.run("r").watch(),
    "Run.retry": lambda: app.run("r").retry(),
    "Run.label": lambda: app.run("r").label(a="1"),
    "Run.delete": lambda: app.run("r").delete(),
    "Batch.progress": lambda: app.batch("b").progress(),
    "Batch.runs": lambda: app.batch("b").runs(),
    "Batch.ended": lambda: app.batch("b").ended(),
    "LimitControl.set": lambda: app.limits.set(queue="mail", running=2),
    "LimitControl.apply": app.limits.apply,
    "LimitControl.pause": lambda: app.limits.pause(queue="mail"),
    "LimitControl.resume": lambda: app.limits.resume(queue="mail"),
    "LimitControl.drain": lambda: app.limits.drain(queue="mail"),
    "LimitControl.list": app.limits.list,
    "LimitControl.history": app.limits.history,
    "ScheduleControl.add": lambda: app.schedules.add("s", other, every=60),
    "ScheduleControl.list": app.schedules.list,
    "ScheduleControl.pause": lambda: app.schedules.pause("s"),
    "ScheduleControl.resume": lambda: app.schedules.resume("s"),
    "ScheduleControl.trigger": lambda: app.schedules.trigger("s"),
    "ScheduleControl.remove": lambda: app.schedules.remove("s"),
}
KEPT = {"App.start_many", "Run.result", "Run.signal", "Run.cancel", "Batch.result"}
"""What a workflow may do itself: it is kept."""


def test_no_call_is_left_out() -> None:
    found = {
        f"{kind.__name__}.{name}"
        for kind in (App, Run, Batch, LimitControl, ScheduleControl)
        for name, member in vars(kind).items()
        if not name.startswith("_") and callable(member)
        if str(typing.cast("Any", member).__annotations__.get("return", "")).startswith(("Call[", "Stream["))
    }
    assert found == CALLS.keys() | KEPT | {"App.close"}


async def done(make: Callable[[], Call[Any] | Stream[Any]]) -> str:
    """What became of a call: the name of the error, or nothing."""
    try:
        made = make()
        if isinstance(made, AsyncIterable):
            async for _ in made:
                break
        else:
            await made
    except PerdureError as error:
        return type(error).__name__
    return ""


@pytest.mark.parametrize("name", CALLS)
async def test_it_is_refused_in_a_workflow_and_done_in_a_step(name: str) -> None:
    @step
    async def in_a_step() -> str:
        return await done(CALLS[name])

    @app.workflow(name="flow " + name)
    async def flow() -> tuple[str, str]:
        return await done(CALLS[name]), await in_a_step()

    async with play(app):
        refused, allowed = await flow.run()
    assert refused == "NotDurable"
    assert allowed in ("", "RunNotFound", "BatchNotFound", "ScheduleNotFound")
