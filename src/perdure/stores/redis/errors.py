"""The one place where errors of the driver and the server become errors of the store."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Sequence

import hiredis

from perdure.errors import (
    CheckpointNotFound,
    IdConflict,
    InvalidInput,
    KeyTaken,
    PerdureError,
    RunEnded,
    RunNotEnded,
    RunNotFound,
    ScheduleNotFound,
    StoreError,
    StoreUnavailable,
    UnknownWorkflow,
    ValueTooLarge,
)
from perdure.stores.redis.url import Kind, Location

DOMAIN: dict[str, type[PerdureError]] = {
    "run_not_found": RunNotFound,
    "run_ended": RunEnded,
    "run_not_ended": RunNotEnded,
    "checkpoint_not_found": CheckpointNotFound,
    "key_taken": KeyTaken,
    "schedule_not_found": ScheduleNotFound,
    "invalid": InvalidInput,
    "too_large": ValueTooLarge,
    "id_conflict": IdConflict,
    "unknown_workflow": UnknownWorkflow,
    "store": StoreError,
}
"""What scripts raise as `PERDURE code text`; the text is theirs, for people."""

DRIVER_ERRORS = (hiredis.HiredisError, OSError)
"""Whatever a call of the driver may raise."""

_SAID = {
    "WRONGPASS": "refused the user or the password: correct them in the URL",
    "NOAUTH": "wants a password: give it in the URL, as in redis://user:password@host",
    "NOPROTO": "does not speak RESP3, so it is too old: Perdure needs Redis 7.0 or Valkey 8.0, or newer",
    "WRONGTYPE": "has a key of another kind than was written: something else writes under namespace {namespace!r}",
    "CROSSSLOT": "refused keys of two slots in one call",
}
_SAID_FOR_NOW = {
    "READONLY": "takes no writes: it is a replica, or became one in a failover",
    "UNBLOCKED": "became a replica in a failover",
    "LOADING": "is loading its data from the disk; try again soon",
    "BUSY": "is busy with a script that takes long: look for it in SLOWLOG",
    "UNKILLABLE": "is busy with a script that takes long: look for it in SLOWLOG",
    "MASTERDOWN": "is a replica that has lost its primary",
    "CLUSTERDOWN": "is a cluster that is down: some of its slots have no primary",
    "TRYAGAIN": "is moving the keys of a partition to another node; try again soon",
    "ASK": "is moving the keys of a partition to another node; try again soon",
    "MOVED": "sends calls round and round its nodes; try again soon",
    "OOM": "is full: it uses more memory than its maxmemory; raise that, or prune runs that ended",
    "MISCONF": "takes no writes, since it can't save its data: look at its disk and log",
    "NOREPLICAS": "takes no writes, since too few replicas are connected (min-replicas-to-write)",
}
_BROKEN = {"READONLY", "MASTERDOWN", "NOAUTH", "WRONGPASS", "UNBLOCKED"}
"""After these a connection is of no use: the next one may lead to another server."""

_OTHER_NAME = (62, 64)
"""What OpenSSL says of a certificate whose name, or address, is another one."""
_ON_CHANNELS = frozenset({"publish", "spublish", "subscribe", "ssubscribe"})
_BROKEN_LUA = re.compile(r"attempt to (index|perform|compare|concatenate|call)|bad argument #\d+ to")
"""What Lua says of a value that is not there, or of another kind: scripts find what they have kept, whole."""
_COMMAND = re.compile(r"'([^']+)' command")
_UNKNOWN = re.compile(r"unknown (?:sub)?command[ `']+([A-Za-z|]+)")


class Lost(ConnectionError):
    """A connection that ended: what it was asked may or may not have been done."""


class Unheard(ConnectionError):
    """A connection on which the server said nothing, as happens where one of the two sides speaks TLS."""

    def __init__(self, error: TimeoutError | Lost, *, with_tls: bool) -> None:
        super().__init__(str(error))
        self._late = isinstance(error, TimeoutError)
        self._with_tls = with_tls

    def told(self) -> str:
        """What happened, and what may be wrong."""
        what = "did not answer in time" if self._late else f"broke the connection off ({self})"
        match self._late, self._with_tls:
            case True, True:
                return f"{what}; if that port is one without TLS, write redis:// instead of rediss://"
            case False, True:
                return f"{what}; if it wants a certificate of its clients, give cert=… and key=…"
            case False, False:
                return f"{what}; if that port is for TLS, write rediss:// instead of redis://"
            case _:
                return what


def code(error: hiredis.ReplyError) -> str:
    """The word that the server's text begins with."""
    return str(error).partition(" ")[0]


def is_broken(error: BaseException) -> bool:
    """Whether the connection that the error came by is to be dropped."""
    if isinstance(error, hiredis.ReplyError):
        return code(error) in _BROKEN
    return isinstance(error, hiredis.HiredisError | OSError)


def is_unknown(error: hiredis.ReplyError) -> bool:
    """Whether a server did not know the script or the function that it was to run."""
    return str(error).startswith(("NOSCRIPT", "ERR Function not found"))


def translate(error: BaseException, location: Location) -> Exception:
    """The store's error for what a driver or server said; the words of those are in its parentheses."""
    translated = _translate(error, location, f"the store {location.name}")
    translated.__cause__ = error
    return translated


def _translate(error: BaseException, location: Location, where: str) -> Exception:
    if isinstance(error, StoreError):
        return error
    if isinstance(error, hiredis.ReplyError):
        return _from_server(error, location, where)
    if isinstance(error, hiredis.HiredisError):
        return StoreError(f"{where} answers in a way that is not Redis's: look at host and port in the URL ({error})")
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _OTHER_NAME:
            return StoreError(
                f"{where} shows a certificate of another name than the URL has: correct the host, or give verify=no"
                f" ({error})"
            )
        return StoreError(f"{where} shows a certificate that is not trusted: give ca=…, or verify=no ({error})")
    if "CERTIFICATE_REQUIRED" in str(error):  # Which may come after the handshake, as the end of the connection.
        return StoreError(f"{where} wants a certificate of its clients: give cert=… and key=… ({error})")
    if isinstance(error, FileNotFoundError | PermissionError | ssl.SSLError) and location.tls is not None:
        for option in ("ca", "cert", "key"):
            file = getattr(location.tls, option)
            if file is not None and not os.access(file, os.R_OK):
                return StoreError(f"{where} can't be used: {option} is {file!r}, and there is no such file to be read")
    if isinstance(error, Unheard):
        return StoreUnavailable(f"{where} {error.told()}")
    if isinstance(error, TimeoutError):
        return StoreUnavailable(f"{where} did not answer in time")
    if isinstance(error, Lost):
        return StoreUnavailable(f"{where} broke the connection off ({error})")
    return StoreUnavailable(f"{where} can't be reached ({error})")


def _from_server(error: hiredis.ReplyError, location: Location, where: str) -> Exception:
    said = str(error)
    word, _, rest = said.partition(" ")
    if word == "PERDURE":
        name, _, text = rest.partition(" ")
        return DOMAIN[name](text) if name in DOMAIN else StoreError(f"{where} failed: {rest}")
    if word == "MOVED" and location.kind is not Kind.CLUSTER:
        return StoreError(f"{where} is a node of a cluster: write redis+cluster:// instead of redis://")
    if word == "NOPERM" or "ACL failure in script" in said or "The user executing the script" in said:
        lacks, advice = missing_right(error, location)
        return StoreError(f"{where} does not permit that to this user: it lacks {lacks}; {advice} ({said})")
    if word in _SAID:
        return StoreError(f"{where} {_SAID[word].format(namespace=location.namespace)} ({said})")
    if word in _SAID_FOR_NOW:
        return StoreUnavailable(f"{where} {_SAID_FOR_NOW[word]} ({said})")
    if "cannot be used with replica instances" in said:
        return StoreUnavailable(f"{where} {_SAID_FOR_NOW['UNBLOCKED']} ({said})")
    if "max number of clients" in said:
        return StoreUnavailable(f"{where} has no connection left: raise its maxclients ({said})")
    if "DB index is out of range" in said:
        return StoreError(f"{where} has no such database: correct its number in the URL ({said})")
    if "appendonly is disabled" in said:
        return StoreError(f"{where} has no append-only file: durability=fsync needs its setting appendonly ({said})")
    if _BROKEN_LUA.search(said):
        return StoreError(
            f"{where} lacks something of what belongs together: did its server evict keys (maxmemory-policy), or did"
            f" somebody else remove or change some of namespace {location.namespace!r}? ({said})"
        )
    unknown = _UNKNOWN.search(said)
    if unknown is not None:
        return StoreError(f"{where} has no command {unknown[1]}: it is too old, or the command is disabled ({said})")
    return StoreError(f"{where} failed: {said}")


def lacking_rights(commands: Sequence[str], location: Location) -> StoreError:
    """The error for commands that a user may not run, in whatever script."""
    advice = f"ACL SETUSER {location.user or 'default'} +{' +'.join(commands)}"
    if _ON_CHANNELS & {*commands}:  # Or it may, but not on our channels.
        advice += f" '&{_begin(location)}'"
    return StoreError(
        f"the store {location.name} does not permit to this user what is needed: it lacks the commands"
        f" {', '.join(commands)}; {advice}"
    )


def _begin(location: Location) -> str:
    """The pattern of our keys and channels."""
    return f"{{{location.namespace}{':' if location.kind is Kind.CLUSTER else '}'}*"


def missing_right(error: hiredis.ReplyError, location: Location) -> tuple[str, str]:
    """What a user lacks, by the words of the server, and what to do about it."""
    said = str(error)
    user = location.user or "default"
    begin = _begin(location)
    command = _COMMAND.search(said)
    if command is not None:
        return f"the command {command[1]}", f"ACL SETUSER {user} +{command[1]}"
    if "can't run this command" in said:  # Of a script, by a server that does not say which.
        return "a command", "`perdure doctor` names those that it lacks"
    if "channel" in said:
        return "channels", f"ACL SETUSER {user} '&{begin}'"
    return "keys", f"ACL SETUSER {user} '~{begin}'"
