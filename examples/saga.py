"""A saga: three bookings, and when one of them fails, those before it are taken back in reverse order.

Shows compensation with a plain `try`. It holds through crashes: after one, the steps that were done answer from their
checkpoints, the list of what is to be undone fills up again, and the undoing goes on where it was. It holds too when
the run is cancelled while it executes, because its code may still call steps then; one that is cancelled while it is
put away to wait ends at once, with nothing undone.

    perdure worker examples/saga.py:app
    perdure start examples/saga.py:app book_trip '{"to": "Reykjavik", "car": true}' --wait
    perdure start examples/saga.py:app book_trip '{"to": "Venice", "car": true}' --wait    # no cars there
"""

import asyncio
from dataclasses import dataclass
from functools import partial

from perdure import App, Retry, current_run, step

app = App("sqlite:///saga.db")


@dataclass
class Trip:
    flight: str
    hotel: str
    car: str | None


class SoldOut(Exception):
    pass


@step
async def book(what: str, to: str) -> str:
    if (what, to) == ("car", "Venice"):
        raise SoldOut(f"no {what} in {to}")
    return f"{what}-{to}-{current_run().id}"


@step(retry=Retry(attempts=None, delay=1, max_delay=60))  # what must happen is tried without end
async def cancel_booking(booking: str) -> None:
    print(f"cancelled {booking}")


@app.workflow
async def book_trip(to: str, car: bool) -> Trip:
    undo = []

    async def booked(what: str) -> str:
        booking = await book(what, to)
        undo.append(partial(cancel_booking, booking))
        return booking

    try:
        return Trip(await booked("flight"), await booked("hotel"), await booked("car") if car else None)
    except (Exception, asyncio.CancelledError):
        for take_back in reversed(undo):
            await take_back()
        raise
