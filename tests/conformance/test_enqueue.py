"""Starting runs: ids, duplicates, order, times, and texts that come back as they went in."""

from __future__ import annotations

import asyncio

import pytest

from conformance.kit import BILL, DAY, URGENT, ManualClock, Worker, all_runs, drain, ids, record, start, worker
from perdure.model import Started, State
from perdure.stores.base import Store
from perdure.stores.exchange import To

pytestmark = pytest.mark.anyio

ODD_IDS = [
    "order 7",
    "  leading and trailing  ",
    "naïve-café",
    "na\u0069\u0308ve-cafe\u0301",
    "注文-七",
    "emoji-\U0001f600",
    'it\'s "quoted" `twice`',
    "percent%underscore_",
    "back\\slash",
    "{braces}:colons/slashes*stars?[x]",
    "line\nbreak\ttab",
    "$1 :id ?1 --; DROP TABLE runs",
    "CASE",
    "case",
    "007",
    "7",
    "7.0",
    "null",
    "x" * 500,
]

EXACT_INPUTS = [
    r'"\u0000 and \u001f"',
    r'"\ud83d\ude00 \ud83d alone"',
    '"\U0001f600 \u2028 \x7f"',
    r'"she said \"hi\" and it\u0027s"',
    r'"C:\\new\\table"',
    '{"b":1,"a":2,"b":3}',
    '{ "spaced" :  [ 1.0, 1e2, -0, 1E400 ] }',
    "123456789012345678901234567890.10",
    '""',
    "{}",
]


async def test_a_new_run_is_queued_with_all_that_it_was_started_with(store: Store, clock: ManualClock) -> None:
    [started] = await store.enqueue(
        [start("r", workflow=BILL, queue=URGENT, input='{"n":1}', priority=-3, timeout=5000, max_crashes=2, parent="p")]
    )
    assert (started.id, started.existed) == ("r", False)
    run = await record(store, "r")
    assert (run.workflow, run.queue, run.input, run.priority, run.parent) == (BILL, URGENT, '{"n":1}', -3, "p")
    assert (run.state, run.attempt, run.crashes, run.worker) == (State.QUEUED, 1, 0, None)
    assert (run.created_at, run.deadline) == (clock.now(), clock.now() + 5000)
    assert (run.started_at, run.finished_at, run.cancelling, run.body, run.waits) == (None, None, None, None, [])


async def test_an_id_that_exists_is_not_started_again(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r", input="1")])
    assert await store.enqueue([start("r", input="1", priority=9)]) == [Started("r", existed=True, same=True)]
    assert ids(await drain(ada)) == ["r"]
    assert (await record(store, "r")).priority == 0


async def test_the_caller_learns_that_the_run_of_that_id_is_another(store: Store) -> None:
    await store.enqueue([start("r", input="1")])
    assert await store.enqueue([start("r", input="2")]) == [Started("r", existed=True, same=False)]
    assert await store.enqueue([start("r", input="1", workflow=BILL)]) == [Started("r", existed=True, same=False)]
    assert (await record(store, "r")).input == "1"


async def test_a_run_that_continued_is_the_one_that_was_started(store: Store, ada: Worker) -> None:
    await store.enqueue([start("poller", input="0")])
    for n in ("1", "2"):
        await ada.settle(await ada.claim_one(), To.CONTINUE, n)
        assert await store.enqueue([start("poller", input="0")]) == [Started("poller", existed=True, same=True)]
        assert await store.enqueue([start("poller", input=n)]) == [Started("poller", existed=True, same=False)]
    assert (await ada.claim_one()).input == (await record(store, "poller")).input == "2"


async def test_a_run_may_continue_with_the_input_that_it_has(store: Store, ada: Worker) -> None:
    await store.enqueue([start("poller", input="0")])
    await ada.settle(await ada.claim_one(), To.CONTINUE, "0")
    await ada.settle(await ada.claim_one(), To.CONTINUE, "1")
    assert await store.enqueue([start("poller", input="0")]) == [Started("poller", existed=True, same=True)]


async def test_the_id_of_a_run_that_ended_still_names_that_run(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    await ada.settle(await ada.claim_one(), body="7")
    assert await store.enqueue([start("r")]) == [Started("r", existed=True, same=True)]
    run = await record(store, "r")
    assert (run.state, run.body) == (State.SUCCEEDED, "7")


async def test_two_of_one_id_in_one_call_are_one_run(store: Store, ada: Worker) -> None:
    answers = await store.enqueue([start("a", input="1"), start("b"), start("a", input="1"), start("a", input="2")])
    assert [(answer.id, answer.existed) for answer in answers] == [
        ("a", False),
        ("b", False),
        ("a", True),
        ("a", True),
    ]
    assert (answers[2].same, answers[3].same) == (True, False)
    assert [(claim.id, claim.input) for claim in await drain(ada)] == [("a", "1"), ("b", "null")]


async def test_one_call_may_mix_new_and_old_ids(store: Store, ada: Worker) -> None:
    await store.enqueue([start("b")])
    answers = await store.enqueue([start("c"), start("b"), start("a")])
    assert [(answer.id, answer.existed) for answer in answers] == [("c", False), ("b", True), ("a", False)]
    assert ids(await drain(ada)) == ["b", "c", "a"]


@pytest.mark.one_partition("the order within a queue")
@pytest.mark.parametrize("old", ["r0", "r17", "r39"])
async def test_of_many_that_are_alike_those_that_are_there_are_told_apart(store: Store, ada: Worker, old: str) -> None:
    await store.enqueue([start("before"), start(old, input="1")])
    names = [f"r{n}" for n in range(40)]
    answers = await store.enqueue([start(name) for name in [*names, "r3"]])
    assert [answer.existed for answer in answers] == [name == old for name in names] + [True]
    assert [answer.same for answer in answers] == [name != old for name in names] + [old != "r3"]
    await store.enqueue([start(f"s{n}", priority=-1) for n in range(20)])
    assert ids(await drain(ada)) == [
        *(f"s{n}" for n in range(20)),
        "before",
        old,
        *(name for name in names if name != old),
    ]
    assert {count.state: count.runs for count in await store.counts()} == {State.RUNNING: 61}


async def test_nothing_to_start_is_fine(store: Store) -> None:
    assert await store.enqueue([]) == []


@pytest.mark.one_partition("the order within a queue")
async def test_runs_keep_the_order_in_which_they_were_given(store: Store, ada: Worker) -> None:
    names = [f"r{(n * 7919) % 1000}" for n in range(1000)]
    await store.enqueue([start(name) for name in names[:500]])
    await store.enqueue([start(name) for name in names[500:]])
    assert [run.id for run in await all_runs(store)] == names
    assert ids(await drain(ada)) == names


async def test_thousands_may_be_started_in_one_call(store: Store) -> None:
    starts = [start() for _ in range(5000)]
    answers = await store.enqueue(starts)
    assert [answer.id for answer in answers] == [each.id for each in starts]
    assert not any(answer.existed for answer in answers)
    assert sum(count.runs for count in await store.counts()) == 5000


@pytest.mark.parametrize("run_id", ODD_IDS)
async def test_an_odd_id_is_kept_as_it_is(store: Store, ada: Worker, run_id: str) -> None:
    assert [each.id for each in await store.enqueue([start(run_id)])] == [run_id]
    assert (await record(store, run_id)).id == run_id
    claim = await ada.claim_one()
    assert claim.id == run_id
    await ada.settle(claim, body='"ok"')
    assert [each.id for each in await store.ended([run_id])] == [run_id]


async def test_ids_that_look_alike_are_different_runs(store: Store) -> None:
    answers = await store.enqueue([start(run_id) for run_id in ODD_IDS])
    assert not any(answer.existed for answer in answers)


async def test_odd_names_of_queues_and_workflows_route_as_any_other(store: Store) -> None:
    queue, workflow = "q:{1} 'a' %", 'W"x" ünï,*'
    await store.enqueue(
        [start("a", queue=queue, workflow=workflow), start("b", queue=queue.upper(), workflow=workflow)]
    )
    served = await worker(store, queues=[queue], workflows=[workflow])
    assert [(claim.id, claim.queue, claim.workflow) for claim in await drain(served)] == [("a", queue, workflow)]


@pytest.mark.parametrize("text", EXACT_INPUTS)
async def test_json_comes_back_byte_for_byte(store: Store, ada: Worker, text: str) -> None:
    await store.enqueue([start("r", input=text)])
    assert (await record(store, "r")).input == text
    claim = await ada.claim_one()
    assert claim.input == text
    await ada.settle(claim, body=text)
    assert [each.body for each in await store.ended(["r"])] == [text]


async def test_a_big_input_is_kept_whole(store: Store, ada: Worker) -> None:
    text = '"' + "\u00e9\U0001f600\\u0000" * 300_000 + '"'
    await store.enqueue([start("r", input=text)])
    assert (await ada.claim_one()).input == text


async def test_a_delayed_run_is_scheduled_from_the_clock_of_the_store(
    store: Store, ada: Worker, clock: ManualClock
) -> None:
    await store.enqueue([start("r", delay=1000)])
    run = await record(store, "r")
    assert (run.state, run.wake_at) == (State.SCHEDULED, clock.now() + 1000)
    clock.advance(ms=999)
    assert await ada.claim() == []
    clock.advance(ms=1)
    assert ids(await ada.claim()) == ["r"]


async def test_a_run_may_be_started_for_a_given_time(store: Store, ada: Worker, clock: ManualClock) -> None:
    due = clock.now() + DAY
    await store.enqueue([start("r", at=due)])
    run = await record(store, "r")
    assert (run.state, run.wake_at) == (State.SCHEDULED, due)
    assert (await ada.exchange()).next_at == due
    clock.advance(ms=DAY)
    assert ids(await ada.claim()) == ["r"]


@pytest.mark.parametrize("past", [0, 1, DAY])
@pytest.mark.one_partition("the order within a queue")
async def test_a_time_that_has_come_is_no_delay(store: Store, ada: Worker, clock: ManualClock, past: int) -> None:
    await store.enqueue([start("at", at=clock.now() - past), start("delay", delay=0)])
    assert ids(await ada.claim()) == ["at", "delay"]


async def test_a_delayed_run_does_not_hold_up_those_after_it(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("late", delay=1000), start("now")])
    assert ids(await ada.claim()) == ["now"]
    clock.advance(ms=1000)
    assert ids(await ada.claim()) == ["late"]


async def test_a_delayed_run_keeps_the_place_it_was_enqueued_at(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("late", delay=1000), start("now")])
    clock.advance(ms=1000)
    assert ids(await drain(ada)) == ["late", "now"]


async def test_of_many_who_start_one_id_at_once_one_makes_the_run(store: Store, ada: Worker) -> None:
    answers = await asyncio.gather(*(store.enqueue([start("r")]) for _ in range(50)))
    assert sorted(answer.existed for [answer] in answers) == [False] + [True] * 49
    assert ids(await drain(ada)) == ["r"]


async def test_of_two_processes_that_start_the_same_ids_each_makes_its_share(
    store: Store, other: Store, ada: Worker
) -> None:
    starts = [start(f"r{n}") for n in range(50)]
    answers = await asyncio.gather(*(each.enqueue([one]) for one in starts for each in (store, other)))
    assert sum(not answer.existed for [answer] in answers) == 50
    assert sorted(ids(await drain(ada))) == sorted(each.id for each in starts)
