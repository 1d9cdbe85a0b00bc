"""Who wants which events, how a published name leads to them, and what was published lately."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import structlog

from ringrift.engine.arguments import check_event_type, shown
from ringrift.errors import ConfigError, storable_text
from ringrift.events.catalog.names import EventTypeValidator, resolve, resolve_alias
from ringrift.events.catalog.table import ALIASES, EventSpec
from ringrift.events.event import Delivery, EventSource, RouterEvent

# The table of subscriptions, ready for dispatch.


_NAME_CHARS_MAX = 400

Callback = Callable[[RouterEvent], Any]


@dataclass(slots=True, eq=False)
class MailboxPlace:
    """The place of a delivery in the mailbox of a busy subscription.

    Its publisher waits for *turn*, or has left it to the router (*context* is set) and goes on. What a
    publisher takes in several mailboxes is one place, with the subscription it waits at.
    """

    delivery: Delivery
    subscription: Subscription
    turn: asyncio.Future[None] | None = None
    context: Context | None = None
    begun: bool = False  # by the router, in a task of its own

    def has_turn(self, subscription: Subscription) -> bool:
        """Whether its publisher was told to go on at *subscription*."""
        turn = self.turn
        return self.subscription is subscription and turn is not None and turn.done() and not turn.cancelled()


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
    waiting_in: Delivery | None = None  # whose handler has not returned at its first step
    expires_s: float = 0.0  # when the time of that handler is over, by the loop's clock
    mailbox: deque[MailboxPlace] = field(default_factory=deque)

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
    """All subscriptions in order of registration. The same callback may stand in it several times.

    Any thread may change it while the loop of the router reads it: a change replaces what a reader holds.
    """

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._all: tuple[Subscription, ...] = ()
        self._targets: dict[str, tuple[Subscription, ...]] = {}
        self._crossing: tuple[tuple[Subscription, ...], tuple[Subscription, ...]] = (), ()  # of whom, who

    def __iter__(self) -> Iterator[Subscription]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def crossing(self) -> tuple[Subscription, ...]:
        """Those who may hear of events of other processes; the same object until one joins or leaves."""
        everyone, crossing = self._all, self._crossing
        if crossing[0] is not everyone:
            self._crossing = crossing = everyone, tuple(item for item in everyone if item.crosses)
        return crossing[1]

    @property
    def global_count(self) -> int:
        return sum(item.event_types is None for item in self._all)

    def targets(self, event_type: str) -> tuple[Subscription, ...]:
        """Global subscriptions first, then those of the type, each in order of registration."""
        known = self._targets  # first: what is found in an older table must not be kept for a newer one
        found = known.get(event_type)
        if found is None:
            every = [item for item in self._all if item.event_types is None]
            typed = [item for item in self._all if item.event_types and event_type in item.event_types]
            found = tuple(every + typed)
            if len(known) >= 10_000:  # invented names must not fill the memory
                known.clear()
            known[event_type] = found
        return found

    def add(self, subscription: Subscription) -> None:
        with self._changing:
            # Another thread may have taken the name since it was found free.
            subscription.name = self.free_name(subscription.name)
            self._replace((*self._all, subscription))

    def remove(self, subscription: Subscription) -> bool:
        with self._changing:
            if subscription not in self._all:
                return False
            # For deliveries that are in its mailbox: they look at this before they run the callback.
            subscription.active = False
            self._replace(tuple(item for item in self._all if item is not subscription))
            return True

    def _replace(self, subscriptions: tuple[Subscription, ...]) -> None:
        # Subscriptions change rarely: the lists by type are made anew when they are next asked for.
        self._all = subscriptions
        self._targets = {}

    def find(self, event_types: tuple[str, ...] | None, callback: Callback) -> Subscription | None:
        """Return the oldest registration of *callback* for these types."""
        for item in self._all:
            # Equal and not identical: each access to a bound method makes another object.
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


# From the name a publisher used to what the router needs to know, looked up once per name.


log = structlog.get_logger()

_NAMES_MAX = 10_000  # spellings kept; invented names must not fill the memory
_PROBLEMS_MAX = 1_000  # payload problems remembered, so that each is logged once


def check_parts(payload: Any, source: Any) -> None:
    """Raises `ConfigError` for a part that no other process could read: it would be skipped there."""
    if payload is not None and not isinstance(payload, Mapping):
        raise ConfigError(f"the payload of an event is {shown(payload)}; it must be a table of fields")
    if source is not None and not isinstance(source, str):
        raise ConfigError(f"the source of an event is {shown(source)}; it must be a text")


class Route:
    """One event type, shared by all its spellings."""

    __slots__ = ("count", "crosses", "name", "reached", "received_s", "sent_s", "spec")

    def __init__(self, name: str, spec: EventSpec | None) -> None:
        self.name, self.spec = name, spec
        # The catalog decides; an event it does not have crosses unless its publisher says no.
        self.crosses = spec is None or spec.crosses
        self.count = 0
        self.sent_s: float | None = None  # newest of this process
        self.reached: Sequence[Subscription] = ()  # whom that one went to
        self.received_s: float | None = None  # newest that came from another one


class EventRoutes:
    """Names, payload rules and counts of everything that was published."""

    def __init__(self, *, strict: bool) -> None:
        self._validator = EventTypeValidator(strict=strict)
        self._by_name: dict[str, Route] = {}
        self._by_spelling: dict[Any, Route] = {}
        self._problems: set[tuple[str, str]] = set()
        self.unknown_count = 0
        self.payload_problem_count = 0

    def find(self, spelling: Any, payload: dict[str, Any]) -> tuple[Route, dict[str, Any]]:
        """Return the route and the checked canonical payload. Raises in strict mode."""
        try:
            route = self._by_spelling[spelling]
        except (KeyError, TypeError):
            route, payload = self._look_up(spelling, payload)
        spec = route.spec
        if spec is None:
            self._note_unknown(route.name)
            return route, payload
        payload = spec.canonical_payload(payload)
        if problems := spec.problems(payload):
            self._validator.check_payload(spec, payload)
            self._note_problems(spec.name, problems)
        return route, payload

    def named(self, name: str, spec: EventSpec | None) -> Route:
        route = self._by_name.get(name)
        if route is None:
            # The names of the catalog are few and stay; an invented one is found anew when it comes again.
            if len(self._by_name) >= _NAMES_MAX:
                self._by_name = {key: kept for key, kept in self._by_name.items() if kept.spec is not None}
                self._by_spelling.clear()
            route = self._by_name[name] = Route(name, spec)
        return route

    def counts(self) -> dict[str, int]:
        return {name: route.count for name, route in list(self._by_name.items()) if route.count}

    def of_catalog(self) -> list[Route]:
        """The events of the catalog that were sent or came."""
        return [route for route in list(self._by_name.values()) if route.count and route.spec is not None]

    def clear(self) -> None:
        self._by_name.clear()
        self._by_spelling.clear()

    def _look_up(self, spelling: Any, payload: dict[str, Any]) -> tuple[Route, dict[str, Any]]:
        name, spec = resolve(spelling)
        if spec is None:
            check_event_type(name if _is_name(spelling) else spelling)
        alias = ALIASES.get(str(getattr(spelling, "value", spelling)).upper())
        if alias is not None and alias.lossy:
            # The payload decides what this alias means, so it is asked each time.
            name, payload = resolve_alias(spelling, payload)
            return self.named(name, resolve(name)[1]), payload
        route = self.named(name, spec)
        if isinstance(spelling, str):
            if len(self._by_spelling) >= _NAMES_MAX:
                self._by_spelling.clear()
            self._by_spelling[spelling] = route
        return route, payload

    def _note_unknown(self, name: str) -> None:
        self.unknown_count += 1
        if self._validator.refuse_unknown(name):
            log.warning("events.unknown_type", event_type=name)

    def _note_problems(self, name: str, problems: Any) -> None:
        self.payload_problem_count += 1
        for problem in problems:
            key = (name, problem.split(" ", 1)[0])  # by field: the values in the text vary
            if key not in self._problems and len(self._problems) < _PROBLEMS_MAX:
                self._problems.add(key)
                log.warning("events.payload_problem", event_type=name, problem=problem)


def _is_name(spelling: Any) -> bool:
    """Whether this is text, or a member of an enum whose value is; anything else names no event."""
    return isinstance(getattr(spelling, "value", spelling), str)


# What was published lately, so that the same event is not handled twice.


class SeenEvents:
    """Ids (and, if wanted, contents) of the last events; the oldest go first."""

    def __init__(self, *, events_max: int, ttl_s: float, by_content: bool) -> None:
        self.events_max, self.ttl_s, self.by_content = events_max, ttl_s, by_content
        self.duplicates = 0
        self.content_duplicates = 0
        self._ids: dict[str, float] = {}
        self._contents: dict[str, float] = {}

    def note(self, event_id: str, now_s: float) -> None:
        """Remember an id that is new by construction."""
        ids = self._ids
        ids[event_id] = now_s
        if len(ids) > self.events_max:
            self._drop_oldest(ids)

    def is_duplicate(self, event: RouterEvent, now_s: float) -> bool:
        """Remember *event*; True if its id was seen, or its content when that is wanted.

        A publisher may repeat the same content on purpose, so content is never compared for events
        published directly at the router.
        """
        if self._seen(self._ids, event.event_id, now_s):
            self.duplicates += 1
            return True
        if not self.by_content or event.origin is EventSource.ROUTER:
            return False
        if self._seen(self._contents, event.content_hash, now_s):
            self.content_duplicates += 1
            return True
        return False

    def forget(self, event: RouterEvent) -> None:
        self._ids.pop(event.event_id, None)
        if self.by_content:
            self._contents.pop(event.content_hash, None)

    def clear(self) -> None:
        self._ids.clear()
        self._contents.clear()

    def stats(self) -> dict[str, Any]:
        return {
            "duplicates_prevented": self.duplicates,
            "content_duplicates_prevented": self.content_duplicates,
            "total_duplicates_prevented": self.duplicates + self.content_duplicates,
            "seen_events_count": len(self._ids),
            "seen_content_hashes_count": len(self._contents),
            "max_seen_events": self.events_max,
            "dedup_ttl_seconds": self.ttl_s,
        }

    def _seen(self, table: dict[str, float], key: str, now_s: float) -> bool:
        known_s = table.get(key)
        if known_s is not None and now_s - known_s < self.ttl_s:
            return True
        # Out and in again: `_drop_oldest` relies on the order of time.
        table.pop(key, None)
        table[key] = now_s
        if len(table) > self.events_max:
            self._drop_oldest(table)
        return False

    def _drop_oldest(self, table: dict[str, float]) -> None:
        # A tenth at a time: taking the first key of a dictionary again and again gets slower each time.
        for key in list(islice(table, max(1, self.events_max // 10))):
            del table[key]
