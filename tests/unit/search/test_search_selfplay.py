"""Whole games by search: complete, repeatable, and safe to stop."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable

import numpy as np
import pytest
from search_toys import Countdown, ScatteredEvaluator, TableEvaluator

from ringrift.errors import ConfigError
from ringrift.games.contract import Game, LegalActions, States
from ringrift.games.registry import load_game
from ringrift.search.contract import Evaluation, Interrupted, SearchConfig
from ringrift.search.records import FinishedGame, GameInProgress
from ringrift.search.selfplay import (
    Openings,
    PlayoutCaps,
    Resignation,
    Selfplay,
    SelfplayConfig,
    TemperatureSchedule,
    play_games,
)

CONFIG = SelfplayConfig(search=SearchConfig(simulations=8), slots=4)


def summary(game: FinishedGame) -> tuple[object, ...]:
    return (
        game.seed,
        game.actions.tolist(),
        game.policy.tobytes(),
        game.root_values.tobytes(),
        game.full.tolist(),
        game.simulations.tolist(),
        game.results.tolist(),
    )


def play(game: Game, config: SelfplayConfig, seeds: Iterable[int]) -> dict[int, tuple[object, ...]]:
    return {done.seed: summary(done) for done in play_games(game, ScatteredEvaluator(game), config, seeds)}


@pytest.mark.parametrize("key", ["connect_four_2p", "square8_2p", "hex8_3p"])
def test_games_are_whole_and_legal(key: str) -> None:
    game = load_game(key)
    seen = []
    for done in play_games(game, ScatteredEvaluator(game), CONFIG, range(6)):
        seen.append(done.seed)
        states = game.new_states(1)
        for ply, action in enumerate(done.actions):
            assert done.seats[ply] == game.to_move(states)[0]
            assert done.legal.of(ply).tolist() == game.legal(states).actions.tolist()
            here = slice(done.legal.offsets[ply], done.legal.offsets[ply + 1])
            assert done.policy[here].sum() == pytest.approx(1, abs=1e-5)
            game.apply(states, np.array([action], dtype=np.int32))
        assert game.terminal(states)[0]
        np.testing.assert_array_equal(done.final_state, states[0])
        np.testing.assert_array_equal(done.results, game.results(states)[0])
        np.testing.assert_array_equal(done.rankings, game.rankings(states)[0])
        assert not done.cut_off
        assert done.root_values.shape == (len(done.actions), game.players)
    assert sorted(seen) == list(range(6))


def test_a_game_depends_on_its_seed_only() -> None:
    game = load_game("connect_four_2p")
    config = SelfplayConfig(
        search=SearchConfig(simulations=12, root="puct", leaves=2),
        slots=5,
        playout_caps=PlayoutCaps(quick_simulations=3, full_share=0.3),
    )
    alone = SelfplayConfig(search=config.search, slots=1, playout_caps=config.playout_caps)
    together = play(game, config, range(20, 40))
    assert play(game, alone, [33]) == {33: together[33]}
    assert len({tuple(one[1]) for one in together.values()}) > 10  # type: ignore[arg-type]


def test_some_games_begin_with_random_moves_that_teach_nothing() -> None:
    game = load_game("connect_four_2p")
    openings = Openings(plies_max=6, share=0.5)
    config = SelfplayConfig(search=CONFIG.search, slots=8, openings=openings)
    games = list(play_games(game, ScatteredEvaluator(game), config, range(60)))
    plies = dict(zip(range(60), openings.plies(np.arange(60)).tolist(), strict=True))
    assert set(plies.values()) == set(range(7))
    assert 15 < sum(each > 0 for each in plies.values()) < 45
    for one in games:
        drawn = np.arange(len(one.actions)) < plies[one.seed]
        np.testing.assert_array_equal(one.full, ~drawn)
        assert (one.simulations[drawn] == 1).all()
    first = [int(one.actions[0]) for one in games if plies[one.seed]]
    assert len(set(first)) >= 5  # as a network with an opinion would never play
    assert play(game, SelfplayConfig(search=CONFIG.search, slots=1, openings=openings), [7]) == {
        one.seed: summary(one) for one in games if one.seed == 7
    }


@pytest.mark.parametrize("after", [1, 7, 30])
def test_a_stop_loses_nothing(after: int) -> None:
    """Stop in the middle, carry what was unfinished through JSON, play on: the same games as without."""
    game = load_game("connect_four_2p")
    whole = play(game, CONFIG, range(10))
    asked = itertools.count()
    seeds = iter(range(10))
    left: list[GameInProgress] = []
    done = {
        one.seed: summary(one)
        for one in play_games(
            game,
            ScatteredEvaluator(game),
            CONFIG,
            seeds,
            stop=lambda: next(asked) >= after,
            on_stop=left.extend,
        )
    }
    assert len(left) == 4
    carried = [GameInProgress.from_json(game, json.loads(json.dumps(one.to_json()))) for one in left]
    for one in play_games(game, ScatteredEvaluator(game), CONFIG, seeds, resume=carried):
        assert one.seed not in done
        done[one.seed] = summary(one)
    assert done == whole


def test_leaving_the_loop_early_loses_nothing_either() -> None:
    game = Countdown(2, stones=3)
    kept: list[int] = []
    left: list[GameInProgress] = []
    games = play_games(
        game,
        ScatteredEvaluator(game),
        CONFIG,
        range(8),
        lambda one: kept.append(one.seed),
        on_stop=left.extend,
    )
    next(iter(games))
    games.close()  # type: ignore[attr-defined]
    assert sorted(kept + [one.seed for one in left]) == list(
        range(max(kept + [one.seed for one in left]) + 1)
    )


def test_a_stored_game_that_breaks_the_rules_is_refused() -> None:
    game = load_game("connect_four_2p")
    left: list[GameInProgress] = []
    asked = itertools.count()
    list(
        play_games(
            game,
            ScatteredEvaluator(game),
            CONFIG,
            range(4),
            stop=lambda: next(asked) > 6,
            on_stop=left.extend,
        )
    )
    record = left[0].to_json()
    assert record["moves"]
    wrong = json.loads(json.dumps(record))
    for field, value, told in (
        ("action", 99, "not legal"),
        ("seat", 1, "seat 0 is on turn"),
        ("policy", record["moves"][0]["policy"][:-4], "policy"),
        ("policy", [0.5] * 7, "no distribution"),
        ("policy", "?", "base64"),
        ("root_values", [0.0], "2 numbers"),
        ("root_values", [0.0, 3.0], "2 numbers"),
    ):
        wrong = json.loads(json.dumps(record))
        wrong["moves"][0][field] = value
        with pytest.raises(ConfigError, match=f"move 1 of game {record['seed']} .*{told}"):
            GameInProgress.from_json(game, wrong)
    for field, value in (("seat", "0"), ("action", -1), ("simulations", 10**12), ("full", 1)):
        wrong = json.loads(json.dumps(record))
        wrong["moves"][0][field] = value
        with pytest.raises(ConfigError, match=field):
            GameInProgress.from_json(game, wrong)


def test_games_noted_by_an_older_version_go_on() -> None:
    """They listed the legal actions and wrote policies as numbers."""
    game = load_game("connect_four_2p")
    selfplay = Selfplay(game, ScatteredEvaluator(game), CONFIG, range(1))
    asked = itertools.count()
    selfplay._stop = lambda: next(asked) > 20
    list(selfplay)
    (before,) = selfplay.in_progress()
    record = before.to_json()
    for noted, move in zip(record["moves"], before.moves, strict=True):
        noted |= {"policy": move.policy.tolist(), "legal": move.legal.tolist()}
    assert GameInProgress.from_json(game, record).to_json() == before.to_json()
    assert record["moves"]


def test_enough_lets_the_moves_under_way_be_made_and_no_others() -> None:
    game = load_game("connect_four_2p")
    whole = play(game, CONFIG, range(10))
    is_enough = False
    selfplay = Selfplay(game, ScatteredEvaluator(game), CONFIG, range(10), enough=lambda: is_enough)
    done = {}
    for finished in selfplay:
        done[finished.seed] = summary(finished)
        if len(done) == 3 and not is_enough:
            is_enough, moves = True, [len(each.moves) for each in selfplay.in_progress()]
    assert 0 < sum(len(each.moves) for each in selfplay.in_progress()) - sum(moves) <= CONFIG.slots
    is_enough = False
    done |= {finished.seed: summary(finished) for finished in selfplay}
    assert done == whole


@pytest.mark.parametrize("after", [0, 1, 5, 40, 111])
def test_an_interrupted_search_loses_no_game_and_no_move(after: int) -> None:
    game, calls = load_game("connect_four_2p"), itertools.count()

    class Interrupting(ScatteredEvaluator):
        def evaluate(self, states: States, legal: LegalActions) -> Evaluation:
            if next(calls) == after:
                raise Interrupted
            return super().evaluate(states, legal)

    selfplay = Selfplay(game, Interrupting(game), CONFIG, range(10))
    done = {finished.seed: summary(finished) for finished in selfplay}
    assert len(selfplay.in_progress()) in (3, 4)
    made = sum(len(each.moves) for each in selfplay.in_progress())
    more = {finished.seed: summary(finished) for finished in selfplay}
    assert not done.keys() & more.keys()
    assert done | more == play(game, CONFIG, range(10))
    assert made or after < 40


def test_playout_caps_give_some_moves_a_full_search() -> None:
    game = load_game("connect_four_2p")
    config = SelfplayConfig(
        search=SearchConfig(simulations=20, prove=False),
        slots=8,
        playout_caps=PlayoutCaps(quick_simulations=5, full_share=0.25),
    )
    games = list(play_games(game, ScatteredEvaluator(game), config, range(30)))
    full = np.concatenate([one.full for one in games])
    simulations = np.concatenate([one.simulations for one in games])
    assert 0.18 < full.mean() < 0.32
    np.testing.assert_array_equal(simulations, np.where(full, 20, 5))


def test_temperature_falls_to_its_floor() -> None:
    schedule = TemperatureSchedule(start=1.0, plies=10, half_life_plies=5, floor=0.2)
    np.testing.assert_allclose(schedule.at(np.array([0, 9, 10, 15, 20, 500])), [1, 1, 1, 0.5, 0.25, 0.2])


def test_nobody_gives_up_by_default_and_some_never_do() -> None:
    """Seat 1 is always told that it is lost."""
    game = load_game("connect_four_2p")
    evaluator = TableEvaluator([0.99, -0.99])
    assert all(one.resigned_by is None for one in play_games(game, evaluator, CONFIG, range(4)))
    rule = Resignation(below=-0.9, moves=2, never_share=0.5)
    config = SelfplayConfig(search=SearchConfig(simulations=4), slots=8, resignation=rule)
    games = list(play_games(game, evaluator, config, range(40)))
    gave_up = [one for one in games if one.resigned_by is not None]
    assert 8 < len(gave_up) < 32
    for one in gave_up:
        assert one.resigned_by == 1
        assert one.results.tolist() == [1.0, -1.0]
        assert len(one.actions) == 4
    three = load_game("square8_3p")
    with pytest.raises(ConfigError, match="two players"):
        Selfplay(three, ScatteredEvaluator(three), config, range(1))


def test_a_game_without_end_is_cut_off() -> None:
    game = load_game("connect_four_2p")
    config = SelfplayConfig(search=SearchConfig(simulations=2), slots=2, moves_max=5)
    for one in play_games(game, ScatteredEvaluator(game), config, range(3)):
        assert one.cut_off
        assert len(one.actions) == 5
        assert one.results.tolist() == [0, 0]
