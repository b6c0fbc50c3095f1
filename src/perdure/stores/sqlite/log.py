"""Room at the end of the write-ahead log."""

from __future__ import annotations

import os

_FULL = 16 << 20
"""Bytes that the log has, about, when it is begun anew: from then on it does not grow any more."""

_BUSY = 1 << 20
"""Bytes of a log that is worth it: who writes little makes no room."""

_CHUNK = 1 << 20
"""Bytes that one commit makes it longer by."""

_LOOK = 16
"""Commits from one look at the length to the next. Each look is paid for by the write after it: the file system has to
note a new time then."""


class LogRoom:
    """Makes the log as long as it is going to be before commits do, bit by bit: one that writes over what is there
    waits for its own data only, one that makes the file longer for the journal of the file system as well, which takes
    about as long again.

    What lies behind the last commit in a log is passed over by SQLite, as are the remains of an earlier round.
    """

    def __init__(self, database: str) -> None:
        self._path = f"{database}-wal"
        self._commits = 0
        self._making = False
        self._made = False

    def make(self) -> None:
        """To be called before each commit, with the lock that writers hold: so nobody else writes to the log or
        shortens it meanwhile."""
        self._commits += 1
        if self._made or not (self._making or self._commits % _LOOK == 0):
            return
        try:
            size = os.stat(self._path).st_size
            self._made = size >= _FULL
            self._making = size >= _BUSY
            if self._making and not self._made:
                _append(self._path)
        except OSError:
            self._made = True  # It only saves time; and where there is no space left, the commit itself tells.


def _append(path: str) -> None:
    log = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(log, bytes(_CHUNK))
    finally:
        os.close(log)
