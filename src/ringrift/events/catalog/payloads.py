# Generated from the event catalog; change the catalog and run `python scripts/generate_catalog.py`.
"""The payload of every event, for type checkers. Further fields are always allowed."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class PayloadOfAdaptiveParamsChanged(TypedDict):
    """ADAPTIVE_PARAMS_CHANGED."""

    config_key: str
    params: dict[str, Any]
    reason: NotRequired[str | None]


class PayloadOfArchitectureWeightsUpdated(TypedDict):
    """ARCHITECTURE_WEIGHTS_UPDATED."""

    config_key: str
    weights: dict[str, float]


class PayloadOfBackpressureActivated(TypedDict):
    """BACKPRESSURE_ACTIVATED."""

    node_id: NotRequired[str | None]
    level: str
    reason: str
    resource_type: NotRequired[str | None]
    queue_depth: NotRequired[int | None]
    utilization: NotRequired[float | None]
    spawn_rate_multiplier: NotRequired[float | None]


class PayloadOfBackpressureReleased(TypedDict):
    """BACKPRESSURE_RELEASED."""

    node_id: NotRequired[str | None]
    previous_level: NotRequired[str | None]
    reason: NotRequired[str | None]
    duration_seconds: NotRequired[float | None]
    queue_depth: NotRequired[int | None]


class PayloadOfBatchDispatched(TypedDict):
    """BATCH_DISPATCHED."""

    batch_id: str
    batch_type: str
    config_key: str
    jobs_dispatched: int
    jobs_failed: int
    target_nodes: list[str]


class PayloadOfBatchScheduled(TypedDict):
    """BATCH_SCHEDULED."""

    batch_id: str
    batch_type: str
    config_key: str
    job_count: int
    target_nodes: list[str]
    reason: NotRequired[str | None]


class PayloadOfBudgetAlert(TypedDict):
    """BUDGET_ALERT."""

    budget_type: str
    limit_usd: float
    current_usd: float
    threshold_percent: float


class PayloadOfBudgetExceeded(TypedDict):
    """BUDGET_EXCEEDED."""

    budget_type: str
    limit_usd: float
    current_usd: float


class PayloadOfCacheInvalidated(TypedDict):
    """CACHE_INVALIDATED."""

    invalidation_type: str
    target_id: str
    count: int
    affected_nodes: NotRequired[list[str] | None]
    affected_models: NotRequired[list[str] | None]


class PayloadOfCapacityLow(TypedDict):
    """CAPACITY_LOW."""

    current_gpus: int
    min_gpus: int
    provider: NotRequired[str | None]


class PayloadOfCapacityRestored(TypedDict):
    """CAPACITY_RESTORED."""

    current_gpus: int
    min_gpus: int


class PayloadOfCheckpointLoaded(TypedDict):
    """CHECKPOINT_LOADED."""

    config_key: str
    checkpoint_path: str
    epoch: NotRequired[int | None]
    step: NotRequired[int | None]


class PayloadOfCheckpointSaved(TypedDict):
    """CHECKPOINT_SAVED."""

    config_key: str
    checkpoint_path: str
    epoch: NotRequired[int | None]
    step: NotRequired[int | None]
    metrics: NotRequired[dict[str, Any] | None]


class PayloadOfClusterCapacityChanged(TypedDict):
    """CLUSTER_CAPACITY_CHANGED."""

    total_gpus: int
    available_gpus: int
    total_nodes: int
    healthy_nodes: int
    change_type: NotRequired[str | None]


class PayloadOfClusterStallDetected(TypedDict):
    """CLUSTER_STALL_DETECTED."""

    stalled_nodes: list[str]
    stall_threshold_seconds: float
    active_nodes: NotRequired[int | None]
    total_nodes: NotRequired[int | None]


class PayloadOfClusterStatusChanged(TypedDict):
    """CLUSTER_STATUS_CHANGED."""

    healthy: bool
    healthy_nodes: int
    node_count: int
    alerts: NotRequired[list[str] | None]


class PayloadOfCmaesCompleted(TypedDict):
    """CMAES_COMPLETED."""

    config_key: str
    run_id: str
    best_params: dict[str, Any]
    best_score: float
    generations: NotRequired[int | None]


class PayloadOfCmaesTriggered(TypedDict):
    """CMAES_TRIGGERED."""

    config_key: str
    run_id: str
    reason: str
    current_params: NotRequired[dict[str, Any] | None]
    generations: NotRequired[int | None]
    population_size: NotRequired[int | None]


class PayloadOfConsolidationComplete(TypedDict):
    """CONSOLIDATION_COMPLETE."""

    config_key: str
    canonical_db: str
    games_merged: int
    total_games: int
    board_type: NotRequired[str | None]
    num_players: NotRequired[int | None]


class PayloadOfConsolidationStarted(TypedDict):
    """CONSOLIDATION_STARTED."""

    config_key: str
    board_type: NotRequired[str | None]
    num_players: NotRequired[int | None]


class PayloadOfCoordinatorHealthy(TypedDict):
    """COORDINATOR_HEALTHY."""

    coordinator_name: str
    health_score: float
    uptime_seconds: float
    subscribed: bool


class PayloadOfCoordinatorHealthDegraded(TypedDict):
    """COORDINATOR_HEALTH_DEGRADED."""

    coordinator_name: str
    reason: str
    health_score: float
    issues: NotRequired[list[str] | None]


class PayloadOfCoordinatorHeartbeat(TypedDict):
    """COORDINATOR_HEARTBEAT."""

    coordinator_name: str
    health_score: float
    active_handlers: int
    events_processed: int


class PayloadOfCoordinatorInitFailed(TypedDict):
    """COORDINATOR_INIT_FAILED."""

    coordinator_name: str
    error: str


class PayloadOfCoordinatorShutdown(TypedDict):
    """COORDINATOR_SHUTDOWN."""

    coordinator_name: str
    reason: str
    remaining_tasks: NotRequired[int | None]
    state_snapshot: NotRequired[dict[str, Any] | None]


class PayloadOfCoordinatorUnhealthy(TypedDict):
    """COORDINATOR_UNHEALTHY."""

    coordinator_name: str
    reason: str
    error: NotRequired[str | None]
    health_score: float


class PayloadOfCpuPipelineJobCompleted(TypedDict):
    """CPU_PIPELINE_JOB_COMPLETED."""

    job_id: str
    job_type: str
    node_id: str
    success: bool
    duration_seconds: float
    error: NotRequired[str | None]
    result: NotRequired[dict[str, Any] | None]


class PayloadOfCrossboardPromotion(TypedDict):
    """CROSSBOARD_PROMOTION."""

    model_id: str
    config_keys: list[str]
    decision: str


class PayloadOfCurriculumAdvanced(TypedDict):
    """CURRICULUM_ADVANCED."""

    config_key: str
    old_tier: str
    new_tier: str
    trigger: str
    elo: NotRequired[float | None]
    win_rate: NotRequired[float | None]
    games_at_tier: NotRequired[int | None]


class PayloadOfCurriculumAdvancementNeeded(TypedDict):
    """CURRICULUM_ADVANCEMENT_NEEDED."""

    config_key: str
    reason: str


class PayloadOfCurriculumRebalanced(TypedDict):
    """CURRICULUM_REBALANCED."""

    weights: dict[str, float]
    previous_weights: NotRequired[dict[str, float] | None]
    changed_configs: NotRequired[list[str] | None]
    config_key: NotRequired[str | None]
    trigger: str
    reason: NotRequired[str | None]


class PayloadOfCurriculumUpdated(TypedDict):
    """CURRICULUM_UPDATED."""

    config_key: str
    new_weight: float
    trigger: str
    all_weights: NotRequired[dict[str, float] | None]


class PayloadOfDaemonCrashLoopDetected(TypedDict):
    """DAEMON_CRASH_LOOP_DETECTED."""

    daemon_name: str
    node_id: str
    restart_count: int
    window_minutes: int
    max_restarts: int


class PayloadOfDaemonPermanentlyFailed(TypedDict):
    """DAEMON_PERMANENTLY_FAILED."""

    daemon_name: str
    node_id: str
    restart_count: int
    requires_intervention: bool


class PayloadOfDaemonStarted(TypedDict):
    """DAEMON_STARTED."""

    daemon_name: str
    node_id: str
    pid: int


class PayloadOfDaemonStatusChanged(TypedDict):
    """DAEMON_STATUS_CHANGED."""

    daemon_name: str
    node_id: str
    old_status: str
    new_status: str
    reason: NotRequired[str | None]
    error: NotRequired[str | None]


class PayloadOfDaemonStopped(TypedDict):
    """DAEMON_STOPPED."""

    daemon_name: str
    node_id: str
    reason: str


class PayloadOfDatabaseCreated(TypedDict):
    """DATABASE_CREATED."""

    db_path: str
    config_key: str
    node_id: str
    engine_mode: NotRequired[str | None]


class PayloadOfDataBackupCompleted(TypedDict):
    """DATA_BACKUP_COMPLETED."""

    data_type: str
    storage_path: str
    total_files: int
    total_bytes: int
    drives_succeeded: NotRequired[int | None]


class PayloadOfDataFresh(TypedDict):
    """DATA_FRESH."""

    config_key: str
    data_age_hours: float
    threshold_hours: float
    last_sync_time: NotRequired[str | None]


class PayloadOfDataQualityAlert(TypedDict):
    """DATA_QUALITY_ALERT."""

    config_key: NotRequired[str | None]
    db_path: NotRequired[str | None]
    alert_type: str
    severity: str
    message: str


class PayloadOfDataStale(TypedDict):
    """DATA_STALE."""

    config_key: str
    data_age_hours: float
    threshold_hours: float
    last_sync_time: NotRequired[str | None]


class PayloadOfDataSyncCompleted(TypedDict):
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


class PayloadOfDataSyncFailed(TypedDict):
    """DATA_SYNC_FAILED."""

    sync_id: NotRequired[str | None]
    node_id: NotRequired[str | None]
    config_key: NotRequired[str | None]
    error: str
    retry_count: NotRequired[int | None]
    targets: NotRequired[list[str] | None]


class PayloadOfDataSyncStarted(TypedDict):
    """DATA_SYNC_STARTED."""

    sync_id: NotRequired[str | None]
    node_id: str
    sync_type: str
    data_type: NotRequired[str | None]
    targets: NotRequired[list[str] | None]


class PayloadOfDeadlockDetected(TypedDict):
    """DEADLOCK_DETECTED."""

    resources: list[str]
    holders: list[str]


class PayloadOfDiskCleanupTriggered(TypedDict):
    """DISK_CLEANUP_TRIGGERED."""

    node_id: str
    bytes_freed: int
    cleanups_performed: int
    duration_seconds: NotRequired[float | None]


class PayloadOfDiskSpaceLow(TypedDict):
    """DISK_SPACE_LOW."""

    node_id: str
    usage_percent: float
    free_gb: float
    threshold: float


class PayloadOfDistributionIncomplete(TypedDict):
    """DISTRIBUTION_INCOMPLETE."""

    model_path: str
    required_nodes: int
    actual_nodes: int
    timeout_seconds: NotRequired[float | None]


class PayloadOfDlqEventsPurged(TypedDict):
    """DLQ_EVENTS_PURGED."""

    count: int
    reason: str


class PayloadOfDlqEventsReplayed(TypedDict):
    """DLQ_EVENTS_REPLAYED."""

    recovered_count: int
    event_types: list[str]


class PayloadOfDlqStaleEvents(TypedDict):
    """DLQ_STALE_EVENTS."""

    stale_count: int
    event_types: list[str]
    max_stale_hours: float


class PayloadOfEloSignificantChange(TypedDict):
    """ELO_SIGNIFICANT_CHANGE."""

    config_key: str
    model_id: str
    elo_delta: float
    new_elo: float
    old_elo: NotRequired[float | None]
    threshold: float


class PayloadOfEloUpdated(TypedDict):
    """ELO_UPDATED."""

    config_key: str
    model_id: str
    new_elo: float
    old_elo: float
    elo_delta: float
    games_played: int


class PayloadOfEloVelocityChanged(TypedDict):
    """ELO_VELOCITY_CHANGED."""

    config_key: str
    velocity: float
    previous_velocity: float
    velocity_change: NotRequired[float | None]
    trend: str


class PayloadOfEpochAdvanced(TypedDict):
    """EPOCH_ADVANCED."""

    old_epoch: int
    new_epoch: int


class PayloadOfError(TypedDict):
    """ERROR."""

    component: str
    error: str
    details: NotRequired[dict[str, Any] | None]
    node_id: NotRequired[str | None]


class PayloadOfEvaluationCompleted(TypedDict):
    """EVALUATION_COMPLETED."""

    config_key: str
    model_id: str
    model_path: NotRequired[str | None]
    elo: NotRequired[float | None]
    elo_delta: NotRequired[float | None]
    win_rate: NotRequired[float | None]
    games_played: NotRequired[int | None]
    opponent_results: NotRequired[dict[str, Any] | None]
    vs_random_rate: NotRequired[float | None]
    vs_heuristic_rate: NotRequired[float | None]
    passed: NotRequired[bool | None]
    harness_results: NotRequired[dict[str, Any] | None]
    success: NotRequired[bool | None]
    results_path: NotRequired[str | None]


class PayloadOfEvaluationFailed(TypedDict):
    """EVALUATION_FAILED."""

    config_key: str
    model_id: str
    model_path: NotRequired[str | None]
    error: str


class PayloadOfEvaluationProgress(TypedDict):
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


class PayloadOfEvaluationStarted(TypedDict):
    """EVALUATION_STARTED."""

    config_key: str
    model_id: str
    model_path: NotRequired[str | None]
    games_planned: int


class PayloadOfExplorationAdjusted(TypedDict):
    """EXPLORATION_ADJUSTED."""

    config_key: str
    exploration: float
    previous: NotRequired[float | None]
    reason: str


class PayloadOfExplorationBoost(TypedDict):
    """EXPLORATION_BOOST."""

    config_key: str
    boost_factor: float
    reason: str
    anomaly_count: NotRequired[int | None]
    duration_games: NotRequired[int | None]


class PayloadOfExportTriggered(TypedDict):
    """EXPORT_TRIGGERED."""

    config_key: NotRequired[str | None]
    threshold_met: bool
    games_synced: NotRequired[int | None]


class PayloadOfGameSynced(TypedDict):
    """GAME_SYNCED."""

    node_id: str
    games_pushed: int
    target_nodes: list[str]
    db_paths: NotRequired[list[str] | None]
    is_ephemeral: NotRequired[bool | None]


class PayloadOfHandlerFailed(TypedDict):
    """HANDLER_FAILED."""

    handler_name: str
    event_type: str
    event_id: NotRequired[str | None]
    error: str
    coordinator: NotRequired[str | None]
    dlq_id: NotRequired[str | None]


class PayloadOfHandlerTimeout(TypedDict):
    """HANDLER_TIMEOUT."""

    handler_name: str
    event_type: str
    event_id: NotRequired[str | None]
    timeout_seconds: float
    coordinator: NotRequired[str | None]


class PayloadOfHealthAlert(TypedDict):
    """HEALTH_ALERT."""

    alert_type: str
    severity: str
    message: str
    node_id: NotRequired[str | None]
    details: NotRequired[dict[str, Any] | None]


class PayloadOfHealthCheckFailed(TypedDict):
    """HEALTH_CHECK_FAILED."""

    node_id: str
    check_type: str
    reason: str
    error: NotRequired[str | None]
    consecutive_failures: NotRequired[int | None]


class PayloadOfHealthCheckPassed(TypedDict):
    """HEALTH_CHECK_PASSED."""

    node_id: str
    check_type: str
    latency_ms: NotRequired[float | None]


class PayloadOfHighQualityDataAvailable(TypedDict):
    """HIGH_QUALITY_DATA_AVAILABLE."""

    config_key: str
    avg_quality: float
    high_quality_count: int


class PayloadOfHostOffline(TypedDict):
    """HOST_OFFLINE."""

    node_id: str
    reason: str
    last_seen: NotRequired[float | None]


class PayloadOfHostOnline(TypedDict):
    """HOST_ONLINE."""

    node_id: str
    address: NotRequired[str | None]
    host_type: NotRequired[str | None]
    capabilities: NotRequired[list[str] | None]
    gpu_count: NotRequired[int | None]


class PayloadOfHyperparameterUpdated(TypedDict):
    """HYPERPARAMETER_UPDATED."""

    config_key: str
    param_name: str
    old_value: Any
    new_value: Any
    optimizer: NotRequired[str | None]
    reason: NotRequired[str | None]


class PayloadOfIdleResourceDetected(TypedDict):
    """IDLE_RESOURCE_DETECTED."""

    node_id: str
    gpu_utilization: float
    gpu_memory_gb: float
    idle_duration_seconds: float
    recommended_config: NotRequired[str | None]


class PayloadOfIdleStateBroadcast(TypedDict):
    """IDLE_STATE_BROADCAST."""

    node_id: str
    is_idle: bool
    gpu_utilization: float
    gpu_memory_free_gb: float
    idle_duration_seconds: float
    active_jobs: int
    recommended_config: NotRequired[str | None]


class PayloadOfIdleStateRequest(TypedDict):
    """IDLE_STATE_REQUEST."""

    requester: str


class PayloadOfIterationCompleted(TypedDict):
    """ITERATION_COMPLETED."""

    config_key: NotRequired[str | None]
    iteration: int
    success: NotRequired[bool | None]
    duration_seconds: NotRequired[float | None]
    metadata: NotRequired[dict[str, Any] | None]


class PayloadOfJobPreempted(TypedDict):
    """JOB_PREEMPTED."""

    node_id: str
    preempted_job_id: str
    preempted_job_type: str
    preempting_job_id: str
    preempting_job_type: str
    runtime_seconds: NotRequired[float | None]


class PayloadOfLeaderElected(TypedDict):
    """LEADER_ELECTED."""

    leader_id: str
    term: int
    previous_leader: NotRequired[str | None]


class PayloadOfLeaderHeartbeatMissing(TypedDict):
    """LEADER_HEARTBEAT_MISSING."""

    leader_id: str
    last_heartbeat: float
    expected_interval: float
    delay_seconds: float


class PayloadOfLeaderLost(TypedDict):
    """LEADER_LOST."""

    old_leader_id: str
    reason: str
    term: NotRequired[int | None]


class PayloadOfLeaderStepdown(TypedDict):
    """LEADER_STEPDOWN."""

    leader_id: str
    reason: NotRequired[str | None]
    term: NotRequired[int | None]


class PayloadOfLockTimeout(TypedDict):
    """LOCK_TIMEOUT."""

    lock_name: str
    holder: NotRequired[str | None]
    wait_seconds: float
    timeout_seconds: float
    operation: NotRequired[str | None]


class PayloadOfLowQualityDataWarning(TypedDict):
    """LOW_QUALITY_DATA_WARNING."""

    config_key: str
    avg_quality: float
    low_quality_count: NotRequired[int | None]
    low_quality_ratio: NotRequired[float | None]
    reason: NotRequired[str | None]


class PayloadOfMemoryPressure(TypedDict):
    """MEMORY_PRESSURE."""

    node_id: str
    memory_type: str
    usage_percent: float
    threshold: float
    recommended_action: NotRequired[str | None]


class PayloadOfMetricsUpdated(TypedDict):
    """METRICS_UPDATED."""

    metric_name: str
    value: float
    metric_type: NotRequired[str | None]
    labels: NotRequired[dict[str, Any] | None]


class PayloadOfModelCorrupted(TypedDict):
    """MODEL_CORRUPTED."""

    model_id: str
    model_path: str
    corruption_type: str
    node_id: NotRequired[str | None]


class PayloadOfModelDistributionComplete(TypedDict):
    """MODEL_DISTRIBUTION_COMPLETE."""

    model_id: NotRequired[str | None]
    config_key: NotRequired[str | None]
    models_distributed: int
    target_nodes: list[str]
    nodes_synced: NotRequired[int | None]
    duration_seconds: float


class PayloadOfModelDistributionFailed(TypedDict):
    """MODEL_DISTRIBUTION_FAILED."""

    model_id: NotRequired[str | None]
    config_key: NotRequired[str | None]
    error: str
    failed_nodes: NotRequired[list[str] | None]
    partial_models: NotRequired[int | None]


class PayloadOfModelDistributionStarted(TypedDict):
    """MODEL_DISTRIBUTION_STARTED."""

    model_id: NotRequired[str | None]
    config_key: NotRequired[str | None]
    total_models: int
    target_nodes: list[str]


class PayloadOfModelEvaluationBlocked(TypedDict):
    """MODEL_EVALUATION_BLOCKED."""

    config_key: NotRequired[str | None]
    model_path: str
    reason: str
    required_nodes: int
    actual_nodes: int


class PayloadOfModelPromoted(TypedDict):
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


class PayloadOfModelSyncRequested(TypedDict):
    """MODEL_SYNC_REQUESTED."""

    model_id: str
    model_path: str
    config_key: NotRequired[str | None]
    target_node: NotRequired[str | None]
    priority: NotRequired[str | None]
    reason: NotRequired[str | None]


class PayloadOfModelUpdated(TypedDict):
    """MODEL_UPDATED."""

    config_key: NotRequired[str | None]
    model_id: str
    model_path: str
    changes: NotRequired[dict[str, Any] | None]


class PayloadOfNasBestArchitecture(TypedDict):
    """NAS_BEST_ARCHITECTURE."""

    run_id: str
    config_key: str
    architecture: dict[str, Any]
    score: float


class PayloadOfNasCompleted(TypedDict):
    """NAS_COMPLETED."""

    run_id: str
    config_key: str
    best_architecture: dict[str, Any]
    best_score: float


class PayloadOfNasGenerationComplete(TypedDict):
    """NAS_GENERATION_COMPLETE."""

    run_id: str
    config_key: str
    generation: int
    best_score: float


class PayloadOfNasStarted(TypedDict):
    """NAS_STARTED."""

    run_id: str
    config_key: str
    search_space: NotRequired[dict[str, Any] | None]


class PayloadOfNasTriggered(TypedDict):
    """NAS_TRIGGERED."""

    config_key: str
    run_id: str
    reason: str
    search_space: NotRequired[dict[str, Any] | None]


class PayloadOfNetworkIsolationDetected(TypedDict):
    """NETWORK_ISOLATION_DETECTED."""

    node_id: NotRequired[str | None]
    p2p_peers: int
    tailscale_peers: int
    peer_ratio: float
    consecutive_checks: NotRequired[int | None]


class PayloadOfNewGamesAvailable(TypedDict):
    """NEW_GAMES_AVAILABLE."""

    config_key: str
    node_id: str
    new_games: int
    total_games: NotRequired[int | None]
    db_path: NotRequired[str | None]


class PayloadOfNodeActivated(TypedDict):
    """NODE_ACTIVATED."""

    node_id: str
    activation_type: str
    config_key: NotRequired[str | None]


class PayloadOfNodeCapacityUpdated(TypedDict):
    """NODE_CAPACITY_UPDATED."""

    node_id: str
    gpu_memory_gb: float
    gpu_utilization: float
    cpu_utilization: float
    available_slots: int
    queue_depth: NotRequired[int | None]
    reason: NotRequired[str | None]


class PayloadOfNodeIncompatibleWithWorkload(TypedDict):
    """NODE_INCOMPATIBLE_WITH_WORKLOAD."""

    node_id: str
    has_gpu: bool
    gpu_vram_gb: NotRequired[float | None]
    reason: str
    compatible_configs: NotRequired[list[str] | None]


class PayloadOfNodeOverloaded(TypedDict):
    """NODE_OVERLOADED."""

    node_id: str
    resource_type: str
    cpu_percent: float
    gpu_percent: NotRequired[float | None]
    memory_percent: NotRequired[float | None]
    job_count: NotRequired[int | None]


class PayloadOfNodeProvisioned(TypedDict):
    """NODE_PROVISIONED."""

    node_id: str
    provider: str
    gpu_type: str
    instance_id: NotRequired[str | None]
    address: NotRequired[str | None]
    cost_per_hour: NotRequired[float | None]


class PayloadOfNodeProvisionFailed(TypedDict):
    """NODE_PROVISION_FAILED."""

    provider: str
    gpu_type: str
    error: str


class PayloadOfNodeRecovered(TypedDict):
    """NODE_RECOVERED."""

    node_id: str
    recovery_type: NotRequired[str | None]
    offline_duration_seconds: NotRequired[float | None]


class PayloadOfNodeRetired(TypedDict):
    """NODE_RETIRED."""

    node_id: str
    reason: str
    last_seen: NotRequired[float | None]
    total_uptime_seconds: NotRequired[float | None]


class PayloadOfNodeSuspect(TypedDict):
    """NODE_SUSPECT."""

    node_id: str
    last_seen: NotRequired[float | None]
    seconds_since_heartbeat: float


class PayloadOfNodeTerminated(TypedDict):
    """NODE_TERMINATED."""

    node_id: str
    provider: str
    instance_id: NotRequired[str | None]
    reason: str
    idle_duration_seconds: NotRequired[float | None]
    cost_per_hour: NotRequired[float | None]


class PayloadOfNodeUnhealthy(TypedDict):
    """NODE_UNHEALTHY."""

    node_id: str
    reason: str
    gpu_utilization: NotRequired[float | None]
    disk_used_percent: NotRequired[float | None]
    consecutive_failures: NotRequired[int | None]


class PayloadOfNpzCombinationComplete(TypedDict):
    """NPZ_COMBINATION_COMPLETE."""

    config_key: str
    output_path: str
    total_samples: int
    samples_by_source: NotRequired[dict[str, int] | None]
    source_files: NotRequired[int | None]
    quality_weighted: NotRequired[bool | None]


class PayloadOfNpzCombinationFailed(TypedDict):
    """NPZ_COMBINATION_FAILED."""

    config_key: str
    error: str


class PayloadOfNpzCombinationStarted(TypedDict):
    """NPZ_COMBINATION_STARTED."""

    config_key: str


class PayloadOfNpzExportComplete(TypedDict):
    """NPZ_EXPORT_COMPLETE."""

    config_key: str
    output_path: str
    samples_exported: int
    games_exported: int
    duration_seconds: NotRequired[float | None]
    success: NotRequired[bool | None]
    encoder_version: NotRequired[str | None]


class PayloadOfNpzExportStarted(TypedDict):
    """NPZ_EXPORT_STARTED."""

    config_key: str
    job_id: NotRequired[str | None]
    games_planned: NotRequired[int | None]


class PayloadOfOpponentMastered(TypedDict):
    """OPPONENT_MASTERED."""

    config_key: str
    opponent: str
    win_rate: float
    games: int
    model_id: NotRequired[str | None]


class PayloadOfOrphanGamesDetected(TypedDict):
    """ORPHAN_GAMES_DETECTED."""

    node_id: str
    orphan_count: int
    orphan_paths: list[str]
    total_games: NotRequired[int | None]
    total_bytes: NotRequired[int | None]


class PayloadOfOrphanGamesRegistered(TypedDict):
    """ORPHAN_GAMES_REGISTERED."""

    node_id: NotRequired[str | None]
    registered_count: int
    registered_paths: list[str]
    games_recovered: NotRequired[int | None]


class PayloadOfP2pClusterHealthy(TypedDict):
    """P2P_CLUSTER_HEALTHY."""

    healthy_nodes: int
    node_count: int
    leader_id: NotRequired[str | None]
    quorum: NotRequired[bool | None]


class PayloadOfP2pClusterUnhealthy(TypedDict):
    """P2P_CLUSTER_UNHEALTHY."""

    healthy_nodes: int
    node_count: int
    alerts: NotRequired[list[str] | None]
    reason: NotRequired[str | None]


class PayloadOfP2pHealthRecovered(TypedDict):
    """P2P_HEALTH_RECOVERED."""

    node_id: NotRequired[str | None]
    alive_peers: int
    leader_id: NotRequired[str | None]
    recovery_duration_seconds: NotRequired[float | None]


class PayloadOfP2pModelSynced(TypedDict):
    """P2P_MODEL_SYNCED."""

    model_id: str
    model_path: str
    node_id: str


class PayloadOfP2pNodesDead(TypedDict):
    """P2P_NODES_DEAD."""

    node_ids: list[str]
    reason: NotRequired[str | None]


class PayloadOfP2pNodeDead(TypedDict):
    """P2P_NODE_DEAD."""

    node_id: str
    reason: str
    last_seen: NotRequired[float | None]
    offline_duration_seconds: NotRequired[float | None]


class PayloadOfP2pRestartTriggered(TypedDict):
    """P2P_RESTART_TRIGGERED."""

    node_id: NotRequired[str | None]
    reason: NotRequired[str | None]
    consecutive_failures: int
    total_restarts: int
    unhealthy_duration_seconds: NotRequired[float | None]


class PayloadOfP2pSelfplayScaled(TypedDict):
    """P2P_SELFPLAY_SCALED."""

    node_id: NotRequired[str | None]
    old_count: int
    new_count: int
    reason: NotRequired[str | None]


class PayloadOfParityFailureRateChanged(TypedDict):
    """PARITY_FAILURE_RATE_CHANGED."""

    new_rate: float
    old_rate: float
    config_key: NotRequired[str | None]
    total_checked: NotRequired[int | None]


class PayloadOfParityValidationCompleted(TypedDict):
    """PARITY_VALIDATION_COMPLETED."""

    config_key: NotRequired[str | None]
    db_path: NotRequired[str | None]
    games_checked: int
    games_failed: int
    passed: bool


class PayloadOfParityValidationStarted(TypedDict):
    """PARITY_VALIDATION_STARTED."""

    config_key: NotRequired[str | None]
    db_path: NotRequired[str | None]
    games_planned: NotRequired[int | None]


class PayloadOfPbtCompleted(TypedDict):
    """PBT_COMPLETED."""

    run_id: str
    config_key: str
    generations: int
    best_params: dict[str, Any]
    best_score: float


class PayloadOfPbtGenerationComplete(TypedDict):
    """PBT_GENERATION_COMPLETE."""

    run_id: str
    config_key: str
    generation: int
    best_score: float


class PayloadOfPbtStarted(TypedDict):
    """PBT_STARTED."""

    run_id: str
    config_key: str
    population_size: int


class PayloadOfPerBufferRebuilt(TypedDict):
    """PER_BUFFER_REBUILT."""

    config_key: str
    buffer_path: str
    samples: int


class PayloadOfPerPrioritiesUpdated(TypedDict):
    """PER_PRIORITIES_UPDATED."""

    config_key: str
    samples_updated: int
    priorities: NotRequired[dict[str, float] | None]


class PayloadOfPlateauDetected(TypedDict):
    """PLATEAU_DETECTED."""

    config_key: str
    metric_name: str
    current_value: float
    best_value: NotRequired[float | None]
    epochs_since_improvement: NotRequired[int | None]
    plateau_type: NotRequired[str | None]
    current_elo: NotRequired[float | None]
    recommendation: NotRequired[str | None]


class PayloadOfPrioritySyncCompleted(TypedDict):
    """PRIORITY_SYNC_COMPLETED."""

    config_key: str
    source_node: str
    games_synced: int


class PayloadOfPrioritySyncFailed(TypedDict):
    """PRIORITY_SYNC_FAILED."""

    config_key: str
    source_node: NotRequired[str | None]
    errors: list[str]


class PayloadOfProgressRecovered(TypedDict):
    """PROGRESS_RECOVERED."""

    config_key: str
    recovery_duration_hours: float
    current_velocity: float


class PayloadOfProgressStallDetected(TypedDict):
    """PROGRESS_STALL_DETECTED."""

    config_key: str
    stall_duration_hours: float
    action: str
    current_velocity: NotRequired[float | None]
    escalation_tier: NotRequired[int | None]
    boost_multiplier: NotRequired[float | None]


class PayloadOfPromotionCandidate(TypedDict):
    """PROMOTION_CANDIDATE."""

    config_key: str
    model_id: str
    model_path: NotRequired[str | None]
    win_rate_vs_heuristic: NotRequired[float | None]
    elo: NotRequired[float | None]


class PayloadOfPromotionFailed(TypedDict):
    """PROMOTION_FAILED."""

    config_key: str
    model_id: str
    error: str


class PayloadOfPromotionRejected(TypedDict):
    """PROMOTION_REJECTED."""

    config_key: str
    model_id: str
    reason: str
    gate: NotRequired[str | None]
    elo_improvement: NotRequired[float | None]


class PayloadOfPromotionRolledBack(TypedDict):
    """PROMOTION_ROLLED_BACK."""

    config_key: str
    from_model_id: str
    to_model_id: str
    reason: str
    triggered_by: NotRequired[str | None]


class PayloadOfPromotionStarted(TypedDict):
    """PROMOTION_STARTED."""

    config_key: str
    model_id: str


class PayloadOfQualityCheckFailed(TypedDict):
    """QUALITY_CHECK_FAILED."""

    config_key: str
    check_type: str
    reason: str
    last_quality: NotRequired[float | None]


class PayloadOfQualityCheckRequested(TypedDict):
    """QUALITY_CHECK_REQUESTED."""

    config_key: str
    reason: str
    priority: NotRequired[str | None]


class PayloadOfQualityDegraded(TypedDict):
    """QUALITY_DEGRADED."""

    config_key: str
    quality_score: float
    threshold: float
    previous_score: NotRequired[float | None]
    degradation: NotRequired[float | None]


class PayloadOfQualityDistributionChanged(TypedDict):
    """QUALITY_DISTRIBUTION_CHANGED."""

    config_key: str
    avg_quality: float
    high_quality_ratio: float
    low_quality_ratio: float
    total_games: int


class PayloadOfQualityFeedbackAdjusted(TypedDict):
    """QUALITY_FEEDBACK_ADJUSTED."""

    config_key: str
    quality_score: float
    budget_multiplier: float
    old_multiplier: NotRequired[float | None]
    adjustment_type: NotRequired[str | None]


class PayloadOfQualityPenaltyApplied(TypedDict):
    """QUALITY_PENALTY_APPLIED."""

    config_key: str
    penalty: float
    current_weight: float
    reason: str
    rate_multiplier: NotRequired[float | None]


class PayloadOfQualityScoreUpdated(TypedDict):
    """QUALITY_SCORE_UPDATED."""

    config_key: str
    quality_score: float
    previous_score: NotRequired[float | None]
    total_games: NotRequired[int | None]
    high_quality_games: NotRequired[int | None]


class PayloadOfRecoveryCompleted(TypedDict):
    """RECOVERY_COMPLETED."""

    component: NotRequired[str | None]
    node_id: NotRequired[str | None]
    action: str
    duration_seconds: float


class PayloadOfRecoveryFailed(TypedDict):
    """RECOVERY_FAILED."""

    component: NotRequired[str | None]
    node_id: NotRequired[str | None]
    action: str
    error: str
    attempt: NotRequired[int | None]


class PayloadOfRecoveryInitiated(TypedDict):
    """RECOVERY_INITIATED."""

    component: NotRequired[str | None]
    node_id: NotRequired[str | None]
    strategy: NotRequired[str | None]
    reason: str
    attempt: NotRequired[int | None]


class PayloadOfRegistryUpdated(TypedDict):
    """REGISTRY_UPDATED."""

    action: str
    model_id: str
    version: NotRequired[str | None]


class PayloadOfRegressionCleared(TypedDict):
    """REGRESSION_CLEARED."""

    config_key: str
    model_id: str
    metric_name: NotRequired[str | None]
    elo_recovered: NotRequired[float | None]
    reason: NotRequired[str | None]


class PayloadOfRegressionCritical(TypedDict):
    """REGRESSION_CRITICAL."""

    config_key: str
    model_id: NotRequired[str | None]
    current_elo: float
    elo_drop: float
    consecutive_regressions: int
    recommendation: str
    reason: str


class PayloadOfRegressionDetected(TypedDict):
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


class PayloadOfRegressionMinor(TypedDict):
    """REGRESSION_MINOR."""

    config_key: str
    model_id: NotRequired[str | None]
    elo_drop: float
    threshold: NotRequired[float | None]


class PayloadOfRegressionModerate(TypedDict):
    """REGRESSION_MODERATE."""

    config_key: str
    model_id: NotRequired[str | None]
    elo_drop: float
    threshold: NotRequired[float | None]


class PayloadOfRegressionSevere(TypedDict):
    """REGRESSION_SEVERE."""

    config_key: str
    model_id: NotRequired[str | None]
    elo_drop: float
    threshold: NotRequired[float | None]


class PayloadOfRepairCompleted(TypedDict):
    """REPAIR_COMPLETED."""

    game_id: str
    source_nodes: list[str]
    target_nodes: list[str]
    duration_seconds: float
    new_replica_count: int


class PayloadOfRepairFailed(TypedDict):
    """REPAIR_FAILED."""

    game_id: str
    source_nodes: list[str]
    target_nodes: list[str]
    error: str
    current_replica_count: NotRequired[int | None]
    duration_seconds: NotRequired[float | None]


class PayloadOfReplicationAlert(TypedDict):
    """REPLICATION_ALERT."""

    level: str
    message: str
    node_id: NotRequired[str | None]
    game_count: NotRequired[int | None]
    affected_nodes: NotRequired[list[str] | None]


class PayloadOfResourceConstraint(TypedDict):
    """RESOURCE_CONSTRAINT."""

    node_id: str
    resource_type: str
    usage_percent: float
    threshold: NotRequired[float | None]
    used_gb: NotRequired[float | None]
    total_gb: NotRequired[float | None]


class PayloadOfResourceConstraintDetected(TypedDict):
    """RESOURCE_CONSTRAINT_DETECTED."""

    node_id: str
    resource_type: str
    current_value: float
    threshold: float
    severity: NotRequired[str | None]
    action_taken: NotRequired[str | None]


class PayloadOfS3BackupCompleted(TypedDict):
    """S3_BACKUP_COMPLETED."""

    bucket: str
    uploaded_count: int
    deleted_count: NotRequired[int | None]
    duration_seconds: float
    promotions: NotRequired[list[Any] | None]


class PayloadOfSchedulerRegistered(TypedDict):
    """SCHEDULER_REGISTERED."""

    config_key: str
    scheduler_name: NotRequired[str | None]


class PayloadOfSelfplayAllocationUpdated(TypedDict):
    """SELFPLAY_ALLOCATION_UPDATED."""

    config_key: str
    allocation_weights: dict[str, float]
    exploration_boost: NotRequired[float | None]
    reason: str


class PayloadOfSelfplayComplete(TypedDict):
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


class PayloadOfSelfplayRateChanged(TypedDict):
    """SELFPLAY_RATE_CHANGED."""

    config_key: str
    old_rate: float
    new_rate: float
    change_percent: NotRequired[float | None]
    reason: str


class PayloadOfSelfplayTargetUpdated(TypedDict):
    """SELFPLAY_TARGET_UPDATED."""

    config_key: str
    target_games: NotRequired[int | None]
    extra_games: NotRequired[int | None]
    priority: NotRequired[str | None]
    exploration_boost: NotRequired[float | None]
    reason: str


class PayloadOfSplitBrainDetected(TypedDict):
    """SPLIT_BRAIN_DETECTED."""

    leaders_seen: list[str]
    severity: NotRequired[str | None]
    voter_count: NotRequired[int | None]
    resolution_action: NotRequired[str | None]
    epoch: NotRequired[int | None]


class PayloadOfSplitBrainResolved(TypedDict):
    """SPLIT_BRAIN_RESOLVED."""

    canonical_leader: str
    demoted_nodes: NotRequired[list[str] | None]
    votes: NotRequired[int | None]


class PayloadOfStartupStateValidated(TypedDict):
    """STARTUP_STATE_VALIDATED."""

    node_id: NotRequired[str | None]
    epoch: NotRequired[int | None]
    peer_count: NotRequired[int | None]
    valid: bool


class PayloadOfStatePersisted(TypedDict):
    """STATE_PERSISTED."""

    epoch: int
    peer_count: int
    job_count: int
    leader_id: NotRequired[str | None]


class PayloadOfSyncChecksumFailed(TypedDict):
    """SYNC_CHECKSUM_FAILED."""

    source_path: str
    dest_path: str
    target_node: str
    error: NotRequired[str | None]


class PayloadOfSyncFailureCritical(TypedDict):
    """SYNC_FAILURE_CRITICAL."""

    consecutive_failures: int
    last_success: NotRequired[float | None]
    time_since_success_seconds: NotRequired[float | None]


class PayloadOfSyncNodeUnreachable(TypedDict):
    """SYNC_NODE_UNREACHABLE."""

    node_id: str
    transport: NotRequired[str | None]
    error: str


class PayloadOfSyncRequest(TypedDict):
    """SYNC_REQUEST."""

    requester: str
    data_type: str
    targets: NotRequired[list[str] | None]
    config_key: NotRequired[str | None]
    reason: NotRequired[str | None]
    priority: NotRequired[str | None]


class PayloadOfSyncRetryRequested(TypedDict):
    """SYNC_RETRY_REQUESTED."""

    target_node: str
    data_type: str
    failed_transports: list[str]
    preferred_transport: NotRequired[str | None]


class PayloadOfSyncStalled(TypedDict):
    """SYNC_STALLED."""

    source_node: str
    target_node: str
    data_type: str
    timeout_seconds: float
    retry_count: NotRequired[int | None]


class PayloadOfSyncTriggered(TypedDict):
    """SYNC_TRIGGERED."""

    config_key: NotRequired[str | None]
    reason: str
    source_node: NotRequired[str | None]
    targets: NotRequired[list[str] | None]
    data_age_hours: NotRequired[float | None]
    priority: NotRequired[str | None]


class PayloadOfTaskAbandoned(TypedDict):
    """TASK_ABANDONED."""

    task_id: str
    task_type: NotRequired[str | None]
    node_id: NotRequired[str | None]
    reason: str
    component: NotRequired[str | None]


class PayloadOfTaskCancelled(TypedDict):
    """TASK_CANCELLED."""

    task_id: str
    task_type: str
    node_id: str
    reason: str
    requested_by: NotRequired[str | None]


class PayloadOfTaskCompleted(TypedDict):
    """TASK_COMPLETED."""

    task_id: str
    task_type: str
    node_id: str
    duration_seconds: NotRequired[float | None]
    config_key: NotRequired[str | None]
    result: NotRequired[dict[str, Any] | None]


class PayloadOfTaskFailed(TypedDict):
    """TASK_FAILED."""

    task_id: str
    task_type: str
    node_id: str
    error: str
    error_type: NotRequired[str | None]
    retryable: NotRequired[bool | None]
    duration_seconds: NotRequired[float | None]


class PayloadOfTaskHeartbeat(TypedDict):
    """TASK_HEARTBEAT."""

    task_id: str
    node_id: str
    progress: NotRequired[float | None]
    status: NotRequired[str | None]
    games_completed: NotRequired[int | None]
    elapsed_seconds: NotRequired[float | None]


class PayloadOfTaskOrphaned(TypedDict):
    """TASK_ORPHANED."""

    task_id: str
    task_type: str
    node_id: str
    last_heartbeat: NotRequired[float | None]
    seconds_since_heartbeat: NotRequired[float | None]
    reason: NotRequired[str | None]


class PayloadOfTaskSpawned(TypedDict):
    """TASK_SPAWNED."""

    task_id: str
    task_type: str
    node_id: str
    config_key: NotRequired[str | None]
    priority: NotRequired[int | None]
    pid: NotRequired[int | None]


class PayloadOfTierPromotion(TypedDict):
    """TIER_PROMOTION."""

    config_key: str
    old_tier: str
    new_tier: str
    model_id: NotRequired[str | None]
    win_rate: NotRequired[float | None]
    elo: NotRequired[float | None]
    games_played: NotRequired[int | None]


class PayloadOfTournamentCompleted(TypedDict):
    """TOURNAMENT_COMPLETED."""

    config_key: str
    games_played: NotRequired[int | None]
    participants: NotRequired[list[str] | None]
    ratings: NotRequired[dict[str, Any] | None]
    evaluation_type: NotRequired[str | None]


class PayloadOfTrainingBlockedByQuality(TypedDict):
    """TRAINING_BLOCKED_BY_QUALITY."""

    config_key: str
    quality_score: float
    threshold: float
    reason: str
    data_path: NotRequired[str | None]
    iteration: NotRequired[int | None]
    quality_history: NotRequired[list[float] | None]
    recommendation: NotRequired[str | None]


class PayloadOfTrainingCompleted(TypedDict):
    """TRAINING_COMPLETED."""

    config_key: str
    job_id: NotRequired[str | None]
    success: bool
    model_path: str
    model_id: NotRequired[str | None]
    epochs: NotRequired[float | None]
    train_loss: NotRequired[float | None]
    val_loss: NotRequired[float | None]
    samples_trained: NotRequired[int | None]
    training_games: NotRequired[int | None]
    duration_seconds: NotRequired[float | None]
    metrics: NotRequired[dict[str, Any] | None]
    early_stopped: NotRequired[bool | None]


class PayloadOfTrainingEarlyStopped(TypedDict):
    """TRAINING_EARLY_STOPPED."""

    config_key: str
    epoch: NotRequired[int | None]
    best_loss: float
    final_loss: NotRequired[float | None]
    best_elo: NotRequired[float | None]
    reason: str
    epochs_without_improvement: NotRequired[int | None]


class PayloadOfTrainingFailed(TypedDict):
    """TRAINING_FAILED."""

    config_key: str
    job_id: str
    error: str
    error_details: NotRequired[str | None]
    node_id: NotRequired[str | None]
    epochs_completed: NotRequired[int | None]
    duration_seconds: NotRequired[float | None]


class PayloadOfTrainingLossAnomaly(TypedDict):
    """TRAINING_LOSS_ANOMALY."""

    config_key: str
    epoch: NotRequired[int | None]
    current_loss: float
    avg_loss: float
    anomaly_ratio: NotRequired[float | None]


class PayloadOfTrainingLossTrend(TypedDict):
    """TRAINING_LOSS_TREND."""

    config_key: str
    epoch: NotRequired[int | None]
    trend: str
    current_loss: float
    previous_loss: float
    improvement_rate: NotRequired[float | None]


class PayloadOfTrainingProgress(TypedDict):
    """TRAINING_PROGRESS."""

    config_key: str
    job_id: str
    epoch: int
    total_epochs: NotRequired[int | None]
    train_loss: float
    val_loss: NotRequired[float | None]
    learning_rate: NotRequired[float | None]


class PayloadOfTrainingRollbackCompleted(TypedDict):
    """TRAINING_ROLLBACK_COMPLETED."""

    config_key: str
    model_id: str
    checkpoint_path: str
    rollback_from: str
    reason: str


class PayloadOfTrainingRollbackNeeded(TypedDict):
    """TRAINING_ROLLBACK_NEEDED."""

    config_key: str
    model_id: str
    reason: str
    severity: str
    checkpoint_path: NotRequired[str | None]


class PayloadOfTrainingStarted(TypedDict):
    """TRAINING_STARTED."""

    config_key: str
    job_id: str
    node_id: str
    model_version: NotRequired[str | None]
    total_epochs: NotRequired[int | None]


class PayloadOfTrainingThresholdReached(TypedDict):
    """TRAINING_THRESHOLD_REACHED."""

    config_key: str
    sample_count: int
    threshold: int
    quality_score: NotRequired[float | None]
    priority: NotRequired[str | None]
    reason: NotRequired[str | None]


class PayloadOfTrainingTriggered(TypedDict):
    """TRAINING_TRIGGERED."""

    config_key: str
    samples: NotRequired[int | None]
    job_id: NotRequired[str | None]
    trigger_reason: NotRequired[str | None]
    priority: NotRequired[str | None]
    iteration: NotRequired[int | None]


class PayloadOfWeightUpdated(TypedDict):
    """WEIGHT_UPDATED."""

    config_key: str
    component: str
    old_weight: float
    new_weight: float
    reason: str
    trigger_event: NotRequired[str | None]


class PayloadOfWorkCancelled(TypedDict):
    """WORK_CANCELLED."""

    work_id: str
    work_type: str
    reason: str
    requested_by: NotRequired[str | None]


class PayloadOfWorkClaimed(TypedDict):
    """WORK_CLAIMED."""

    work_id: str
    work_type: str
    node_id: str
    attempt: NotRequired[int | None]


class PayloadOfWorkCompleted(TypedDict):
    """WORK_COMPLETED."""

    work_id: str
    work_type: str
    node_id: str
    config_key: NotRequired[str | None]
    duration_seconds: NotRequired[float | None]
    result: NotRequired[dict[str, Any] | None]


class PayloadOfWorkFailed(TypedDict):
    """WORK_FAILED."""

    work_id: str
    work_type: str
    node_id: NotRequired[str | None]
    error: str
    attempts: int
    config_key: NotRequired[str | None]


class PayloadOfWorkQueued(TypedDict):
    """WORK_QUEUED."""

    work_id: str
    work_type: str
    config_key: NotRequired[str | None]
    priority: NotRequired[int | None]
    queue_depth: NotRequired[int | None]


class PayloadOfWorkRetry(TypedDict):
    """WORK_RETRY."""

    work_id: str
    work_type: str
    node_id: NotRequired[str | None]
    error: str
    attempt: int
    next_attempt_at: NotRequired[float | None]


class PayloadOfWorkStarted(TypedDict):
    """WORK_STARTED."""

    work_id: str
    work_type: str
    node_id: str


class PayloadOfWorkTimeout(TypedDict):
    """WORK_TIMEOUT."""

    work_id: str
    work_type: str
    node_id: str
    duration_seconds: float
    timeout_seconds: float
