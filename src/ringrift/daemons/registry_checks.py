"""Is the registry sound? Asked in the checks of every change, and by a manager when it is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from importlib.util import find_spec

from ringrift.capabilities import CAPABILITIES
from ringrift.daemons.graph import PROFILES, find_cycle, profile_types
from ringrift.daemons.registry import DaemonSpec, Registry, product_registry
from ringrift.daemons.types import DAEMON_STARTUP_ORDER, DaemonType
from ringrift.status import CoordinatorStatus, HealthCheckResult

__all__ = [
    "check_registry_health",
    "describe_profiles",
    "get_daemon_startup_position",
    "missing_runners",
    "validate_daemon_dependencies",
    "validate_registry",
    "validate_registry_or_raise",
    "validate_startup_order_consistency",
    "validate_startup_order_or_raise",
]


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
