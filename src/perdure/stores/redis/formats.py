"""The format of a namespace: what its keys are, and what is in them."""

from __future__ import annotations

import msgspec

from perdure.errors import SchemaTooNew
from perdure.stores.redis.session import Session

FORMAT = 1
"""Code that can't share a namespace with older code counts it up."""

_Number = msgspec.msgpack.Decoder(int)


async def check(db: Session, name: str) -> None:
    """Puts the format down in a new namespace; raises `SchemaTooNew` for one that newer code keeps."""
    found = await db.call("format", {"format": FORMAT}, reads=_Number)
    if found > FORMAT:
        raise SchemaTooNew(
            f"the store {name} has format {found}, made by a newer Perdure; this one knows {FORMAT}: upgrade it, or"
            " name another namespace"
        )
