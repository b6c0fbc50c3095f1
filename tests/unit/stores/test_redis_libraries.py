"""Function libraries of other versions leave with `migrate`; who needs one still loads it again."""

from __future__ import annotations

import pytest

from conformance.kit import start
from perdure.stores import open_store
from servers.redis import own_server

pytestmark = pytest.mark.anyio


async def test_libraries_of_other_versions_leave() -> None:
    with own_server() as server:
        store = open_store(server.url)
        await store.open()
        assert await store.pending() == [] and await store.migrate() == []
        for name in ("perdure_exchange_0123456789abcdef", "others"):
            code = f"#!lua name={name}\nredis.register_function('{name}', function() return 1 end)"
            server.run("FUNCTION", "LOAD", code)
        said = ["the removal of 1 function libraries of other versions"]
        assert await store.pending() == said and await store.migrate() == said
        assert await store.migrate() == []
        assert server.run("FCALL", "others", 0) == 1
        server.run("FUNCTION", "FLUSH")  # As when the next version clears up.
        await store.enqueue([start("r")])
        assert await store.load("r") is not None
        await store.close()
