"""Steadiness of ratings, and thresholds that adapt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringrift.coordination.stability_heuristic import (
    AdjustmentStrategy,
    DynamicThreshold,
    RatingSample,
    StabilityLevel,
    ThresholdManager,
    ThresholdRules,
    assess_stability,
    is_promotion_safe,
)
from ringrift.errors import ConfigError
from ringrift.testing.simulation import SimulatedRuntime, simulate

NOW_S = 1_790_000_000.0


def hourly(ratings):
    start_s = NOW_S - 3600.0 * (len(ratings) - 1)
    return [RatingSample(start_s + 3600.0 * number, rating) for number, rating in enumerate(ratings)]


def test_four_ratings_are_unknown_and_unknown_is_safe():
    found = assess_stability(hourly([1500, 1400, 1300, 1200]), now_s=NOW_S)
    assert found.level is StabilityLevel.UNKNOWN
    assert found.is_safe


def test_levels():
    assert (
        assess_stability(hourly([1500, 1501, 1502, 1503, 1504]), now_s=NOW_S).level is StabilityLevel.STABLE
    )
    wild = assess_stability(hourly([1500, 1700, 1400, 1750, 1500, 1800]), now_s=NOW_S)
    assert wild.level is StabilityLevel.VOLATILE
    assert not wild.is_safe
    falling = assess_stability(hourly([1500, 1495, 1490, 1485, 1480]), now_s=NOW_S)
    assert falling.level is StabilityLevel.DECLINING
    assert falling.slope_per_hour == pytest.approx(-5.0)
    assert not is_promotion_safe(hourly([1500, 1495, 1490, 1485, 1480]), now_s=NOW_S)


def test_what_is_older_than_two_days_does_not_count():
    old = [RatingSample(NOW_S - 200_000.0 + at, 1000.0 * at) for at in range(10)]
    assert assess_stability(old, now_s=NOW_S).level is StabilityLevel.UNKNOWN


@given(st.lists(st.floats(0, 4000), min_size=5, max_size=30))
def test_volatility_stays_between_0_and_1(ratings):
    found = assess_stability(hourly(ratings), now_s=NOW_S)
    assert 0.0 <= found.volatility <= 1.0


# --- thresholds -------------------------------------------------------------------------------------------


def threshold(runtime, **rules):
    wanted = ThresholdRules(window_size=10, **rules)
    return DynamicThreshold("limit", 30.0, 5.0, 120.0, rules=wanted, runtime=runtime)


@pytest.mark.parametrize("strategy", AdjustmentStrategy)
def test_failures_let_more_through_up_to_the_bound(strategy):
    async def scenario():
        runtime = SimulatedRuntime()
        limit = threshold(runtime, strategy=strategy)
        seen = [limit.value]
        for _ in range(400):
            await runtime.sleep(61.0)
            seen.append(limit.record_outcome(success=False))
        assert seen == sorted(seen)
        assert seen[4] == 30.0  # half a window of outcomes is needed
        assert limit.value == 120.0
        for _ in range(400):
            await runtime.sleep(61.0)
            limit.record_outcome(success=True)
        assert limit.value < 120.0

    simulate(scenario())


def test_within_the_dead_band_and_the_cooldown_nothing_moves():
    async def scenario():
        runtime = SimulatedRuntime()
        limit = threshold(runtime)
        for number in range(200):
            await runtime.sleep(61.0)
            limit.record_outcome(success=number % 10 != 0)  # 90 % of any ten, as wanted
            if number == 10:
                settled = limit.value
        assert limit.value == settled
        moves = len(limit.changes)
        for _ in range(20):
            limit.record_outcome(success=False)  # all in one moment: one move at most
        assert len(limit.changes) == moves + 1

    simulate(scenario())


def test_the_usual_thresholds_are_there_and_an_unknown_one_is_an_error():
    manager = ThresholdManager(runtime=SimulatedRuntime())
    assert manager.get_value("handler_timeout") == 30.0
    assert manager.get_value("plateau_window") == 10.0
    assert set(manager.get_all_stats()) >= {"heartbeat_threshold", "memory_warning"}
    with pytest.raises(ConfigError, match="no threshold is called 'nothing'"):
        manager.record_outcome("nothing", success=True)
