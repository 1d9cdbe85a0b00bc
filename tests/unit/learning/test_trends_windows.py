"""What a window of measurements says, and whether it says it when it should."""

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringrift.health.run_status import Curve
from ringrift.learning.judging.ratings import (
    LEVEL_MAX,
    RegressionSeverity,
    TrendDirection,
    analyse,
    deviation,
    fit_line,
    plateau,
    regression,
    severity_of,
)

NOW_S = 1_790_000_000.0


def points(ratings, *, error=5.0, rows_step=1_000, at_s=NOW_S):
    half = 1.96 * error
    return [
        Curve(
            model=f"model{number}",
            at_s=at_s + 600.0 * number,
            rows=rows_step * (number + 1),
            rating=rating,
            low=rating - half,
            high=rating + half,
        )
        for number, rating in enumerate(ratings)
    ]


# --- slopes -----------------------------------------------------------------------------------------------


def test_a_slope_over_a_minute_of_epoch_seconds_keeps_its_precision():
    # 1080 per hour over 60 s, at times with ten digits before the point.
    times = [NOW_S + second for second in range(0, 61, 5)]
    ratings = [1500.0 + 1080.0 * (at - NOW_S) / 3600.0 for at in times]
    line = fit_line([at / 3600.0 for at in times], ratings)
    assert line.slope == pytest.approx(1080.0, rel=1e-4)
    assert line.error < 1.0


def test_the_error_of_a_slope_covers_the_truth_as_often_as_it_claims():
    rng = random.Random(7)
    inside = 0
    for _ in range(400):
        ys = [0.5 * x + rng.gauss(0.0, 3.0) for x in range(30)]
        line = fit_line([float(x) for x in range(30)], ys)
        inside += abs(line.slope - 0.5) < 1.96 * line.error
    assert 0.90 <= inside / 400 <= 0.99


def test_wide_intervals_make_the_slope_uncertain_however_smooth_the_points_are():
    xs, ys = [1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0]
    assert fit_line(xs, ys).error < 1e-9
    assert fit_line(xs, ys, [100.0] * 4).error > 40.0


@given(st.lists(st.floats(-1e6, 1e6), max_size=5))
def test_points_without_width_have_no_slope(ys):
    assert fit_line([3.0] * len(ys), ys) is None


# --- windows ----------------------------------------------------------------------------------------------


def test_directions():
    assert analyse([]).direction is TrendDirection.UNKNOWN
    assert analyse([1.0, 2.0]).direction is TrendDirection.UNKNOWN
    assert analyse([float(x) for x in range(20)]).direction is TrendDirection.IMPROVING
    assert analyse([float(-x) for x in range(8)]).direction is TrendDirection.DEGRADING
    assert (
        analyse([float(-x) for x in range(20)], higher_is_better=False).direction is TrendDirection.IMPROVING
    )
    rose_then_flat = [float(x) for x in range(20)] + [19.0] * 12
    assert analyse(rose_then_flat).direction is TrendDirection.PLATEAU


def test_a_plateau_needs_ten_points_without_a_thousandth():
    rising = [0.5, 0.6, 0.7]
    assert not analyse(rising + [0.7] * 9).is_plateau
    assert analyse(rising + [0.7] * 10).is_plateau
    crawling = rising + [0.7 + 0.0001 * step for step in range(10)]
    assert analyse(crawling).is_plateau
    assert not analyse(rising + [0.7 + 0.002 * step for step in range(1, 11)]).is_plateau


def test_a_regression_is_more_than_five_percent_off_the_best():
    assert not analyse([100.0, 96.0]).is_regression
    assert analyse([100.0, 94.0]).is_regression
    assert analyse([1.0, 1.06], higher_is_better=False).is_regression


def test_an_anomaly_needs_ten_points_and_three_deviations():
    steady = [1.0, 1.1] * 6
    assert not analyse([*steady[:8], 9.0]).is_anomaly
    assert analyse([*steady, 9.0]).is_anomaly
    assert not analyse([*steady, 1.12]).is_anomaly
    assert deviation([1.0] * 20 + [2.0]) == 0.0  # a constant says nothing about what is usual


# --- plateaus of the rating curve -------------------------------------------------------------------------


def test_a_rising_curve_is_no_plateau_and_a_flat_one_is():
    assert plateau(points([1000 + 20 * n for n in range(12)])) is None
    found = plateau(points([1000 + 20 * n for n in range(6)] + [1100.0] * 10))
    assert found is not None
    assert found.level == 1
    assert "rating points over the last 10 models" in found.reason
    assert "explore more" in found.reason


def test_a_slow_rise_that_is_certain_is_no_plateau():
    assert plateau(points([1000.0 + 1.4 * n for n in range(10)], error=1.0)) is None
    assert plateau(points([1000.0 + 1.4 * n for n in range(10)], error=30.0)) is not None


def test_a_longer_plateau_gets_a_stronger_answer():
    one, two, three = (plateau(points([1000.0] * count)) for count in (10, 20, 30))
    assert [found.level for found in (one, two, three)] == [1, 2, 3]
    assert one.exploration < two.exploration < three.exploration
    assert one.learning_rate > two.learning_rate > three.learning_rate
    assert min(found.share for found in (one, two, three)) >= 1.0  # a plateau never starves its config


def test_candidates_refused_in_a_row_are_a_plateau_without_any_curve():
    assert plateau([], refused=4) is None
    found = plateau([], refused=5)
    assert found.level == 1
    assert "5 candidates in a row were refused" in found.reason


def test_noise_around_a_rise_is_seldom_a_plateau_and_noise_around_nothing_usually_is():
    rng = random.Random(11)
    wrong = sum(
        plateau(points([1000 + 12 * n + rng.gauss(0, 15) for n in range(10)], error=15.0)) is not None
        for _ in range(300)
    )
    right = sum(
        plateau(points([1000 + rng.gauss(0, 15) for n in range(10)], error=15.0)) is not None
        for _ in range(300)
    )
    assert wrong / 300 < 0.05
    assert right / 300 > 0.6


@given(
    st.lists(st.floats(0, 3000), max_size=40),
    st.floats(0.1, 200),
    st.integers(0, 60),
)
def test_a_plateau_finding_is_always_within_bounds(ratings, error, refused):
    found = plateau(points(ratings, error=error), refused=refused)
    if found is not None:
        assert 1 <= found.level <= LEVEL_MAX
        assert 1.0 <= found.exploration <= 2.0
        assert 0.25 <= found.learning_rate <= 1.0
        assert 1.0 <= found.simulations <= 1.5


# --- regressions ------------------------------------------------------------------------------------------


def test_severity_goes_by_rating_points():
    words = [severity_of(drop).word for drop in (19, 20, 35, 50, 75)]
    assert words == ["none", "minor", "moderate", "severe", "critical"]
    assert RegressionSeverity.CRITICAL > RegressionSeverity.MINOR


def test_a_drop_inside_the_error_of_the_ratings_is_no_regression():
    assert regression(points([1500.0, 1440.0], error=40.0)) is None
    found = regression(points([1500.0, 1440.0], error=10.0))
    assert found.severity is RegressionSeverity.SEVERE
    assert found.drop == pytest.approx(60.0)


def test_the_error_of_a_drop_is_that_of_the_difference_where_it_is_known():
    first, last = points([1500.0, 1440.0], error=40.0)
    known = [msgspec.structs.replace(first, newest_difference_error=15.0), last]
    assert regression(known).severity is RegressionSeverity.SEVERE
    uncertain = [msgspec.structs.replace(first, newest_difference_error=35.0), last]
    assert regression(uncertain) is None


def test_two_in_a_row_count_one_level_higher_and_three_ask_for_a_rollback():
    curve = points([1500.0, 1475.0], error=4.0)
    assert regression(curve).severity is RegressionSeverity.MINOR
    assert not regression(curve).needs_rollback
    assert regression(curve, in_a_row_before=1).severity is RegressionSeverity.MODERATE
    assert regression(curve, in_a_row_before=2).needs_rollback
