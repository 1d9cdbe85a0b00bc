"""Stages, events and the log between processes agree, and what matters crosses."""

from ringrift.coordination.event_mappings import (
    DATA_TO_CROSS_PROCESS_MAP,
    DATA_TO_STAGE_EVENT_MAP,
    STAGE_TO_CROSS_PROCESS_MAP,
    STAGE_TO_DATA_EVENT_MAP,
    StageCompletionResult,
    StageEvent,
    get_all_event_types,
    get_cross_process_event_type,
    get_data_event_type,
    get_stage_event_type,
    is_mapped_event,
    validate_mappings,
)
from ringrift.events.catalog.event_types import DataEventType

HIGH_IMPACT = [
    "daemon_permanently_failed",
    "deadlock_detected",
    "disk_space_low",
    "health_alert",
    "health_check_failed",
    "model_corrupted",
    "node_overloaded",
    "promotion_rolled_back",
    "resource_constraint_detected",
    "training_blocked_by_quality",
    "training_loss_anomaly",
    "training_rollback_completed",
    "training_rollback_needed",
]


def test_high_impact_events_cross_processes():
    assert [value for value in HIGH_IMPACT if not is_mapped_event(value)] == []
    assert [DATA_TO_CROSS_PROCESS_MAP[value] for value in HIGH_IMPACT] == [v.upper() for v in HIGH_IMPACT]


def test_low_impact_internals_stay_home():
    assert not is_mapped_event("STATE_PERSISTED")
    assert get_cross_process_event_type("no_such_event") is None


def test_lookups_take_members_values_and_names():
    for stage in (StageEvent.TRAINING_COMPLETE, "training_complete", "TRAINING_COMPLETE"):
        assert get_data_event_type(stage) is DataEventType.TRAINING_COMPLETED
        assert get_cross_process_event_type(stage, source="stage") == "TRAINING_COMPLETED"
    for event in (DataEventType.DATA_SYNC_COMPLETED, "DATA_SYNC_COMPLETED", "sync_completed"):
        assert get_stage_event_type(event) is StageEvent.SYNC_COMPLETE
        assert get_cross_process_event_type(event) == "DATA_SYNC_COMPLETED"
    assert get_data_event_type("no_such_stage") is None
    assert get_stage_event_type("no_such_event") is None


def test_a_plain_event_is_not_taken_for_a_special_stage():
    assert DATA_TO_STAGE_EVENT_MAP[DataEventType.SELFPLAY_COMPLETE] is StageEvent.SELFPLAY_COMPLETE
    assert get_stage_event_type("ELO_UPDATED") is None


def test_maps_are_whole():
    assert len(StageEvent) == len(STAGE_TO_DATA_EVENT_MAP) == 21
    assert set(STAGE_TO_CROSS_PROCESS_MAP.values()) <= set(DATA_TO_CROSS_PROCESS_MAP.values())
    assert len(get_all_event_types()) >= 214
    assert validate_mappings() == []


def test_a_stage_result_survives_a_round_trip():
    result = StageCompletionResult(
        StageEvent.EVALUATION_COMPLETE, True, 3, "2026-01-01T00:00:00", win_rate=0.6, metadata={"a": 1}
    )
    data = result.to_dict()
    assert data["event"] == "evaluation_complete"
    assert StageCompletionResult.from_dict({**data, "later_field": 1}) == result


def test_an_empty_stage_result_reads_as_a_failed_selfplay():
    result = StageCompletionResult.from_dict({})
    assert (result.event, result.success) == (StageEvent.SELFPLAY_COMPLETE, False)
    assert (result.board_type, result.num_players) == ("square8", 2)
