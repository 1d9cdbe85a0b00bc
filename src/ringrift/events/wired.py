"""The life of a coordinator that only hears and answers: it is wired once, and runs while it hears."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Self

from ringrift.events.router import get_router
from ringrift.events.subscriptions import Callback, SubscriptionHandle
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.process import SingletonMixin
from ringrift.status import CoordinatorStatus


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
