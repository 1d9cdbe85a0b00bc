"""One sync per host at a time, and a bounded number in the cluster.

The sync takes the lock of each host while files go to it or come from it, and "sync_cycle:NODE" for a cycle
of a node: whoever holds one of them keeps the sync out. A lock is a lease of the engine: it ends by itself
when its holder stops renewing, wherever the holder runs, and its token tells a late holder from the present
one. A second kind of lease, a slot, bounds how many hosts are synced at once; whoever waits for a lock waits
for its slot too.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import msgspec
import structlog

from ringrift.data.kv_records import StoreHandle, StoreParts
from ringrift.engine.arguments import check_wait
from ringrift.engine.blocking import background_loop, blocking, run_blocking
from ringrift.engine.leases import LeaseConfig, NamedLease, end_lease, lease_changed, lease_holder
from ringrift.engine.records import KvRecords
from ringrift.errors import ConfigError, LeaseLost, RingRiftError
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.process_identity import is_alive, own_start_s
from ringrift.task_owner import TaskOwner

__all__ = ["SyncLock", "SyncLockInfo", "SyncLocks", "lock_name"]

log = structlog.get_logger()


HOLD_S = 120.0
WAIT_S = 60.0
RENEWALS = 8  # in the time that a lock is held for
PREFIX = "data/sync_locks/"
ANSWER_S = 10.0
_WATCH_S = 5.0


class SyncLockInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds the lock of a host. Times are wall clock."""

    host: str
    operation: str
    holder: str
    holder_hostname: str
    holder_pid: int
    holder_began_s: float
    token: int
    acquired_at: float
    timeout_at: float


@dataclass(slots=True)
class _Held:
    lease: NamedLease
    slot: NamedLease | None

    @property
    def leases(self) -> tuple[NamedLease, ...]:
        return (self.lease,) if self.slot is None else (self.lease, self.slot)


class SyncLocks(StoreHandle):
    """The locks of one process. The plain calls block; inside a loop use those on `_async`."""

    def __init__(
        self,
        db_path: Path | str | None = None,
        *,
        max_global: int,
        router: UnifiedEventRouter | None = None,
        **parts: Unpack[StoreParts],
    ) -> None:
        """*router* is told of each wait in vain."""
        if max_global < 1:
            raise ConfigError("at least one sync must be allowed at a time")
        super().__init__(db_path, **parts)
        self.max_global, self.router = max_global, router
        self._infos = KvRecords(self._kv, PREFIX, SyncLockInfo)
        self._held: dict[str, _Held] = {}
        self._began_s = own_start_s()

    # --- in a loop ------------------------------------------------------------------------------------

    async def acquire_async(
        self,
        host: str,
        operation: str = "rsync",
        timeout: float = HOLD_S,
        *,
        wait: bool = False,
        wait_timeout: float = WAIT_S,
        takes_slot: bool = True,
    ) -> bool:
        """Take the lock of *host* for *timeout* seconds, counted from when it is had.

        `heartbeat` begins the time anew. False if another holds it, or too many are synced at once, and
        stays so for *wait_timeout* if the caller waits. Whoever moves nothing under it takes no slot.
        """
        # A holder stops at two thirds of its lease, which is when the time that it asked for is over.
        config = LeaseConfig(lease_s=1.5 * timeout, renew_s=timeout / RENEWALS)
        begun_s = self._runtime.monotonic_s()
        while True:
            held, in_the_way = await self._try(host, config, takes_slot=takes_slot)
            if held is not None:
                await self._note(host, operation, timeout, held)
                return True
            left_s = begun_s + wait_timeout - self._runtime.monotonic_s()
            if not wait:
                return False
            if left_s <= 0:
                await self._say_timeout(host, operation, wait_timeout, timeout)
                return False
            # Slots are looked at anew now and then: another than the one waited for may come free.
            await lease_changed(self._kv, in_the_way, timeout_s=min(left_s, _WATCH_S))

    async def release_async(self, host: str) -> bool:
        """Give the lock back; False if this process does not hold it (any more)."""
        held = self._held.pop(host, None)
        if held is None:
            return False
        ours = await self._is_ours(held.lease)
        for lease in held.leases:
            await lease.release()
        if ours:
            await self._infos.delete(host)
        return ours

    async def heartbeat_async(self, host: str) -> bool:
        """Hold on for the same time again; False if the lock is lost."""
        held = self._held.get(host)
        if held is None:
            return False
        try:
            for lease in held.leases:
                await lease.renew()
        except LeaseLost as error:
            log.warning("sync_lock.lost", host=host, reason=error.reason)
            return False
        return True

    async def force_release_async(self, host: str) -> bool:
        """End the lock of *host*, whoever holds it; its holder is refused from then on."""
        holder = await lease_holder(self._kv, lock_name(host))
        if holder is None:
            return False
        log.warning("sync_lock.forced", host=host, holder=holder.holder)
        ended = await end_lease(self._kv, lock_name(host), holder=holder.holder)
        for number in range(self.max_global):
            await end_lease(self._kv, _slot(number), holder=holder.holder)
        await self._infos.delete(host)
        return ended

    async def info_async(self, host: str) -> SyncLockInfo | None:
        """Who holds the lock of *host* now."""
        holder = await lease_holder(self._kv, lock_name(host))
        info = None if holder is None else await self._infos.get(host)
        return info if info is not None and holder is not None and info.holder == holder.holder else None

    async def locks_async(self) -> list[SyncLockInfo]:
        infos = [await self.info_async(info.host) for info in await self._infos.all()]
        return [info for info in infos if info is not None]

    async def cleanup_async(self) -> int:
        """Free the locks of processes of this machine that are gone, before their time is over."""
        freed = 0
        for info in await self.locks_async():
            here = info.holder_hostname == self._runtime.hostname
            if here and not is_alive(info.holder_pid, info.holder_began_s):
                freed += await self.force_release_async(info.host)
        return freed

    def token(self, host: str) -> int:
        """The fencing token of a lock that this process holds; `LeaseLost` when it does not."""
        held = self._held.get(host)
        if held is None:
            raise LeaseLost(lock_name(host), token=0, reason="this process does not hold it")
        return held.lease.token

    async def keep(self, host: str) -> None:
        """Hold on for as long as it can be done; ends with `LeaseLost`."""
        held = self._held[host]
        async with asyncio.TaskGroup() as group:
            for lease in held.leases:
                group.create_task(lease.keep())

    async def why_not_async(self, host: str) -> str:
        """Say what keeps the lock of *host* from being had now."""
        info = await self.info_async(host)
        if info is None:
            return f"{self.max_global} hosts are synced at once already (RINGRIFT_MAX_SYNCS_CLUSTER)"
        by = f"process {info.holder_pid} of {info.holder_hostname}"
        return f"its sync lock is held by {by} for {info.operation!r}"

    async def _try(self, host: str, config: LeaseConfig, *, takes_slot: bool) -> tuple[_Held | None, str]:
        """Take lock and slot, or neither; return also the name of what is in the way."""
        if host in self._held and self._held[host].lease.held:
            return None, lock_name(host)
        holder = f"{self._runtime.hostname}:{self._runtime.pid}:{self._runtime.new_id()}"
        lease = NamedLease(self._kv, self._runtime, lock_name(host), holder=holder, config=config)
        if not await lease.try_acquire():
            return None, lock_name(host)
        if not takes_slot:
            self._held[host] = _Held(lease, None)
            return self._held[host], ""
        for number in range(self.max_global):
            slot = NamedLease(self._kv, self._runtime, _slot(number), holder=holder, config=config)
            if await slot.try_acquire():
                self._held[host] = _Held(lease, slot)
                return self._held[host], ""
        await lease.release()
        return None, _slot(0)

    async def _note(self, host: str, operation: str, timeout: float, held: _Held) -> None:
        now_s = self._runtime.now_s()
        info = SyncLockInfo(
            host=host,
            operation=operation,
            holder=held.lease.holder,
            holder_hostname=self._runtime.hostname,
            holder_pid=self._runtime.pid,
            holder_began_s=self._began_s,
            token=held.lease.token,
            acquired_at=now_s,
            timeout_at=now_s + timeout,
        )
        await self._infos.put(host, info)

    async def _is_ours(self, lease: NamedLease) -> bool:
        holder = await lease_holder(self._kv, lease.name)
        return lease.held and holder is not None and holder.holder == lease.holder

    async def _say_timeout(self, host: str, operation: str, waited_s: float, timeout: float) -> None:
        info = await self.info_async(host)
        payload = {
            "lock_name": lock_name(host),
            "holder": "" if info is None else info.holder,
            "wait_seconds": waited_s,
            "timeout_seconds": timeout,
            "operation": operation,
        }
        if self.router is None:
            log.warning("sync_lock.timeout", **payload)
            return
        try:
            await self.router.publish("LOCK_TIMEOUT", payload, "sync_mutex")
        except RingRiftError as error:
            log.error("sync_lock.announcement_lost", host=host, error=str(error))

    # --- without a loop -------------------------------------------------------------------------------

    acquire = blocking(acquire_async, timeout_s=ANSWER_S, plus="wait_timeout")
    release = blocking(release_async, timeout_s=ANSWER_S)
    force_release = blocking(force_release_async, timeout_s=ANSWER_S)
    heartbeat = blocking(heartbeat_async, timeout_s=ANSWER_S)
    get_lock_info = blocking(info_async, timeout_s=ANSWER_S)
    get_all_locks = blocking(locks_async, timeout_s=ANSWER_S)
    cleanup_crashed_locks = blocking(cleanup_async, timeout_s=ANSWER_S)

    def is_locked(self, host: str) -> bool:
        return run_blocking(lease_holder(self._kv, lock_name(host)), timeout_s=ANSWER_S) is not None

    def release_all_for_process(self) -> int:
        """Give back everything that this process holds; return how many that were."""
        return sum(self.release(host) for host in list(self._held))

    def get_stats(self) -> dict[str, Any]:
        locks = self.get_all_locks()
        return {
            "active_locks": len(locks),
            "max_per_host": 1,
            "max_global": self.max_global,
            "locks": [msgspec.to_builtins(info) for info in locks],
        }


def lock_name(host: str) -> str:
    return f"sync/{host}"


def _slot(number: int) -> str:
    return f"sync-slot/{number}"


# The lock of a host, held for the length of a block.


class SyncLock:
    """A lock for the length of a block, renewed meanwhile; `with` and `async with` give whether it is had.

    A block that ends after its lock was lost raises `LeaseLost`: another may have begun in the middle.
    """

    def __init__(
        self,
        mutex: SyncLocks,
        host: str,
        operation: str,
        *,
        timeout: float,
        wait_s: float,
        takes_slot: bool = True,
    ) -> None:
        check_wait("wait_timeout", wait_s)
        self._mutex, self._host, self._operation = mutex, host, operation
        self._timeout, self._wait_s, self._takes_slot = timeout, wait_s, takes_slot
        self._renewals: TaskOwner | None = None  # for as long as it is had

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
            # No task group: a blocking caller enters and leaves in two tasks.
            self._renewals = TaskOwner(f"the sync lock of {self._host}")
            self._renewals.create_task(self._kept())
        return had

    async def _kept(self) -> None:
        try:
            await self._mutex.keep(self._host)
        except* LeaseLost:
            log.warning("sync_lock.lost", host=self._host)  # whoever ends the block is refused

    async def __aexit__(self, *error: object) -> None:
        renewals, self._renewals = self._renewals, None
        if renewals is None:
            return
        await renewals.stop(ANSWER_S)
        if not await self._mutex.release_async(self._host) and error[0] is None:
            raise LeaseLost(lock_name(self._host), token=0, reason="another may have it by now")

    def __enter__(self) -> bool:
        return background_loop().run(self.__aenter__(), timeout_s=self._wait_s + ANSWER_S)

    __exit__ = blocking(__aexit__, timeout_s=ANSWER_S)
