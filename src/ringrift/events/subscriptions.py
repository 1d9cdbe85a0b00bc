"""Who wants which events: the table of subscriptions, ready for dispatch."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

from ringrift.errors import storable_text
from ringrift.events.routed_event import EventSource, RouterEvent

_NAME_CHARS_MAX = 400

Callback = Callable[[RouterEvent], Any]


@dataclass(slots=True, eq=False)
class Delivery:
    """One event on its way to one busy subscription.

    Its publisher waits for *turn*, or has left it to the router (*context* is set) and goes on.
    """

    event: RouterEvent
    subscription: Subscription
    turn: asyncio.Future[None] | None = None
    context: Context | None = None
    begun: bool = False  # by the router, in a task of its own


@dataclass(slots=True, eq=False)
class Subscription:
    """One registration of a callback; runs one event at a time, in order."""

    name: str
    event_types: tuple[str, ...] | None  # None: every event
    callback: Callback
    timeout_s: float | None = None  # None: the router's
    bus: EventSource = EventSource.ROUTER
    persist: bool = False
    crosses: bool = True  # may hear of events of other processes
    active: bool = True
    running: bool = False
    stuck: str = ""  # why the last handler had to be left; "" once one has ended well
    waiting_in: RouterEvent | None = None  # the event whose handler has not returned at its first step
    mailbox: deque[Delivery] = field(default_factory=deque)

    def wants(self, event_type: str) -> bool:
        return self.event_types is None or event_type in self.event_types

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "event_types": None if self.event_types is None else list(self.event_types),
            "bus": self.bus.value,
            "timeout": self.timeout_s,
            "persist": self.persist,
            "queued": len(self.mailbox),
            "stuck": self.stuck,
        }


class SubscriptionHandle:
    """Ends its subscription when called; a second call changes nothing."""

    __slots__ = ("_end", "subscription")

    def __init__(self, subscription: Subscription, end: Callable[[Subscription], bool]) -> None:
        self.subscription, self._end = subscription, end

    def __call__(self) -> bool:
        return self._end(self.subscription)

    def cancel(self) -> bool:
        return self._end(self.subscription)

    @property
    def name(self) -> str:
        return self.subscription.name

    @property
    def active(self) -> bool:
        return self.subscription.active


class SubscriptionTable:
    """All subscriptions in order of registration. The same callback may stand in it several times."""

    def __init__(self) -> None:
        self._all: list[Subscription] = []
        self._targets: dict[str, tuple[Subscription, ...]] = {}
        self._crossing: tuple[Subscription, ...] | None = None

    def __iter__(self) -> Iterator[Subscription]:
        return iter(tuple(self._all))

    def __len__(self) -> int:
        return len(self._all)

    def crossing(self) -> tuple[Subscription, ...]:
        """Those who may hear of events of other processes; the same object until one joins or leaves."""
        if self._crossing is None:
            self._crossing = tuple(item for item in self._all if item.crosses)
        return self._crossing

    @property
    def global_count(self) -> int:
        return sum(item.event_types is None for item in self._all)

    def targets(self, event_type: str) -> tuple[Subscription, ...]:
        """Global subscriptions first, then those of the type, each in order of registration."""
        found = self._targets.get(event_type)
        if found is None:
            every = [item for item in self._all if item.event_types is None]
            typed = [item for item in self._all if item.event_types and event_type in item.event_types]
            found = tuple(every + typed)
            if len(self._targets) >= 10_000:  # invented names must not fill the memory
                self._targets.clear()
            self._targets[event_type] = found
        return found

    def add(self, subscription: Subscription) -> None:
        self._all.append(subscription)
        self._targets.clear()
        self._crossing = None

    def remove(self, subscription: Subscription) -> bool:
        if subscription not in self._all:
            return False
        subscription.active = False
        self._all.remove(subscription)
        self._targets.clear()
        self._crossing = None
        return True

    def find(self, event_types: tuple[str, ...] | None, callback: Callback) -> Subscription | None:
        """Return the oldest registration of *callback* for these types."""
        for item in self._all:
            if item.callback == callback and item.event_types == event_types:
                return item
        return None

    def named(self, name: str) -> Subscription | None:
        return next((item for item in self._all if item.name == name), None)

    def asking_for(self, event_types: Sequence[str]) -> list[Subscription]:
        """Those who asked for one of these very types; each once, in order of registration."""
        return [
            item
            for item in self._all
            if item.event_types and not set(event_types).isdisjoint(item.event_types)
        ]

    def describe(self, event_types: Sequence[str] | None) -> list[dict[str, Any]]:
        """Describe those who would get one of these events (None: all), global ones first."""
        if event_types is None:
            return [item.describe() for item in self._all]
        every = [item for item in self._all if item.event_types is None]
        return [item.describe() for item in every + self.asking_for(event_types)]

    def by_type(self) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for item in self._all:
            counts.update(item.event_types or ())
        return dict(counts)

    def free_name(self, wanted: str) -> str:
        """Return *wanted*, numbered if it is taken, so that a restart finds the same names again."""
        taken = {item.name for item in self._all}
        number = 1
        name = wanted
        while name in taken:
            number += 1
            name = f"{wanted}#{number}"
        return name


def callback_name(callback: Callable[..., Any]) -> str:
    """Name a callback by where it is written, the same in every run."""
    function = getattr(callback, "func", callback)  # functools.partial
    function = getattr(function, "__wrapped__", function)
    qualname = getattr(function, "__qualname__", type(function).__qualname__)
    module = getattr(function, "__module__", None) or type(function).__module__
    name = f"{module}.{qualname}"
    # A name is stored with the position; of a very long one the two ends tell it from others.
    return storable_text(name, chars_max=_NAME_CHARS_MAX)
