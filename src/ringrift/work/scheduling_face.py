"""What every coordinator of the loop has in common: it hears what the catalog says, and says how it is.

A coordinator is a face of the one truth. What it hears changes what it shows, or wakes the loop; it
decides nothing that another part decides too. Events may come twice, late or never.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

from ringrift.engine.run_reports import reported, reported_health
from ringrift.errors import ConfigError
from ringrift.events.audit import ComponentWiring
from ringrift.events.catalog import CATALOG
from ringrift.events.routed_event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.events.wired import WiredCoordinator
from ringrift.runtime import Runtime, system_runtime
from ringrift.status import HealthCheckResult


def heard_by(component: str) -> tuple[str, ...]:
    """Return the events that the catalog says *component* must hear."""
    return tuple(name for name, spec in CATALOG.items() if component in spec.consumed_by)


class CoordinatorFace(WiredCoordinator):
    """A coordinator that subscribes when it is wired and does nothing in between."""

    capability: ClassVar[str]
    emits: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, name: str, *, router: UnifiedEventRouter | None = None, runtime: Runtime | None = None
    ) -> None:
        super().__init__(name, router=router)
        self.runtime = runtime or system_runtime()
        self.heard: Counter[str] = Counter()
        self._started_s = self.runtime.now_s()
        self._last_s: float | None = None

    @abstractmethod
    def reactions(self) -> Mapping[str, Callback]:
        """Return what is done at each event that the catalog says this must hear."""

    @abstractmethod
    def get_stats(self) -> dict[str, Any]:
        """Return its numbers."""

    async def tell(self, event: str, payload: Mapping[str, Any]) -> None:
        await self.router.publish(event, payload, self.name)

    def _hears(self) -> Mapping[str, Callback]:
        reactions = self.reactions()
        missing = sorted(set(heard_by(self.name)) - set(reactions))
        if missing:
            raise ConfigError(f"{self.name} must hear {', '.join(missing)} and has nothing to do at it")
        return {event: self._counted(reaction) for event, reaction in reactions.items()}

    def _counted(self, reaction: Callback) -> Callback:
        async def hear(event: RouterEvent) -> None:
            self.heard[event.event_type] += 1
            self._last_s = self.runtime.now_s()
            result = reaction(event)
            if result is not None and hasattr(result, "__await__"):
                await result

        return hear

    # --- what it says of itself -----------------------------------------------------------------------

    def wiring(self) -> ComponentWiring:
        return ComponentWiring(self.name, self.capability, self.emits, tuple(self.reactions()))

    @reported_health
    def health_check(self) -> HealthCheckResult:
        if not self._subscriptions:
            return HealthCheckResult(False, self.status, "not subscribed", self.get_metrics())
        return HealthCheckResult.ok("", **self.get_metrics())

    @reported
    def get_metrics(self) -> dict[str, Any]:
        return {"events_heard": self.heard.total(), "last_event_s": self._last_s, **self.get_stats()}

    @reported
    def get_status(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "status": self.status.value,
            "subscribed": self.is_subscribed,
            "uptime_seconds": max(0.0, self.runtime.now_s() - self._started_s),
            **self.get_metrics(),
        }
