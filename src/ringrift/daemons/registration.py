"""From a registry row, or a user's factory, to a daemon that the supervisor can run."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

from ringrift.daemons.child_process import ProcessDaemon
from ringrift.daemons.outbox import EventBus
from ringrift.daemons.planning import Phase
from ringrift.daemons.registry import DaemonSpec, Isolation, Registry
from ringrift.daemons.registry_checks import row_faults
from ringrift.daemons.restarts import RestartPolicy
from ringrift.daemons.running import EntryPoint, Factory
from ringrift.daemons.supervisor import Supervisor
from ringrift.daemons.types import (
    SECONDS_MAX,
    DaemonCategory,
    DaemonInfo,
    DaemonType,
    daemon_type_of,
    daemon_types_of,
)
from ringrift.daemons.unit import Unit
from ringrift.engine.arguments import check_seconds, refuse
from ringrift.errors import ConfigError

CRITICAL_RETRY_S = 1800.0
_POLICY_FIELDS = frozenset(item.name for item in fields(RestartPolicy))
_INFO_FIELDS = frozenset({"startup_grace_period", "ready_timeout"})


class Registrar:
    """Fills the supervisor with units."""

    def __init__(
        self, registry: Registry, supervisor: Supervisor, *, manager: object, bus: EventBus | None
    ) -> None:
        self._registry, self._supervisor = registry, supervisor
        self._offered: dict[str, Any] = {"manager": manager, "runtime": supervisor.runtime}
        if bus is not None:
            self._offered["router"] = bus

    def install_rows(self) -> None:
        """Make a unit of every row."""
        for spec in self._registry:
            unit = self._unit(spec, self._row_factory(spec))
            unit.info.unavailable_reason = spec.unavailable_reason
            self._supervisor.units[spec.daemon_type] = unit

    def register(
        self,
        daemon_type: DaemonType,
        factory: Factory,
        *,
        depends_on: tuple[DaemonType, ...],
        health_check_interval: float | None,
        auto_restart: bool,
        max_restarts: int | None,
        **row: Any,
    ) -> None:
        """Take a user's factory; `ConfigError` while the daemon runs or for a wrong argument."""
        _check_factory(daemon_type, factory)
        old = self._supervisor.units.get(daemon_type)
        if old is not None and old.phase is not Phase.ABSENT:
            raise ConfigError(f"{daemon_type} is running; stop it before registering another factory")
        base = self._registry.get(daemon_type) or DaemonSpec(daemon_type=daemon_type)
        given: dict[str, Any] = {
            "health_check_interval": health_check_interval,
            "auto_restart": auto_restart,
            "max_restarts": max_restarts if max_restarts is not None else base.max_restarts,
            "depends_on": depends_on,
        }
        policy = {name: row.pop(name) for name in list(row) if name in _POLICY_FIELDS}
        info = {name: row.pop(name) for name in list(row) if name in _INFO_FIELDS}
        for name, seconds in info.items():
            check_seconds(name, seconds, high=SECONDS_MAX)
        try:
            spec = replace(base, **given, **_row_values(row))
        except TypeError as error:
            raise ConfigError(f"{daemon_type} cannot be registered: {error}") from None
        if wrong := row_faults(spec):
            raise ConfigError(f"{daemon_type} cannot be registered: {wrong[0]}")
        unit = self._unit(spec, factory, **policy)
        self._registry.add(spec)
        for name, value in info.items():
            setattr(unit.info, name, value)
        if old is not None:
            unit.wanted, unit.holds, unit.pauses = old.wanted, old.holds, old.pauses
        self._supervisor.units[daemon_type] = unit

    def _row_factory(self, spec: DaemonSpec) -> Factory | None:
        if spec.unavailable_reason or not spec.entry_point:
            return None
        if spec.isolation is Isolation.PROCESS:
            runtime = self._supervisor.runtime
            return partial(ProcessDaemon.for_entry_point, spec.entry_point, spec.settings, runtime=runtime)
        return EntryPoint(spec.entry_point, {**self._offered, "settings": dict(spec.settings)})

    def _unit(self, spec: DaemonSpec, factory: Factory | None, **policy: Any) -> Unit:
        config = self._supervisor.config
        max_restarts = config.max_restart_attempts if spec.max_restarts is None else spec.max_restarts
        defaults = {
            "max_restarts": max_restarts,
            "cooldown_s": config.recovery_cooldown,
            "stable_s": config.stable_time,
            "degraded_retry_s": CRITICAL_RETRY_S if spec.critical else None,
        }
        interval_s = spec.health_check_interval
        if interval_s is None:
            critical_s = config.critical_daemon_health_interval
            interval_s = critical_s if spec.critical else config.health_check_interval
        check_seconds(f"health_check_interval of {spec.daemon_type}", interval_s, low=1e-3, high=SECONDS_MAX)
        merged = RestartPolicy(**{**defaults, **policy})
        record = self._supervisor.ledger.record(spec.daemon_type)
        info = DaemonInfo(
            daemon_type=spec.daemon_type,
            health_check_interval=interval_s,
            auto_restart=spec.auto_restart,
            max_restarts=max_restarts,
            restart_delay=merged.delay_s,
            restart_count=record.restarts_in_a_row,
            last_error=record.last_error or None,
            startup_grace_period=config.default_startup_grace_period,
            depends_on=list(spec.depends_on),
            soft_depends_on=list(spec.soft_depends_on),
            startup_mode=spec.startup_mode,
        )
        return Unit(spec=spec, info=info, policy=merged, factory=factory)


def _check_factory(daemon_type: DaemonType, factory: Any) -> None:
    """Refuse what cannot be called with nothing, as the supervisor calls it."""
    if not callable(factory):
        raise ConfigError(f"the factory of {daemon_type} is {factory!r}; it must be callable")
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise ConfigError(f"the factory of {daemon_type} is called without arguments: {error}") from None
    except ValueError:  # one of those in C that do not say what they take
        return


def _row_values(row: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a row as a caller writes them: names for members, lists for sets."""
    values = dict(row)
    if "soft_depends_on" in row:
        values["soft_depends_on"] = daemon_types_of("soft_depends_on", row["soft_depends_on"])
    if row.get("deprecated_for") is not None:
        values["deprecated_for"] = daemon_type_of(row["deprecated_for"])
    for name, kind in (("category", DaemonCategory), ("isolation", Isolation)):
        if name in row and row[name] not in list(kind):
            refuse(name, row[name], f"one of: {', '.join(kind)}")
        if name in row:
            values[name] = kind(row[name])
    if isinstance(row.get("profiles"), list | tuple | set):
        values["profiles"] = frozenset(row["profiles"])
    return values
