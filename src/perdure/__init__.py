"""Durable workflows and job queues on the store that you already have."""

from perdure.app import App
from perdure.batch import Batch, BatchProgress
from perdure.call import Call, Stream
from perdure.context import RunContext, current_run, progress, sleep, sleep_until, wait_signal
from perdure.model import State
from perdure.retry import Retry
from perdure.run import Event, Run, RunStatus
from perdure.schedules import ScheduleStatus
from perdure.step import Step, step
from perdure.workflow import Workflow

__all__ = [
    "App",
    "Batch",
    "BatchProgress",
    "Call",
    "Event",
    "Retry",
    "Run",
    "RunContext",
    "RunStatus",
    "ScheduleStatus",
    "State",
    "Step",
    "Stream",
    "Workflow",
    "current_run",
    "progress",
    "sleep",
    "sleep_until",
    "step",
    "wait_signal",
]
