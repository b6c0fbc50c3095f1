"""The store on PostgreSQL 14 or newer."""

from perdure.errors import StoreUrlError

try:
    import asyncpg as _driver
except ImportError as error:
    raise StoreUrlError("PostgreSQL needs the driver asyncpg: run  pip install 'perdure[postgres]'") from error

from perdure.stores.postgres.store import PostgresStore
from perdure.stores.postgres.url import Location, parse_url

del _driver

__all__ = ["Location", "PostgresStore", "parse_url"]
