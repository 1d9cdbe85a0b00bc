"""Every module path of the documents leads to its home: `app.coordination.X` is `ringrift.coordination.X`.

The tables have what that rule does not say: paths that are another name, what a path gives beside its file,
and paths of capabilities that are not built. Modules are written without `ringrift.` before them.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from ringrift import coordination
from ringrift.capabilities import capability
from ringrift.errors import NotBuilt

if TYPE_CHECKING:
    from importlib.abc import Loader

_ROOT = "app.coordination"
# Files that are no module of `app.coordination`.
_OURS = (
    "cluster_manifest event_buses initializer per_orchestrator progress_watchdog run_coordinator "
    "stale_fallback wiring_audit"
)
_EVENT_NAMES = (
    "events.catalog.event_types events.catalog.names coordination.event_normalization "
    "coordination.event_mappings coordination.event_emitters"
)
_EVENTS = f"coordination.event_router {_EVENT_NAMES}"
_BOOTSTRAP = "coordination.coordination_bootstrap coordination.wiring_audit"
_HEALTH = "coordination.system_health_monitor coordination.contracts status"

# Paths that are another name: what these modules list, and nothing of a file that the path may have.
_ANOTHER_NAME: Mapping[str, str] = {
    "coordination.backpressure": "queue_monitor work_queue_monitor_daemon",
    "coordination.cluster_transport": "bandwidth_manager",
    "coordination.cluster_manifest": "app.distributed.cluster_manifest",
    "coordination.contracts status": "protocols app.metrics app.metrics.coordinator",
    "coordination.coordinator_base coordination.contracts status": "base_orchestrator unified_registry",
    "coordination.delivery_ledger": "delivery_retry_queue",
    "coordination.evaluation_daemon": "tournament_daemon",
    "coordination.event_buses coordination.event_router": "cross_process_events",
    "coordination.event_mappings coordination.event_buses": "stage_events",
    "coordination.feedback_loop_controller": "curriculum_weights feedback_signals "
    "gauntlet_feedback_controller unified_feedback",
    "coordination.handler_base": "base_daemon",
    "coordination.maintenance_daemon": "disk_space_manager_daemon",
    "coordination.metrics_analysis_orchestrator": "model_performance_watchdog",
    "coordination.progress_watchdog": "stall_detection",
    "coordination.selfplay_scheduler": "job_scheduler selfplay_orchestrator",
    "coordination.stability_heuristic": "dynamic_thresholds",
    "coordination.sync_coordinator": "auto_sync_daemon cluster cluster.sync sync_bloom_filter "
    "sync_stall_handler unified_data_sync app.distributed.sync_coordinator app.distributed.sync_orchestrator",
    "coordination.task_coordinator": "safeguards task_decorators task_lifecycle_coordinator",
    "coordination.training_coordinator": "async_training_bridge training_trigger_daemon",
    "daemons.registry daemons.types status": "daemon_registry",
    "daemons.types": "daemon_types",
    "daemons.types status": "enums",
    "data.backup.daemons": "s3_backup_daemon",
    "data.files": "sync_integrity",
    "data.manifest.file_facts": "npz_validation",
    "data.protection.consolidation": "data_consolidation_daemon",
    "data.protection.distribution": "unified_distribution_daemon",
    "data.protection.integrity": "data_cleanup_daemon orphan_detection_daemon",
    "data.protection.replication": "unified_replication_daemon",
    "status": "types",
    _BOOTSTRAP: "deprecated",
    _EVENTS: "core_events app.distributed",
    f"{_EVENTS} coordination.event_buses": "app.distributed.data_events",
    f"{_BOOTSTRAP} {_EVENTS} coordination.handler_base coordination.daemon_manager daemons.types "
    f"events.tracing coordination.dead_letter_queue {_HEALTH} coordination.orchestrator_registry": _ROOT,
    _HEALTH: "health_facade",
    f"{_HEALTH} health.breakers": "unified_health_manager",
}
# What a path gives beside the names of its file.
_MORE: Mapping[str, str] = {
    "coordination.cluster_transport": "sync_bandwidth sync_durability sync_mutex transfer_verification",
    "coordination.contracts status": "coordinator_base",
    "coordination.daemon_manager daemons.types": "daemon_lifecycle daemon_metrics daemon_stats",
    "coordination.data_pipeline_orchestrator": "pipeline_actions pipeline_triggers",
    "coordination.event_subscription_registry": "integration_bridge",
    "coordination.feedback_loop_controller": "curriculum_integration",
    "coordination.handler_base": "event_emission_mixin",
    "coordination.selfplay_scheduler": "node_policies",
    "coordination.sync_coordinator": "sync_base sync_constants sync_facade sync_router",
    "coordination.task_coordinator": "facade helpers",
    "coordination.wiring_audit": "coordination_bootstrap",
    "daemons.registry daemons.types status": "daemon_adapters daemon_factory daemon_factory_implementations",
    "daemons.types": "daemon_manager daemon_runners",
    "engine.opening": "async_bridge_manager",
    "engine.ports engine.opening": "work_queue",
    "events.catalog.event_types": "event_mappings",
    "events.catalog.names": "event_normalization",
    "events.tracing": "core_utils tracing",
    "status": "contracts handler_base",
    _EVENT_NAMES: "event_router",
}
# Names from elsewhere, by the module that has them: `old=new` where it has them under another name.
_REGISTRY = {"coordination.coordination_bootstrap": "COORDINATOR_REGISTRY CoordinatorSpec InitPattern"}
_NAMES: Mapping[str, Mapping[str, str]] = {
    "app.distributed": {"coordination.cluster_manifest": "get_cluster_manifest"},
    "app.distributed.data_events": {"coordination.event_buses": "get_event_bus=get_data_event_bus"},
    _ROOT: {
        "coordination.backpressure": "BackpressureLevel QueueType check_backpressure "
        "should_throttle_production",
        "coordination.sync_coordinator": "SyncPriority SyncScheduler execute_priority_sync get_sync_facade "
        "get_sync_recommendations",
        "coordination.task_coordinator": "TaskCoordinator TaskType can_spawn",
        "coordination.training_coordinator": "request_training_slot training_slot",
    },
    "base_handler": {"coordination.handler_base": "BaseEventHandler=HandlerBase"},
    "base_orchestrator": {"coordination.coordinator_base": "BaseOrchestrator=CoordinatorBase"},
    "cluster_transport": {"coordination.cluster_transport": "ClusterTransport get_cluster_transport"},
    "coordinator_base": {"coordination.coordinator_persistence": "SQLitePersistenceMixin=PersistentState"},
    "coordinator_dependencies": _REGISTRY,
    "event_mappings": {"events.catalog.names": "normalize_event_type"},
    "event_router": {
        "coordination.event_router": "UnifiedEventCoordinator=UnifiedEventRouter "
        "get_event_coordinator=get_router"
    },
    "event_subscription_mixin": {"coordination.handler_base": "EventSubscriptionMixin=HandlerBase"},
    "event_subscription_registry": _REGISTRY,
    "integration_bridge": _REGISTRY,
    "singleton_mixin": {"coordination.singleton_mixin": "ThreadSafeSingletonMixin=SingletonMixin"},
    "sync_bloom_filter": {"data.transfer.peers": "BloomFilter"},
    "sync_router": {"data.sync.plan": "ScoredNode"},
    "sync_safety": {"data.files": "check_sqlite_integrity"},
    "sync_stall_handler": {"data.transfer.peers": "SyncStallHandler"},
    "system_health_monitor": {"coordination.system_health_monitor": "SystemHealthMonitor"},
    "types": {
        "coordination.backpressure": "BackpressureLevel",
        "coordination.data_pipeline_orchestrator": "BoardType",
        "coordination.task_coordinator": "TaskType",
    },
    "work_queue": {
        "coordination.task_coordinator": "get_work_queue_status",
        "coordination.work_queue": "WorkQueue=QueueHandle",
    },
}
# Paths, and names of a path, of capabilities that are not built.
_PLANNED: Mapping[str, str] = {
    "cache_coordination": "cache_coordination_orchestrator",
    "capacity_provisioning": "auto_scaler",
    "forecasting": "load_forecaster",
    "host_inventory": "multi_provider_orchestrator unified_inventory",
    "idle_shutdown": "unified_idle_shutdown_daemon",
    "leadership": "leadership_coordinator leader_election",
    "locks": "distributed_lock",
    "membership": "p2p_auto_deployer p2p_backend p2p_integration state_manager",
    "node_health": "health_check_orchestrator host_health_policy node_status node_availability_cache "
    "node_circuit_breaker cluster_status_monitor",
    "node_recovery": "node_recovery_daemon recovery_orchestrator",
    "resource_targets": "resource_targets",
    "slurm": "slurm_backend",
    "utilization": "adaptive_resource_manager cluster_watchdog_daemon idle_resource_daemon "
    "resource_optimizer resource_monitoring_coordinator unified_resource_coordinator utilization_optimizer",
}
_PLANNED_NAMES: Mapping[str, Mapping[str, str]] = {
    _ROOT: {"training_lock": "locks"},
    "core_utils": {"training_lock": "locks"},
    "enums": {"LeadershipRole": "leadership"},
    "health_facade": dict.fromkeys(("get_node_health", "get_healthy_nodes"), "node_health"),
    "types": dict.fromkeys(("AlertLevel", "AlertCategory", "ClusterAlert"), "node_health"),
}
# Old paths, by what to import instead; they go on working.
_DEPRECATED: Mapping[str, str] = {
    "auto_sync_daemon": "cluster_data_sync ephemeral_sync sync_coordinator",
    "coordinator_base": "core_base",
    "daemon_manager": "core_daemons",
    "evaluation_daemon": "auto_evaluation_daemon",
    "event_router": "unified_event_coordinator",
    "handler_base": "base_handler event_subscription_mixin",
    "health_check_orchestrator": "node_health_monitor",
    "sync_durability": "sync_safety",
    "sync_facade": "core_sync sync_coordination_core",
    "types": "alert_types",
    "unified_health_manager": "system_health_monitor",
    "unified_idle_shutdown_daemon": "lambda_idle_daemon vast_idle_daemon",
    "unified_queue_populator": "queue_populator queue_populator_daemon",
}
# Old copies in app.coordination.deprecated, by the module they were copies of.
_ARCHIVED = (
    "alert_types auto_evaluation_daemon base_handler core_base core_daemons core_sync cross_process_events "
    "event_emitters event_subscription_mixin health_check_orchestrator host_health_policy "
    "queue_populator_daemon sync_coordinator sync_safety system_health_monitor"
)


@dataclass(frozen=True, slots=True)
class Alias:
    """One path. *homes* give what their `__all__` lists; *names* live elsewhere or under another name."""

    homes: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)  # public name: "module:attribute"
    planned: Mapping[str, str] = field(default_factory=dict)  # public name: its capability
    capability: str = ""  # which it waits for
    deprecated: str = ""  # the path to use instead

    @property
    def available(self) -> bool:
        return not self.capability or capability(self.capability).built

    def built_homes(self) -> tuple[str, ...]:
        return self.homes or (capability(self.capability).home,)


def _homes(*modules: str) -> tuple[str, ...]:
    return tuple(f"ringrift.{name}" for listed in modules for name in listed.split())


def _names_of(path: str) -> dict[str, str]:
    listed = [
        (home, *name.partition("=")[::2])
        for home, names in _NAMES.get(path, {}).items()
        for name in names.split()
    ]
    return {old: f"ringrift.{home}:{new or old}" for home, old, new in listed}


def _table() -> dict[str, Alias]:
    files = {found.name for found in pkgutil.iter_modules(coordination.__path__)} - set(_OURS.split())
    rows = {path: Alias(_homes(f"coordination.{path}")) for path in files}
    rows |= {path: Alias(_homes(homes)) for homes, paths in _ANOTHER_NAME.items() for path in paths.split()}
    for homes, paths in _MORE.items():
        rows |= {path: Alias(_homes(f"coordination.{path}", homes)) for path in paths.split()}
    rows |= {path: Alias(capability=owner) for owner, paths in _PLANNED.items() for path in paths.split()}
    for path, row in rows.items():
        rows[path] = replace(row, names=_names_of(path), planned=_PLANNED_NAMES.get(path, {}))
    for new, old_paths in _DEPRECATED.items():
        for old in old_paths.split():
            names = {**rows[new].names, **_names_of(old)}
            rows[old] = replace(rows[new], deprecated=f"{_ROOT}.{new}", names=names)
    for old in _ARCHIVED.split():
        current = rows[old].deprecated or f"{_ROOT}.{old}"
        rows[f"deprecated._deprecated_{old}"] = replace(rows[old], deprecated=current)
    return {name if name.startswith("app.") else f"{_ROOT}.{name}": row for name, row in rows.items()}


ALIASES: Mapping[str, Alias] = _table()


# --- the hook -----------------------------------------------------------------------------------------
#
# Serves the modules of the alias table, each when it is first asked for.
#
# A module of a capability that is not built cannot be imported, and a name of one cannot be taken: both
# raise `PlannedModule`, which names the capability and what it comes with.


class PlannedModule(NotBuilt, ModuleNotFoundError):
    """The path is known; what it leads to comes with a later part."""

    def __init__(self, path: str, capability_name: str) -> None:
        super().__init__(capability_name, planned_with=capability(capability_name).part.value)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path}: {super().__str__()}"


class AliasModule(ModuleType):
    """One path of the documents; looks every name up among the public ones of its homes."""

    alias: Alias

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return self.__dir__()
        if name.startswith("__") or "alias" not in self.__dict__:
            raise AttributeError(name)
        value = self._find(name)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        listed = {name for home in self.alias.built_homes() for name in _public(home)}
        since_built = {name for name, owner in self.alias.planned.items() if capability(owner).built}
        return sorted(listed | set(self.alias.names) | since_built)

    def _find(self, name: str) -> Any:
        if target := self.alias.names.get(name):
            module, _, attribute = target.partition(":")
            return getattr(importlib.import_module(module), attribute)
        if owner := self.alias.planned.get(name):
            if not capability(owner).built:
                raise PlannedModule(f"{self.__name__}.{name}", owner)
            return getattr(importlib.import_module(capability(owner).home), name)
        for home in self.alias.built_homes():
            if name in _public(home):
                return getattr(importlib.import_module(home), name)
        if f"{self.__name__}.{name}" in ALIASES:
            return importlib.import_module(f"{self.__name__}.{name}")
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}{_hint(name, dir(self))}")


class AliasFinder:
    """Finds and loads the modules of the table; stands behind the finders of real files.

    It has the methods of `importlib.abc` without its bases, which would load half the library.
    """

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("app."):
            return None
        alias = ALIASES.get(fullname)
        if alias is None:
            hint = _hint(fullname, ALIASES)
            raise ModuleNotFoundError(f"no module {fullname}{hint}", name=fullname)
        if not alias.available:
            raise PlannedModule(fullname, alias.capability)
        is_package = any(other.startswith(f"{fullname}.") for other in ALIASES)
        return ModuleSpec(fullname, cast("Loader", self), origin="alias table", is_package=is_package)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = AliasModule(spec.name)
        module.alias = ALIASES[spec.name]
        return module

    def exec_module(self, module: ModuleType) -> None:
        replacement = ALIASES[module.__name__].deprecated
        if replacement:
            message = f"{module.__name__} is deprecated; import from {replacement}"
            warnings.warn(message, DeprecationWarning, stacklevel=2)


def install() -> None:
    """Put the finder in place; a second call changes nothing."""
    if not any(isinstance(finder, AliasFinder) for finder in sys.meta_path):
        sys.meta_path.append(AliasFinder())


def _public(home: str) -> list[str]:
    # What a home does not list stays inside: what it imports, and its submodules.
    listed: list[str] = importlib.import_module(home).__all__
    return listed


def _hint(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
