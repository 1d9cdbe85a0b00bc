"""What the manager does when something is said: it only changes what is wanted, held or paused.

Who leads is never taken from an event, which anybody may have said: an event makes the manager look whether
this process can prove that it leads, and only what it finds counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from ringrift.daemons import foreign
from ringrift.daemons.loop_watchdog import NOBODY, Incident
from ringrift.daemons.outbox import EventBus
from ringrift.daemons.planning import BACKPRESSURE, NOT_LEADER
from ringrift.daemons.supervisor import Emit, Supervisor
from ringrift.daemons.unit import Unit

log = structlog.get_logger()

DISK_FULL = "disk space is low"
SPLIT_BRAIN = "two leaders may exist"
DISK_PERCENT = 85.0
# The disk watch repeats itself while the disk is full; silence for this long means that it no longer is.
DISK_PAUSE_S = 900.0
PROOF_S_MAX = 5.0
BLOCK_ALERT_S = 0.5  # shorter blocks are counted, not sent around
BLOCK_REPEAT_S = 60.0
CULPRITS_MAX = 100


class Reactions:
    """Subscribed while the manager runs."""

    def __init__(self, supervisor: Supervisor, bus: EventBus | None, *, emit: Emit, node_id: str) -> None:
        self._supervisor, self._bus, self._emit, self._node_id = supervisor, bus, emit, node_id
        # Whether this process can prove now that it leads; None where nobody is elected.
        self.leads: Callable[[], Awaitable[bool]] | None = None
        self._subscribed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unproved = False  # since the last look
        self._blocks_told_s: dict[str, float] = {}
        self.handlers: dict[str, Callable[[Any], Any]] = {
            "BACKPRESSURE_ACTIVATED": self.on_backpressure_activated,
            "BACKPRESSURE_RELEASED": self.on_backpressure_released,
            "DISK_SPACE_LOW": self.on_disk_space_low,
            "LEADER_ELECTED": self.on_leader_elected,
            "LEADER_LOST": self.on_leader_lost,
            "SPLIT_BRAIN_DETECTED": self.on_split_brain_detected,
            "SPLIT_BRAIN_RESOLVED": self.on_split_brain_resolved,
            "REGRESSION_CRITICAL": self.on_regression_critical,
        }

    def subscribe(self) -> None:
        """Begin to listen; once."""
        self._loop = asyncio.get_running_loop()
        if self._bus is None or self._subscribed:
            return
        for event_type, handler in self.handlers.items():
            self._bus.subscribe(event_type, handler)
        self._subscribed = True

    def unsubscribe(self) -> None:
        if self._bus is None or not self._subscribed:
            return
        for event_type, handler in self.handlers.items():
            self._bus.unsubscribe(event_type, handler)
        self._subscribed = False

    async def on_backpressure_activated(self, event: Any) -> None:
        cause = str(payload_of(event).get("reason") or "")

        def apply(unit: Unit) -> None:
            unit.pauses[BACKPRESSURE], unit.causes[BACKPRESSURE] = None, cause

        self._change(lambda unit: unit.spec.pausable, apply)

    async def on_backpressure_released(self, _: Any) -> None:
        self._change(lambda _: True, lambda unit: unit.pauses.pop(BACKPRESSURE, None))

    async def on_disk_space_low(self, event: Any) -> None:
        """Rest while this machine's disk is nearly full."""
        payload = payload_of(event)
        host = payload.get("node_id") or payload.get("host")
        if host not in (None, self._node_id) or float(payload.get("usage_percent", 0.0)) < DISK_PERCENT:
            return
        until_s = self._supervisor.runtime.monotonic_s() + DISK_PAUSE_S
        self._change(lambda unit: unit.spec.pausable, lambda unit: unit.pauses.update({DISK_FULL: until_s}))

    # --- leadership -----------------------------------------------------------------------------------

    async def on_leader_elected(self, _: Any) -> None:
        await self.look_at_leadership("LEADER_ELECTED")

    async def on_leader_lost(self, _: Any) -> None:
        await self.look_at_leadership("LEADER_LOST")

    async def on_split_brain_detected(self, _: Any) -> None:
        """Stop what two leaders must not do at once, but only where this process may not be the one."""
        if not await self.look_at_leadership("SPLIT_BRAIN_DETECTED"):
            self._change(
                lambda unit: unit.spec.split_brain_stop,
                lambda unit: unit.holds.update({SPLIT_BRAIN: None}),
            )

    async def on_split_brain_resolved(self, _: Any) -> None:
        """What needs the lease itself still waits for it; the rest waited for this."""
        await self.look_at_leadership("SPLIT_BRAIN_RESOLVED")
        self._change(lambda _: True, lambda unit: unit.holds.pop(SPLIT_BRAIN, None))

    async def look_at_leadership(self, heard: str) -> bool:
        """Let daemons that need leadership follow the lease: they run while it can be proved, and else not.

        Returns whether this process proved that it leads; True as well where nobody is elected.
        """
        if self.leads is None:
            log.info("daemons.leadership_hearsay", heard=heard, done="nothing: nobody is elected here")
            return True
        asked = await foreign.call_async(self.leads, timeout_s=PROOF_S_MAX)
        leads = asked.value is True  # an answer that does not come proves nothing

        tell = log.info if leads else log.error
        tell("daemons.looked_at_leadership", heard=heard, leads=leads, error=asked.problem)
        if leads:
            self._change(lambda _: True, _release)
        else:
            self._change(
                lambda unit: unit.spec.leader_only, lambda unit: unit.holds.update({NOT_LEADER: None})
            )
        self._unproved = not leads
        return leads

    def leadership_proved(self) -> None:
        """The keeper of the lease proved it by itself: what a look without an answer stopped goes on."""
        if self._unproved:
            self._unproved = False
            self._change(lambda _: True, _release)

    async def on_regression_critical(self, event: Any) -> None:
        payload = payload_of(event)
        config_key = str(payload.get("config_key", "unknown"))
        self._emit(
            "HEALTH_ALERT",
            {
                "alert_type": "regression_critical",
                "severity": "critical",
                "message": f"{config_key}: {payload.get('reason') or 'the model got much worse'}",
                "node_id": self._node_id,
                "details": dict(payload),
            },
        )

    def loop_was_blocked(self, incident: Incident) -> None:
        """Called in the watchdog's thread; the event goes out from the loop."""
        if self._loop is None or incident.culprit == NOBODY:
            return
        told_s = self._blocks_told_s.get(incident.culprit, float("-inf"))
        if incident.blocked_s < BLOCK_ALERT_S or incident.at_s - told_s < BLOCK_REPEAT_S:
            return
        if len(self._blocks_told_s) >= CULPRITS_MAX:
            self._blocks_told_s.clear()
        self._blocks_told_s[incident.culprit] = incident.at_s
        payload = {
            "alert_type": "event_loop_blocked",
            "severity": "error",
            "message": f"the event loop stood still for {incident.blocked_s:.2f} s in {incident.culprit}",
            "node_id": self._node_id,
            "details": {"culprit": incident.culprit, "daemon": incident.daemon, "where": incident.where},
        }
        try:
            self._loop.call_soon_threadsafe(self._emit, "HEALTH_ALERT", payload)
        except RuntimeError:  # the loop was closed meanwhile
            return

    def _change(self, chosen: Callable[[Unit], bool], apply: Callable[[Unit], Any]) -> None:
        for unit in self._supervisor.units.values():
            if chosen(unit):
                apply(unit)
        self._supervisor.poke()


def _release(unit: Unit) -> None:
    unit.holds.pop(SPLIT_BRAIN, None)
    unit.holds.pop(NOT_LEADER, None)


def payload_of(event: Any) -> dict[str, Any]:
    """Return the payload of a routed event, or of a plain mapping."""
    payload = getattr(event, "payload", event)
    return dict(payload) if payload else {}
