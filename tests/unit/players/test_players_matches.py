"""Matches: who sits where, which openings, what is counted, and that only the seed matters."""

from collections import Counter

import numpy as np
import pytest

from ringrift.errors import ConfigError, IllegalAction
from ringrift.games.registry import load_game
from ringrift.players.matches import (
    GameRecord,
    MatchConfig,
    Tally,
    opening_position,
    play_match,
    rotated,
    seat_entrants,
)
from ringrift.players.specs import RandomPlayer
from ringrift.statistics.match_evidence import SprtConfig, Verdict, sprt_state
from ringrift.statistics.ratings import elo_difference, wilson_interval


class FirstMove:
    """Always takes the first legal action."""

    name = "first"

    def __init__(self, game):
        self._game = game

    def choose(self, states, seeds):
        legal = self._game.legal(states)
        return legal.actions[legal.offsets[:-1]]


def replay(game, moves):
    states = game.new_states(1)
    for move in moves:
        game.apply(states, np.array([move]))
    return states


@pytest.mark.parametrize(("key", "entrants"), [("square8_2p", 2), ("square8_4p", 4), ("square8_3p", 2)])
def test_every_entrant_sits_in_every_seat_equally_often_in_the_same_openings(key, entrants):
    game = load_game(key)
    players = [RandomPlayer(game) for _ in range(entrants)]
    match = play_match(game, players, MatchConfig(openings=5, seed=8, opening_plies=6))
    assert len(match.records) == 5 * game.players
    for seat in range(game.players):
        at_seat = Counter(record.seats[seat] for record in match.records)
        assert at_seat[0] == 5
        if entrants == game.players:
            assert set(at_seat.values()) == {5}
    for opening in range(5):
        group = [record for record in match.records if record.opening == opening]
        assert [record.rotation for record in group] == list(range(game.players))
        assert len({record.moves[: record.opening_plies] for record in group}) == 1
        assert len({record.seed for record in group}) == 1
        assert group[0].opening_plies == 6
    assert len({record.moves[:6] for record in match.records}) == 5


def test_records_replay_to_the_results_they_name():
    game = load_game("connect_four_2p")
    match = play_match(game, [RandomPlayer(game), FirstMove(game)], MatchConfig(openings=6, seed=1))
    for record in match.records:
        states = replay(game, record.moves)
        assert game.terminal(states)[0]
        assert game.rankings(states)[0].tolist() == list(record.ranking)
        assert game.results(states)[0].tolist() == list(record.results)


def test_only_the_seed_matters_not_the_batch():
    game = load_game("connect_four_2p")
    entrants = [RandomPlayer(game), FirstMove(game)]
    runs = [
        play_match(game, entrants, MatchConfig(openings=9, seed=seed, batch=batch))
        for seed, batch in ((3, 1), (3, 5), (3, 64), (4, 64))
    ]
    assert runs[0] == runs[1] == runs[2]
    assert runs[2].records != runs[3].records


def test_an_early_stop_counts_openings_in_order_not_the_quick_ones_first():
    game = load_game("connect_four_2p")
    entrants = [RandomPlayer(game), FirstMove(game)]
    whole = play_match(game, entrants, MatchConfig(openings=12, seed=3, batch=24))
    cut = play_match(
        game, entrants, MatchConfig(openings=12, seed=3, batch=24), stop=lambda tally: tally.games >= 10
    )
    assert cut.stopped_early
    assert not whole.stopped_early
    assert cut.records == whole.records[:10]


class Counting(FirstMove):
    """Counts how often it was asked for moves."""

    asked = 0

    def choose(self, states, seeds):
        self.asked += 1
        return super().choose(states, seeds)


def test_an_interrupted_match_ends_between_two_decisions():
    game = load_game("connect_four_2p")
    player = Counting(game)
    match = play_match(
        game, [player, player], MatchConfig(openings=8, seed=3), interrupted=lambda: player.asked >= 3
    )
    assert match.stopped_early
    assert match.records == ()
    assert player.asked <= 4  # a decision asks each side once


def test_an_interrupted_match_hands_over_every_whole_opening():
    game = load_game("connect_four_2p")
    entrants = [FirstMove(game), RandomPlayer(game)]
    whole = play_match(game, entrants, MatchConfig(openings=12, seed=3, batch=24))
    lengths = [len(record.moves) - record.opening_plies for record in whole.records]
    pairs = [max(pair) for pair in zip(lengths[::2], lengths[1::2], strict=True)]
    decisions = iter(range(1000))
    cut = play_match(
        game,
        entrants,
        MatchConfig(openings=12, seed=3, batch=24),
        interrupted=lambda: next(decisions) == sorted(pairs)[6],
    )
    over = [opening for opening, length in enumerate(pairs) if length <= sorted(pairs)[6]]
    assert over != list(range(len(over)))  # a later opening was over before an earlier one
    assert cut.records == tuple(record for record in whole.records if record.opening in over)


def test_a_sequential_test_stops_a_one_sided_match():
    game = load_game("connect_four_2p")
    config = SprtConfig(elo0=0, elo1=200)
    verdicts = []

    def decided(tally):
        verdicts.append(sprt_state(config, tally.sprt_counts).verdict)
        return verdicts[-1] is not Verdict.CONTINUE

    # The first legal column every time wins by a pile of four unless something random stands on it.
    match = play_match(
        game, [FirstMove(game), RandomPlayer(game)], MatchConfig(openings=400, seed=2), stop=decided
    )
    assert match.stopped_early
    assert verdicts[-1] is Verdict.STRONGER
    assert match.tally.games < 400


def test_a_player_who_breaks_the_rules_stops_the_match():
    game = load_game("connect_four_2p")

    class Cheat(FirstMove):
        def choose(self, states, seeds):
            return np.zeros(len(states), dtype=np.int32)

    class Silent(FirstMove):
        def choose(self, states, seeds):
            return np.zeros(0, dtype=np.int32)

    for wrong in (Cheat(game), Silent(game)):
        with pytest.raises(IllegalAction):
            play_match(game, [wrong, wrong], MatchConfig(openings=1, seed=2))


def test_an_opening_never_ends_the_game():
    game = load_game("connect_four_2p")
    for seed in range(30):
        state, moves = opening_position(game, seed, 42)
        assert not game.terminal(state[None, :])[0]
        assert (replay(game, moves)[0] == state).all()
        assert len(moves) < 42


def test_seats():
    assert [rotated((0, 1, 2), turn) for turn in range(3)] == [(0, 1, 2), (2, 0, 1), (1, 2, 0)]
    assert seat_entrants(2, 4) == (0, 1, 1, 1)
    with pytest.raises(ConfigError):
        seat_entrants(3, 4)
    with pytest.raises(ConfigError):
        MatchConfig(openings=0, seed=1)


def record(results, seats=(0, 1)):
    ranking = tuple(1 + sum(other > own for other in results) for own in results)
    return GameRecord(0, 0, 0, seats, 0, (), tuple(results), ranking)


def test_pairs_are_counted_by_their_points():
    win, draw, loss = record((1.0, -1.0)), record((0.0, 0.0)), record((-1.0, 1.0))
    swapped_win = record((-1.0, 1.0), seats=(1, 0))
    tally = Tally()
    for pair in ((win, swapped_win), (win, loss), (loss, loss), (draw, win), (draw, loss)):
        tally.add_opening(pair)
    assert tally.pairs == [1, 1, 1, 1, 1]
    assert tally.outcomes == [4, 2, 4]
    assert tally.sprt_counts == tally.pairs
    assert tally.score == 0.5


def test_with_more_players_equal_strength_scores_a_half():
    """Each rotation once, every rank once: nobody is ahead."""
    tally = Tally()
    results = (1.0, 1 / 3, -1 / 3, -1.0)
    tally.add_opening([record(results, seats=rotated((0, 1, 1, 1), turn)) for turn in range(4)])
    assert tally.score == 0.5
    assert tally.first_places == 1
    assert tally.sprt_counts == tally.outcomes == [2, 0, 2]
    assert tally.places == [1, 1, 1, 1]


def test_places_that_are_shared_favor_nobody():
    """Two seats share second place: over the openings the better half of it goes to each as often."""
    tally = Tally()
    for opening in range(4):
        shared = GameRecord(opening, 0, 0, (1, 0, 1), 0, (), (1.0, -0.5, -0.5), (1, 2, 2))
        tally.add_opening([shared])
    assert tally.places == [0, 2, 2]


def test_intervals():
    low, high = wilson_interval(0.9, 100)
    assert (low, high) == pytest.approx((0.8256, 0.9448), abs=1e-4)
    assert wilson_interval(1.0, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert wilson_interval(0.5, 0) == (0.0, 1.0)
    assert elo_difference(0.5) == 0
    assert elo_difference(10 / 11) == pytest.approx(400)
    assert elo_difference(0.0) == -float("inf")
