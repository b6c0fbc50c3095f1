"""What may begin within limits and rates, decided without a store."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perdure.budget import Budget, Head, Meter, pick, put_off, scopes_of
from perdure.model import Rate, Scope, ScopeKind

RATES = st.builds(Rate, st.integers(1, 1000), st.integers(1, 100_000), st.integers(1, 20))
QUEUE = Scope(ScopeKind.QUEUE, "q")


def head(run: int, *, queue: str = "q", workflow: str = "w", group: str = "", session: int | None = None) -> Head:
    return Head(run, 0, run, queue, workflow, group, session)


@given(RATES, st.lists(st.integers(0, 5_000), min_size=1, max_size=60))
def test_in_any_window_no_more_begin_than_the_rate_allows(rate: Rate, pauses: list[int]) -> None:
    meter, now, began = Meter(rate), 1_000_000, list[int]()
    for pause in pauses:
        now += pause
        while meter.opens_at(now) == now and len(began) < 200:
            meter.begin(now)
            began.append(now)
    for first, at in enumerate(began):
        for last in range(first, len(began)):
            assert (last - first + 1 - rate.burst) * rate.period <= (began[last] - at) * rate.count


@given(RATES, st.integers(1, 50))
def test_it_opens_when_it_says_and_not_a_millisecond_before(rate: Rate, runs: int) -> None:
    meter = Meter(rate)
    now = 1_000_000
    for _ in range(runs):
        opens = meter.opens_at(now)
        assert meter.opens_at(opens) == opens
        if opens > now:
            assert meter.opens_at(opens - 1) == opens
        now = opens
        meter.begin(now)
    whole = (runs - rate.burst) * rate.period
    assert now - 1_000_000 <= max(0, whole // rate.count + runs)


def test_a_clock_that_goes_back_opens_nothing_sooner() -> None:
    meter = Meter(Rate(1, 1000, 1))
    meter.begin(5_000)
    assert meter.opens_at(1_000) == 6_000
    assert meter.opens_at(6_000) == 6_000


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), st.integers(-1, 1)), max_size=30),
    st.dictionaries(st.sampled_from([Scope(ScopeKind.NAMESPACE), *scopes_of("a", "x")]), st.integers(0, 6)),
    st.integers(0, 10),
)
def test_what_is_picked_is_in_order_and_as_much_as_may_be(
    lanes: list[tuple[str, str, int]], left: dict[Scope, int], slots: int
) -> None:
    heads = [Head(n, priority, n, queue, workflow, "", None) for n, (queue, workflow, priority) in enumerate(lanes)]
    picked = pick(heads, {scope: Budget(9, room) for scope, room in left.items()}, slots, 0, 0).chosen
    for queue in "ab":
        own = [each for each in picked if each.queue == queue]
        assert own == sorted(own, key=lambda each: (each.priority, each.place))
    for scope, room in left.items():
        assert sum(scope in scopes_of(each.queue, each.workflow) for each in picked) <= room
    for other in set(heads) - set(picked):
        full = [
            scope
            for scope, room in left.items()
            if scope in scopes_of(other.queue, other.workflow)
            and sum(scope in scopes_of(each.queue, each.workflow) for each in picked) == room
        ]
        assert len(picked) == slots or full


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(-1, 1)), max_size=30),
    st.sampled_from(["", "a", "b", "bb", "c", "d"]),
    st.integers(0, 12),
)
def test_queues_take_turns(ready: list[tuple[str, int]], after: str, slots: int) -> None:
    heads = [Head(n, priority, n, queue, "w", "", None) for n, (queue, priority) in enumerate(ready)]
    left = sorted(heads, key=lambda each: (each.priority, each.place))
    for each in pick(heads, {}, slots, 0, 0, after).chosen:
        queues = sorted({head.queue for head in left})
        after = next((queue for queue in queues if queue > after), queues[0])
        assert each == next(head for head in left if head.queue == after)
        left.remove(each)


def test_a_queue_goes_on_with_what_may_begin_of_it() -> None:
    heads = [Head(n, 0, n, queue, workflow, "", None) for n, (queue, workflow) in enumerate(["ax", "ay", "bx", "by"])]
    full = {Scope(ScopeKind.WORKFLOW, "x"): Budget(1, 0)}
    assert [each.run for each in pick(heads, full, 1, 0, 0, "b").chosen] == [1]
    assert [each.run for each in pick(heads, full, 1, 0, 0, "a").chosen] == [3]


def test_a_late_group_is_told_of_and_holds_up_nobody() -> None:
    meter = Meter(Rate(1, 1000, 1))
    meter.begin(0)
    group = Scope(ScopeKind.GROUP, "g")
    found = pick([head(1, group="g"), head(2), head(3, group="h")], {group: Budget(meter=meter)}, 9, 0, 0)
    assert [each.run for each in found.chosen] == [2, 3]
    assert [each.run for each in found.late] == [1]
    assert found.opens_at is None


@given(RATES, st.integers(0, 30), st.integers(0, 5_000))
def test_it_opens_behind_others_when_these_have_begun(rate: Rate, begun: int, later: int) -> None:
    meter, now = Meter(rate), 1_000_000
    for _ in range(begun):
        meter.begin(now)
    now += later
    told = [meter.opens_at(now, behind) for behind in range(20)]
    for behind, opens in enumerate(told):
        now = meter.opens_at(now)
        assert 0 <= now - opens <= behind  # Each that begins does so at a whole millisecond.
        meter.begin(now)


def test_late_ones_are_put_off_one_behind_the_other() -> None:
    meter = Meter(Rate(1, 1000, 1))
    meter.begin(0)
    late = [head(1, group="g"), head(2, group="h"), head(3, group="g"), head(4, group="g")]
    budgets = {Scope(ScopeKind.GROUP, name): Budget(meter=meter) for name in "gh"}
    times = put_off(late, {1: 0, 2: 2, 3: 4, 4: 4}, budgets, 0)
    assert [(each.run, at) for each, at in times] == [(1, 1000), (2, 3000), (3, 6000), (4, 7000)]


def test_a_full_queue_is_not_late() -> None:
    meter = Meter(Rate(1, 1000, 1))
    meter.begin(0)
    assert pick([head(1)], {QUEUE: Budget(1, 0, meter)}, 9, 0, 0).opens_at is None
    assert pick([head(1)], {QUEUE: Budget(1, 1, meter)}, 9, 0, 0).opens_at == 1000


def test_new_sessions_are_as_many_as_there_is_room_for() -> None:
    heads = [head(n, session=n % 3) for n in range(9)] + [head(9)]
    assert [each.run for each in pick(heads, {}, 20, 2, 0).chosen] == [0, 1, 3, 4, 6, 7, 9]
