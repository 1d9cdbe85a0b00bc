"""Functions and blocks as tasks, on the real engine and the real router."""

import asyncio
import os
import threading
import time

import pytest

from ringrift.coordination import task_coordinator
from ringrift.coordination.event_router import get_router
from ringrift.coordination.task_coordinator import (
    TaskCoordinator,
    TaskType,
    async_task_context,
    can_spawn,
    coordinate_async_task,
    coordinate_task,
    get_task_stats,
    task_context,
    turn_on_emergency_stop,
    wire_task_events,
    wire_task_limits,
)
from ringrift.errors import ConfigError, Unavailable


@pytest.fixture
def told():
    """What is said about tasks, with both coordinators listening too."""
    said = []
    wire_task_limits()
    wire_task_events()
    for event in ("TASK_SPAWNED", "TASK_COMPLETED", "TASK_FAILED", "TASK_CANCELLED"):
        get_router().subscribe(event, lambda event: said.append((event.event_type, event.payload)))
    return said


def names(told):
    return [name for name, _ in told]


def test_a_function_is_a_task_while_it_runs(told):
    @coordinate_task("export", board_type="hex8", num_players=2)
    def export(number):
        (task,) = TaskCoordinator.get_instance().get_tasks("export")
        assert (task.pid, task.config_key) == (os.getpid(), "hex8_2p")
        return number + 1

    assert export(1) == 2
    assert names(told) == ["TASK_SPAWNED", "TASK_COMPLETED"]
    assert TaskCoordinator.get_instance().get_tasks() == []
    assert get_task_stats()["completed"] == 1


def test_a_failure_is_told_and_raised_on(told):
    @coordinate_task(TaskType.TRAINING)
    def train():
        raise ValueError("no data")

    with pytest.raises(ValueError, match="no data"):
        train()
    assert names(told) == ["TASK_SPAWNED", "TASK_FAILED"]
    assert told[1][1]["error"] == "ValueError: no data"
    assert get_task_stats()["failed"] == 1


def test_a_quiet_task_says_nothing(told):
    @coordinate_task("export", emit_events=False)
    def export():
        return TaskCoordinator.get_instance().get_tasks()

    assert export() == []
    assert told == []


def test_a_block_knows_its_task(told):
    with task_context("selfplay", board_type="square8", num_players=2, games=5) as task:
        assert (task.task_type, task.config_key, task.metadata) == (
            TaskType.SELFPLAY,
            "square8_2p",
            {"games": 5},
        )
        assert task.task_id.startswith("selfplay-")


def test_a_block_is_registered_under_the_id_and_on_the_node_that_it_names(told):
    with task_context("sync", task_id="sync-of-monday", node_id="node-1", metadata={"a": 1}, b=2) as task:
        (running,) = TaskCoordinator.get_instance().get_tasks("sync")
        assert (running.task_id, running.node) == ("sync-of-monday", "node-1")
    assert (task.task_id, task.node_id, task.metadata) == ("sync-of-monday", "node-1", {"a": 1, "b": 2})
    assert {(payload["task_id"], payload["node_id"]) for _, payload in told} == {("sync-of-monday", "node-1")}


async def test_an_async_block_is_registered_under_the_id_that_it_names(told):
    async with async_task_context("sync", task_id="sync-of-monday"):
        (running,) = await asyncio.to_thread(TaskCoordinator.get_instance().get_tasks, "sync")
        assert running.task_id == "sync-of-monday"


@pytest.mark.parametrize(
    "wrong",
    [
        {"task_id": ""},
        {"task_id": 5},
        {"config_key": "hex8_2p"},
        {"num_players": "two", "board_type": "hex8"},
        {"num_players": True},
        {"board_type": 8},
        {"node_id": 5},
        {"metadata": "x"},
        {"metadata": {1: "x"}},
        {"bord_type": "hex8"},
        {"num_player": 2},
    ],
)
def test_an_option_that_cannot_have_an_effect_is_refused(told, wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))), task_context("sync", **wrong):
        raise AssertionError("must not run")
    assert told == []


@pytest.mark.parametrize("decorator", [coordinate_task, coordinate_async_task])
def test_a_wrong_option_of_a_decorator_is_refused_where_it_is_written(decorator):
    with pytest.raises(ConfigError, match="num_players"):
        decorator("sync", board_type="hex8", num_players="two")
    with pytest.raises(ConfigError, match="task_type"):
        decorator("")


def test_a_mistyped_option_is_told_by_the_name_that_it_must_have_meant():
    with pytest.raises(ConfigError, match=r"num_player .*did you mean num_players\?"):
        coordinate_task("sync", num_player=2)


def test_one_id_for_all_calls_of_a_function_is_refused():
    for decorator in (coordinate_task, coordinate_async_task):
        with pytest.raises(ConfigError, match="task_id"):
            decorator("sync", task_id="sync-of-monday")


def test_a_task_that_a_limit_refuses_does_not_run(told):
    turn_on_emergency_stop("maintenance")

    @coordinate_task("export", check_limits=True)
    def export():
        raise AssertionError("must not run")

    with pytest.raises(Unavailable, match="emergency stop until it is cleared: maintenance"):
        export()
    assert told == []


async def test_an_async_function_is_a_task_too(told):
    @coordinate_async_task("evaluate")
    async def evaluate():
        (task,) = await asyncio.to_thread(TaskCoordinator.get_instance().get_tasks)
        return task.task_type

    assert await evaluate() is TaskType.EVALUATION
    assert names(told) == ["TASK_SPAWNED", "TASK_COMPLETED"]


def test_a_block_without_a_loop_says_that_it_lives_until_it_ends(monkeypatch):
    monkeypatch.setattr(task_coordinator, "HEARTBEAT_S", 0.01)
    registry, beaten = TaskCoordinator.get_instance().admission.registry, threading.Event()
    heartbeat, beats = registry.heartbeat, []

    async def seen_heartbeat(task_id):
        known = await heartbeat(task_id)
        beats.append((task_id, known))
        beaten.set()
        return known

    monkeypatch.setattr(registry, "heartbeat", seen_heartbeat)
    with task_context("export", task_id="long"):
        assert beaten.wait(10.0)
        assert beats[0] == ("long", True)
    beaten.clear()
    if beaten.wait(0.2):  # one that was under way when the block ended
        beaten.clear()
    assert not beaten.wait(0.2)


async def test_a_cancelled_task_is_told_as_cancelled(told):
    entered = asyncio.Event()

    async def work():
        async with async_task_context("evaluate"):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.wait_for(entered.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert names(told) == ["TASK_SPAWNED", "TASK_CANCELLED"]


def test_the_face_of_the_coordinator_without_a_loop(told):
    coordinator, began_s = TaskCoordinator.get_instance(), time.monotonic()
    assert coordinator.register_task("t1", TaskType.SELFPLAY, "node-1", os.getpid()) == "t1"
    answer = can_spawn(TaskType.SELFPLAY, "node-1")
    too_late = time.monotonic() - began_s > 1.0  # on a machine that needs this long for two calls
    assert too_late or answer == (False, "node-1 began a task less than 1 s ago")
    assert coordinator.heartbeat_task("t1")
    assert not coordinator.heartbeat_task("unknown")
    assert [task.task_id for task in coordinator.get_tasks(node_id="node-1")] == ["t1"]
    assert coordinator.cancel_task("t1", "asked")
    assert not coordinator.cancel_task("t1")
    assert not coordinator.complete_task("t1")
    coordinator.pause("lunch")
    assert coordinator.get_state().value == "paused"
    assert can_spawn("export") == (False, "task coordination is paused: lunch")
    coordinator.resume()
    assert coordinator.reserve_node("node-2", "training")
    assert can_spawn("export", "node-2") == (False, "node-2 is reserved for training")
    assert coordinator.release_node("node-2")
    assert coordinator.get_stats()["cancelled"] == 1
    assert names(told) == ["TASK_SPAWNED", "TASK_CANCELLED"]
