"""The words of the daemon room: which daemons there are, what states they have, what is known of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from ringrift.errors import ConfigError
from ringrift.process import process_scope
from ringrift.runtime import system_runtime

__all__ = [
    "CRITICAL_DAEMONS",
    "DAEMON_STARTUP_ORDER",
    "DaemonCategory",
    "DaemonInfo",
    "DaemonManagerConfig",
    "DaemonState",
    "DaemonType",
    "ReadySignals",
    "RestartTier",
    "mark_daemon_ready",
]


class DaemonType(StrEnum):
    """Every daemon of the product. `register` adds one of your own."""

    SYNC_COORDINATOR = "sync_coordinator"
    HIGH_QUALITY_SYNC = "high_quality_sync"
    ELO_SYNC = "elo_sync"
    MODEL_SYNC = "model_sync"
    HEALTH_CHECK = "health_check"
    CLUSTER_MONITOR = "cluster_monitor"
    QUEUE_MONITOR = "queue_monitor"
    NODE_HEALTH_MONITOR = "node_health_monitor"
    EVENT_ROUTER = "event_router"
    CROSS_PROCESS_POLLER = "cross_process_poller"
    DLQ_RETRY = "dlq_retry"
    DAEMON_WATCHDOG = "daemon_watchdog"
    DATA_PIPELINE = "data_pipeline"
    SELFPLAY_COORDINATOR = "selfplay_coordinator"
    P2P_BACKEND = "p2p_backend"
    GOSSIP_SYNC = "gossip_sync"
    DATA_SERVER = "data_server"
    DISTILLATION = "distillation"
    UNIFIED_PROMOTION = "unified_promotion"
    EXTERNAL_DRIVE_SYNC = "external_drive_sync"
    VAST_CPU_PIPELINE = "vast_cpu_pipeline"
    CONTINUOUS_TRAINING_LOOP = "continuous_training_loop"
    CLUSTER_DATA_SYNC = "cluster_data_sync"
    MODEL_DISTRIBUTION = "model_distribution"
    AUTO_SYNC = "auto_sync"
    TRAINING_NODE_WATCHER = "training_node_watcher"
    TRAINING_DATA_SYNC = "training_data_sync"
    OWC_IMPORT = "owc_import"
    EPHEMERAL_SYNC = "ephemeral_sync"
    P2P_AUTO_DEPLOY = "p2p_auto_deploy"
    REPLICATION_MONITOR = "replication_monitor"
    REPLICATION_REPAIR = "replication_repair"
    TOURNAMENT_DAEMON = "tournament_daemon"
    FEEDBACK_LOOP = "feedback_loop"
    NPZ_DISTRIBUTION = "npz_distribution"
    ORPHAN_DETECTION = "orphan_detection"
    EVALUATION = "evaluation"
    AUTO_PROMOTION = "auto_promotion"
    S3_BACKUP = "s3_backup"
    S3_NODE_SYNC = "s3_node_sync"
    S3_CONSOLIDATION = "s3_consolidation"
    QUALITY_MONITOR = "quality_monitor"
    INTEGRITY_CHECK = "integrity_check"
    MODEL_PERFORMANCE_WATCHDOG = "model_performance_watchdog"
    JOB_SCHEDULER = "job_scheduler"
    RESOURCE_OPTIMIZER = "resource_optimizer"
    IDLE_RESOURCE = "idle_resource"
    NODE_RECOVERY = "node_recovery"
    TAILSCALE_HEALTH = "tailscale_health"
    QUEUE_POPULATOR = "queue_populator"
    WORK_QUEUE_MONITOR = "work_queue_monitor"
    COORDINATOR_HEALTH_MONITOR = "coordinator_health_monitor"
    CURRICULUM_INTEGRATION = "curriculum_integration"
    AUTO_EXPORT = "auto_export"
    TRAINING_TRIGGER = "training_trigger"
    GAUNTLET_FEEDBACK = "gauntlet_feedback"
    RECOVERY_ORCHESTRATOR = "recovery_orchestrator"
    CACHE_COORDINATION = "cache_coordination"
    METRICS_ANALYSIS = "metrics_analysis"
    PER_ORCHESTRATOR = "per_orchestrator"
    ADAPTIVE_RESOURCES = "adaptive_resources"
    MULTI_PROVIDER = "multi_provider"
    SYSTEM_HEALTH_MONITOR = "system_health_monitor"
    HEALTH_SERVER = "health_server"
    MAINTENANCE = "maintenance"
    UTILIZATION_OPTIMIZER = "utilization_optimizer"
    LAMBDA_IDLE = "lambda_idle"
    VAST_IDLE = "vast_idle"
    CLUSTER_WATCHDOG = "cluster_watchdog"
    DATA_CLEANUP = "data_cleanup"
    DATA_CONSOLIDATION = "data_consolidation"
    NPZ_COMBINATION = "npz_combination"
    DISK_SPACE_MANAGER = "disk_space_manager"
    COORDINATOR_DISK_MANAGER = "coordinator_disk_manager"
    SYNC_PUSH = "sync_push"
    UNIFIED_DATA_PLANE = "unified_data_plane"
    NODE_AVAILABILITY = "node_availability"
    AVAILABILITY_NODE_MONITOR = "availability_node_monitor"
    AVAILABILITY_RECOVERY_ENGINE = "availability_recovery_engine"
    AVAILABILITY_PROVISIONER = "availability_provisioner"
    AVAILABILITY_CAPACITY_PLANNER = "availability_capacity_planner"
    CASCADE_TRAINING = "cascade_training"
    PROGRESS_WATCHDOG = "progress_watchdog"
    P2P_RECOVERY = "p2p_recovery"
    MEMORY_MONITOR = "memory_monitor"
    STALE_FALLBACK = "stale_fallback"
    CONNECTIVITY_RECOVERY = "connectivity_recovery"
    NNUE_TRAINING = "nnue_training"
    ARCHITECTURE_FEEDBACK = "architecture_feedback"

    @classmethod
    def register(cls, name: str) -> DaemonType:
        """Make `DaemonType.NAME` and `DaemonType("name")` stand for a daemon of your own.

        Iteration stays what the product ships. Registering a name again returns the same member.
        """
        if not isinstance(name, str) or not name.isidentifier() or name != name.upper():
            raise ConfigError(f"{name!r} is no daemon name; use capital letters, digits and '_'")
        if name in cls.__members__:
            raise ConfigError(f"{name} is a daemon of the product")
        custom = process_scope().get(_CustomTypes, _CustomTypes).by_value
        if name.lower() not in custom:
            member = str.__new__(cls, name.lower())
            member._name_, member._value_ = name, name.lower()
            custom[name.lower()] = member
            setattr(cls, name, member)
        return custom[name.lower()]

    @classmethod
    def _missing_(cls, value: object) -> DaemonType | None:
        found = process_scope().peek(_CustomTypes)
        return None if found is None else found.by_value.get(str(value))


def daemon_type_of(value: Any) -> DaemonType:
    """Return the daemon type that *value* is or names; `ConfigError` if there is none."""
    try:
        return DaemonType(value)
    except ValueError:
        name = value.upper() if isinstance(value, str) and value.upper().isidentifier() else "MY_DAEMON"
        raise ConfigError(
            f"{value!r} is no daemon type; make one of your own with "
            f'DaemonType.register("{name}"), and use what that returns'
        ) from None


def daemon_types_of(name: str, values: object) -> tuple[DaemonType, ...]:
    """Return several daemon types; `ConfigError` for a single one, or for what is none."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ConfigError(f"{name} is {values!r}; it must be several daemon types, in a list")
    return tuple(daemon_type_of(value) for value in values)


class _CustomTypes:
    """The daemon types that this process added."""

    def __init__(self) -> None:
        self.by_value: dict[str, DaemonType] = {}


class DaemonState(StrEnum):
    """What a daemon is doing."""

    STOPPED = "stopped"  # never started, stopped on purpose, or completed
    STARTING = "starting"  # its start hook runs
    RUNNING = "running"
    STOPPING = "stopping"
    FAILED = "failed"  # crashed and will not be restarted
    RESTARTING = "restarting"  # crashed and waits for its restart
    IMPORT_FAILED = "import_failed"  # its code could not be imported
    DEGRADED = "degraded"  # critical and out of budget: tried again at long intervals


class DaemonCategory(StrEnum):
    """What a daemon is about; crashes are also counted by category."""

    EVENT = "event"
    SYNC = "sync"
    PIPELINE = "pipeline"
    HEALTH = "health"
    EVALUATION = "evaluation"
    DISTRIBUTION = "distribution"
    RESOURCE = "resource"
    FEEDBACK = "feedback"
    QUEUE = "queue"
    RECOVERY = "recovery"
    AUTONOMOUS = "autonomous"
    PROVIDER = "provider"
    MISC = "misc"


class RestartTier(StrEnum):
    """How worried the restart authority is."""

    NORMAL = "normal"
    ELEVATED = "elevated"  # a crash loop
    DEGRADED = "degraded"  # the budget is spent; only long waits from here


# A liveness probe fails while one of these is wanted, available and down.
CRITICAL_DAEMONS: frozenset[DaemonType] = frozenset(
    {
        DaemonType.EVENT_ROUTER,
        DaemonType.DAEMON_WATCHDOG,
        DaemonType.DATA_PIPELINE,
        DaemonType.AUTO_SYNC,
        DaemonType.QUEUE_POPULATOR,
        DaemonType.IDLE_RESOURCE,
        DaemonType.FEEDBACK_LOOP,
        DaemonType.MEMORY_MONITOR,
    }
)

# Who starts first among those that could; subscribers come before the daemons they listen to.
DAEMON_STARTUP_ORDER: tuple[DaemonType, ...] = (
    DaemonType.EVENT_ROUTER,
    DaemonType.DAEMON_WATCHDOG,
    DaemonType.DATA_PIPELINE,
    DaemonType.FEEDBACK_LOOP,
    DaemonType.AUTO_SYNC,
    DaemonType.QUEUE_POPULATOR,
    DaemonType.WORK_QUEUE_MONITOR,
    DaemonType.COORDINATOR_HEALTH_MONITOR,
    DaemonType.IDLE_RESOURCE,
    DaemonType.TRAINING_TRIGGER,
    DaemonType.CLUSTER_MONITOR,
    DaemonType.NODE_HEALTH_MONITOR,
    DaemonType.HEALTH_SERVER,
    DaemonType.CLUSTER_WATCHDOG,
    DaemonType.NODE_RECOVERY,
    DaemonType.MEMORY_MONITOR,
    DaemonType.QUALITY_MONITOR,
    DaemonType.NNUE_TRAINING,
    DaemonType.ARCHITECTURE_FEEDBACK,
    DaemonType.DISTILLATION,
    DaemonType.EVALUATION,
    DaemonType.UNIFIED_PROMOTION,
    DaemonType.AUTO_PROMOTION,
    DaemonType.MODEL_DISTRIBUTION,
)


@dataclass(slots=True)
class DaemonInfo:
    """All that is known of one daemon."""

    daemon_type: DaemonType
    state: DaemonState = DaemonState.STOPPED
    task: asyncio.Task[Any] | None = None
    start_time: float = 0.0
    restart_count: int = 0
    last_error: str | None = None
    health_check_interval: float = 60.0
    auto_restart: bool = True
    max_restarts: int = 5
    restart_delay: float = 5.0
    startup_grace_period: float = 60.0
    depends_on: list[DaemonType] = field(default_factory=list)
    soft_depends_on: list[DaemonType] = field(default_factory=list)
    startup_mode: str = "degraded"
    missing_soft_deps: list[DaemonType] = field(default_factory=list)
    degraded_mode: bool = False
    stable_since: float = 0.0
    last_failure_time: float = 0.0
    import_error: str | None = None
    ready_event: asyncio.Event | None = None
    ready_timeout: float = 30.0
    instance: Any = None
    unavailable_reason: str = ""  # why it cannot be started in this version; empty when it can
    completed: bool = False  # it returned by itself; that is an end, not a crash
    paused: bool = False
    leaked: bool = False  # it ignored cancellation and may still run

    @property
    def uptime_seconds(self) -> float:
        """How long it has been running; 0.0 when it is not."""
        return self.uptime_at(system_runtime().now_s())

    def uptime_at(self, now_s: float) -> float:
        """The same at a given moment; 0.0 also where nobody noted the start, or a clock was set back."""
        if self.state is not DaemonState.RUNNING or not self.start_time:
            return 0.0
        return max(0.0, now_s - self.start_time)


SECONDS_MAX = 1e7  # nobody waits longer for anything here


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonManagerConfig:
    """How the manager behaves. Refuses values under which it could not keep its promises."""

    auto_start: bool = False  # start the standard profile as soon as the manager is on a loop
    enable_coordination_wiring: bool = True  # react to and emit events
    dependency_wait_timeout: float = 30.0
    dependency_poll_interval: float = 0.5  # longest time until a waiting start looks again
    health_check_interval: float = 30.0
    shutdown_timeout: float = 30.0
    force_kill_timeout: float = 5.0
    auto_restart_failed: bool = True
    strict_registry_validation: bool = False
    max_restart_attempts: int = 5
    recovery_cooldown: float = 10.0  # least time between two restarts of one daemon
    critical_daemon_health_interval: float = 15.0
    default_startup_grace_period: float = 60.0
    stable_time: float = 60.0  # a run this long was healthy: its crash is answered at once
    memory_limit_percent: float = 90.0  # above this only critical daemons are started
    loop_watchdog: bool = True

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(item.default, bool):
                if not isinstance(value, bool):
                    raise ConfigError(f"{item.name} is {value!r}; it must be True or False")
            elif isinstance(item.default, int) and (not isinstance(value, int) or isinstance(value, bool)):
                raise ConfigError(f"{item.name} is {value!r}; it must be a whole number")
            elif (
                isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < SECONDS_MAX
            ):
                raise ConfigError(f"{item.name} is {value!r}; it must be a number from 0 to 10,000,000")
        for name in ("health_check_interval", "critical_daemon_health_interval", "dependency_poll_interval"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is 0; it must be above 0, or the manager would never rest")
        if self.shutdown_timeout <= 0:
            raise ConfigError("shutdown_timeout is 0; daemons need some time to end")
        if not 0 < self.memory_limit_percent <= 100:
            raise ConfigError(f"memory_limit_percent is {self.memory_limit_percent!r}; it must be 1 to 100")


class ReadySignals:
    """Where `mark_daemon_ready` reports to: the manager of this process, once there is one."""

    def __init__(self, report: Callable[[DaemonType], bool]) -> None:
        self.report = report


def mark_daemon_ready(daemon_type: DaemonType) -> bool:
    """Tell the manager of this process that a daemon finished starting; False when there is none."""
    signals = process_scope().peek(ReadySignals)
    return False if signals is None else signals.report(daemon_type)
