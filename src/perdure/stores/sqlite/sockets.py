"""Where sockets for wake-ups lie: a directory for each process, and what those leave behind that were killed."""

from __future__ import annotations

import itertools
import os
import re
import secrets
import shutil
import socket
import stat
import tempfile

_LONGEST_PATH = 100
"""Bytes of a socket's path that every system allows."""
_NAME = re.compile(r"perdure-(\d+)-\w+")
_LOOKED_AT, _REMOVED = 10_000, 100
"""The most entries that a sweep looks at, and the most directories that it removes."""


class Directory:
    """The directory of one process. In a child that was forked from it, nothing happens to it."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._path: str | None = None

    def bind(self) -> socket.socket | None:
        """A new socket with a path that others can send to; None where there can't be one."""
        try:
            if self._path is None:
                sweep(tempfile.gettempdir())
                self._path = tempfile.mkdtemp(prefix=f"perdure-{self._pid}-")
            path = os.path.join(self._path, secrets.token_hex(4))
            return None if len(os.fsencode(path)) > _LONGEST_PATH else _bound(path)
        except OSError:
            return None  # No room, no rights, or no descriptors left: polling has to do.

    def remove(self) -> None:
        """Removes it with all that is in it."""
        if self._path is not None and self._pid == os.getpid():
            shutil.rmtree(self._path, ignore_errors=True)


def _bound(path: str) -> socket.socket:
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        receiver.setblocking(False)
        receiver.bind(path)
    except BaseException:
        receiver.close()
        raise
    return receiver


def clear(path: str) -> None:
    """Removes a socket at which nobody listens, and its directory, if it is one of ours and empty then."""
    directory = os.path.dirname(path)
    if not _NAME.fullmatch(os.path.basename(directory)) or not _silent(path):
        return
    try:
        os.unlink(path)
        os.rmdir(directory)
    except OSError:
        pass  # It isn't ours to remove, or others of its process go on.


def sweep(temporary: str) -> None:
    """Removes directories whose processes are gone: a bounded number of them."""
    try:
        with os.scandir(temporary) as entries:
            found = [entry for entry in itertools.islice(entries, _LOOKED_AT) if _NAME.fullmatch(entry.name)]
    except OSError:
        return
    for entry in [entry for entry in found if _abandoned(entry)][:_REMOVED]:
        shutil.rmtree(entry.path, ignore_errors=True)


def _abandoned(entry: os.DirEntry[str]) -> bool:
    named = _NAME.fullmatch(entry.name)
    try:
        if named is None or entry.stat(follow_symlinks=False).st_uid != os.geteuid() or _alive(int(named[1])):
            return False
        # Processes have other numbers in another container that shares the directory.
        return all(_silent(os.path.join(entry.path, name)) for name in os.listdir(entry.path))
    except OSError:
        return False


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _silent(path: str) -> bool:
    """Whether there is a socket at which nobody listens."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return False
    except OSError:
        return False
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        sender.setblocking(False)
        sender.connect(path)
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    finally:
        sender.close()
    return False
