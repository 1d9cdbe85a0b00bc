"""The small checks and the contract around them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringrift.clock import ClockAnchor
from ringrift.coordination.contracts import (
    get_all_metrics,
    get_coordinator,
    health_check_all,
    invoke_health_check,
    register_coordinator,
    unregister_coordinator,
    validate_coordinator,
)
from ringrift.coordination.coordinator_base import CoordinatorBase
from ringrift.coordination.health_check_helper import HealthCheckHelper
from ringrift.runtime import system_runtime
from ringrift.status import CoordinatorStatus, HealthCheckResult

NOW = 10_000.0


@pytest.mark.parametrize(
    ("errors", "cycles", "fine"), [(0, 0, True), (5, 0, True), (49, 100, True), (50, 100, False)]
)
def test_error_rate_fails_from_the_threshold_on(errors, cycles, fine):
    assert HealthCheckHelper.check_error_rate(errors=errors, cycles=cycles, threshold=0.5)[0] is fine


def test_uptime_grace_is_true_while_starting():
    assert HealthCheckHelper.check_uptime_grace(start_time=NOW - 29, grace_period=30, now_s=NOW)[0]
    assert not HealthCheckHelper.check_uptime_grace(start_time=NOW - 30, grace_period=30, now_s=NOW)[0]


def test_setting_the_wall_clock_ages_nothing(monkeypatch):
    """Times are of `Runtime.now_s`, as all that the components note."""
    runtime = system_runtime()
    runtime.keep_time(ClockAnchor(runtime.boot_id, runtime.boot_s(), runtime.now_s()))
    noted_s = runtime.now_s()
    monkeypatch.setattr(runtime, "wall_s", lambda: noted_s + 86_400.0)
    assert HealthCheckHelper.check_uptime_grace(noted_s, grace_period=3_600.0)[0]
    assert HealthCheckHelper.check_last_activity(noted_s)[0]
    assert "wall" not in HealthCheckHelper.__doc__


@pytest.mark.parametrize("never", [0.0, 0, None])
def test_what_never_started_is_not_judged_by_its_uptime(never):
    assert HealthCheckHelper.check_uptime_grace(never, now_s=NOW) == (True, "not started yet")


@pytest.mark.parametrize("entry", [NOW - 10, (NOW - 10, "boom"), {"timestamp": NOW - 10}])
def test_recent_errors_counts_only_the_window(entry):
    check = HealthCheckHelper.check_recent_errors
    old = NOW - 301
    assert check([old] * 9 + [entry] * 4, now_s=NOW)[0]
    assert not check([entry] * 5, now_s=NOW)[0]


@given(size=st.integers(0, 3000), limit=st.integers(0, 2000))
def test_queue_depth_is_the_same_by_either_name(size, limit):
    by_depth = HealthCheckHelper.check_queue_depth(depth=size, max_depth=limit)
    assert by_depth == HealthCheckHelper.check_queue_depth(size, limit)
    assert by_depth == HealthCheckHelper.check_queue_depth(queue_size=size, max_depth=limit)
    assert by_depth[0] == (limit == 0 or size < limit)


def test_queue_depth_without_a_size_is_refused():
    with pytest.raises(TypeError, match="queue_size or depth"):
        HealthCheckHelper.check_queue_depth(max_depth=3)


@pytest.mark.parametrize("unknown", [None, 0, 0.0])
def test_unknown_is_not_healthy(unknown):
    helper = HealthCheckHelper
    assert not helper.check_last_activity(unknown, now_s=NOW)[0]
    assert not helper.check_data_staleness(unknown, now_s=NOW)[0]
    assert not helper.check_connection_health(True, unknown, now_s=NOW)[0]


def test_connection_subscription_dependency_memory_and_details():
    helper = HealthCheckHelper
    assert helper.check_connection_health(True) == (True, "connected")
    assert helper.check_connection_health(False) == (False, "not connected")
    assert helper.check_connection_health(True, NOW - 60, now_s=NOW)[0]
    assert not helper.check_connection_health(True, NOW - 61, now_s=NOW)[0]
    assert helper.check_connection_health(False, NOW, now_s=NOW) == (False, "not connected")
    assert helper.check_subscription_health(True, 16, 16)[0]
    assert helper.check_subscription_health(True, 3, 16) == (False, "3 of 16 subscriptions")
    assert not helper.check_subscription_health(False)[0]
    assert helper.check_handler_failures(1, 10)[0]
    assert not helper.check_handler_failures(2, 10)[0]
    assert not helper.check_pending_items(100)[0]
    assert helper.check_dependency_health({"a": True, "b": False}) == (False, "unhealthy: b")
    assert not helper.check_memory_usage(1024)[0]
    assert helper.build_details(a=1, b=None, c=0) == {"a": 1, "c": 0}


class Answering:
    name = "answering"

    def __init__(self, answer):
        self.answer = answer

    def health_check(self):
        return self.answer


async def later(value):
    return value


async def test_every_shape_of_answer_is_understood():
    assert (await invoke_health_check(Answering(True))).healthy
    assert not (await invoke_health_check(Answering({"healthy": False, "message": "no disk"}))).healthy
    asynchronous = await invoke_health_check(Answering(later(HealthCheckResult.degraded("slow"))))
    assert asynchronous.status is CoordinatorStatus.DEGRADED


@pytest.mark.parametrize("answer", [None, "fine", 1, {"message": "fine"}])
async def test_an_answer_that_says_nothing_is_unhealthy(answer):
    assert not (await invoke_health_check(Answering(answer))).healthy


async def test_a_check_that_raises_is_unhealthy_and_one_that_is_missing_unhealthy_or_unknown():
    class Raising:
        def health_check(self):
            raise KeyError("gone")

    result = await invoke_health_check(Raising())
    assert not result.healthy
    assert "KeyError" in result.message
    assert not (await invoke_health_check(Raising(), default_on_error=True)).healthy
    assert not (await invoke_health_check(object())).healthy
    unknown = await invoke_health_check(object(), default_on_error=True)
    assert (unknown.healthy, unknown.status) == (False, CoordinatorStatus.UNKNOWN)
    assert "has no health_check" in unknown.message


async def test_one_directory_serves_every_view():
    coordinator = CoordinatorBase("scheduler")
    assert validate_coordinator(coordinator) == []
    assert validate_coordinator(object()) == [
        "name",
        "status",
        "start",
        "stop",
        "get_metrics",
        "health_check",
    ]
    register_coordinator(coordinator)
    await coordinator.start()
    assert get_coordinator("scheduler") is coordinator
    assert (await health_check_all())["scheduler"].healthy
    assert get_all_metrics()["scheduler"]["status"] == "running"


def test_a_coordinator_whose_metrics_fail_does_not_hide_those_of_the_others():
    class Broken(CoordinatorBase):
        def get_metrics(self):
            raise KeyError("uptime")

    register_coordinator(Broken("broken"))
    register_coordinator(CoordinatorBase("scheduler"))
    metrics = get_all_metrics()
    assert metrics["scheduler"]["name"] == "scheduler"
    assert metrics["broken"] == {"error": "KeyError: 'uptime'"}
    assert unregister_coordinator("scheduler")
    assert get_coordinator("scheduler") is None
    with pytest.raises(TypeError, match="no name"):
        register_coordinator(object())


@pytest.mark.parametrize(
    ("result", "score"),
    [
        (HealthCheckResult(True), 1.0),
        (HealthCheckResult.ok("fine"), 1.0),
        (HealthCheckResult.degraded("slow"), 0.7),
        (HealthCheckResult(True, CoordinatorStatus.PAUSED), 0.5),
        (HealthCheckResult(True, CoordinatorStatus.ERROR), 0.1),
        (HealthCheckResult(True, CoordinatorStatus.STOPPED), 0.0),
        (HealthCheckResult(False, CoordinatorStatus.RUNNING), 0.0),
        (HealthCheckResult.unhealthy("down"), 0.0),
    ],
)
def test_a_result_has_the_score_of_its_status_and_none_when_unhealthy(result, score):
    assert result.health_score == pytest.approx(score)


def test_a_status_given_as_text_is_as_good_as_the_member():
    result = HealthCheckResult(healthy=True, status="degraded", message="slow", details={"depth": 9})
    assert result.health_score == pytest.approx(0.7)
    said = result.to_dict()
    assert (said["healthy"], said["status"], said["message"]) == (True, "degraded", "slow")
    assert said["details"] == {"depth": 9}
