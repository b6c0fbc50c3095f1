"""`Halt`: how code of a run is unwound when the run goes on elsewhere, or later."""

from __future__ import annotations


class Halt(BaseException):
    """This execution is over here: the run is parked, handed back, or owned by another worker.

    It unwinds user code without counting as its failure. A `finally` runs, as it would when a process is asked to
    end; steps, waits and starts called from there raise `Halt` again, so nothing is written.
    """
