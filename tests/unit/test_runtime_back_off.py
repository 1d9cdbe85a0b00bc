"""Waits after failures in a row grow up to their limit, however often it failed."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringrift.runtime import back_off_s


def test_each_failure_doubles_the_wait_up_to_the_limit():
    waits = [back_off_s(failures, first_s=5.0, longest_s=60.0) for failures in range(1, 7)]
    assert waits == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]


def test_a_slower_growth():
    waits = [back_off_s(failures, first_s=30.0, longest_s=600.0, growth=1.5) for failures in (1, 2, 3)]
    assert waits == [30.0, 45.0, 67.5]


@pytest.mark.parametrize("failures", [-(10**9), -1, 0, 1])
def test_a_count_that_cannot_be_is_one_failure(failures):
    assert back_off_s(failures, first_s=5.0, longest_s=60.0) == 5.0


def test_the_first_wait_is_within_the_limit_too():
    assert back_off_s(1, first_s=100.0, longest_s=60.0) == 60.0


@given(failures=st.integers(), first_s=st.floats(0.001, 86_400), growth=st.floats(1.1, 4.0))
def test_no_count_of_failures_overflows_or_passes_the_limit(failures, first_s, growth):
    wait_s = back_off_s(failures, first_s=first_s, longest_s=3_600.0, growth=growth)
    assert math.isfinite(wait_s)
    assert min(first_s, 3_600.0) <= wait_s <= 3_600.0
    assert back_off_s(failures + 1, first_s=first_s, longest_s=3_600.0, growth=growth) >= wait_s
    # It does reach the limit.
    assert back_off_s(10**9, first_s=first_s, longest_s=3_600.0, growth=growth) == 3_600.0
