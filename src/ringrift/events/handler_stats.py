"""What a handler counts about itself, and how it judges its health."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ringrift.events.plain_values import digest_of
from ringrift.status import CoordinatorStatus, HealthCheckResult

ERROR_SHARE_MAX = 0.5
DEGRADED_SHARE_MAX = 0.2


@dataclass(frozen=True, slots=True)
class HandlerError:
    """One error of a cycle or of an event."""

    message: str
    timestamp: float
    context: str


@dataclass(slots=True)
class HandlerStats:
    """Counts since the handler was made."""

    events_processed: int = 0
    events_deduplicated: int = 0
    success_count: int = 0
    errors_count: int = 0
    last_error: str = ""
    last_error_time: float = 0.0
    cycles_completed: int = 0
    started_at: float = 0.0
    last_activity: float = 0.0
    last_event_time: float = 0.0
    subscribed: bool = False
    custom_stats: dict[str, Any] = field(default_factory=dict)

    @property
    def error_count(self) -> int:
        return self.errors_count

    @property
    def success_rate(self) -> float:
        """Share of events handled well; 1.0 before the first."""
        return self.success_count / self.events_processed if self.events_processed else 1.0

    def to_dict(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**values, "success_rate": self.success_rate, "custom_stats": dict(self.custom_stats)}


def judge(stats: HandlerStats, *, running: bool, details: dict[str, Any]) -> HealthCheckResult:
    """Judge by the share of errors: over half is an error, over a fifth needs a look."""
    if not running:
        return HealthCheckResult(False, CoordinatorStatus.STOPPED, "not running", details)
    attempts = stats.cycles_completed + stats.events_processed
    share = stats.errors_count / max(attempts, stats.errors_count, 1)
    if share > ERROR_SHARE_MAX:
        return HealthCheckResult.unhealthy(f"{share:.0%} errors; last: {stats.last_error}", **details)
    if share > DEGRADED_SHARE_MAX:
        return HealthCheckResult.degraded(f"{share:.0%} errors; last: {stats.last_error}", **details)
    return HealthCheckResult.ok("running", **details)


class EventDeduplicator:
    """Remembers payloads for a while; opt-in, because equal events may be meant."""

    def __init__(self, *, ttl_s: float = 300.0, events_max: int = 1000) -> None:
        self._ttl_s, self._events_max = ttl_s, events_max
        self._seen_s: dict[str, float] = {}

    def is_duplicate(
        self, payload: Mapping[str, Any], now_s: float, key_fields: Sequence[str] | None = None
    ) -> bool:
        """Whether an equal payload (in *key_fields*, if given) came within the time; remembers it."""
        content = dict(payload) if key_fields is None else {name: payload.get(name) for name in key_fields}
        key = digest_of(content)
        known_s = self._seen_s.pop(key, None)
        duplicate = known_s is not None and now_s - known_s < self._ttl_s
        self._seen_s[key] = known_s if duplicate and known_s is not None else now_s
        while len(self._seen_s) > self._events_max:
            del self._seen_s[next(iter(self._seen_s))]
        return duplicate
