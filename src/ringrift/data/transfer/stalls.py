"""Which nodes are left alone, and until when: the one place that says so, in the store of all processes.

Transfers put a node here that failed several times in a row, and refuse calls to it until its time is over;
the sync plans without it and takes another source. A person or a program may set one aside too, or end it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ringrift.data.handles import kv_of, one_per_process
from ringrift.data.kv_records import KvRecords
from ringrift.engine.blocking import run_blocking
from ringrift.engine.ports import KeyValue
from ringrift.errors import ConfigError
from ringrift.process_identity import is_alive, own_start_s
from ringrift.runtime import Runtime, system_runtime
from ringrift.status import HealthCheckResult

__all__ = ["StallConfig", "StallRecord", "SyncStallHandler", "get_stall_handler"]

PREFIX, TOTALS = "data/stalls/", "data/stall_totals/"
STALL_S = 600.0
REMEMBERED_S = 86_400.0  # after its penalty: how often it stalled in a row
CLOCK_TOLERANCE_S = 5.0
_ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class StallConfig:
    """Seconds and counts."""

    penalty_s: float = 300.0
    max_retries: int = 3
    failed_recoveries_max: int = 5

    def __post_init__(self) -> None:
        if self.penalty_s <= 0 or self.max_retries < 1:
            raise ConfigError("a stall needs a penalty above 0 s and at least one retry")


class StallRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node that stood still. Times are wall clock."""

    source: str
    count: int  # in a row
    at_s: float
    until_s: float
    reason: str = ""
    # Whose transfers failed: what a process met ends with it, since it may be over for the next. Empty: a
    # person or a program set the node aside.
    by: str = ""
    pid: int = 0
    began_s: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether the process that met it has ended."""
        return bool(self.by) and not is_alive(self.pid, self.began_s)

    def left_s(self, now_s: float) -> float:
        """For how long it is still left alone; 0 when it may be used. A clock that was set back ends it."""
        if now_s < self.at_s - CLOCK_TOLERANCE_S:
            return 0.0
        return max(0.0, self.until_s - now_s)

    def told(self, now_s: float) -> str:
        """Why it is left alone, and for how long."""
        return f"{self.reason or 'it stood still'}; it is tried again in {self.left_s(now_s):.0f} s"


class StallTotals(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What happened since the store was made."""

    stalls_detected: int = 0
    stalls_recovered: int = 0
    failed_recoveries: int = 0


class SyncStallHandler:
    """Says which nodes are left alone. The plain calls block; inside a loop use those on `_async`."""

    def __init__(
        self,
        db_path: Path | str | None = None,
        *,
        kv: KeyValue | None = None,
        config: StallConfig | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self.config, self._runtime = config or StallConfig(), runtime or system_runtime()
        store = kv_of(db_path, kv)
        self._stalls = KvRecords(store, PREFIX, StallRecord)
        self._totals = KvRecords(store, TOTALS, StallTotals)

    def check_stall(self, started_at: float, timeout: float = STALL_S) -> bool:
        """Whether what began, or last moved, at *started_at* (wall clock) stands still."""
        return self._runtime.now_s() - started_at > timeout

    # --- in a loop ------------------------------------------------------------------------------------

    async def record_stall_async(
        self, source: str, reason: str = "", for_s: float | None = None, *, by: str = ""
    ) -> int:
        """Leave *source* alone for *for_s* (by default the penalty); return how often it stalled in a row.

        With *by*, because of what that process's own transfers met.
        """
        if not source:
            raise ConfigError("a stall needs the name of the node that stood still")
        lasts_s = self.config.penalty_s if for_s is None else for_s
        if lasts_s <= 0:
            raise ConfigError(f"for_s is {lasts_s:g}; a node is left alone for more than 0 s")
        now_s = self._runtime.now_s()

        def step(former: StallRecord | None) -> StallRecord:
            count = 1 if former is None else former.count + 1
            return StallRecord(
                source=source,
                count=count,
                at_s=now_s,
                until_s=now_s + lasts_s,
                reason=reason,
                by=by,
                pid=os.getpid() if by else 0,
                began_s=own_start_s() if by else None,
            )

        after = await self._stalls.change(source, step, ttl_s=lasts_s + REMEMBERED_S)
        assert after is not None
        await self._add(stalls_detected=1)
        return after.count

    async def record_recovery_async(self, source: str) -> None:
        """Something went to *source*, or came from it: it is used again."""
        if await self._stalls.delete(source):
            await self._add(stalls_recovered=1)

    async def forget_async(self, by: str) -> None:
        """The process *by* ends: what its transfers met binds nobody any more."""
        for each in await self._stalls.all():
            if each.by == by:
                await self._stalls.delete(each.source)

    async def record_failed_recovery_async(self, source: str) -> None:
        """Another way was tried instead of *source*, and failed too."""
        await self.record_stall_async(source, "another way failed too")
        await self._add(failed_recoveries=1)

    async def get_async(self, source: str) -> StallRecord | None:
        """What is remembered of *source*, left alone or not."""
        return await self._stalls.get(source)

    async def set_aside_async(self) -> dict[str, StallRecord]:
        """The nodes that are left alone now."""
        now_s = self._runtime.now_s()
        known = await self._stalls.all()
        return {each.source: each for each in known if each.left_s(now_s) > 0 and not each.is_over}

    async def told_async(self) -> dict[str, str]:
        """The nodes that are left alone now, each with the reason and for how long."""
        now_s = self._runtime.now_s()
        return {name: each.told(now_s) for name, each in (await self.set_aside_async()).items()}

    async def stats_async(self) -> dict[str, Any]:
        totals = await self._totals.get(_ALL) or StallTotals()
        counts = {name: getattr(totals, name) for name in StallTotals.__struct_fields__}
        return {**counts, "penalized_sources": sorted(await self.set_aside_async())}

    async def _add(self, **counts: int) -> None:
        def step(former: StallTotals | None) -> StallTotals:
            totals = former or StallTotals()
            grown = {name: getattr(totals, name) + number for name, number in counts.items()}
            return msgspec.structs.replace(totals, **grown)

        await self._totals.change(_ALL, step)

    # --- without a loop -------------------------------------------------------------------------------

    def record_stall(self, source: str, reason: str = "", for_s: float | None = None) -> int:
        return run_blocking(self.record_stall_async(source, reason, for_s))

    def record_recovery(self, source: str) -> None:
        run_blocking(self.record_recovery_async(source))

    def record_failed_recovery(self, source: str) -> None:
        run_blocking(self.record_failed_recovery_async(source))

    def is_penalized(self, source: str) -> bool:
        return source in self._set_aside()

    def may_retry(self, source: str) -> bool:
        """Whether *source* has not yet stalled too often in a row, or its penalty is over."""
        stall = run_blocking(self.get_async(source))
        over = stall is None or stall.left_s(self._runtime.now_s()) <= 0
        return over or stall is None or stall.count < self.config.max_retries

    def get_alternative_source(
        self, exclude: str | Collection[str], all_sources: Sequence[str]
    ) -> str | None:
        """Return the first source that is not excluded and not left alone; None if there is none."""
        excluded = {exclude} if isinstance(exclude, str) else set(exclude)
        aside = self._set_aside()
        return next((each for each in all_sources if each not in excluded and each not in aside), None)

    def get_stats(self) -> dict[str, Any]:
        return run_blocking(self.stats_async())

    def health_check(self) -> HealthCheckResult:
        stats = self.get_stats()
        if stats["failed_recoveries"] > self.config.failed_recoveries_max:
            return HealthCheckResult.degraded(
                f"{stats['failed_recoveries']} stalls found no way out", **stats
            )
        return HealthCheckResult.ok("", **stats)

    def _set_aside(self) -> Mapping[str, StallRecord]:
        return run_blocking(self.set_aside_async())


def get_stall_handler(
    db_path: Path | str | None = None, *, config: StallConfig | None = None
) -> SyncStallHandler:
    """Return the handler of this process."""
    return one_per_process(SyncStallHandler, SyncStallHandler, db_path=db_path, config=config)
