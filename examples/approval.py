"""A human decides, or the deadline does: an expense is approved, refused, or refused by itself after three days.

Shows a signal raced against time, a reminder on the way, and `SignalTimedOut` as an ordinary outcome.

    perdure worker examples/approval.py:app
    perdure start examples/approval.py:app expense '{"who": "grace", "cents": 4200, "what": "a compiler"}'
    perdure runs signal RUN decision '{"approved": true, "by": "ada"}'
"""

from dataclasses import dataclass
from datetime import timedelta

from perdure import App, step, wait_signal
from perdure.errors import SignalTimedOut

app = App("sqlite:///approval.db")

REMIND_AFTER = timedelta(days=2)
GIVE_UP_AFTER = timedelta(days=1)  # after the reminder


@dataclass
class Expense:
    who: str
    cents: int
    what: str


@dataclass
class Decision:
    approved: bool
    by: str


@step
async def tell(who: str, text: str) -> None:
    print(f"to {who}: {text}")


@app.workflow
async def expense(request: Expense) -> Decision:
    await tell("manager", f"{request.who} would like {request.cents / 100:.2f} for {request.what}")
    try:
        decision = await wait_signal("decision", Decision, timeout=REMIND_AFTER)
    except SignalTimedOut:
        await tell("manager", f"{request.who} is still waiting")
        try:
            decision = await wait_signal("decision", Decision, timeout=GIVE_UP_AFTER)
        except SignalTimedOut:
            decision = Decision(approved=False, by="deadline")
    await tell(request.who, f"{'approved' if decision.approved else 'refused'} by {decision.by}")
    return decision


if __name__ == "__main__":
    print(__doc__)
