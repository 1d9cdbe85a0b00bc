"""What each event means for the health of the system: the one table behind the ledger.

A rule raises an issue (with its weight, its expiry and what it concerns) or settles issues. Weights add up
per kind to a limit, so that a flood of one kind cannot hide the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MINUTE_S = 60.0
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S

PARITY_RATE_MAX = 0.05


@dataclass(frozen=True, slots=True)
class Kind:
    """A sort of trouble: what one case costs, what all of them cost at most, how long one counts."""

    weight: float
    weight_max: float
    expires_s: float
    pauses_pipeline: bool = False


KINDS: Mapping[str, Kind] = {
    "error": Kind(0.05, 0.3, 15 * MINUTE_S),
    "handler": Kind(0.02, 0.2, 15 * MINUTE_S),
    "task": Kind(0.01, 0.1, 15 * MINUTE_S),
    "training": Kind(0.1, 0.3, HOUR_S),
    "regression": Kind(0.1, 0.2, 6 * HOUR_S),
    "critical_regression": Kind(0.2, 0.4, 6 * HOUR_S, pauses_pipeline=True),
    "parity": Kind(0.2, 0.2, 6 * HOUR_S, pauses_pipeline=True),
    "node": Kind(0.1, 0.4, DAY_S),
    "isolation": Kind(0.2, 0.2, HOUR_S),
    "stall": Kind(0.2, 0.2, HOUR_S),
    # No reason to pause: that somebody saw two leaders does not prove that this process is the wrong one.
    "split_brain": Kind(0.4, 0.4, HOUR_S),
    "deadlock": Kind(0.2, 0.4, HOUR_S),
    "lock": Kind(0.02, 0.1, 15 * MINUTE_S),
    "recovery": Kind(0.1, 0.3, 6 * HOUR_S),
    "coordinator": Kind(0.15, 0.6, 6 * HOUR_S),
    "daemon": Kind(0.2, 0.6, DAY_S),
    "dead_letters": Kind(0.1, 0.1, HOUR_S),
    "replication": Kind(0.1, 0.2, 6 * HOUR_S),
    "capacity": Kind(0.05, 0.05, DAY_S),
    "budget": Kind(0.1, 0.1, DAY_S),
}


@dataclass(frozen=True, slots=True)
class Rule:
    """What to do with one event. *subject* names the payload field that says whom it concerns."""

    subject: tuple[str, ...] = ()
    raises: str = ""
    settles: tuple[str, ...] = ()
    message: tuple[str, ...] = ("reason", "error", "message")
    weight_share: float = 1.0  # of the kind's weight
    counts_as_failure: bool = False  # for the subject's circuit breaker
    counts_as_success: bool = False


_COMPONENT, _NODE, _DAEMON = ("component", "node_id"), ("node_id",), ("daemon_name",)
_CONFIG, _COORDINATOR = ("config_key",), ("coordinator_name",)

RULES: Mapping[str, Rule] = {
    "ERROR": Rule(_COMPONENT, "error", counts_as_failure=True),
    "HANDLER_FAILED": Rule(("coordinator", "handler_name"), "handler", weight_share=0.5),
    "HANDLER_TIMEOUT": Rule(("coordinator", "handler_name"), "handler"),
    "TASK_FAILED": Rule(("task_type",), "task", counts_as_failure=True),
    "TRAINING_FAILED": Rule(_CONFIG, "training", counts_as_failure=True),
    "REGRESSION_DETECTED": Rule(_CONFIG, "regression", message=("severity",)),
    "REGRESSION_CRITICAL": Rule(_CONFIG, "critical_regression"),
    "REGRESSION_CLEARED": Rule(_CONFIG, settles=("regression", "critical_regression")),
    "PARITY_FAILURE_RATE_CHANGED": Rule(_CONFIG, "parity", message=("new_rate",)),
    "HOST_OFFLINE": Rule(_NODE, "node"),
    "HOST_ONLINE": Rule(_NODE, settles=("node",)),
    "NODE_RECOVERED": Rule(_NODE, settles=("node", "recovery"), counts_as_success=True),
    "NETWORK_ISOLATION_DETECTED": Rule(_NODE, "isolation", message=("peer_ratio",)),
    "P2P_RESTART_TRIGGERED": Rule(_NODE, "isolation", weight_share=0.25),
    "P2P_HEALTH_RECOVERED": Rule(_NODE, settles=("isolation",)),
    "CLUSTER_STALL_DETECTED": Rule((), "stall", message=("stalled_nodes",)),
    "SPLIT_BRAIN_DETECTED": Rule((), "split_brain", message=("leaders_seen",)),
    "SPLIT_BRAIN_RESOLVED": Rule((), settles=("split_brain",)),
    "DEADLOCK_DETECTED": Rule((), "deadlock", message=("resources",)),
    "LOCK_TIMEOUT": Rule(("lock_name",), "lock", message=("operation",)),
    "RECOVERY_INITIATED": Rule(_COMPONENT),
    "RECOVERY_FAILED": Rule(_COMPONENT, "recovery", counts_as_failure=True),
    "RECOVERY_COMPLETED": Rule(
        _COMPONENT, settles=("error", "recovery", "node", "daemon", "coordinator"), counts_as_success=True
    ),
    "COORDINATOR_HEARTBEAT": Rule(_COORDINATOR),
    "COORDINATOR_HEALTHY": Rule(_COORDINATOR, settles=("coordinator",), counts_as_success=True),
    "COORDINATOR_HEALTH_DEGRADED": Rule(_COORDINATOR, "coordinator", weight_share=0.4),
    "COORDINATOR_UNHEALTHY": Rule(_COORDINATOR, "coordinator"),
    "COORDINATOR_INIT_FAILED": Rule(_COORDINATOR, "coordinator"),
    "COORDINATOR_SHUTDOWN": Rule(_COORDINATOR, settles=("coordinator",)),
    "DAEMON_STARTED": Rule(_DAEMON, settles=("daemon",)),
    "DAEMON_STOPPED": Rule(_DAEMON, settles=("daemon",)),
    "DAEMON_STATUS_CHANGED": Rule(_DAEMON, "daemon", weight_share=0.5),
    "DAEMON_CRASH_LOOP_DETECTED": Rule(_DAEMON, "daemon", message=("restart_count",), weight_share=0.5),
    "DAEMON_PERMANENTLY_FAILED": Rule(_DAEMON, "daemon", message=("reason", "restart_count")),
    "DLQ_STALE_EVENTS": Rule((), "dead_letters", message=("stale_count",)),
    "DLQ_EVENTS_REPLAYED": Rule((), settles=("dead_letters",)),
    "DLQ_EVENTS_PURGED": Rule((), settles=("dead_letters",)),
    "REPLICATION_ALERT": Rule(_NODE, "replication"),
    "CAPACITY_LOW": Rule((), "capacity", message=("current_gpus",)),
    "CAPACITY_RESTORED": Rule((), settles=("capacity",)),
    "BUDGET_ALERT": Rule(("budget_type",), "budget", message=("threshold_percent",), weight_share=0.2),
    "BUDGET_EXCEEDED": Rule(("budget_type",), "budget", message=("current_usd",)),
}

# A status change of a daemon is trouble only when it leads here.
_FAILED_STATES = frozenset({"failed", "import_failed", "degraded"})


def says_trouble(event_type: str, payload: Mapping[str, Any]) -> bool:
    """Whether a raising event reports trouble this time, or that the trouble is over."""
    if event_type == "DAEMON_STATUS_CHANGED":
        return payload.get("new_status") in _FAILED_STATES
    if event_type == "PARITY_FAILURE_RATE_CHANGED":
        # A rate that is not told is not a good one.
        rate = payload.get("new_rate")
        return rate is None or float(rate) > PARITY_RATE_MAX
    return True
