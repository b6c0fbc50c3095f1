"""The schema of a file: made, brought up to date, and refused when it is not ours or newer than we are."""

from __future__ import annotations

import hashlib
import sqlite3

from perdure.errors import SchemaTooNew, StoreError
from perdure.stores.sqlite.connect import patiently
from perdure.stores.sqlite.errors import translate
from perdure.stores.sqlite.sql import load, migrations, statements

APPLICATION_ID = 0x50455244
"""In the header of a file it marks a store ("PERD"); the first migration writes it there."""

_SQL = load("migrate")


def newest() -> int:
    """The schema version that this version of the library makes."""
    return migrations()[-1][0]


def migrate(connection: sqlite3.Connection, name: str, busy_timeout: int = 10_000) -> list[str]:
    """Applies the migrations that are missing, in one transaction; returns their names.

    Many processes may do so at once: one applies, the others wait and find nothing to do. A file that is up to date
    is only read.
    """
    try:
        if patiently(lambda: _missing(connection, name), busy_timeout) == []:
            return []
        patiently(lambda: connection.execute("BEGIN IMMEDIATE"), busy_timeout)
        try:
            missing = _missing(connection, name)
            connection.execute(_SQL["book"])
            for number, title, script in missing:
                for statement in statements(script):
                    connection.execute(statement)
                connection.execute(_SQL["record"], {"number": number, "name": title, "checksum": _checksum(script)})
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    except sqlite3.Error as error:
        raise translate(error, name) from error
    return [title for _, title, _ in missing]


def missing(connection: sqlite3.Connection, name: str, busy_timeout: int = 10_000) -> list[tuple[int, str, str]]:
    """Number, name and script of each migration that `migrate` would apply now. Reads only."""
    try:
        return patiently(lambda: _missing(connection, name), busy_timeout)
    except sqlite3.Error as error:
        raise translate(error, name) from error


def script(missing: list[tuple[int, str, str]]) -> str:
    """What `migrate` would run, in one transaction, as the `sqlite3` shell takes it."""
    if not missing:
        return ""
    parts = ["BEGIN IMMEDIATE;", _SQL["book"] + ";"]
    for number, title, text in missing:
        record = _SQL["record"].replace(":number", str(number)).replace(":name", f"'{title}'")
        parts += [text.rstrip(), record.replace(":checksum", f"'{_checksum(text)}'") + ";"]
    return "\n\n".join([*parts, "COMMIT;"]) + "\n"


def schema(connection: sqlite3.Connection) -> dict[str, str]:
    """The statements that made what is in a file, by kind and name."""
    return dict(connection.execute(_SQL["schema"]))


def expected() -> dict[str, str]:
    """What `schema` finds in a file that the migrations made, and that nobody else changed."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        migrate(connection, ":memory:")
        return schema(connection)
    finally:
        connection.close()


def _missing(connection: sqlite3.Connection, name: str) -> list[tuple[int, str, str]]:
    owner = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if owner not in (0, APPLICATION_ID) or (owner == 0 and version != 0):
        raise StoreError(f"the file {name} belongs to another application; choose another path for the store")
    if version > newest():
        raise SchemaTooNew(
            f"the store {name} has schema version {version}, made by a newer Perdure; this one knows versions up to "
            f"{newest()}: upgrade it"
        )
    booked = connection.execute(_SQL["booked"]).fetchone()[0]
    applied = {row[0]: row[2] for row in connection.execute(_SQL["applied"])} if booked else {}
    for number, title, script in migrations():
        if number in applied and applied[number] != _checksum(script):
            raise StoreError(
                f"the store {name} was made with another text of migration {title}; "
                "use the released version of Perdure that made it, or a new file"
            )
    return [migration for migration in migrations() if migration[0] not in applied]


def _checksum(script: str) -> str:
    return hashlib.sha256(script.encode()).hexdigest()
