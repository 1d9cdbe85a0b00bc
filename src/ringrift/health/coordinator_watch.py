"""What is known of each coordinator, and what there is to tell when it changes. No clock, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ringrift.status import CoordinatorStatus, HealthCheckResult

NAMES_MAX = 1000

Told = tuple[str, dict[str, Any]]


class Condition(StrEnum):
    """How a coordinator is."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"
    SILENT = "silent"  # no heartbeat for too long
    STOPPED = "stopped"  # ended on purpose


HEARD_AS = {
    "COORDINATOR_HEARTBEAT": Condition.HEALTHY,
    "COORDINATOR_HEALTHY": Condition.HEALTHY,
    "COORDINATOR_HEALTH_DEGRADED": Condition.DEGRADED,
    "COORDINATOR_UNHEALTHY": Condition.UNHEALTHY,
    "COORDINATOR_INIT_FAILED": Condition.UNHEALTHY,
    "COORDINATOR_SHUTDOWN": Condition.STOPPED,
}


@dataclass(frozen=True, slots=True)
class Seen:
    """The last that was known of one coordinator."""

    condition: Condition
    score: float
    heard_s: float
    local: bool
    message: str = ""


class CoordinatorWatch:
    """Coordinators of this process are asked; those of others are heard of."""

    def __init__(self, *, silent_after_s: float) -> None:
        self._silent_after_s = silent_after_s
        self._seen: dict[str, Seen] = {}

    def checked(self, name: str, result: HealthCheckResult, now_s: float) -> list[Told]:
        """Take the answer of a local coordinator; return the events to publish."""
        condition = _condition_of(result)
        before = self._seen.get(name)
        self._keep(name, Seen(condition, result.health_score, now_s, local=True, message=result.message))
        told: list[Told] = []
        if before is None or before.condition is not condition:
            told = _change(name, condition, result)
        if condition is not Condition.UNHEALTHY:
            told.append(("COORDINATOR_HEARTBEAT", _heartbeat(name, result)))
        return told

    def heard(self, event_type: str, payload: Mapping[str, Any], now_s: float) -> None:
        """Take what a coordinator of another process says of itself, or is said of it."""
        name = str(payload.get("coordinator_name") or "")
        known = self._seen.get(name)
        if not name or (known is not None and known.local):
            return
        condition = HEARD_AS[event_type]
        # A heartbeat says that it lives, not that it is well again.
        if event_type == "COORDINATOR_HEARTBEAT" and known and known.condition is not Condition.SILENT:
            condition = known.condition
        score = float(payload.get("health_score") or 0.0)
        message = str(payload.get("reason") or payload.get("error") or "")
        self._keep(name, Seen(condition, score, now_s, local=False, message=message))

    def silent(self, now_s: float) -> list[Told]:
        """Return what to tell about coordinators that stopped being heard of; each once."""
        told: list[Told] = []
        for name, seen in self._seen.items():
            age_s = now_s - seen.heard_s
            quiet = seen.condition in {Condition.SILENT, Condition.STOPPED}
            if seen.local or quiet or age_s <= self._silent_after_s:
                continue
            self._seen[name] = Seen(Condition.SILENT, 0.0, seen.heard_s, local=False)
            reason = f"no heartbeat for {age_s:.0f} s"
            told.append(
                ("COORDINATOR_UNHEALTHY", {"coordinator_name": name, "reason": reason, "health_score": 0.0})
            )
        return told

    def report(self, now_s: float) -> dict[str, dict[str, Any]]:
        return {
            name: {
                "state": seen.condition.value,
                "health_score": seen.score,
                "heartbeat_age_seconds": now_s - seen.heard_s,
                "message": seen.message,
            }
            for name, seen in self._seen.items()
        }

    def _keep(self, name: str, seen: Seen) -> None:
        if name not in self._seen and len(self._seen) >= NAMES_MAX:
            self._seen.pop(min(self._seen, key=lambda known: self._seen[known].heard_s))
        self._seen[name] = seen


def _condition_of(result: HealthCheckResult) -> Condition:
    if not result.healthy:
        return Condition.UNHEALTHY
    return Condition.DEGRADED if result.status is CoordinatorStatus.DEGRADED else Condition.HEALTHY


def _change(name: str, condition: Condition, result: HealthCheckResult) -> list[Told]:
    about: dict[str, Any] = {"coordinator_name": name, "health_score": result.health_score}
    if condition is Condition.HEALTHY:
        uptime = float(result.details.get("uptime_seconds") or 0.0)
        return [("COORDINATOR_HEALTHY", {**about, "uptime_seconds": uptime, "subscribed": True})]
    about["reason"] = result.message or condition.value
    if condition is Condition.DEGRADED:
        return [("COORDINATOR_HEALTH_DEGRADED", about)]
    told: list[Told] = [("COORDINATOR_UNHEALTHY", about)]
    if result.message.startswith("health_check raised"):
        # A check that raises is a fault of its own, beside the health that it hides.
        told.append(("ERROR", {"component": name, "error": result.message}))
    return told


def _heartbeat(name: str, result: HealthCheckResult) -> dict[str, Any]:
    details = result.details
    return {
        "coordinator_name": name,
        "health_score": result.health_score,
        "active_handlers": int(details.get("subscription_count") or 0),
        "events_processed": int(details.get("events_processed") or details.get("events_seen") or 0),
    }
