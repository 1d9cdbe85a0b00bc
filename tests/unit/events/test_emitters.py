"""Emitters publish the right event with a whole payload, or raise; they never fail in silence."""

import asyncio
import inspect
from pathlib import Path

import pytest

from ringrift.coordination import event_emitters as emitters
from ringrift.coordination.event_emitters import (
    emit_curriculum_rebalanced,
    emit_data_event,
    emit_data_sync_completed,
    emit_elo_updated,
    emit_host_online,
    emit_model_promoted,
    emit_new_games,
    emit_node_suspect,
    emit_optimization_triggered,
    emit_promotion_complete,
    emit_selfplay_complete,
    emit_sync_complete,
    emit_task_completed_sync,
    emit_training_complete,
    emit_training_complete_sync,
    emit_training_started,
    is_critical_event,
)
from ringrift.coordination.event_router import get_router
from ringrift.errors import ConfigError, PayloadError, Unavailable
from ringrift.events.catalog.emission import ELO_SIGNIFICANT, EMITTERS
from ringrift.events.catalog.table import CATALOG
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.process import process_scope
from ringrift.runtime import SystemRuntime, system_runtime

DOCUMENTED = """
training_started training_complete selfplay_complete evaluation_complete promotion_complete
npz_export_complete sync_complete sync_failure_critical quality_updated game_quality_score
quality_penalty_applied new_games task_complete task_spawned task_cancelled task_heartbeat task_failed
task_abandoned task_orphaned optimization_triggered plateau_detected hyperparameter_updated
regression_detected backpressure_activated backpressure_released cache_invalidated host_online
host_offline node_recovered node_activated node_suspect node_retired node_unhealthy health_check_passed
health_check_failed handler_failed handler_timeout coordinator_healthy coordinator_unhealthy
coordinator_health_degraded coordinator_shutdown coordinator_heartbeat training_rollback_needed
training_rollback_completed model_corrupted curriculum_updated curriculum_rebalanced training_triggered
p2p_cluster_healthy p2p_cluster_unhealthy p2p_node_dead split_brain_detected repair_completed
repair_failed generic_event training_threshold training_completed training_failed evaluation_started
evaluation_completed evaluation_failed model_promoted promotion_candidate promotion_started
promotion_failed promotion_rejected tier_promotion elo_updated elo_velocity_changed curriculum_advanced
weight_updated exploration_boost cmaes_triggered nas_triggered data_sync_started data_sync_completed
data_sync_failed data_stale data_fresh sync_triggered sync_stalled model_distribution_complete
daemon_started deadlock_detected checkpoint_saved batch_scheduled cluster_capacity_changed
node_capacity_updated leader_elected training_loss_anomaly training_early_stopped selfplay_target_updated
idle_resource_detected disk_space_low capacity_low node_provisioned budget_alert
parity_failure_rate_changed error data_event selfplay_completion training_started_sync
training_complete_sync promotion_complete_sync elo_updated_sync
"""


@pytest.fixture
def heard():
    """What every subscriber would hear, as (event, payload)."""
    events = []
    get_router().subscribe(None, lambda event: events.append((event.event_type, dict(event.payload))))
    return events


def test_every_documented_emitter_is_there():
    for name in DOCUMENTED.split():
        emitter = getattr(emitters, f"emit_{name}")
        assert inspect.iscoroutinefunction(emitter) != name.endswith("_sync"), name


def test_an_emitter_shows_its_arguments():
    assert list(inspect.signature(emit_host_online).parameters) == [
        *("node_id", "host_type", "capabilities", "address", "gpu_count", "source", "fields")
    ]


def test_there_is_an_emitter_for_every_event_and_no_other():
    names = dir(emitters)
    assert {f"emit_{name.lower()}" for name in CATALOG} <= set(names)
    with pytest.raises(AttributeError, match="emit_nothing_known"):
        emitters.emit_nothing_known  # noqa: B018


async def test_a_whole_payload_arrives_as_it_is(heard):
    examples = {"str": "x", "int": 3, "float": 0.5, "bool": True, "list": ["a"], "dict": {}, "any": 1}

    async def emit(name, spec):
        payload = {item.name: examples[item.container] for item in spec.event.fields}
        assert await getattr(emitters, f"emit_{name}")(**payload, remark=name) is True, name
        [(event, delivered)] = [found for found in heard if found[1].get("remark") == name]
        assert event == spec.event.name, name
        assert delivered.items() >= {**payload, "remark": name}.items(), name

    # Together, so that they share the commits of the log.
    await asyncio.gather(*(emit(name, spec) for name, spec in EMITTERS.items()))


async def test_the_examples_of_the_documents(heard):
    await emit_selfplay_complete(
        config_key="hex8_2p", games_generated=1000, db_path="/data/games/selfplay.db"
    )
    await emit_training_complete(
        config_key="hex8_2p", model_path="/models/hex8_2p_epoch_10.pth", metrics={"loss": 0.5}
    )
    (selfplay, games), (training, result) = heard
    assert (selfplay, games["games_generated"], games["success"]) == ("SELFPLAY_COMPLETE", 1000, True)
    assert (training, result["metrics"], result["success"]) == ("TRAINING_COMPLETED", {"loss": 0.5}, True)


async def test_the_examples_of_the_documents_also_pass_when_strict(monkeypatch, heard):
    monkeypatch.setenv("RINGRIFT_EVENT_VALIDATION_STRICT", "true")
    process_scope().clear()
    await emit_selfplay_complete(
        config_key="hex8_2p", games_generated=1000, db_path="/data/games/selfplay.db"
    )
    await emit_training_complete(config_key="hex8_2p", model_path="/models/m.pth", metrics={"loss": 0.5})


@pytest.mark.parametrize(
    ("emitter", "arguments", "event", "fields"),
    [
        (
            emit_training_started,
            ("j1", "hex8", 2),
            "TRAINING_STARTED",
            {"job_id": "j1", "config_key": "hex8_2p"},
        ),
        (
            emit_training_complete,
            ("j1", "hex8", 2, True, 0.4, 1500.0, "m.pth", 9),
            "TRAINING_COMPLETED",
            {"config_key": "hex8_2p", "train_loss": 0.4, "model_path": "m.pth", "epochs": 9},
        ),
        (emit_new_games, ("n1", 5, 50), "NEW_GAMES_AVAILABLE", {"node_id": "n1", "new_games": 5}),
        (emit_sync_complete, ("auto", 12), "DATA_SYNC_COMPLETED", {"sync_type": "auto", "games_synced": 12}),
        (emit_model_promoted, ("m1", "hex8_2p", 1500.0, 20.0), "MODEL_PROMOTED", {"config_key": "hex8_2p"}),
        (emit_host_online, ("n1",), "HOST_ONLINE", {"node_id": "n1"}),
        (
            emit_curriculum_rebalanced,
            ("hex8_2p", {"hex8_2p": 1.0}, {"hex8_2p": 1.5}, "stalled"),
            "CURRICULUM_REBALANCED",
            {"weights": {"hex8_2p": 1.5}, "previous_weights": {"hex8_2p": 1.0}, "reason": "stalled"},
        ),
    ],
)
async def test_arguments_in_the_documented_order(emitter, arguments, event, fields, heard):
    if event == "NEW_GAMES_AVAILABLE":
        await emitter(*arguments, config_key="hex8_2p")
    else:
        await emitter(*arguments)
    assert heard[0][0] == event
    assert heard[0][1].items() >= fields.items()


async def test_a_start_without_a_node_happened_here(heard):
    await emit_training_started("j1", "hex8", 2)
    assert heard[0][1]["node_id"] == system_runtime().hostname


async def test_what_is_missing_is_named_and_nothing_is_published(heard):
    with pytest.raises(PayloadError, match=r"SELFPLAY_COMPLETE: games_generated is missing \(int expected\)"):
        await emit_selfplay_complete(config_key="hex8_2p")
    with pytest.raises(PayloadError, match="NODE_SUSPECT: node_id is missing"):
        await emit_node_suspect(seconds_since_heartbeat=9.0)
    with pytest.raises(PayloadError, match="games_generated is '5' of type str"):
        await emit_selfplay_complete(config_key="hex8_2p", games_generated="5")
    assert heard == []


async def test_what_an_emitter_leaves_optional_is_no_error_when_strict(monkeypatch, heard):
    monkeypatch.setenv("RINGRIFT_EVENT_VALIDATION_STRICT", "true")
    assert await emit_promotion_complete("m1", "hex8", 2) is True


async def test_wrong_calls_are_type_errors():
    with pytest.raises(TypeError, match="several values for node_id"):
        await emit_host_online("n1", node_id="n2")
    with pytest.raises(TypeError, match="takes 3 positional arguments, 4"):
        await emit_host_online("n1", "gpu", [], "extra")


async def test_none_is_left_out_and_paths_become_text(heard):
    await emit_selfplay_complete(
        config_key="hex8_2p", games_generated=1, db_path=Path("/data/g.db"), error=None, source="runner"
    )
    assert heard[0][1]["db_path"] == "/data/g.db"
    assert "error" not in heard[0][1]
    assert get_router().get_history()[-1].source == "runner"


async def test_a_failed_promotion_is_never_announced_as_a_promotion(heard):
    await emit_promotion_complete("m1", "hex8", 2, success=False, error="gate")
    assert [name for name, _ in heard] == ["PROMOTION_FAILED"]


async def test_a_large_rating_change_is_announced_too(heard):
    await emit_elo_updated("hex8_2p", "m1", 1500.0, 1500.0 - ELO_SIGNIFICANT, 40)
    await emit_elo_updated("hex8_2p", "m1", 1501.0, 1500.0, 40)
    assert [name for name, _ in heard] == ["ELO_UPDATED", "ELO_SIGNIFICANT_CHANGE", "ELO_UPDATED"]
    assert heard[0][1]["elo_delta"] == ELO_SIGNIFICANT
    assert CATALOG["ELO_SIGNIFICANT_CHANGE"].problems(heard[1][1]) == ()


async def test_optimizations(heard):
    await emit_optimization_triggered("nas", "r1", "plateau", config_key="hex8_2p")
    assert heard[0][0] == "NAS_TRIGGERED"
    with pytest.raises(ConfigError, match="must be cmaes or nas"):
        await emit_optimization_triggered("magic", "r1", "plateau")


async def test_any_event_can_be_emitted_by_its_name(heard):
    assert await emit_data_event(
        "training_threshold", {"config": "hex8_2p", "sample_count": 1, "threshold": 1}
    )
    assert heard[0][0] == "TRAINING_THRESHOLD_REACHED"


def test_a_caller_without_a_loop_delivers_before_it_returns(heard):
    assert emit_training_complete_sync(config_key="hex8_2p", model_path="m.pth") is True
    assert [name for name, _ in heard] == ["TRAINING_COMPLETED"]


async def test_a_sync_caller_inside_a_loop_delivers_soon(heard):
    assert emit_task_completed_sync("t1", "selfplay") is True
    with pytest.raises(PayloadError):
        emit_task_completed_sync("t1")
    async with asyncio.timeout(60):
        while not heard:
            await asyncio.sleep(0)
    assert heard[0][0] == "TASK_COMPLETED"


class AwayForAWhile:
    """A router whose log is away for the first publishes."""

    def __init__(self, failures):
        self.failures, self.published = failures, []

    async def publish(self, event_type, payload=None, source=""):
        if self.failures:
            self.failures -= 1
            raise Unavailable("the log is away")
        self.published.append(event_type)

    def publish_sync(self, event_type, payload=None, source=""):
        asyncio.run(self.publish(event_type, payload, source))


class QuickRuntime(SystemRuntime):
    """Notes how long it would have slept."""

    def __init__(self):
        super().__init__()
        self.slept_s = []

    async def sleep(self, seconds):
        self.slept_s.append(seconds)


@pytest.fixture
def quick_runtime():
    runtime = QuickRuntime()
    process_scope().put(SystemRuntime, runtime)
    return runtime


def away(failures):
    router = AwayForAWhile(failures)
    process_scope().put(UnifiedEventRouter, router)
    return router


async def test_an_event_that_the_loop_needs_is_tried_again(quick_runtime):
    router = away(3)
    assert await emit_data_sync_completed(games_synced=1, duration_seconds=1.0)
    assert router.published == ["DATA_SYNC_COMPLETED"]
    assert quick_runtime.slept_s == [0.5, 1.0, 2.0]


async def test_it_gives_up_after_three_retries(quick_runtime):
    away(4)
    with pytest.raises(Unavailable):
        await emit_data_sync_completed(games_synced=1, duration_seconds=1.0)


async def test_an_ordinary_event_is_not_tried_again(quick_runtime):
    away(1)
    with pytest.raises(Unavailable):
        await emit_host_online("n1")
    assert quick_runtime.slept_s == []


def test_a_sync_caller_tries_again_too(quick_runtime):
    router = away(2)
    assert emit_training_complete_sync(config_key="hex8_2p", model_path="m.pth")
    assert router.published == ["TRAINING_COMPLETED"]
    assert quick_runtime.slept_s == [0.5, 1.0]


def test_which_events_the_loop_cannot_do_without():
    assert is_critical_event("training_complete")
    assert is_critical_event("CONSOLIDATION_COMPLETED")
    assert not is_critical_event("TASK_HEARTBEAT")
    assert not is_critical_event("no_such_event")
    assert sum(spec.retried for spec in CATALOG.values()) == 8
