"""Durable workflows and job queues on the store that you already have."""

from perdure.app import App
from perdure.call import Call
from perdure.context import RunContext, current_run, sleep, sleep_until, wait_signal
from perdure.model import State
from perdure.retry import Retry
from perdure.run import Event, Run, RunStatus
from perdure.step import Step, step
from perdure.workflow import Workflow

__all__ = [
    "App",
    "Call",
    "Event",
    "Retry",
    "Run",
    "RunContext",
    "RunStatus",
    "State",
    "Step",
    "Workflow",
    "current_run",
    "sleep",
    "sleep_until",
    "step",
    "wait_signal",
]
