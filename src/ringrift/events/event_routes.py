"""From the name a publisher used to what the router needs to know, looked up once per name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from ringrift.engine.arguments import check_event_type, shown
from ringrift.errors import ConfigError
from ringrift.events.catalog import ALIASES, EventSpec
from ringrift.events.normalization import resolve, resolve_alias
from ringrift.events.subscriptions import Subscription
from ringrift.events.validation import EventTypeValidator

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
