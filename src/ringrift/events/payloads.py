# Generated from the event catalog; change the catalog and run `python -m ringrift.events.catalog.generate`.
"""The payload of every event, for type checkers. Further fields are always allowed."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class AdaptiveParamsChangedPayload(TypedDict):
    """ADAPTIVE_PARAMS_CHANGED."""

    config_key: str
    params: dict[str, Any]
    reason: NotRequired[str | None]


class ArchitectureWeightsUpdatedPayload(TypedDict):
    """ARCHITECTURE_WEIGHTS_UPDATED."""

    config_key: str
    weights: dict[str, float]


class BackpressureActivatedPayload(TypedDict):
    """BACKPRESSURE_ACTIVATED."""

    node_id: NotRequired[str | None]
    level: str
    reason: str
    resource_type: NotRequired[str | None]
    queue_depth: NotRequired[int | None]
    utilization: NotRequired[float | None]
    spawn_rate_multiplier: NotRequired[float | None]


class BackpressureReleasedPayload(TypedDict):
    """BACKPRESSURE_RELEASED."""

    node_id: NotRequired[str | None]
    previous_level: NotRequired[str | None]
    reason: NotRequired[str | None]
    duration_seconds: NotRequired[float | None]
    queue_depth: NotRequired[int | None]


class BatchDispatchedPayload(TypedDict):
    """BATCH_DISPATCHED."""

    batch_id: str
    batch_type: str
    config_key: str
    jobs_dispatched: int
    jobs_failed: int
    target_nodes: list[str]


class BatchScheduledPayload(TypedDict):
    """BATCH_SCHEDULED."""

    batch_id: str
    batch_type: str
    config_key: str
    job_count: int
    target_nodes: list[str]
    reason: NotRequired[str | None]


class BudgetAlertPayload(TypedDict):
    """BUDGET_ALERT."""

    budget_type: str
    limit_usd: float
    current_usd: float
    threshold_percent: float


class BudgetExceededPayload(TypedDict):
    """BUDGET_EXCEEDED."""

    budget_type: str
    limit_usd: float
    current_usd: float


class CacheInvalidatedPayload(TypedDict):
    """CACHE_INVALIDATED."""

    invalidation_type: str
    target_id: str
    count: int
    affected_nodes: NotRequired[list[str] | None]
    affected_models: NotRequired[list[str] | None]


class CapacityLowPayload(TypedDict):
    """CAPACITY_LOW."""

    current_gpus: int
    min_gpus: int
    provider: NotRequired[str | None]


class CapacityRestoredPayload(TypedDict):
    """CAPACITY_RESTORED."""

    current_gpus: int
    min_gpus: int


class CheckpointLoadedPayload(TypedDict):
    """CHECKPOINT_LOADED."""

    config_key: str
    checkpoint_path: str
    epoch: int
    step: NotRequired[int | None]


class CheckpointSavedPayload(TypedDict):
    """CHECKPOINT_SAVED."""

    config_key: str
    checkpoint_path: str
    epoch: int
    step: NotRequired[int | None]
    metrics: NotRequired[dict[str, Any] | None]


class ClusterCapacityChangedPayload(TypedDict):
    """CLUSTER_CAPACITY_CHANGED."""

    total_gpus: int
    available_gpus: int
    total_nodes: int
    healthy_nodes: int
    change_type: NotRequired[str | None]


class ClusterStallDetectedPayload(TypedDict):
    """CLUSTER_STALL_DETECTED."""

    stalled_nodes: list[str]
    stall_threshold_seconds: float
    active_nodes: NotRequired[int | None]
    total_nodes: NotRequired[int | None]


class ClusterStatusChangedPayload(TypedDict):
    """CLUSTER_STATUS_CHANGED."""

    healthy: bool
    healthy_nodes: int
    node_count: int
    alerts: NotRequired[list[str] | None]


class CmaesCompletedPayload(TypedDict):
    """CMAES_COMPLETED."""

    config_key: str
    run_id: str
    best_params: dict[str, Any]
    best_score: float
    generations: NotRequired[int | None]


class CmaesTriggeredPayload(TypedDict):
    """CMAES_TRIGGERED."""

    config_key: str
    run_id: str
    reason: str
    current_params: NotRequired[dict[str, Any] | None]
    generations: NotRequired[int | None]
    population_size: NotRequired[int | None]


class ConsolidationCompletePayload(TypedDict):
    """CONSOLIDATION_COMPLETE."""

    config_key: str
    canonical_db: str
    games_merged: int
    total_games: int
    board_type: NotRequired[str | None]
    num_players: NotRequired[int | None]


class ConsolidationStartedPayload(TypedDict):
    """CONSOLIDATION_STARTED."""

    config_key: str
    board_type: NotRequired[str | None]
    num_players: NotRequired[int | None]


class CoordinatorHealthyPayload(TypedDict):
    """COORDINATOR_HEALTHY."""

    coordinator_name: str
    health_score: float
    uptime_seconds: float
    subscribed: bool


class CoordinatorHealthDegradedPayload(TypedDict):
    """COORDINATOR_HEALTH_DEGRADED."""

    coordinator_name: str
    reason: str
    health_score: float
    issues: NotRequired[list[str] | None]


class CoordinatorHeartbeatPayload(TypedDict):
    """COORDINATOR_HEARTBEAT."""

    coordinator_name: str
    health_score: float
    active_handlers: int
    events_processed: int


class CoordinatorInitFailedPayload(TypedDict):
    """COORDINATOR_INIT_FAILED."""

    coordinator_name: str
    error: str


class CoordinatorShutdownPayload(TypedDict):
    """COORDINATOR_SHUTDOWN."""

    coordinator_name: str
    reason: str
    remaining_tasks: NotRequired[int | None]
    state_snapshot: NotRequired[dict[str, Any] | None]


class CoordinatorUnhealthyPayload(TypedDict):
    """COORDINATOR_UNHEALTHY."""

    coordinator_name: str
    reason: str
    error: NotRequired[str | None]
    health_score: float


class CpuPipelineJobCompletedPayload(TypedDict):
    """CPU_PIPELINE_JOB_COMPLETED."""

    job_id: str
    job_type: str
    node_id: str
    success: bool
    duration_seconds: float
    error: NotRequired[str | None]
    result: NotRequired[dict[str, Any] | None]


class CrossboardPromotionPayload(TypedDict):
    """CROSSBOARD_PROMOTION."""

    model_id: str
    config_keys: list[str]
    decision: str


class CurriculumAdvancedPayload(TypedDict):
    """CURRICULUM_ADVANCED."""

    config_key: str
    old_tier: str
    new_tier: str
    trigger: str
    elo: NotRequired[float | None]
    win_rate: NotRequired[float | None]
    games_at_tier: NotRequired[int | None]


class CurriculumAdvancementNeededPayload(TypedDict):
    """CURRICULUM_ADVANCEMENT_NEEDED."""

    config_key: str
    reason: str


class CurriculumRebalancedPayload(TypedDict):
    """CURRICULUM_REBALANCED."""

    weights: dict[str, float]
    previous_weights: NotRequired[dict[str, float] | None]
    changed_configs: NotRequired[list[str] | None]
    config_key: NotRequired[str | None]
    trigger: str
    reason: NotRequired[str | None]


class CurriculumUpdatedPayload(TypedDict):
    """CURRICULUM_UPDATED."""

    config_key: str
    new_weight: float
    trigger: str
    all_weights: NotRequired[dict[str, float] | None]


class DaemonCrashLoopDetectedPayload(TypedDict):
    """DAEMON_CRASH_LOOP_DETECTED."""

    daemon_name: str
    node_id: str
    restart_count: int
    window_minutes: int
    max_restarts: int


class DaemonPermanentlyFailedPayload(TypedDict):
    """DAEMON_PERMANENTLY_FAILED."""

    daemon_name: str
    node_id: str
    restart_count: int
    requires_intervention: bool


class DaemonStartedPayload(TypedDict):
    """DAEMON_STARTED."""

    daemon_name: str
    node_id: str
    pid: int


class DaemonStatusChangedPayload(TypedDict):
    """DAEMON_STATUS_CHANGED."""

    daemon_name: str
    node_id: str
    old_status: str
    new_status: str
    reason: NotRequired[str | None]
    error: NotRequired[str | None]


class DaemonStoppedPayload(TypedDict):
    """DAEMON_STOPPED."""

    daemon_name: str
    node_id: str
    reason: str


class DatabaseCreatedPayload(TypedDict):
    """DATABASE_CREATED."""

    db_path: str
    config_key: str
    node_id: str
    engine_mode: NotRequired[str | None]


class DataBackupCompletedPayload(TypedDict):
    """DATA_BACKUP_COMPLETED."""

    data_type: str
    storage_path: str
    total_files: int
    total_bytes: int
    drives_succeeded: NotRequired[int | None]


class DataFreshPayload(TypedDict):
    """DATA_FRESH."""

    config_key: str
    data_age_hours: float
    threshold_hours: float
    last_sync_time: NotRequired[str | None]


class DataQualityAlertPayload(TypedDict):
    """DATA_QUALITY_ALERT."""

    config_key: NotRequired[str | None]
    db_path: NotRequired[str | None]
    alert_type: str
    severity: str
    message: str


class DataStalePayload(TypedDict):
    """DATA_STALE."""

    config_key: str
    data_age_hours: float
    threshold_hours: float
    last_sync_time: NotRequired[str | None]


class DataSyncCompletedPayload(TypedDict):
    """DATA_SYNC_COMPLETED."""

    sync_id: NotRequired[str | None]
    node_id: NotRequired[str | None]
    config_key: NotRequired[str | None]
    sync_type: NotRequired[str | None]
    games_synced: int
    files_synced: NotRequired[int | None]
    bytes_transferred: NotRequired[int | None]
    duration_seconds: float
    targets: NotRequired[list[str] | None]


class DataSyncFailedPayload(TypedDict):
    """DATA_SYNC_FAILED."""

    sync_id: NotRequired[str | None]
    node_id: NotRequired[str | None]
    config_key: NotRequired[str | None]
    error: str
    retry_count: NotRequired[int | None]
    targets: NotRequired[list[str] | None]


class DataSyncStartedPayload(TypedDict):
    """DATA_SYNC_STARTED."""

    sync_id: NotRequired[str | None]
    node_id: str
    sync_type: str
    data_type: NotRequired[str | None]
    targets: NotRequired[list[str] | None]


class DeadlockDetectedPayload(TypedDict):
    """DEADLOCK_DETECTED."""

    resources: list[str]
    holders: list[str]


class DiskCleanupTriggeredPayload(TypedDict):
    """DISK_CLEANUP_TRIGGERED."""

    node_id: str
    bytes_freed: int
    cleanups_performed: int
    duration_seconds: NotRequired[float | None]


class DiskSpaceLowPayload(TypedDict):
    """DISK_SPACE_LOW."""

    node_id: str
    usage_percent: float
    free_gb: float
    threshold: float


class DistributionIncompletePayload(TypedDict):
    """DISTRIBUTION_INCOMPLETE."""

    model_path: str
    required_nodes: int
    actual_nodes: int
    timeout_seconds: NotRequired[float | None]


class DlqEventsPurgedPayload(TypedDict):
    """DLQ_EVENTS_PURGED."""

    count: int
    reason: str


class DlqEventsReplayedPayload(TypedDict):
    """DLQ_EVENTS_REPLAYED."""

    recovered_count: int
    event_types: list[str]


class DlqStaleEventsPayload(TypedDict):
    """DLQ_STALE_EVENTS."""

    stale_count: int
    event_types: list[str]
    max_stale_hours: float


class EloSignificantChangePayload(TypedDict):
    """ELO_SIGNIFICANT_CHANGE."""

    config_key: str
    model_id: str
    elo_delta: float
    new_elo: float
    old_elo: NotRequired[float | None]
    threshold: float


class EloUpdatedPayload(TypedDict):
    """ELO_UPDATED."""

    config_key: str
    model_id: str
    new_elo: float
    old_elo: float
    elo_delta: float
    games_played: int


class EloVelocityChangedPayload(TypedDict):
    """ELO_VELOCITY_CHANGED."""

    config_key: str
    velocity: float
    previous_velocity: float
    velocity_change: NotRequired[float | None]
    trend: str


class EpochAdvancedPayload(TypedDict):
    """EPOCH_ADVANCED."""

    old_epoch: int
    new_epoch: int


class ErrorPayload(TypedDict):
    """ERROR."""

    component: str
    error: str
    details: NotRequired[dict[str, Any] | None]
    node_id: NotRequired[str | None]


class EvaluationCompletedPayload(TypedDict):
    """EVALUATION_COMPLETED."""

    config_key: str
    model_id: str
    model_path: str
    elo: float
    elo_delta: NotRequired[float | None]
    win_rate: float
    games_played: int
    opponent_results: NotRequired[dict[str, Any] | None]
    vs_random_rate: NotRequired[float | None]
    vs_heuristic_rate: NotRequired[float | None]
    passed: NotRequired[bool | None]
    harness_results: NotRequired[dict[str, Any] | None]
    success: NotRequired[bool | None]


class EvaluationFailedPayload(TypedDict):
    """EVALUATION_FAILED."""

    config_key: str
    model_id: str
    model_path: NotRequired[str | None]
    error: str


class EvaluationProgressPayload(TypedDict):
    """EVALUATION_PROGRESS."""

    config_key: str
    model_id: NotRequired[str | None]
    opponent: NotRequired[str | None]
    games_completed: int
    games_total: int
    wins: int
    losses: int
    draws: NotRequired[int | None]
    win_rate: float


class EvaluationStartedPayload(TypedDict):
    """EVALUATION_STARTED."""

    config_key: str
    model_id: str
    model_path: NotRequired[str | None]
    games_planned: int


class ExplorationAdjustedPayload(TypedDict):
    """EXPLORATION_ADJUSTED."""

    config_key: str
    exploration: float
    previous: NotRequired[float | None]
    reason: str


class ExplorationBoostPayload(TypedDict):
    """EXPLORATION_BOOST."""

    config_key: str
    boost_factor: float
    reason: str
    anomaly_count: NotRequired[int | None]
    duration_games: NotRequired[int | None]


class ExportTriggeredPayload(TypedDict):
    """EXPORT_TRIGGERED."""

    config_key: NotRequired[str | None]
    threshold_met: bool
    games_synced: NotRequired[int | None]


class GameSyncedPayload(TypedDict):
    """GAME_SYNCED."""

    node_id: str
    games_pushed: int
    target_nodes: list[str]
    db_paths: NotRequired[list[str] | None]
    is_ephemeral: NotRequired[bool | None]


class HandlerFailedPayload(TypedDict):
    """HANDLER_FAILED."""

    handler_name: str
    event_type: str
    event_id: NotRequired[str | None]
    error: str
    coordinator: NotRequired[str | None]
    dlq_id: NotRequired[str | None]


class HandlerTimeoutPayload(TypedDict):
    """HANDLER_TIMEOUT."""

    handler_name: str
    event_type: str
    event_id: NotRequired[str | None]
    timeout_seconds: float
    coordinator: NotRequired[str | None]


class HealthAlertPayload(TypedDict):
    """HEALTH_ALERT."""

    alert_type: str
    severity: str
    message: str
    node_id: NotRequired[str | None]
    details: NotRequired[dict[str, Any] | None]


class HealthCheckFailedPayload(TypedDict):
    """HEALTH_CHECK_FAILED."""

    node_id: str
    check_type: str
    reason: str
    error: NotRequired[str | None]
    consecutive_failures: NotRequired[int | None]


class HealthCheckPassedPayload(TypedDict):
    """HEALTH_CHECK_PASSED."""

    node_id: str
    check_type: str
    latency_ms: NotRequired[float | None]


class HighQualityDataAvailablePayload(TypedDict):
    """HIGH_QUALITY_DATA_AVAILABLE."""

    config_key: str
    avg_quality: float
    high_quality_count: int


class HostOfflinePayload(TypedDict):
    """HOST_OFFLINE."""

    node_id: str
    reason: str
    last_seen: NotRequired[float | None]


class HostOnlinePayload(TypedDict):
    """HOST_ONLINE."""

    node_id: str
    address: NotRequired[str | None]
    host_type: NotRequired[str | None]
    capabilities: NotRequired[list[str] | None]
    gpu_count: NotRequired[int | None]


class HyperparameterUpdatedPayload(TypedDict):
    """HYPERPARAMETER_UPDATED."""

    config_key: str
    param_name: str
    old_value: Any
    new_value: Any
    optimizer: NotRequired[str | None]
    reason: NotRequired[str | None]


class IdleResourceDetectedPayload(TypedDict):
    """IDLE_RESOURCE_DETECTED."""

    node_id: str
    gpu_utilization: float
    gpu_memory_gb: float
    idle_duration_seconds: float
    recommended_config: NotRequired[str | None]


class IdleStateBroadcastPayload(TypedDict):
    """IDLE_STATE_BROADCAST."""

    node_id: str
    is_idle: bool
    gpu_utilization: float
    gpu_memory_free_gb: float
    idle_duration_seconds: float
    active_jobs: int
    recommended_config: NotRequired[str | None]


class IdleStateRequestPayload(TypedDict):
    """IDLE_STATE_REQUEST."""

    requester: str


class IterationCompletedPayload(TypedDict):
    """ITERATION_COMPLETED."""

    config_key: NotRequired[str | None]
    iteration: int
    success: NotRequired[bool | None]
    duration_seconds: NotRequired[float | None]
    metadata: NotRequired[dict[str, Any] | None]


class JobPreemptedPayload(TypedDict):
    """JOB_PREEMPTED."""

    node_id: str
    preempted_job_id: str
    preempted_job_type: str
    preempting_job_id: str
    preempting_job_type: str
    runtime_seconds: NotRequired[float | None]


class LeaderElectedPayload(TypedDict):
    """LEADER_ELECTED."""

    leader_id: str
    term: int
    previous_leader: NotRequired[str | None]


class LeaderHeartbeatMissingPayload(TypedDict):
    """LEADER_HEARTBEAT_MISSING."""

    leader_id: str
    last_heartbeat: float
    expected_interval: float
    delay_seconds: float


class LeaderLostPayload(TypedDict):
    """LEADER_LOST."""

    old_leader_id: str
    reason: str
    term: NotRequired[int | None]


class LeaderStepdownPayload(TypedDict):
    """LEADER_STEPDOWN."""

    leader_id: str
    reason: NotRequired[str | None]
    term: NotRequired[int | None]


class LockTimeoutPayload(TypedDict):
    """LOCK_TIMEOUT."""

    lock_name: str
    holder: NotRequired[str | None]
    wait_seconds: float
    timeout_seconds: float
    operation: NotRequired[str | None]


class LowQualityDataWarningPayload(TypedDict):
    """LOW_QUALITY_DATA_WARNING."""

    config_key: str
    avg_quality: float
    low_quality_count: NotRequired[int | None]
    low_quality_ratio: NotRequired[float | None]
    reason: NotRequired[str | None]


class MemoryPressurePayload(TypedDict):
    """MEMORY_PRESSURE."""

    node_id: str
    memory_type: str
    usage_percent: float
    threshold: float
    recommended_action: NotRequired[str | None]


class MetricsUpdatedPayload(TypedDict):
    """METRICS_UPDATED."""

    metric_name: str
    value: float
    metric_type: NotRequired[str | None]
    labels: NotRequired[dict[str, Any] | None]


class ModelCorruptedPayload(TypedDict):
    """MODEL_CORRUPTED."""

    model_id: str
    model_path: str
    corruption_type: str
    node_id: NotRequired[str | None]


class ModelDistributionCompletePayload(TypedDict):
    """MODEL_DISTRIBUTION_COMPLETE."""

    model_id: NotRequired[str | None]
    config_key: NotRequired[str | None]
    models_distributed: int
    target_nodes: list[str]
    nodes_synced: NotRequired[int | None]
    duration_seconds: float


class ModelDistributionFailedPayload(TypedDict):
    """MODEL_DISTRIBUTION_FAILED."""

    model_id: NotRequired[str | None]
    config_key: NotRequired[str | None]
    error: str
    failed_nodes: NotRequired[list[str] | None]
    partial_models: NotRequired[int | None]


class ModelDistributionStartedPayload(TypedDict):
    """MODEL_DISTRIBUTION_STARTED."""

    model_id: NotRequired[str | None]
    config_key: NotRequired[str | None]
    total_models: int
    target_nodes: list[str]


class ModelEvaluationBlockedPayload(TypedDict):
    """MODEL_EVALUATION_BLOCKED."""

    config_key: NotRequired[str | None]
    model_path: str
    reason: str
    required_nodes: int
    actual_nodes: int


class ModelPromotedPayload(TypedDict):
    """MODEL_PROMOTED."""

    config_key: str
    model_id: str
    model_path: str
    elo: float
    previous_elo: NotRequired[float | None]
    elo_gain: NotRequired[float | None]
    tier: NotRequired[str | None]
    reason: NotRequired[str | None]
    supersedes: NotRequired[str | None]


class ModelSyncRequestedPayload(TypedDict):
    """MODEL_SYNC_REQUESTED."""

    model_id: str
    model_path: str
    config_key: NotRequired[str | None]
    target_node: NotRequired[str | None]
    priority: NotRequired[str | None]
    reason: NotRequired[str | None]


class ModelUpdatedPayload(TypedDict):
    """MODEL_UPDATED."""

    config_key: NotRequired[str | None]
    model_id: str
    model_path: str
    changes: NotRequired[dict[str, Any] | None]


class NasBestArchitecturePayload(TypedDict):
    """NAS_BEST_ARCHITECTURE."""

    run_id: str
    config_key: str
    architecture: dict[str, Any]
    score: float


class NasCompletedPayload(TypedDict):
    """NAS_COMPLETED."""

    run_id: str
    config_key: str
    best_architecture: dict[str, Any]
    best_score: float


class NasGenerationCompletePayload(TypedDict):
    """NAS_GENERATION_COMPLETE."""

    run_id: str
    config_key: str
    generation: int
    best_score: float


class NasStartedPayload(TypedDict):
    """NAS_STARTED."""

    run_id: str
    config_key: str
    search_space: NotRequired[dict[str, Any] | None]


class NasTriggeredPayload(TypedDict):
    """NAS_TRIGGERED."""

    config_key: str
    run_id: str
    reason: str
    search_space: NotRequired[dict[str, Any] | None]


class NetworkIsolationDetectedPayload(TypedDict):
    """NETWORK_ISOLATION_DETECTED."""

    node_id: NotRequired[str | None]
    p2p_peers: int
    tailscale_peers: int
    peer_ratio: float
    consecutive_checks: NotRequired[int | None]


class NewGamesAvailablePayload(TypedDict):
    """NEW_GAMES_AVAILABLE."""

    config_key: str
    node_id: str
    new_games: int
    total_games: NotRequired[int | None]
    db_path: NotRequired[str | None]


class NodeActivatedPayload(TypedDict):
    """NODE_ACTIVATED."""

    node_id: str
    activation_type: str
    config_key: NotRequired[str | None]


class NodeCapacityUpdatedPayload(TypedDict):
    """NODE_CAPACITY_UPDATED."""

    node_id: str
    gpu_memory_gb: float
    gpu_utilization: float
    cpu_utilization: float
    available_slots: int
    queue_depth: NotRequired[int | None]
    reason: NotRequired[str | None]


class NodeIncompatibleWithWorkloadPayload(TypedDict):
    """NODE_INCOMPATIBLE_WITH_WORKLOAD."""

    node_id: str
    has_gpu: bool
    gpu_vram_gb: float
    reason: str
    compatible_configs: NotRequired[list[str] | None]


class NodeOverloadedPayload(TypedDict):
    """NODE_OVERLOADED."""

    node_id: str
    resource_type: str
    cpu_percent: float
    gpu_percent: NotRequired[float | None]
    memory_percent: NotRequired[float | None]
    job_count: NotRequired[int | None]


class NodeProvisionedPayload(TypedDict):
    """NODE_PROVISIONED."""

    node_id: str
    provider: str
    gpu_type: str
    instance_id: NotRequired[str | None]
    address: NotRequired[str | None]
    cost_per_hour: NotRequired[float | None]


class NodeProvisionFailedPayload(TypedDict):
    """NODE_PROVISION_FAILED."""

    provider: str
    gpu_type: str
    error: str


class NodeRecoveredPayload(TypedDict):
    """NODE_RECOVERED."""

    node_id: str
    recovery_type: NotRequired[str | None]
    offline_duration_seconds: NotRequired[float | None]


class NodeRetiredPayload(TypedDict):
    """NODE_RETIRED."""

    node_id: str
    reason: str
    last_seen: NotRequired[float | None]
    total_uptime_seconds: NotRequired[float | None]


class NodeSuspectPayload(TypedDict):
    """NODE_SUSPECT."""

    node_id: str
    last_seen: NotRequired[float | None]
    seconds_since_heartbeat: float


class NodeTerminatedPayload(TypedDict):
    """NODE_TERMINATED."""

    node_id: str
    provider: str
    instance_id: NotRequired[str | None]
    reason: str
    idle_duration_seconds: NotRequired[float | None]
    cost_per_hour: NotRequired[float | None]


class NodeUnhealthyPayload(TypedDict):
    """NODE_UNHEALTHY."""

    node_id: str
    reason: str
    gpu_utilization: NotRequired[float | None]
    disk_used_percent: NotRequired[float | None]
    consecutive_failures: NotRequired[int | None]


class NpzCombinationCompletePayload(TypedDict):
    """NPZ_COMBINATION_COMPLETE."""

    config_key: str
    output_path: str
    total_samples: int
    samples_by_source: NotRequired[dict[str, int] | None]
    source_files: NotRequired[int | None]
    quality_weighted: NotRequired[bool | None]


class NpzCombinationFailedPayload(TypedDict):
    """NPZ_COMBINATION_FAILED."""

    config_key: str
    error: str


class NpzCombinationStartedPayload(TypedDict):
    """NPZ_COMBINATION_STARTED."""

    config_key: str


class NpzExportCompletePayload(TypedDict):
    """NPZ_EXPORT_COMPLETE."""

    config_key: str
    output_path: str
    samples_exported: int
    games_exported: int
    duration_seconds: NotRequired[float | None]
    success: NotRequired[bool | None]
    encoder_version: NotRequired[str | None]


class NpzExportStartedPayload(TypedDict):
    """NPZ_EXPORT_STARTED."""

    config_key: str
    job_id: NotRequired[str | None]
    games_planned: NotRequired[int | None]


class OpponentMasteredPayload(TypedDict):
    """OPPONENT_MASTERED."""

    config_key: str
    opponent: str
    win_rate: float
    games: int
    model_id: NotRequired[str | None]


class OrphanGamesDetectedPayload(TypedDict):
    """ORPHAN_GAMES_DETECTED."""

    node_id: str
    orphan_count: int
    orphan_paths: list[str]
    total_games: NotRequired[int | None]
    total_bytes: NotRequired[int | None]


class OrphanGamesRegisteredPayload(TypedDict):
    """ORPHAN_GAMES_REGISTERED."""

    node_id: NotRequired[str | None]
    registered_count: int
    registered_paths: list[str]
    games_recovered: NotRequired[int | None]


class P2pClusterHealthyPayload(TypedDict):
    """P2P_CLUSTER_HEALTHY."""

    healthy_nodes: int
    node_count: int
    leader_id: NotRequired[str | None]
    quorum: NotRequired[bool | None]


class P2pClusterUnhealthyPayload(TypedDict):
    """P2P_CLUSTER_UNHEALTHY."""

    healthy_nodes: int
    node_count: int
    alerts: NotRequired[list[str] | None]
    reason: NotRequired[str | None]


class P2pHealthRecoveredPayload(TypedDict):
    """P2P_HEALTH_RECOVERED."""

    node_id: NotRequired[str | None]
    alive_peers: int
    leader_id: NotRequired[str | None]
    recovery_duration_seconds: NotRequired[float | None]


class P2pModelSyncedPayload(TypedDict):
    """P2P_MODEL_SYNCED."""

    model_id: str
    model_path: str
    node_id: str


class P2pNodesDeadPayload(TypedDict):
    """P2P_NODES_DEAD."""

    node_ids: list[str]
    reason: NotRequired[str | None]


class P2pNodeDeadPayload(TypedDict):
    """P2P_NODE_DEAD."""

    node_id: str
    reason: str
    last_seen: NotRequired[float | None]
    offline_duration_seconds: NotRequired[float | None]


class P2pRestartTriggeredPayload(TypedDict):
    """P2P_RESTART_TRIGGERED."""

    node_id: NotRequired[str | None]
    reason: NotRequired[str | None]
    consecutive_failures: int
    total_restarts: int
    unhealthy_duration_seconds: NotRequired[float | None]


class P2pSelfplayScaledPayload(TypedDict):
    """P2P_SELFPLAY_SCALED."""

    node_id: NotRequired[str | None]
    old_count: int
    new_count: int
    reason: NotRequired[str | None]


class ParityFailureRateChangedPayload(TypedDict):
    """PARITY_FAILURE_RATE_CHANGED."""

    new_rate: float
    old_rate: float
    config_key: NotRequired[str | None]
    total_checked: NotRequired[int | None]


class ParityValidationCompletedPayload(TypedDict):
    """PARITY_VALIDATION_COMPLETED."""

    config_key: NotRequired[str | None]
    db_path: NotRequired[str | None]
    games_checked: int
    games_failed: int
    passed: bool


class ParityValidationStartedPayload(TypedDict):
    """PARITY_VALIDATION_STARTED."""

    config_key: NotRequired[str | None]
    db_path: NotRequired[str | None]
    games_planned: NotRequired[int | None]


class PbtCompletedPayload(TypedDict):
    """PBT_COMPLETED."""

    run_id: str
    config_key: str
    generations: int
    best_params: dict[str, Any]
    best_score: float


class PbtGenerationCompletePayload(TypedDict):
    """PBT_GENERATION_COMPLETE."""

    run_id: str
    config_key: str
    generation: int
    best_score: float


class PbtStartedPayload(TypedDict):
    """PBT_STARTED."""

    run_id: str
    config_key: str
    population_size: int


class PerBufferRebuiltPayload(TypedDict):
    """PER_BUFFER_REBUILT."""

    config_key: str
    buffer_path: str
    samples: int


class PerPrioritiesUpdatedPayload(TypedDict):
    """PER_PRIORITIES_UPDATED."""

    config_key: str
    samples_updated: int


class PlateauDetectedPayload(TypedDict):
    """PLATEAU_DETECTED."""

    config_key: str
    metric_name: str
    current_value: float
    best_value: NotRequired[float | None]
    epochs_since_improvement: NotRequired[int | None]
    plateau_type: NotRequired[str | None]
    current_elo: NotRequired[float | None]
    recommendation: NotRequired[str | None]


class PrioritySyncCompletedPayload(TypedDict):
    """PRIORITY_SYNC_COMPLETED."""

    config_key: str
    source_node: str
    games_synced: int


class PrioritySyncFailedPayload(TypedDict):
    """PRIORITY_SYNC_FAILED."""

    config_key: str
    source_node: NotRequired[str | None]
    errors: list[str]


class ProgressRecoveredPayload(TypedDict):
    """PROGRESS_RECOVERED."""

    config_key: str
    recovery_duration_hours: float
    current_velocity: float


class ProgressStallDetectedPayload(TypedDict):
    """PROGRESS_STALL_DETECTED."""

    config_key: str
    stall_duration_hours: float
    action: str
    current_velocity: NotRequired[float | None]
    escalation_tier: NotRequired[int | None]
    boost_multiplier: NotRequired[float | None]


class PromotionCandidatePayload(TypedDict):
    """PROMOTION_CANDIDATE."""

    config_key: str
    model_id: str
    model_path: NotRequired[str | None]
    win_rate_vs_heuristic: NotRequired[float | None]
    elo: NotRequired[float | None]


class PromotionFailedPayload(TypedDict):
    """PROMOTION_FAILED."""

    config_key: str
    model_id: str
    error: str


class PromotionRejectedPayload(TypedDict):
    """PROMOTION_REJECTED."""

    config_key: str
    model_id: str
    reason: str
    gate: NotRequired[str | None]
    elo_improvement: NotRequired[float | None]


class PromotionRolledBackPayload(TypedDict):
    """PROMOTION_ROLLED_BACK."""

    config_key: str
    from_model_id: str
    to_model_id: str
    reason: str
    triggered_by: NotRequired[str | None]


class PromotionStartedPayload(TypedDict):
    """PROMOTION_STARTED."""

    config_key: str
    model_id: str


class QualityCheckFailedPayload(TypedDict):
    """QUALITY_CHECK_FAILED."""

    config_key: str
    check_type: str
    reason: str
    last_quality: NotRequired[float | None]


class QualityCheckRequestedPayload(TypedDict):
    """QUALITY_CHECK_REQUESTED."""

    config_key: str
    reason: str
    priority: NotRequired[str | None]


class QualityDegradedPayload(TypedDict):
    """QUALITY_DEGRADED."""

    config_key: str
    quality_score: float
    threshold: float
    previous_score: NotRequired[float | None]
    degradation: NotRequired[float | None]


class QualityDistributionChangedPayload(TypedDict):
    """QUALITY_DISTRIBUTION_CHANGED."""

    config_key: str
    avg_quality: float
    high_quality_ratio: float
    low_quality_ratio: float
    total_games: int


class QualityFeedbackAdjustedPayload(TypedDict):
    """QUALITY_FEEDBACK_ADJUSTED."""

    config_key: str
    quality_score: float
    budget_multiplier: float
    old_multiplier: NotRequired[float | None]
    adjustment_type: NotRequired[str | None]


class QualityPenaltyAppliedPayload(TypedDict):
    """QUALITY_PENALTY_APPLIED."""

    config_key: str
    penalty: float
    current_weight: float
    reason: str
    rate_multiplier: NotRequired[float | None]


class QualityScoreUpdatedPayload(TypedDict):
    """QUALITY_SCORE_UPDATED."""

    config_key: str
    quality_score: float
    previous_score: NotRequired[float | None]
    total_games: NotRequired[int | None]
    high_quality_games: NotRequired[int | None]


class RecoveryCompletedPayload(TypedDict):
    """RECOVERY_COMPLETED."""

    component: NotRequired[str | None]
    node_id: NotRequired[str | None]
    action: str
    duration_seconds: float


class RecoveryFailedPayload(TypedDict):
    """RECOVERY_FAILED."""

    component: NotRequired[str | None]
    node_id: NotRequired[str | None]
    action: str
    error: str
    attempt: NotRequired[int | None]


class RecoveryInitiatedPayload(TypedDict):
    """RECOVERY_INITIATED."""

    component: NotRequired[str | None]
    node_id: NotRequired[str | None]
    strategy: NotRequired[str | None]
    reason: str
    attempt: NotRequired[int | None]


class RegistryUpdatedPayload(TypedDict):
    """REGISTRY_UPDATED."""

    action: str
    model_id: str
    version: NotRequired[str | None]


class RegressionClearedPayload(TypedDict):
    """REGRESSION_CLEARED."""

    config_key: str
    model_id: str
    metric_name: NotRequired[str | None]
    elo_recovered: NotRequired[float | None]
    reason: NotRequired[str | None]


class RegressionCriticalPayload(TypedDict):
    """REGRESSION_CRITICAL."""

    config_key: str
    model_id: NotRequired[str | None]
    current_elo: float
    elo_drop: float
    consecutive_regressions: int
    recommendation: str
    reason: str


class RegressionDetectedPayload(TypedDict):
    """REGRESSION_DETECTED."""

    config_key: str
    model_id: NotRequired[str | None]
    model_path: NotRequired[str | None]
    severity: str
    metric_name: NotRequired[str | None]
    current_value: NotRequired[float | None]
    previous_value: NotRequired[float | None]
    elo_drop: NotRequired[float | None]
    consecutive_regressions: NotRequired[int | None]


class RegressionMinorPayload(TypedDict):
    """REGRESSION_MINOR."""

    config_key: str
    model_id: NotRequired[str | None]
    elo_drop: float
    threshold: NotRequired[float | None]


class RegressionModeratePayload(TypedDict):
    """REGRESSION_MODERATE."""

    config_key: str
    model_id: NotRequired[str | None]
    elo_drop: float
    threshold: NotRequired[float | None]


class RegressionSeverePayload(TypedDict):
    """REGRESSION_SEVERE."""

    config_key: str
    model_id: NotRequired[str | None]
    elo_drop: float
    threshold: NotRequired[float | None]


class RepairCompletedPayload(TypedDict):
    """REPAIR_COMPLETED."""

    game_id: str
    source_nodes: list[str]
    target_nodes: list[str]
    duration_seconds: float
    new_replica_count: int


class RepairFailedPayload(TypedDict):
    """REPAIR_FAILED."""

    game_id: str
    source_nodes: list[str]
    target_nodes: list[str]
    error: str
    current_replica_count: NotRequired[int | None]
    duration_seconds: NotRequired[float | None]


class ReplicationAlertPayload(TypedDict):
    """REPLICATION_ALERT."""

    level: str
    message: str
    node_id: NotRequired[str | None]
    game_count: NotRequired[int | None]
    affected_nodes: NotRequired[list[str] | None]


class ResourceConstraintPayload(TypedDict):
    """RESOURCE_CONSTRAINT."""

    node_id: str
    resource_type: str
    usage_percent: float
    threshold: NotRequired[float | None]
    used_gb: NotRequired[float | None]
    total_gb: NotRequired[float | None]


class ResourceConstraintDetectedPayload(TypedDict):
    """RESOURCE_CONSTRAINT_DETECTED."""

    node_id: str
    resource_type: str
    current_value: float
    threshold: float
    severity: NotRequired[str | None]
    action_taken: NotRequired[str | None]


class S3BackupCompletedPayload(TypedDict):
    """S3_BACKUP_COMPLETED."""

    bucket: str
    uploaded_count: int
    deleted_count: NotRequired[int | None]
    duration_seconds: float
    promotions: NotRequired[list[Any] | None]


class SchedulerRegisteredPayload(TypedDict):
    """SCHEDULER_REGISTERED."""

    config_key: str
    scheduler_name: NotRequired[str | None]


class SelfplayAllocationUpdatedPayload(TypedDict):
    """SELFPLAY_ALLOCATION_UPDATED."""

    config_key: str
    allocation_weights: dict[str, float]
    exploration_boost: NotRequired[float | None]
    reason: str


class SelfplayCompletePayload(TypedDict):
    """SELFPLAY_COMPLETE."""

    config_key: str
    task_id: NotRequired[str | None]
    node_id: NotRequired[str | None]
    games_generated: int
    success: NotRequired[bool | None]
    db_path: NotRequired[str | None]
    duration_seconds: NotRequired[float | None]
    selfplay_type: NotRequired[str | None]
    engine: NotRequired[str | None]
    iteration: NotRequired[int | None]
    error: NotRequired[str | None]


class SelfplayRateChangedPayload(TypedDict):
    """SELFPLAY_RATE_CHANGED."""

    config_key: str
    old_rate: float
    new_rate: float
    change_percent: NotRequired[float | None]
    reason: str


class SelfplayTargetUpdatedPayload(TypedDict):
    """SELFPLAY_TARGET_UPDATED."""

    config_key: str
    target_games: NotRequired[int | None]
    extra_games: NotRequired[int | None]
    priority: NotRequired[str | None]
    exploration_boost: NotRequired[float | None]
    reason: str


class SplitBrainDetectedPayload(TypedDict):
    """SPLIT_BRAIN_DETECTED."""

    leaders_seen: list[str]
    severity: NotRequired[str | None]
    voter_count: NotRequired[int | None]
    resolution_action: NotRequired[str | None]
    epoch: NotRequired[int | None]


class SplitBrainResolvedPayload(TypedDict):
    """SPLIT_BRAIN_RESOLVED."""

    canonical_leader: str
    demoted_nodes: NotRequired[list[str] | None]
    votes: NotRequired[int | None]


class StartupStateValidatedPayload(TypedDict):
    """STARTUP_STATE_VALIDATED."""

    node_id: NotRequired[str | None]
    epoch: NotRequired[int | None]
    peer_count: NotRequired[int | None]
    valid: bool


class StatePersistedPayload(TypedDict):
    """STATE_PERSISTED."""

    epoch: int
    peer_count: int
    job_count: int
    leader_id: NotRequired[str | None]


class SyncChecksumFailedPayload(TypedDict):
    """SYNC_CHECKSUM_FAILED."""

    source_path: str
    dest_path: str
    target_node: str
    error: NotRequired[str | None]


class SyncFailureCriticalPayload(TypedDict):
    """SYNC_FAILURE_CRITICAL."""

    consecutive_failures: int
    last_success: NotRequired[float | None]
    time_since_success_seconds: NotRequired[float | None]


class SyncNodeUnreachablePayload(TypedDict):
    """SYNC_NODE_UNREACHABLE."""

    node_id: str
    transport: NotRequired[str | None]
    error: str


class SyncRequestPayload(TypedDict):
    """SYNC_REQUEST."""

    requester: str
    data_type: str
    targets: NotRequired[list[str] | None]
    config_key: NotRequired[str | None]
    reason: NotRequired[str | None]
    priority: NotRequired[str | None]


class SyncRetryRequestedPayload(TypedDict):
    """SYNC_RETRY_REQUESTED."""

    target_node: str
    data_type: str
    failed_transports: list[str]
    preferred_transport: NotRequired[str | None]


class SyncStalledPayload(TypedDict):
    """SYNC_STALLED."""

    source_node: str
    target_node: str
    data_type: str
    timeout_seconds: float
    retry_count: NotRequired[int | None]


class SyncTriggeredPayload(TypedDict):
    """SYNC_TRIGGERED."""

    config_key: NotRequired[str | None]
    reason: str
    source_node: NotRequired[str | None]
    targets: NotRequired[list[str] | None]
    data_age_hours: NotRequired[float | None]
    priority: NotRequired[str | None]


class TaskAbandonedPayload(TypedDict):
    """TASK_ABANDONED."""

    task_id: str
    task_type: NotRequired[str | None]
    node_id: NotRequired[str | None]
    reason: str
    component: NotRequired[str | None]


class TaskCancelledPayload(TypedDict):
    """TASK_CANCELLED."""

    task_id: str
    task_type: str
    node_id: str
    reason: str
    requested_by: NotRequired[str | None]


class TaskCompletedPayload(TypedDict):
    """TASK_COMPLETED."""

    task_id: str
    task_type: str
    node_id: str
    duration_seconds: NotRequired[float | None]
    config_key: NotRequired[str | None]
    result: NotRequired[dict[str, Any] | None]


class TaskFailedPayload(TypedDict):
    """TASK_FAILED."""

    task_id: str
    task_type: str
    node_id: str
    error: str
    error_type: NotRequired[str | None]
    retryable: NotRequired[bool | None]
    duration_seconds: NotRequired[float | None]


class TaskHeartbeatPayload(TypedDict):
    """TASK_HEARTBEAT."""

    task_id: str
    node_id: str
    progress: NotRequired[float | None]
    status: NotRequired[str | None]
    games_completed: NotRequired[int | None]
    elapsed_seconds: NotRequired[float | None]


class TaskOrphanedPayload(TypedDict):
    """TASK_ORPHANED."""

    task_id: str
    task_type: str
    node_id: str
    last_heartbeat: NotRequired[float | None]
    seconds_since_heartbeat: NotRequired[float | None]
    reason: NotRequired[str | None]


class TaskSpawnedPayload(TypedDict):
    """TASK_SPAWNED."""

    task_id: str
    task_type: str
    node_id: str
    config_key: NotRequired[str | None]
    priority: NotRequired[int | None]
    pid: NotRequired[int | None]


class TierPromotionPayload(TypedDict):
    """TIER_PROMOTION."""

    config_key: str
    old_tier: str
    new_tier: str
    model_id: NotRequired[str | None]
    win_rate: NotRequired[float | None]
    elo: NotRequired[float | None]
    games_played: NotRequired[int | None]


class TournamentCompletedPayload(TypedDict):
    """TOURNAMENT_COMPLETED."""

    config_key: str
    games_played: NotRequired[int | None]
    participants: NotRequired[list[str] | None]
    ratings: NotRequired[dict[str, Any] | None]
    evaluation_type: NotRequired[str | None]


class TrainingBlockedByQualityPayload(TypedDict):
    """TRAINING_BLOCKED_BY_QUALITY."""

    config_key: str
    quality_score: float
    threshold: float
    reason: str
    data_path: NotRequired[str | None]
    iteration: NotRequired[int | None]
    quality_history: NotRequired[list[float] | None]
    recommendation: NotRequired[str | None]


class TrainingCompletedPayload(TypedDict):
    """TRAINING_COMPLETED."""

    config_key: str
    job_id: NotRequired[str | None]
    success: bool
    model_path: str
    model_id: NotRequired[str | None]
    epochs: NotRequired[int | None]
    train_loss: NotRequired[float | None]
    val_loss: NotRequired[float | None]
    samples_trained: NotRequired[int | None]
    training_games: NotRequired[int | None]
    duration_seconds: NotRequired[float | None]
    metrics: NotRequired[dict[str, Any] | None]
    early_stopped: NotRequired[bool | None]


class TrainingEarlyStoppedPayload(TypedDict):
    """TRAINING_EARLY_STOPPED."""

    config_key: str
    epoch: int
    best_loss: float
    final_loss: float
    best_elo: NotRequired[float | None]
    reason: str
    epochs_without_improvement: int


class TrainingFailedPayload(TypedDict):
    """TRAINING_FAILED."""

    config_key: str
    job_id: str
    error: str
    error_details: NotRequired[str | None]
    node_id: NotRequired[str | None]
    epochs_completed: NotRequired[int | None]
    duration_seconds: NotRequired[float | None]


class TrainingLossAnomalyPayload(TypedDict):
    """TRAINING_LOSS_ANOMALY."""

    config_key: str
    epoch: int
    current_loss: float
    avg_loss: float
    anomaly_ratio: NotRequired[float | None]


class TrainingLossTrendPayload(TypedDict):
    """TRAINING_LOSS_TREND."""

    config_key: str
    epoch: int
    trend: str
    current_loss: float
    previous_loss: float
    improvement_rate: NotRequired[float | None]


class TrainingProgressPayload(TypedDict):
    """TRAINING_PROGRESS."""

    config_key: str
    job_id: str
    epoch: int
    total_epochs: NotRequired[int | None]
    train_loss: float
    val_loss: NotRequired[float | None]
    learning_rate: NotRequired[float | None]


class TrainingRollbackCompletedPayload(TypedDict):
    """TRAINING_ROLLBACK_COMPLETED."""

    config_key: str
    model_id: str
    checkpoint_path: str
    rollback_from: str
    reason: str


class TrainingRollbackNeededPayload(TypedDict):
    """TRAINING_ROLLBACK_NEEDED."""

    config_key: str
    model_id: str
    reason: str
    severity: str
    checkpoint_path: NotRequired[str | None]


class TrainingStartedPayload(TypedDict):
    """TRAINING_STARTED."""

    config_key: str
    job_id: str
    node_id: str
    model_version: NotRequired[str | None]
    total_epochs: NotRequired[int | None]


class TrainingThresholdReachedPayload(TypedDict):
    """TRAINING_THRESHOLD_REACHED."""

    config_key: str
    sample_count: int
    threshold: int
    quality_score: NotRequired[float | None]
    priority: NotRequired[str | None]
    reason: NotRequired[str | None]


class TrainingTriggeredPayload(TypedDict):
    """TRAINING_TRIGGERED."""

    config_key: str
    samples: NotRequired[int | None]
    job_id: NotRequired[str | None]
    trigger_reason: NotRequired[str | None]
    priority: NotRequired[str | None]
    iteration: NotRequired[int | None]


class WeightUpdatedPayload(TypedDict):
    """WEIGHT_UPDATED."""

    config_key: str
    component: str
    old_weight: float
    new_weight: float
    reason: str
    trigger_event: NotRequired[str | None]


class WorkCancelledPayload(TypedDict):
    """WORK_CANCELLED."""

    work_id: str
    work_type: str
    reason: str
    requested_by: NotRequired[str | None]


class WorkClaimedPayload(TypedDict):
    """WORK_CLAIMED."""

    work_id: str
    work_type: str
    node_id: str
    attempt: NotRequired[int | None]


class WorkCompletedPayload(TypedDict):
    """WORK_COMPLETED."""

    work_id: str
    work_type: str
    node_id: str
    config_key: NotRequired[str | None]
    duration_seconds: NotRequired[float | None]
    result: NotRequired[dict[str, Any] | None]


class WorkFailedPayload(TypedDict):
    """WORK_FAILED."""

    work_id: str
    work_type: str
    node_id: NotRequired[str | None]
    error: str
    attempts: int
    config_key: NotRequired[str | None]


class WorkQueuedPayload(TypedDict):
    """WORK_QUEUED."""

    work_id: str
    work_type: str
    config_key: NotRequired[str | None]
    priority: NotRequired[int | None]
    queue_depth: NotRequired[int | None]


class WorkRetryPayload(TypedDict):
    """WORK_RETRY."""

    work_id: str
    work_type: str
    node_id: NotRequired[str | None]
    error: str
    attempt: int
    next_attempt_at: NotRequired[float | None]


class WorkStartedPayload(TypedDict):
    """WORK_STARTED."""

    work_id: str
    work_type: str
    node_id: str


class WorkTimeoutPayload(TypedDict):
    """WORK_TIMEOUT."""

    work_id: str
    work_type: str
    node_id: str
    duration_seconds: float
    timeout_seconds: float
