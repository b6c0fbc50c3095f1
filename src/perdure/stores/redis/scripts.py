"""The Lua scripts: made of files, known to servers by the SHA-1 of their text."""

from __future__ import annotations

import functools
import hashlib
from importlib.resources import files

from msgspec import Struct


class Script(Struct, frozen=True):
    """A script as servers are given it."""

    name: str
    source: str
    sha1: str

    @classmethod
    def of(cls, name: str, source: str) -> Script:
        """A script of this text."""
        return cls(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


@functools.cache
def load(*names: str) -> Script:
    """The script that `lua` files of these names make, one behind the other; it has the name of the last one."""
    folder = files("perdure.stores.redis") / "lua"
    return Script.of(names[-1], "".join((folder / f"{name}.lua").read_text(encoding="utf-8") for name in names))
