"""The bell that wakes the loop. Ringing says only that it may be worth to look again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from ringrift.events.routed_event import RouterEvent
from ringrift.process import process_scope

Listener = Callable[[], None]


class LoopBell:
    """Rung by whoever heard something; heard by the loop, if it runs in this process."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self.rung: Counter[str] = Counter()

    def ring(self, reason: str) -> None:
        self.rung[reason] += 1
        for listener in tuple(self._listeners):
            listener()

    def ring_for(self, event: RouterEvent) -> None:
        """As a reaction to an event that may change the plan."""
        self.ring(event.event_type)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call *listener* at each ring, in the thread that rings; return the way to end it."""
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return end


def get_bell() -> LoopBell:
    """Return the bell of this process."""
    return process_scope().get(LoopBell, LoopBell)
