"""Tools of the conformance suite: a clock that tests move, builders, and a worker that numbers its exchanges."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import closing

import msgspec

from perdure.model import (
    Checkpoint,
    Fire,
    Json,
    Kind,
    Millis,
    Outcome,
    RunQuery,
    RunRecord,
    Scope,
    ScopeKind,
    Signal,
    Start,
    Unique,
    Wait,
    WaitFor,
)
from perdure.stores.base import Registration, Store
from perdure.stores.exchange import CLAIM_LIMIT, Claim, Exchange, Exchanged, Ref, Save, Settle, To, Told, Watch

LEASE: Millis = 30_000
DAY: Millis = 24 * 60 * 60 * 1000
SHIP = "ship"
BILL = "bill"
DEFAULT = "default"
URGENT = "urgent"
EVERYTHING = Scope(ScopeKind.NAMESPACE)

_ids = itertools.count(1)


def number_anew() -> None:
    """Names that a test leaves open are the same whatever ran before it: partitions depend on them."""
    global _ids
    _ids = itertools.count(1)


class ManualClock:
    """The clock of a store under test: it moves when a test says so."""

    def __init__(self, start: Millis = 1_700_000_000_000) -> None:
        self._now = start
        self.each_look: Millis = 0
        """How much time passes each time that it is looked at."""

    def now(self) -> Millis:
        self._now += self.each_look
        return self._now

    def advance(self, *, ms: Millis) -> Millis:
        self._now += ms
        return self._now


def start(
    id: str | None = None,
    *,
    workflow: str = SHIP,
    queue: str = DEFAULT,
    input: Json = "null",
    priority: int = 0,
    at: Millis | None = None,
    delay: Millis | None = None,
    timeout: Millis | None = None,
    max_crashes: int = 5,
    parent: str | None = None,
    version: str = "",
    group: str = "",
    group_limit: int = 1,
    group_keep: bool = True,
    session: str = "",
    unique: Unique | None = None,
    labels: dict[str, str] | None = None,
) -> Start:
    """A run to be made; whatever a test does not care about has a plain default."""
    return Start(
        id=id or f"run-{next(_ids)}",
        workflow=workflow,
        queue=queue,
        input=input,
        priority=priority,
        at=at,
        delay=delay,
        timeout=timeout,
        max_crashes=max_crashes,
        parent=parent,
        version=version,
        group=group,
        group_limit=group_limit,
        group_keep=group_keep,
        session=session,
        unique=unique,
        labels=labels or {},
    )


def of_queue(name: str = DEFAULT) -> Scope:
    return Scope(ScopeKind.QUEUE, name)


def of_workflow(name: str = SHIP) -> Scope:
    return Scope(ScopeKind.WORKFLOW, name)


def of_group(name: str) -> Scope:
    return Scope(ScopeKind.GROUP, name)


def message(run_id: str, name: str = "approve", body: Json = "true", *, id: str | None = None) -> Signal:
    return Signal(id=id or f"signal-{next(_ids)}", run_id=run_id, name=name, body=body)


def checkpoint(
    key: str,
    body: Json | None = "1",
    *,
    kind: Kind = Kind.STEP,
    outcome: Outcome = Outcome.OK,
    attempts: int = 1,
    digest: str = "",
    at: Millis | None = None,
    started_at: Millis = 0,
) -> Checkpoint:
    return Checkpoint(
        key=key,
        kind=kind,
        outcome=outcome,
        body=body,
        attempts=attempts,
        digest=digest,
        at=at,
        started_at=started_at,
    )


def for_timer(at: Millis, key: str = "sleep") -> Wait:
    return Wait(key=key, what=WaitFor.TIMER, at=at)


def for_signal(name: str = "approve", *, key: str | None = None, at: Millis | None = None) -> Wait:
    return Wait(key=key or f"signal:{name}", what=WaitFor.SIGNAL, target=name, at=at)


def for_run(run_id: str, *, key: str | None = None, at: Millis | None = None) -> Wait:
    return Wait(key=key or f"result:{run_id}", what=WaitFor.RUN, target=run_id, at=at)


def settle(
    claim: Claim, to: To = To.SUCCEEDED, body: Json | None = None, *, delay: Millis = 0, waits: Sequence[Wait] = ()
) -> Settle:
    return Settle(ref=claim.ref, token=claim.token, to=to, body=body, delay=delay, waits=list(waits))


def save(
    claim: Claim,
    kept: Checkpoint,
    *,
    consumes: int | None = None,
    starts: Start | None = None,
    gives_back: bool = False,
) -> Save:
    return Save(claim.ref, claim.token, kept, consumes=consumes, starts=starts, gives_back=gives_back)


def watch(claim: Claim, wait: Wait) -> Watch:
    return Watch(ref=claim.ref, token=claim.token, wait=wait)


def with_token(claim: Claim, token: int, ref: Ref | None = None) -> Claim:
    """The same claim under another token: what a forged or stale write bears."""
    return msgspec.structs.replace(claim, token=token, ref=claim.ref if ref is None else ref)


class Worker:
    """One incarnation, as its exchange loop would use the store."""

    def __init__(self, store: Store, id: int, name: str, lease: Millis) -> None:
        self.store = store
        self.id = id
        self.name = name
        self.lease = lease
        self.serial = 0
        self.last: Exchange | None = None
        self.after = ""

    async def exchange(
        self,
        *,
        slots: int = 0,
        saves: Sequence[Save] = (),
        settles: Sequence[Settle] = (),
        watches: Sequence[Watch] = (),
        told: Sequence[Told] = (),
        fires: Sequence[Fire] = (),
        owned: Sequence[tuple[Ref, int]] | None = None,
        skips: Sequence[str] = (),
        draining: bool = False,
    ) -> Exchanged:
        self.serial += 1
        self.last = Exchange(
            worker=self.id,
            serial=self.serial,
            saves=list(saves),
            settles=list(settles),
            slots=slots,
            watches=list(watches),
            told=list(told),
            fires=list(fires),
            after=self.after,
            owned=None if owned is None else list(owned),
            skips=list(skips),
            draining=draining,
        )
        reply = await self.store.exchange(self.last)
        for claim in reply.claims:
            self.after = claim.queue
        return reply

    async def repeat(self) -> Exchanged:
        """Sends the last exchange again, as after a reply that was lost."""
        assert self.last is not None
        return await self.store.exchange(msgspec.structs.replace(self.last, repeated=True))

    def renew(self) -> bool:
        """Renews its lease, as a keeper would that is used once."""
        with closing(self.store.keeper(self.id, self.lease)) as keeper:
            return keeper.renew()

    async def claim(self, slots: int = CLAIM_LIMIT) -> list[Claim]:
        return (await self.exchange(slots=slots)).claims

    async def claim_one(self) -> Claim:
        [claim] = await self.claim(1)
        return claim

    async def settle(
        self,
        claim: Claim,
        to: To = To.SUCCEEDED,
        body: Json | None = None,
        *,
        delay: Millis = 0,
        waits: Sequence[Wait] = (),
        cause: str | None = None,
    ) -> Exchanged:
        ended = settle(claim, to, body, delay=delay, waits=waits)
        ended.cause = cause
        return await self.exchange(settles=[ended])

    async def save(
        self, claim: Claim, *kept: Checkpoint, consumes: int | None = None, starts: Start | None = None
    ) -> Exchanged:
        saves = [save(claim, checkpoint, consumes=consumes, starts=starts) for checkpoint in kept]
        return await self.exchange(saves=saves)

    async def park(self, claim: Claim, *waits: Wait) -> Exchanged:
        return await self.settle(claim, To.PARK, waits=waits)


async def worker(
    store: Store,
    *,
    name: str | None = None,
    queues: Sequence[str] = (DEFAULT, URGENT),
    workflows: Sequence[str] = (SHIP, BILL),
    concurrency: int = 10,
    lease: Millis = LEASE,
    versions: dict[str, list[str]] | None = None,
    sessions: int = 0,
    session_idle: Millis = 60_000,
) -> Worker:
    """Registers an incarnation; by default it serves every lane that the suite uses."""
    name = name or f"worker-{next(_ids)}"
    registration = Registration(
        name=name,
        host="localhost",
        pid=4711,
        queues=list(queues),
        workflows=list(workflows),
        concurrency=concurrency,
        lease=lease,
        versions=versions or {},
        sessions=sessions,
        session_idle=session_idle,
    )
    return Worker(store, await store.register(registration), name, lease)


async def record(store: Store, run_id: str) -> RunRecord:
    """The run, which must be there."""
    found = await store.load(run_id)
    assert found is not None, f"run {run_id} is gone"
    return found


async def keys(store: Store, run_id: str) -> list[str]:
    """The keys of a run's checkpoints, in order."""
    return [kept.key for kept in await store.history(run_id)]


async def all_runs(store: Store) -> list[RunRecord]:
    return await store.runs(RunQuery(limit=10_000, oldest_first=True))


async def enqueue_one_by_one(store: Store, clock: ManualClock, starts: Sequence[Start]) -> None:
    """Makes runs, each in a millisecond of its own."""
    for each in starts:
        clock.advance(ms=1)
        await store.enqueue([each])


async def drain(worker: Worker) -> list[Claim]:
    """Claims until nothing more is ready for the worker, in as many exchanges as that takes."""
    claims: list[Claim] = []
    for _ in range(10_000):
        reply = await worker.exchange(slots=CLAIM_LIMIT)
        claims += reply.claims
        if not reply.more:
            return claims
    raise AssertionError("`more` never came to an end")


def ids(claims: Sequence[Claim]) -> list[str]:
    return [claim.id for claim in claims]


def named(claims: Sequence[Claim], *names: str) -> list[Claim]:
    """The claims of these runs, and of no others, in this order, where that of the claims is of no matter."""
    assert sorted(ids(claims)) == sorted(names)
    return sorted(claims, key=lambda claim: names.index(claim.id))
