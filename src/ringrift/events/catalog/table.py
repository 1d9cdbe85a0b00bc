"""Reads the tables that lie beside this module. A row that does not fit is a `ConfigError` at import."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from ringrift.capabilities import CAPABILITIES
from ringrift.errors import ConfigError
from ringrift.events.catalog.spec import AliasSpec, EventSpec, FieldSpec

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
