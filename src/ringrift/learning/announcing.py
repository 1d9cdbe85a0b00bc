"""Tells the world what became a fact. Events are hints: the fact stands whether or not they arrive."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.announcement_scene import Announcement
from ringrift.learning.announcements import events_of
from ringrift.learning.facts import AnyFact
from ringrift.learning.state import ConfigState

SOURCE = "training_controller"


class Announcer(Protocol):
    """Whoever is to hear of facts: noted as they are stored, published when they may be acted upon."""

    def note(self, fact: AnyFact, state: ConfigState, /) -> None: ...

    async def publish(self) -> None: ...


class RouterAnnouncer:
    """Publishes the events that follow from a fact, without waiting for their handlers."""

    def __init__(self, router: UnifiedEventRouter) -> None:
        self._router = router
        self._noted: deque[Announcement] = deque()

    def note(self, fact: AnyFact, state: ConfigState) -> None:
        self._noted.extend(events_of(fact, state))

    async def publish(self) -> None:
        while self._noted:
            name, payload = self._noted.popleft()
            await self._router.publish(name, payload, SOURCE)


class Silent:
    """Nobody listens."""

    def note(self, _fact: AnyFact, _state: ConfigState) -> None:
        return

    async def publish(self) -> None:
        return
