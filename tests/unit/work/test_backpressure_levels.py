"""One ordered level: its order, its thresholds, its hysteresis."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ringrift.engine.ports import WorkState
from ringrift.errors import ConfigError
from ringrift.machine import NodeResources
from ringrift.work.backpressure import (
    BAND,
    QUEUE_LIMITS,
    Announced,
    BackpressureLevel,
    BackpressureSignal,
    QueueLimits,
    QueueType,
    level_for_speed,
    level_of,
    next_level,
    signal_of,
    trend_of,
)

DATA = QUEUE_LIMITS[QueueType.TRAINING_DATA]
NAMES = ("none", "low", "soft", "medium", "hard", "high", "critical", "stop")

depths = st.floats(0, 1e7)
levels = st.sampled_from(BackpressureLevel)


@st.composite
def limits(draw):
    soft = draw(st.floats(1, 1e6))
    hard = soft * draw(st.floats(1.01, 50))
    return QueueLimits(soft=soft, hard=hard, target=soft / 2, drain_per_hour=10)


def test_levels_are_ordered_integers_with_the_written_names():
    assert tuple(map(str, BackpressureLevel)) == NAMES
    assert sorted(BackpressureLevel) == list(BackpressureLevel)
    assert BackpressureLevel.CRITICAL >= BackpressureLevel.HIGH
    assert not BackpressureLevel.NONE >= BackpressureLevel.HIGH
    assert BackpressureLevel("critical") is BackpressureLevel.CRITICAL
    assert f"{BackpressureLevel.HIGH:>6}" == "  high"
    with pytest.raises(ValueError, match="odd"):
        BackpressureLevel("odd")


def test_factors_fall_with_the_level_and_every_level_has_one():
    factors = [level.throttle_factor for level in BackpressureLevel]
    assert factors == [1.0, 0.75, 0.5, 0.25, 0.1, 0.05, 0.01, 0.0]


@pytest.mark.parametrize(
    ("depth", "level"),
    [
        (0, "none"),
        (49_999, "none"),
        (50_000, "low"),
        (80_000, "soft"),
        (120_000, "medium"),
        (260_000, "hard"),
        (400_000, "high"),
        (460_000, "critical"),
        (500_000, "stop"),
        (10**9, "stop"),
    ],
)
def test_each_depth_has_its_documented_level(depth, level):
    assert str(level_of(depth, DATA)) == level


def test_throttling_does_not_end_where_it_matters_most():
    """Elsewhere 80,000 rows throttled and 460,000 did not."""
    throttled = [level_of(depth, DATA).throttles for depth in (40_000, 80_000, 120_000, 400_000, 460_000)]
    assert throttled == [False, True, True, True, True]


@given(limits(), depths, depths, levels)
def test_more_depth_never_means_a_lower_level(limits, one, other, previous):
    less, more = sorted((one, other))
    assert level_of(less, limits) <= level_of(more, limits)
    assert next_level(previous, less, limits) <= next_level(previous, more, limits)


@given(limits(), depths, levels, st.lists(st.floats(-0.49, 0.49), max_size=20))
@example(
    QueueLimits(soft=397_598, hard=795_196, target=198_799, drain_per_hour=1),
    282_507.0,
    BackpressureLevel.SOFT,
    [0.49],
)
def test_a_depth_that_wavers_inside_the_band_never_moves_the_level_to_and_fro(
    limits, depth, previous, wobbles
):
    """Whatever the past: it may settle downward or upward, but what fell does not rise again."""
    passed = [previous]
    for wobble in [0.0, *wobbles]:
        passed.append(next_level(passed[-1], depth * (1 - BAND * (0.5 + wobble)), limits))
    since = passed[1:]  # the first look may undo whatever the past was
    assert since in (sorted(since), sorted(since, reverse=True))


@given(limits(), depths, levels)
def test_the_same_depth_again_changes_nothing(limits, depth, previous):
    once = next_level(previous, depth, limits)
    assert next_level(once, depth, limits) is once


@given(limits(), depths, levels)
def test_a_level_rises_at_once_and_never_hangs_on_without_depth(limits, depth, previous):
    assert next_level(previous, depth, limits) >= level_of(depth, limits)
    assert next_level(previous, 0, limits) is BackpressureLevel.NONE


@given(st.floats(0, 1))
def test_the_level_for_a_speed_is_the_mildest_that_slows_enough(multiplier):
    level = level_for_speed(multiplier)
    assert level.throttle_factor <= multiplier + 1e-6
    if level:
        assert BackpressureLevel(level - 1).throttle_factor > multiplier


def test_limits_that_make_no_sense_are_refused():
    with pytest.raises(ConfigError):
        QueueLimits(soft=10, hard=10, target=5, drain_per_hour=1)


def test_a_trend_is_a_change_by_more_than_a_tenth():
    assert [trend_of(now, 100) for now in (89, 91, 109, 111)] == ["falling", "stable", "stable", "rising"]
    assert trend_of(5, None) == "stable"
    assert [trend_of(now, 0) for now in (0, 1)] == ["stable", "rising"]


pressures = st.floats(0, 1)


@given(pressures, pressures, pressures, pressures, pressures)
def test_the_multiplier_falls_with_the_pressure(queue, training, disk, sync, memory):
    signal = BackpressureSignal(queue, training, disk, sync, memory, at_s=0)
    worse = BackpressureSignal(1, training, disk, sync, memory, at_s=0)
    assert 0 <= signal.overall_pressure <= 1.0000001
    assert worse.spawn_rate_multiplier <= signal.spawn_rate_multiplier
    assert worse.level >= signal.level
    assert signal.should_pause == (signal.spawn_rate_multiplier < 0.1)


def test_the_documented_points_of_the_multiplier():
    def multiplier(overall):
        return BackpressureSignal(*[overall] * 5, at_s=0).spawn_rate_multiplier

    assert [round(multiplier(x), 6) for x in (0, 0.2, 0.45, 0.7, 1)] == [1, 1, 0.5, 0, 0]


@given(st.lists(st.tuples(levels, st.floats(0.1, 200)), max_size=50))
def test_there_is_never_news_twice_in_a_minute_nor_the_same_news_twice(steps):
    state, now_s, told = Announced(), 0.0, []
    for level, gap_s in steps:
        now_s += gap_s
        state, news = state.step(level, now_s)
        if news:
            told.append((now_s, state.active))
    for (before_s, before), (after_s, after) in itertools.pairwise(told):
        assert after_s - before_s >= 60
        assert before != after
    assert not told or told[0][1]


def test_a_release_knows_the_worst_level_of_its_time():
    state, _ = Announced().step(BackpressureLevel.SOFT, 0)
    state, _ = state.step(BackpressureLevel.STOP, 30)
    state, _ = state.step(BackpressureLevel.HARD, 40)
    state, news = state.step(BackpressureLevel.NONE, 100)
    assert (news, state.active, state.level) == (True, False, BackpressureLevel.STOP)


def pressures_of(*, memory=0.0, disk=0.0, **counts):
    machine = NodeResources(
        cpu_percent=100, memory_percent=memory, disk_percent=disk, disk_free_gb=1, load=9, cores=1
    )
    return signal_of(counts, machine, now_s=0.0).to_dict()


def test_pressures_measure_work_and_the_machine():
    """Training counts its jobs, not what watches them; memory is what is in use of the machine."""
    calm = pressures_of(memory=30, disk=40, train={WorkState.CLAIMED: 1}, sync={WorkState.READY: 3})
    assert (calm["overall_pressure"], calm["spawn_rate_multiplier"], calm["level"]) == (0, 1, "none")
    half = pressures_of(memory=50, train={WorkState.CLAIMED: 1, WorkState.READY: 2})
    assert (half["memory_pressure"], half["training_pressure"]) == (0.5, 0.5)
    full = pressures_of(
        memory=100, disk=100, train={WorkState.READY: 60}, sync={WorkState.CLAIMED: 30, WorkState.DONE: 5}
    )
    assert full["overall_pressure"] == 1
    assert (full["should_pause"], full["is_healthy"], full["level"]) == (True, False, "stop")
    ended = pressures_of(train={WorkState.DONE: 10**6, WorkState.DEAD: 10**6})
    assert ended["overall_pressure"] == 0
