"""Ratings of a config, from its matches."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringrift.health.run_status import Curve
from ringrift.learning.facts.records import Match
from ringrift.learning.judging import ratings as module
from ringrift.learning.judging.ratings import ANCHORS, Pool, difference_errors, pools, rate, regression
from ringrift.statistics.match_evidence import expected_score
from ringrift.statistics.ratings import place_chances


def match(first, second, wins, losses, *, draws=0, simulations=32, at_s=0.0, recalled=False):
    games = wins + losses + draws
    return Match(
        job_id=f"{first}-{second}-{at_s}",
        first=first,
        second=second,
        simulations=simulations,
        players=2,
        games=games,
        wins=wins,
        draws=draws,
        losses=losses,
        pairs=None,
        at_s=at_s,
        recalled=recalled,
    )


def several(first, second, places, *, at_s=0.0):
    return Match(
        job_id=f"{first}-{second}",
        first=first,
        second=second,
        simulations=32,
        players=len(places),
        games=sum(places),
        wins=places[0],
        draws=0,
        losses=sum(places[1:]),
        pairs=None,
        places=tuple(places),
        at_s=at_s,
    )


CHAIN = [
    match("m1", "random", 60, 4, at_s=1),
    match("m2", "m1", 120, 40, at_s=2),
    match("m3", "m2", 110, 50, at_s=3),
    match("m3", "mcts:32", 20, 44, at_s=4),
]


def test_who_met_often_is_told_apart_better_than_the_intervals_say():
    found = rate(CHAIN)
    errors = difference_errors(CHAIN, "m3", ["m1", "m2", "m3"])
    apart = (found["m3"].deviation ** 2 + found["m2"].deviation ** 2) ** 0.5
    assert 0 < errors["m2"] < 0.5 * apart
    assert errors["m2"] < errors["m1"]
    assert errors["m3"] == 0.0


def test_a_recalled_match_says_nothing_of_a_difference():
    more = match("m3", "m2", 500, 300, at_s=5)
    recalled = match("m3", "m2", 500, 300, at_s=5, recalled=True)
    known = difference_errors(CHAIN, "m3", ["m2"])
    assert difference_errors([*CHAIN, recalled], "m3", ["m2"]) == known
    assert difference_errors([*CHAIN, more], "m3", ["m2"])["m2"] < known["m2"]


def test_random_is_pinned_and_strength_follows_the_chain():
    found = rate(CHAIN)
    assert found["random"].rating == found["random"].low == found["random"].high == 400.0
    assert 400 < found["m1"].rating < found["m2"].rating < found["m3"].rating < found["mcts:32"].rating
    assert found["m2"].games == 320
    assert found["m3"].low < found["m3"].rating < found["m3"].high


def test_a_baseline_measured_elsewhere_than_its_nominal_rating_bends():
    found = rate([*CHAIN, match("mcts:32", "random", 150, 50, simulations=0, at_s=5)])
    assert found["mcts:32"].rating < ANCHORS["mcts:32"] - 300
    assert found["random"].rating == 400.0


@given(st.randoms())
@settings(max_examples=20)
def test_order_means_nothing(rng):
    shuffled = list(CHAIN)
    rng.shuffle(shuffled)
    assert {name: pytest.approx(each.rating, abs=1e-5) for name, each in rate(shuffled).items()} == {
        name: each.rating for name, each in rate(CHAIN).items()
    }


def test_recalled_matches_and_matches_without_games_count_for_nothing():
    noise = [match("m1", "random", 0, 500, recalled=True), match("m3", "m1", 0, 0), match("m1", "m1", 9, 9)]
    assert rate([*CHAIN, *noise]) == rate(CHAIN)
    assert rate([]) == {}


def test_search_settings_are_pools_of_their_own():
    strong = [match("m1", "random", 64, 0, simulations=200, at_s=9)]
    both = [*CHAIN, *strong]
    assert rate(both) == rate(strong)  # the newest match is of that pool
    assert rate(both, pool=Pool(2, 32)) == rate(CHAIN)
    assert set(pools(both)) == {Pool(2, 32), Pool(2, 200)}
    assert rate(both, pool=Pool(3, 32)) == {}


def test_a_model_without_any_link_to_a_baseline_has_no_rating():
    assert set(rate([match("x", "y", 10, 5)])) == set()


def test_search_baselines_stand_in_the_order_of_their_nodes():
    found = rate([match("m", f"mcts:{nodes}", 10, 10) for nodes in (32, 64, 128)])
    assert found["mcts:32"].rating < found["mcts:64"].rating < found["mcts:128"].rating


@pytest.mark.parametrize("players", [3, 4])
def test_placings_of_several_players_read_the_truth(players):
    def places(gap):
        return [round(2000 * chance) for chance in place_chances(gap, players)]

    found = rate([several("m1", "random", places(200)), several("m2", "m1", places(100), at_s=1)])
    assert found["m1"].rating == pytest.approx(600, abs=5)
    assert found["m2"].rating == pytest.approx(700, abs=5)


def test_many_models_in_groups_read_about_the_same_as_all_at_once(monkeypatch):
    rng = random.Random(7)
    names = [f"m{number:03}" for number in range(60)]
    matches = [match("m000", "random", 45, 19)]
    for at, one in enumerate(names[1:], 1):
        for back in (1, 3):
            if at >= back:
                wins = sum(rng.random() < expected_score(15 * back) for _ in range(100))
                matches.append(match(one, names[at - back], wins, 100 - wins, at_s=at))
    at_once = rate(matches)
    monkeypatch.setattr(module, "GROUP_MAX", 20)
    grouped = rate(matches)
    assert set(grouped) == set(at_once)
    for name, each in grouped.items():
        assert each.rating == pytest.approx(at_once[name].rating, abs=(each.high - each.low) / 4 + 1)


# --- what is noticed of a champion that is worse than those before it ---------------------------------


def champions(rng, strengths, *, by_the_test):
    """Matches as a run has them: each champion met its predecessor before and after, and a baseline."""
    found, truth = [match("heuristic", "random", 60, 4)], {"heuristic": 1200.0}

    def play(first, second, games, at_s):
        share = expected_score(truth[first] - truth[second])
        wins = sum(rng.random() < share for _ in range(games))
        return match(first, second, wins, games - wins, at_s=at_s)

    for number, strength in enumerate(strengths):
        name, before = f"m{number}", f"m{number - 1}"
        truth[name] = strength
        if number:
            won = play(name, before, 150, number)
            while by_the_test and won.wins < won.losses:  # else it would not have been promoted
                won = play(name, before, 150, number)
            found += [won, play(name, before, 64, number + 0.1)]
        found.append(play(name, "heuristic", 16, number + 0.2))
    return found


def share_noticed(strengths, *, by_the_test=True, seeds=200):
    noticed = 0
    for seed in range(seeds):
        matches = champions(random.Random(seed), strengths, by_the_test=by_the_test)
        names = [f"m{number}" for number in range(len(strengths))]
        found, errors = rate(matches), difference_errors(matches, names[-1], names)
        curve = [
            Curve(
                model=name,
                at_s=float(at),
                rows=at,
                rating=found[name].rating,
                low=found[name].low,
                high=found[name].high,
                newest_difference_error=errors[name],
            )
            for at, name in enumerate(names)
        ]
        noticed += regression(curve) is not None
    return noticed / seeds


def test_a_worse_champion_is_noticed_and_an_equal_one_is_not():
    rising = [1000.0 + 80.0 * number for number in range(8)]
    best = rising[-1]
    assert share_noticed([*rising, best - 100.0], by_the_test=False) > 0.9
    assert share_noticed([*rising, best - 60.0], by_the_test=False) > 0.5
    for equal in ([*rising, best], [1500.0] * 3, [1500.0] * 10):
        assert share_noticed(equal) <= 0.025
        # Taken without a test, it is compared with the luckiest of those before it.
        assert share_noticed(equal, by_the_test=False) <= 0.1
    assert share_noticed([*rising, best + 40.0], by_the_test=False) == 0.0
