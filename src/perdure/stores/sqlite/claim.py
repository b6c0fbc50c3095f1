"""Claiming. Where there are neither limits nor sessions to look at, the store itself picks what is claimed."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from perdure.budget import Budget, Head, Pick, pick, put_off, spend
from perdure.model import Millis, Scope
from perdure.stores.exchange import CLAIM_BYTES, CLAIM_LIMIT, PAGE, Exchange
from perdure.stores.shared.budgets import limited, read_budgets, take_running
from perdure.stores.sqlite.executor import Transaction
from perdure.stores.sqlite.sql import encode, load

_ROUNDS = 8
"""How often one exchange looks for more, where what it looked at first may not begin."""
_MOST_AHEAD = 500
"""How many that were put off before are counted, for the time until which another one is."""

_SQL = load("claim")
_Heads = msgspec.json.Decoder(list[Head])
_Ahead = msgspec.json.Decoder(dict[int, int])


class Outlook(NamedTuple):
    """What is left for the worker after its claim: whether more may begin now, and when the next may otherwise."""

    more: bool
    next_at: Millis | None


class _Rooms(NamedTuple):
    more: int
    """How many more sessions the worker may own."""
    keeps_until: Millis | None
    """Until when it keeps the first of those of which no run is there."""
    wanted: int
    """Whether a run is ready for it whose session nobody owns."""


class _Survey(NamedTuple):
    left: dict[Scope, Budget]
    pick: Pick
    rooms: _Rooms


def token_range(exchange: Exchange) -> tuple[int, int]:
    """The tokens that the claims of an exchange may bear."""
    first = (exchange.worker << 40) + (exchange.serial << 8)
    return first, first + 255


def sessions_wanted(transaction: Transaction, worker: int) -> bool:
    """Whether a run is ready for the worker whose session nobody owns."""
    return bool(_rooms(transaction, worker).wanted)


def claim_for(transaction: Transaction, exchange: Exchange, *, strict: bool) -> None:
    """Claims for the free slots of the worker; `strict` when there are budgets or sessions to look at."""
    first, last = token_range(exchange)
    slots = min(exchange.slots, CLAIM_LIMIT)
    token = first
    if exchange.repeated:
        # What the first one claimed stays claimed; only the slots that it left empty are filled.
        params = {"worker": exchange.worker, "first": first, "last": last}
        owned, highest = transaction.row(_SQL["claimed"], params)
        slots -= owned
        token = first if highest is None else highest + 1
    if slots > 0:
        params = {"worker": exchange.worker, "token": token, "bytes": CLAIM_BYTES, "page": PAGE, "now": transaction.now}
        if strict:
            _claim_within_budgets(transaction, params, slots, exchange.after)
        else:
            _claim_by_turns(transaction, params, slots, exchange.after)


def outlook(transaction: Transaction, worker: int) -> Outlook:
    """What budgets and sessions leave to be claimed. Reads only."""
    survey = _survey(transaction, worker, 1, "")
    picked, rooms = survey.pick, survey.rooms
    # One that owns as many sessions as it may looks again when it gives one up, if there is another one.
    room_at = rooms.keeps_until if rooms.wanted and rooms.more <= 0 else None
    times = [time for time in (picked.opens_at, room_at) if time is not None]
    return Outlook(bool(picked.chosen or picked.late), min(times, default=None))


def _claim_by_turns(transaction: Transaction, params: dict[str, int], slots: int, after: str) -> None:
    wanted = {"worker": params["worker"], "slots": slots, "after": after}
    (runs,) = transaction.row(_SQL["turns"], wanted)
    if runs != "[]":
        transaction.change(_SQL["take"], {**params, "runs": runs, "least": 1})


def _claim_within_budgets(transaction: Transaction, params: dict[str, int], slots: int, after: str) -> None:
    for more_rounds in reversed(range(_ROUNDS)):
        survey = _survey(transaction, params["worker"], slots, after)
        picked = survey.pick
        if picked.late:
            _put_off(transaction, picked.late, survey.left)
            if more_rounds:
                continue  # what stood behind them in their lanes may come before what was picked
        taken = _take(transaction, params, picked.chosen, least=1 if params["bytes"] == CLAIM_BYTES else 0)
        if taken < len(picked.chosen):
            # The rest does not fit into the bytes of this exchange, and has not begun.
            survey = survey._replace(left=budgets(transaction, picked.chosen))
            spend(picked.chosen[:taken], survey.left, transaction.now)
        _note_rates(transaction, survey.left)
        slots -= taken
        params["token"] += taken
        after = picked.chosen[taken - 1].queue if taken else after
        if slots <= 0 or not taken or taken < len(picked.chosen):
            return
        if more_rounds:
            claimed = {"runs": encode([head.run for head in picked.chosen]), "page": PAGE}
            params["bytes"] -= transaction.row(_SQL["size"], claimed)[0]


def _put_off(transaction: Transaction, late: list[Head], left: dict[Scope, Budget]) -> None:
    if late:
        params = {"runs": encode([head.run for head in late]), "most": _MOST_AHEAD}
        ahead = _Ahead.decode(transaction.row(_SQL["ahead"], params)[0])
        times = put_off(late, ahead, left, transaction.now)
        transaction.change(_SQL["put_off"], {"runs": encode([(head.run, at) for head, at in times])})


def _survey(transaction: Transaction, worker: int, slots: int, after: str) -> _Survey:
    rooms = _rooms(transaction, worker)
    params = {"worker": worker, "least": -1 if rooms.more > 0 else 0, "slots": slots}
    heads = _Heads.decode(transaction.row(_SQL["heads"], params)[0])
    if not heads:
        return _Survey({}, Pick(), rooms)
    left = budgets(transaction, heads)
    return _Survey(left, pick(heads, left, slots, rooms.more, transaction.now, after), rooms)


def _rooms(transaction: Transaction, worker: int) -> _Rooms:
    return _Rooms(*transaction.row(_SQL["rooms"], {"worker": worker}))


def budgets(transaction: Transaction, heads: list[Head]) -> dict[Scope, Budget]:
    """What is left of limits and rates, of all scopes that runs lie in."""
    groups = sorted({head.group for head in heads if head.group})
    left = read_budgets(transaction.row(_SQL["budgets"], {"groups": encode(groups)})[0])
    if limited(left):
        take_running(left, transaction.row(_SQL["running"])[0])
    return left


def _take(transaction: Transaction, params: dict[str, int], chosen: list[Head], *, least: int) -> int:
    if not chosen:
        return 0
    runs = encode([head.run for head in chosen])
    return transaction.change(_SQL["take"], {**params, "runs": runs, "least": least})


def _note_rates(transaction: Transaction, spent: dict[Scope, Budget]) -> None:
    rates = [
        (scope.kind, scope.name, budget.meter.debt, budget.meter.at)
        for scope, budget in spent.items()
        if budget.meter is not None and budget.meter.spent
    ]
    if rates:
        transaction.change(_SQL["spend"], {"rates": encode(rates)})
