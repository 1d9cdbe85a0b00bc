"""What the product consists of: every capability once, with its home and whether it is built.

Daemon types, coordinators and the documents' import paths are faces of these capabilities. Each of those
tables names a capability; whether a face is available follows from here and from nowhere else.
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
        "supervisor": "ringrift.daemons.manager",
        "event_bus": "ringrift.events.router",
        "component_health": "ringrift.health.system",
        "tracing": "ringrift.events.tracing",
        "event_handlers": "ringrift.events.handlers",
        "engine": "ringrift.engine",
        "roles": "ringrift.work.roles",
        "bootstrap": "ringrift.bootstrap",
        "coordinator_persistence": "ringrift.bootstrap.snapshots",
    },
    Part.LOOP: {
        "progress_watchdog": "ringrift.health.progress",
        "evaluation": "ringrift.learning.evaluation",
        "dataset_export": "ringrift.learning.export",
        "training_feedback": "ringrift.learning.feedback",
        "pipeline": "ringrift.learning.pipeline",
        "promotion": "ringrift.learning.promotion_daemons",
        "data_quality": "ringrift.learning.quality",
        "training_trigger": "ringrift.learning.training",
        "training_fallback": "ringrift.learning.training",
        "trend_analysis": "ringrift.learning.trends",
        "replay_refresh": "ringrift.learning.window",
        "backpressure": "ringrift.work.backpressure",
        "scheduling": "ringrift.work.scheduling",
        "work_supply": "ringrift.work.supply",
        "task_coordination": "ringrift.work.tasks",
        "durations": "ringrift.work.durations",
        "model_lifecycle": "ringrift.learning.models",
        "tuning": "ringrift.learning.tuning",
        "stability": "ringrift.learning.stability",
    },
    Part.DATA: {
        "archive_backup": "ringrift.data.backup",
        "archive_import": "ringrift.data.backup",
        "consolidation": "ringrift.data.consolidation",
        "artifact_distribution": "ringrift.data.distribution",
        "data_integrity": "ringrift.data.integrity",
        "data_catalog": "ringrift.data.manifest",
        "rating_sync": "ringrift.data.records",
        "replication": "ringrift.data.replication",
        "training_staging": "ringrift.data.staging",
        "game_sync": "ringrift.data.sync",
        "housekeeping": "ringrift.resources.disk",
        "transfer": "ringrift.data.transfers",
        "transactions": "ringrift.data.transactions",
        "freshness": "ringrift.data.freshness",
        "ephemeral_guard": "ringrift.data.ephemeral",
        "delivery": "ringrift.data.delivery",
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
        "utilization": "ringrift.resources.utilisation",
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
