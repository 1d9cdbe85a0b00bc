"""Who really sends and who really hears each event, for the wiring audit.

Everything that this version contains is put together on a router of its own: coordinators are wired by the
same walk that brings the system up, and the router then tells what they hear; daemons are made as the daemon
manager makes them, and tell what they will subscribe to. Nothing is started, and no data of the product is
touched.
"""

from __future__ import annotations

import asyncio
import inspect
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ringrift.coordination.coordinator_dependencies import COORDINATOR_REGISTRY, InitPattern
from ringrift.coordination.daemon_manager import DaemonManager
from ringrift.coordination.dead_letter_queue import DeadLetterQueue
from ringrift.coordination.initializer import BootstrapOptions, Initializer, load_entry_point
from ringrift.daemons.registry import Isolation, product_registry, profile_types
from ringrift.daemons.running import takes_keyword
from ringrift.daemons.types import DaemonType
from ringrift.data.transfer.service import TransferService
from ringrift.errors import ConfigError
from ringrift.events.catalog.audit import AuditReport, ComponentWiring, LastSeen, Wiring, audit
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.runtime import system_runtime

__all__ = ["audit_wiring", "collect_wiring"]

DEFAULT_PROFILE = "standard"  # of `ringrift run`

# What the parts send that are no daemon and no coordinator. A test holds this against the code.
SENT_BY: dict[str, ComponentWiring] = {
    item.name: item
    for item in (
        ComponentWiring(
            "bootstrap",
            "bootstrap",
            emits=(
                "COORDINATOR_HEALTHY",
                "COORDINATOR_UNHEALTHY",
                "COORDINATOR_INIT_FAILED",
                "COORDINATOR_SHUTDOWN",
            ),
        ),
        ComponentWiring(
            "control_process",
            "bootstrap",
            emits=("LEADER_ELECTED", "LEADER_LOST", "STARTUP_STATE_VALIDATED"),
        ),
        ComponentWiring("event_router", "event_bus", emits=("HANDLER_FAILED", "HANDLER_TIMEOUT")),
        ComponentWiring("daemon_manager", "supervisor", emits=DaemonManager.emits),
        ComponentWiring("transfers", TransferService.capability, emits=TransferService.emits),
        ComponentWiring("sync_mutex", "transfer", emits=("LOCK_TIMEOUT",)),
        ComponentWiring(
            "worker",
            "work_supply",
            emits=(
                "WORK_CLAIMED",
                "WORK_STARTED",
                "WORK_COMPLETED",
                "WORK_FAILED",
                "WORK_RETRY",
                "WORK_TIMEOUT",
                "JOB_PREEMPTED",
                "TASK_SPAWNED",
                "TASK_HEARTBEAT",
                "TASK_COMPLETED",
                "TASK_FAILED",
                "TASK_ABANDONED",
                "TASK_ORPHANED",
                "TRAINING_PROGRESS",
                "TRAINING_STARTED",
            ),
        ),
    )
}


def audit_wiring(seen: Mapping[str, LastSeen] | None = None) -> AuditReport:
    """Judge what this version really wires. Must not be called inside a running loop.

    *seen* is the record of a data folder: when each event was last sent and received there.
    """
    return audit(collect_wiring(), seen=seen)


def collect_wiring() -> Wiring:
    """Put everything together and read it off. Must not be called inside a running loop."""
    return asyncio.run(_collect())


async def _collect() -> Wiring:
    with tempfile.TemporaryDirectory(prefix="ringrift-audit-") as folder:
        dead_letters = DeadLetterQueue(Path(folder) / "dead_letters.db")
        try:
            return _read(dead_letters)
        finally:
            dead_letters.close()


def _read(dead_letters: DeadLetterQueue) -> Wiring:
    audited = _AuditedRouter()
    audited.components += SENT_BY.values()
    _wire_coordinators(audited)
    manager = DaemonManager(bus=audited.router)
    _wire_daemons(audited, {"manager": manager, "dlq": dead_letters})
    manager.reactions.subscribe()
    audited.note("daemon_manager")
    manager.reactions.unsubscribe()
    declared = [(event, item.name) for item in audited.components for event in item.subscribes]
    by_default = set(profile_types(product_registry(), DEFAULT_PROFILE))
    elsewhere = [name for name, types in audited.daemons.items() if not types & by_default]
    return Wiring.collect(audited.components, subscriptions=[*audited.heard, *declared], elsewhere=elsewhere)


class _AuditedRouter:
    """The router of the audit, and whom each of its subscriptions belongs to."""

    def __init__(self) -> None:
        self.router = UnifiedEventRouter(enable_cross_process_polling=False)
        self.components: list[ComponentWiring] = []
        self.heard: list[tuple[str, str]] = []
        self.daemons: dict[str, set[DaemonType]] = {}  # component: the daemons that it is
        self._known: set[str] = set()

    def note(self, owner: str) -> None:
        """What was subscribed since the last call is *owner*'s."""
        for item in self.router.list_subscribers():
            if item["name"] not in self._known:
                self._known.add(item["name"])
                self.heard += [(event, owner) for event in item["event_types"] or ()]

    def add(self, name: str, capability: str, component: Any) -> None:
        self.components.append(
            ComponentWiring(name, capability, emits=tuple(getattr(component, "emits", ())))
        )
        self.note(name)


def _wire_coordinators(audited: _AuditedRouter) -> None:
    for name, spec in COORDINATOR_REGISTRY.items():
        if spec.pattern is not InitPattern.WIRE or spec.not_built_reason:
            continue
        # Each alone: what it depends on has a walk of its own, and would be taken for a part of it.
        walk = Initializer({name: replace(spec, depends_on=())}, publish=_tell_nobody)
        walk.initialize(BootstrapOptions(arguments={"router": audited.router}))
        if walk.errors:
            raise ConfigError(f"the wiring cannot be read: {walk.errors[0]}")
        audited.add(name, spec.capability, walk.instances[name])


def _wire_daemons(audited: _AuditedRouter, parts: Mapping[str, Any]) -> None:
    offered = {"router": audited.router, "bus": audited.router, "runtime": system_runtime(), **parts}
    for spec in product_registry():
        if spec.unavailable_reason or spec.isolation is Isolation.PROCESS:
            continue  # one with a process of its own is not made here: it would open its files and ports
        factory = load_entry_point(spec.entry_point)
        if hasattr(factory, "wiring") or inspect.isfunction(factory):
            with_settings = {**offered, "settings": dict(spec.settings)}
            given = {name: value for name, value in with_settings.items() if takes_keyword(factory, name)}
            wiring = factory(**given).wiring()
            audited.components.append(wiring)
            audited.daemons.setdefault(wiring.name, set()).add(spec.daemon_type)


def _tell_nobody(_event: str, _payload: Mapping[str, Any]) -> None:
    """The audit looks; it publishes nothing."""
