"""A quick look at a bootstrapped system: is it up, and does an event get through?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ringrift.bootstrap.coordination import get_bootstrap_status, is_coordination_ready
from ringrift.bootstrap.plan import order
from ringrift.bootstrap.registry import COORDINATOR_REGISTRY
from ringrift.bootstrap.system_health import get_system_health
from ringrift.events.router import get_router
from ringrift.health.isolation import attempt

Check = Callable[[], tuple[bool, str]]


def _registry_is_sound() -> tuple[bool, str]:
    return True, f"{len(order(COORDINATOR_REGISTRY))} coordinators in order"


def _is_up() -> tuple[bool, str]:
    status = get_bootstrap_status()
    return status["initialized"], f"{status['initialized_count']} of {status['total_count']} coordinators"


def _none_failed() -> tuple[bool, str]:
    errors = get_bootstrap_status()["errors"]
    return not errors, "; ".join(errors) or "no coordinator failed"


def _is_ready() -> tuple[bool, str]:
    return is_coordination_ready(), "everything that the rest stands on"


def _events_have_hearers() -> tuple[bool, str]:
    router = get_router()
    return router.has_subscribers("ERROR"), f"{router.get_stats()['subscriber_count']} subscriptions"


def _router_is_healthy() -> tuple[bool, str]:
    result = get_router().health_check()
    return result.healthy, result.message


CHECKS: dict[str, Check] = {
    "registry": _registry_is_sound,
    "bootstrapped": _is_up,
    "coordinators": _none_failed,
    "ready": _is_ready,
    "subscriptions": _events_have_hearers,
    "event_router": _router_is_healthy,
}


def run_bootstrap_smoke_test() -> dict[str, Any]:
    """Run all checks; one that raises has failed. Changes nothing."""
    checks = []
    for name, check in CHECKS.items():
        ran = attempt(f"smoke test {name}", check)
        passed, details = ran.value or (False, "")
        checks.append({"name": name, "passed": passed, "error": ran.problem or None, "details": details})
    passed_count = sum(bool(check["passed"]) for check in checks)
    status = get_bootstrap_status()
    return {
        "passed": passed_count == len(checks),
        "checks": checks,
        "passed_count": passed_count,
        "failed_count": len(checks) - passed_count,
        "warnings": [*get_system_health()["issues"], *(f"{name}: not built" for name in status["not_built"])],
    }
