"""What a user of the search can rely on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_toys import Countdown, ScatteredEvaluator, TableEvaluator

from ringrift.errors import ConfigError, IllegalAction
from ringrift.games.contract import Game, LegalActions, States
from ringrift.games.registry import load_game
from ringrift.search.batch import BatchSearch, search_positions
from ringrift.search.contract import Evaluation, SearchConfig, SearchResult, UniformEvaluator

PUCT = SearchConfig(root="puct", simulations=200)
GUMBEL = SearchConfig(root="gumbel", simulations=200, c_scale=1.0, rescale=False)

# Rows from the top; x is first to drop. The player on turn wins by the named column (from 1), or must take
# it to keep the other from winning there.
TACTICS = {
    "four in a row": (["......."] * 4 + [".oo....", ".xxx..."], {1, 5}),
    "four upright": (["......."] * 3 + ["x......", "xo.....", "xo....."], {1}),
    "block upright": (["......."] * 3 + ["..o....", "..o....", "x.ox..x"], {3}),
}


@pytest.mark.parametrize("config", [PUCT, GUMBEL], ids=["puct", "gumbel"])
@pytest.mark.parametrize("name", ["four in a row", "four upright", "block upright"])
def test_finds_the_forced_move_in_connect_four(config: SearchConfig, name: str) -> None:
    game = load_game("connect_four_2p")
    rows, wanted = TACTICS[name]
    state = game.from_json({"rows": rows})
    found = search_positions(game, UniformEvaluator(game), config, state[None, :], np.array([1]))
    assert int(found.actions[0]) + 1 in wanted


@pytest.mark.parametrize("config", [PUCT, GUMBEL], ids=["puct", "gumbel"])
def test_finds_a_win_two_moves_ahead(config: SearchConfig) -> None:
    """Three in the middle with both ends open: the other can close only one."""
    game = load_game("connect_four_2p")
    state = game.from_json({"rows": ["......."] * 4 + ["..o....", "..xx.o."]})
    found = search_positions(game, UniformEvaluator(game), config, state[None, :], np.array([1]))
    assert int(found.actions[0]) + 1 in (2, 5)
    assert found.root_values[0, 0] > 0.2


def test_what_is_proven_is_certain_and_ends_the_search() -> None:
    """A win that cannot be stopped is worth exactly 1 and a lost position -1, whatever the evaluator says."""
    game = load_game("connect_four_2p")
    won = game.from_json({"rows": ["......."] * 4 + ["..o....", "..xx.o."]})
    lost = game.from_json({"rows": ["......."] * 3 + ["..o....", "..o....", "..xxx.."]})
    states, seeds, budget = np.stack([won, lost]), np.arange(2), 2000
    proving, plain = SearchConfig(simulations=budget), SearchConfig(simulations=budget, prove=False)
    found = search_positions(game, UniformEvaluator(game), proving, states, seeds)
    movers = np.asarray(game.to_move(states))
    assert int(found.actions[0]) + 1 in (2, 5)
    assert found.root_values[[0, 1], movers].tolist() == [1.0, -1.0]
    assert (found.simulations < budget).all()
    found = search_positions(game, UniformEvaluator(game), plain, states, seeds)
    assert (np.abs(found.root_values) < 1.0).all()
    assert (found.simulations == budget).all()


def test_a_move_that_is_proven_to_lose_is_not_played() -> None:
    """However sure the evaluator is of it, a column that lets the other win is left alone."""
    game = load_game("connect_four_2p")
    rows, wanted = TACTICS["block upright"]
    state = game.from_json({"rows": rows})

    class Mistaken(UniformEvaluator):
        def evaluate(self, states: States, legal: LegalActions) -> Evaluation:
            said = super().evaluate(states, legal)
            for at in np.flatnonzero((states == state).all(axis=1)):
                said.logits[legal.offsets[at]] = 60.0
            return said

    for prove in (False, True):
        config = SearchConfig(simulations=200, prove=prove)
        found = search_positions(game, Mistaken(game), config, state[None, :], np.array([1]))
        assert (int(found.actions[0]) + 1 in wanted) is prove


@pytest.mark.parametrize("root", ["puct", "gumbel"])
def test_beats_random_play(root: str) -> None:
    game = load_game("connect_four_2p")
    config = SearchConfig(root=root, simulations=200)  # type: ignore[arg-type]
    games, rng = 40, np.random.default_rng(5)
    states = game.new_states(games)
    searcher = np.arange(games) % 2
    while not game.terminal(states).all():
        running = np.flatnonzero(~game.terminal(states))
        legal = game.legal(states[running])
        actions = np.array([rng.choice(legal.of(at)) for at in range(len(running))], dtype=np.int32)
        mine = game.to_move(states[running]) == searcher[running]
        if mine.any():
            positions = states[running[mine]]
            found = search_positions(game, UniformEvaluator(game), config, positions, running[mine])
            actions[mine] = found.actions
        moved = states[running]
        game.apply(moved, actions)
        states[running] = moved
    score = game.results(states)[np.arange(games), searcher]
    assert score.mean() > 0.8


@pytest.mark.parametrize("players", [2, 3, 4])
@pytest.mark.parametrize("root", ["puct", "gumbel"])
def test_each_seat_plays_for_itself(players: int, root: str) -> None:
    """With up to three stones the player on turn wins; with four every move lets the next player win."""
    game = Countdown(players)
    config = SearchConfig(root=root, simulations=300)  # type: ignore[arg-type]
    for seat in range(players):
        for stones in (1, 2, 3):
            found = search_positions(
                game, UniformEvaluator(game), config, game.position(stones, seat), np.array([7])
            )
            assert found.actions[0] == stones - 1
            assert found.root_values[0].argmax() == seat
        found = search_positions(game, UniformEvaluator(game), config, game.position(4, seat), np.array([7]))
        assert found.root_values[0].argmax() == (seat + 1) % players
        assert found.root_values[0, seat] < 0


def test_values_are_taken_by_seat_not_by_turn() -> None:
    """An evaluator that favors seat 2 shows in seat 2's root value, whoever is on turn."""
    game = Countdown(4, stones=100)
    for seat in range(4):
        found = search_positions(
            game, TableEvaluator([-0.5, -0.25, 0.5, 0.0]), PUCT, game.position(100, seat), np.array([1])
        )
        np.testing.assert_allclose(found.root_values[0], [-0.5, -0.25, 0.5, 0.0], atol=1e-6)


def check_invariants(
    game: Game, states: States, found: SearchResult, simulations: int, *, prove: bool
) -> None:
    legal = game.legal(states)
    np.testing.assert_array_equal(found.legal.actions, legal.actions)
    np.testing.assert_array_equal(found.legal.offsets, legal.offsets)
    assert (np.abs(found.root_values) <= 1 + 1e-6).all()
    for at, over in enumerate(game.terminal(states)):
        here = slice(legal.offsets[at], legal.offsets[at + 1])
        if over:
            assert found.actions[at] == -1
            assert found.simulations[at] == 0
            np.testing.assert_array_equal(found.root_values[at], game.results(states)[at])
            continue
        assert found.actions[at] in legal.of(at)
        made = found.simulations[at]
        assert made == simulations or (prove and 1 <= made < simulations)  # a certain choice ends it
        assert found.visits[here].sum() == made
        assert found.policy[here].sum() == pytest.approx(1, abs=1e-5)
        assert (found.policy[here] >= 0).all()


@settings(max_examples=30, deadline=None)
@given(
    root=st.sampled_from(["puct", "gumbel"]),
    simulations=st.integers(1, 40),
    considered=st.integers(1, 20),
    leaves=st.integers(1, 8),
    prove=st.booleans(),
    seed=st.integers(-(2**63), 2**63 - 1),
    plies=st.lists(st.integers(0, 60), min_size=1, max_size=4),
    key=st.sampled_from(["connect_four_2p", "square8_2p", "hex8_3p"]),
)
def test_whatever_the_settings(
    root: str,
    simulations: int,
    considered: int,
    leaves: int,
    prove: bool,
    seed: int,
    plies: list[int],
    key: str,
) -> None:
    game = load_game(key)
    sizes = {"simulations": simulations, "considered": considered, "leaves": leaves}
    config = SearchConfig(root=root, prove=prove, **sizes)  # type: ignore[arg-type]
    states = game.new_states(len(plies))
    rng = np.random.default_rng(abs(seed) % 1000)
    for slot, count in enumerate(plies):
        row = states[slot : slot + 1]
        for _ in range(count):
            if not game.terminal(row)[0]:
                game.apply(row, rng.choice(game.legal(row).actions, 1).astype(np.int32))
    seeds = np.full(len(plies), seed, dtype=np.int64)
    found = search_positions(
        game, ScatteredEvaluator(game), config, states, seeds, temperatures=1.0, explore=True
    )
    check_invariants(game, states, found, simulations, prove=prove and root == "gumbel")


@pytest.mark.parametrize("root", ["puct", "gumbel"])
@pytest.mark.parametrize("key", ["connect_four_2p", "square8_4p"])
def test_a_search_depends_on_its_own_game_only(root: str, key: str) -> None:
    """Alone, in company, in another slot, beside longer searches: always the same."""
    game = load_game(key)
    config = SearchConfig(root=root, simulations=24, leaves=3, tree_reuse=True, c_scale=0.05)  # type: ignore[arg-type]

    def play(seeds: list[int], budgets: list[int]) -> dict[int, list[tuple[int, bytes]]]:
        search = BatchSearch(game, ScatteredEvaluator(game), config, slots=len(seeds))
        slots = np.arange(len(seeds))
        search.restart(slots, game.new_states(len(seeds)), np.array(seeds))
        history: dict[int, list[tuple[int, bytes]]] = {seed: [] for seed in seeds}
        for _ in range(4):
            found = search.search(simulations=budgets)
            for slot, seed in enumerate(seeds):
                here = slice(found.legal.offsets[slot], found.legal.offsets[slot + 1])
                history[seed].append((int(found.actions[slot]), found.policy[here].tobytes()))
            search.advance(slots, found.actions)
        return history

    company = play([5, 11, 42], [24, 60, 24])
    assert play([42], [24])[42] == company[42]
    assert play([9, 42, 5, 3], [7, 24, 24, 1])[5] == company[5]
    assert company[5] != company[42]


def test_same_seed_same_search_and_other_ply_other_noise() -> None:
    game = load_game("connect_four_2p")
    results = []
    for ply in (0, 0, 1):
        search = BatchSearch(game, UniformEvaluator(game), SearchConfig(simulations=16), slots=8)
        search.restart(np.arange(8), game.new_states(8), np.arange(8), np.full(8, ply))
        results.append(search.search().actions.tolist())
    assert results[0] == results[1]
    assert results[0] != results[2]


@pytest.mark.parametrize("root", ["puct", "gumbel"])
def test_a_reused_tree_keeps_its_statistics(root: str) -> None:
    """The branch below the action played: its visits and values are those seen from above."""
    game = load_game("connect_four_2p")
    evaluator = ScatteredEvaluator(game)
    config = SearchConfig(root=root, simulations=60, tree_reuse=True)  # type: ignore[arg-type]
    search = BatchSearch(game, evaluator, config, slots=3)
    slots = np.arange(3)
    search.restart(slots, game.new_states(3), np.array([1, 2, 3]))
    for _ in range(6):
        found = search.search(explore=False)
        before = found.visits[
            found.legal.offsets[:-1] + [list(found.legal.of(s)).index(found.actions[s]) for s in slots]
        ]
        search.advance(slots, found.actions)
        asked = evaluator.seen
        again = search.search(simulations=1, explore=False)
        sums = np.add.reduceat(again.visits, again.legal.offsets[:-1])
        np.testing.assert_array_equal(
            sums, before - 1 + 1
        )  # less the visit that made the node, plus the new one
        assert evaluator.seen <= asked + 3
        check_tree(search)


def check_tree(search: BatchSearch) -> None:
    """Every node: visits are its own plus those of its edges, and each child hangs where it says."""
    tree = search._tree
    for game in range(search.slots):
        for node in range(tree.used[game, 0]):
            mover, first, edges, visits = tree.node[game, node, 2:6]
            mine = tree.edge[game, first : first + edges]
            if edges > 0:
                assert visits == 1 + mine[:, 2].sum()
                assert (mine[:, 3] == 0).all()
                children = mine[:, 1]
                for number in np.flatnonzero(children >= 0):
                    child = children[number]
                    assert tree.node[game, child, 0] == node
                    assert tree.node[game, child, 1] == first + number
                    assert tree.node[game, child, 5] == mine[number, 2]
                    total = tree.worth[game, child, 1, mover]
                    assert tree.edge_worth[game, first + number, 2] == pytest.approx(total)


def test_without_reuse_the_tree_starts_afresh() -> None:
    game = load_game("connect_four_2p")
    search = BatchSearch(game, UniformEvaluator(game), SearchConfig(simulations=30), slots=1)
    search.restart(np.array([0]), game.new_states(1), np.array([1]))
    first = search.search()
    search.advance(np.array([0]), first.actions)
    assert search.search(simulations=5).visits.sum() == 5


def test_several_leaves_spread_over_the_tree() -> None:
    """Simulations of one wave do not all run into the same leaf, and the result stays sensible."""
    game = load_game("connect_four_2p")
    rows, wanted = TACTICS["four in a row"]
    state = game.from_json({"rows": rows})
    for leaves in (1, 4, 16):
        config = SearchConfig(root="puct", simulations=200, leaves=leaves)
        search = BatchSearch(game, UniformEvaluator(game), config, slots=1)
        search.restart(np.array([0]), state[None, :], np.array([1]))
        search.begin(np.array([0]), temperatures=0.0, explore=False)
        waves = 0
        while not len(search.wave()):
            waves += 1
        found = search.results(np.array([0]))
        assert int(found.actions[0]) + 1 in wanted
        assert waves < 300 / min(leaves, 4)
        check_tree(search)


def test_root_noise_changes_the_search_only_where_it_is_wanted() -> None:
    game = load_game("connect_four_2p")
    config = SearchConfig(root="puct", simulations=20, noise_weight=0.5)

    def visits(seed: int, explore: bool) -> list[int]:
        return search_positions(
            game, ScatteredEvaluator(game), config, game.new_states(1), np.array([seed]), explore=explore
        ).visits.tolist()

    assert visits(1, False) == visits(2, False)
    assert len({tuple(visits(seed, True)) for seed in range(6)}) > 1


def test_temperature_zero_plays_the_best_and_one_varies() -> None:
    game = load_game("connect_four_2p")
    for root in ("puct", "gumbel"):
        config = SearchConfig(root=root, simulations=16, noise_weight=0.0)  # type: ignore[arg-type]
        states, seeds = game.new_states(32), np.arange(32)
        evaluator = ScatteredEvaluator(game)
        sharp = search_positions(game, evaluator, config, states, seeds, temperatures=0.0)
        loose = search_positions(game, evaluator, config, states, seeds, temperatures=1.0)
        assert len(set(sharp.actions.tolist())) == 1
        assert len(set(loose.actions.tolist())) > 1


def test_a_finished_game_is_left_alone() -> None:
    game = Countdown(3)
    over = np.array([[0, 1, 1]])
    found = search_positions(game, UniformEvaluator(game), GUMBEL, over, np.array([1]))
    assert found.actions.tolist() == [-1]
    assert found.root_values[0].tolist() == game.results(over)[0].tolist()


class BrokenEvaluator(UniformEvaluator):
    def evaluate(self, states, legal) -> Evaluation:  # type: ignore[no-untyped-def]
        said = super().evaluate(states, legal)
        said.values[0, 0] = np.nan
        return said


def test_refuses_nonsense() -> None:
    game = load_game("connect_four_2p")
    with pytest.raises(ConfigError, match="simulations"):
        SearchConfig(simulations=0)
    with pytest.raises(ConfigError, match="root"):
        SearchConfig(root="ucb")  # type: ignore[arg-type]
    search = BatchSearch(game, BrokenEvaluator(game), SearchConfig(), slots=1)
    with pytest.raises(ConfigError, match="no game"):
        search.search()
    search.restart(np.array([0]), game.new_states(1), np.array([1]))
    with pytest.raises(ConfigError, match="not finite"):
        search.search()
    with pytest.raises(ConfigError, match="slots are 0 to 0"):
        search.begin(np.array([1]))
    with pytest.raises(IllegalAction):
        search.advance(np.array([0]), np.array([7], dtype=np.int32))
