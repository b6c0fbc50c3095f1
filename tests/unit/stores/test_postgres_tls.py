"""TLS: to a server that asks for it, with certificates that are right, wrong, or another's."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure import App
from perdure.errors import StoreError, StoreUnavailable
from servers.postgres import PostgresServer, installed, own_server, store_schema, unprivileged

OPENSSL = shutil.which("openssl")


def _with_tls() -> str:
    """The newest version that is installed and was built with TLS; empty when there is none."""
    for version, binaries in installed().items():
        built = subprocess.run([binaries / "pg_config", "--configure"], capture_output=True, text=True, check=False)
        if "ssl" in built.stdout:
            return version
    return ""


VERSION = _with_tls()

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(OPENSSL is None, reason="openssl makes the certificates"),
    pytest.mark.skipif(not VERSION, reason="no PostgreSQL with TLS is installed"),
]


def openssl(*arguments: str | Path) -> None:
    assert OPENSSL is not None
    subprocess.run([OPENSSL, *arguments], check=True, capture_output=True)


class Authority:
    """One that signs certificates; its own is in the file `certificate`."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._directory = directory
        self.certificate = directory / "ca.crt"
        self._key = directory / "ca.key"
        openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"),
            *("-subj", f"/CN=Authority {directory.name}", "-keyout", self._key, "-out", self.certificate),
        )

    def issue(self, name: str, to: Path) -> None:
        """Writes `server.key` and `server.crt`, for a host of a name, into a directory."""
        request, extension = self._directory / "request", self._directory / "extension"
        extension.write_text(f"subjectAltName = DNS:{name}")
        openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}"),
            *("-keyout", to / "server.key", "-out", request),
        )
        openssl(
            *("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial"),
            *("-days", "2", "-extfile", extension, "-out", to / "server.crt"),
        )


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "right")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "wrong")


@pytest.fixture(scope="module")
def server(authority: Authority) -> Iterator[PostgresServer]:
    """A server that takes nobody without TLS, with the certificate of `localhost` and an empty store."""
    server = own_server(VERSION)
    try:
        authority.issue("localhost", server.directory)
        key = server.directory / "server.key"
        key.chmod(0o600)
        os.chown(key, unprivileged().get("user", -1), unprivileged().get("group", -1))
        server.settings |= {
            "ssl": "on",
            "ssl_key_file": str(key),
            "ssl_cert_file": str(server.directory / "server.crt"),
        }
        server.start()
        (server.data / "pg_hba.conf").write_text("local all all trust\nhostssl all all all trust\n", encoding="utf-8")
        server.restart()
        server.run(store_schema(server.url))
        yield server
    finally:
        server.remove()


def url(server: PostgresServer, options: str, host: str = "localhost") -> str:
    return f"{server.url.replace('127.0.0.1', host)}?{options}"


async def work(url: str) -> int:
    """What a workflow gives that a worker runs, on a store."""
    app = App(url)

    @app.workflow
    async def double(n: int) -> int:
        return 2 * n

    async with app, app.worker(grace=5):
        return await double.run(21)


@pytest.mark.parametrize("options", ["", "sslmode=require", "sslmode=verify-full&sslrootcert={ca}"])
async def test_work_through_tls(server: PostgresServer, authority: Authority, options: str) -> None:
    server.run("SELECT pg_stat_reset()")
    assert await work(url(server, options.format(ca=authority.certificate))) == 42


async def test_connections_are_encrypted(server: PostgresServer) -> None:
    app = App(url(server, "sslmode=require"))
    async with app:
        await app.counts()
        found = server.run(
            "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'perdure'"
        )
    assert found and {encrypted for (encrypted,) in found} == {True}


async def refusal(url: str, kind: type[StoreError]) -> str:
    app = App(url)
    with pytest.raises(kind) as caught:
        await app.counts()
    await app.close()
    assert type(caught.value) is kind
    return str(caught.value)


async def test_a_certificate_of_somebody_else(server: PostgresServer, stranger: Authority) -> None:
    said = await refusal(url(server, f"sslmode=verify-full&sslrootcert={stranger.certificate}"), StoreError)
    assert "shows a certificate that is not trusted: give sslrootcert=" in said


async def test_a_certificate_of_another_host(server: PostgresServer, authority: Authority) -> None:
    said = await refusal(
        url(server, f"sslmode=verify-full&sslrootcert={authority.certificate}", host="127.0.0.1"), StoreError
    )
    assert "shows the certificate of another host: correct the host in the URL" in said
    assert "IP address mismatch" in said
    assert await work(url(server, f"sslmode=verify-ca&sslrootcert={authority.certificate}", host="127.0.0.1")) == 42


async def test_a_file_of_certificates_that_is_not_there(server: PostgresServer, tmp_path: Path) -> None:
    said = await refusal(url(server, f"sslmode=verify-full&sslrootcert={tmp_path / 'none.crt'}"), StoreError)
    assert f"sslrootcert is '{tmp_path / 'none.crt'}', and there is no such file" in said


async def test_a_file_that_has_no_certificate(server: PostgresServer, tmp_path: Path) -> None:
    file = tmp_path / "empty.crt"
    file.write_text("no certificate\n", encoding="utf-8")
    said = await refusal(url(server, f"sslmode=verify-full&sslrootcert={file}"), StoreError)
    assert f"has none that can be read (sslrootcert is '{file}'" in said


async def test_without_tls_where_it_is_asked_for(server: PostgresServer) -> None:
    said = await refusal(url(server, "sslmode=disable"), StoreError)
    assert "does not let this user in" in said and "no encryption" in said


async def test_with_tls_where_there_is_none() -> None:
    plain = own_server()
    try:
        plain.start()
        said = await refusal(url(plain, "sslmode=require"), StoreUnavailable)
        assert "can't be reached" in said and "SSL" in said
    finally:
        plain.remove()
