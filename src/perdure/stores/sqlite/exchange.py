"""One call per wake of a worker: saves, settles, due timers and deadlines, claims, and the reply."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Set
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.model import Millis, Started
from perdure.stores.base import Topic
from perdure.stores.exchange import (
    PAGE,
    PAGE_BYTES,
    Cancelling,
    Claim,
    Exchange,
    Exchanged,
    Existed,
    Save,
    Seen,
    Settle,
)
from perdure.stores.shared.pages import cut_to_page
from perdure.stores.sqlite.claim import Outlook, claim_for, outlook, sessions_wanted, token_range
from perdure.stores.sqlite.control import end_held, expire
from perdure.stores.sqlite.enqueue import enqueue
from perdure.stores.sqlite.executor import Transaction
from perdure.stores.sqlite.schedules import fire, read_schedules
from perdure.stores.sqlite.settle import carry_out, plan
from perdure.stores.sqlite.sql import encode, load

DUE_LIMIT = 500
"""The most timers, and the most deadlines, that one exchange takes up."""
DUE_SCHEDULES = 10
"""The most schedules that one reply tells of as due."""

_SQL = load("exchange")
_NONE: frozenset[int] = frozenset()
_body = attrgetter("body")
_LOST, _SETTLED, _CANCELLING, _CRASHED, _CHILD, _SESSION = 1, 2, 4, 8, 16, 32

_Named = msgspec.json.Decoder(tuple[list[tuple[int, int]], int | None])
_Cancelled = msgspec.json.Decoder(list[tuple[int, Cancelling]])
_Claims = msgspec.json.Decoder(list[Claim])
_Numbers = msgspec.json.Decoder(list[int])
_Names = msgspec.json.Decoder(list[str])
_Ties = msgspec.json.Decoder(list[tuple[int, str, str, str]])
_Seen = msgspec.json.Decoder(list[Seen])


class _Head(msgspec.Struct):
    """What the store said of the claims that an exchange names (tokens by flags), and of times."""

    flags: dict[int, int]
    grouped: bool
    """Whether any of the claims is of a run of a group."""
    next_at: Millis | None
    timers_due: bool
    deadlines_due: bool
    sessions_idle: bool
    sessions: int
    """How many sessions the worker may own."""
    wanted: bool
    """Whether a run is ready for the worker whose session nobody owns."""
    limited: bool
    known: bool
    ready: bool
    """Whether a run is ready for the worker."""
    news: bool
    """Whether the worker has to be told of a cancellation or a schedule."""

    def having(self, flag: int) -> Set[int]:
        return {token for token, flags in self.flags.items() if flags & flag} if self.flags else _NONE

    @property
    def due(self) -> bool:
        """Whether there is anything to be taken up."""
        return self.timers_due or self.deadlines_due or self.sessions_idle


def silent(exchange: Exchange) -> bool:
    """Whether a worker says nothing that would have to be written."""
    return not (exchange.saves or exchange.told or exchange.settles or exchange.fires or exchange.repeated)


def idle(transaction: Transaction, exchange: Exchange) -> Exchanged | None:
    """The reply to an exchange for which nothing has to be written; None when something has. Reads only."""
    if not silent(exchange):
        return None
    head = _head(transaction, exchange)
    if head.due or _gives_up(exchange, head):
        return None
    if _brief(exchange, head):
        return _brief_reply(transaction, exchange, head)
    left_over = outlook(transaction, exchange.worker) if _strict(transaction, exchange, head) else None
    reply, _ = _reply(transaction, exchange, head)
    _look_out(reply, left_over)
    if reply.more and exchange.slots > 0:
        return None
    _watch(transaction, exchange, head, reply)
    return reply


def perform(transaction: Transaction, exchange: Exchange) -> Exchanged:
    """Does all that an exchange asks for. What is refused, or was done before, changes nothing."""
    head = _head(transaction, exchange)
    ready, existed = _save(transaction, exchange, head)
    _tell(transaction, exchange, head)
    if _brief(exchange, head):
        return _brief_reply(transaction, exchange, head)
    ready |= _settle(transaction, exchange, head)
    more, left_over = False, None
    if head.known:
        ready |= _fire(transaction, exchange)
        promoted, more = _take_up(transaction, head)
        ready |= promoted
        if _gives_up(exchange, head):
            ready |= transaction.change(_SQL["give_up"], {"worker": exchange.worker}) > 0
        strict = _strict(transaction, exchange, head)
        # While there are more runs whose time is over, a claim might bring one of them: they come first.
        if exchange.slots > 0 and not (head.deadlines_due and more):
            claim_for(transaction, exchange, strict=strict)
        if strict:
            left_over = outlook(transaction, exchange.worker)
    reply, left = _reply(transaction, exchange, head)
    if reply.claims or exchange.settles or ready:
        transaction.tell.add(Topic.STATUS)
    # What settles frees its share of a limit, for which runs of others may wait.
    if left and (ready or (head.limited and exchange.settles)):
        transaction.tell.add(Topic.WORK)
    if reply.next_at is not None and (head.next_at is None or reply.next_at < head.next_at):
        transaction.tell.add(Topic.WORK)
    # Only now: what limits and rates say each worker asks for itself, or all would wake each other while one holds.
    _look_out(reply, left_over)
    reply.more |= more
    reply.existed = existed
    _watch(transaction, exchange, head, reply)
    return reply


def _strict(transaction: Transaction, exchange: Exchange, head: _Head) -> bool:
    """Whether a claim has to look at limits, rates or sessions; what is ready tells all otherwise."""
    return head.known and (head.limited or (head.sessions > 0 and sessions_wanted(transaction, exchange.worker)))


def _gives_up(exchange: Exchange, head: _Head) -> bool:
    """Whether sessions of which nothing runs are to be given up."""
    return exchange.draining and head.sessions > 0


def _brief(exchange: Exchange, head: _Head) -> bool:
    """Whether the exchange makes nothing ready and claims nothing, so that `head` still tells all when it is done."""
    return (
        head.known
        and not (head.due or head.news or _gives_up(exchange, head))
        and (not head.ready or (exchange.slots <= 0 and not head.limited and not (head.sessions and head.wanted)))
        and not (exchange.settles or exchange.fires or exchange.repeated)
        and not any(save.starts for save in exchange.saves)
    )


def _brief_reply(transaction: Transaction, exchange: Exchange, head: _Head) -> Exchanged:
    refused = sorted(_refused(exchange, head))
    reply = Exchanged(transaction.now, [], refused, [], [], head.next_at, more=head.ready)
    _watch(transaction, exchange, head, reply)
    return reply


def _head(transaction: Transaction, exchange: Exchange) -> _Head:
    refs = {part.token: part.ref for part in (*exchange.saves, *exchange.told, *exchange.settles, *exchange.watches)}
    refs.update((token, ref) for ref, token in exchange.owned or ())
    now, named, timer, deadline, slot, idle_until, sessions, wanted, limited, ready, news = transaction.row(
        _SQL["head"],
        {
            "refs": encode(refs),
            "worker": exchange.worker,
            "skips": encode(exchange.skips),
            "now": transaction.known_now,
        },
    )
    transaction.known_now = now
    flags, grouped = _Named.decode(named)
    return _Head(
        flags=dict(flags),
        grouped=bool(grouped),
        next_at=_first(timer, deadline, slot),
        timers_due=timer is not None and timer <= now,
        deadlines_due=deadline is not None and deadline <= now,
        sessions_idle=idle_until is not None and idle_until <= now,
        sessions=sessions or 0,
        wanted=bool(wanted),
        limited=bool(limited),
        known=sessions is not None,
        ready=bool(ready),
        news=bool(news),
    )


def _first(*times: Millis | None) -> Millis | None:
    return min((time for time in times if time is not None), default=None)


def _save(transaction: Transaction, exchange: Exchange, head: _Head) -> tuple[bool, list[Existed]]:
    """Keeps checkpoints; returns whether runs were made, and the children that were there."""
    stopped = head.having(_LOST | _SETTLED)
    saves = [save for save in exchange.saves if save.token not in stopped]
    if not saves:
        return False, []
    starting = [save for save in saves if save.starts is not None]
    started = _start(transaction, starting)
    existed = [
        Existed(save.token, save.checkpoint.key, answer.id, answer.same)
        for save, answer in zip(starting, started, strict=True)
        if answer.existed
    ]
    answers = iter(started)
    rows = [_row(save) if save.starts is None else _child_row(save, next(answers)) for save in saves]
    kept = [save for save, row in zip(saves, rows, strict=True) if row is not None]
    written = [row for row in rows if row is not None]
    if len(written) == 1:
        transaction.change(_SQL["save_one"], (*written[0], transaction.now))
    else:
        transaction.change(_SQL["save"], {"saves": encode(written), "now": transaction.now})
    given_back = [(save.ref, save.checkpoint.key) for save in kept if save.gives_back]
    if given_back:
        transaction.change(_SQL["give_back_of"], {"given_back": encode(given_back)})
    consumed = [(save.ref, save.consumes, save.checkpoint.key) for save in kept if save.consumes is not None]
    if consumed:
        transaction.change(_SQL["consume"], {"consumed": encode(consumed)})
    crashed = head.having(_CRASHED)
    after_crash = [save for save in kept if save.token in crashed]
    if after_crash:
        progressed = [save.ref for save in after_crash if save.checkpoint.outcome != "open"]
        params = {"runs": encode([save.ref for save in after_crash]), "progressed": encode(progressed)}
        transaction.change(_SQL["progress"], params)
    return len(existed) < len(started), existed


def _start(transaction: Transaction, saves: list[Save]) -> list[Started]:
    starts = [save.starts for save in saves if save.starts is not None]
    if not starts:
        return []
    with _quietly(transaction):
        return enqueue(transaction, starts, [int(save.ref) for save in saves])


def _child_row(save: Save, answer: Started) -> tuple[Any, ...] | None:
    """The checkpoint of a child: of the run that a unique key led to; None for one whose id is another run's."""
    if not answer.same:
        return None
    if save.starts is not None and answer.id != save.starts.id:
        save = replace(save, checkpoint=replace(save.checkpoint, body=encode(answer.id)))
    return _row(save)


def _tell(transaction: Transaction, exchange: Exchange, head: _Head) -> None:
    if not exchange.told:
        return
    stopped = head.having(_LOST | _SETTLED)
    told = [(said.ref, said.status) for said in exchange.told if said.token not in stopped]
    if told:
        transaction.change(_SQL["told"], {"told": encode(told)})
        transaction.tell.add(Topic.STATUS)


def _fire(transaction: Transaction, exchange: Exchange) -> bool:
    if not exchange.fires:
        return False
    with _quietly(transaction):
        return fire(transaction, exchange.fires)


@contextmanager
def _quietly(transaction: Transaction) -> Generator[None]:
    """While runs are made of which others are told, if at all, when it is known whether this worker takes them."""
    quiet = Topic.WORK not in transaction.tell
    yield
    if quiet:
        transaction.tell.discard(Topic.WORK)


def _row(save: Save) -> tuple[Any, ...]:
    kept = save.checkpoint
    size = 0 if kept.body is None else len(kept.body.encode())
    return (
        save.ref,
        kept.key,
        kept.kind,
        kept.outcome,
        kept.attempts,
        kept.digest,
        kept.at,
        kept.started_at,
        size,
        kept.body,
    )


def _settle(transaction: Transaction, exchange: Exchange, head: _Head) -> bool:
    stopped = head.having(_LOST | _SETTLED)
    first: dict[int, Settle] = {}
    for settle in exchange.settles:
        first.setdefault(settle.token, settle)
    settles = [settle for token, settle in first.items() if token not in stopped]
    if not settles:
        return False
    cancelling = head.having(_CANCELLING)
    decided = plan(settles, cancelling, transaction.now)
    woken = carry_out(transaction, decided)
    stopping = [int(settle.ref) for settle in settles if settle.token in cancelling]
    if stopping:
        end_held(transaction, stopping, leaving=exchange.worker if exchange.draining else None)
    if head.having(_SESSION):
        transaction.change(_SQL["rest"], {"now": transaction.now})
    if decided.ended:
        transaction.tell.add(Topic.ENDED)
        children = head.having(_CHILD)
        if any(settle.token in children for settle in settles):
            transaction.tell.add(Topic.WORK)  # The parent may be running, and watch for this.
    # A slot of a group may have gone on to a run that nobody named.
    return woken or decided.queued or head.grouped


def _take_up(transaction: Transaction, head: _Head) -> tuple[bool, bool]:
    """Takes up timers and deadlines that are due; returns whether runs became ready, and whether there are more."""
    promoted = more = False
    if head.timers_due:
        count = transaction.change(_SQL["promote"], {"now": transaction.now, "limit": DUE_LIMIT})
        promoted, more = count > 0, count == DUE_LIMIT
    if head.deadlines_due:
        overdue = transaction.row(_SQL["overdue"], {"now": transaction.now, "limit": DUE_LIMIT})[0]
        expire(transaction, overdue)
        more |= len(_Numbers.decode(overdue)) == DUE_LIMIT
    if head.sessions_idle:
        transaction.change(_SQL["rest"], {"now": transaction.now})
        promoted |= transaction.change(_SQL["let_go"], {"now": transaction.now, "limit": DUE_LIMIT}) > 0
    return promoted, more


def _look_out(reply: Exchanged, left_over: Outlook | None) -> None:
    """Replaces what the ready set alone tells by what limits, rates and sessions leave of it."""
    if left_over is not None:
        reply.next_at = _first(reply.next_at, left_over.next_at)
        reply.more = left_over.more


def _reply(transaction: Transaction, exchange: Exchange, head: _Head) -> tuple[Exchanged, bool]:
    """The reply, and whether anything is ready for anybody."""
    now, refused = transaction.now, sorted(_refused(exchange, head))
    if not head.known:
        return Exchanged(now, [], refused, [], [], None, more=False, gone=True), True
    first, last = token_range(exchange)
    claims, ties, cancelled, timer, deadline, slot, due, more, left = transaction.row(
        _SQL["reply"],
        {
            "worker": exchange.worker,
            "first": first,
            "last": last,
            "page": PAGE,
            "page_bytes": PAGE_BYTES,
            "now": now,
            "due": DUE_SCHEDULES,
            "skips": encode(exchange.skips),
        },
    )
    return Exchanged(
        now=now,
        claims=_claims(transaction, claims, ties),
        refused=refused,
        cancelled=_Cancelled.decode(cancelled),
        seen=[],
        next_at=_first(timer, deadline, slot),
        more=bool(more),
        due=read_schedules(due),
    ), bool(left)


def _claims(transaction: Transaction, rows: str, ties: str) -> list[Claim]:
    claims = sorted(_Claims.decode(rows), key=lambda claim: claim.token)
    tied = {token: each for token, *each in _Ties.decode(ties)}
    for claim in claims:
        claim.more_checkpoints = cut_to_page(claim.checkpoints, _body)
        claim.more_signals = cut_to_page(claim.signals, _body)
        if cut_to_page(claim.ended, _body):
            told = {ended.id for ended in claim.ended}
            ends = _Names.decode(transaction.row(_SQL["ends"], {"run": claim.ref})[0])
            claim.unread = [run_id for run_id in ends if run_id not in told]
        if claim.token in tied:
            claim.group, claim.session, claim.version = tied[claim.token]
    return claims


def _refused(exchange: Exchange, head: _Head) -> Iterable[int]:
    if not head.flags:
        return _NONE
    # A claim that this exchange settles, and that has been settled by it already, is one that is repeated.
    return head.having(_LOST) | (head.having(_SETTLED) - {settle.token for settle in exchange.settles})


def _watch(transaction: Transaction, exchange: Exchange, head: _Head, reply: Exchanged) -> None:
    """Adds to a reply which watches are true, a page of them."""
    if not exchange.watches or reply.gone:
        return
    settled = {settle.token for settle in exchange.settles}
    stopped = head.having(_LOST | _SETTLED) | settled
    rows = [
        (watch.ref, watch.token, watch.wait.key, watch.wait.what, watch.wait.target, watch.wait.at)
        for watch in exchange.watches
        if watch.token not in stopped
    ]
    if not rows:
        return
    params = {"watches": encode(rows), "now": transaction.now, "page_bytes": PAGE_BYTES}
    reply.seen = _Seen.decode(transaction.row(_SQL["seen"], params)[0])
    reply.more |= cut_to_page(reply.seen, _brought, len(reply.seen))


def _brought(seen: Seen) -> str | None:
    found = seen.ended or seen.signal
    return None if found is None else found.body
