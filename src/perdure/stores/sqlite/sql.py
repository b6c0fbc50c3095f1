"""The statements of the store: read once, at import, from the `.sql` files beside this module."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from importlib import resources

import msgspec

_FILES = resources.files(__package__ or __name__)
_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def load(file: str) -> Mapping[str, str]:
    """The statements of `sql/<file>.sql` by their names, without comments."""
    return parse(_FILES.joinpath("sql", f"{file}.sql").read_text(encoding="utf-8"))


def parse(text: str) -> dict[str, str]:
    """Splits a file at its `-- name:` lines; what stands before the first one is a comment."""
    parts = _NAME.split(text)[1:]
    return {name: _bare(body) for name, body in zip(parts[::2], parts[1::2], strict=True)}


def encode(value: object) -> str:
    """A batch as the one parameter of a statement. Texts that are JSON themselves stay texts in it."""
    return msgspec.json.encode(value).decode()


def migrations() -> list[tuple[int, str, str]]:
    """Number, name and script of each migration, in order."""
    found = [file for file in _FILES.joinpath("migrations").iterdir() if file.name.endswith(".sql")]
    return sorted((int(file.name[:4]), file.name[:-4], file.read_text(encoding="utf-8")) for file in found)


def statements(script: str) -> Iterator[str]:
    """The single statements of a script; a trigger's body is part of one."""
    lines: list[str] = []
    for line in script.splitlines():
        lines.append(line)
        if line.rstrip().endswith(";") and sqlite3.complete_statement("\n".join(lines)):
            yield "\n".join(lines)
            lines.clear()


def _bare(body: str) -> str:
    kept = (line for line in body.splitlines() if line.strip() and not line.lstrip().startswith("--"))
    return "\n".join(kept).rstrip(";")
