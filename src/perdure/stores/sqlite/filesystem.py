"""What a path can tell before SQLite opens it: mistakes, and file systems on which WAL does not work."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from perdure.errors import StoreError, StoreUnavailable

_NETWORK = re.compile(
    r"nfs\d*|cifs|smb\w*|9p|afs|openafs|ncpfs|lustre|gfs2?|ocfs2|ceph|beegfs\w*|gpfs|pvfs2|orangefs|glusterfs|davfs2?"
    r"|fuse\.(sshfs|glusterfs\w*|ceph\w*|s3fs|gcsfuse|rclone|davfs\w*|blobfuse\w*|juicefs|goofys|smbnetfs)"
)
_OCTAL = re.compile(r"\\([0-7]{3})")


def network_filesystem(mounts: str, path: str) -> str | None:
    """The type of the network file system that an absolute path is on, by the text of `/proc/mounts`; else None.

    The longest mount point that holds the path counts, and of several at one place the last one, which hides the rest.
    """
    longest, kind = -1, ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[1])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= longest:
            longest, kind = len(point), fields[2]
    return kind if _NETWORK.fullmatch(kind) else None


def mounted_on_network(path: str) -> str | None:
    """Like `network_filesystem`, for this machine; None where there is no `/proc/mounts`."""
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    return network_filesystem(mounts, os.path.realpath(path))


def check_path(path: str) -> None:
    """Raises `StoreError` for a path that can't become a store, and says what to do."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:  # too long, not to be looked at, or no name that a file can have
        raise StoreError(f"the store {path[:200]!a} can't be a file ({error}); give it another path") from error
    file = Path(path)
    parent = file.parent
    if not parent.is_dir():
        raise StoreError(f"the directory {parent} for the store {path} does not exist; create it")
    if file.is_dir():
        raise StoreError(f"the store {path} is a directory; name a file in it")
    if file.exists() and not os.access(file, os.W_OK):
        raise StoreError(f"the store {path} is read-only; make the file writable for this user")
    if not os.access(parent, os.W_OK):
        raise StoreError(
            f"the directory {parent} is read-only, but SQLite keeps files beside the store {path}; make it writable"
        )
    kind = mounted_on_network(path)
    if kind is not None:
        raise StoreError(
            f"the store {path} is on a network file system ({kind}), where SQLite's locks are not safe; "
            "move it to a local disk"
        )


def watch_file(path: str | None, name: str) -> Callable[[], None]:
    """A check that a file is still the one that was opened: SQLite would go on with one that was removed or replaced,
    and what it commits there is lost. Raises `StoreUnavailable`."""
    if path is None:
        return lambda: None
    opened = _identity(path)

    def check() -> None:
        # Before every commit, so that none is acknowledged that is lost; it is two microseconds.
        if _identity(path) != opened:
            raise StoreUnavailable(
                f"the store {name} was removed or replaced while it was in use; nothing is written any more. Put the"
                " file back, or restart what uses it"
            )

    return check


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
