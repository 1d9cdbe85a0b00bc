"""Names that the documents print with their arguments, or with none, are called just so."""

import asyncio
import csv
import importlib
import inspect
import warnings
from pathlib import Path

import pytest
from app.coordination import event_emitters
from app.coordination.daemon_types import DaemonType
from app.coordination.event_router import get_router
from app.coordination.optimization_coordinator import (
    OptimizationRun,
    OptimizationStatus,
    OptimizationType,
    trigger_cmaes,
    trigger_nas,
    trigger_pbt,
)
from app.coordination.orchestrator_registry import OrchestratorRole, release_orchestrator_role
from app.coordination.queue_monitor import (
    BackpressureLevel,
    QueueType,
    check_backpressure,
    should_throttle_production,
)
from app.coordination.selfplay_orchestrator import emit_selfplay_completion
from app.coordination.task_coordinator import TaskType
from app.coordination.training_coordinator import release_training_slot, request_training_slot, training_slot

from app._table import PlannedModule
from ringrift.engine.blocking import run_blocking
from ringrift.engine.opening import close_engine, get_engine
from ringrift.errors import ConfigError, PayloadError
from ringrift.health.run_status import RunChoice, write_run_choice
from ringrift.learning.tuning import TuningStore

DOCUMENTS = Path(__file__).parents[1] / "data" / "documents"


@pytest.fixture(autouse=True)
async def ended():
    yield
    await close_engine()


# Emitter, its arguments as they are printed, and what a handler then finds.
PRINTED = [
    (
        "emit_selfplay_complete",
        {"config_key": "hex8_2p", "games_generated": 1000, "db_path": "/data/games/selfplay.db"},
        ("SELFPLAY_COMPLETE", {"config_key": "hex8_2p", "games_generated": 1000}),
    ),
    (
        "emit_training_complete",
        {
            "config_key": "hex8_2p",
            "model_path": "/models/hex8_2p_epoch_10.pth",
            "metrics": {"loss": 0.5, "accuracy": 0.75},
        },
        ("TRAINING_COMPLETED", {"config_key": "hex8_2p", "model_path": "/models/hex8_2p_epoch_10.pth"}),
    ),
    (
        "emit_training_started",
        {"config_key": "hex8_2p", "node_name": "node-1", "iteration": 3},
        (
            "TRAINING_STARTED",
            {"config_key": "hex8_2p", "node_id": "node-1", "iteration": 3, "job_id": "hex8_2p_3"},
        ),
    ),
]


@pytest.mark.parametrize(("name", "fields", "expected"), PRINTED, ids=[row[0] for row in PRINTED])
@pytest.mark.parametrize("module", ["event_emitters", "event_router"])
async def test_an_emitter_takes_what_the_documents_print(module, name, fields, expected):
    event_type, found = expected
    heard = []
    get_router().subscribe(event_type, heard.append)
    emitter = getattr(importlib.import_module(f"app.coordination.{module}"), name)
    assert await emitter(**fields) is True
    assert [{key: event.payload[key] for key in found} for event in heard] == [found]


async def test_trainings_without_a_turn_are_told_apart():
    heard = []
    get_router().subscribe("TRAINING_STARTED", heard.append)
    for _ in range(2):
        await event_emitters.emit_training_started(config_key="hex8_2p")
    assert len({event.payload["job_id"] for event in heard}) == 2


async def test_selfplay_completion_by_hand():
    heard = []
    get_router().subscribe("SELFPLAY_COMPLETE", heard.append)
    await emit_selfplay_completion("task-1", "hex8", 2, 40)
    await emit_selfplay_completion("task-2", config_key="square8_2p", games_generated=7)
    assert [(event.payload["config_key"], event.payload["games_generated"]) for event in heard] == [
        ("hex8_2p", 40),
        ("square8_2p", 7),
    ]
    with pytest.raises(PayloadError, match="games_generated is missing"):
        await emit_selfplay_completion("task-3", "hex8", 2)


def test_a_training_slot_is_asked_for_by_board_and_players_or_by_config():
    with training_slot("hex8_2p") as job_id:
        assert job_id is not None
        assert request_training_slot("hex8", 2) is None
        assert request_training_slot("hex8_2p") is None
    with pytest.raises(ConfigError, match="how many play hex8"):
        request_training_slot("hex8")


def test_backpressure_of_no_queue_is_that_of_the_fullest():
    assert check_backpressure() is BackpressureLevel.NONE
    worst = check_backpressure(QueueType.EVALUATION, 190)
    assert worst > BackpressureLevel.NONE
    assert check_backpressure() is worst
    assert should_throttle_production() is worst.throttles
    with pytest.raises(ConfigError, match="is of one queue; name it"):
        check_backpressure(current_depth=5)


# --- searches without a config ------------------------------------------------------------------------


def learn(*configs):
    async def choose():
        await write_run_choice((await get_engine()).kv, RunChoice(configs=configs, workers=1))

    run_blocking(choose())


def searched(config, *, began_s):
    """As if a search for *config* had been made once."""

    async def put():
        run = OptimizationRun(
            run_id=f"tune.cmaes.{config}",
            optimization_type=OptimizationType.CMAES,
            config_key=config,
            reason="a test",
            started_s=began_s,
            status=OptimizationStatus.COMPLETED,
        )
        await TuningStore((await get_engine()).kv).put(run)

    run_blocking(put())


def test_a_search_without_a_config_is_for_the_one_that_is_learned():
    learn("hex8_2p")
    assert trigger_cmaes().config_key == "hex8_2p"


def test_of_several_configs_the_one_that_waits_longest_is_searched():
    learn("hex8_2p", "square8_2p", "square8_3p")
    searched("hex8_2p", began_s=30.0)
    searched("square8_2p", began_s=10.0)
    searched("square8_3p", began_s=20.0)
    assert trigger_cmaes().config_key == "square8_2p"


@pytest.mark.parametrize("trigger", [trigger_cmaes, trigger_nas, trigger_pbt])
def test_a_search_for_a_config_that_the_run_does_not_learn_is_refused_and_holds_nobody_up(trigger):
    learn("connect_four_2p", "square8_2p")
    with pytest.raises(
        ConfigError, match="'hex8_2p' is not learned here; there are connect_four_2p, square8_2p"
    ):
        trigger("hex8_2p")
    with pytest.raises(ConfigError, match="config_key is 5"):
        trigger(5)
    assert trigger_cmaes("square8_2p") is not None


def test_a_search_in_an_empty_folder_says_what_is_missing():
    with pytest.raises(ConfigError, match="nothing is learned in this data folder yet; name a config"):
        trigger_cmaes()
    with pytest.raises(ConfigError, match="name a config"):
        trigger_nas()


# --- every function that the documents name ------------------------------------------------------------


def later(call):
    """An async function, called from a program of its own; what never ends runs for a moment."""

    async def run():
        async with asyncio.timeout(60):
            return await call()

    return asyncio.run(run())


def endless(call):
    async def run():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await call()

    asyncio.run(run())


def in_a_block(manager):
    with manager:
        pass


class Listener:
    def _on_event(self, event):
        pass


def decorated(decorate):
    @decorate
    def work():
        return 7

    assert work() == 7


ROLE = OrchestratorRole.MAINTENANCE
# A call that a reader of the documents would try first. Emitters and searches have tests of their own above.
CALLS = {
    "acquire_orchestrator_role": lambda f: f(ROLE) and release_orchestrator_role(ROLE),
    "analyze_metrics": lambda f: f(),
    "async_can_train": lambda f: later(lambda: f("hex8", 2)),
    "async_request_training": lambda f: release_training_slot(later(lambda: f("hex8", 2))),
    "bootstrap_coordination": lambda f: f(),
    "can_schedule_task": lambda f: f("training"),
    "can_spawn": lambda f: f(TaskType.SELFPLAY, "node-1"),
    "check_backpressure": lambda f: f(QueueType.TRAINING_DATA),
    "check_before_spawn": lambda f: f(TaskType.SELFPLAY, "node-1"),
    "coordinate_task": lambda f: decorated(f(TaskType.EXPORT)),
    "estimate_task_duration": lambda f: f("training"),
    "get_bootstrap_status": lambda f: f(),
    "get_config": lambda f: f(),
    "get_daemon_manager": lambda f: f(),
    "get_dead_letter_queue": lambda f: f(),
    "get_initialization_order": lambda f: f(),
    "get_pipeline_status": lambda f: f(),
    "get_production_model_id": lambda f: f("hex8", 2),
    "get_router": lambda f: f(),
    "get_runner": lambda f: f(DaemonType.EVENT_ROUTER),
    "get_system_health": lambda f: f(),
    "get_task_stats": lambda f: f(),
    "get_trace_id": lambda f: f(),
    "has_subscribers": lambda f: f("TRAINING_COMPLETED"),
    "initialize_all_coordinators": lambda f: f(auto_trigger_pipeline=True),
    "make_handlers_resilient": lambda f: f(Listener(), "listener"),
    "publish": lambda f: later(lambda: f("TRAINING_COMPLETED", {"config_key": "hex8_2p"}, "trainer")),
    "publish_event": lambda f: f("TRAINING_COMPLETED", {"config_key": "hex8_2p"}),
    "record_metric": lambda f: f("loss", 0.5, "hex8_2p"),
    "request_training_slot": lambda f: release_training_slot(f("hex8", 2)),
    "run_retry_daemon": lambda f: endless(lambda: f(interval_seconds=60)),
    "should_throttle_production": lambda f: f(),
    "shutdown_all_coordinators": lambda f: later(f),
    "shutdown_coordination": lambda f: f(),
    "span": lambda f: in_a_block(f("model_inference")),
    "subscribe": lambda f: f("TRAINING_COMPLETED", print),
    "task_context": lambda f: in_a_block(f(TaskType.EXPORT)),
    "traced": lambda f: decorated(f("selfplay_game")),
    "training_slot": lambda f: in_a_block(f("hex8", 2)),
    "unsubscribe": lambda f: f("TRAINING_COMPLETED", print),
    "wire_pipeline_events": lambda f: f(),
    "wire_selfplay_events": lambda f: f(),
    "wire_task_events": lambda f: f(),
}
ABOVE = ("emit_", "trigger_", "select_curriculum_config")


# What moves data has tests of its own, in the machine and under the names of the documents.
MOVING_DATA = (
    "ringrift.data.",
    "ringrift.resources.",
    "ringrift.coordination.cluster_manifest",
    "ringrift.coordination.cluster_transport",
    "ringrift.coordination.database_sync_manager",
    "ringrift.coordination.delivery_ledger",
    "ringrift.coordination.ephemeral_data_guard",
    "ringrift.coordination.sync_",
    "ringrift.coordination.transaction_isolation",
    "ringrift.coordination.transfer_verification",
)


def named_functions():
    """Every function that the documents name, of what is built, but those that move data."""
    found = {}
    with (DOCUMENTS / "names.csv").open(encoding="utf8", newline="") as file:
        for row in csv.DictReader(file):
            try:
                value = taken(row["module"], row["name"])
            except PlannedModule:
                continue
            moves_data = getattr(value, "__module__", "").startswith(MOVING_DATA)
            if callable(value) and not inspect.isclass(value) and not moves_data:
                found[f"{row['module']}.{row['name']}"] = value
    return found


def taken(module, name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return getattr(importlib.import_module(module), name)


def test_every_named_function_is_called_below():
    names = {path.rpartition(".")[2] for path in named_functions()}
    assert sorted(name for name in names if name not in CALLS and not name.startswith(ABOVE)) == []
    assert sorted(set(CALLS) - names) == []


@pytest.mark.parametrize("path", [path for path in named_functions() if path.rpartition(".")[2] in CALLS])
def test_a_named_function_is_called(path):
    CALLS[path.rpartition(".")[2]](named_functions()[path])
    asyncio.run(get_router().stop())


def test_a_config_is_chosen_among_those_that_are_learned():
    assert taken("app.coordination.job_scheduler", "select_curriculum_config")({"hex8_2p": 10}) == "hex8_2p"
