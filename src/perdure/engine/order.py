"""What completes in a run is kept in the order in which its code sees it, also where a step commits by itself."""

from __future__ import annotations

import asyncio


class Order:
    """Keeps the commits of a run's steps and its other checkpoints apart. The store numbers a checkpoint when it is
    written, and the code sees it when it is committed: of two at a time one could overtake the other in between, and
    replay would deliver them the other way round than the code saw them.

    Any number of saves go on at a time; a commit goes on alone.
    """

    def __init__(self) -> None:
        self._commit: asyncio.Lock | None = None
        self._saves = 0
        self._quiet: asyncio.Future[None] | None = None

    async def begin_save(self) -> None:
        """Waits for the commit that is under way, if there is one; from here to `end_save` none will be."""
        if self._commit is not None and self._commit.locked():
            async with self._commit:
                self._saves += 1
        else:
            self._saves += 1

    def end_save(self) -> None:
        """The checkpoint is kept, or will never be."""
        self._saves -= 1
        if not self._saves and self._quiet is not None and not self._quiet.done():
            self._quiet.set_result(None)

    async def begin_commit(self) -> None:
        """Waits until nothing else is being kept; from here to `end_commit` nothing else will be."""
        if self._commit is None:
            self._commit = asyncio.Lock()
        await self._commit.acquire()
        try:
            if self._saves:
                self._quiet = asyncio.get_running_loop().create_future()
                await self._quiet
        except BaseException:
            self._commit.release()
            raise

    def end_commit(self) -> None:
        """Lets others go on."""
        self._quiet = None
        if self._commit is not None:
            self._commit.release()
