"""What `perdure doctor` shows of a store."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator

from perdure.stores.base import Finding, Severity
from perdure.stores.sqlite.connect import Location
from perdure.stores.sqlite.executor import Transaction
from perdure.stores.sqlite.filesystem import mounted_on_network
from perdure.stores.sqlite.migrate import expected, newest, schema
from perdure.stores.sqlite.reads import dead_workers

_CHECKED_SIZE = 1 << 30
"""Larger files are not read through: it would take minutes and push everything else out of the caches."""
_LARGE_WAL = 1 << 28
_LITTLE_SPACE = 1 << 30


def examine(transaction: Transaction, location: Location) -> list[Finding]:
    """Looks at everything that can be wrong with a store. Reads only."""
    findings = [Finding(Severity.OK, f"SQLite {sqlite3.sqlite_version}"), *_schema(transaction)]
    if location.path is not None:
        findings += _file(transaction, location, location.path)
    findings += [_integrity(transaction, location), _workers(transaction)]
    return findings


def _schema(transaction: Transaction) -> Iterator[Finding]:
    found, wanted = schema(transaction.connection), expected()
    changed = sorted(what for what in wanted if found.get(what) != wanted[what])
    added = sorted(found.keys() - wanted.keys())
    if changed:
        yield Finding(
            Severity.PROBLEM,
            f"somebody changed the schema: {', '.join(changed)}",
            "stop all workers and restore a backup, or put back what was changed",
        )
    if added:
        yield Finding(
            Severity.WARNING,
            f"not of this library: {', '.join(added)}",
            "keep tables, indexes and triggers of your own in another file",
        )
    if not changed and not added:
        yield Finding(Severity.OK, f"schema version {newest()}, as it was made")


def _file(transaction: Transaction, location: Location, path: str) -> Iterator[Finding]:
    mode = transaction.row("PRAGMA journal_mode")[0]
    if mode == "wal":
        yield Finding(Severity.OK, "journal mode wal")
    else:
        yield Finding(Severity.PROBLEM, f"journal mode {mode}", "close what else has the file open, and open it again")
    if location.synchronous == "full":
        yield Finding(Severity.OK, "synchronous full: what is committed survives the loss of power")
    else:
        yield Finding(
            Severity.WARNING,
            "synchronous normal: the last commits may be lost with the power",
            "leave out synchronous=normal, unless that is meant",
        )
    kind = mounted_on_network(path)
    if kind is None:
        yield Finding(Severity.OK, "local file system")
    else:
        yield Finding(Severity.PROBLEM, f"network file system {kind}", "move the file to a local disk")
    yield _wal(path)
    yield _space(path)


def _wal(path: str) -> Finding:
    try:
        size = os.path.getsize(path + "-wal")
    except OSError:
        size = 0
    what = f"write-ahead log of {_mebibytes(size)}"
    if size <= _LARGE_WAL:
        return Finding(Severity.OK, what)
    return Finding(Severity.WARNING, what, "find the process that keeps a read transaction open; it can't be folded in")


def _space(path: str) -> Finding:
    free = shutil.disk_usage(os.path.dirname(path)).free
    what = f"{_mebibytes(free)} free on the disk"
    if free >= _LITTLE_SPACE:
        return Finding(Severity.OK, what)
    return Finding(Severity.WARNING, what, "free some space before the store can't grow any more")


def _integrity(transaction: Transaction, location: Location) -> Finding:
    if location.path is not None and os.path.getsize(location.path) > _CHECKED_SIZE:
        return Finding(
            Severity.OK, "integrity not checked: the file is large", "run `PRAGMA quick_check` at a calm time"
        )
    answer = transaction.row("PRAGMA quick_check(1)")[0]
    if answer == "ok":
        return Finding(Severity.OK, "integrity ok")
    return Finding(Severity.PROBLEM, f"damaged: {answer}", "stop all workers and restore a backup")


def _workers(transaction: Transaction) -> Finding:
    dead = dead_workers(transaction)
    if dead == 0:
        return Finding(Severity.OK, "no dead workers")
    return Finding(
        Severity.WARNING, f"{dead} dead workers wait to be reclaimed", "start a worker: any one takes back their runs"
    )


def _mebibytes(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
