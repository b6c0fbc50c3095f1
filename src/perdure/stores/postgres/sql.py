"""The statements of the store: read once, from the `.sql` files beside this module."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources

from msgspec import Struct

from perdure.stores.postgres.url import quote

_FILES = resources.files(__package__ or __name__)
_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_WHOLE = re.compile(r"\ABEGIN;\n(?P<body>.*\n)COMMIT;\n\Z", re.DOTALL)
_COMMENT = re.compile(r"\A(?:--[^\n]*\n|\n)*")


class Migration(Struct, frozen=True):
    """One step of the schema: a file that is a transaction of its own, and enters itself in the table `migration`."""

    version: int
    name: str
    script: str

    @property
    def body(self) -> str:
        """What it does between its BEGIN and COMMIT."""
        whole = _WHOLE.match(_COMMENT.sub("", self.script))
        if whole is None:
            raise ValueError(f"{self.name} is not BEGIN, statements and COMMIT")
        return whole["body"]


def load(file: str, schema: str) -> Mapping[str, str]:
    """The statements of `sql/<file>.sql` by their names, without comments. What they call `perdure.` is in `schema`:
    behind a pooler no session has a search path of ours."""
    return parse(_FILES.joinpath("sql", f"{file}.sql").read_text(encoding="utf-8"), schema)


def parse(text: str, schema: str) -> dict[str, str]:
    """Splits a file at its `-- name:` lines; what stands before the first one is a comment."""
    parts = _NAME.split(text)[1:]
    return {name: _bare(body, schema) for name, body in zip(parts[::2], parts[1::2], strict=True)}


def migrations() -> list[Migration]:
    """All of them, in order."""
    found = [file for file in _FILES.joinpath("migrations").iterdir() if file.name.endswith(".sql")]
    made = (Migration(int(file.name[:4]), file.name[:-4], file.read_text(encoding="utf-8")) for file in found)
    return sorted(made, key=lambda migration: migration.version)


def _bare(body: str, schema: str) -> str:
    kept = (line for line in body.splitlines() if line.strip() and not line.lstrip().startswith("--"))
    text = "\n".join(kept).rstrip(";")
    return re.sub(r"\bperdure\.", lambda _: f"{quote(schema)}.", text)
