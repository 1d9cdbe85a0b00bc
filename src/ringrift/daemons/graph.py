"""The dependency graph: who comes before whom, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ringrift.daemons.registry import DaemonSpec, Registry
from ringrift.daemons.types import DaemonType
from ringrift.errors import ConfigError

__all__ = [
    "FULL_PROFILE",
    "PROFILES",
    "DependencyValidationError",
    "find_cycle",
    "levels",
    "profile_types",
    "startup_key",
    "validate_dependency_graph",
    "with_dependencies",
]

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
