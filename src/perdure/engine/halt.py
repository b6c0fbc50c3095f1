"""How code of a run is unwound that is not to go on here."""

from __future__ import annotations

from perdure.model import Json


class Halt(BaseException):
    """This execution is over here: the run is parked, handed back, or owned by another worker.

    Raised in threads to code that waits for a step, a wait or a start, or calls one, so that nothing more of it is done
    or written. A `finally` runs, as it would when a process is asked to end. (Async code is closed, or cancelled.)
    """


class ContinueAsNew(BaseException):
    """Unwinds the workflow; the run begins anew with another input."""

    def __init__(self, body: Json) -> None:
        super().__init__("continue as new")
        self.body = body
