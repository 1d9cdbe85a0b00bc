"""What the product consists of: every capability once, with its home and whether it is built.

Daemon types, coordinators and the documents' import paths are handles on these capabilities. Each of those
tables names a capability; whether a handle is available follows from here and from nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ringrift.errors import ConfigError, NotBuilt


class Part(StrEnum):
    """The piece of the product that a capability comes with."""

    FOUNDATION = "the foundation"
    JOBS = "the learning jobs"
    LOOP = "the loop"
    DATA = "the data plane"
    CLUSTER = "the cluster"
    RESOURCES = "the resources"


BUILT_PARTS = frozenset({Part.FOUNDATION, Part.JOBS, Part.LOOP, Part.DATA})


@dataclass(frozen=True, slots=True)
class Capability:
    """One thing the product can do."""

    name: str
    home: str
    part: Part

    @property
    def built(self) -> bool:
        return self.part in BUILT_PARTS

    @property
    def reason(self) -> str:
        """Why it is not available; empty when it is."""
        return "" if self.built else str(NotBuilt(self.name, planned_with=self.part.value))


_HOMES: dict[Part, dict[str, str]] = {
    Part.FOUNDATION: {
        "supervisor": "ringrift.coordination.daemon_manager",
        "event_bus": "ringrift.coordination.event_router",
        "component_health": "ringrift.coordination.system_health_monitor",
        "tracing": "ringrift.events.tracing",
        "event_handlers": "ringrift.coordination.handler_base",
        "engine": "ringrift.engine",
        "roles": "ringrift.coordination.orchestrator_registry",
        "bootstrap": "ringrift.coordination.coordination_bootstrap",
        "coordinator_persistence": "ringrift.coordination.coordinator_persistence",
    },
    Part.LOOP: {
        "progress_watchdog": "ringrift.coordination.progress_watchdog",
        "evaluation": "ringrift.coordination.evaluation_daemon",
        "dataset_export": "ringrift.coordination.auto_export_daemon",
        "training_feedback": "ringrift.coordination.feedback_loop_controller",
        "pipeline": "ringrift.coordination.data_pipeline_orchestrator",
        "promotion": "ringrift.coordination.auto_promotion_daemon",
        "data_quality": "ringrift.coordination.quality_monitor_daemon",
        "training_trigger": "ringrift.coordination.training_coordinator",
        "training_fallback": "ringrift.coordination.training_coordinator",
        "trend_analysis": "ringrift.coordination.metrics_analysis_orchestrator",
        "replay_refresh": "ringrift.learning.facts.records",
        "backpressure": "ringrift.coordination.backpressure",
        "scheduling": "ringrift.coordination.selfplay_scheduler",
        "work_supply": "ringrift.coordination.unified_queue_populator",
        "task_coordination": "ringrift.coordination.task_coordinator",
        "durations": "ringrift.coordination.duration_scheduler",
        "model_lifecycle": "ringrift.coordination.model_lifecycle_coordinator",
        "tuning": "ringrift.coordination.optimization_coordinator",
        "stability": "ringrift.coordination.stability_heuristic",
    },
    Part.DATA: {
        "archive_backup": "ringrift.data.backup.daemons",
        "archive_import": "ringrift.data.backup.daemons",
        "consolidation": "ringrift.data.protection.consolidation",
        "artifact_distribution": "ringrift.data.protection.distribution",
        "data_integrity": "ringrift.data.protection.integrity",
        "data_catalog": "ringrift.coordination.cluster_manifest",
        "rating_sync": "ringrift.coordination.database_sync_manager",
        "replication": "ringrift.data.protection.replication",
        "training_staging": "ringrift.coordination.training_activity_daemon",
        "game_sync": "ringrift.coordination.sync_coordinator",
        "housekeeping": "ringrift.coordination.maintenance_daemon",
        "transfer": "ringrift.coordination.cluster_transport",
        "transactions": "ringrift.coordination.transaction_isolation",
        "freshness": "ringrift.coordination.training_freshness",
        "ephemeral_guard": "ringrift.coordination.ephemeral_data_guard",
        "delivery": "ringrift.coordination.delivery_ledger",
    },
    Part.CLUSTER: {
        "capacity_provisioning": "ringrift.cluster.capacity",
        "idle_shutdown": "ringrift.cluster.idle",
        "membership": "ringrift.cluster.membership",
        "host_inventory": "ringrift.cluster.nodes",
        "node_recovery": "ringrift.cluster.recovery",
        "node_health": "ringrift.health.nodes",
        "leadership": "ringrift.cluster.leadership",
        "locks": "ringrift.cluster.locks",
        "slurm": "ringrift.cluster.slurm",
    },
    Part.RESOURCES: {
        "cache_coordination": "ringrift.resources.cache",
        "local_guard": "ringrift.resources.memory",
        "utilization": "ringrift.resources.utilization",
        "resource_targets": "ringrift.resources.targets",
        "forecasting": "ringrift.resources.forecasting",
    },
}

CAPABILITIES = {
    name: Capability(name, home, part) for part, homes in _HOMES.items() for name, home in homes.items()
}


def capability(name: str) -> Capability:
    """Return the capability *name*; `ConfigError` if the plan has none of that name."""
    try:
        return CAPABILITIES[name]
    except KeyError:
        raise ConfigError(f"no capability is called {name!r}") from None
