"""The variants that answer also when the machine cannot, and the tools around it."""

import asyncio
import subprocess
import sys

import pytest

from ringrift.coordination import core_utils, helpers
from ringrift.coordination.async_bridge_manager import (
    AsyncBridge,
    get_bridge_manager,
    run_async,
    run_in_thread,
)
from ringrift.coordination.backpressure import QueueType
from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.event_emission_mixin import EventEmissionMixin
from ringrift.coordination.event_router import get_router
from ringrift.coordination.orchestrator_registry import (
    OrchestratorRole,
    acquire_orchestrator_role,
    release_orchestrator_role,
)
from ringrift.coordination.task_coordinator import TaskCoordinator, TaskType
from ringrift.coordination.tracing import new_trace, with_trace
from ringrift.engine.limits import WAIT_S_MAX
from ringrift.engine.opening import close_engine
from ringrift.errors import ConfigError, Conflict, ForeignFile, Unavailable
from ringrift.events.tracing import get_trace_id, inject, span


@pytest.fixture
def no_store():
    """A file where the folder of the database should be: nothing of the engine can be opened."""
    folder = get_settings().coordination_dir
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("in the way")


@pytest.fixture(autouse=True)
def ended():
    yield
    run_async(close_engine())


# --- safe variants ------------------------------------------------------------------------------------


def test_a_safe_variant_does_what_the_call_does():
    assert helpers.can_spawn_safe(TaskType.SELFPLAY, "node-1")[0]
    assert helpers.register_task_safe("task-1", TaskType.SELFPLAY, "node-1")
    assert helpers.heartbeat_task_safe("task-1")
    assert helpers.get_task_stats_safe()["active"] == 1
    assert helpers.complete_task_safe("task-1")
    assert not helpers.complete_task_safe("task-1")
    assert helpers.check_backpressure_safe(QueueType.TRAINING_DATA) is not None
    assert helpers.publish_event_safe("TRAINING_STARTED", {"config_key": "hex8_2p"}) >= 1


def test_without_a_store_it_says_unknown_and_never_yes(no_store):
    ok, reason = helpers.can_spawn_safe(TaskType.SELFPLAY, "node-1")
    assert not ok
    assert reason.startswith("unknown: ")
    assert helpers.check_before_spawn_safe(TaskType.TRAINING, "node-1")[0] is False
    assert helpers.register_task_safe("task-1", TaskType.SELFPLAY) is False
    assert helpers.estimate_task_duration_safe("training") is None
    assert helpers.check_backpressure_safe(QueueType.TRAINING_DATA) is None
    assert set(helpers.get_work_queue_status_safe().values()) == {None}


def test_a_mistake_of_the_caller_is_raised():
    for call in (helpers.acquire_orchestrator_role_safe, helpers.release_orchestrator_role_safe):
        for wrong in ("training", 5, None):
            with pytest.raises(ConfigError, match=r"role is .*; it must be one of .*training_loop"):
                call(wrong)

    def refuse():
        raise ConfigError("2 is too many")

    with pytest.raises(ConfigError, match="too many"):
        helpers.safe(refuse, lambda reason: None)()
    with pytest.raises(TypeError):
        helpers.can_spawn_safe()


@pytest.mark.parametrize(
    ("call", "arguments", "named"),
    [
        ("register_task_safe", ("", "selfplay"), "task_id"),
        ("register_task_safe", (5, "selfplay"), "task_id"),
        ("register_task_safe", ("t", 5), "task_type"),
        ("register_task_safe", ("t", "selfplay", 5), "node_id"),
        ("register_task_safe", ("t", "selfplay", "n", "x"), "pid"),
        ("register_task_safe", ("t", "selfplay", "n", 1, 5), "config_key"),
        ("can_spawn_safe", (5, "n"), "task_type"),
        ("can_spawn_safe", ("", "n"), "task_type"),
        ("can_spawn_safe", ("selfplay", 5), "node_id"),
        ("check_before_spawn_safe", (5, "n"), "task_type"),
    ],
)
def test_a_wrong_argument_of_a_task_is_refused_by_name_and_nothing_is_stored(call, arguments, named):
    with pytest.raises(ConfigError, match=f"{named} is .*; it must be"):
        getattr(helpers, call)(*arguments)
    assert TaskCoordinator.get_instance().get_tasks() == []


def test_every_safe_variant_has_the_name_of_its_call():
    made = [name for name in helpers.__all__ if name.endswith("_safe")]
    assert len(made) >= 25
    assert [getattr(helpers, name).__name__.lstrip("_") for name in made] == made


# --- locks ----------------------------------------------------------------------------------------------


def test_a_file_lock_excludes_another_process(tmp_path):
    path = tmp_path / "locks" / "mine.lock"
    program = (
        "import sys\nfrom ringrift.coordination.core_utils import file_lock\n"
        "try:\n    with file_lock(sys.argv[1], wait_seconds=0.0): print('free')\n"
        "except Exception as error: print(type(error).__name__)"
    )

    def other():
        done = subprocess.run(
            [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    with core_utils.file_lock(path, wait_seconds=WAIT_S_MAX):
        assert other() == "Unavailable"
    assert other() == "free"


async def test_a_file_lock_waits_no_longer_than_it_was_told(tmp_path):
    path = tmp_path / "mine.lock"
    async with core_utils.async_file_lock(path):
        with pytest.raises(Unavailable, match="another process holds"):
            async with core_utils.async_file_lock(path, wait_seconds=0.1):
                pass


# --- YAML -----------------------------------------------------------------------------------------------


def test_yaml_comes_back_as_it_went(tmp_path):
    values = {"hosts": {"node-1": {"gpus": 2, "roles": ["training", "selfplay"]}}, "ports": [8766, 8770]}
    core_utils.save_yaml(tmp_path / "sub" / "hosts.yaml", values)
    assert core_utils.load_yaml(tmp_path / "sub" / "hosts.yaml") == values
    assert core_utils.load_yaml(tmp_path / "absent.yaml", default={}) == {}


@pytest.mark.parametrize(
    "content",
    ["a: [1, 2", "!!python/object/apply:os.getcwd []", "a: 1\n\tb: 2", "a: \xff"],
)
def test_what_is_no_plain_yaml_is_refused(tmp_path, content):
    path = tmp_path / "wrong.yaml"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ForeignFile, match="no YAML"):
        core_utils.load_yaml(path)


def test_what_yaml_cannot_hold_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be written"):
        core_utils.save_yaml(tmp_path / "a.yaml", {"open": object()})
    with pytest.raises(ConfigError, match="is a folder"):
        core_utils.load_yaml(tmp_path)


# --- traces ---------------------------------------------------------------------------------------------


def test_a_trace_goes_through_a_transport_of_ones_own():
    with span("sender"):
        sent, trace_id = inject(), get_trace_id()
    assert get_trace_id() is None
    for carried in (sent, sent["traceparent"]):
        with with_trace(carried), span("receiver"):
            assert get_trace_id() == trace_id
    assert get_trace_id() is None


def test_headers_without_a_trace_change_nothing_and_a_wrong_one_is_refused():
    with span("mine"):
        before = get_trace_id()
        with with_trace({"content-type": "text/plain"}):
            assert get_trace_id() == before
    with pytest.raises(ConfigError, match="is no traceparent"), with_trace("not a trace"):
        pass


def test_a_new_trace_is_not_that_of_its_surroundings():
    with span("outer"):
        outer = get_trace_id()
        with new_trace("inner") as inner:
            assert get_trace_id() == inner.trace_id != outer
        assert get_trace_id() == outer


# --- bridge ---------------------------------------------------------------------------------------------


def test_the_bridge_begins_with_the_first_call_and_can_be_ended():
    async def add(one, two):
        return one + two

    bridge = get_bridge_manager()
    assert isinstance(bridge, AsyncBridge)
    assert run_async(add(1, 2)) == 3
    assert bridge.is_running
    assert bridge.shutdown()
    assert not bridge.is_running
    assert run_async(add(3, 4)) == 7


def test_the_bridge_is_not_ended_under_a_lease():
    bridge = get_bridge_manager()
    assert acquire_orchestrator_role(OrchestratorRole.PIPELINE)
    with pytest.raises(Conflict, match=r"in use by .*role pipeline_orchestrator"):
        bridge.shutdown()
    assert release_orchestrator_role(OrchestratorRole.PIPELINE)
    run_async(close_engine())
    assert bridge.shutdown()


async def test_a_blocking_call_leaves_the_loop_free():
    turns = 0

    async def turn():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        turning = group.create_task(turn())
        assert await run_in_thread(sum, [1, 2, 3]) == 6
        turning.cancel()
    assert turns > 0


# --- publishing -----------------------------------------------------------------------------------------


class Trainer(EventEmissionMixin):
    name = "my_trainer"


async def test_a_class_of_ones_own_publishes_under_its_name():
    heard = []
    get_router().subscribe("TRAINING_STARTED", heard.append)
    started = {"config_key": "hex8_2p", "job_id": "job-1", "node_id": "node-1"}
    await Trainer().emit_event("TRAINING_STARTED", started)
    assert [(event.source, event.payload["job_id"]) for event in heard] == [("my_trainer", "job-1")]
    assert await Trainer().emit_event_safe("TRAINING_STARTED", {**started, "job_id": "job-2"})
