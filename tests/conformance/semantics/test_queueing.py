"""Groups, limits, pauses, sessions and versions, as users of real workers see them."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest

from perdure import App, Retry, State, current_run, sleep, step, wait_signal
from perdure.errors import RunFailed
from perdure.model import LimitRecord, Limits

from .conftest import Play
from .kit import Gate, deploy, new_app, replay

pytestmark = pytest.mark.anyio


class Crowd:
    """Counts who is inside at once, by name."""

    def __init__(self) -> None:
        self.inside: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.order: list[tuple[str, int]] = []

    async def visit(self, name: str, n: int) -> None:
        self.order.append((name, n))
        self.inside[name] += 1
        self.most[name] = max(self.most[name], self.inside[name])
        await asyncio.sleep(0)
        self.inside[name] -= 1


# --- groups


async def test_runs_of_a_group_go_one_after_the_other_in_order(play: Play) -> None:
    app, crowd = new_app(), Crowd()

    @step
    async def visit(name: str, n: int) -> None:
        await crowd.visit(name, n)

    @app.workflow(group=lambda name, n: name)
    async def flow(name: str, n: int) -> None:
        await visit(name, n)

    async with play(app) as sandbox:
        runs = await flow.start_many([(name, n) for n in range(20) for name in ("ada", "größe/東京,|:")])
        await sandbox.settle()
        assert {(await run.status()).state for run in runs} == {State.SUCCEEDED}
    assert set(crowd.most.values()) == {1}
    for name in ("ada", "größe/東京,|:"):
        assert [n for who, n in crowd.order if who == name] == list(range(20))


async def test_a_group_keeps_its_order_through_waits_retries_and_crashes(play: Play) -> None:
    app, seen = new_app(), list[tuple[int, str]]()

    @step
    async def note(n: int, what: str) -> None:
        seen.append((n, what))

    @app.workflow(group="one")
    async def flow(n: int) -> None:
        await note(n, "begins")
        await sleep(60)
        await note(n, "ends")

    async with play(app) as sandbox:
        await flow.start_many(range(3))
        await sandbox.settle()
        assert [run.state for run in await app.runs()] == [State.QUEUED, State.QUEUED, State.WAITING]
        await replay(sandbox)
        await sandbox.advance(minutes=5)
    assert seen == [(n, what) for n in range(3) for what in ("begins", "ends")]


async def test_a_group_that_gives_up_its_place_lets_the_next_one_begin(play: Play) -> None:
    app, begun = new_app(), list[int]()

    @app.workflow(group="one", group_keep=False)
    async def flow(n: int) -> None:
        begun.append(n)
        await wait_signal("go")

    async with play(app) as sandbox:
        await flow.start_many(range(3))
        await sandbox.settle()
        assert begun == [0, 1, 2]


async def test_groups_take_turns(play: Play) -> None:
    app, order = new_app(), list[str]()

    @app.workflow(group=lambda name, n: name)
    async def flow(name: str, n: int) -> None:
        order.append(name)

    async with play(app, concurrency=1) as sandbox:
        await flow.start_many([("big", n) for n in range(50)] + [("small", n) for n in range(5)])
        await sandbox.settle()
    last = max(place for place, name in enumerate(order) if name == "small")
    assert last <= 12


async def test_why_names_the_run_that_has_the_place(play: Play) -> None:
    app = new_app()

    @app.workflow(group=lambda n: "customer-7")
    async def flow(n: int) -> None:
        await wait_signal("go")

    async with play(app) as sandbox:
        first, second = await flow.start_many([1, 2])
        await sandbox.settle()
        assert await second.why() == f"is held: group customer-7 is full (1 of 1: run {first.id})"
        [report] = await app.queues()
        assert [held.runs for held in report.held] == [1]
        assert [run.id for run in await app.runs(group="customer-7")] == [second.id, first.id]


@pytest.mark.parametrize("limit", [1, 2])
async def test_a_run_that_keeps_its_place_can_not_wait_for_a_child_in_its_group(play: Play, limit: int) -> None:
    app = new_app()

    @app.workflow(group="one", group_limit=limit)
    async def child() -> int:
        return 1

    @app.workflow(group="one", group_limit=limit, retry=Retry(attempts=5, delay=3600))
    async def parent(apart: bool) -> int:
        if not apart:
            return await child.run()
        run = await child.options(delay=1).start()
        return await run.result()

    async with play(app) as sandbox:
        run = await parent.start(False)
        with pytest.raises(RunFailed, match=r"keeps its place in group one .* group_keep=False") as failure:
            await run.result()
        assert failure.value.info.type == "perdure.errors:WouldDeadlock"
        assert await app.runs(workflow="child") == []
        run = await parent.start(True)
        with pytest.raises(RunFailed, match="WouldDeadlock"):
            await run.result()
        await sandbox.advance(seconds=1)
        assert [each.state for each in await app.runs(workflow="child")] == [State.SUCCEEDED]


async def test_a_run_that_keeps_its_place_can_not_wait_for_any_other_run_of_its_group(play: Play) -> None:
    app = new_app()

    @app.workflow(group="one")
    async def flow(other: str) -> int:
        return 1 if not other else await app.run(other).result()

    async with play(app) as sandbox:
        first = await flow.start("")
        await sandbox.settle()
        assert await (await flow.start(first.id)).result() == 1
        waits, later = await flow.options(delay=1).start_many(["later", ""], ids=["waits", "later"])
        await sandbox.advance(seconds=1)
        with pytest.raises(RunFailed, match=r"WouldDeadlock: run waits keeps its place .* run later, which is of that"):
            await waits.result()
        assert await later.result() == 1


@pytest.mark.parametrize(
    ("keep", "queue", "group"), [(True, "default", "two"), (True, "other", "one"), (False, "default", "one")]
)
async def test_a_child_elsewhere_or_of_a_run_that_gives_up_its_place_can_be_waited_for(
    play: Play, keep: bool, queue: str, group: str
) -> None:
    app = new_app()

    @app.workflow(queue=queue, group=group)
    async def child() -> int:
        return 1

    @app.workflow(group="one", group_keep=keep)
    async def parent() -> int:
        return await child.run()

    async with play(app):
        assert await parent.run() == 1


async def test_a_run_may_start_others_of_its_group_to_come_after_it(play: Play) -> None:
    app, order = new_app(), list[int]()

    @app.workflow(group="one")
    async def flow(n: int) -> None:
        if n < 3:
            await flow.start(n + 1)
        order.append(n)

    async with play(app) as sandbox:
        await flow.start(0)
        await sandbox.settle()
    assert order == [0, 1, 2, 3]


# --- limits


@pytest.mark.parametrize("scope", [{"queue": "default"}, {"workflow": "flow"}, {}, {"group": "g"}])
async def test_a_limit_holds_and_changes_at_run_time(play: Play, scope: dict[str, Any]) -> None:
    app, gate = new_app(), Gate()

    @step
    async def rest() -> None:
        await gate.pass_through()

    @app.workflow(group="g", group_limit=100)
    async def flow(n: int) -> None:
        await rest()

    async with play(app):
        await app.limits.set(**scope, running=2, who="ada")
        runs = await flow.start_many(range(10))
        await gate.reached(2)
        assert await _running(app) == 2
        assert "2 of 2" in await runs[5].why() or "limit of 2" in await runs[5].why()
        await app.limits.set(**scope, running=5, who="bob")
        await gate.reached(5)
        assert await _running(app) == 5
        await app.limits.set(**scope, running=1)
        await app.limits.set(**scope)
        await gate.reached(10)
        gate.open()
        await asyncio.gather(*(run.result() for run in runs))
        history = await app.limits.history()
        assert [(each.new.running, each.who) for each in history][-2:] == [(5, "bob"), (2, "ada")]
        assert (history[-2].old.running, history[-1].old) == (2, Limits())
        assert all(each.running == 0 for each in await app.limits.list())


async def test_a_group_keeps_the_limit_that_it_was_made_with(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    app, other = new_app(), new_app()

    @app.workflow(group=lambda n: "g", group_limit=2)
    async def flow(n: int) -> None:
        await wait_signal("go")

    @other.workflow(name="flow", group=lambda n: "g", group_limit=50)
    async def later(n: int) -> None:
        await wait_signal("go")

    async with play(app) as sandbox:
        await flow.start_many(range(3))
        await deploy(sandbox, other)
        with caplog.at_level(logging.WARNING, "perdure.client"):
            runs = [*await later.start_many(range(2)), await later.start(3)]
        assert caplog.text.count("code asks for 50 at a time of group g in queue default") == 1
        assert "2 stands" in caplog.text
        await sandbox.settle()
        assert "group g is full (2 of 2" in await runs[-1].why()
        await other.limits.set(group="g", running=50)
        await sandbox.settle()
        assert "signal go" in await runs[-1].why()


async def test_what_code_declares_does_not_win_over_what_is_stored(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    app, other = new_app(), new_app()
    app.limits.declare(queue="mail", running=2, rate="100/min")
    other.limits.declare(queue="mail", running=50)
    for each in (app, other):

        @each.workflow(queue="mail")
        async def flow() -> None: ...

    async with play(app) as sandbox:
        [record] = await app.limits.list()
        assert (record.limits.running, record.revision) == (2, 1)
        with caplog.at_level(logging.WARNING, "perdure.worker"):
            await deploy(sandbox, other)
        assert "code declares 50 at a time for queue mail, and 2 at a time, 100/min stands (revision 1" in caplog.text
        assert [each.limits.running for each in await other.limits.list()] == [2]
        await other.limits.apply(who="deploy 7")
        [record] = await other.limits.list()
        assert (record.limits.running, record.limits.rate, record.who) == (50, None, "deploy 7")
        caplog.clear()
        await replay(sandbox)
        assert "code declares" not in caplog.text


async def test_a_rate_spaces_starts_by_the_stores_clock(play: Play) -> None:
    app, at = new_app(), list[int]()

    @app.workflow(queue="mail")
    async def flow(n: int) -> None:
        at.append(sandbox.clock.now())

    async with play(app) as sandbox:
        await app.limits.set(queue="mail", rate="6/min", burst=3)
        runs = await flow.start_many(range(9))
        await sandbox.settle()
        assert len(at) == 3
        assert "queue mail may begin its next run at" in await runs[-1].why()
        await sandbox.advance(minutes=2)
        assert len(at) == 9
        begin = at[0]
        assert [time - begin for time in at[3:]] == [10_000 * n for n in range(1, 7)]


# --- pauses


@pytest.mark.parametrize("scope", [{"queue": "default"}, {"workflow": "flow"}, {}, {"group": "g"}])
async def test_a_pause_keeps_runs_from_beginning_and_accepts_starts(play: Play, scope: dict[str, Any]) -> None:
    app, gate = new_app(), Gate()

    @step
    async def rest() -> None:
        await gate.pass_through()

    @app.workflow(group="g", group_limit=10)
    async def flow() -> str:
        await rest()
        return "done"

    async with play(app) as sandbox:
        first = await flow.start()
        await gate.reached()
        await app.limits.pause(**scope, who="ada")
        second = await flow.start()
        gate.open()
        assert await first.result() == "done"
        await sandbox.settle()
        assert (await second.status()).state is State.QUEUED
        assert "is paused by ada" in await second.why()
        await app.limits.resume(**scope)
        assert await second.result() == "done"
        assert [each.paused for each in await app.limits.history()] == [False, True]


async def test_draining_pauses_and_waits_until_nothing_runs(play: Play) -> None:
    app, gate = new_app(), Gate()

    @step
    async def rest() -> None:
        await gate.pass_through()

    @app.workflow(queue="mail")
    async def flow() -> None:
        await rest()

    @app.workflow(queue="other")
    async def waits() -> None:
        await wait_signal("go")

    async with play(app) as sandbox:
        for queue in ("mail", "other"):
            await flow.options(queue=queue).start()
        await waits.options(queue="mail").start()
        await gate.reached(2)
        draining = asyncio.ensure_future(drained(app))
        async for _ in app.client.follow(lambda store: store.limits()):
            if any(limit.paused for limit in await app.limits.list()):
                break
        late = await flow.options(queue="mail").start()
        assert not draining.done()
        gate.open()
        async with asyncio.timeout(10):
            assert (await draining).paused
        await sandbox.settle()
        assert (await late.status()).state is State.QUEUED
        await app.limits.resume(queue="mail")
        await late.result()


async def drained(app: App) -> LimitRecord:
    return await app.limits.drain(queue="mail")


# --- sessions


async def test_runs_of_a_session_go_to_its_owner_and_elsewhere_when_it_stops(play: Play) -> None:
    app, where = new_app(), list[str]()

    @app.workflow(session=lambda n: "browser")
    async def flow(n: int) -> str:
        where.append(f"{current_run().session} {n}")
        return "done"

    async with play(app) as sandbox:
        first = sandbox.worker
        await (await flow.start(0)).result()
        async with app.worker(lease=1000, sessions=1) as second:
            runs = await flow.start_many(range(1, 11))
            await asyncio.gather(*(run.result() for run in runs))
            owners = {run.record.worker for run in await app.runs(state="running")}
            assert owners <= {first.name}
            await sandbox.kill_worker()
            run = await flow.start(11)
            assert await run.result() == "done"
            assert second.running == 0
    assert [int(each.split()[1]) for each in where] == list(range(12))


async def test_a_worker_that_stops_gives_up_its_sessions_before_its_last_run_has_ended(play: Play) -> None:
    app, gate = new_app(), Gate()

    @step
    async def rest() -> None:
        await gate.pass_through()

    @app.workflow
    async def slow() -> None:
        await rest()

    @app.workflow(session=lambda n: "browser")
    async def flow(n: int) -> int:
        return n

    async with play(app) as sandbox:
        await (await flow.start(1)).result()
        await slow.start()
        await gate.reached()
        stopping = asyncio.ensure_future(sandbox.worker.stop(grace=30))
        async with asyncio.timeout(20), app.worker(lease=1000, sessions=1):
            assert await (await flow.start(2)).result() == 2
            assert not stopping.done()
            gate.open()
            await stopping


async def test_a_worker_without_sessions_takes_no_run_of_one(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> None: ...

    async with play(app) as sandbox:
        await sandbox.kill_worker()
        async with app.worker(sessions=0, lease=1000):
            run = await flow.options(session="s").start()
            other = await flow.start()
            await other.result()
            assert (await run.status()).state is State.QUEUED
            assert "session" in await run.why()


# --- versions


async def test_pinned_runs_go_to_code_that_serves_their_version(play: Play) -> None:
    def version(name: str, *accepts: str) -> App:
        app = new_app()

        @app.workflow(name="flow", version=name, accepts=accepts)
        async def flow() -> str:
            await wait_signal("go")
            return name

        return app

    first = version("1")
    async with play(first) as sandbox:
        run = await first.find("flow").start()
        await sandbox.settle()
        await deploy(sandbox, second := version("2"))
        await second.run(run.id).signal("go")
        await sandbox.settle()
        assert "no live worker serves version 1 of workflow flow" in await second.run(run.id).why()
        new = await second.find("flow").start()
        await new.signal("go")
        assert await new.result() == "2"
        await deploy(sandbox, third := version("3", "1", "2"))
        assert await third.run(run.id).result() == "3"


async def _running(app: App) -> int:
    return sum(count.runs for count in await app.counts() if count.state is State.RUNNING)
