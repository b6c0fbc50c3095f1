"""What servers say, and what is made of it for people."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import hiredis
import pytest

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
from perdure.stores.redis.connect import Redis
from perdure.stores.redis.errors import DOMAIN, is_broken, translate
from perdure.stores.redis.scripts import Script
from perdure.stores.redis.url import Location, parse_url
from servers.postgres import free_port
from servers.redis import RedisServer, installed, own_server, with_login

LOCATION = parse_url("redis://ann:secret@db/1?namespace=shop")
ADD = Script.of("add", "return redis.call('INCRBY', KEYS[1] .. ':n', ARGV[1])")

pytestmark = pytest.mark.anyio


@pytest.fixture(params=installed())
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with own_server(kind=request.param) as made:
        yield made


async def said(url: str, script: Script = ADD, *args: str | int) -> str:
    """What is said of a call that can't work."""
    redis = Redis(parse_url(url))
    try:
        with pytest.raises(StoreError) as caught:
            await redis.call(script, *(args or (1,)))
        assert type(caught.value) is StoreError
        return str(caught.value)
    finally:
        await redis.close()


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("READONLY You can't write against a read only replica.", StoreUnavailable, "takes no writes: it is a replica"),
        ("LOADING Redis is loading the dataset in memory", StoreUnavailable, "is loading its data"),
        ("BUSY Redis is busy running a script.", StoreUnavailable, "is busy with a script"),
        ("MASTERDOWN Link with MASTER is down", StoreUnavailable, "lost its primary"),
        ("CLUSTERDOWN Hash slot not served", StoreUnavailable, "is a cluster that is down"),
        ("OOM command not allowed when used memory > 'maxmemory'.", StoreUnavailable, "is full"),
        ("MISCONF Errors writing to the AOF file", StoreUnavailable, "can't save its data"),
        ("NOREPLICAS Not enough good replicas to write.", StoreUnavailable, "too few replicas"),
        ("MOVED 1 db:1", StoreError, "write redis+cluster:// instead"),
        ("WRONGTYPE Operation against a key", StoreError, "something else writes under namespace 'shop'"),
        ("NOPROTO unsupported protocol version", StoreError, "too old"),
        ("ERR unknown command 'HELLO', with args", StoreError, "has no command HELLO: it is too old"),
        (
            "ERR user_function:812: attempt to index local 'run' (a nil value) script: perdure_exchange_1",
            StoreError,
            "did its server evict keys (maxmemory-policy)",
        ),
        ("ERR something else", StoreError, "failed: ERR something else"),
        ("PERDURE nothing of this", StoreError, "failed: nothing of this"),
    ],
)
def test_what_a_server_says(text: str, kind: type[PerdureError], says: str) -> None:
    error = hiredis.ReplyError(text)
    translated = translate(error, LOCATION)
    assert type(translated) is kind
    assert says in str(translated)
    assert str(translated).startswith("the store redis://ann@db/1 ")
    assert "secret" not in str(translated)
    assert translated.__cause__ is error


def test_what_scripts_raise() -> None:
    assert {type(translate(hiredis.ReplyError(f"PERDURE {code} there is a reason"), LOCATION)) for code in DOMAIN} == {
        *(CheckpointNotFound, IdConflict, InvalidInput, KeyTaken, RunEnded, RunNotEnded, RunNotFound),
        *(ScheduleNotFound, StoreError, UnknownWorkflow, ValueTooLarge),
    }
    assert str(translate(hiredis.ReplyError("PERDURE run_ended run x has ended"), LOCATION)) == "run x has ended"


def test_connections_that_are_of_no_use() -> None:
    assert is_broken(ConnectionResetError())
    assert is_broken(TimeoutError())
    assert is_broken(hiredis.ReplyError("READONLY You can't"))
    assert not is_broken(hiredis.ReplyError("OOM command not allowed"))


def test_files_that_are_not_there() -> None:
    location = parse_url("rediss://db?ca=%2Fno%2Fca.pem")
    error = translate(FileNotFoundError(2, "No such file"), location)
    assert "ca is '/no/ca.pem', and there is no such file" in str(error)


async def test_ways_in_that_are_shut(server: RedisServer) -> None:
    assert "refused the user or the password" in await said(with_login(server.url, "nobody", "x"))
    assert "has no such database" in await said(f"{server.url}/99")
    server.run("CONFIG", "SET", "requirepass", "right")
    assert "wants a password: give it in the URL" in await said(server.url)
    wrong = await said(with_login(server.url, "default", "wrong"))
    assert "refused the user or the password" in wrong
    assert "wrong" not in wrong


async def test_what_a_user_lacks_is_named(server: RedisServer) -> None:
    url = with_login(server.url, "ann", "pw")
    server.run("ACL", "SETUSER", "ann", "on", ">pw", "+hello", "+select", "+script|load")
    assert "lacks the command evalsha; ACL SETUSER ann +evalsha" in await said(url)
    server.run("ACL", "SETUSER", "ann", "+evalsha")
    assert "lacks keys; ACL SETUSER ann '~{perdure}*'" in await said(url)
    server.run("ACL", "SETUSER", "ann", "~{perdure}*", "-script|load")
    server.run("SCRIPT", "FLUSH")
    assert "lacks the command script|load; ACL SETUSER ann +script|load" in await said(url)
    server.run("ACL", "SETUSER", "ann", "+script|load")
    lacks = await said(url)
    assert "it lacks the command incrby" in lacks or "`perdure doctor` names those that it lacks" in lacks
    server.run("ACL", "SETUSER", "ann", "+incrby")
    redis = Redis(parse_url(url))
    assert await redis.call(ADD, 1) == 1
    await redis.close()


# --- TLS

OPENSSL = shutil.which("openssl")


def with_tls() -> str:
    """A kind of server that was built with TLS; empty when none was."""
    for kind, binary in installed().items():
        if b"libssl" in subprocess.run(["ldd", binary], capture_output=True, check=False).stdout:
            return kind
    return ""


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[RedisServer]:
    assert OPENSSL is not None
    subprocess.run(
        [
            *(OPENSSL, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
            *("-keyout", tmp_path / "key", "-out", tmp_path / "cert"),
        ],
        check=True,
        capture_output=True,
    )
    files = {"tls-cert-file": "cert", "tls-key-file": "key", "tls-ca-cert-file": "cert"}
    settings = {name: str(tmp_path / file) for name, file in files.items()}
    server = own_server({**settings, "tls-port": "0", "tls-auth-clients": "optional"}, kind=with_tls())
    with server:
        server.run("CONFIG", "SET", "tls-port", free_port())
        yield server


@pytest.mark.skipif(OPENSSL is None, reason="openssl makes the certificates")
@pytest.mark.skipif(not with_tls(), reason="no server with TLS is installed")
async def test_tls(tls: RedisServer, tmp_path: Path) -> None:
    port = int(tls.run("CONFIG", "GET", "tls-port")[1])
    url = f"rediss://localhost:{port}"

    async def call(options: str) -> object:
        redis = Redis(parse_url(url + options))
        try:
            return await redis.call(ADD, 1)
        finally:
            await redis.close()

    assert await call(f"?ca={tmp_path}/cert") == 1
    assert await call(f"?ca={tmp_path}/cert&cert={tmp_path}/cert&key={tmp_path}/key") == 2
    assert await call("?verify=no") == 3
    with pytest.raises(StoreError, match="shows a certificate that is not trusted: give ca=…, or verify=no"):
        await call("")
    with pytest.raises(StoreError, match="ca is '/no/such', and there is no such file"):
        await call("?ca=/no/such")
    with pytest.raises(StoreUnavailable, match="if that port is for TLS, write rediss:// instead of redis://"):
        await Redis(Location("plain", (("localhost", port),), connect_timeout=1)).call(ADD, 1)
    with pytest.raises(StoreUnavailable, match="if that port is one without TLS, write redis:// instead of rediss://"):
        await Redis(parse_url(f"rediss://localhost:{tls.port}?connect_timeout=1")).call(ADD, 1)
    with pytest.raises(StoreError, match="a certificate of another name than the URL has: correct the host"):
        await Redis(parse_url(f"rediss://127.0.0.1:{port}?ca={tmp_path}/cert")).call(ADD, 1)
    with pytest.raises(StoreError, match=r"ca is '.*key', and that file has no certificates in it"):
        await call(f"?ca={tmp_path}/key")
    with pytest.raises(StoreError, match=r"key is '.*cert', and those are no certificate and its private key"):
        await call(f"?ca={tmp_path}/cert&cert={tmp_path}/cert")
    tls.run("CONFIG", "SET", "tls-auth-clients", "yes")
    with pytest.raises(StoreError, match="wants a certificate of its clients"):
        await call(f"?ca={tmp_path}/cert")
