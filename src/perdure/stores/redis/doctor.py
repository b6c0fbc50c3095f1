"""What `perdure doctor` shows of a store on Redis or Valkey."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import hiredis
from msgspec.structs import replace

from perdure.errors import StoreError
from perdure.model import Millis
from perdure.stores.base import Finding, Severity
from perdure.stores.redis.errors import DRIVER_ERRORS, code, missing_right, translate
from perdure.stores.redis.listen import hears
from perdure.stores.redis.route import Route
from perdure.stores.redis.scripts import besides, commands, lacking
from perdure.stores.redis.url import Address, Durability, Kind, Location
from perdure.stores.redis.wire import Argument, Connection, dial

Info: TypeAlias = Mapping[str, str]

_FULL = 0.9
_CLOCKS_APART: Millis = 1_000
_PINGS = 20
_FAR = 0.010
"""Seconds of a round trip from which on each wake of a worker takes long."""
_BEHIND, _LATE = 16 << 20, 10
"""Bytes and seconds that a replica may lag."""


async def examine(location: Location) -> list[Finding]:
    """Looks at everything that can be wrong with the servers of a store, and what lies between. Reads only.

    What the user of the URL may not look at becomes a finding. Raises `StoreError`.
    """
    findings: list[Finding] = []
    try:
        route = Route(location)
        await route.learn()
        nodes: dict[Address, bytes] = {}
        for partition, prefix in enumerate(location.prefixes):
            nodes.setdefault(route.of(partition), prefix)
        for address, prefix in nodes.items():
            where = f"node {address[0]}:{address[1]}: " if location.kind is Kind.CLUSTER else ""
            connection = await dial(location, address)
            try:
                found = await _Server(location, connection, prefix).examine()
            finally:
                connection.abort()
            findings += [replace(each, what=where + each.what) for each in found]
    except DRIVER_ERRORS as error:
        raise translate(error, location) from error
    return [*findings, await _wake_ups(location)]


class _Server:
    """One that is examined."""

    def __init__(self, location: Location, connection: Connection, prefix: bytes) -> None:
        self._location = location
        self._connection = connection
        self._prefix = prefix
        self._denied: list[Finding] = []

    async def examine(self) -> list[Finding]:
        hello = self._connection.hello
        findings = [
            Finding(Severity.OK, f"{hello[b'server'].decode().capitalize()} {hello[b'version'].decode()}"),
            *await self._clocks(),
            *await self._distance(),
            *await self._rights(),
        ]
        info = _fields(await self._ask("INFO", "everything"))
        if info:
            findings += [
                *_memory(info),
                *_persistence(info, await self._settings()),
                *_replicas(info, self._location),
                *await self._files_of_replicas(info),
                *_clients(info),
            ]
        return [*findings, *self._denied]

    async def _ask(self, *command: Argument) -> Any:
        """The reply to a command; None when the user may not run it."""
        try:
            return await self._connection.run(*command)
        except hiredis.ReplyError as error:
            if code(error) != "NOPERM":
                raise
            lacks, advice = missing_right(error, self._location)
        self._denied.append(
            Finding(
                Severity.OK,
                f"not everything was looked at: this user lacks {lacks}",
                f"{advice}, or run this as another user",
            )
        )
        return None

    async def _settings(self) -> Info:
        found = await self._ask("CONFIG", "GET", "save", "appendfsync")
        return {key.decode(): value.decode() for key, value in found.items()} if found else {}

    async def _clocks(self) -> list[Finding]:
        sent = time.time() * 1000
        there = await self._ask("TIME")
        return [] if there is None else [clocks(sent, time.time() * 1000, int(there[0]) * 1000 + int(there[1]) // 1000)]

    async def _distance(self) -> list[Finding]:
        times: list[float] = []
        for _ in range(_PINGS):
            start = time.perf_counter()
            if await self._ask("PING") is None:
                return []
            times.append(time.perf_counter() - start)
        return [distance(statistics.median(times))]

    async def _files_of_replicas(self, info: Info) -> list[Finding]:
        """With `durability=fsync`, whether enough replicas write to a disk: the others never confirm."""
        location = self._location
        if location.durability is not Durability.FSYNC or not location.replicas:
            return []
        found, files = _followers(info), 0
        for each in found:
            try:
                connection = await dial(location, (each["ip"], int(each["port"])), any_role=True)
                try:
                    theirs = _fields(await connection.run("INFO", "persistence"))
                finally:
                    connection.abort()
            except (StoreError, *DRIVER_ERRORS) as error:
                return [
                    Finding(
                        Severity.WARNING,
                        f"whether replica {each['ip']}:{each['port']} has an append-only file is not known: {error}",
                        "look at it yourself: durability=fsync waits for those of replicas too",
                    )
                ]
            files += theirs["aof_enabled"] != "0"
        if files >= min(location.replicas, len(found)):
            return []
        return [
            Finding(
                Severity.PROBLEM,
                f"the URL asks for {location.replicas} replicas that have each write on their disk, and {files} of"
                f" {len(found)} have an append-only file: no write is confirmed",
                "CONFIG SET appendonly yes on the replicas, and in their configuration",
            )
        ]

    async def _rights(self) -> list[Finding]:
        """By what a script may see of them: nothing is run."""
        needed = {*commands(), *besides(self._location)}
        found = await self._ask("EVAL", lacking(), 1, self._prefix, *sorted(needed))
        if found is None:
            return []
        lacks = [each.decode() for each in found]
        if not lacks:
            return [Finding(Severity.OK, "all rights that are needed")]
        more = f" and {len(lacks) - 5} more" if len(lacks) > 5 else ""
        return [
            Finding(
                Severity.PROBLEM,
                f"this user lacks commands: {', '.join(lacks[:5])}{more}",
                f"ACL SETUSER {self._location.user or 'default'} +{' +'.join(lacks)}",
            )
        ]


def clocks(sent: float, came: float, there: Millis) -> Finding:
    """Whether a clock that was asked between two moments agrees with ours."""
    apart = max(sent - there - 1, there - came, 0.0)
    if apart < _CLOCKS_APART:
        return Finding(Severity.OK, "the clocks of this machine and of the server agree")
    return Finding(
        Severity.WARNING,
        f"the clocks of this machine and of the server are {apart / 1000:,.0f} s apart",
        "set both by NTP: Perdure goes by the server's, and your program by this one's",
    )


def distance(seconds: float) -> Finding:
    """What a round trip of so many seconds means."""
    what = f"a round trip takes {seconds * 1000:,.2f} ms"
    if seconds < _FAR:
        return Finding(Severity.OK, what)
    return Finding(
        Severity.WARNING,
        f"{what}, and each wake of a worker is one at least",
        "run workers near the server; look at its SLOWLOG and at its load",
    )


def _memory(info: Info) -> Iterator[Finding]:
    policy, used, most = info["maxmemory_policy"], int(info["used_memory"]), int(info["maxmemory"])
    if policy == "noeviction":
        yield Finding(Severity.OK, "nothing is evicted when memory is full")
    else:
        yield Finding(
            Severity.PROBLEM if most else Severity.WARNING,
            f"maxmemory-policy is {policy}: when memory is full the server throws away keys, and with them runs",
            "CONFIG SET maxmemory-policy noeviction, and in the server's configuration; keep caches on another server",
        )
    if not most:
        yield Finding(
            Severity.OK,
            f"{_mebibytes(used)} of memory are used, without a limit",
            "set maxmemory: starts are refused then, where the system would end the server",
        )
    elif used < most * _FULL:
        yield Finding(Severity.OK, f"{_mebibytes(used)} of {_mebibytes(most)} of memory are used")
    else:
        yield Finding(
            Severity.WARNING,
            f"{_mebibytes(used)} of {_mebibytes(most)} of memory are used; starts are refused when it is full",
            "raise maxmemory, or keep fewer runs that ended (retention)",
        )


def _persistence(info: Info, settings: Info) -> Iterator[Finding]:
    if info["aof_enabled"] != "0":
        yield from _append_only(info, settings)
    elif settings.get("save") == "":
        yield Finding(
            Severity.PROBLEM,
            "nothing is kept on disk: all runs are lost when the server ends",
            "CONFIG SET appendonly yes, and in the server's configuration",
        )
    else:
        yield Finding(
            Severity.WARNING,
            "only snapshots are kept on disk, no append-only file: a crash loses all since the last snapshot",
            "CONFIG SET appendonly yes, and in the server's configuration",
        )
    if info["rdb_last_bgsave_status"] != "ok":
        yield Finding(
            Severity.PROBLEM, "the last snapshot could not be written", "look at the server's disk and at its log"
        )


def _append_only(info: Info, settings: Info) -> Iterator[Finding]:
    if info["aof_last_write_status"] != "ok" or info["aof_last_bgrewrite_status"] != "ok":
        yield Finding(
            Severity.PROBLEM, "the append-only file could not be written", "look at the server's disk and at its log"
        )
    match settings.get("appendfsync"):
        case "no":
            yield Finding(
                Severity.WARNING,
                "appendfsync is no: a crash of the machine loses what the system had not written yet",
                "CONFIG SET appendfsync everysec, or always",
            )
        case "everysec":
            yield Finding(
                Severity.OK,
                "an append-only file, written to disk each second: a crash of the machine loses the last one",
                "give durability=fsync in the URL, or set appendfsync always, if that is too much",
            )
        case _:
            yield Finding(Severity.OK, "an append-only file")


def _followers(info: Info) -> list[dict[str, str]]:
    return [
        dict(part.split("=", 1) for part in value.split(","))
        for key, value in info.items()
        if re.fullmatch(r"slave\d+", key)
    ]


def _replicas(info: Info, location: Location) -> Iterator[Finding]:
    replicas = _followers(info)
    head = int(info["master_repl_offset"])
    good = 0
    for each in replicas:
        behind, late = head - int(each["offset"]), int(each["lag"])
        if each["state"] == "online" and behind < _BEHIND and late < _LATE:
            good += 1
            continue
        state = "" if each["state"] == "online" else f" ({each['state']})"
        yield Finding(
            Severity.WARNING,
            f"replica {each['ip']}:{each['port']}{state} is {_mebibytes(max(behind, 0))} behind, and was last heard of"
            f" {late} s ago: a failover to it loses what it does not have",
            "look at its log, and at the network between the two",
        )
    if good < location.replicas:
        yield Finding(
            Severity.PROBLEM,
            f"the URL asks for {location.replicas} replicas that have each write, and {good} follow",
            "start more replicas, or ask for fewer with ?replicas=…",
        )
    elif good == len(replicas):
        yield Finding(Severity.OK, f"{good} replicas, which follow" if good else "no replicas")


def _clients(info: Info) -> Iterator[Finding]:
    used, most = int(info["connected_clients"]), int(info.get("maxclients", 0))
    what = f"{used} of {most} connections are in use"
    if used < most * _FULL:
        yield Finding(Severity.OK, what)
    elif most:
        yield Finding(Severity.WARNING, what, "raise maxclients, or look who opens so many")


async def _wake_ups(location: Location) -> Finding:
    try:
        heard = await hears(location)
    except StoreError as error:
        return Finding(
            Severity.WARNING, f"no wake-ups come through: {error}", "workers find work by polling until then"
        )
    if heard:
        return Finding(Severity.OK, "wake-ups come through")
    return Finding(
        Severity.WARNING,
        "no wake-ups come through",
        "look whether something between drops them; workers find work by polling until then",
    )


def _fields(info: bytes | None) -> Info:
    """What INFO says."""
    lines = (info or b"").decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def _mebibytes(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
