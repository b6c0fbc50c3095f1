"""One file, several processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

import perdure
from perdure.model import Start
from perdure.stores import open_store
from perdure.stores.base import Topic

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(perdure.__file__).parents[1])}

MIGRATE = """
import asyncio, sys
from perdure.model import Start
from perdure.stores import open_store

async def main():
    store = open_store(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    await store.open()
    await store.enqueue([Start(sys.argv[2], "w", "q", "1")])
    await store.close()

asyncio.run(main())
"""

LISTEN = """
import asyncio, sys
from perdure.stores import open_store
from perdure.stores.base import Topic

async def main():
    store = open_store(sys.argv[1])
    await store.open()
    woken = asyncio.Event()
    subscription = await store.subscribe(Topic.WORK, woken.set)
    print("ready", flush=True)
    await woken.wait()
    print("woken", flush=True)
    await subscription.close()
    await store.close()

asyncio.run(main())
"""


def process(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def test_ten_processes_open_one_new_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    children = [process(MIGRATE, url, f"run-{n}") for n in range(10)]
    assert {line(child) for child in children} == {"ready"}
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        child.communicate(timeout=60)
    assert {child.returncode for child in children} == {0}

    async def count() -> int:
        store = open_store(url)
        await store.open()
        runs = sum(each.runs for each in await store.counts())
        await store.close()
        return runs

    assert asyncio.run(count()) == 10


@pytest.mark.skipif(sys.platform == "win32", reason="needs sockets in the file system")
def test_a_commit_wakes_another_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"

    async def enqueue() -> None:
        store = open_store(url)
        await store.open()
        child = process(LISTEN, url)
        assert await asyncio.to_thread(line, child) == "ready"
        await store.enqueue([Start("r", "w", "q", "1")])
        assert await asyncio.to_thread(line, child) == "woken"
        await asyncio.to_thread(child.communicate)
        assert child.returncode == 0
        await store.close()

    asyncio.run(enqueue())


@pytest.mark.skipif(sys.platform == "win32", reason="needs sockets in the file system")
def test_a_subscriber_that_died_is_forgotten(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"

    async def listeners() -> int:
        store = open_store(url)
        await store.open()
        child = process(LISTEN, url)
        assert await asyncio.to_thread(line, child) == "ready"
        child.kill()
        await asyncio.to_thread(child.communicate)
        for n in range(3):
            await store.enqueue([Start(f"r{n}", "w", "q", "1")])
        subscription = await store.subscribe(Topic.WORK, lambda: None)
        left = await store._read(lambda tx: int(tx.row("SELECT count(*) FROM listener")[0]))  # type: ignore[attr-defined]
        await subscription.close()
        await store.close()
        return left

    assert asyncio.run(listeners()) == 1
