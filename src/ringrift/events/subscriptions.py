"""Who wants which events, how a published name leads to them, and how a delivery to one of them can end."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import structlog

from ringrift.engine.arguments import check_event_type, shown
from ringrift.errors import ConfigError, described, storable_text
from ringrift.events.catalog.names import EventTypeValidator, resolve, resolve_alias
from ringrift.events.catalog.table import ALIASES, EventSpec
from ringrift.events.event import EventSource, RouterEvent

# The table of subscriptions, ready for dispatch.


_NAME_CHARS_MAX = 400

Callback = Callable[[RouterEvent], Any]


@dataclass(slots=True, eq=False)
class Delivery:
    """One event on its way to a busy subscription.

    Its publisher waits for *turn*, or has left it to the router (*context* is set) and goes on. The place
    that a publisher takes in several mailboxes is one of these, with the subscription it waits at.
    """

    event: RouterEvent
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
    waiting_in: RouterEvent | None = None  # the event whose handler has not returned at its first step
    expires_s: float = 0.0  # when the time of that handler is over, by the loop's clock
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


# From the name a publisher used to what the router needs to know, looked up once per name.


log = structlog.get_logger()

_NAMES_MAX = 10_000  # spellings kept; invented names must not fill the memory
_PROBLEMS_MAX = 1_000  # payload problems remembered, so that each is logged once


def check_parts(payload: Any, source: Any) -> None:
    """Raises `ConfigError` for a part that no other process could read: it would be skipped there."""
    # The type first: asking whether something is a mapping costs more than the rest of this.
    if payload is not None and type(payload) is not dict and not isinstance(payload, Mapping):
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
            if len(self._by_name) >= _NAMES_MAX:
                self._by_name = {key: kept for key, kept in self._by_name.items() if kept.spec is not None}
                self._by_spelling.clear()
            route = self._by_name[name] = Route(name, spec)
        return route

    def counts(self) -> dict[str, int]:
        return {name: route.count for name, route in self._by_name.items() if route.count}

    def of_catalog(self) -> list[Route]:
        """The events of the catalog that were sent or came."""
        return [route for route in self._by_name.values() if route.count and route.spec is not None]

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


# How a delivery can fail.


_PROGRAMMING_ERRORS = (NameError, AttributeError, TypeError)


class FailureKind(StrEnum):
    """How a delivery failed; the value is the source label of its dead letter."""

    RAISED = "EventRouter.async"
    RAISED_AT_ONCE = "EventRouter.sync"
    BUG = "EventRouter.programming_error"
    TIMEOUT = "EventRouter.async.timeout"
    CANCELLED = "EventRouter.cancelled"
    OVERFLOW = "EventRouter.overflow"
    UNACKNOWLEDGED = "CrossProcessEventQueue.unacknowledged"


@dataclass(frozen=True, slots=True)
class Failure:
    """One event that one subscription did not handle."""

    event: RouterEvent
    subscription: Subscription
    kind: FailureKind
    error: str
    cause: BaseException | None = None


def failure_of(
    event: RouterEvent, subscription: Subscription, error: BaseException, kind: FailureKind
) -> Failure:
    text = described(error)
    if isinstance(error, _PROGRAMMING_ERRORS):
        return Failure(event, subscription, FailureKind.BUG, f"BUG: {text}", error)
    return Failure(event, subscription, kind, text, error)


def overflow_of(event: RouterEvent, subscription: Subscription) -> Failure:
    waiting = len(subscription.mailbox)
    return Failure(event, subscription, FailureKind.OVERFLOW, f"mailbox full: {waiting} events wait")


# Where the end of a delivery is written down: handled, failed and kept, or given up.


class FailureReceiver(Protocol):
    """Takes failures in; *kept* is called with each that will not be lost."""

    async def report(self, failure: Failure, kept: Callable[[Failure], None]) -> None: ...

    def report_now(self, failure: Failure) -> bool:
        """As `report` without waiting; whether the failure is kept."""
        ...


class Outcomes:
    """Hands failures to *desk*; *handled* hears which event of the log a subscription is through with."""

    def __init__(
        self, desk: FailureReceiver, *, handled: Callable[[RouterEvent, Subscription], None]
    ) -> None:
        self._receiver, self.handled = desk, handled

    async def report_all(self, failures: Sequence[Failure]) -> None:
        for failure in failures:
            await self._receiver.report(failure, self._kept)

    def record_now(self, failures: Sequence[Failure]) -> None:
        """As `report_all`, for a task that is being cancelled and cannot wait any more."""
        for failure in failures:
            if self._receiver.report_now(failure):
                self._kept(failure)

    def record_cancelled(self, delivery: Delivery) -> None:
        """The router or its loop is ending. An event of the log comes again; any other would be lost."""
        if not delivery.event._seq:
            text = "cancelled with the router"
            failure = Failure(delivery.event, delivery.subscription, FailureKind.CANCELLED, text)
            self.record_now([failure])

    def _kept(self, failure: Failure) -> None:
        """The failure is kept: from now on its retry, and not the log, brings the event again."""
        if failure.event._seq:
            self.handled(failure.event, failure.subscription)
