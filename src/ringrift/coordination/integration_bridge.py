"""Whether the parts of the coordination hear each other: every event that a coordinator should hear.

Coordinators subscribe themselves when they are wired; the bridge between them is the router.
"""

from __future__ import annotations

from dataclasses import dataclass

from ringrift.coordination.event_router import get_router
from ringrift.coordination.event_subscription_registry import (
    DELEGATION_REGISTRY,
    process_delegation_registry,
    process_init_call_registry,
)

__all__ = ["IntegrationStatus", "get_integration_status", "wire_all_integrations"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegrationStatus:
    """What is connected, and what is not: `coordinator.EVENT`."""

    connected: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def complete(self) -> bool:
        return not self.missing


def wire_all_integrations() -> IntegrationStatus:
    """Bring the coordinators up if they are not, and say what is connected now."""
    process_init_call_registry()
    process_delegation_registry()
    return get_integration_status()


def get_integration_status() -> IntegrationStatus:
    """Say what is connected, by the live router; nothing is started."""
    live = {item["name"] for item in get_router().list_subscribers()}
    wanted = [spec.name for spec in DELEGATION_REGISTRY]
    return IntegrationStatus(
        connected=tuple(name for name in wanted if name in live),
        missing=tuple(name for name in wanted if name not in live),
    )
