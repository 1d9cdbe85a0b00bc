"""The compiled, batched search against the plain one."""

from __future__ import annotations

import numpy as np
import pytest
from search_reference import Reference, considered_visits
from search_toys import Countdown, ScatteredEvaluator

from ringrift.games.contract import Game
from ringrift.games.registry import load_game
from ringrift.search.batch import BatchSearch
from ringrift.search.contract import SearchConfig


@pytest.mark.parametrize("root", ["gumbel", "puct"])
@pytest.mark.parametrize("simulations", [1, 2, 7, 16, 50])
@pytest.mark.parametrize("players", [2, 3, 4])
def test_tiny_trees_agree(root: str, simulations: int, players: int) -> None:
    game = Countdown(players, stones=9)
    config = SearchConfig(simulations=simulations, root=root, noise_weight=0.0, c_scale=0.2, prove=False)  # type: ignore[arg-type]
    assert_agrees(game, config, games=4)


@pytest.mark.parametrize("root", ["gumbel", "puct"])
@pytest.mark.parametrize("rescale", [True, False])
def test_connect_four_agrees(root: str, rescale: bool) -> None:
    game = load_game("connect_four_2p")
    config = SearchConfig(
        simulations=40,
        root=root,
        noise_weight=0.0,
        considered=5,
        rescale=rescale,
        prove=False,  # which the reference does not do
        c_puct=2.0,  # type: ignore[arg-type]
    )
    assert_agrees(game, config, games=6)


def test_ringrift_with_three_players_agrees() -> None:
    assert_agrees(load_game("square8_3p"), SearchConfig(simulations=30, considered=8, prove=False), games=2)


def assert_agrees(game: Game, config: SearchConfig, *, games: int) -> None:
    evaluator = ScatteredEvaluator(game)
    search = BatchSearch(game, evaluator, config, slots=games)
    slots, seeds = np.arange(games), np.arange(games) * 1000 + 3
    states = game.new_states(games)
    for slot in range(games):  # different positions, different numbers of options
        for _ in range(slot):
            row = states[slot : slot + 1]
            game.apply(row, game.legal(row).actions[:1])
    search.restart(slots, states, seeds)
    temperature = 1.0 if config.root == "gumbel" else 0.0
    found = search.search(temperatures=temperature, explore=False)
    for slot in range(games):
        reference = Reference(game, evaluator, config, states[slot], int(seeds[slot]))
        chosen = reference.run(temperature)
        here = slice(found.legal.offsets[slot], found.legal.offsets[slot + 1])
        assert found.legal.of(slot).tolist() == reference.root.actions
        assert found.visits[here].tolist() == reference.root.visits
        assert found.actions[slot] == reference.root.actions[chosen]
        np.testing.assert_allclose(found.policy[here], reference.policy(), rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(found.root_values[slot], reference.values(), rtol=1e-5, atol=1e-6)


def test_halving_spends_the_budget_as_planned() -> None:
    """The sequence for 16 actions and 50 simulations, worked out by hand."""
    sequence = considered_visits(16, 50)
    assert sequence[:16] == [0] * 16
    assert sequence[16:24] == [1] * 8
    assert sequence[24:36] == [2] * 4 + [3] * 4 + [4] * 4
    assert len(sequence) == 50
