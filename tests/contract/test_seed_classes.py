"""Every class of the documents can be made and used alone, and refuses what it cannot use when it is made.

No arguments mean the engine of this process; a path means a file of its own. The classes of moving data have
tests of their own.
"""

import asyncio
import csv
import importlib
import os
import warnings
from enum import Enum
from pathlib import Path

import pytest

from ringrift.coordination.coordination_bootstrap import bootstrap_coordination, get_initializer
from ringrift.coordination.daemon_factory import get_daemon_factory
from ringrift.coordination.data_pipeline_orchestrator import PipelineConfig
from ringrift.coordination.duration_scheduler import BusyHours
from ringrift.coordination.event_mappings import StageEvent
from ringrift.daemons.types import DaemonType
from ringrift.engine.blocking import run_blocking
from ringrift.engine.opening import close_engine
from ringrift.errors import ConfigError, LeaseLost
from ringrift.work.backpressure import QUEUE_LIMITS
from ringrift.work.shares import SupplyLimits

DOCUMENTS = Path(__file__).parents[1] / "data" / "documents"

ALONE = [
    "async_training_bridge.TrainingCoordinator",
    "auto_export_daemon.AutoExportDaemon",
    "auto_promotion_daemon.AutoPromotionDaemon",
    "backpressure.QueueMonitor",
    "coordinator_base.CoordinatorRegistry",
    "coordinator_config.CoordinatorConfig",
    "coordinator_persistence.SnapshotCoordinator",
    "cross_process_events.CrossProcessEventQueue",
    "curriculum_integration.CurriculumIntegration",
    "daemon_manager.DaemonManager",
    "data_pipeline_orchestrator.DataPipelineOrchestrator",
    "dead_letter_queue.DeadLetterQueue",
    "dead_letter_queue.DLQRetryDaemon",
    "duration_scheduler.DurationScheduler",
    "dynamic_thresholds.ThresholdManager",
    "evaluation_daemon.EvaluationDaemon",
    "event_router.UnifiedEventRouter",
    "feedback_loop_controller.FeedbackLoopController",
    "gauntlet_feedback_controller.GauntletFeedbackController",
    "health_check_helper.HealthCheckHelper",
    "job_scheduler.JobSchedulerDaemon",
    "job_scheduler.PriorityJobScheduler",
    "metrics_analysis_orchestrator.MetricsAnalysisOrchestrator",
    "model_lifecycle_coordinator.ModelLifecycleCoordinator",
    "model_performance_watchdog.ModelPerformanceWatchdog",
    "optimization_coordinator.OptimizationCoordinator",
    "orchestrator_registry.OrchestratorRoles",
    "quality_monitor_daemon.QualityMonitorDaemon",
    "safeguards.Safeguards",
    "selfplay_orchestrator.SelfplayOrchestrator",
    "selfplay_scheduler.SelfplayScheduler",
    "stage_events.StageEventBus",
    "stall_detection.StallDetector",
    "task_coordinator.EmergencyStop",
    "task_coordinator.TaskCoordinator",
    "task_lifecycle_coordinator.TaskLifecycleCoordinator",
    "tournament_daemon.TournamentDaemon",
    "training_coordinator.TrainingCoordinator",
    "training_coordinator.TrainingSlots",
    "training_trigger_daemon.TrainingTriggerDaemon",
    "unified_feedback.FeedbackSignals",
    "unified_health_manager.UnifiedHealthManager",
    "unified_queue_populator.QueuePopulatorDaemon",
    "unified_queue_populator.UnifiedQueuePopulator",
    "utils.BoundedHistory",
    "utils.CallbackRegistry",
    "work_queue.WorkQueue",
    "work_queue_monitor_daemon.WorkQueueMonitorDaemon",
]


def named(path):
    module, _, name = path.partition(".")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return getattr(importlib.import_module(f"app.coordination.{module}"), name)


@pytest.fixture(autouse=True)
async def ended():
    yield
    await close_engine()


@pytest.mark.parametrize("path", ALONE)
async def test_a_class_is_made_without_arguments(path):
    assert named(path)() is not None


# What a reader would try, and what it must not become: an object whose first call fails at a distance.
WRONG = [
    "task_coordinator.TaskCoordinator",
    "safeguards.Safeguards",
    "task_lifecycle_coordinator.TaskLifecycleCoordinator",
    "duration_scheduler.DurationScheduler",
    "training_coordinator.TrainingCoordinator",
    "unified_queue_populator.QueuePopulatorDaemon",
    "job_scheduler.JobSchedulerDaemon",
    "task_coordinator.EmergencyStop",
    "dead_letter_queue.DLQRetryDaemon",
    "work_queue.WorkQueue",
    "coordinator_persistence.SnapshotCoordinator",
]


@pytest.mark.parametrize("path", WRONG)
async def test_a_wrong_argument_is_refused_when_the_object_is_made(path):
    with pytest.raises(ConfigError, match="it must be"):
        named(path)(12.5)


@pytest.mark.parametrize(
    "path",
    [
        "work_queue.WorkQueue",
        "dead_letter_queue.DeadLetterQueue",
        "cross_process_events.CrossProcessEventQueue",
        "coordinator_persistence.SnapshotCoordinator",
    ],
)
def test_what_can_be_no_database_is_refused_when_the_object_is_made(tmp_path, path):
    with pytest.raises(ConfigError, match="is a folder; name the database file in it"):
        named(path)(db_path=tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="is no plain file; name a database file"):
        named(path)(db_path=tmp_path / "pipe")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((5, {}), "5 cannot name a snapshot"),
        (("", {}), "cannot name"),
        (("c", [1]), "state"),
        (("c", "x"), "state"),
    ],
)
def test_a_snapshot_is_of_a_component_and_of_its_named_values(arguments, told):
    with pytest.raises(ConfigError, match=told):
        named("coordinator_persistence.StateSnapshot").create(*arguments)


# --- one of a kind ------------------------------------------------------------------------------------

SINGLE = [path for path in ALONE if hasattr(named(path), "get_instance")]


@pytest.mark.parametrize("path", SINGLE)
async def test_the_one_of_the_process_can_be_dropped(path):
    kind = named(path)
    first = kind.get_instance()
    assert kind.get_instance() is first
    kind.reset_instance()
    assert kind.get_instance() is not first


@pytest.mark.parametrize(
    ("module", "subject"),
    [
        ("task_coordinator", "task_coordinator"),
        ("task_lifecycle_coordinator", "task_lifecycle_coordinator"),
        ("safeguards", "safeguards"),
        ("queue_monitor", "queue_monitor"),
        ("duration_scheduler", "duration_scheduler"),
        ("job_scheduler", "job_scheduler"),
        ("selfplay_orchestrator", "selfplay_orchestrator"),
        ("selfplay_scheduler", "selfplay_scheduler"),
        ("unified_queue_populator", "queue_populator"),
        ("unified_health_manager", "health_manager"),
        ("data_pipeline_orchestrator", "pipeline_orchestrator"),
        ("training_coordinator", "training_coordinator"),
        ("model_lifecycle_coordinator", "model_coordinator"),
        ("metrics_analysis_orchestrator", "metrics_orchestrator"),
        ("optimization_coordinator", "optimization_coordinator"),
        ("curriculum_integration", "curriculum_integration"),
        ("coordinator_persistence", "snapshot_coordinator"),
        ("dead_letter_queue", "dead_letter_queue"),
        ("work_queue", "work_queue"),
    ],
)
async def test_every_getter_has_its_reset(module, subject):
    get, reset = named(f"{module}.get_{subject}"), named(f"{module}.reset_{subject}")
    first = get()
    reset()
    assert get() is not first


async def test_a_dropped_coordinator_hears_nothing_more():
    wire, reset = (
        named("task_lifecycle_coordinator.wire_task_events"),
        named("task_lifecycle_coordinator.reset_task_lifecycle_coordinator"),
    )
    coordinator = wire()
    reset()
    assert not coordinator.is_subscribed


def test_a_getter_takes_the_configuration_and_refuses_another(tmp_path):
    get = named("dead_letter_queue.get_dead_letter_queue")
    queue = get(tmp_path / "one.db")
    assert queue.db_path == tmp_path / "one.db"
    assert get(str(tmp_path / "one.db")) is queue
    assert get() is queue
    with pytest.raises(ConfigError, match="made with other arguments"):
        get(tmp_path / "two.db")
    queue.close()


@pytest.mark.parametrize(
    ("getter", "asked", "other"),
    [
        ("coordinator_persistence.get_snapshot_coordinator", "one.db", "two.db"),
        ("cross_process_events.get_event_queue", "one.db", "two.db"),
        ("work_queue.get_work_queue", "one.db", "two.db"),
        (
            "data_pipeline_orchestrator.get_pipeline_orchestrator",
            PipelineConfig(training_epochs=3),
            PipelineConfig(training_epochs=4),
        ),
        ("duration_scheduler.get_duration_scheduler", BusyHours(8, 9), BusyHours(9, 10)),
        ("queue_monitor.get_queue_monitor", QUEUE_LIMITS, {}),
        ("unified_queue_populator.get_queue_populator", SupplyLimits(ahead=2), SupplyLimits(ahead=3)),
        ("task_lifecycle_coordinator.get_task_lifecycle_coordinator", 30.0, 60.0),
        ("stall_detection.get_stall_detector", 30.0, 60.0),
    ],
)
async def test_a_getter_takes_the_configuration_of_its_class(getter, asked, other, tmp_path):
    get = named(getter)
    asked, other = (tmp_path / each if isinstance(each, str) else each for each in (asked, other))
    made = get(asked)
    assert get(asked) is get() is made
    with pytest.raises(ConfigError, match="made with other arguments"):
        get(other)


def test_the_five_singleton_variants(tmp_path):
    module = importlib.import_module("app.coordination.singleton_mixin")

    class Plain(module.SingletonMixin):
        def __init__(self, size=1):
            self.size = size

    class Called(metaclass=module.SingletonMeta):
        pass

    class ByKey(module.KeyedSingleton):
        pass

    class Opened(module.AsyncSingleton):
        times = 0

        async def open(self):
            type(self).times += 1

    class Got:
        pass

    async def twice():
        return await asyncio.gather(Opened.get_instance(), Opened.get_instance())

    get_it = module.singleton(Got)
    first, second = asyncio.run(twice())
    assert first is second
    assert Opened.times == 1
    assert Called() is Called()
    assert get_it() is get_it()
    assert ByKey.get_instance("a") is ByKey.get_instance("a")
    assert ByKey.get_instance("a") is not ByKey.get_instance("b")
    assert Plain.get_instance(2) is Plain.get_instance()
    assert Plain.get_instance().size == 2
    with pytest.raises(ConfigError, match="made with other arguments"):
        Plain.get_instance(3)
    assert module.ThreadSafeSingletonMixin is module.SingletonMixin


# --- a queue of one's own -------------------------------------------------------------------------------


def test_a_single_text_is_one_id_and_one_kind_not_its_letters(tmp_path):
    queue = named("work_queue.WorkQueue")(tmp_path / "work.db")
    queue.add_work("selfplay", work_id="one")
    queue.add_work("training", work_id="two", depends_on="one")
    assert queue.claim_work("node-1", "training") is None, "it waits for the other"
    assert queue.claim_work("node-1", "selfplay")["work_id"] == "one"
    queue.complete_work("one")
    assert queue.claim_work("node-1", "training")["work_id"] == "two"
    with pytest.raises(ConfigError, match="depends_on holds 3"):
        queue.add_work("training", depends_on=["one", 3])
    with pytest.raises(ConfigError, match="depends_on holds ''"):
        queue.add_work("training", depends_on="")
    with pytest.raises(ConfigError, match="depends_on is None"):
        queue.add_work("training", depends_on=None)


def test_a_work_queue_in_a_file(tmp_path):
    queue = named("work_queue.WorkQueue")(tmp_path / "queue" / "work.db")
    low = queue.add_work("selfplay", {"config_key": "hex8_2p"})
    high = queue.add_work("training", priority=90, depends_on=[])
    assert queue.get_queue_depth() == 2
    claimed = queue.claim_work("node-1")
    assert (claimed["work_id"], claimed["claimed_by"], claimed["status"]) == (high, "node-1", "running")
    queue.complete_work(high, {"epochs": 3})
    assert queue.get_work(high)["result"] == {"epochs": 3}
    assert queue.claim_work("node-1", ["training"]) is None
    assert queue.claim_work("node-1", ["selfplay"])["work_id"] == low
    assert queue.fail_work(low, "no GPU") == "pending"
    with pytest.raises(ConfigError, match="was not claimed through this queue"):
        queue.complete_work(low)
    run_blocking(close_engine())
    again = named("work_queue.WorkQueue")(str(tmp_path / "queue" / "work.db"))
    assert again.get_status()["by_status"] == {"completed": 1, "pending": 1}


def test_a_claim_is_only_of_work_that_its_kinds_its_node_and_its_hardware_may_do(tmp_path):
    queue = named("work_queue.WorkQueue")(tmp_path / "work.db")
    queue.add_work("training", work_id="gpu", requires_gpu=True, priority=90)
    queue.add_work("export", work_id="there", target_node="node-2", priority=80)
    queue.add_work("selfplay", work_id="any", priority=10)
    assert queue.claim_work("node-1", ["training"]) is None, "it has no GPU"
    assert queue.claim_work("node-1", ["export"]) is None, "it is meant for another node"
    assert queue.claim_work("node-1", []) is None, "it does no kind of work"
    assert queue.claim_work("node-1")["work_id"] == "any"
    assert queue.claim_work("node-2")["work_id"] == "there"
    assert queue.claim_work("node-1", has_gpu=True)["work_id"] == "gpu"
    with pytest.raises(TypeError):
        queue.claim_work("node-1", config_key="hex8_2p")  # what it cannot follow it does not take


def test_a_work_queue_refuses_a_claim_that_another_ended(tmp_path):
    kind, path = named("work_queue.WorkQueue"), tmp_path / "work.db"
    one, other = kind(path), kind(path)
    item = one.add_work("selfplay")
    one.claim_work("node-1")
    other.cancel_work(item, "not wanted")
    with pytest.raises(LeaseLost):
        one.complete_work(item)


async def test_the_work_queue_without_a_path_is_the_one_of_the_process():
    queue = await asyncio.to_thread(named("work_queue.WorkQueue"))
    item = await asyncio.to_thread(queue.add_work, "export", {"config_key": "hex8_2p"})
    assert (await (await queue.port()).get(item)).kind == "export"
    status = named("work_queue.get_work_queue_status")
    assert (await asyncio.to_thread(status))["total_items"] == 1


# --- snapshots ------------------------------------------------------------------------------------------


class Counter:
    def __init__(self):
        self.count = 0

    def get_state(self):
        return {"count": self.count}

    def restore_state(self, state):
        self.count = state["count"]


async def test_states_are_kept_in_a_file_of_ones_own(tmp_path):
    keeper = named("coordinator_persistence.SnapshotCoordinator")(db_path=tmp_path / "states.db")
    counter = Counter()
    counter.count = 7
    await keeper.save("counter", counter)
    await close_engine()
    later, fresh = (
        named("coordinator_persistence.SnapshotCoordinator")(db_path=tmp_path / "states.db"),
        Counter(),
    )
    assert await later.restore("counter", fresh)
    assert fresh.count == 7


def test_a_snapshot_is_made_of_a_state():
    snapshot = named("coordinator_persistence.StateSnapshot")
    made = snapshot.create("counter", {"count": 3})
    assert (made.coordinator, made.version, dict(made.state)) == ("counter", 1, {"count": 3})
    assert made.created_s > 0
    assert snapshot.from_bytes(made.to_bytes(), key="k") == made
    with pytest.raises(ConfigError, match="cannot be kept"):
        snapshot.create("counter", {"open": object()})


def test_dead_letters_in_a_file_of_ones_own(tmp_path):
    queue = named("dead_letter_queue.DeadLetterQueue")(tmp_path / "letters.db")
    queue.capture("TRAINING_COMPLETED", {"config_key": "hex8_2p"}, "mine", "broken")
    assert queue.get_stats()["pending"] == 1
    queue.close()


# --- how it is ------------------------------------------------------------------------------------------


async def test_every_daemon_and_every_coordinator_says_how_it_is():
    factory = get_daemon_factory()
    daemons = {each: await factory.create(each) for each in factory.registered_types()}
    assert [each for each, made in daemons.items() if not callable(getattr(made, "health_check", None))] == []
    bootstrap_coordination()
    made = get_initializer().instances
    assert made
    assert [name for name, each in made.items() if not callable(getattr(each, "health_check", None))] == []


# --- none left out --------------------------------------------------------------------------------------

# Values and bases: what a reader gives them, or None where only a subclass can be made.
GIVEN = {
    "BaseEventHandler": None,
    "CoordinatorBase": ("mine",),
    "DaemonInfo": (DaemonType.AUTO_SYNC,),
    "DaemonManagerConfig": (),
    "DynamicThreshold": ("stale_hours", 4.0, 1.0, 24.0),
    "HandlerBase": None,
    "HealthCheckResult": (True,),
    "RouterEvent": ("TRAINING_COMPLETED",),
    "SQLitePersistenceMixin": None,
    "StageCompletionResult": (StageEvent.TRAINING_COMPLETE, True, 1, "now"),
    "StateSnapshot": None,  # StateSnapshot.create makes one
}


# What moves data has tests of its own, in the machine and under the names of the documents.
MOVING_DATA = (
    "ringrift.data.",
    "ringrift.resources.",
    "ringrift.coordination.cluster_transport",
    "ringrift.coordination.database_sync_manager",
    "ringrift.coordination.delivery_ledger",
    "ringrift.coordination.ephemeral_data_guard",
    "ringrift.coordination.sync_",
    "ringrift.coordination.transaction_isolation",
    "ringrift.coordination.transfer_verification",
)


def named_classes():
    """Every class that the documents name, of what is built, but enums and those that move data."""
    found = {}
    with (DOCUMENTS / "names.csv").open(encoding="utf8", newline="") as file:
        for row in csv.DictReader(file):
            try:
                kind = named(f"{row['module'].removeprefix('app.coordination.')}.{row['name']}")
            except ImportError:
                continue
            moves_data = getattr(kind, "__module__", "").startswith(MOVING_DATA)
            if isinstance(kind, type) and not issubclass(kind, Enum) and not moves_data:
                found[row["name"]] = kind
    return found


def test_every_class_of_the_documents_can_be_made():
    alone = {path.rpartition(".")[2] for path in ALONE}
    missing = [name for name in named_classes() if name not in alone and name not in GIVEN]
    assert missing == []


@pytest.mark.parametrize("name", GIVEN)
def test_a_value_is_made_of_what_is_given(name):
    kind = named_classes()[name]
    if GIVEN[name] is None:
        with pytest.raises(TypeError):
            kind()
    else:
        assert kind(*GIVEN[name]) is not None
