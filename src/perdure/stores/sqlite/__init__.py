"""The store on SQLite: one file, no server, many processes."""

from perdure.stores.sqlite.connect import parse_url
from perdure.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore", "parse_url"]
