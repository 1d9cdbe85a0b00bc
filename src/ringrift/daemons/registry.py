"""One row per daemon type: what it is a face of, what it needs, how it is run and restarted.

`table.csv` is the only list of dependencies, profiles and flags. Whether a type is available follows from
its capability and from nowhere else.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from importlib.resources import files
from types import NoneType
from typing import Any

from ringrift.capabilities import capability
from ringrift.daemons.types import CRITICAL_DAEMONS, DAEMON_STARTUP_ORDER, DaemonCategory, DaemonType
from ringrift.errors import ConfigError

__all__ = ["DaemonSpec", "Isolation", "Registry", "product_registry"]


class Isolation(StrEnum):
    """Where a daemon runs."""

    INLINE = "inline"  # a task of the control loop: event handlers and timers
    PROCESS = "process"  # a process of its own: anything that could hold the interpreter


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSpec:
    """One row of the registry."""

    daemon_type: DaemonType
    category: DaemonCategory = DaemonCategory.MISC
    capability: str = ""  # empty: a daemon of the user's own, always available
    settings: Mapping[str, str] = field(default_factory=dict)
    entry_point: str = ""  # "module:factory"
    depends_on: tuple[DaemonType, ...] = ()
    soft_depends_on: tuple[DaemonType, ...] = ()
    startup_mode: str = "degraded"  # "strict" refuses to start without the soft dependencies
    profiles: frozenset[str] = frozenset()
    max_restarts: int | None = None  # None: the manager's default
    auto_restart: bool = True
    health_check_interval: float | None = None
    isolation: Isolation = Isolation.INLINE
    leader_only: bool = False
    pausable: bool = False  # pauses under backpressure and on a full disk
    split_brain_stop: bool = False  # must not act while two leaders may exist
    restarts_with_dependency: bool = False
    deprecated_for: DaemonType | None = None
    about: str = ""

    def __post_init__(self) -> None:
        """Refuse a value of another kind here: every later status call would trip over it."""
        for item in fields(self):
            value, kind = getattr(self, item.name), _KINDS[item.type]
            is_wrong_bool = isinstance(value, bool) and bool not in kind
            if not isinstance(value, kind) or is_wrong_bool:
                raise ConfigError(f"{item.name} is {value!r}; it must be {_said(kind)}")
        for name in ("depends_on", "soft_depends_on"):
            for need in getattr(self, name):
                if not isinstance(need, DaemonType):
                    raise ConfigError(f"{name} of {self.daemon_type} names {need!r}, which is no daemon type")
        if self.startup_mode not in STARTUP_MODES:
            raise ConfigError(
                f"startup_mode is {self.startup_mode!r}; it must be one of: {', '.join(STARTUP_MODES)}"
            )
        if self.max_restarts is not None and self.max_restarts < 0:
            raise ConfigError(f"max_restarts is {self.max_restarts}; it must be 0 or more")

    @property
    def critical(self) -> bool:
        return self.daemon_type in CRITICAL_DAEMONS

    @property
    def unavailable_reason(self) -> str:
        """Why this type cannot run in this version; empty when it can."""
        if not self.capability:
            return ""
        reason = capability(self.capability).reason
        if not reason and not self.entry_point:
            return f"{self.capability} has no daemon for it"
        return reason

    @property
    def startup_position(self) -> int:
        """Its place in `DAEMON_STARTUP_ORDER`; -1 when it has none."""
        return _POSITIONS.get(self.daemon_type, -1)


STARTUP_MODES = ("degraded", "strict")
# What a field holds, by its annotation; the elements of tuples are looked at one by one.
_KINDS: Mapping[Any, tuple[type, ...]] = {
    "DaemonType": (DaemonType,),
    "DaemonType | None": (DaemonType, NoneType),
    "tuple[DaemonType, ...]": (tuple,),
    "DaemonCategory": (DaemonCategory,),
    "Isolation": (Isolation,),
    "Mapping[str, str]": (Mapping,),
    "frozenset[str]": (frozenset,),
    "str": (str,),
    "bool": (bool,),
    "int | None": (int, NoneType),
    "float | None": (int, float, NoneType),
}


def _said(kinds: tuple[type, ...]) -> str:
    return " or ".join("None" if kind is NoneType else kind.__name__ for kind in kinds)


_POSITIONS = {daemon_type: index for index, daemon_type in enumerate(DAEMON_STARTUP_ORDER)}
_FLAGS = frozenset({"leader_only", "pausable", "split_brain_stop", "restarts_with_dependency"})


class Registry:
    """All rows, by type."""

    def __init__(self, specs: Iterable[DaemonSpec]) -> None:
        self._specs: dict[DaemonType, DaemonSpec] = {}
        for spec in specs:
            if spec.daemon_type in self._specs:
                raise ConfigError(f"{spec.daemon_type} has two rows in the daemon registry")
            self._specs[spec.daemon_type] = spec

    def __contains__(self, daemon_type: object) -> bool:
        return daemon_type in self._specs

    def __iter__(self) -> Iterator[DaemonSpec]:
        return iter(self._specs.values())

    def __len__(self) -> int:
        return len(self._specs)

    def get(self, daemon_type: DaemonType) -> DaemonSpec | None:
        return self._specs.get(daemon_type)

    def __getitem__(self, daemon_type: DaemonType) -> DaemonSpec:
        try:
            return self._specs[daemon_type]
        except KeyError:
            raise ConfigError(f"the daemon registry has no row for {daemon_type}") from None

    def add(self, spec: DaemonSpec) -> None:
        """Add a row, or replace the row of its type."""
        self._specs[spec.daemon_type] = spec


def product_registry() -> Registry:
    """Return the rows of the product. `ConfigError` names the first row that cannot be read."""
    text = files("ringrift.daemons").joinpath("table.csv").read_text(encoding="utf-8")
    return Registry(_read_row(row) for row in csv.DictReader(text.splitlines()))


def _read_row(row: Mapping[str, str]) -> DaemonSpec:
    try:
        flags = frozenset(row["flags"].split())
        if unknown := flags - _FLAGS:
            raise ValueError(f"unknown flag {min(unknown)!r}")  # noqa: TRY301 - told with its row below
        return DaemonSpec(
            daemon_type=DaemonType(row["daemon"]),
            category=DaemonCategory(row["category"]),
            capability=row["capability"],
            settings=dict(_pair(text) for text in row["settings"].split(";") if text),
            entry_point=row["entry_point"],
            depends_on=_types(row["depends_on"]),
            soft_depends_on=_types(row["soft_depends_on"]),
            profiles=frozenset(row["profiles"].split()),
            max_restarts=int(row["max_restarts"]),
            isolation=Isolation(row["isolation"]),
            leader_only="leader_only" in flags,
            pausable="pausable" in flags,
            split_brain_stop="split_brain_stop" in flags,
            restarts_with_dependency="restarts_with_dependency" in flags,
            deprecated_for=DaemonType(row["deprecated_for"]) if row["deprecated_for"] else None,
            about=row["about"],
        )
    except (ValueError, KeyError) as error:
        raise ConfigError(f"the daemon registry's row {row.get('daemon')!r} is wrong: {error}") from None


def _types(text: str) -> tuple[DaemonType, ...]:
    return tuple(DaemonType(name) for name in text.split())


def _pair(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not (key and sign and value):
        raise ValueError(f"setting {text!r} is not key=value")
    return key, value
