"""Messages to customers: in order for each of them, and not faster than the provider takes them.

Shows a group for each customer (the second message never overtakes the first), a rate for the whole queue that holds
for all workers, a label to find a customer's runs by, and a debounced reminder.

    perdure worker examples/customers.py:app
    perdure start examples/customers.py:app notify '["ada", "Your order is on its way."]' --label customer=ada
    perdure limits set --url sqlite:///customers.db --queue mail --rate 10/s --burst 5
    perdure queues --url sqlite:///customers.db
"""

from perdure import App, Retry, step

app = App("sqlite:///customers.db")
# What holds at first. `perdure limits set` changes it for all workers at once, without a deploy.
app.limits.declare(queue="mail", running=5, rate="100/min", burst=10)


@step(retry=Retry(attempts=5, delay=2))
async def deliver(customer: str, text: str) -> None:
    print(f"to {customer}: {text}")


@app.workflow(queue="mail", group=lambda customer, text: customer)
async def notify(customer: str, text: str) -> None:
    await deliver(customer, text)


@app.workflow(queue="mail", unique=lambda customer, items: f"basket/{customer}")
async def remind(customer: str, items: int) -> None:
    await deliver(customer, f"{items} things are in your basket")


async def basket_changed(customer: str, items: int) -> None:
    """Reminds the customer an hour after the last change, of what is in the basket then."""
    await remind.options(debounce=3600, labels={"customer": customer}).start(customer, items)


if __name__ == "__main__":
    print(__doc__)
