"""What tests of every kind share."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from servers.memory import PREFIX, memory
from servers.postgres import Postgres
from servers.postgres import postgres as shared_postgres
from servers.redis import tidy_redis


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Gives tests directories in memory, where stores in files are ten times as fast. `--basetemp` chooses others."""
    if config.option.basetemp is None and (place := memory()) is not None:
        chosen = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=place))
        config.option.basetemp = chosen / "t"
        config.add_cleanup(lambda: shutil.rmtree(chosen, ignore_errors=True))


@pytest.fixture(autouse=True)
def _tidy() -> Iterator[None]:
    """After all else of a test is over."""
    yield
    tidy_redis()


@pytest.fixture(scope="session")
def postgres() -> Postgres:
    """The PostgreSQL server of the session. Do not stop it."""
    return shared_postgres()


@pytest.fixture
def postgres_url(postgres: Postgres) -> Iterator[str]:
    """The URL of an empty database."""
    url = postgres.database()
    yield url
    postgres.drop(url)
