"""Coordinators in layers: start, status, health, stop.

The names are loaded when they are first used: a command that only reads where the control process is must
not load everything that the control process runs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES: dict[str, str] = {
    "COORDINATOR_REGISTRY": "registry",
    "CoordinatorSpec": "registry",
    "InitPattern": "registry",
    "audit_wiring": "wiring",
    "bootstrap_coordination": "coordination",
    "collect_wiring": "wiring",
    "get_bootstrap_status": "coordination",
    "get_system_health": "system_health",
    "initialize_all_coordinators": "coordination",
    "is_coordination_ready": "coordination",
    "run_bootstrap_smoke_test": "smoke_test",
    "shutdown_all_coordinators": "coordination",
    "shutdown_coordination": "coordination",
    "start_coordination": "coordination",
}

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


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
