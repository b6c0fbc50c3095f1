"""Labels: small key-values on runs, and lists by them with pages that stay."""

from __future__ import annotations

import pytest

from conformance.kit import ManualClock, Worker, all_runs, enqueue_one_by_one, record, start
from perdure.errors import InvalidInput, RunNotFound
from perdure.model import MOST_LABELS, RunQuery, State
from perdure.stores.base import Store

pytestmark = pytest.mark.anyio


async def found(store: Store, **query: object) -> list[str]:
    return [run.id for run in await store.runs(RunQuery(oldest_first=True, **query))]  # type: ignore[arg-type]


async def test_labels_come_with_the_start_and_with_the_claim(store: Store, ada: Worker) -> None:
    await store.enqueue([start("a", labels={"customer": "7", "tier": "gold"}), start("b")])
    assert (await record(store, "a")).labels == {"customer": "7", "tier": "gold"}
    assert (await record(store, "b")).labels == {}
    assert [claim.labels for claim in await ada.claim()] == [{"customer": "7", "tier": "gold"}, {}]


async def test_a_start_of_an_id_that_exists_changes_no_labels(store: Store) -> None:
    await store.enqueue([start("a", labels={"x": "1"})])
    await store.enqueue([start("a", labels={"x": "2", "y": "3"}), start("b", labels={"x": "4"})])
    assert (await record(store, "a")).labels == {"x": "1"}
    assert (await record(store, "b")).labels == {"x": "4"}


async def test_labels_are_added_changed_and_removed(store: Store) -> None:
    await store.enqueue([start("a", labels={"x": "1", "y": "2"})])
    await store.label("a", {"x": "3", "y": "", "z": "4", "none": ""})
    assert (await record(store, "a")).labels == {"x": "3", "z": "4"}
    assert await found(store, labels={"x": "1"}) == [] and await found(store, labels={"x": "3"}) == ["a"]
    with pytest.raises(RunNotFound):
        await store.label("nobody", {"x": "1"})


async def test_a_run_has_so_many_labels_and_no_more(store: Store) -> None:
    await store.enqueue([start("a", labels={f"a{n}": "x" for n in range(MOST_LABELS - 2)})])
    await store.label("a", {"b0": "x", "b1": "x"})
    with pytest.raises(InvalidInput, match="would have 21 labels"):
        await store.label("a", {"c": "x"})
    await store.label("a", {"c": "x", "b0": "", "b1": "y"})
    labels = (await record(store, "a")).labels
    assert (len(labels), labels["c"], labels["b1"], "b0" in labels) == (MOST_LABELS, "x", "y", False)


@pytest.mark.parametrize("text", ["ü 🎉", "a'b\"c", "[1]", "null", "1"])
async def test_any_text_is_a_label(store: Store, text: str) -> None:
    await store.enqueue([start("a", labels={text: text}), start("b", labels={text: text + "."})])
    assert (await record(store, "a")).labels == {text: text}
    assert await found(store, labels={text: text}) == ["a"]


async def test_all_labels_of_a_query_must_be_there(store: Store) -> None:
    await store.enqueue(
        [
            start("a", labels={"x": "1", "y": "1"}),
            start("b", labels={"x": "1"}),
            start("c", labels={"y": "1", "x": "2"}),
            start("d", labels={"x": "1", "y": "1"}, queue="urgent"),
        ]
    )
    assert await found(store, labels={"x": "1"}) == ["a", "b", "d"]
    assert await found(store, labels={"x": "1", "y": "1"}) == ["a", "d"]
    assert await found(store, labels={"x": "1", "y": "1"}, queue="urgent") == ["d"]
    assert await found(store, labels={"x": "1"}, states=[State.QUEUED], workflow="ship") == ["a", "b", "d"]
    assert await found(store, labels={"x": "1", "none": "1"}) == []


@pytest.mark.parametrize("oldest_first", [False, True])
async def test_pages_stay_while_runs_come_and_change(
    store: Store, ada: Worker, clock: ManualClock, oldest_first: bool
) -> None:
    await enqueue_one_by_one(store, clock, [start(f"r{n}", labels={"x": str(n % 2)}) for n in range(40)])
    expected = [f"r{n}" for n in range(1, 40, 2)]
    seen: list[str] = []
    after = None
    number = 40
    while True:
        query = RunQuery(labels={"x": "1"}, limit=3, after=after, oldest_first=oldest_first)
        page = await store.runs(query)
        if not page:
            break
        seen += [run.id for run in page]
        after = page[-1].position
        if number < 48:  # new ones come, and old ones move on
            await enqueue_one_by_one(store, clock, [start(f"r{number}", labels={"x": "1"})])
            await ada.settle(await ada.claim_one())
            number += 1
    new = [f"r{n}" for n in range(40, number)] if oldest_first else []
    assert seen == (expected + new if oldest_first else expected[::-1])


async def test_other_filters_go_together_with_labels(store: Store) -> None:
    await store.enqueue([start("p"), start("c", parent="p", labels={"x": "1"}), start("d", parent="p")])
    await store.open_batch("b", [start("e", labels={"x": "1"}), start("f")], None)
    assert await found(store, parent="p", labels={"x": "1"}) == ["c"]
    assert await found(store, batch="b", labels={"x": "1"}) == ["e"]
    assert await found(store, batch="b") == ["e", "f"]
    assert len(await all_runs(store)) == 5
