"""What to do about a sync that stands still: leave its source alone for a while and take another."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ringrift.errors import ConfigError
from ringrift.process import process_scope
from ringrift.runtime import Runtime, system_runtime
from ringrift.status import HealthCheckResult

__all__ = ["StallConfig", "SyncStallHandler", "get_stall_handler"]

SOURCES_MAX = 2_000
STALL_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StallConfig:
    """Seconds and counts."""

    penalty_s: float = 300.0
    max_retries: int = 3
    failed_recoveries_max: int = 5

    def __post_init__(self) -> None:
        if self.penalty_s <= 0 or self.max_retries < 1:
            raise ConfigError("a stall needs a penalty above 0 s and at least one retry")


@dataclass(frozen=True, slots=True)
class _Stall:
    count: int
    until_s: float


class SyncStallHandler:
    """Remembers which sources stood still. Times are monotonic."""

    def __init__(self, config: StallConfig | None = None, runtime: Runtime | None = None) -> None:
        self.config, self._runtime = config or StallConfig(), runtime or system_runtime()
        self._stalls: OrderedDict[str, _Stall] = OrderedDict()
        self._counts = {"stalls_detected": 0, "stalls_recovered": 0, "failed_recoveries": 0}

    def check_stall(self, started_at: float, timeout: float = STALL_S) -> bool:
        """Whether what began, or last moved, at *started_at* (wall clock) stands still."""
        return self._runtime.now_s() - started_at > timeout

    def record_stall(self, source: str) -> int:
        """Leave *source* alone for a while; return how often it stalled in a row."""
        now_s, former = self._runtime.monotonic_s(), self._stalls.get(source)
        count = 1 if former is None else former.count + 1
        self._stalls[source] = _Stall(count, now_s + self.config.penalty_s)
        self._stalls.move_to_end(source)
        while len(self._stalls) > SOURCES_MAX:
            self._stalls.popitem(last=False)
        self._counts["stalls_detected"] += 1
        return count

    def record_recovery(self, source: str) -> None:
        """A sync from *source* went through."""
        if self._stalls.pop(source, None) is not None:
            self._counts["stalls_recovered"] += 1

    def record_failed_recovery(self, source: str) -> None:
        """Another way was tried instead of *source*, and failed too."""
        self.record_stall(source)
        self._counts["failed_recoveries"] += 1

    def is_penalized(self, source: str) -> bool:
        stall = self._stalls.get(source)
        return stall is not None and self._runtime.monotonic_s() < stall.until_s

    def may_retry(self, source: str) -> bool:
        """Whether *source* has not yet stalled too often in a row, or its penalty is over."""
        stall = self._stalls.get(source)
        return stall is None or stall.count < self.config.max_retries or not self.is_penalized(source)

    def get_alternative_source(
        self, exclude: str | Collection[str], all_sources: Sequence[str]
    ) -> str | None:
        """Return the first source that is not excluded and not left alone; None if there is none."""
        excluded = {exclude} if isinstance(exclude, str) else set(exclude)
        return next(
            (each for each in all_sources if each not in excluded and not self.is_penalized(each)), None
        )

    def get_stats(self) -> dict[str, Any]:
        penalized = [source for source in self._stalls if self.is_penalized(source)]
        return {**self._counts, "penalized_sources": penalized}

    def health_check(self) -> HealthCheckResult:
        stats = self.get_stats()
        if stats["failed_recoveries"] > self.config.failed_recoveries_max:
            return HealthCheckResult.degraded(
                f"{stats['failed_recoveries']} stalls found no way out", **stats
            )
        return HealthCheckResult.ok("", **stats)


def get_stall_handler() -> SyncStallHandler:
    """Return the handler of this process."""
    return process_scope().get(SyncStallHandler, SyncStallHandler)
