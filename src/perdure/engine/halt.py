"""`Halt`: how sync code of a run is unwound when the run goes on elsewhere, or later."""

from __future__ import annotations


class Halt(BaseException):
    """This execution is over here: the run is parked, handed back, or owned by another worker.

    Raised in threads to code that waits for a step, a wait or a start, or calls one, so that nothing more of it is done
    or written. A `finally` runs, as it would when a process is asked to end. (Async code is closed, or cancelled.)
    """
