"""Coordinators in layers: start, status, health, stop."""

from ringrift.bootstrap.coordination import (
    bootstrap_coordination,
    get_bootstrap_status,
    initialize_all_coordinators,
    is_coordination_ready,
    shutdown_all_coordinators,
    shutdown_coordination,
    start_coordination,
)
from ringrift.bootstrap.registry import COORDINATOR_REGISTRY, CoordinatorSpec, InitPattern
from ringrift.bootstrap.smoke_test import run_bootstrap_smoke_test
from ringrift.bootstrap.system_health import get_system_health
from ringrift.bootstrap.wiring import audit_wiring, collect_wiring

__all__ = [
    "COORDINATOR_REGISTRY",
    "CoordinatorSpec",
    "InitPattern",
    "audit_wiring",
    "bootstrap_coordination",
    "collect_wiring",
    "get_bootstrap_status",
    "get_system_health",
    "initialize_all_coordinators",
    "is_coordination_ready",
    "run_bootstrap_smoke_test",
    "shutdown_all_coordinators",
    "shutdown_coordination",
    "start_coordination",
]
