"""What becomes of claims that settle: decided here, without the store, and then written in a fixed number of steps."""

from __future__ import annotations

from collections.abc import Sequence, Set

from msgspec import Struct, field

from perdure.model import Json, Millis, State
from perdure.stores.exchange import Settle, To
from perdure.stores.sqlite.executor import Transaction
from perdure.stores.sqlite.sql import encode, load

_SQL = load("exchange")

_ENDS = {To.SUCCEEDED: State.SUCCEEDED, To.FAILED: State.FAILED, To.CANCELLED: State.CANCELLED}


class Plan(Struct):
    """The rows to write for a batch of settles, by the statement that takes them."""

    settles: list[tuple[int, int, State, Millis | None, int | None, int | None]] = field(default_factory=list)
    """The last part counts those that end, in their order."""
    bodies: list[tuple[int, Json]] = field(default_factory=list)
    inputs: list[tuple[int, int, Json]] = field(default_factory=list)
    waits: list[tuple[int, str, str, str, Millis | None]] = field(default_factory=list)
    retried: list[int] = field(default_factory=list)
    parked: list[int] = field(default_factory=list)
    continued: list[int] = field(default_factory=list)
    failures: list[tuple[int, str]] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    queued: bool = False


def plan(settles: Sequence[Settle], cancelling: Set[int], now: Millis) -> Plan:
    """Decides for settles that are accepted. `cancelling` has the tokens of runs that are being cancelled: unless
    they end they are released, so that they are claimed again and told of it."""
    plan = Plan()
    for settle in settles:
        ref, token, to = int(settle.ref), settle.token, settle.to
        if token in cancelling and to not in _ENDS:
            to = To.RELEASE
        if to in _ENDS:
            plan.settles.append((ref, token, _ENDS[to], None, 0, len(plan.ended)))
            plan.ended.append(ref)
            if to is To.FAILED and settle.cause:
                plan.failures.append((ref, settle.cause))
            if settle.body is not None:
                plan.bodies.append((ref, settle.body))
        elif to is To.PARK:
            times = [wait.at for wait in settle.waits if wait.at is not None]
            plan.settles.append((ref, token, State.WAITING, min(times, default=None), 0, None))
            plan.waits += [(ref, wait.key, wait.what, wait.target, wait.at) for wait in settle.waits]
            plan.parked.append(ref)
        elif to is To.RETRY and settle.delay > 0:
            plan.settles.append((ref, token, State.SCHEDULED, now + settle.delay, 1, None))
            _retry(plan, ref, settle)
        else:
            plan.queued = True
            step = {To.RETRY: 1, To.CONTINUE: None}.get(to, 0)
            plan.settles.append((ref, token, State.QUEUED, None, step, None))
            if to is To.RETRY:
                _retry(plan, ref, settle)
            elif to is To.CONTINUE:
                plan.continued.append(ref)
                if settle.body is not None:
                    plan.inputs.append((ref, len(settle.body.encode()), settle.body))
    return plan


def take_numbers(transaction: Transaction, number: int) -> int:
    """Takes numbers in the order of finishing: as many, from the one that is returned on."""
    return int(transaction.row(_SQL["finish"], {"number": number})[0]) + 1


def keep_causes(transaction: Transaction, runs: Sequence[int], cause: str) -> None:
    """Keeps one cause for runs that the store ended as failed."""
    transaction.change(_SQL["failures"], {"failures": encode([(run, cause) for run in runs])})


def _retry(plan: Plan, ref: int, settle: Settle) -> None:
    plan.retried.append(ref)
    if settle.body is not None:
        plan.bodies.append((ref, settle.body))


def carry_out(transaction: Transaction, plan: Plan) -> bool:
    """Writes what was decided; returns whether runs that nobody named became ready, or parked ones at once."""
    if not plan.settles:
        return False
    moving_on = plan.parked + plan.continued
    if moving_on or plan.retried:
        transaction.change(_SQL["drop_waits"], {"runs": encode(moving_on + plan.retried)})
    if plan.waits:
        # Before the runs that end: their ending must find those who park for them in the same batch.
        transaction.change(_SQL["park"], {"waits": encode(plan.waits)})
    finish = take_numbers(transaction, len(plan.ended)) if plan.ended else None
    params = {"settles": encode(plan.settles), "now": transaction.now, "finish": finish}
    transaction.change(_SQL["settle"], params)
    if plan.failures:
        transaction.change(_SQL["failures"], {"failures": encode(plan.failures)})
    if plan.bodies:
        transaction.change(_SQL["outcomes"], {"bodies": encode(plan.bodies)})
    if plan.retried:
        transaction.change(_SQL["drop_errors"], {"runs": encode(plan.retried)})
        transaction.change(_SQL["give_back"], {"runs": encode(plan.retried)})
    if plan.continued:
        for name in ("drop_checkpoints", "forget_signals", "drop_signals"):
            transaction.change(_SQL[name], {"runs": encode(plan.continued)})
        transaction.change(_SQL["inputs"], {"inputs": encode(plan.inputs)})
    if moving_on:
        transaction.change(_SQL["drop_outcomes"], {"runs": encode(moving_on)})
    woken = bool(plan.ended) and bool(transaction.row(_SQL["woken"], {"runs": encode(plan.ended)})[0])
    if plan.parked:
        woken |= transaction.change(_SQL["unpark"], {"runs": encode(plan.parked), "now": transaction.now}) > 0
    return woken
