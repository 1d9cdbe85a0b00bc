"""The emitters: one for every spelling of every event, with the argument order that callers know.

An emitter asks its caller for less than the catalog when its known signature does: what the signature calls
optional may be left out, and the router's own validation has the last word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ringrift.events.catalog import ALIASES, CATALOG
from ringrift.events.catalog.spec import EventSpec, FieldSpec
from ringrift.events.catalog.table import read_rows, split_names

PREFIX = "emit_"
SYNC_SUFFIX = "_sync"
HERE = "@host"
JOB = "@job"

_CONFIG_PARTS = {"board_type": "str", "num_players": "int"}


@dataclass(frozen=True, slots=True)
class EmitterSpec:
    """One emitter: what it publishes, its arguments in order, and what it cannot do without."""

    name: str
    publishes: str
    event: EventSpec
    parameters: tuple[FieldSpec, ...]
    demands: frozenset[str]
    defaults: Mapping[str, str | bool]


def _parameter(event: EventSpec, text: str) -> FieldSpec:
    """The argument *text* (`name` or `name?`), typed by the field that it fills."""
    name = text.removesuffix("?")
    types = {item.name: item.type for item in event.fields} | _CONFIG_PARTS
    kind = types.get(name) or types.get(event.field_aliases.get(name, ""), "any")
    return FieldSpec(name, kind, not text.endswith("?"))


def _demands(event: EventSpec, parameters: tuple[FieldSpec, ...]) -> frozenset[str]:
    asked = {event.field_aliases.get(item.name, item.name) for item in parameters if item.required}
    if asked.issuperset(_CONFIG_PARTS):
        asked.add("config_key")
    return frozenset(item.name for item in event.fields if item.required and item.name in asked)


def _documented() -> dict[str, EmitterSpec]:
    table: dict[str, EmitterSpec] = {}
    for row in read_rows("emitters.csv"):
        publishes = row["publishes"]
        alias = ALIASES.get(publishes)
        event = CATALOG[alias.canonical if alias else publishes]
        parameters = tuple(_parameter(event, text) for text in split_names(row["parameters"]))
        pairs = (text.partition("=") for text in split_names(row["defaults"]))
        defaults: dict[str, str | bool] = {key: True if value == "true" else value for key, _, value in pairs}
        demands = _demands(event, parameters) - defaults.keys()
        table[row["emitter"]] = EmitterSpec(row["emitter"], publishes, event, parameters, demands, defaults)
    return table


def _plain(name: str, publishes: str, event: EventSpec) -> EmitterSpec:
    required = frozenset(item.name for item in event.fields if item.required)
    return EmitterSpec(name, publishes, event, event.fields, required, {})


def _table() -> dict[str, EmitterSpec]:
    table = _documented()
    for event in CATALOG.values():
        for spelling in (event.name.lower(), event.value):
            table.setdefault(spelling, _plain(spelling, event.name, event))
    for alias in ALIASES.values():
        spelling, event = alias.alias.lower(), CATALOG[alias.canonical]
        known = table[event.name.lower()]
        table.setdefault(
            spelling,
            EmitterSpec(spelling, alias.alias, event, known.parameters, known.demands, known.defaults),
        )
    return dict(sorted(table.items()))


EMITTERS: Mapping[str, EmitterSpec] = MappingProxyType(_table())
