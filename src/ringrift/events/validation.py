"""Is this an event, and does its payload fit? Strict mode refuses; otherwise it is said once and counted.

A name that the catalog does not have is compared with the names it has only the first time it is seen, so
that a stray publisher costs a dictionary lookup and not a search.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from ringrift.errors import PayloadError, UnknownEventTypeError
from ringrift.events.catalog import ALIASES, CATALOG, EventSpec
from ringrift.events.catalog.spec import Payload
from ringrift.events.normalization import normalize_event_type, resolve
from ringrift.process import process_scope
from ringrift.settings import get_settings

__all__ = [
    "EventTypeValidator",
    "PayloadError",
    "UnknownEventTypeError",
    "UnknownEvents",
    "get_event_validator",
    "validate_event_type",
]

_NAMES = (*CATALOG, *ALIASES)


class UnknownEvents:
    """The unknown names this process has seen, how often, and what they may have meant.

    Bounded: once full, a further name is counted under `OTHERS` and gets no suggestions.
    """

    OTHERS = "(others)"

    def __init__(self, *, names_max: int = 1000) -> None:
        self._names_max = names_max
        self._counts: dict[str, int] = {}
        self._suggestions: dict[str, tuple[str, ...]] = {}

    def note(self, name: str) -> bool:
        """Count *name*; True the first time, when somebody should be told."""
        known = self._counts.get(name)
        if known is not None:
            self._counts[name] = known + 1
            return False
        if len(self._counts) >= self._names_max:
            self._counts[self.OTHERS] = self._counts.get(self.OTHERS, 0) + 1
            return False
        self._counts[name] = 1
        return True

    def suggestions(self, name: str) -> tuple[str, ...]:
        """Return canonical names close to *name*."""
        found = self._suggestions.get(name)
        if found is None:
            if len(self._suggestions) >= self._names_max:
                return ()
            close = difflib.get_close_matches(name.upper(), _NAMES, n=3, cutoff=0.6)
            found = tuple(dict.fromkeys(normalize_event_type(match) for match in close))
            self._suggestions[name] = found
        return found

    def counts(self) -> dict[str, int]:
        return dict(self._counts)

    def clear(self) -> None:
        self._counts.clear()
        self._suggestions.clear()


def _unknown_events() -> UnknownEvents:
    return process_scope().get(UnknownEvents, UnknownEvents)


class EventTypeValidator:
    """Checks names and payloads against the catalog."""

    def __init__(self, strict: bool | None = None) -> None:  # noqa: FBT001 - as published
        self.strict = get_settings().event_validation_strict if strict is None else strict

    def validate(self, event_type: Any) -> tuple[bool, str]:
        """Say whether this is an event. Strict: raises `UnknownEventTypeError` if it is none."""
        name, spec = resolve(event_type)
        if spec is None:
            self.refuse_unknown(name)
            suggestions = _unknown_events().suggestions(name)
            hint = f"; did you mean {', '.join(suggestions)}?" if suggestions else ""
            return False, f"Unknown event type {name!r}{hint}"
        if event_type == name:
            return True, f"Valid canonical event type {name}"
        return True, f"Normalized {getattr(event_type, 'value', event_type)} to {name}"

    def refuse_unknown(self, name: str) -> bool:
        """Count an unknown *name*; True the first time. Strict: raises `UnknownEventTypeError`."""
        unknown = _unknown_events()
        first = unknown.note(name)
        if self.strict:
            raise UnknownEventTypeError(name, suggestions=unknown.suggestions(name))
        return first

    def check_payload(self, spec: EventSpec, payload: Payload) -> Sequence[str]:
        """Return what is wrong with a canonical payload. Strict: raises `PayloadError` for a wrong type.

        A missing field is told and counted only: the documents' own examples leave some out.
        """
        problems = spec.problems(payload)
        if problems and self.strict and spec.wrong_types(payload):
            raise PayloadError(spec.name, problems=tuple(problems))
        return problems

    def is_valid(self, event_type: Any) -> bool:
        """Whether the catalog has it. Never raises, never counts."""
        return resolve(event_type)[1] is not None

    @classmethod
    def get_unknown_events(cls) -> dict[str, int]:
        """Return the unknown names seen in this process, with their counts."""
        return _unknown_events().counts()

    @classmethod
    def reset_unknown_events(cls) -> None:
        _unknown_events().clear()


def get_event_validator() -> EventTypeValidator:
    """Return this process's validator; strictness is read from the settings when it is made."""
    return process_scope().get(EventTypeValidator, EventTypeValidator)


def validate_event_type(event_type: Any) -> tuple[bool, str]:
    """Say whether this is an event, with this process's validator."""
    return get_event_validator().validate(event_type)
