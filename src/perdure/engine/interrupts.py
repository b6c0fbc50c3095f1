"""Tells Ctrl-C from a `KeyboardInterrupt` that code raises: the one ends the program, the other fails a run."""

from __future__ import annotations

import dis


def is_ctrl_c(error: BaseException) -> bool:
    """Whether an exception is what Python, or asyncio's handler, raises for SIGINT, between any two instructions of
    whatever runs just then. Code of the user's says `raise`."""
    if not isinstance(error, KeyboardInterrupt):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_globals.get("__name__") == "asyncio.runners":
        return True
    return dis.opname[trace.tb_frame.f_code.co_code[trace.tb_lasti]] != "RAISE_VARARGS"
