"""A poller that never ends: it follows a growing log file and reports its errors.

Shows `continue_as_new`, which keeps the history of an endless run short: after a hundred rounds the run begins anew
under the same id, with the place that it has reached as its input. It ends when it is cancelled.

    perdure worker examples/poller.py:app
    perdure start examples/poller.py:app follow '{"file": "app.log", "every": 2}'
    echo "ERROR out of coffee" >> app.log
    perdure runs cancel RUN
"""

from dataclasses import dataclass
from pathlib import Path

from perdure import App, sleep, step

app = App("sqlite:///poller.db")

ROUNDS = 100


@dataclass
class News:
    lines: list[str]
    offset: int


@step
def read_on(file: str, offset: int) -> News:
    """Whole lines only: the last one may still be in the making."""
    path = Path(file)
    text = path.read_bytes()[offset:] if path.exists() else b""
    whole = text[: text.rfind(b"\n") + 1]
    return News(whole.decode().splitlines(), offset + len(whole))


@step
async def report(line: str) -> None:
    print(line)


@app.workflow
async def follow(file: str, every: float = 60, offset: int = 0) -> None:
    for _ in range(ROUNDS):
        news = await read_on(file, offset)
        for line in news.lines:
            if "ERROR" in line:
                await report(line)
        offset = news.offset
        await sleep(every)
    follow.continue_as_new(file, every, offset)


if __name__ == "__main__":
    print(__doc__)
