"""Fan-out over files: one run for each file of a directory, spread over all workers, and one that adds up.

Shows child runs, a bulk start, and `asyncio.gather`. While the parent waits for its children it takes up no slot, so
one worker with one slot does all of this too.

    perdure worker examples/files.py:app --processes 2
    perdure start examples/files.py:app count_words '"docs"' --wait
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from perdure import App, step

app = App("sqlite:///files.db")


@dataclass
class Count:
    file: str
    words: int


@step
def list_files(directory: str) -> list[str]:  # a step, because the directory may look different tomorrow
    return sorted(str(path) for path in Path(directory).rglob("*") if path.suffix in (".md", ".txt"))


@step
def read_words(file: str) -> int:
    return len(Path(file).read_text(encoding="utf-8").split())


@app.workflow
async def count_file(file: str) -> Count:
    return Count(file, await read_words(file))


@app.workflow
async def count_words(directory: str) -> list[Count]:
    runs = await count_file.start_many(await list_files(directory))
    counts = await asyncio.gather(*(run.result() for run in runs))
    return sorted(counts, key=lambda count: count.words, reverse=True)


if __name__ == "__main__":
    print(__doc__)
