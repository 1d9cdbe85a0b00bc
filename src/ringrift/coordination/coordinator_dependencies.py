"""Decides the order in which coordinators come up, and which of them cannot. No I/O."""

from __future__ import annotations

import csv
import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from types import MappingProxyType

from ringrift.capabilities import capability
from ringrift.errors import ConfigError

__all__ = ["InitOutcome", "InitResult", "get_dependencies", "get_dependents", "get_initialization_order"]


# Every coordinator once: its layer, how it is brought up, what it needs, and where it lives.
#
# Both entry points of the documents, the status, the shutdown order and the event registries derive from
# `coordinators.csv`. Whether a coordinator is available follows from its capability and from nowhere else.


class InitPattern(StrEnum):
    """How a coordinator is brought up."""

    WIRE = "wire"  # call its wire function: it subscribes at once, and bootstrap ends it
    GET = "get"  # get its shared object: it subscribes when its owner starts it
    IMPORT = "import"  # import its class: the daemon manager does the rest
    SKIP = "skip"  # a name that is kept and does nothing
    DELEGATE = "delegate"  # a name that is kept for another coordinator


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSpec:
    """One row."""

    name: str
    layer: int
    pattern: InitPattern
    capability: str
    entry_point: str = ""  # "module:function"; of a delegate, the name it stands for
    depends_on: tuple[str, ...] = ()
    switch: str = ""  # the enable_* argument; enable_<name> works too
    short_name: str = ""  # its name in the package's quick start
    arguments: tuple[str, ...] = ()  # the bootstrap options that its entry point takes
    needed_for_ready: bool = False
    about: str = ""

    @property
    def not_built_reason(self) -> str:
        return capability(self.capability).reason


def read_registry(text: str) -> Mapping[str, CoordinatorSpec]:
    """Read rows of comma-separated values. `ConfigError` names the first row that is wrong."""
    found: dict[str, CoordinatorSpec] = {}
    for row in csv.DictReader(text.splitlines(), strict=True):
        spec = _read_row(row)
        if spec.name in found:
            raise ConfigError(f"the coordinator {spec.name!r} has two rows")
        found[spec.name] = spec
    return MappingProxyType(found)


def _read_row(row: Mapping[str, str]) -> CoordinatorSpec:
    try:
        return CoordinatorSpec(
            name=row["name"],
            layer=int(row["layer"]),
            pattern=InitPattern(row["pattern"]),
            capability=capability(row["capability"]).name,
            entry_point=row["entry_point"],
            depends_on=tuple(row["depends_on"].split()),
            switch=row["switch"],
            short_name=row["short_name"],
            arguments=tuple(row["arguments"].split()),
            needed_for_ready=row["ready"] == "needed",
            about=row["about"],
        )
    except (ValueError, KeyError, ConfigError) as error:
        raise ConfigError(f"the row of the coordinator {row.get('name')!r} is wrong: {error}") from None


# Leadership stands above all others by its layer alone: one failed daemon must not cost a cluster its leader.
COORDINATOR_REGISTRY: Mapping[str, CoordinatorSpec] = read_registry(
    files("ringrift.coordination").joinpath("coordinators.csv").read_text(encoding="utf-8")
)


class InitOutcome(StrEnum):
    """How the start of one coordinator ended."""

    INITIALIZED = "initialized"
    FAILED = "failed"
    SKIPPED = "skipped"  # something it needs failed, was skipped or is switched off
    DISABLED = "disabled"  # switched off by the caller
    NOT_BUILT = "not_built"  # its capability is not in this version
    RETIRED = "retired"  # a name that is kept, with nothing behind it to bring up


@dataclass(frozen=True, slots=True)
class InitResult:
    """What became of one coordinator."""

    outcome: InitOutcome
    subscribed: bool = False
    error: str | None = None

    @property
    def initialized(self) -> bool:
        return self.outcome is InitOutcome.INITIALIZED


Registry = Mapping[str, CoordinatorSpec]


def order(registry: Registry) -> list[CoordinatorSpec]:
    """Return all rows, needed ones first, then by layer and by place in the table.

    `ConfigError` names a dependency that does not exist, or the members of a cycle.
    """
    place = {name: index for index, name in enumerate(registry)}
    waits_for: dict[str, set[str]] = {}
    for spec in registry.values():
        if unknown := [need for need in spec.depends_on if need not in registry]:
            raise ConfigError(f"coordinator {spec.name} needs {unknown[0]}, which is not in the registry")
        waits_for[spec.name] = set(spec.depends_on)
    ready = [(registry[name].layer, place[name], name) for name, needs in waits_for.items() if not needs]
    heapq.heapify(ready)
    ordered: list[CoordinatorSpec] = []
    while ready:
        # A heap: of all that could come next the lowest layer goes first, so that the order is fixed.
        name = heapq.heappop(ready)[2]
        ordered.append(registry[name])
        for other, needs in waits_for.items():
            if name in needs:
                needs.remove(name)
                if not needs:
                    heapq.heappush(ready, (registry[other].layer, place[other], other))
    if cycle := sorted(set(registry) - {spec.name for spec in ordered}):
        raise ConfigError(f"these coordinators need each other: {', '.join(cycle)}")
    return ordered


def verdict(spec: CoordinatorSpec, done: Mapping[str, InitResult], *, enabled: bool) -> InitResult | None:
    """Return why *spec* cannot be brought up, given what became of those before it; None: go on."""
    # Before the capability: what the caller left out is disabled, whether it is built or not.
    if not enabled:
        return InitResult(InitOutcome.DISABLED)
    if spec.not_built_reason:
        return InitResult(InitOutcome.NOT_BUILT, error=spec.not_built_reason)
    # What this version does not have cannot fail: whoever needs it comes up without it.
    there = [need for need in spec.depends_on if done[need].outcome is not InitOutcome.NOT_BUILT]
    missing = [need for need in there if not done[need].initialized]
    if missing:
        return InitResult(InitOutcome.SKIPPED, error=f"Dependencies not satisfied: {missing}")
    if spec.pattern is InitPattern.SKIP:
        return InitResult(InitOutcome.RETIRED)
    if spec.pattern is InitPattern.DELEGATE:
        return done[spec.entry_point]
    return None


def get_initialization_order(registry: Registry = COORDINATOR_REGISTRY) -> list[str]:
    """Return the names in the order in which they come up; shutdown is its reverse."""
    return [spec.name for spec in order(registry)]


def get_dependencies(name: str, registry: Registry = COORDINATOR_REGISTRY) -> list[str]:
    """Return everything that *name* needs, directly or not, in order of start."""
    if name not in registry:
        raise ConfigError(f"no coordinator is called {name!r}")
    needed, ahead = set[str](), [*registry[name].depends_on]
    while ahead:
        need = ahead.pop()
        if need not in needed:
            needed.add(need)
            ahead += registry[need].depends_on
    return [spec.name for spec in order(registry) if spec.name in needed]


def get_dependents(name: str, registry: Registry = COORDINATOR_REGISTRY) -> list[str]:
    """Return everything that needs *name*, directly or not, in order of start."""
    return [spec.name for spec in order(registry) if name in get_dependencies(spec.name, registry)]
