"""Which start-up calls wire coordinators, and which of them hears which event.

Both registries are views: the calls come from the coordinator table, the events from the catalog.
Coordinators subscribe themselves when they are wired, so that processing a registry means to bring the
system up (once) and to report, from the live router, what is connected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ringrift.coordination.coordination_bootstrap import bootstrap_coordination, get_initializer
from ringrift.coordination.coordinator_dependencies import COORDINATOR_REGISTRY, InitPattern
from ringrift.coordination.event_router import get_router
from ringrift.events.catalog.table import CATALOG

__all__ = [
    "DELEGATION_REGISTRY",
    "INIT_CALL_REGISTRY",
    "DelegationSpec",
    "InitCallSpec",
    "get_registry_stats",
    "process_delegation_registry",
    "process_init_call_registry",
]


@dataclass(frozen=True, slots=True)
class InitCallSpec:
    """A call that wires one coordinator."""

    name: str
    import_path: str
    function_name: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    description: str = ""


@dataclass(frozen=True, slots=True)
class DelegationSpec:
    """An event and the coordinator that is to hear it."""

    name: str
    event_type: str
    coordinator: str
    orchestrator_import: str
    orchestrator_getter: str
    payload_keys: tuple[str, ...]
    log_level: str
    description: str = ""


def _init_calls() -> list[InitCallSpec]:
    calls = []
    for spec in COORDINATOR_REGISTRY.values():
        if spec.pattern is InitPattern.WIRE:
            module, _, function = spec.entry_point.partition(":")
            calls.append(InitCallSpec(spec.name, module, function, description=spec.about))
    return calls


def _delegations() -> list[DelegationSpec]:
    calls = {call.name: call for call in _init_calls()}
    return [
        DelegationSpec(
            name=f"{coordinator}.{event.name}",
            event_type=event.name,
            coordinator=coordinator,
            orchestrator_import=calls[coordinator].import_path,
            orchestrator_getter=calls[coordinator].function_name,
            payload_keys=tuple(item.name for item in event.fields),
            log_level=event.severity,
            description=event.emitted_when,
        )
        for event in CATALOG.values()
        for coordinator in event.consumed_by
        # Daemons hear events too; this registry is about coordinators.
        if coordinator in calls
    ]


INIT_CALL_REGISTRY: list[InitCallSpec] = _init_calls()
DELEGATION_REGISTRY: list[DelegationSpec] = _delegations()


def process_init_call_registry(results: dict[str, bool] | None = None) -> dict[str, bool]:
    """Bring the system up if it is not, and say for every call whether its coordinator is."""
    found = {} if results is None else results
    bootstrap_coordination()
    done = get_initializer().results
    found.update({spec.name: done[spec.name].initialized for spec in INIT_CALL_REGISTRY})
    return found


def process_delegation_registry(results: dict[str, bool] | None = None) -> dict[str, bool]:
    """Bring the system up if it is not, and say for every event whether its coordinator listens."""
    found = {} if results is None else results
    bootstrap_coordination()
    # Coordinators name their subscriptions `coordinator.EVENT`, as the registry does.
    live = {item["name"] for item in get_router().list_subscribers()}
    found.update({spec.name: spec.name in live for spec in DELEGATION_REGISTRY})
    return found


def get_registry_stats() -> dict[str, int]:
    calls, delegations = len(INIT_CALL_REGISTRY), len(DELEGATION_REGISTRY)
    return {
        "init_call_count": calls,
        "delegation_count": delegations,
        "total_subscriptions": calls + delegations,
    }
