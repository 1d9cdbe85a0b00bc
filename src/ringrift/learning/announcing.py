"""Tells the world what became a fact. Events are hints: the fact stands whether or not they arrive."""

from __future__ import annotations

from typing import Protocol

from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.announcements import events_of
from ringrift.learning.facts import AnyFact
from ringrift.learning.state import ConfigState

SOURCE = "training_controller"


class Announcer(Protocol):
    """Whoever is to hear of facts."""

    async def announce(self, fact: AnyFact, state: ConfigState, /) -> None: ...


class RouterAnnouncer:
    """Publishes the events that follow from a fact, without waiting for their handlers."""

    def __init__(self, router: UnifiedEventRouter) -> None:
        self._router = router

    async def announce(self, fact: AnyFact, state: ConfigState) -> None:
        for name, payload in events_of(fact, state):
            await self._router.publish(name, payload, SOURCE)


class Silent:
    """Nobody listens."""

    async def announce(self, _fact: AnyFact, _state: ConfigState) -> None:
        return
