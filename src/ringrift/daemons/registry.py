"""One row per daemon type: what it is a handle on, what it needs, how it is run and restarted.

`table.csv` is the only list of dependencies, profiles and flags. Whether a type is available follows from
its capability and from nowhere else.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from importlib.resources import files
from importlib.util import find_spec
from types import NoneType
from typing import Any

from ringrift.capabilities import CAPABILITIES, capability
from ringrift.daemons.types import CRITICAL_DAEMONS, DAEMON_STARTUP_ORDER, DaemonCategory, DaemonType
from ringrift.errors import ConfigError
from ringrift.status import CoordinatorStatus, HealthCheckResult

__all__ = [
    "FULL_PROFILE",
    "PROFILES",
    "DaemonSpec",
    "DependencyValidationError",
    "Isolation",
    "Registry",
    "check_registry_health",
    "describe_profiles",
    "find_cycle",
    "get_daemon_startup_position",
    "levels",
    "missing_runners",
    "product_registry",
    "profile_types",
    "startup_key",
    "validate_daemon_dependencies",
    "validate_dependency_graph",
    "validate_registry",
    "validate_registry_or_raise",
    "validate_startup_order_consistency",
    "validate_startup_order_or_raise",
    "with_dependencies",
]


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


# The dependency graph: who comes before whom, and what is wrong with it.


FULL_PROFILE = "full"
PROFILES = ("coordinator", "training_node", "ephemeral", "selfplay", "minimal", "standard", FULL_PROFILE)


class DependencyValidationError(ConfigError):
    """The daemons to start cannot be started in any order."""


def startup_key(spec: DaemonSpec) -> tuple[int, str]:
    """Sort key: the documented order first, then by name."""
    position = spec.startup_position
    return (position if position >= 0 else 10_000, spec.daemon_type.value)


def with_dependencies(registry: Registry, types: Iterable[DaemonType]) -> list[DaemonType]:
    """Return *types* and everything they need, in order of start."""
    wanted: set[DaemonType] = set()
    ahead = list(types)
    while ahead:
        daemon_type = ahead.pop()
        if daemon_type not in wanted:
            wanted.add(daemon_type)
            ahead.extend(registry[daemon_type].depends_on)
    return [daemon_type for level in levels(registry, wanted) for daemon_type in level]


def profile_types(registry: Registry, profile: str) -> list[DaemonType]:
    """Return the daemons of *profile*, closed over their dependencies, in order of start."""
    if profile not in PROFILES:
        raise ValueError(f"no profile is called {profile!r}; there are: {', '.join(PROFILES)}")
    if profile == FULL_PROFILE:
        members = [spec.daemon_type for spec in registry if spec.capability]
    else:
        members = [spec.daemon_type for spec in registry if profile in spec.profiles]
    return with_dependencies(registry, members)


def profile_learns(profile: str) -> bool:
    """Whether the loop is among the daemons of *profile*; yes for one that is not known."""
    if profile not in PROFILES:
        return True
    loops = {DaemonType.DATA_PIPELINE, DaemonType.CONTINUOUS_TRAINING_LOOP}
    return not loops.isdisjoint(profile_types(product_registry(), profile))


def levels(registry: Registry, types: Collection[DaemonType]) -> list[list[DaemonType]]:
    """Group *types* so that each group needs only earlier groups. A cycle ends up in the last group."""
    left = {daemon_type: _needs(registry, daemon_type, types) for daemon_type in types}
    grouped: list[list[DaemonType]] = []
    while left:
        ready = [daemon_type for daemon_type, needs in left.items() if not needs & left.keys()]
        group = ready or list(left)
        grouped.append(sorted(group, key=lambda t: startup_key(registry[t])))
        for daemon_type in group:
            del left[daemon_type]
    return grouped


def find_cycle(registry: Registry, types: Collection[DaemonType]) -> list[DaemonType]:
    """Return the members of one cycle among *types*, in order; empty when there is none."""
    done: set[DaemonType] = set()
    for root in types:
        path: list[DaemonType] = []
        stack = [(root, iter(sorted(_needs(registry, root, types))))]
        while stack:
            node, needs = stack[-1]
            if node not in path:
                path.append(node)
            step = next((need for need in needs if need not in done), None)
            if step is None:
                done.add(node)
                path.pop()
                stack.pop()
            elif step in path:
                return [*path[path.index(step) :], step]
            else:
                stack.append((step, iter(sorted(_needs(registry, step, types)))))
    return []


def find_cycle_through(registry: Registry, spec: DaemonSpec) -> list[DaemonType]:
    """Return the members of a cycle that *spec* would close as a row of *registry*; empty for none."""
    rows = Registry([spec, *(row for row in registry if row.daemon_type != spec.daemon_type)])
    cycle = find_cycle(rows, [row.daemon_type for row in rows])
    return cycle if spec.daemon_type in cycle else []


def validate_dependency_graph(
    registry: Registry, types: Collection[DaemonType], running: Collection[DaemonType] = ()
) -> None:
    """Raise `DependencyValidationError` if *types* cannot be started while *running* run."""
    for daemon_type in types:
        for need in registry[daemon_type].depends_on:
            if need == daemon_type:
                raise DependencyValidationError(f"{daemon_type} depends on itself")
            if need not in registry:
                raise DependencyValidationError(f"{daemon_type} depends on {need}, which is not registered")
            if need not in types and need not in running:
                raise DependencyValidationError(
                    f"{daemon_type} depends on {need}, which is neither listed nor running"
                )
    if cycle := find_cycle(registry, types):
        raise DependencyValidationError(f"daemons depend on each other: {' -> '.join(cycle)}")


def _needs(registry: Registry, daemon_type: DaemonType, among: Collection[DaemonType]) -> set[DaemonType]:
    spec = registry.get(daemon_type)
    return set() if spec is None else {need for need in spec.depends_on if need in among}


# Is the registry sound? Asked in the checks of every change, and by a manager when it is made.


def validate_registry(registry: Registry | None = None) -> list[str]:
    """Return what is wrong, one text each; empty when nothing is."""
    rows = product_registry() if registry is None else registry
    wrong = [f"{daemon_type} has no row" for daemon_type in DaemonType if daemon_type not in rows]
    for spec in rows:
        wrong.extend(_row_errors(rows, spec))
    return wrong


def validate_registry_or_raise(registry: Registry | None = None) -> None:
    """Raise `ValueError` with everything that is wrong."""
    if wrong := validate_registry(registry):
        raise ValueError("the daemon registry is wrong: " + "; ".join(wrong))


def validate_daemon_dependencies(
    daemon_type: DaemonType, running: Collection[DaemonType], registry: Registry | None = None
) -> tuple[bool, list[DaemonType]]:
    """Return whether all hard dependencies are among *running*, and those that are not."""
    rows = product_registry() if registry is None else registry
    missing = [need for need in rows[daemon_type].depends_on if need not in running]
    return not missing, missing


def get_daemon_startup_position(daemon_type: DaemonType) -> int:
    """Return the place in `DAEMON_STARTUP_ORDER`, or -1."""
    return DAEMON_STARTUP_ORDER.index(daemon_type) if daemon_type in DAEMON_STARTUP_ORDER else -1


def validate_startup_order_consistency(registry: Registry | None = None) -> tuple[bool, list[str]]:
    """Return whether no daemon is placed before one that it needs, and the violations."""
    rows = product_registry() if registry is None else registry
    wrong = [
        f"{daemon_type} is placed before {need}, which it needs"
        for position, daemon_type in enumerate(DAEMON_STARTUP_ORDER)
        for need in rows[daemon_type].depends_on
        if get_daemon_startup_position(need) > position
    ]
    return not wrong, wrong


def validate_startup_order_or_raise(registry: Registry | None = None) -> None:
    """Raise `ValueError` with the violations."""
    sound, wrong = validate_startup_order_consistency(registry)
    if not sound:
        raise ValueError("; ".join(wrong))


def missing_runners(registry: Registry) -> list[DaemonType]:
    """Return the available daemons whose module does not exist."""
    return [spec.daemon_type for spec in registry if spec.entry_point and not _module_exists(spec)]


def check_registry_health(registry: Registry | None = None) -> HealthCheckResult:
    """Return the registry's soundness as a health result."""
    rows = product_registry() if registry is None else registry
    errors = validate_registry(rows)
    runners = missing_runners(rows)
    cycle = find_cycle(rows, [spec.daemon_type for spec in rows])
    deprecated = [spec.daemon_type.value for spec in rows if spec.deprecated_for]
    details = {
        "total_daemons": len(rows),
        "categories": dict(Counter(spec.category.value for spec in rows)),
        "deprecated_count": len(deprecated),
        "deprecated_daemons": deprecated[:5],
        "validation_errors": errors[:5],
        "missing_runners": [daemon_type.value for daemon_type in runners[:5]],
        "cycle_issues": [" -> ".join(cycle)] if cycle else [],
    }
    if errors:
        return HealthCheckResult(False, CoordinatorStatus.ERROR, errors[0], details)
    if runners or cycle:
        return HealthCheckResult(True, CoordinatorStatus.DEGRADED, "some daemons cannot start", details)
    return HealthCheckResult(True, CoordinatorStatus.RUNNING, "", details)


def row_faults(spec: DaemonSpec) -> list[str]:
    """Return what is wrong with a row whatever the others are."""
    name, wrong = spec.daemon_type, []
    if name in spec.depends_on or name in spec.soft_depends_on:
        wrong.append(f"{name} depends on itself")
    if spec.capability and spec.capability not in CAPABILITIES:
        wrong.append(f"{name} names the capability {spec.capability!r}, which the plan does not have")
    unknown = sorted(map(str, spec.profiles - set(PROFILES)))
    return wrong + [f"{name} names the unknown profile {profile!r}" for profile in unknown]


def _row_errors(rows: Registry, spec: DaemonSpec) -> list[str]:
    name = spec.daemon_type
    wrong = [f"{name} depends on {need}, which has no row" for need in spec.depends_on if need not in rows]
    wrong += [
        f"{name} softly depends on {need}, which has no row"
        for need in spec.soft_depends_on
        if need not in rows
    ]
    wrong += row_faults(spec)
    built = spec.capability in CAPABILITIES and CAPABILITIES[spec.capability].built
    if built and not spec.entry_point:
        wrong.append(f"{name} has no entry point although {spec.capability} is built")
    if spec.entry_point and not spec.profiles and spec.deprecated_for is None:
        wrong.append(f"{name} is in no profile, so nothing would ever start it")
    if spec.deprecated_for is not None and spec.deprecated_for not in rows:
        wrong.append(f"{name} is deprecated for {spec.deprecated_for}, which has no row")
    return wrong


def _module_exists(spec: DaemonSpec) -> bool:
    module, sign, factory = spec.entry_point.partition(":")
    if not (sign and factory):
        return False
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def describe_profiles(registry: Registry | None = None) -> dict[str, list[DaemonType]]:
    """Return every profile with its daemons in order of start."""
    rows = product_registry() if registry is None else registry
    return {profile: profile_types(rows, profile) for profile in PROFILES}


# The table of all daemon types, as the documentation shows it.


HEAD = (
    "| daemon | capability | what it does | needs | available |",
    "|---|---|---|---|---|",
)


def daemon_table(registry: Registry) -> str:
    """Return all rows as a Markdown table, in order of start."""
    specs = sorted(registry, key=startup_key)
    return "\n".join([*HEAD, *(_row(spec) for spec in specs)])


def _row(spec: DaemonSpec) -> str:
    settings = ", ".join(f"{key} {value}" for key, value in spec.settings.items())
    marks = [text for text, is_set in _marks(spec) if is_set]
    about = spec.about + (f" ({', '.join(marks)})" if marks else "")
    needs = ", ".join(need.value for need in spec.depends_on) or "nothing"
    what = spec.capability + (f": {settings}" if settings else "")
    return f"| `{spec.daemon_type}` | {what} | {about} | {needs} | {spec.unavailable_reason or 'yes'} |"


def _marks(spec: DaemonSpec) -> list[tuple[str, bool]]:
    return [
        ("critical", spec.critical),
        ("leader only", spec.leader_only),
        ("pausable", spec.pausable),
        ("own process", spec.isolation.value == "process"),
        (f"use {spec.deprecated_for}", spec.deprecated_for is not None),
    ]
