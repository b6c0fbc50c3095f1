"""Checkpoints: kept before they count, replaced by key, fenced, and one with what they take and make."""

from __future__ import annotations

import pytest

from conformance.kit import (
    BILL,
    ManualClock,
    Worker,
    checkpoint,
    drain,
    for_signal,
    ids,
    keys,
    message,
    record,
    save,
    start,
    watch,
    with_token,
)
from perdure.model import Checkpoint, Kind, Outcome, State
from perdure.stores.base import Store
from perdure.stores.exchange import PAGE, Existed, To

pytestmark = pytest.mark.anyio


async def test_a_checkpoint_comes_back_as_it_was_saved(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    clock.advance(ms=3)
    saved = checkpoint(
        "charge#2",
        r'"\u0000 é"',
        kind=Kind.SIGNAL,
        outcome=Outcome.OPEN,
        attempts=3,
        digest="abc",
        at=99,
        started_at=42,
    )
    reply = await ada.save(claim, saved)
    assert reply.refused == []
    found = await store.find("r", "charge#2")
    assert found is not None
    assert found == Checkpoint(
        key="charge#2",
        kind=Kind.SIGNAL,
        outcome=Outcome.OPEN,
        body=r'"\u0000 é"',
        attempts=3,
        digest="abc",
        at=99,
        started_at=42,
        saved_at=clock.now(),
        position=found.position,
    )
    assert await store.history("r") == [found]


async def test_a_checkpoint_may_have_no_body(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    await ada.save(await ada.claim_one(), checkpoint("k", None), checkpoint("empty", '""'))
    assert [kept.body for kept in await store.history("r")] == [None, '""']


async def test_what_is_not_there_is_not_found(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r"), start("other")])
    await ada.save(await ada.claim_one(), checkpoint("k"))
    assert await store.find("r", "K") is None
    assert await store.find("other", "k") is None
    assert await store.find("missing", "k") is None
    assert await store.history("other") == []
    assert await store.history("missing") == []


async def test_checkpoints_of_runs_have_nothing_to_do_with_each_other(store: Store, ada: Worker) -> None:
    await store.enqueue([start("a"), start("b")])
    first, second = await ada.claim(2)
    await ada.exchange(saves=[save(first, checkpoint("k", "1")), save(second, checkpoint("k", "2"))])
    assert [(await store.history(run_id))[0].body for run_id in "ab"] == ["1", "2"]


async def test_a_save_replaces_what_was_kept_under_its_key(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    await ada.save(claim, checkpoint("k", '"no"', outcome=Outcome.OPEN, attempts=1, at=5))
    await ada.save(claim, checkpoint("k", '"yes"', attempts=2))
    [kept] = await store.history("r")
    assert (kept.outcome, kept.body, kept.attempts, kept.at) == (Outcome.OK, '"yes"', 2, None)


async def test_positions_are_in_the_order_of_acceptance(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    await ada.save(claim, checkpoint("c"), checkpoint("a"))
    await ada.save(claim, checkpoint("b"))
    history = await store.history("r")
    assert [kept.key for kept in history] == ["c", "a", "b"]
    positions = [kept.position for kept in history]
    assert positions == sorted(set(positions)) and positions[0] > 0


async def test_what_completes_later_is_delivered_later(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    await ada.save(claim, checkpoint("slow", outcome=Outcome.OPEN), checkpoint("fast", outcome=Outcome.OPEN))
    await ada.save(claim, checkpoint("fast"))
    await ada.save(claim, checkpoint("slow"))
    assert await keys(store, "r") == ["fast", "slow"]


async def test_history_is_read_page_by_page(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    await ada.exchange(saves=[save(claim, checkpoint(f"k{n}")) for n in range(PAGE + 10)])
    assert len(await store.history("r")) == PAGE
    seen: list[str] = []
    after = 0
    while page := await store.history("r", after=after, limit=100):
        assert len(page) <= 100
        seen += [kept.key for kept in page]
        after = page[-1].position
    assert seen == [f"k{n}" for n in range(PAGE + 10)]


async def test_odd_keys_are_kept_apart(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    odd = ["a", "A", "a ", "a#2", "a/b", "a:b", "é", "e\u0301", "'\"\\", "{x}", "*", "%", "\U0001f600", "1", "1.0"]
    await ada.exchange(saves=[save(claim, checkpoint(key, str(n))) for n, key in enumerate(odd)])
    for n, key in enumerate(odd):
        found = await store.find("r", key)
        assert found is not None and (found.key, found.body) == (key, str(n))


async def test_a_forged_token_saves_nothing(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r"), start("other")])
    claim, other = await ada.claim(2)
    forged = with_token(claim, claim.token + 100)
    assert (await ada.save(forged, checkpoint("k"))).refused == [forged.token]
    assert (await ada.save(with_token(claim, other.token), checkpoint("k"))).refused == [other.token]
    assert await store.history("r") == await store.history("other") == []


async def test_a_settled_claim_saves_nothing(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    await ada.save(claim, checkpoint("k", "1"))
    await ada.settle(claim, body="1")
    assert (await ada.save(claim, checkpoint("k", "2"))).refused == [claim.token]
    assert [kept.body for kept in await store.history("r")] == ["1"]


async def test_checkpoints_outlive_their_run(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    await ada.save(claim, checkpoint("a"), checkpoint("b", outcome=Outcome.ERROR))
    await ada.settle(claim, To.FAILED, '"boom"')
    assert await keys(store, "r") == ["a", "b"]


async def test_a_save_takes_its_signal_along(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    for body in ("1", "2", "3"):
        await store.signal(message("r", body=body))
    claim = await ada.claim_one()
    reply = await ada.save(claim, checkpoint("got", "2", kind=Kind.SIGNAL), consumes=claim.signals[1].position)
    assert reply.refused == []
    assert [arrived.body for arrived in await store.signals("r")] == ["1", "3"]


async def test_a_refused_save_takes_no_signal(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r"), start("good")])
    await store.signal(message("r"))
    claim, good = await ada.claim(2)
    forged = with_token(claim, claim.token + 100)
    taking = save(forged, checkpoint("got"), consumes=claim.signals[0].position)
    for saves in ([taking], [save(good, checkpoint("k")), taking]):
        assert (await ada.exchange(saves=saves)).refused == [forged.token]
        assert len(await store.signals("r")) == 1


async def test_a_signal_of_another_run_is_not_taken(store: Store, ada: Worker) -> None:
    await store.enqueue([start("a"), start("b")])
    await store.signal(message("a"))
    await store.signal(message("b"))
    first, second = await ada.claim(2)
    await ada.save(first, checkpoint("got"), consumes=first.signals[0].position)
    assert await store.signals("a") == []
    assert await store.signals("b") == second.signals


async def test_a_save_gives_back_the_signal_that_its_key_took(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r"), start("other")])
    for body in ("1", "2", "3"):
        await store.signal(message("r", body=body))
    await store.signal(message("other"))
    claim, other = await ada.claim(2)
    taken = [signal.position for signal in claim.signals]
    for key, position in (("a", taken[0]), ("b", taken[1])):
        await ada.save(claim, checkpoint(key, kind=Kind.SIGNAL), consumes=position)
    await ada.save(other, checkpoint("a", kind=Kind.SIGNAL), consumes=other.signals[0].position)
    undone = checkpoint("a", kind=Kind.SIGNAL, outcome=Outcome.OPEN)
    for _ in range(2):
        reply = await ada.exchange(saves=[save(claim, undone, gives_back=True)])
        assert reply.refused == []
        assert await store.signals("r") == [claim.signals[0], claim.signals[2]]
    assert await store.signals("other") == []
    [seen] = (await ada.exchange(watches=[watch(claim, for_signal())])).seen
    assert seen.signal == claim.signals[0]
    # Whoever takes it next may say so with the same words.
    await ada.save(claim, checkpoint("c", kind=Kind.SIGNAL), consumes=taken[0])
    saves = [
        save(claim, checkpoint("c", kind=Kind.SIGNAL, outcome=Outcome.OPEN), gives_back=True),
        save(claim, checkpoint("d", kind=Kind.SIGNAL), consumes=taken[0]),
    ]
    await ada.exchange(saves=saves)
    assert await store.signals("r") == [claim.signals[2]]
    forged = with_token(claim, claim.token + 100)
    refused = await ada.exchange(saves=[save(forged, checkpoint("d", outcome=Outcome.OPEN), gives_back=True)])
    assert refused.refused == [forged.token]
    assert await store.signals("r") == [claim.signals[2]]


async def test_a_save_makes_its_child(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("parent")])
    claim = await ada.claim_one()
    clock.advance(ms=10)
    child = start("child", input="[1]", parent="parent", priority=2, timeout=500)
    reply = await ada.exchange(saves=[save(claim, checkpoint("c", '"child"', kind=Kind.CHILD), starts=child)], slots=1)
    assert [(made.id, made.input, made.parent) for made in reply.claims] == [("child", "[1]", "parent")]
    run = await record(store, "child")
    assert (run.priority, run.created_at, run.deadline) == (2, clock.now(), clock.now() + 500)


async def test_a_child_may_begin_later(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("parent")])
    claim = await ada.claim_one()
    reply = await ada.save(claim, checkpoint("c", kind=Kind.CHILD), starts=start("child", delay=50, parent="parent"))
    assert reply.next_at == clock.now() + 50
    assert (await record(store, "child")).state == State.SCHEDULED


async def test_a_child_that_exists_is_left_as_it_is(store: Store, ada: Worker) -> None:
    await store.enqueue([start("parent"), start("child", input="1")])
    claim = await ada.claim_one()
    reply = await ada.save(
        claim, checkpoint("c", kind=Kind.CHILD), starts=start("child", input="1", priority=7, parent="parent")
    )
    assert reply.refused == []
    assert await keys(store, "parent") == ["c"]
    run = await record(store, "child")
    assert (run.priority, run.parent, run.state) == (0, None, State.QUEUED)


async def test_a_child_that_was_there_is_told_of(store: Store, ada: Worker) -> None:
    await store.enqueue([start("parent"), start("there", input="1")])
    claim = await ada.claim_one()
    wanted = {"a": start("there", input="1"), "b": start("fresh"), "c": start("fresh"), "d": start("there", input="2")}
    reply = await ada.exchange(
        saves=[save(claim, checkpoint(key, kind=Kind.CHILD), starts=child) for key, child in wanted.items()]
    )
    assert reply.existed == [
        Existed(claim.token, "a", "there", same=True),
        Existed(claim.token, "c", "fresh", same=True),
        Existed(claim.token, "d", "there", same=False),
    ]
    assert (await ada.exchange()).existed == []


async def test_a_child_whose_id_is_anothers_leaves_no_checkpoint(store: Store, ada: Worker) -> None:
    await store.enqueue([start("parent"), start("there", workflow=BILL)])
    claim = await ada.claim_one()
    for _ in range(2):  # the next attempt comes to the same
        reply = await ada.exchange(
            saves=[
                save(claim, checkpoint("before")),
                save(claim, checkpoint("c", kind=Kind.CHILD), starts=start("there")),
                save(claim, checkpoint("after")),
            ]
        )
        assert reply.existed == [Existed(claim.token, "c", "there", same=False)]
        assert reply.refused == []
        assert await keys(store, "parent") == ["before", "after"]
    assert (await record(store, "there")).workflow == BILL


async def test_a_child_that_is_repeated_may_be_there_but_is_the_same(store: Store, ada: Worker) -> None:
    await store.enqueue([start("parent")])
    claim = await ada.claim_one()
    await ada.save(claim, checkpoint("c", kind=Kind.CHILD), starts=start("child", input="1"))
    reply = await ada.repeat()
    assert all((each.key, each.same) == ("c", True) for each in reply.existed)
    assert await keys(store, "parent") == ["c"]


async def test_a_refused_save_makes_no_child(store: Store, ada: Worker) -> None:
    await store.enqueue([start("parent"), start("good")])
    claim, good = await ada.claim(2)
    forged = with_token(claim, claim.token + 100)
    making = save(forged, checkpoint("c"), starts=start("child"))
    for saves in ([making], [save(good, checkpoint("k")), making]):
        assert (await ada.exchange(saves=saves)).refused == [forged.token]
        assert await store.load("child") is None


async def test_a_hundred_children_are_made_in_order(store: Store, ada: Worker) -> None:
    await store.enqueue([start("parent")])
    claim = await ada.claim_one()
    children = [start(f"c{n}", parent="parent") for n in range(100)]
    await ada.exchange(saves=[save(claim, checkpoint(child.id, kind=Kind.CHILD), starts=child) for child in children])
    assert ids(await drain(ada)) == [child.id for child in children]


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.ERROR])
async def test_progress_forgives_the_crashes(store: Store, ada: Worker, bob: Worker, outcome: Outcome) -> None:
    await store.enqueue([start("r")])
    await ada.claim_one()
    await store.bury(ada.name)
    claim = await bob.claim_one()
    assert claim.crashes == 1
    await bob.save(claim, checkpoint("k", outcome=outcome))
    assert (await record(store, "r")).crashes == 0


async def test_what_is_merely_begun_forgives_no_crash(store: Store, ada: Worker, bob: Worker) -> None:
    await store.enqueue([start("r")])
    await ada.claim_one()
    await store.bury(ada.name)
    await bob.save(await bob.claim_one(), checkpoint("k", outcome=Outcome.OPEN))
    assert (await record(store, "r")).crashes == 1
