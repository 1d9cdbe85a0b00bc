"""Small checks that health reports are made of: each answers whether it is fine and a line for a person.

What is not known (never connected, never active) is not fine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ringrift.runtime import system_runtime

__all__ = ["HealthCheckHelper", "Verdict"]

Verdict = tuple[bool, str]

NOT_ASKED = math.nan  # no time was given, which is not the same as None: never


class HealthCheckHelper:
    """The checks, by the documents' names. Times are of `Runtime.now_s`; *now_s* defaults to now."""

    @staticmethod
    def check_error_rate(errors: int, cycles: int, threshold: float = 0.5) -> Verdict:
        """Fail at *threshold* and above; fine while nothing ran."""
        if cycles <= 0:
            return True, "nothing ran yet"
        rate = errors / cycles
        text = f"{rate:.0%} of {cycles} failed (limit {threshold:.0%})"
        return rate < threshold, text

    @staticmethod
    def check_uptime_grace(
        start_time: float | None, grace_period: float = 30.0, *, now_s: float | None = None
    ) -> Verdict:
        """True while the component is still in its start-up grace; one that never started has all of it."""
        # 0 is what many components have in such a field before they start.
        if not start_time:
            return True, "not started yet"
        uptime = _age(start_time, now_s)
        if uptime < grace_period:
            return True, f"starting: {uptime:.0f} of {grace_period:.0f} s grace"
        return False, f"grace of {grace_period:.0f} s is over"

    @staticmethod
    def check_recent_errors(
        error_log: Iterable[Any], window_seconds: float = 300.0, limit: int = 5, *, now_s: float | None = None
    ) -> Verdict:
        """Fail at *limit* errors in the window. Entries are times, (time, ...) or {"timestamp": time}."""
        recent = sum(_age(_time_of(entry), now_s) <= window_seconds for entry in error_log)
        return recent < limit, f"{recent} errors in {window_seconds:.0f} s (limit {limit})"

    @staticmethod
    def check_queue_depth(
        queue_size: int | None = None, max_depth: int = 1000, *, depth: int | None = None
    ) -> Verdict:
        """Fail at *max_depth* and above; 0 means no limit. The size comes as *queue_size* or *depth*."""
        size = queue_size if queue_size is not None else depth
        if size is None:
            raise TypeError("check_queue_depth needs queue_size or depth")
        if max_depth <= 0:
            return True, f"{size} queued (no limit)"
        return size < max_depth, f"{size} queued (limit {max_depth})"

    @staticmethod
    def check_last_activity(
        last_activity: float | None, stale_threshold: float = 3600.0, *, now_s: float | None = None
    ) -> Verdict:
        return _fresh("activity", last_activity, stale_threshold, now_s)

    @staticmethod
    def check_connection_health(
        connected: bool,  # noqa: FBT001 - the documents' signature
        last_success: float | None = NOT_ASKED,
        stale_threshold: float = 60.0,
        *,
        now_s: float | None = None,
    ) -> Verdict:
        """Fail when not connected, or, if the caller notes successes, when the last is missing or too old."""
        if not connected:
            return False, "not connected"
        if last_success is not None and math.isnan(last_success):
            return True, "connected"
        return _fresh("successful call", last_success, stale_threshold, now_s)

    @staticmethod
    def check_handler_failures(failed: int, total: int, threshold: float = 0.2) -> Verdict:
        return HealthCheckHelper.check_error_rate(failed, total, threshold)

    @staticmethod
    def check_subscription_health(
        subscribed: bool,  # noqa: FBT001 - the documents' signature
        subscription_count: int | None = None,
        expected_count: int | None = None,
    ) -> Verdict:
        """Fail when not subscribed, or to fewer events than expected."""
        if not subscribed:
            return False, "not subscribed"
        if subscription_count is not None and subscription_count < (expected_count or 1):
            return False, f"{subscription_count} of {expected_count or 1} subscriptions"
        return True, "subscribed"

    @staticmethod
    def check_data_staleness(
        last_update: float | None, max_age_seconds: float = 3600.0, *, now_s: float | None = None
    ) -> Verdict:
        return _fresh("data", last_update, max_age_seconds, now_s)

    @staticmethod
    def check_pending_items(pending: int, max_pending: int = 100) -> Verdict:
        return HealthCheckHelper.check_queue_depth(pending, max_pending)

    @staticmethod
    def check_dependency_health(dependencies: Mapping[str, bool]) -> Verdict:
        """Fail if any is not healthy, and name those."""
        down = sorted(name for name, healthy in dependencies.items() if not healthy)
        return not down, f"unhealthy: {', '.join(down)}" if down else f"all {len(dependencies)} healthy"

    @staticmethod
    def check_memory_usage(memory_mb: float, limit_mb: float = 1024.0) -> Verdict:
        return memory_mb < limit_mb, f"{memory_mb:.0f} MB used (limit {limit_mb:.0f})"

    @staticmethod
    def build_details(**details: Any) -> dict[str, Any]:
        """Keep what has a value."""
        return {name: value for name, value in details.items() if value is not None}


def _age(moment: float, now_s: float | None) -> float:
    return (system_runtime().now_s() if now_s is None else now_s) - moment


def _fresh(what: str, last_s: float | None, limit_s: float, now_s: float | None) -> Verdict:
    if not last_s:
        return False, f"no {what} so far"
    age = _age(last_s, now_s)
    return age <= limit_s, f"last {what} {age:.0f} s ago (limit {limit_s:.0f})"


def _time_of(entry: Any) -> float:
    if isinstance(entry, Mapping):
        return float(entry["timestamp"])
    if isinstance(entry, tuple | list):
        return float(entry[0])
    return float(getattr(entry, "timestamp", entry))
