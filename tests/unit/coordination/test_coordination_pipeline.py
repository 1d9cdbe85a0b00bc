"""Stages, nodes and the whole, asked from any process: the answers are those of the store."""

import msgspec
import pytest

from ringrift.coordination.event_router import get_router
from ringrift.coordination.facade import get_coordination_facade
from ringrift.coordination.integration_bridge import get_integration_status, wire_all_integrations
from ringrift.coordination.node_policies import get_node_policies, is_work_allowed
from ringrift.coordination.pipeline_actions import get_stage_breakers, trigger_stage, trigger_training
from ringrift.coordination.pipeline_triggers import (
    get_trigger_condition,
    get_trigger_conditions,
    should_trigger,
)
from ringrift.coordination.run_coordinator import get_loop_waker
from ringrift.coordination.unified_health_manager import HealthLevel, wire_health_events
from ringrift.engine.blocking import run_blocking
from ringrift.engine.opening import close_engine, shared_kv
from ringrift.errors import ConfigError
from ringrift.health.run_status import EXPLAIN_PREFIX, STATUS_KEY
from ringrift.learning.plan.orders import Explanation
from ringrift.testing.sample_run import idle_config, idle_run
from ringrift.work.worker.records import WORKERS, WorkerRecord

CONFIG = "hex8_2p"


@pytest.fixture(autouse=True)
def ended():
    yield
    run_blocking(close_engine())


def store(key, value):
    async def put():
        await (await shared_kv()).put(key, msgspec.json.encode(value))

    run_blocking(put())


def planned(*said):
    store(
        EXPLAIN_PREFIX + CONFIG,
        [Explanation(stage=stage, will=will, reason=why) for stage, will, why in said],
    )


def blocked(**stages):
    run = idle_run(configs={CONFIG: idle_config(stage="blocked", blocked=stages)})
    store(STATUS_KEY, run)


def worker(name, **values):
    usual = {
        "name": name,
        "node": "node-1",
        "pid": 1,
        "slots": 2,
        "busy": 1,
        "kinds": ("selfplay", "export"),
        "capabilities": ("cpu",),
        "cpus": 4,
        "gpus": 0,
        "memory_mb": 1000,
        "memory_free_mb": 500,
        "load": 0.0,
        "started_s": 0.0,
        "at_s": 0.0,
    }
    store(WORKERS + name, WorkerRecord(**{**usual, **values}))


# --- what a stage waits for -----------------------------------------------------------------------------


def test_the_conditions_are_the_words_of_the_plan():
    planned(("train", False, "3,100 rows are missing"), ("selfplay", True, "a worker is free"))
    conditions = get_trigger_conditions(CONFIG)
    assert (conditions["train"].will, conditions["train"].reason) == (False, "3,100 rows are missing")
    assert should_trigger(CONFIG, "selfplay") is True
    assert should_trigger(CONFIG, "training") is False


def test_without_a_plan_nothing_is_known():
    condition = get_trigger_condition(CONFIG, "train")
    assert condition.will is None
    assert "said nothing of train" in condition.reason
    assert should_trigger(CONFIG, "train") is None


def test_a_stage_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(ConfigError, match=r"'cooking' is no stage; there are selfplay, validate"):
        should_trigger(CONFIG, "cooking")


# --- asking for a stage ---------------------------------------------------------------------------------


def test_asking_wakes_the_loop_and_gives_the_word_of_the_plan():
    planned(("train", False, "3,100 rows are missing"), ("evaluate", True, "a model waits for its match"))
    heard = []
    get_loop_waker().listen(lambda: heard.append("rung"))
    refused = trigger_training(CONFIG)
    assert not refused
    assert refused.reason == "3,100 rows are missing"
    accepted = trigger_stage("evaluation", CONFIG)
    assert accepted
    assert accepted.reason == "a model waits for its match"
    assert heard == ["rung", "rung"]


def test_a_stage_that_failed_too_often_is_held_by_its_breaker():
    planned(("train", True, "the bucket is full"))
    blocked(train={"reason": "5 failures in a row: no GPU", "until_s": 600.0})
    assert set(get_stage_breakers(CONFIG)) == {"train"}
    answer = trigger_training(CONFIG)
    assert (answer.accepted, answer.breaker_open, answer.until_s) == (False, True, 600.0)
    assert "no GPU" in answer.reason


def test_asking_without_a_run_is_neither_yes_nor_no():
    answer = trigger_training(CONFIG)
    assert answer.accepted is None
    assert not answer
    assert "is a run of it open?" in answer.reason


# --- nodes ----------------------------------------------------------------------------------------------


def test_a_node_takes_what_its_workers_were_started_for():
    worker("one")
    worker("two", kinds=("train",), capabilities=("cpu", "gpu"), busy=0)
    policy = get_node_policies()["node-1"]
    assert (policy.slots, policy.free_slots) == (4, 3)
    assert policy.allowed == {"selfplay", "export", "train"}
    assert is_work_allowed("node-1", "train", requires_gpu=True) == (True, "ok")
    ok, why = is_work_allowed("node-1", "tune")
    assert not ok
    assert "take only export, selfplay, train" in why


def test_a_gpu_counts_only_for_the_kinds_of_its_own_worker():
    worker("one", kinds=("selfplay",))
    worker("two", kinds=("train",), capabilities=("cpu", "gpu"))
    assert is_work_allowed("node-1", "selfplay") == (True, "ok")
    assert is_work_allowed("node-1", "selfplay", requires_gpu=True) == (
        False,
        "the workers of node-1 with a GPU take only train",
    )


def test_a_worker_that_is_set_aside_takes_nothing():
    worker("one", set_aside="its games differ")
    assert is_work_allowed("node-1", "selfplay") == (
        False,
        "no worker of node-1 claims work (one: its games differ)",
    )
    assert is_work_allowed("node-9", "selfplay") == (False, "no worker lives on node-9")


def test_a_worker_for_any_kind_makes_its_node_one():
    worker("one")
    worker("two", kinds=None)
    assert get_node_policies()["node-1"].allowed is None
    assert is_work_allowed("node-1", "tune") == (True, "ok")
    assert is_work_allowed("node-1", "train", requires_gpu=True) == (False, "no worker of node-1 has a GPU")


# --- the whole ------------------------------------------------------------------------------------------


def test_the_facade_lets_a_program_take_part():
    facade = get_coordination_facade()
    task_id, reason = facade.spawn_task("selfplay", "node-1", config_key=CONFIG)
    assert (task_id is not None, reason) == (True, "ok")
    status = facade.get_status()
    assert status["tasks"]["active"] == 1
    assert status["work_queue"]["total_items"] == 0
    assert facade.complete_task(task_id)
    assert facade.get_champion(CONFIG) is None


async def test_the_bridge_shows_who_hears_whom():
    assert get_integration_status().connected == ()
    status = wire_all_integrations()
    assert status.connected
    assert "health_manager.ERROR" in status.connected
    assert status == get_integration_status()


async def test_the_health_of_the_whole_is_one_value_that_is_tracked():
    manager = wire_health_events()
    assert manager.get_health_score().score == 1.0
    await get_router().publish("REGRESSION_CRITICAL", {"config_key": CONFIG, "reason": "worse"}, "test")
    worse = manager.get_health_score()
    assert worse.level is HealthLevel.DEGRADED
    assert worse.should_pause
    assert any(CONFIG in issue for issue in worse.issues)
    assert [each.score for each in manager.get_score_history()] == [worse.score]
    assert worse.to_dict()["level"] == "degraded"
    manager.unwire()
    unknown = manager.get_health_score()
    assert (unknown.score, unknown.level) == (None, HealthLevel.UNKNOWN)
