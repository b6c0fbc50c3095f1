"""What one exchange brings of what a run has behind it, and of those that it waits for, is bounded by number and bytes:
the rest is read when it is asked for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from conformance.kit import Worker, checkpoint, drain, for_run, message, settle, start, watch
from perdure.model import Ended, Json
from perdure.stores.base import Store
from perdure.stores.exchange import PAGE, PAGE_BYTES, Claim, Seen, To

pytestmark = pytest.mark.anyio

HALF = '"' + "x" * (PAGE_BYTES // 2) + '"'
"""Of these one goes into a page, and two do not."""


async def parent_of(store: Store, served: Worker, names: Sequence[str], body: Json) -> Claim:
    """A run, and others that have ended with `body`."""
    await store.enqueue([start("parent")])
    parent = await served.claim_one()
    await store.enqueue([start(name) for name in names])
    for claim in await drain(served):
        await served.settle(claim, body=body)
    return parent


def told_once(claim: Claim, rest: Sequence[Ended]) -> list[str]:
    """The runs of which a claim, and what was read besides, tells."""
    assert {each.id for each in rest} <= {*claim.unread}
    return sorted(each.id for each in (*claim.ended, *rest))


async def test_a_claim_tells_of_a_page_of_ends_at_most(store: Store, ada: Worker) -> None:
    names = [f"c{n}" for n in range(PAGE + 3)]
    parent = await parent_of(store, ada, names, "1")
    await ada.park(parent, *map(for_run, names))
    claim = await ada.claim_one()
    assert len(claim.ended) <= PAGE and claim.missing == []
    assert told_once(claim, await store.ended(claim.unread)) == sorted(names)


async def test_a_page_of_ends_has_so_many_bytes(store: Store, ada: Worker) -> None:
    names = [f"c{n}" for n in range(5)]
    parent = await parent_of(store, ada, names, HALF)
    await ada.park(parent, *map(for_run, names))
    claim = await ada.claim_one()
    assert sum(len(each.body or "") for each in claim.ended) <= PAGE_BYTES
    assert told_once(claim, await store.ended(claim.unread)) == names


async def test_ends_of_many_bytes_are_all_read(store: Store, ada: Worker) -> None:
    names = [f"c{n}" for n in range(5)]
    await parent_of(store, ada, names, HALF)
    assert sorted(each.id for each in await store.ended([*names, "nobody", "parent"])) == names


async def test_watches_that_are_true_are_told_in_pages(store: Store, ada: Worker) -> None:
    names = [f"c{n}" for n in range(5)]
    parent = await parent_of(store, ada, names, HALF)
    watches = {name: watch(parent, for_run(name, key=name)) for name in [*names, "missing"]}
    seen: list[Seen] = []
    for _ in range(len(watches)):
        reply = await ada.exchange(watches=list(watches.values()))
        assert sum(len(each.ended.body or "") for each in reply.seen if each.ended) <= PAGE_BYTES
        seen += reply.seen
        for each in reply.seen:
            del watches[each.key]
        assert reply.more == bool(watches)
    assert sorted(each.key for each in seen) == [*names, "missing"]


async def test_a_page_of_signals_has_so_many_bytes(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    for n in range(3):
        await store.signal(message("r", f"s{n}", HALF))
    claim = await ada.claim_one()
    assert ([each.name for each in claim.signals], claim.more_signals) == (["s0"], True)
    assert [each.name for each in await store.signals("r")] == ["s0", "s1", "s2"]
    last = claim.signals[-1].position
    assert [each.name for each in await store.signals("r", after=last, limit=1)] == ["s1"]


async def test_a_page_of_checkpoints_has_so_many_bytes(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    for n in range(3):
        await ada.save(claim, checkpoint(f"k{n}", HALF))
    await ada.park(claim, for_run("nobody"))
    claim = await ada.claim_one()
    assert ([each.key for each in claim.checkpoints], claim.more_checkpoints) == (["k0"], True)
    assert [each.key for each in await store.history("r")] == ["k0", "k1", "k2"]
    last = claim.checkpoints[-1].position
    assert [each.key for each in await store.history("r", after=last, limit=1)] == ["k1"]


async def test_what_is_larger_than_a_page_is_brought_alone(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    await ada.save(claim, checkpoint("k", HALF + " " * PAGE_BYTES), checkpoint("l"))
    await store.signal(message("r", "s", HALF + " " * PAGE_BYTES))
    await store.signal(message("r", "t"))
    reply = await ada.exchange(settles=[settle(claim, to=To.RELEASE)], slots=1)
    [claim] = reply.claims
    assert ([each.key for each in claim.checkpoints], claim.more_checkpoints) == (["k"], True)
    assert ([each.name for each in claim.signals], claim.more_signals) == (["s"], True)


async def test_an_end_that_is_larger_than_a_page_is_told_alone(store: Store, ada: Worker) -> None:
    parent = await parent_of(store, ada, ["c"], HALF + " " * PAGE_BYTES)
    [seen] = (await ada.exchange(watches=[watch(parent, for_run("c"))])).seen
    assert seen.ended is not None
    await ada.park(parent, for_run("c"))
    claim = await ada.claim_one()
    assert ([each.id for each in claim.ended], claim.unread) == (["c"], [])
