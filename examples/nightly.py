"""A report every night: one run for each night, whatever the number of workers, and one run for each shop in it.

Shows a schedule with a time zone, what happens to nights that were missed, a batch with progress, and retention.

    perdure worker examples/nightly.py:app
    perdure schedules list --app examples/nightly.py:app
    perdure schedules trigger nightly --app examples/nightly.py:app
    perdure runs list --app examples/nightly.py:app
"""

from datetime import timedelta

from perdure import App, progress, step

app = App("sqlite:///nightly.db")
app.retain(age=timedelta(days=90))

SHOPS = ["berlin", "lisbon", "tokyo"]


@step
async def read_sales(shop: str) -> int:
    return len(shop) * 100


@app.workflow
async def sum_up(shop: str) -> int:
    return await read_sales(shop)


# After an outage of three days one run catches up. A night that takes a day does not pile up.
@app.schedule("30 2 * * *", tz="Europe/Berlin", missed="last", overlap="skip")
@app.workflow
async def nightly() -> int:
    progress(0, len(SHOPS), note="reading sales")
    shops = await sum_up.start_batch(SHOPS)
    total = sum(await shops.result())
    progress(len(SHOPS), len(SHOPS), note=f"{total} in all")
    return total


if __name__ == "__main__":
    print(__doc__)
