"""Every module path of the documents, once: its capability, and where its names live.

A row without homes leads to the home of its capability, and is unavailable until that is built.
"""

from __future__ import annotations

import difflib
import importlib
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from ringrift.capabilities import capability
from ringrift.errors import NotBuilt

if TYPE_CHECKING:
    from importlib.abc import Loader


# --- the table ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Alias:
    """One path. *homes* give what their `__all__` lists; *names* live elsewhere or under another name."""

    capability: str
    homes: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)  # public name: "module:attribute"
    planned: Mapping[str, str] = field(default_factory=dict)  # public name: its capability
    deprecated: str = ""  # the path to use instead

    @property
    def available(self) -> bool:
        return bool(self.homes) or capability(self.capability).built

    def built_homes(self) -> tuple[str, ...]:
        return self.homes or (capability(self.capability).home,)


_ROUTER = ("ringrift.coordination.event_router",)
_NAMES = (
    "ringrift.events.catalog.event_types",
    "ringrift.events.catalog.names",
    "ringrift.coordination.event_normalization",
    "ringrift.coordination.event_mappings",
)
_EVENTS = (*_ROUTER, *_NAMES, "ringrift.coordination.event_emitters")
_HANDLERS = ("ringrift.coordination.handler_base",)
_MANAGER = ("ringrift.coordination.daemon_manager",)
_DAEMON_TYPES = ("ringrift.daemons.types",)
_DAEMON_REGISTRY = (
    "ringrift.daemons.registry",
    *_DAEMON_TYPES,
    "ringrift.status",
)
_CONTRACTS = ("ringrift.coordination.contracts", "ringrift.status")
_HEALTH = ("ringrift.coordination.system_health_monitor", *_CONTRACTS)
_BOOTSTRAP = ("ringrift.coordination.coordination_bootstrap", "ringrift.coordination.wiring_audit")

_COORDINATOR_REGISTRY = {
    name: f"ringrift.coordination.coordination_bootstrap:{name}"
    for name in ("COORDINATOR_REGISTRY", "CoordinatorSpec", "InitPattern")
}
_OLD_COORDINATOR = {
    "UnifiedEventCoordinator": "ringrift.coordination.event_router:UnifiedEventRouter",
    "get_event_coordinator": "ringrift.coordination.event_router:get_router",
}
_NODE_HEALTH = {"get_node_health": "node_health", "get_healthy_nodes": "node_health"}
_BACKPRESSURE_LEVEL = {"BackpressureLevel": "ringrift.coordination.backpressure:BackpressureLevel"}
_TASK_TYPE = {"TaskType": "ringrift.coordination.task_coordinator:TaskType"}
_PACKAGE_EFFORT = {
    **_BACKPRESSURE_LEVEL,
    **_TASK_TYPE,
    "check_backpressure": "ringrift.coordination.backpressure:check_backpressure",
    "should_throttle_production": "ringrift.coordination.backpressure:should_throttle_production",
    "QueueType": "ringrift.coordination.backpressure:QueueType",
    "TaskCoordinator": "ringrift.coordination.task_coordinator:TaskCoordinator",
    "can_spawn": "ringrift.coordination.task_coordinator:can_spawn",
}
_PACKAGE_PLANNED = {
    "get_sync_recommendations": "game_sync",
    "execute_priority_sync": "game_sync",
    "SyncPriority": "game_sync",
    "SyncScheduler": "game_sync",
    "get_sync_facade": "game_sync",
    "training_slot": "training_trigger",
    "request_training_slot": "training_trigger",
    "training_lock": "locks",
}

# Paths whose names are there today. Under app.coordination unless they say otherwise.
_PRESENT: dict[str, Alias] = {
    "": Alias(
        "bootstrap",
        (
            *_BOOTSTRAP,
            *_EVENTS,
            *_HANDLERS,
            *_MANAGER,
            *_DAEMON_TYPES,
            "ringrift.events.tracing",
            "ringrift.coordination.dead_letter_queue",
            *_HEALTH,
            "ringrift.coordination.orchestrator_registry",
        ),
        names=_PACKAGE_EFFORT,
        planned=_PACKAGE_PLANNED,
    ),
    # what is said
    "event_router": Alias("event_bus", _EVENTS, names=_OLD_COORDINATOR),
    "stage_events": Alias(
        "event_bus", ("ringrift.coordination.event_mappings", "ringrift.coordination.event_buses")
    ),
    "cross_process_events": Alias("event_bus", ("ringrift.coordination.event_buses", *_ROUTER)),
    "event_emitters": Alias("event_bus", ("ringrift.coordination.event_emitters",)),
    "event_mappings": Alias(
        "event_bus",
        ("ringrift.coordination.event_mappings", "ringrift.events.catalog.event_types"),
        names={
            "StageEvent": "ringrift.coordination.event_mappings:StageEvent",
            "normalize_event_type": "ringrift.events.catalog.names:normalize_event_type",
        },
    ),
    "event_normalization": Alias("event_bus", _NAMES[1:3]),
    "event_emission_mixin": Alias("event_handlers", _HANDLERS),
    "dead_letter_queue": Alias("event_bus", ("ringrift.coordination.dead_letter_queue",)),
    "core_events": Alias("event_bus", _EVENTS),
    "core_utils": Alias("tracing", ("ringrift.events.tracing",), planned={"training_lock": "locks"}),
    "tracing": Alias("tracing"),
    "handler_base": Alias("event_handlers", (*_HANDLERS, "ringrift.status")),
    "handler_resilience": Alias("event_handlers", ("ringrift.coordination.handler_resilience",)),
    # who runs
    "daemon_manager": Alias("supervisor", (*_MANAGER, *_DAEMON_TYPES)),
    "daemon_types": Alias("supervisor", _DAEMON_TYPES),
    "daemon_registry": Alias("supervisor", _DAEMON_REGISTRY),
    "daemon_factory": Alias("supervisor", _DAEMON_REGISTRY),
    "daemon_factory_implementations": Alias("supervisor", _DAEMON_REGISTRY),
    "daemon_runners": Alias("supervisor", _DAEMON_TYPES),
    "daemon_adapters": Alias("supervisor", _DAEMON_REGISTRY),
    "daemon_lifecycle": Alias("supervisor", (*_MANAGER, *_DAEMON_TYPES)),
    "daemon_metrics": Alias("supervisor", (*_MANAGER, *_DAEMON_TYPES)),
    "daemon_stats": Alias("supervisor", (*_MANAGER, *_DAEMON_TYPES)),
    "base_daemon": Alias("event_handlers", _HANDLERS),
    "enums": Alias(
        "supervisor", (*_DAEMON_TYPES, "ringrift.status"), planned={"LeadershipRole": "leadership"}
    ),
    "types": Alias(
        "component_health",
        ("ringrift.status",),
        names={**_BACKPRESSURE_LEVEL, **_TASK_TYPE},
        planned={
            "BoardType": "pipeline",
            "AlertLevel": "node_health",
            "AlertCategory": "node_health",
            "ClusterAlert": "node_health",
        },
    ),
    # how it is
    "protocols": Alias("component_health", _CONTRACTS),
    "contracts": Alias("component_health", _CONTRACTS),
    "health_check_helper": Alias("component_health", ("ringrift.coordination.health_check_helper",)),
    "health_facade": Alias("component_health", _HEALTH, planned=_NODE_HEALTH),
    "unified_health_manager": Alias("component_health", (*_HEALTH, "ringrift.health.breakers")),
    "coordinator_base": Alias(
        "component_health",
        ("ringrift.coordination.coordinator_base", *_CONTRACTS),
        names={"SQLitePersistenceMixin": "ringrift.coordination.coordinator_persistence:PersistentState"},
    ),
    "base_orchestrator": Alias(
        "component_health",
        ("ringrift.coordination.coordinator_base", *_CONTRACTS),
        names={"BaseOrchestrator": "ringrift.coordination.coordinator_base:CoordinatorBase"},
    ),
    "unified_registry": Alias("component_health", ("ringrift.coordination.coordinator_base", *_CONTRACTS)),
    "utils": Alias("component_health", ("ringrift.coordination.utils",)),
    "sync_integrity": Alias("data_integrity", ("ringrift.data.files",)),
    "npz_validation": Alias("dataset_export", ("ringrift.data.manifest.file_facts",)),
    # how it begins and ends
    "coordination_bootstrap": Alias("bootstrap", _BOOTSTRAP),
    "integration_bridge": Alias(
        "bootstrap", ("ringrift.coordination.event_subscription_registry",), names=_COORDINATOR_REGISTRY
    ),
    "event_subscription_registry": Alias(
        "bootstrap", ("ringrift.coordination.event_subscription_registry",), names=_COORDINATOR_REGISTRY
    ),
    "coordinator_config": Alias("bootstrap", ("ringrift.coordination.coordinator_config",)),
    "coordinator_dependencies": Alias(
        "bootstrap", ("ringrift.coordination.coordinator_dependencies",), names=_COORDINATOR_REGISTRY
    ),
    "coordinator_persistence": Alias("coordinator_persistence"),
    "singleton_mixin": Alias(
        "bootstrap",
        ("ringrift.coordination.singleton_mixin",),
        names={"ThreadSafeSingletonMixin": "ringrift.coordination.singleton_mixin:SingletonMixin"},
    ),
    "master_loop_guard": Alias("bootstrap", ("ringrift.coordination.master_loop_guard",)),
    "orchestrator_registry": Alias("roles"),
    "work_queue": Alias(
        "engine",
        ("ringrift.engine.ports", "ringrift.engine.opening"),
        names={"get_work_queue_status": "ringrift.coordination.task_coordinator:get_work_queue_status"},
    ),
    "async_bridge_manager": Alias("engine", ("ringrift.engine.opening",)),
}

# Paths of one capability each, which all lead to its home.
_BY_CAPABILITY: dict[str, str] = {
    "archive_backup": "s3_backup_daemon",
    "artifact_distribution": "unified_distribution_daemon",
    "backpressure": "backpressure queue_monitor work_queue_monitor_daemon",
    "cache_coordination": "cache_coordination_orchestrator",
    "capacity_provisioning": "auto_scaler",
    "consolidation": "data_consolidation_daemon",
    "data_integrity": "data_cleanup_daemon orphan_detection_daemon",
    "data_quality": "quality_monitor_daemon",
    "dataset_export": "auto_export_daemon",
    "delivery": "delivery_ledger delivery_retry_queue",
    "durations": "duration_scheduler",
    "ephemeral_guard": "ephemeral_data_guard",
    "evaluation": "evaluation_daemon tournament_daemon",
    "forecasting": "load_forecaster",
    "freshness": "training_freshness",
    "game_sync": "auto_sync_daemon sync_facade sync_router sync_base sync_constants sync_stall_handler "
    "sync_bloom_filter unified_data_sync cluster cluster.sync",
    "host_inventory": "multi_provider_orchestrator unified_inventory",
    "housekeeping": "disk_space_manager_daemon maintenance_daemon",
    "idle_shutdown": "unified_idle_shutdown_daemon",
    "leadership": "leadership_coordinator leader_election",
    "locks": "distributed_lock",
    "membership": "p2p_auto_deployer p2p_backend p2p_integration state_manager",
    "model_lifecycle": "model_lifecycle_coordinator",
    "node_health": "health_check_orchestrator host_health_policy node_status node_availability_cache "
    "node_circuit_breaker cluster_status_monitor",
    "node_recovery": "node_recovery_daemon recovery_orchestrator",
    "pipeline": "data_pipeline_orchestrator pipeline_actions pipeline_triggers",
    "progress_watchdog": "stall_detection",
    "promotion": "auto_promotion_daemon",
    "rating_sync": "database_sync_manager",
    "replication": "unified_replication_daemon",
    "resource_targets": "resource_targets",
    "scheduling": "selfplay_orchestrator selfplay_scheduler job_scheduler node_policies",
    "slurm": "slurm_backend",
    "stability": "stability_heuristic dynamic_thresholds",
    "task_coordination": "task_coordinator task_lifecycle_coordinator task_decorators safeguards helpers "
    "facade",
    "training_feedback": "feedback_loop_controller feedback_signals gauntlet_feedback_controller "
    "unified_feedback curriculum_integration curriculum_weights",
    "training_staging": "training_activity_daemon",
    "training_trigger": "training_coordinator training_trigger_daemon async_training_bridge",
    "transactions": "transaction_isolation",
    "transfer": "bandwidth_manager cluster_transport sync_bandwidth sync_durability sync_mutex "
    "transfer_verification",
    "trend_analysis": "metrics_analysis_orchestrator model_performance_watchdog",
    "tuning": "optimization_coordinator",
    "utilization": "adaptive_resource_manager cluster_watchdog_daemon idle_resource_daemon "
    "resource_optimizer resource_monitoring_coordinator unified_resource_coordinator utilization_optimizer",
    "work_supply": "unified_queue_populator",
}

# Paths with a file of their own name in `ringrift.coordination`, which is searched before their other homes.
_OWN = (
    "async_bridge_manager core_utils daemon_adapters daemon_factory daemon_factory_implementations "
    "daemon_lifecycle daemon_metrics daemon_runners daemon_stats event_emission_mixin facade helpers "
    "integration_bridge node_policies pipeline_actions pipeline_triggers sync_base sync_constants "
    "sync_durability sync_mutex sync_router tracing transfer_verification work_queue"
)
_OWN_NAMES: dict[str, dict[str, str]] = {
    "work_queue": {"WorkQueue": "ringrift.coordination.work_queue:QueueHandle"}
}

# Old paths and what to import instead; they go on working.
_DEPRECATED: dict[str, str] = {
    "alert_types": "types",
    "auto_evaluation_daemon": "evaluation_daemon",
    "base_handler": "handler_base",
    "cluster_data_sync": "auto_sync_daemon",
    "core_base": "coordinator_base",
    "core_daemons": "daemon_manager",
    "core_sync": "sync_facade",
    "ephemeral_sync": "auto_sync_daemon",
    "event_subscription_mixin": "handler_base",
    "lambda_idle_daemon": "unified_idle_shutdown_daemon",
    "node_health_monitor": "health_check_orchestrator",
    "queue_populator": "unified_queue_populator",
    "queue_populator_daemon": "unified_queue_populator",
    "sync_coordination_core": "sync_facade",
    "sync_coordinator": "auto_sync_daemon",
    "sync_safety": "sync_durability",
    "system_health_monitor": "unified_health_manager",
    "unified_event_coordinator": "event_router",
    "vast_idle_daemon": "unified_idle_shutdown_daemon",
}
# Old copies in app.coordination.deprecated, by the module they were copies of.
_ARCHIVED = (
    "alert_types auto_evaluation_daemon base_handler core_base core_daemons core_sync cross_process_events "
    "event_emitters event_subscription_mixin health_check_orchestrator host_health_policy "
    "queue_populator_daemon sync_coordinator sync_safety system_health_monitor"
)

_OTHER_PACKAGES: dict[str, Alias] = {
    "app.distributed": Alias("event_bus", _EVENTS, planned={"get_cluster_manifest": "data_catalog"}),
    "app.distributed.data_events": Alias(
        "event_bus",
        (*_EVENTS, "ringrift.coordination.event_buses"),
        names={"get_event_bus": "ringrift.coordination.event_buses:get_data_event_bus"},
    ),
    "app.distributed.cluster_manifest": Alias("data_catalog"),
    "app.distributed.sync_coordinator": Alias("game_sync"),
    "app.distributed.sync_orchestrator": Alias("game_sync"),
    "app.metrics": Alias("component_health", _CONTRACTS),
    "app.metrics.coordinator": Alias("component_health", _CONTRACTS),
}

# Names that the old paths offered under another name than their home does.
_OLD_NAMES: dict[str, dict[str, str]] = {
    "base_handler": {"BaseEventHandler": "ringrift.coordination.handler_base:HandlerBase"},
    "event_subscription_mixin": {"EventSubscriptionMixin": "ringrift.coordination.handler_base:HandlerBase"},
    "sync_safety": {"check_sqlite_integrity": "ringrift.data.files:check_sqlite_integrity"},
    "system_health_monitor": {
        "SystemHealthMonitor": "ringrift.coordination.system_health_monitor:SystemHealthMonitor"
    },
}


# Names of a path that live beside the home of its capability.
_NAMES_ELSEWHERE: dict[str, dict[str, str]] = {
    "cluster_transport": {
        "ClusterTransport": "ringrift.coordination.cluster_transport:ClusterTransport",
        "get_cluster_transport": "ringrift.coordination.cluster_transport:get_cluster_transport",
    },
    "sync_bandwidth": {
        "BatchRsync": "ringrift.coordination.sync_bandwidth:BatchRsync",
        "BatchRsyncResult": "ringrift.coordination.sync_bandwidth:BatchRsyncResult",
    },
    "sync_bloom_filter": {"BloomFilter": "ringrift.data.transfer.peers:BloomFilter"},
    "sync_stall_handler": {"SyncStallHandler": "ringrift.data.transfer.peers:SyncStallHandler"},
    "sync_router": {"ScoredNode": "ringrift.data.sync.plan:ScoredNode"},
}


def _table() -> dict[str, Alias]:
    root = "app.coordination"
    rows = dict(_PRESENT)
    for owner, names in _BY_CAPABILITY.items():
        rows |= {name: Alias(owner, names=_NAMES_ELSEWHERE.get(name, {})) for name in names.split()}
    for name in _OWN.split():
        homes = (f"ringrift.coordination.{name}", *rows[name].built_homes())
        rows[name] = replace(rows[name], homes=homes, names={**rows[name].names, **_OWN_NAMES.get(name, {})})
    for old, new in _DEPRECATED.items():
        rows[old] = replace(
            rows[new], deprecated=f"{root}.{new}", names={**rows[new].names, **_OLD_NAMES.get(old, {})}
        )
    rows["deprecated"] = Alias("bootstrap", _BOOTSTRAP)
    for old in _ARCHIVED.split():
        current = rows[old].deprecated or f"{root}.{old}"
        rows[f"deprecated._deprecated_{old}"] = replace(rows[old], deprecated=current)
    return {f"{root}.{name}".rstrip("."): row for name, row in rows.items()} | _OTHER_PACKAGES


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
