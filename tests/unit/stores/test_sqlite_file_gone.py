"""A file that is taken away or replaced under an open store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure.errors import StoreUnavailable
from perdure.model import Start
from perdure.stores import open_store
from perdure.stores.base import Registration


def test_nothing_is_written_to_a_file_that_was_removed_or_replaced(tmp_path: Path) -> None:
    path, aside = tmp_path / "a.db", tmp_path / "aside.db"

    async def play() -> None:
        store = open_store(f"sqlite:///{path}")
        await store.open()
        await store.enqueue([Start("1", "flow", "default", "{}")])
        path.rename(aside)
        with pytest.raises(StoreUnavailable, match="removed or replaced"):
            await store.enqueue([Start("2", "flow", "default", "{}")])
        path.write_bytes(b"")
        with pytest.raises(StoreUnavailable, match="removed or replaced"):
            await store.enqueue([Start("2", "flow", "default", "{}")])
        path.unlink()
        aside.rename(path)
        await store.enqueue([Start("2", "flow", "default", "{}")])
        assert await store.load("2") is not None
        await store.close()

    asyncio.run(play())


def test_no_lease_is_renewed_in_a_file_that_was_removed_or_replaced(tmp_path: Path) -> None:
    path, aside = tmp_path / "a.db", tmp_path / "aside.db"

    async def play() -> None:
        store = open_store(f"sqlite:///{path}")
        await store.open()
        worker = await store.register(
            Registration(name="w", host="", pid=0, queues=["default"], workflows=["flow"], concurrency=1, lease=60_000)
        )
        first, later = store.keeper(worker, 60_000), store.keeper(worker, 60_000)
        assert first.renew()
        path.rename(aside)
        for keeper in (first, later):  # with the file open, and without
            with pytest.raises(StoreUnavailable, match="removed or replaced"):
                keeper.renew()
        assert not path.exists()
        aside.rename(path)
        assert first.renew()
        assert later.renew()
        first.close()
        later.close()
        await store.close()

    asyncio.run(play())
