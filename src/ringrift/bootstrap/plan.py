"""Decides the order in which coordinators come up, and which of them cannot. No I/O."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from ringrift.bootstrap.registry import COORDINATOR_REGISTRY, CoordinatorSpec, InitPattern
from ringrift.errors import ConfigError

__all__ = ["InitOutcome", "InitResult", "get_dependencies", "get_dependents", "get_initialization_order"]


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
