"""Shares of work: guaranteed, bounded, and never zero."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringrift.errors import ConfigError
from ringrift.work.shares import (
    SHARE_MAX,
    SHARE_MIN,
    ConfigView,
    FairTurns,
    config_shares,
    curriculum_weight,
    curriculum_weights,
    next_kind,
)

KINDS = st.dictionaries(st.sampled_from(list("abcdef")), st.floats(0.05, 1.0), min_size=2)


def served_after(shares: dict[str, float], lengths_s: dict[str, float], rounds: int) -> dict[str, float]:
    turns, seconds = FairTurns(), dict.fromkeys(shares, 0.0)
    for _ in range(rounds):
        name = next_kind(turns.served(shares), shares, shares)
        share = shares[name]
        turns = turns.started(name, share=share, expected_s=10.0)
        turns = turns.ended(name, share=share, expected_s=10.0, measured_s=lengths_s[name])
        seconds[name] += lengths_s[name]
    return seconds


@given(shares=KINDS, data=st.data())
def test_long_run_shares_follow_seconds_not_jobs(shares: dict[str, float], data: st.DataObject) -> None:
    lengths_s = {kind: data.draw(st.floats(1.0, 300.0), label=kind) for kind in shares}
    seconds = served_after(shares, lengths_s, 2000)
    total_s, total_share, longest_s = sum(seconds.values()), sum(shares.values()), max(lengths_s.values())
    for kind, share in shares.items():
        # Each may be off by one job of its own and by one of the longest, whatever the run's length.
        assert abs(seconds[kind] - total_s * share / total_share) <= 2 * longest_s / min(shares.values())


@given(shares=KINDS)
def test_nobody_starves(shares: dict[str, float]) -> None:
    assert min(served_after(shares, dict.fromkeys(shares, 10.0), 200).values()) > 0


def test_an_absent_config_saves_up_one_turn_and_no_more() -> None:
    shares, turns = {"a": 0.5, "b": 0.5}, FairTurns()
    for _ in range(1000):
        turns = turns.started("a", share=0.5, expected_s=60.0)
    taken, _ = turns_of(shares, turns, 6)
    assert taken[0] == "b"
    assert taken.count("a") >= 2


def test_parallel_slots_count_what_is_expected_before_it_ended() -> None:
    taken, _ = turns_of({"a": 0.5, "b": 0.5}, FairTurns(), 8)
    assert taken.count("a") == taken.count("b") == 4


def turns_of(shares: dict[str, float], turns: FairTurns, count: int) -> tuple[list[str], FairTurns]:
    taken = []
    for _ in range(count):
        name = next_kind(turns.served(shares), shares, shares)
        turns = turns.started(name, share=shares[name], expected_s=60.0)
        turns = turns.ended(name, share=shares[name], expected_s=60.0, measured_s=45.0)
        taken.append(name)
    return taken, turns


def test_a_config_whose_share_fell_keeps_its_floor_from_the_next_turn_on() -> None:
    _, turns = turns_of({"a": 0.9, "b": 0.1}, FairTurns(), 1000)
    taken, turns = turns_of({"a": 0.1, "b": 0.9}, turns, 100)
    assert 5 <= taken.count("a") <= 15
    taken, _ = turns_of({"a": 0.5, "b": 0.5}, turns, 100)
    assert 45 <= taken.count("a") <= 55


def test_a_config_that_was_paused_for_long_does_not_take_everything() -> None:
    _, turns = turns_of({"a": 1.0}, FairTurns(), 1000)
    taken, _ = turns_of({"a": 0.5, "b": 0.5}, turns, 100)
    assert 45 <= taken.count("b") <= 55


def test_only_what_is_wanted_is_next() -> None:
    assert next_kind({"a": 1e9}, {"a": 0.5, "b": 0.5}, ["a"]) == "a"
    with pytest.raises(ConfigError, match="nothing is wanted"):
        next_kind({}, {"a": 1.0}, [])
    with pytest.raises(ConfigError, match="no share is set for c"):
        next_kind({}, {"a": 1.0}, ["c"])


VIEWS = st.lists(
    st.builds(
        ConfigView,
        config=st.uuids().map(str),
        rating=st.none() | st.floats(-500, 4000),
        rate_per_hour=st.none() | st.floats(-1000, 1000),
        rate_error=st.floats(0, 500),
        hours_served=st.floats(0, 10_000),
    ),
    min_size=1,
    max_size=40,
    unique_by=lambda view: view.config,
)


@given(VIEWS)
def test_shares_add_up_and_stay_between_floor_and_ceiling(views: list[ConfigView]) -> None:
    shares = config_shares(views)
    even = 1 / len(views)
    assert math.isclose(sum(shares.values()), 1.0)
    for share in shares.values():
        assert min(SHARE_MIN, even / 2) - 1e-9 <= share <= max(SHARE_MAX, 2 * even, 1e-9) + 1e-9


def test_one_config_has_everything() -> None:
    assert config_shares([ConfigView(config="square8_2p", rating=2500.0)]) == {"square8_2p": 1.0}


def test_a_config_at_its_target_keeps_the_maintenance_share() -> None:
    views = [ConfigView(config=f"c{n}", rating=1200.0) for n in range(7)]
    shares = config_shares([*views, ConfigView(config="done", rating=2100.0)])
    assert shares["done"] == pytest.approx(SHARE_MIN)


def test_all_targets_met_keeps_everybody_at_work() -> None:
    shares = config_shares([ConfigView(config=f"c{n}", rating=2100.0) for n in range(4)])
    assert set(shares.values()) == {0.25}


def test_the_one_that_learns_fastest_gets_most_and_the_declining_one_is_not_given_up() -> None:
    rates = {"fast": 400.0, "slow": 20.0, "down": -300.0, "flat": 0.0}
    views = [
        ConfigView(config=name, rating=1300.0, rate_per_hour=rate, hours_served=50.0)
        for name, rate in rates.items()
    ]
    shares = config_shares(views)
    assert max(shares, key=lambda name: shares[name]) == "fast"
    assert shares["down"] >= SHARE_MIN
    assert shares["slow"] > shares["flat"]


@given(hours=st.floats(0, 1000), more=st.floats(0, 10))
def test_a_little_more_data_changes_a_share_a_little(hours: float, more: float) -> None:
    def share(hours_served: float) -> float:
        others = [ConfigView(config=f"c{n}", rating=1400.0, hours_served=100.0) for n in range(7)]
        return config_shares([*others, ConfigView(config="x", rating=1400.0, hours_served=hours_served)])["x"]

    assert share(hours + more) <= share(hours) + 0.01
    assert share(hours) / share(hours + more) < 4


def test_curriculum_weights_are_a_view_of_the_shares() -> None:
    assert curriculum_weights({"a": 0.25, "b": 0.7, "c": 0.02, "d": 0.03}) == {
        "a": 1.0,
        "b": 2.0,
        "c": 0.5,
        "d": 0.5,
    }
    assert curriculum_weight(1.0, 1) == 1.0
