"""A saga: three bookings, and when one of them fails, what was booked is taken back in reverse order.

Shows compensation with a plain `try`. Two rules make it hold:

- The undoing is noted *before* the booking is tried. A step that fails, is cancelled or is cut off by a crash may have
  had its effect all the same.
- A booking has a reference that is known beforehand, and taking back a booking that is not there does nothing.

It holds through crashes: after one, the steps that were done answer from their checkpoints, the list of what is to be
undone fills up again, and the undoing goes on where it was. It holds too when the run is cancelled while it executes,
because its code may still call steps then. One that is cancelled while no worker executes it (it is queued, put away to
wait, or its worker has died) ends at once, with nothing undone.

    perdure worker examples/saga.py:app
    perdure start examples/saga.py:app book_trip '{"to": "Reykjavik", "car": true}' --wait
    perdure start examples/saga.py:app book_trip '{"to": "Venice", "car": true}' --wait    # no cars there
"""

import asyncio
from dataclasses import dataclass
from functools import partial

from perdure import App, Retry, current_run, step

app = App("sqlite:///saga.db")


class SoldOut(Exception):
    pass


class Agency:
    """Stands for the systems of others. What it is asked to do twice it does once."""

    def __init__(self) -> None:
        self.bookings: dict[str, str] = {}

    async def book(self, reference: str, what: str, to: str) -> None:
        if (what, to) == ("car", "Venice"):
            raise SoldOut(f"no {what} in {to}")
        self.bookings[reference] = f"{what} in {to}"

    async def cancel(self, reference: str) -> None:
        if self.bookings.pop(reference, None):
            print(f"cancelled {reference}")


agency = Agency()


@dataclass
class Trip:
    flight: str
    hotel: str
    car: str | None


@step
async def book(reference: str, what: str, to: str) -> None:
    await agency.book(reference, what, to)


@step(retry=Retry(attempts=None, delay=1, max_delay=60))  # what must happen is tried without end
async def cancel_booking(reference: str) -> None:
    await agency.cancel(reference)


@app.workflow
async def book_trip(to: str, car: bool) -> Trip:
    undo = []

    async def booked(what: str) -> str:
        reference = f"{what}-{to}-{current_run().id}"
        undo.append(partial(cancel_booking, reference))
        await book(reference, what, to)
        return reference

    try:
        return Trip(await booked("flight"), await booked("hotel"), await booked("car") if car else None)
    except (Exception, asyncio.CancelledError):
        for take_back in reversed(undo):
            await take_back()
        raise


if __name__ == "__main__":
    print(__doc__)
