"""An event loop in a thread of its own, for what must go on whatever the loops of the application do: one for the
process, which ends with it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_running: tuple[int, asyncio.AbstractEventLoop] | None = None


def submit(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Begins `work` in that thread; may be called by any other. After a fork the child gets a thread of its own."""
    global _running
    with _lock:
        if _running is None or _running[0] != os.getpid():
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="perdure-stores", daemon=True).start()
            _running = (os.getpid(), loop)
        return asyncio.run_coroutine_threadsafe(work, _running[1])
