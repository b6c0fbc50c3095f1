"""The one place where errors of SQLite become errors of the store."""

from __future__ import annotations

import sqlite3

from perdure.errors import PerdureError, StoreError, StoreUnavailable

_FOR_NOW = {
    sqlite3.SQLITE_BUSY: "is locked by another process; find the one with the long transaction, or raise busy_timeout",
    sqlite3.SQLITE_LOCKED: "is locked; try again",
    sqlite3.SQLITE_FULL: "can't grow, the disk is full; free some space",
    sqlite3.SQLITE_IOERR: "can't be read or written; look at the disk and at the system's log",
    sqlite3.SQLITE_READONLY: "can't be written; make the file and its directory writable for this user",
    sqlite3.SQLITE_CANTOPEN: "can't be opened; look at the file's directory, its rights, and the limit of open files",
    sqlite3.SQLITE_PROTOCOL: "is locked by too many processes at once; try again",
    sqlite3.SQLITE_NOMEM: "found no memory left; try again",
    sqlite3.SQLITE_INTERRUPT: "was interrupted; try again",
}
_FOR_GOOD = {
    sqlite3.SQLITE_CORRUPT: "is damaged; stop all workers and restore a backup, or save what is left with `.recover`",
    sqlite3.SQLITE_NOTADB: "is not an SQLite database; choose another path, or move that file away",
    sqlite3.SQLITE_TOOBIG: "refused a value as too large; keep large values elsewhere and pass on where they are",
}


def translate(error: Exception, name: str) -> Exception:
    """The store's error for whatever went wrong in a transaction; errors of the domain stay what they are."""
    if isinstance(error, PerdureError) or not isinstance(error, sqlite3.Error):
        return error
    # Errors that the Python module itself finds, such as a closed connection, have no code.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in _FOR_NOW:
        translated: StoreError = StoreUnavailable(f"the store {name} {_FOR_NOW[code]} ({error})")
    elif code in _FOR_GOOD:
        translated = StoreError(f"the store {name} {_FOR_GOOD[code]} ({error})")
    else:
        translated = StoreError(f"the store {name} failed: {error}")
    translated.__cause__ = error
    return translated
