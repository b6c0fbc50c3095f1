"""An order in a shop: a payment that is retried, two days in which it can be called off, an approval, an invoice.

Shows steps, retries, a durable sleep, a signal with a time limit, and values that are typed from end to end.

    perdure worker examples/order.py:app
    perdure start examples/order.py:app fulfil '{"id": "7", "cents": 1250, "hold": "PT5S"}'
    perdure why RUN                                          # what it is waiting for
    perdure runs signal RUN approve '{"by": "ada"}'
    perdure runs show RUN

Stop the worker whenever you like, with Ctrl-C or with `kill -9`, and start it again: the order goes on where it was.
"""

from dataclasses import dataclass
from datetime import timedelta

from perdure import App, Retry, current_run, sleep, step, wait_signal

app = App("sqlite:///order.db")


@dataclass
class Order:
    id: str
    cents: int
    hold: timedelta = timedelta(days=2)


@dataclass
class Approval:
    by: str


@dataclass
class Receipt:
    payment: str
    approved_by: str
    invoice_bytes: int


@step(retry=Retry(attempts=5, delay=0.5, give_up_on=ValueError), timeout=30)
async def charge(order_id: str, cents: int) -> str:
    if cents <= 0:
        raise ValueError(f"order {order_id} costs nothing")
    if current_run().step_attempt == 1:  # so that there is a retry to see
        raise ConnectionError("the payment service does not answer")
    key = f"{current_run().id}-{order_id}"  # the same in every attempt: the service takes the money once
    return f"payment-{key}"


@step
def render_invoice(order_id: str, cents: int) -> bytes:  # a plain function runs in a thread
    return f"Order {order_id}: {cents / 100:.2f}".encode()


@app.workflow
async def fulfil(order: Order) -> Receipt:
    payment = await charge(order.id, order.cents)
    await sleep(order.hold)
    approval = await wait_signal("approve", Approval, timeout=timedelta(days=7))
    invoice = await render_invoice(order.id, order.cents)
    return Receipt(payment, approval.by, len(invoice))


if __name__ == "__main__":
    print(__doc__)
