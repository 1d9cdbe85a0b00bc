"""The sync locks of this process: one sync for each host at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.event_router import get_router
from ringrift.data.kv_records import one_per_process
from ringrift.data.sync.mutex import HOLD_S, WAIT_S, SyncLock, SyncLocks
from ringrift.engine.ports import KeyValue
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.process import reset_of
from ringrift.runtime import Runtime

__all__ = [
    "SyncMutex",
    "acquire_sync_lock",
    "get_sync_mutex",
    "release_sync_lock",
    "reset_sync_mutex",
    "sync_lock",
    "sync_lock_required",
]


class SyncMutex(SyncLocks):
    """The locks of one process; *max_global* is by default as the settings say."""

    def __init__(
        self,
        db_path: Path | str | None = None,
        *,
        kv: KeyValue | None = None,
        runtime: Runtime | None = None,
        max_global: int | None = None,
        router: UnifiedEventRouter | None = None,
    ) -> None:
        most = get_settings().max_syncs_cluster if max_global is None else max_global
        super().__init__(db_path, kv=kv, runtime=runtime, max_global=most, router=router or get_router())


def get_sync_mutex(db_path: Path | str | None = None, *, max_global: int | None = None) -> SyncMutex:
    """Return the locks of this process; they open the engine when they are first used."""
    return one_per_process(SyncMutex, SyncMutex, db_path=db_path, max_global=max_global)


reset_sync_mutex = reset_of("reset_sync_mutex", SyncMutex)


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
