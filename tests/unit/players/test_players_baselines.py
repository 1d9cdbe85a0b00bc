"""The baselines: as strong as they should be, the same in every batch, and named by texts."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from ringrift.errors import ConfigError
from ringrift.games.registry import load_game
from ringrift.players.contract import derived, picked
from ringrift.players.matches import MatchConfig, play_match
from ringrift.players.ringrift_heuristic import FEATURE_NAMES, HeuristicPlayer, Weights
from ringrift.players.specs import parse_player


def positions(game, *, plies, games=12):
    """Running games some random actions in."""
    states = game.new_states(games)
    player = parse_player("random", game)
    for ply in range(plies):
        running = np.flatnonzero(~game.terminal(states))
        part = states[running]
        game.apply(part, player.choose(part, derived(derived(7, running), ply)))
        states[running] = part
    return np.ascontiguousarray(states[~game.terminal(states)])


def score(key, one, other, *, openings, seed=5):
    game = load_game(key)
    players = [parse_player(text, game) for text in (one, other)]
    return play_match(game, players, MatchConfig(openings=openings, seed=seed)).tally.score


def test_plain_search_finds_a_win_in_one_and_stops_a_loss_in_one():
    game = load_game("connect_four_2p")
    player = parse_player("mcts:200", game)
    for moves, answer in (((0, 1, 0, 1, 0, 1), 0), ((6, 1, 0, 1, 0, 1), 1), ((3, 0, 3, 0, 3), 3)):
        states = game.new_states(1)
        for move in moves:
            game.apply(states, np.array([move]))
        for seed in range(5):
            assert player.choose(states, np.array([seed]))[0] == answer


def test_more_simulations_play_better():
    assert score("connect_four_2p", "mcts:20", "random", openings=20) > 0.8
    assert score("connect_four_2p", "mcts:200", "mcts:20", openings=20) > 0.7


def test_plain_search_plays_for_every_seat_of_four():
    assert score("square8_4p", "mcts:8", "random", openings=4) > 0.6


@pytest.mark.parametrize("key", ["square8_2p", "hex8_2p"])
def test_the_heuristic_beats_random(key):
    assert score(key, "heuristic", "random", openings=15) >= 0.93


@pytest.mark.parametrize("key", ["square8_3p", "hex8_4p"])
def test_the_heuristic_beats_random_with_more_players(key):
    assert score(key, "heuristic", "random", openings=4) >= 0.8


@pytest.mark.parametrize("key", ["square19_2p", "hexagonal_3p"])
def test_the_heuristic_plays_on_large_boards(key):
    game = load_game(key)
    states = positions(game, plies=10, games=2)
    chosen = parse_player("heuristic", game).choose(states, np.arange(len(states)))
    game.apply(states, chosen)  # refuses what is not legal


def test_a_turn_thought_to_its_end_beats_a_quick_look():
    assert score("square8_2p", "heuristic", "heuristic:quick", openings=8) > 0.7


def test_the_heuristic_beats_plain_search():
    assert score("square8_2p", "heuristic", "mcts:16", openings=6) > 0.7


@pytest.mark.parametrize("text", ["random", "mcts:12", "heuristic", "heuristic:quick"])
def test_a_choice_depends_on_the_game_and_its_seed_alone(text):
    game = load_game("square8_2p")
    player = parse_player(text, game)
    states, seeds = positions(game, plies=9), np.arange(100, 112)
    together = player.choose(states, seeds)
    alone = [int(player.choose(states[at : at + 1], seeds[at : at + 1])[0]) for at in range(len(states))]
    order = np.arange(len(states))[::-1]
    turned = player.choose(np.ascontiguousarray(states[order]), seeds[order])
    assert together.tolist() == alone == turned[::-1].tolist()
    game.apply(states, together)


def test_a_seed_changes_random_play_and_equal_choices():
    game = load_game("square8_2p")
    states = game.new_states(40)
    for text in ("random", "heuristic"):
        chosen = parse_player(text, game).choose(states, np.arange(40))
        assert len(set(chosen.tolist())) > 3  # the empty board has many equal openings


def test_values_are_judged_the_same_from_every_side():
    """Two players' values sum to zero, and a turned board changes nothing."""
    game = load_game("square8_2p")
    player = HeuristicPlayer(game)
    states = positions(game, plies=30)
    values = player.judge(states)
    assert values.sum(axis=1) == pytest.approx(np.zeros(len(states)), abs=1e-9)
    assert (np.abs(values) <= 1).all()
    for symmetry in range(game.symmetries):
        assert player.judge(game.turned(states, symmetry)) == pytest.approx(values)


def test_weights_are_named_like_the_features_they_weigh():
    assert tuple(Weights.__dataclass_fields__) == FEATURE_NAMES
    assert Weights(hand=3.5).array()[FEATURE_NAMES.index("hand")] == 3.5


def test_only_what_is_weighed_counts():
    """With territory alone in its eyes the heuristic collapses whatever it can."""
    game = load_game("square8_2p")
    nothing = dict.fromkeys(FEATURE_NAMES, 0.0)
    blind = HeuristicPlayer(game, weights=Weights(**nothing))
    states = positions(game, plies=20)
    assert (blind.judge(states) == 0).all()
    greedy = HeuristicPlayer(game, quick=True, weights=Weights(**nothing | {FEATURE_NAMES[2]: 1.0}))
    legal = game.legal(states)
    chosen = greedy.choose(states, np.zeros(len(states), dtype=np.int64))
    for at, action in enumerate(chosen):
        seat = game.to_move(states[at : at + 1])[0]
        after = np.repeat(states[at : at + 1], legal.counts[at], axis=0)
        game.apply(after, legal.of(at), trusted=True)
        values = greedy.judge(after)[:, seat]
        best = values[~game.terminal(after)].max(initial=-1)
        played = states[at : at + 1].copy()
        game.apply(played, np.array([action]))
        if not game.terminal(played)[0]:
            assert greedy.judge(played)[0, seat] == pytest.approx(best)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "names no player"),
        ("best", "names no player; there are random"),
        ("random:3", "names no player"),
        ("mcts", "names no player"),
        ("mcts:", "names no player"),
        ("mcts:many", "'many' is no whole number"),
        ("mcts:-5", "'-5' is no whole number"),
        ("mcts:0", "1 to 1000000 simulations"),
        ("heuristic:", "names no player"),
        ("heuristic:7", "names no player"),
        ("model:somewhere", "say how many simulations"),
        ("untrained:@32", "say how many simulations"),
        ("untrained:small@x", "'x' is no whole number"),
    ],
)
def test_a_text_that_names_no_player_is_refused(text, problem):
    with pytest.raises(ConfigError) as refused:
        parse_player(text, load_game("square8_2p"))
    assert problem in str(refused.value)


def test_a_game_without_a_heuristic_says_so():
    with pytest.raises(ConfigError, match="no heuristic player for connect_four_2p"):
        parse_player("heuristic", load_game("connect_four_2p"))


def test_names_are_the_texts():
    game = load_game("square8_2p")
    for text in ("random", "heuristic", "heuristic:quick", "mcts:100"):
        assert parse_player(text, game).name == text


def test_picks_are_even():
    picks = picked(derived(3, np.arange(60_000)), np.full(60_000, 6))
    counts = np.bincount(picks, minlength=6)
    assert len(counts) == 6
    assert abs(counts - 10_000).max() < 400  # more than four standard deviations


def test_weights_come_from_a_file(tmp_path):
    game = load_game("square8_2p")
    path = tmp_path / "tuning.json"
    path.write_text(json.dumps({"kind": "cmaes", "best_params": {"hand": 9.5}}))
    player = parse_player(f"heuristic:{path}", game)
    assert player.weights == Weights(hand=9.5)
    assert player.name == f"heuristic:{path}"
    path.write_text(json.dumps(asdict(Weights())))
    assert parse_player(f"heuristic:{path}", game).weights == Weights()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("[]", "JSON object"),
        ('{"mood": 1}', "no feature 'mood'"),
        ('{"hand": "much"}', "hand"),
        ("{", "no weights"),
    ],
)
def test_weights_that_are_none_are_refused(tmp_path, content, told):
    path = tmp_path / "weights.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=told):
        parse_player(f"heuristic:{path}", load_game("square8_2p"))
