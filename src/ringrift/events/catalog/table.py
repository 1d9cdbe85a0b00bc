"""The one list of events: names, wire values, aliases, payloads, severity, who sends and who hears.

The enum, the typed emitters, normalization and the wiring audit derive from it. To change an event, change
the tables beside this file and run `python scripts/generate_catalog.py`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any, TypeAlias

from ringrift.capabilities import CAPABILITIES
from ringrift.errors import ConfigError

__all__ = ["ALIASES", "CATALOG", "COMPONENTS", "SEVERITIES", "AliasSpec", "EventSpec", "FieldSpec"]


# What the catalog says about one event, compiled so that a publish can afford to ask.
#
# Payload rules are turned into sets of exact types once, when the catalog is read: a well-formed payload is
# accepted without building anything, and only a wrong one pays for its message.


ANY_TYPE = "any"

# An int is a fine float; a bool is neither a number nor a text.
_EXACT_TYPES: Mapping[str, frozenset[type]] = {
    "str": frozenset({str}),
    "int": frozenset({int}),
    "float": frozenset({float, int}),
    "bool": frozenset({bool}),
    "list": frozenset({list, tuple}),
    "dict": frozenset({dict}),
}
_BASE_TYPES: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "list": (list, tuple),
    "dict": (Mapping,),
}

Payload: TypeAlias = "dict[str, Any]"


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field of a payload. `type` is written as in Python (`list[str]`), or `any`."""

    name: str
    type: str
    required: bool

    @property
    def container(self) -> str:
        """The type without its parameters."""
        return self.type.partition("[")[0]


@dataclass(frozen=True, slots=True)
class EventSpec:
    """One event: its names, its payload, and who is meant to send and to hear it.

    A `retried` event is one that the loop cannot do without: its emitter tries again when the log is away.
    """

    name: str
    value: str
    category: str
    severity: str
    crosses: bool
    high_impact: bool
    retried: bool
    fields: tuple[FieldSpec, ...]
    emitted_by: tuple[str, ...]
    emitted_when: str
    consumed_by: tuple[str, ...]
    note: str
    field_aliases: Mapping[str, str]

    _watched: frozenset[str] = field(init=False, repr=False, compare=False)
    _required: frozenset[str] = field(init=False, repr=False, compare=False)
    _exact: Mapping[str, frozenset[type]] = field(init=False, repr=False, compare=False)
    _builds_config_key: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        exact = {
            item.name: _EXACT_TYPES[item.container] | (frozenset() if item.required else {NoneType})
            for item in self.fields
            if item.type != ANY_TYPE
        }
        builds = any(item.name == "config_key" for item in self.fields)
        watched = frozenset(self.field_aliases) | ({"board_type"} if builds else frozenset())
        object.__setattr__(self, "_exact", exact)
        object.__setattr__(self, "_required", frozenset(f.name for f in self.fields if f.required))
        object.__setattr__(self, "_builds_config_key", builds)
        object.__setattr__(self, "_watched", watched)

    def canonical_payload(self, payload: Payload) -> Payload:
        """Return *payload* with the canonical field names added; the same object if none is missing."""
        if self._watched.isdisjoint(payload):
            return payload
        added = {
            name: payload[alias]
            for alias, name in self.field_aliases.items()
            if payload.get(alias) is not None and payload.get(name) is None
        }
        if self._builds_config_key and payload.get("config_key") is None and "config_key" not in added:
            board, players = payload.get("board_type"), payload.get("num_players")
            if board and players:
                added["config_key"] = f"{board}_{players}p"
        return {**payload, **added} if added else payload

    def problems(self, payload: Payload) -> Sequence[str]:
        """Say what is wrong with a canonical *payload*; empty when nothing is."""
        exact = self._exact
        for name, value in payload.items():
            allowed = exact.get(name)
            if allowed is not None and type(value) not in allowed:
                return self._explain(payload)
        if self._required <= payload.keys():
            return ()
        return self._explain(payload)

    def _explain(self, payload: Payload) -> Sequence[str]:
        required = (item.name for item in self.fields if item.required)
        return (*self.missing(payload, required), *self.wrong_types(payload))

    def missing(self, payload: Payload, names: Iterable[str]) -> tuple[str, ...]:
        """Say which of the fields *names* are absent, or None where a value is needed."""
        wanted = frozenset(names)
        return tuple(
            f"{item.name} is {'None' if item.name in payload else 'missing'} ({item.type} expected)"
            for item in self.fields
            if item.name in wanted and not _is_given(item, payload)
        )

    def wrong_types(self, payload: Payload) -> tuple[str, ...]:
        """Say which of the fields that are given have another type than the catalog's."""
        return tuple(
            f"{item.name} is {value!r:.60} of type {type(value).__name__} ({item.type} expected)"
            for item in self.fields
            if (value := payload.get(item.name)) is not None and not _accepts(item, value)
        )


def _is_given(item: FieldSpec, payload: Payload) -> bool:
    return payload.get(item.name) is not None or (item.type == ANY_TYPE and item.name in payload)


def _accepts(item: FieldSpec, value: object) -> bool:
    if item.type == ANY_TYPE:
        return True
    if isinstance(value, bool):
        return item.type == "bool"
    return isinstance(value, _BASE_TYPES[item.container])


@dataclass(frozen=True, slots=True)
class AliasSpec:
    """Another name for an event. One that also says more than the name does carries that along."""

    alias: str
    canonical: str
    kind: str
    sets: tuple[tuple[str, str], ...]
    when_failed: str
    note: str

    @property
    def lossy(self) -> bool:
        """Whether the payload decides, or changes, when the alias is replaced."""
        return bool(self.sets or self.when_failed)


# Reading the tables that lie beside this file. A row that does not fit is a `ConfigError` at import.


SEVERITIES = ("debug", "info", "warning", "error", "critical")
_EVERYWHERE = "*"


def read_rows(file_name: str) -> Iterator[dict[str, str]]:
    """Read one of the tables beside this module."""
    text = Path(__file__).with_name(file_name).read_text(encoding="utf-8")
    yield from csv.DictReader(text.splitlines(), strict=True)


def split_names(cell: str) -> tuple[str, ...]:
    """Split a cell that holds a list."""
    return tuple(cell.split(";")) if cell else ()


def _fields(cell: str) -> tuple[FieldSpec, ...]:
    parsed = []
    for text in split_names(cell):
        name, _, kind = text.partition(":")
        parsed.append(FieldSpec(name, kind.removesuffix("?"), not kind.endswith("?")))
    return tuple(parsed)


def load_components() -> Mapping[str, str]:
    """Component name to the capability that it is part of."""
    components = {row["component"]: row["capability"] for row in read_rows("components.csv")}
    if unknown := sorted(set(components.values()) - CAPABILITIES.keys()):
        raise ConfigError(f"the component table names the unknown capability {unknown[0]!r}")
    return MappingProxyType(components)


def load_catalog() -> Mapping[str, EventSpec]:
    """Canonical name to event."""
    aliases = [(row["alias"], row["field"], row["applies_to"]) for row in read_rows("payload_aliases.csv")]
    catalog: dict[str, EventSpec] = {}
    for row in read_rows("events.csv"):
        name, fields = row["name"], _fields(row["fields"])
        if name in catalog or row["severity"] not in SEVERITIES:
            raise ConfigError(f"the event catalog has a wrong or second row for {name}")
        own = {item.name for item in fields}
        scopes = {_EVERYWHERE, row["category"], name}
        catalog[name] = EventSpec(
            name=name,
            value=row["value"],
            category=row["category"],
            severity=row["severity"],
            crosses=row["crosses"] == "yes",
            high_impact=row["impact"] == "high",
            retried=row["retried"] == "yes",
            fields=fields,
            emitted_by=split_names(row["emitted_by"]),
            emitted_when=row["emitted_when"],
            consumed_by=split_names(row["consumed_by"]),
            note=row["note"],
            field_aliases={
                alias: target
                for alias, target, scope in aliases
                # An alias that is itself a field of this event means that field.
                if target in own and alias not in own and scope in scopes
            },
        )
    return MappingProxyType(catalog)


def load_aliases(catalog: Mapping[str, EventSpec]) -> Mapping[str, AliasSpec]:
    """Upper-case alias to what it stands for."""
    aliases: dict[str, AliasSpec] = {}
    for row in read_rows("aliases.csv"):
        alias = row["alias"]
        sets = tuple((part.partition("=")[0], part.partition("=")[2]) for part in split_names(row["sets"]))
        spec = AliasSpec(alias, row["canonical"], row["kind"], sets, row["when_failed"], row["note"])
        targets = {spec.canonical, spec.when_failed} - {""}
        if alias in catalog or alias in aliases or not targets <= catalog.keys():
            raise ConfigError(f"the alias {alias} is a name of its own, is listed twice, or leads nowhere")
        aliases[alias] = spec
    return MappingProxyType(aliases)


CATALOG: Mapping[str, EventSpec] = load_catalog()
ALIASES: Mapping[str, AliasSpec] = load_aliases(CATALOG)
COMPONENTS: Mapping[str, str] = load_components()
