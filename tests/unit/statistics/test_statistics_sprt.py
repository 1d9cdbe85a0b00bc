"""The sequential test decides rightly, and wrongly no more often than it says."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringrift.errors import ConfigError
from ringrift.statistics.match_evidence import (
    EloScale,
    Evidence,
    MatchVerdict,
    SequentialTest,
    SprtConfig,
    Verdict,
    expected_score,
    log_likelihood_ratio,
    sprt_state,
)

COUNTS = st.lists(st.integers(0, 400), min_size=5, max_size=5)


def game_shares(elo, draws):
    """Loss, draw, win."""
    score = expected_score(elo)
    return np.array([1 - score - draws / 2, draws, score - draws / 2])


def pair_shares(elo, draws):
    """Points of two games of independent results, 0 to 2 in halves."""
    one = game_shares(elo, draws)
    return np.convolve(one, one)


def run_test(config, shares, random, *, step=10, most=20_000):
    counts = np.zeros(len(shares), dtype=np.int64)
    for _ in range(most // step):
        counts += random.multinomial(step, shares)
        state = sprt_state(config, counts.tolist())
        if state.verdict is not Verdict.CONTINUE:
            return state.verdict, int(counts.sum())
    return Verdict.CONTINUE, most


@pytest.mark.parametrize("shares_of", [game_shares, pair_shares])
@pytest.mark.parametrize("scale", list(EloScale))
def test_it_errs_no_more_often_than_it_says(shares_of, scale):
    """Both hypotheses exactly true, 200 seeded tests each: about 10 % wrong at alpha = beta = 0.1."""
    config = SprtConfig(elo0=0, elo1=40, alpha=0.1, beta=0.1, scale=scale)
    # On the normalized scale 40 Elo need a wider gap in the score when there are fewer draws.
    draws = 0.2
    deviation = float(np.sqrt(game_shares(0, draws) @ np.array([0.25, 0, 0.25])))
    stronger = 40 if scale is EloScale.LOGISTIC else 40 * deviation / 0.5
    random = np.random.default_rng(1)
    for elo, right in ((0, Verdict.NOT_STRONGER), (stronger, Verdict.STRONGER)):
        verdicts = [run_test(config, shares_of(elo, draws), random)[0] for _ in range(200)]
        right_share = verdicts.count(right) / len(verdicts)
        assert Verdict.CONTINUE not in verdicts
        # 0.9 less three standard deviations of 200 trials; and a test that never errs wastes games
        assert 0.836 <= right_share <= 0.99


def test_a_clear_difference_ends_it_soon_and_a_small_one_takes_longer():
    config, random = SprtConfig(elo0=0, elo1=40), np.random.default_rng(2)
    lengths = {}
    for elo in (200, 60):
        runs = [run_test(config, pair_shares(elo, 0.0), random) for _ in range(30)]
        assert {verdict for verdict, _ in runs} == {Verdict.STRONGER}
        lengths[elo] = np.mean([length for _, length in runs])
    assert lengths[200] < 60
    assert lengths[200] < lengths[60] / 2


def play_to_the_end(test, random, elo):
    """Openings of two games each, until *test* says something: whether it passed, and its games."""
    pairs = np.zeros(5, dtype=np.int64)
    while True:
        games = 2 * int(pairs.sum())
        found = Evidence(2, games, pairs=pairs.tolist())
        result = test.result(found)
        if result.verdict is not MatchVerdict.OPEN:
            return result.verdict is MatchVerdict.PASSED and not result.at_cap, games
        pairs += random.multinomial(1, pair_shares(elo, 0.0))


def test_who_is_far_ahead_passes_after_a_third_of_the_games():
    random = np.random.default_rng(5)
    step = SprtConfig(0, 35)
    for elo, least in ((240, 1.6), (400, 2.2)):
        usual, clear = (
            [play_to_the_end(SequentialTest(step, 400, clear_gains), random, elo) for _ in range(12)]
            for clear_gains in (False, True)
        )
        assert all(passed for passed, _ in usual + clear)
        assert np.mean([games for _, games in usual]) > least * np.mean([games for _, games in clear])
    assert play_to_the_end(SequentialTest(step, 400, clear_gains=True), random, 3000) == (True, 24)


def test_an_equal_player_seems_far_ahead_no_more_often_than_stated():
    """Summed over all that forty games can bring, looked at after every two: 1 % and 0.5 % in all."""
    test = SequentialTest(SprtConfig(0, 35), 400, clear_gains=True)
    open_matches, passed = {(0, 0, 0): 1.0}, 0.0  # pairs lost, split and won: how often it comes to that
    for _ in range(20):
        after = Counter()
        for (lost, split, won), chance in open_matches.items():
            after[lost + 1, split, won] += chance / 4
            after[lost, split + 1, won] += chance / 2
            after[lost, split, won + 1] += chance / 4
        open_matches = {}
        for (lost, split, won), chance in after.items():
            found = Evidence(2, 2 * (lost + split + won), pairs=[lost, 0, split, 0, won])
            if any(gain.is_shown for gain in test.gains(found)):
                passed += chance
            else:
                open_matches[lost, split, won] = chance
    assert 0.001 < passed <= 0.015


def test_pairs_that_split_decide_faster_than_their_games_counted_one_by_one():
    """Openings that decide the game cancel out in pairs; single games would call that noise."""
    config = SprtConfig(elo0=0, elo1=20)
    pairs = [0, 10, 160, 30, 0]  # nearly every opening is won by the same seat
    games = [10 + 160 + 0, 40, 160 + 30]
    assert log_likelihood_ratio(config, pairs) > 2 * log_likelihood_ratio(config, games)


@given(COUNTS)
def test_what_is_good_for_one_side_is_bad_for_the_other(counts):
    for scale in EloScale:
        config = SprtConfig(elo0=-10, elo1=10, scale=scale)
        ratio = log_likelihood_ratio(config, counts)
        assert ratio == pytest.approx(-log_likelihood_ratio(config, counts[::-1]), abs=1e-6, rel=1e-6)


@given(st.lists(st.integers(20, 400), min_size=5, max_size=5))
def test_it_agrees_with_the_normal_approximation(counts):
    """An independent formula, good where the score is near the hypotheses: drift over variance."""
    config = SprtConfig(elo0=0, elo1=6)
    points, weights = np.arange(5) / 4, np.array(counts)
    mean = np.average(points, weights=weights)
    variance = np.average((points - mean) ** 2, weights=weights)
    low, high = expected_score(0), expected_score(6)
    expected = weights.sum() * (high - low) * (2 * mean - low - high) / (2 * variance)
    # Far from the hypotheses the approximation itself is off, the more so if the scores are skewed.
    distance = (mean - 0.5) ** 2 / variance
    assert log_likelihood_ratio(config, counts) == pytest.approx(
        expected, rel=0.02 + 0.5 * distance**0.5 + 2 * distance, abs=0.05
    )


def test_nothing_played_says_nothing_and_a_lucky_start_decides_nothing():
    config = SprtConfig(elo0=0, elo1=20)
    assert log_likelihood_ratio(config, [0, 0, 0]) == 0
    assert sprt_state(config, [0, 0, 0, 0, 3]).verdict is Verdict.CONTINUE
    assert sprt_state(config, [0, 0, 8]).verdict is Verdict.CONTINUE


def test_bounds_are_those_of_wald():
    config = SprtConfig(elo0=0, elo1=5, alpha=0.05, beta=0.1)
    assert config.upper == pytest.approx(np.log(0.9 / 0.05))
    assert config.lower == pytest.approx(np.log(0.1 / 0.95))


@pytest.mark.parametrize(
    "wrong", [{"elo0": 5, "elo1": 5}, {"elo0": 0, "elo1": 5, "alpha": 0.6}, {"elo0": 0, "elo1": 5, "beta": 0}]
)
def test_a_test_that_cannot_be_is_refused(wrong):
    with pytest.raises(ConfigError):
        SprtConfig(**wrong)
    for counts in ([1, 2], [1, -1, 0]):
        with pytest.raises(ConfigError):
            log_likelihood_ratio(SprtConfig(elo0=0, elo1=5), counts)
