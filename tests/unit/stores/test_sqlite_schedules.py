"""Schedules that newer code has put into the store."""

from __future__ import annotations

import pytest

from perdure.model import Overlap, Schedule, Start
from perdure.stores import open_store
from perdure.stores.base import Registration
from perdure.stores.exchange import Exchange
from perdure.stores.sqlite import SqliteStore

pytestmark = pytest.mark.anyio


async def test_one_that_cant_be_read_is_told_of_and_the_others_are_fine() -> None:
    store = open_store("sqlite:///:memory:", now=lambda: 100)
    assert isinstance(store, SqliteStore)
    await store.open()
    for name in ("new", "plain"):
        schedule = Schedule(name=name, every=10, overlap=Overlap.SKIP, start=Start("", "ship", "default", "null"))
        await store.put_schedule(schedule, 50, declared=False)
    newer = "UPDATE schedule SET spec = replace(spec, 'skip', 'later') WHERE name = 'new'"
    await store._write(lambda transaction: transaction.change(newer, {}))
    worker = await store.register(
        Registration(name="w", host="h", pid=1, queues=[], workflows=[], concurrency=1, lease=10**9)
    )
    due = (await store.exchange(Exchange(worker, 1))).due
    assert sorted((record.schedule.name, record.broken is None) for record in due) == [("new", False), ("plain", True)]
    new, plain = await store.schedules()
    assert new.broken is not None and "'later'" in new.broken
    assert (new.schedule.name, new.next_slot, plain.broken) == ("new", 50, None)
    assert (await store.pause_schedule("new")).broken == new.broken
    await store.remove_schedule("new")
    await store.close()
