"""Nothing of a run that was pruned or deleted is left in any table of the file."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from perdure.model import (
    Checkpoint,
    Fire,
    Kind,
    Limits,
    Outcome,
    Retention,
    Schedule,
    Scope,
    ScopeKind,
    Signal,
    Start,
    Unique,
    Wait,
    WaitFor,
)
from perdure.stores import open_store
from perdure.stores.base import Claim, Exchange, Registration, Save, Settle, Store, To, Told

pytestmark = pytest.mark.anyio

LASTING = {
    *("migration", "sqlite_sequence", "lane", "finish", "turn"),
    *("scope", "revision", "worker", "worker_lane", "schedule"),
}
"""Tables whose rows are of no run."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Busy:
    """A worker that leaves rows in every table that there is."""

    def __init__(self, store: Store, id: int) -> None:
        self.store, self.id, self.serial = store, id, 0

    async def say(self, **parts: object) -> list[Claim]:
        self.serial += 1
        reply = await self.store.exchange(Exchange(self.id, self.serial, **parts))  # type: ignore[arg-type]
        return reply.claims


def rows(path: Path) -> dict[str, list[tuple[object, ...]]]:
    connection = sqlite3.connect(path)
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    found = {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in names}
    connection.close()
    return found


async def fill(store: Store) -> int:
    """Returns the worker's number."""

    def run(id: str, **options: object) -> Start:
        return Start(id=id, workflow="w", queue="q", input='"input"', labels={"of": id}, **options)  # type: ignore[arg-type]

    await store.put_schedule(Schedule(name="s", every=1000, start=run("")), 5, declared=True)
    await store.set_limits(Scope(ScopeKind.QUEUE, "q"), Limits(running=9), "ada")
    await store.open_batch("batch", [run("secret-1", unique=Unique("key")), run("secret-2")], run("secret-callback"))
    await store.enqueue([run(f"secret-tied-{n}", group="secret-group", session="secret-session") for n in range(2)])
    worker = Registration(
        name="a", host="h", pid=1, queues=["q"], workflows=["w"], sessions=9, concurrency=9, lease=10**9
    )
    busy = Busy(store, await store.register(worker))
    await busy.say(fires=[Fire("s", 5, [run("secret-fired")], 10**15)])
    await store.signal(Signal("signal-1", "secret-1", "go", "1"))
    await store.signal(Signal("signal-2", "secret-1", "go", "2"))
    claims = {claim.id: claim for claim in await busy.say(slots=9)}
    one, two, fired = (claims[id] for id in ("secret-1", "secret-2", "secret-fired"))
    kept = Checkpoint("step", Kind.STEP, Outcome.OK, '"kept"')
    child = Save(one.ref, one.token, Checkpoint("child", Kind.CHILD, Outcome.OK, "1"), starts=run("secret-child"))
    await busy.say(saves=[Save(one.ref, one.token, kept, consumes=1), child], told=[Told(two.ref, two.token, '"half"')])
    waits = [Wait("w", WaitFor.SIGNAL, "never"), Wait("r", WaitFor.RUN, "secret-child")]
    await busy.say(settles=[Settle(one.ref, one.token, To.PARK, waits=waits)])
    ends = [Settle(claim.ref, claim.token, To.FAILED, '"error"', cause="cause") for claim in (two, fired)]
    await busy.say(settles=ends)
    return busy.id


@pytest.mark.parametrize("how", ["prune", "delete"])
async def test_nothing_is_left(tmp_path: Path, how: str) -> None:
    path = tmp_path / "a.db"
    store = open_store(f"sqlite:///{path}")
    await store.open()
    try:
        worker = await fill(store)
        before = rows(path)
        empty = {name for name, found in before.items() if not found} - {"listener"}
        assert not empty, "the test is to leave rows in every table"
        ids = ["secret-1", "secret-2", "secret-fired", "secret-callback", "secret-tied-0", "secret-tied-1"]
        await store.retire(worker)
        if how == "prune":
            for id in ids:
                await store.cancel(id, "x")
            assert await store.prune([Retention(age=0)], limit=100) == 7
        else:
            assert [await store.delete(id, force=True) for id in ids] == [2, 1, 1, 1, 1, 1]
        after = rows(path)
        assert {name for name, found in after.items() if found} <= LASTING
        assert "secret" not in repr(after)
        assert all(count == 0 for lane in after["lane"] for count in lane[4:])
    finally:
        await store.close()
