"""What tests of every kind share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from servers.postgres import Postgres
from servers.postgres import postgres as shared_postgres


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
