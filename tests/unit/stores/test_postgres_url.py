"""What a PostgreSQL URL may say, and what is said of one that can't be."""

from __future__ import annotations

import builtins
import importlib
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote as urlquote

import pytest

from perdure.errors import StoreUrlError
from perdure.stores import open_store
from perdure.stores.postgres.url import parse_url, quote


def test_a_bare_url() -> None:
    location = parse_url("postgresql://ann:secret@db.example:5433/shop")
    assert location.url == "postgresql://ann:secret@db.example:5433/shop"
    assert location.name == "postgresql://ann@db.example:5433/shop"
    assert (location.schema, location.pool, location.listen) == ("perdure", 4, None)
    assert "secret" not in repr(location)


def test_our_options_stay_and_those_of_the_driver_go_on() -> None:
    location = parse_url(
        "postgres://db/shop?schema=jobs&pool=2&sslmode=verify-full&sslrootcert=%2Fca.pem&application_name=web"
        "&statement_timeout=1000&lock_timeout=200&connect_timeout=3&listen=postgresql%3A%2F%2Fdirect%2Fshop%3Fpool%3D1"
    )
    assert location.url == "postgres://db/shop?sslmode=verify-full&sslrootcert=%2Fca.pem"
    assert location.listen == "postgresql://direct/shop"
    assert (location.schema, location.pool, location.application_name) == ("jobs", 2, "web")
    assert (location.statement_timeout, location.lock_timeout, location.connect_timeout) == (1000, 200, 3)


@pytest.mark.parametrize("url", ["postgresql://a,b/shop", "postgresql:///shop?host=a,b"])
def test_of_several_hosts_the_one_that_takes_writes(url: str) -> None:
    assert "target_session_attrs=read-write" in parse_url(url).url
    separator = "&" if "?" in url else "?"
    assert "attrs=any" in parse_url(f"{url}{separator}target_session_attrs=any").url


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("?schma=x", "unknown option 'schma'; did you mean 'schema'?"),
        ("?pool=1&pool=2", "'pool' twice"),
        ("?pool=0", "pool is a number from 1 to 100; it can't be '0'"),
        ("?pool=x", "it can't be 'x'"),
        ("?schema=", "schema can't be ''"),
        ("?schema=pg_own", "'pg_own'"),
        ("?schema=" + "x" * 64, "at most 63 bytes"),
        ("?statement_timeout=-1", "statement_timeout is a number"),
        ("?target_session_attrs=foo", "target_session_attrs is one of any, primary"),
        ("?port=x", "has the port 'x'"),
        ("?schema=%24user", "schema can't be '$user'"),
        ("?listen=db", "listen is the URL of the server itself"),
        ("%00", "NUL"),
    ],
)
def test_what_cannot_be_is_named_without_the_password(query: str, says: str) -> None:
    with pytest.raises(StoreUrlError) as caught:
        parse_url(f"postgresql://ann:secret@db/shop{query}")
    assert says in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        *(
            f"postgresql://ann:sec{sign}ret@db:5432/shop"
            for sign in ("/", "?", "#", "@", "?a=b", "/?", "?pool=", "/a@")
        ),
        *("postgresql://ann:7/sec@db/shop", "postgresql://ann:7?sec@db/shop", "postgresql://ann:pass@sec?ret@db/shop"),
        *("postgresql://db/sec#ret", "postgresql://ann:sec#ret", "postgresql://sec/ret@db:5432/shop"),
    ],
)
def test_a_password_that_is_not_encoded_is_not_shown(url: str) -> None:
    with pytest.raises(StoreUrlError, match="has to be percent-encoded, such as in a password") as caught:
        parse_url(url)
    assert "sec" not in str(caught.value) and "ret" not in str(caught.value)


@pytest.mark.parametrize("url", ["postgresql+asyncpg://ann:sec@db/shop", "ann:sec@db/shop", "host=db password=sec"])
def test_nor_that_of_a_url_that_is_none(url: str) -> None:
    with pytest.raises(StoreUrlError) as caught:
        open_store(url)
    assert "sec" not in str(caught.value)


@pytest.mark.parametrize("sign", "/?#@:%[]&= ")
def test_a_password_may_have_any_sign_that_is_encoded(sign: str) -> None:
    location = parse_url(f"postgresql://ann:sec{urlquote(sign, safe='')}ret@db:5432/shop?application_name=a@b")
    assert location.name == "postgresql://ann@db:5432/shop"


@pytest.mark.parametrize("url", ["postgresql://[::1/shop", "postgresql://::1]/shop", "postgresql://a]b/shop"])
def test_what_the_driver_could_not_read(url: str) -> None:
    with pytest.raises(StoreUrlError):
        parse_url(url)


@pytest.mark.parametrize("host", ["db:x", "db:0", "db:65536", "a,b:99999", "[::1]:x"])
def test_a_port_is_a_number(host: str) -> None:
    with pytest.raises(StoreUrlError, match="a port is a number from 1 to 65535"):
        parse_url(f"postgresql://{host}/shop")


@pytest.mark.parametrize("host", ["db", "db:5432", "[::1]", "[::1]:5432", "a:1,b:2", ""])
def test_hosts_that_can_be(host: str) -> None:
    assert parse_url(f"postgresql://{host}/shop").name == f"postgresql://{host}/shop"


@pytest.fixture
def services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The service file of the user."""
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    (tmp_path / "services").write_text(
        "# ours\n[shop]\nhost=a,b\nport=6432\ndbname=shop\nuser=ann\npassword=50%s;#ret\nkeepalives=1\n"
    )
    return tmp_path / "services"


@pytest.mark.parametrize("url", ["postgresql://?service=shop", "postgresql:///?service=shop"])
def test_a_service_stands_for_options(services: Path, url: str) -> None:
    location = parse_url(url)
    assert location.url == (
        "postgresql://?host=a%2Cb&port=6432&dbname=shop&user=ann&password=50%25s%3B%23ret"
        "&target_session_attrs=read-write"
    )
    assert location.name == f"{url.partition('?')[0]}?service=shop"


def test_what_the_url_says_goes_before_what_the_service_says(services: Path) -> None:
    url = parse_url("postgresql://db/other?service=shop&port=5433&pool=7").url
    assert url.startswith("postgresql://db/other?") and "port=5433" in url


def test_services_are_found_as_libpq_finds_them(
    services: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pg_service.conf").write_text("[shop]\nhost=system\n[rare]\nhost=system\n")
    monkeypatch.setenv("PGSYSCONFDIR", str(tmp_path))
    assert "host=a" in parse_url("postgresql://?service=shop").url
    assert "host=system" in parse_url("postgresql://?service=rare").url
    monkeypatch.setenv("PGSERVICE", "rare")
    assert "host=system" in parse_url("postgresql://").url
    assert "host=a" in parse_url("postgresql://?service=shop").url
    monkeypatch.delenv("PGSERVICEFILE")
    monkeypatch.setattr("pathlib.Path.home", lambda: tmp_path)
    services.rename(tmp_path / ".pg_service.conf")
    assert "host=a" in parse_url("postgresql://?service=shop").url


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[other]\nhost=a\n", "there is no service 'shop' in "),
        ("[shop]\nhost=a\npassword secret\n", "can't be read from line 3 on"),
        ("password=secret\n[shop]\n", "can't be read from line 1 on"),
        ("[shop]\nport=x\n", "has the port 'x'"),
    ],
)
def test_a_service_that_cannot_be_used(services: Path, text: str, says: str) -> None:
    services.write_text(text)
    with pytest.raises(StoreUrlError) as caught:
        parse_url("postgresql://ann:secret@/?service=shop")
    assert says in str(caught.value) and "'postgresql://ann@/?service=shop'" in str(caught.value)
    assert "secret" not in str(caught.value) and caught.value.__cause__ is None


def test_a_service_file_that_cannot_be_read(services: Path) -> None:
    services.unlink()
    with pytest.raises(StoreUrlError, match=r"there is no service 'shop' in .*: write it there"):
        parse_url("postgresql://?service=shop")
    services.mkdir()
    with pytest.raises(StoreUrlError, match="can't be read "):
        parse_url("postgresql://?service=shop")


def test_quoted_names() -> None:
    assert quote('a"b') == '"a""b"'


def test_without_the_driver_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("perdure.stores.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    original = builtins.__import__

    def missing(name: str, *args: Any) -> Any:
        if name == "asyncpg":
            raise ModuleNotFoundError(name)
        return original(name, *args)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(StoreUrlError, match=r"pip install 'perdure\[postgres\]'"):
        importlib.import_module("perdure.stores.postgres")
