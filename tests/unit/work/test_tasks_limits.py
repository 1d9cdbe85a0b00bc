"""The questions, their order, and the rates, as plain decisions."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringrift.errors import ConfigError
from ringrift.health.breakers import BreakerConfig, CircuitBreaker
from ringrift.machine import NodeResources
from ringrift.work.backpressure import BackpressureLevel
from ringrift.work.limits import (
    SAFEGUARD_ORDER,
    SPAWN_ORDER,
    CoordinatorState,
    EmergencyNotice,
    Question,
    StateNotice,
    TaskLimits,
    TokenBucket,
    has_room_again,
    judge,
)
from ringrift.work.tasks import TaskType, task_type_of

LIMITS = TaskLimits()
NOW_S = 1000.0
ROOMY = NodeResources(cpu_percent=10, memory_percent=30, disk_percent=40, disk_free_gb=200, load=0.5, cores=8)
CALM = Question(task_type=TaskType.SELFPLAY, node="n", now_s=NOW_S, resources=ROOMY)
EMPTY = TokenBucket(per_minute=60, burst=1).taken(NOW_S)
OPEN = CircuitBreaker(BreakerConfig(failures_max=1)).failed(NOW_S)

# Everything that can speak against a task at once, by check.
TROUBLES = {
    "emergency": {"emergency": EmergencyNotice(reason="fire", since_s=0)},
    "state": {"state": StateNotice(state=CoordinatorState.PAUSED, reason="lunch")},
    "rate": {"rate": EMPTY},
    "node_rate": {"node_rate": EMPTY},
    "cooldown": {"last_spawn_s": NOW_S - 0.5},
    "reservations": {"reserved_for": "training", "reserved_until_s": NOW_S + 60},
    "node_health": {"node_offline": "unplugged"},
    "node_breaker": {"node_breaker": OPEN},
    "type_breaker": {"type_breaker": OPEN},
    "node_limit": {"on_node": {TaskType.SELFPLAY: 20, TaskType.GPU_SELFPLAY: 12}},
    "cluster_limit": {"in_cluster": {TaskType.SELFPLAY: 500}},
    "totals": {"in_cluster": {TaskType.OTHER: 200}},
    "resources": {"resources": replace(ROOMY, disk_percent=94, disk_free_gb=1)},
    "soft_resources": {"resources": replace(ROOMY, disk_percent=94, disk_free_gb=1)},
    "backpressure_level": {"backpressure": BackpressureLevel.STOP},
}


def names(order):
    return [check.__name__.removeprefix("check_") for check in order]


def test_the_order_of_the_questions_is_the_documented_one():
    assert names(SPAWN_ORDER) == [
        "state", "rate", "cooldown", "reservations", "node_health", "node_limit", "cluster_limit",
        "resources", "backpressure_level",
    ]  # fmt: skip
    assert names(SAFEGUARD_ORDER) == [
        "emergency", "state", "node_breaker", "type_breaker", "rate", "node_rate", "node_limit", "totals",
        "soft_resources",
    ]  # fmt: skip


@pytest.mark.parametrize("order", [SPAWN_ORDER, SAFEGUARD_ORDER], ids=["can_spawn", "safeguards"])
def test_the_first_trouble_in_the_order_is_the_reason(order):
    """Take one trouble away after the other: the next in the order speaks."""
    for number, name in enumerate(names(order)):
        ask = CALM
        for later in names(order)[number:]:
            ask = replace(ask, **TROUBLES[later])
        verdict = judge(ask, LIMITS, order)
        assert (verdict.ok, verdict.check) == (False, name)
        assert verdict.reason
        assert verdict.retry_after_s > 0
    assert judge(CALM, LIMITS, order).ok


def test_reasons_are_sentences_that_a_person_can_act_on():
    def why(**trouble):
        return judge(replace(CALM, **trouble), LIMITS, SPAWN_ORDER).reason

    assert why(**TROUBLES["emergency"]) == "emergency stop until it is cleared: fire"
    assert why(**TROUBLES["state"]) == "task coordination is paused: lunch"
    assert why(**TROUBLES["node_limit"]) == "32 of 32 selfplay tasks run on n"
    assert why(**TROUBLES["reservations"]) == "n is reserved for training"
    assert why(node_breaker=OPEN) == "1 tasks on n failed in a row"


def test_a_reserved_node_takes_what_it_is_reserved_for():
    ask = replace(CALM, task_type=TaskType.TRAINING, **TROUBLES["reservations"])
    assert judge(ask, LIMITS, SPAWN_ORDER).ok


def test_every_automatic_block_ends():
    for trouble in ("reservations", "node_breaker", "type_breaker", "rate", "node_rate", "cooldown"):
        for order in (SPAWN_ORDER, SAFEGUARD_ORDER):
            ask = replace(CALM, **TROUBLES[trouble])
            wait_s = judge(ask, LIMITS, order).retry_after_s
            assert judge(replace(ask, now_s=NOW_S + wait_s + 1e-6), LIMITS, order).ok, trouble
    timed = replace(CALM, state=StateNotice(state=CoordinatorState.PAUSED, until_s=NOW_S + 5))
    assert not judge(timed, LIMITS, SPAWN_ORDER).ok
    assert judge(replace(timed, now_s=NOW_S + 5), LIMITS, SPAWN_ORDER).ok


def test_backpressure_holds_producers_back_and_nobody_else():
    stop = {"backpressure": BackpressureLevel.STOP}
    assert not judge(replace(CALM, **stop), LIMITS, SPAWN_ORDER).ok
    assert judge(replace(CALM, task_type=TaskType.TRAINING, **stop), LIMITS, SPAWN_ORDER).ok


def test_a_busy_machine_works_slowly_and_does_not_stand_still():
    """Its own tasks may use every core; what others use stops a second task, never the first."""
    busy = NodeResources(
        cpu_percent=100, memory_percent=85, disk_percent=40, disk_free_gb=50, load=9, cores=2
    )
    for order in (SPAWN_ORDER, SAFEGUARD_ORDER):
        assert judge(replace(CALM, resources=busy), LIMITS, order).ok
    ours = {"resources": replace(busy, memory_percent=50, load=2), "on_node": {TaskType.SELFPLAY: 1}}
    for order in (SPAWN_ORDER, SAFEGUARD_ORDER):
        assert judge(replace(CALM, **ours), LIMITS, order).ok
    crowded = replace(CALM, resources=busy, on_node={TaskType.SELFPLAY: 1})
    assert judge(crowded, LIMITS, SAFEGUARD_ORDER).reason == "memory 85 % used"
    crowded = replace(crowded, resources=replace(busy, memory_percent=50))
    assert judge(crowded, LIMITS, SAFEGUARD_ORDER).reason == "4.0 other programs per core want to run"
    others = replace(crowded, resources=replace(busy, memory_percent=50, cores=40))
    assert "other programs use" in judge(others, LIMITS, SPAWN_ORDER).reason
    unknown = replace(others, resources=replace(others.resources, cpu_percent=None))
    assert judge(unknown, LIMITS, SPAWN_ORDER).ok
    full = replace(busy, memory_percent=96)
    assert not judge(replace(CALM, resources=full), LIMITS, SPAWN_ORDER).ok


def test_a_large_disk_at_93_percent_has_room():
    large = replace(ROOMY, disk_percent=95, disk_free_gb=100)
    assert judge(replace(CALM, resources=large), LIMITS, SPAWN_ORDER).ok


@given(st.floats(0, 100), st.floats(0, 100), st.floats(0, 100))
def test_a_machine_with_room_again_is_not_refused(memory, disk, free_gb):
    seen = replace(ROOMY, memory_percent=memory, disk_percent=disk, disk_free_gb=free_gb)
    if has_room_again(seen, LIMITS):
        assert judge(replace(CALM, resources=seen), LIMITS, SPAWN_ORDER).ok


@given(st.lists(st.floats(0, 5), min_size=1, max_size=200), st.floats(1, 600), st.integers(1, 30))
def test_a_bucket_never_lets_more_through_than_its_rate(gaps, per_minute, burst):
    bucket, now_s, passed = TokenBucket(per_minute, burst), 0.0, []
    for gap_s in gaps:
        now_s += gap_s
        if bucket.wait_s(now_s) == 0:
            bucket = bucket.taken(now_s)
            passed.append(now_s)
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            span_s = passed[last] - passed[first]
            assert last - first + 1 <= burst + span_s * per_minute / 60 + 1e-3


@given(st.floats(1, 600), st.integers(1, 30), st.floats(0, 1e6))
def test_after_its_wait_a_bucket_lets_one_through(per_minute, burst, now_s):
    bucket = TokenBucket(per_minute, burst)
    for _ in range(burst):
        assert bucket.wait_s(now_s) == 0
        bucket = bucket.taken(now_s)
    wait_s = bucket.wait_s(now_s)
    assert wait_s == pytest.approx(60 / per_minute, rel=1e-6)
    assert bucket.wait_s(now_s + wait_s * (1 + 1e-6)) == 0


def test_near_the_rate_a_task_waits_a_little():
    bucket = TokenBucket(per_minute=60, burst=10)
    for _ in range(7):
        bucket = bucket.taken(NOW_S)
    for delay_s in (0, 1, 3):
        verdict = judge(replace(CALM, rate=bucket), LIMITS, SPAWN_ORDER)
        assert (verdict.ok, verdict.delay_s) == (True, pytest.approx(delay_s))
        bucket = bucket.taken(NOW_S)


def test_a_wrong_rate_is_refused_and_kinds_have_types():
    with pytest.raises(ConfigError):
        TokenBucket(per_minute=0, burst=1)
    kinds = ("train", "training", "evaluate", "gpu_cmaes", "my own")
    assert [task_type_of(kind).value for kind in kinds] == [
        "training", "training", "evaluation", "cmaes", "other",
    ]  # fmt: skip
