"""The base of every handler of the documents: on the router of this process, unless it is given one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, Self, TypeVar

from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.event_router import get_router
from ringrift.engine.run_reports import reported, reported_health
from ringrift.errors import ConfigError
from ringrift.events.catalog.audit import ComponentWiring
from ringrift.events.catalog.names import normalize_event_type
from ringrift.events.event import RouterEvent, get_event_payload
from ringrift.events.handlers import CycleHandler, EventDeduplicator, HandlerError, HandlerStats
from ringrift.events.subscriptions import Callback, SubscriptionHandle
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.process import SingletonMixin
from ringrift.runtime import Runtime, system_runtime
from ringrift.status import CoordinatorStatus, HealthCheckResult
from ringrift.work.coordinator import heard_by

__all__ = [
    "BaseDaemon",
    "BaseEventHandler",
    "Callback",
    "CoordinatorStatus",
    "EventDeduplicator",
    "HandlerBase",
    "HandlerError",
    "HandlerStats",
    "HealthCheckResult",
    "RouterEvent",
    "get_event_payload",
    "normalize_event_type",
]

ConfigT = TypeVar("ConfigT")


class HandlerBase(CycleHandler, SingletonMixin):
    """Handles events and runs a cycle at an interval. A failing cycle is recorded; the next one runs."""

    def _hears_through(self) -> UnifiedEventRouter:
        return self._own_router or get_router()

    async def _tell(self, event_type: str, payload: Mapping[str, Any]) -> None:
        """Publish in its own name, where it hears."""
        await self._hears_through().publish(event_type, payload, self.name)

    @classmethod
    def reset_singleton(cls) -> None:
        """`reset_instance` under its other name."""
        cls.reset_instance()


class BaseDaemon(HandlerBase, Generic[ConfigT]):
    """A handler that says of what type its configuration is: `class Mine(BaseDaemon[MineConfig])`."""

    config: ConfigT


# The name of the documents.
BaseEventHandler = HandlerBase


# The life of a coordinator that only hears and answers: it is wired once, and runs while it hears.


class WiredCoordinator(SingletonMixin, ABC):
    """Subscribes to its events when it is wired, and does nothing in between."""

    def __init__(self, name: str, *, router: UnifiedEventRouter | None = None) -> None:
        self.name = name
        self._own_router = router
        self._subscriptions: list[SubscriptionHandle] = []
        self._was_wired = False

    @abstractmethod
    def _hears(self) -> Mapping[str, Callback]:
        """Return what is called at each event."""

    @property
    def router(self) -> UnifiedEventRouter:
        return self._own_router or get_router()

    @property
    def is_subscribed(self) -> bool:
        return bool(self._subscriptions)

    @property
    def has_ended(self) -> bool:
        """Whether it heard once and hears no more; one that is only called was never wired."""
        return self._was_wired and not self._subscriptions

    @property
    def works_here(self) -> bool:
        """Whether it was ever wired in this process, so that its fields tell something."""
        return self._was_wired

    def wire_for(self) -> Callable[[], None]:
        """Subscribe for a part; return what ends that. What somebody else has wired is not its to end."""
        if self._subscriptions:
            return lambda: None
        self.wire()
        return self.unwire

    @property
    def status(self) -> CoordinatorStatus:
        return CoordinatorStatus.RUNNING if self._subscriptions else CoordinatorStatus.STOPPED

    def wire(self) -> None:
        """Subscribe. A second call changes nothing."""
        self._was_wired = True
        if not self._subscriptions:
            self._subscriptions = [
                self.router.subscribe(event, callback, f"{self.name}.{event}")
                for event, callback in self._hears().items()
            ]

    def unwire(self) -> None:
        """Hear nothing more."""
        for subscription in self._subscriptions:
            subscription.cancel()
        self._subscriptions = []

    @classmethod
    def wired(cls, router: UnifiedEventRouter | None = None) -> Self:
        """Return the coordinator of this process, subscribed; for another *router*, one of its own."""
        found = cls.get_instance() if router is None else cls._for_this_process(router=router)
        found.wire()
        return found

    @classmethod
    def reset_instance(cls) -> Self | None:
        """Forget the coordinator of this process; it hears nothing more."""
        dropped = super().reset_instance()
        if dropped is not None:
            dropped.unwire()
        return dropped

    async def start(self) -> None:
        self.wire()

    async def stop(self) -> None:
        self.unwire()

    async def shutdown(self) -> None:
        await self.stop()


class HearingCoordinator(WiredCoordinator):
    """One that is well for as long as it hears, and says what came of it in numbers."""

    @abstractmethod
    def get_metrics(self) -> dict[str, Any]:
        """Return its numbers."""

    @reported_health
    def health_check(self) -> HealthCheckResult:
        if not self._subscriptions:
            return HealthCheckResult(False, self.status, "not subscribed", self.get_metrics())
        return HealthCheckResult.ok("", **self.get_metrics())

    def _life(self) -> dict[str, Any]:
        """Return what every status begins with."""
        return {"name": self.name, "status": self.status.value, "subscribed": self.is_subscribed}


class SubscribedCoordinator(HearingCoordinator):
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

    @reported
    def get_metrics(self) -> dict[str, Any]:
        return {"events_heard": self.heard.total(), "last_event_s": self._last_s, **self.get_stats()}

    @reported
    def get_status(self) -> dict[str, Any]:
        uptime_s = max(0.0, self.runtime.now_s() - self._started_s)
        return {**self._life(), "uptime_seconds": uptime_s, **self.get_metrics()}


class StoreCoordinator(SubscribedCoordinator):
    """One whose numbers are those of the run, out of the store: the same in every process."""

    answers_instead: ClassVar[frozenset[str]] = frozenset({"get_metrics"})  # which would wait for the store

    def _about_itself(self) -> dict[str, Any]:
        """Return what this process alone knows."""
        return {}

    @reported
    def get_metrics(self) -> dict[str, Any]:
        """Without the numbers of the run: health is asked often, and must not wait for the store."""
        heard = {"events_heard": self.heard.total(), "last_event_s": self._last_s}
        return {**heard, **self._about_itself()}

    def get_status(self) -> dict[str, Any]:
        return {**super().get_status(), **self.get_stats()}


def says_that_we_are_gone(event: RouterEvent, runtime: Runtime) -> bool:
    """Whether *event* claims that this very node is away: it is not, or nobody would hear that here."""
    if event.event_type not in {"HOST_OFFLINE", "P2P_NODE_DEAD"}:
        return False
    return event.payload.get("node_id") in {get_settings().node_name, runtime.hostname}
