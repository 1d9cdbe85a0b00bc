"""The lock of a host, held for the length of a block, and those of this process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ringrift.data.handles import one_per_process
from ringrift.data.transfer.sync_mutex import ANSWER_S, HOLD_S, WAIT_S, SyncMutex, lock_name
from ringrift.engine.blocking import run_blocking
from ringrift.errors import LeaseLost

__all__ = [
    "SyncLock",
    "acquire_sync_lock",
    "get_sync_mutex",
    "release_sync_lock",
    "sync_lock",
    "sync_lock_required",
]


class SyncLock:
    """A lock for the length of a block, renewed meanwhile; `with` and `async with` give whether it is had.

    A block that ends after its lock was lost raises `LeaseLost`: another may have begun in the middle.
    """

    def __init__(
        self,
        mutex: SyncMutex,
        host: str,
        operation: str,
        *,
        timeout: float,
        wait_s: float,
        takes_slot: bool = True,
    ) -> None:
        self._mutex, self._host, self._operation = mutex, host, operation
        self._timeout, self._wait_s, self._takes_slot = timeout, wait_s, takes_slot
        self._keeper: asyncio.Task[None] | None = None

    @property
    def token(self) -> int:
        """The fencing token; `LeaseLost` when the lock is not held."""
        return self._mutex.token(self._host)

    async def __aenter__(self) -> bool:
        had = await self._mutex.acquire_async(
            self._host,
            self._operation,
            self._timeout,
            wait=self._wait_s > 0,
            wait_timeout=self._wait_s,
            takes_slot=self._takes_slot,
        )
        if had:
            keeping = self._mutex.keep(self._host)
            self._keeper = asyncio.create_task(keeping, name=f"sync-lock:{self._host}")
        return had

    async def __aexit__(self, *error: object) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)  # that it was lost is seen below
        if not await self._mutex.release_async(self._host) and error[0] is None:
            raise LeaseLost(lock_name(self._host), token=0, reason="another may have it by now")

    def __enter__(self) -> bool:
        return run_blocking(self.__aenter__(), timeout_s=self._wait_s + ANSWER_S)

    def __exit__(self, *error: object) -> None:
        run_blocking(self.__aexit__(*error), timeout_s=ANSWER_S)


# --- of this process ----------------------------------------------------------------------------------


def get_sync_mutex(db_path: Path | str | None = None, *, max_global: int | None = None) -> SyncMutex:
    """Return the locks of this process; they open the engine when they are first used."""
    return one_per_process(SyncMutex, SyncMutex, db_path=db_path, max_global=max_global)


def sync_lock(
    host: str,
    operation: str = "rsync",
    timeout: float = HOLD_S,
    *,
    wait: bool = True,
    wait_timeout: float = WAIT_S,
) -> SyncLock:
    """Hold the lock of *host* for a block: `with sync_lock("host") as had:`, or `async with`."""
    return SyncLock(get_sync_mutex(), host, operation, timeout=timeout, wait_s=wait_timeout if wait else 0.0)


@contextmanager
def sync_lock_required(
    host: str, operation: str = "rsync", timeout: float = HOLD_S, *, wait_timeout: float = WAIT_S
) -> Iterator[None]:
    """As `sync_lock`; TimeoutError when the lock cannot be had."""
    with sync_lock(host, operation, timeout, wait_timeout=wait_timeout) as had:
        if not had:
            raise TimeoutError(f"{host} is synced by another, for more than {wait_timeout:g} s")
        yield


def acquire_sync_lock(
    host: str,
    operation: str = "rsync",
    timeout: float = HOLD_S,
    *,
    wait: bool = True,
    wait_timeout: float = WAIT_S,
) -> bool:
    return get_sync_mutex().acquire(host, operation, timeout, wait=wait, wait_timeout=wait_timeout)


def release_sync_lock(host: str) -> bool:
    """Give the lock back; False if this process does not hold it (any more)."""
    return get_sync_mutex().release(host)
