"""Names and payloads against the catalog: one name per event, and whether a payload fits."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any

from ringrift.errors import ConfigError, PayloadError, UnknownEventTypeError
from ringrift.events.catalog.table import ALIASES, CATALOG, AliasSpec, EventSpec, Payload
from ringrift.process import process_scope
from ringrift.settings import Settings, read_settings

__all__ = [
    "CANONICAL_EVENT_NAMES",
    "CANONICAL_EVENT_TYPES",
    "EVENT_NAMING_GUIDELINES",
    "EventTypeValidator",
    "PayloadError",
    "UnknownEventTypeError",
    "UnknownEvents",
    "audit_event_usage",
    "delivered_as",
    "get_variants",
    "is_canonical",
    "normalize_event_type",
    "resolve",
    "resolve_alias",
    "validate_event_names",
]


# One name per event: whatever spelling comes in, the canonical upper-case name goes out.
#
# Names, wire values and aliases in upper and lower case are found with one dictionary hit; any other case
# is folded once.


EVENT_NAMING_GUIDELINES = """\
Events are UPPER_SNAKE and say what has happened:
  *_STARTED      something begins
  *_COMPLETED    it ended, with a result
  *_FAILED       it ended without one
  a participle   a state was reached (MODEL_PROMOTED, NODE_RECOVERED)
*_COMPLETE is accepted for *_COMPLETED and the other way round; the catalog says which one is canonical.
Publish and subscribe with `DataEventType` where you can.
"""


def _spellings() -> dict[str, str]:
    table: dict[str, str] = {}
    for name, spec in CATALOG.items():
        for spelling in (spec.value.upper(), name):
            table[spelling] = table[spelling.lower()] = name
    for alias, target in ALIASES.items():
        table[alias] = table[alias.lower()] = target.canonical
    return table


CANONICAL_EVENT_NAMES: Mapping[str, str] = MappingProxyType(_spellings())
CANONICAL_EVENT_TYPES: frozenset[str] = frozenset(CATALOG) | {spec.value for spec in CATALOG.values()}

_RESOLVED: dict[Any, tuple[str, EventSpec | None]] = {
    spelling: (name, CATALOG[name]) for spelling, name in CANONICAL_EVENT_NAMES.items()
}
_LOSSY: dict[Any, AliasSpec] = {
    spelling: spec for alias, spec in ALIASES.items() if spec.lossy for spelling in (alias, alias.lower())
}


def resolve(event_type: Any) -> tuple[str, EventSpec | None]:
    """Return the canonical name and what the catalog knows of it; None for an event it does not have."""
    try:
        # The members of our enums are strings, equal to their wire value: the same hit finds them.
        return _RESOLVED[event_type]
    except (KeyError, TypeError):
        return _resolve_rare(event_type)


def _resolve_rare(event_type: Any) -> tuple[str, EventSpec | None]:
    candidates = _texts(event_type)
    for text in candidates:
        if (found := _RESOLVED.get(text.upper())) is not None:
            return found
    return candidates[0], None


def _texts(event_type: Any) -> tuple[str, ...]:
    """The texts under which an event type may be known, the preferred one first."""
    value = getattr(event_type, "value", event_type)
    texts = [value] if isinstance(value, str) else []
    if isinstance(event_type, Enum):
        texts.append(event_type.name)
    # str() of a str enum member would be its value, of a plain one "Class.MEMBER"; str.__str__ is exact.
    if texts:
        return tuple(str.__str__(text) for text in texts)
    try:
        return (str(event_type),)
    except (ValueError, RecursionError):  # a number of thousands of digits, a table within itself
        raise ConfigError(f"a {type(event_type).__name__} cannot be the type of an event") from None


def normalize_event_type(event_type: Any) -> str:
    """Return the canonical name of a string, an enum member or anything with a `value`."""
    return resolve(event_type)[0]


def resolve_alias(event_type: Any, payload: Payload) -> tuple[str, Payload]:
    """Replace an alias together with what it says beyond its name.

    `PROMOTION_COMPLETE` with `success` false is not a promotion but `PROMOTION_FAILED`;
    `CLUSTER_SYNC_COMPLETE` becomes `DATA_SYNC_COMPLETED` with `sync_type` "cluster". For every other
    name this is `normalize_event_type`, and the payload is the same object.
    """
    alias = _lossy(event_type)
    if alias is None:
        return normalize_event_type(event_type), payload
    if alias.when_failed and not _succeeded(payload):
        return alias.when_failed, payload
    missing = {key: value for key, value in alias.sets if payload.get(key) is None}
    return alias.canonical, {**payload, **missing} if missing else payload


def _lossy(event_type: Any) -> AliasSpec | None:
    try:
        if (alias := _LOSSY.get(event_type)) is not None or event_type in _RESOLVED:
            return alias
    except TypeError:  # unhashable, so it is known by its value at most
        pass
    found = (ALIASES.get(text.upper()) for text in _texts(event_type))
    return next((alias for alias in found if alias is not None and alias.lossy), None)


def _succeeded(payload: Payload) -> bool:
    """Silence means success: the alias itself says "complete"."""
    verdicts = [payload[key] for key in ("success", "promoted", "passed") if payload.get(key) is not None]
    return all(verdicts)


def delivered_as(event_type: Any) -> tuple[str, ...]:
    """Return every canonical name under which an event published as *event_type* may arrive."""
    for text in _texts(event_type):
        alias = ALIASES.get(text.upper())
        if alias is not None and alias.when_failed:
            return (alias.canonical, alias.when_failed)
    return (normalize_event_type(event_type),)


def is_canonical(event_type: str) -> bool:
    """Whether this is exactly a canonical name."""
    return event_type in CATALOG


def get_variants(canonical: str) -> list[str]:
    """Return every spelling that leads to *canonical*, itself included, sorted."""
    return sorted(spelling for spelling, name in CANONICAL_EVENT_NAMES.items() if name == canonical)


def validate_event_names() -> list[str]:
    """Return what is wrong with the tables themselves; empty when they agree."""
    problems = [f"{name} is not UPPER_SNAKE" for name in CATALOG if name != name.upper() or " " in name]
    problems += [
        f"{spelling} leads to {name}, which is not canonical"
        for spelling, name in CANONICAL_EVENT_NAMES.items()
        if name not in CATALOG
    ]
    problems += [f"{name} is shadowed" for name in CATALOG if CANONICAL_EVENT_NAMES[name] != name]
    return problems


def audit_event_usage(events: Iterable[Any]) -> dict[str, Any]:
    """Summarize which spellings were used, for the people who write them."""
    used = Counter(_texts(event)[0] for event in events)
    by_canonical: Counter[str] = Counter()
    variants: dict[str, str] = {}
    for text, count in used.items():
        name = normalize_event_type(text)
        by_canonical[name] += count
        if name != text:
            variants[text] = name
    total = used.total()
    non_canonical_count = sum(used[text] for text in variants)
    return {
        "total_events": total,
        "unique_event_types": len(used),
        "canonical_types": sorted(name for name in by_canonical if is_canonical(name)),
        "non_canonical_variants": variants,
        "non_canonical_count": non_canonical_count,
        "normalization_rate": non_canonical_count / total if total else 0.0,
        "usage_by_canonical": dict(by_canonical),
        "recommendations": [f"use {name} instead of {text}" for text, name in sorted(variants.items())],
    }


# Is this an event, and does its payload fit? Strict mode refuses; otherwise it is said once and counted.
#
# A name that the catalog does not have is compared with the names it has only the first time it is seen, so
# that a stray publisher costs a dictionary lookup and not a search.


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
        if strict is None:
            strict = process_scope().get(Settings, read_settings).event_validation_strict
        self.strict = strict

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
