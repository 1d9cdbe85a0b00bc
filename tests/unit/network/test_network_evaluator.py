"""The network in a search: right numbers at the right actions and seats, the same in any company."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ringrift.errors import ArchitectureMismatch, ConfigError
from ringrift.games.contract import Game, LegalActions, States
from ringrift.games.registry import load_game
from ringrift.network.architecture import Preset
from ringrift.network.evaluator import EvaluationCache, NetEvaluator, has_bfloat16, sample_positions
from ringrift.network.model import ResidualNet, build
from ringrift.search.batch import search_positions
from ringrift.search.contract import Evaluation, SearchConfig

TINY = Preset(channels=16, blocks=2, neck=4, hidden=16)
PRECISIONS = ["float32", *(["bfloat16", "int8"] if has_bfloat16() else [])]
TOLERANCE = {"float32": 1e-5, "bfloat16": 0.05, "int8": 0.15}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def stirred(game: Game, seed: int = 0) -> ResidualNet:
    net = build(game, TINY, seed=seed)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            if not parameter.any():
                parameter.normal_(0, 0.1)
    return net


def plainly(net: ResidualNet, game: Game, states: States, legal: LegalActions) -> Evaluation:
    """One position after the other, straight from the model."""
    logits, values = [], []
    for at, state in enumerate(states):
        with torch.no_grad():
            judged = net(torch.from_numpy(game.observe(state[None, :])))
        logits.append(judged.logits()[0].numpy()[game.action_layout.slots[legal.of(at)]])
        mover = int(game.to_move(state[None, :])[0])
        values.append(np.roll(judged.values[0].numpy(), mover))
    return Evaluation(np.concatenate(logits), np.stack(values))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("key", ["connect_four_2p", "square8_3p", "hex8_2p"])
def test_agrees_with_the_model(precision: str, key: str) -> None:
    game = load_game(key)
    net = stirred(game)
    evaluator = NetEvaluator(net, game, precision=precision, batch=16)  # type: ignore[arg-type]
    states = sample_positions(game, 40, seed=3)
    legal = game.legal(states)
    found, wanted = evaluator.evaluate(states, legal), plainly(net, game, states, legal)
    logit_scale = max(1.0, float(np.abs(wanted.logits).max()))
    # Planes travel as bfloat16 whatever the precision of the layers.
    near = max(TOLERANCE[precision], 0.01) * logit_scale
    np.testing.assert_allclose(found.logits, wanted.logits, atol=near)
    np.testing.assert_allclose(found.values, wanted.values, atol=TOLERANCE[precision])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("key", ["connect_four_2p", "hex8_2p"])
def test_the_same_bits_in_any_company(precision: str, key: str) -> None:
    game = load_game(key)
    states = sample_positions(game, 70, seed=5)
    evaluators = [
        NetEvaluator(stirred(game), game, precision=precision, cache_bytes_max=bytes_max)  # type: ignore[arg-type]
        for bytes_max in (0, 1 << 20)
    ]
    legal = game.legal(states)
    whole = evaluators[0].evaluate(states, legal)
    rng = np.random.default_rng(1)
    for count in (1, 3, 9, 20, 33, 70):
        some = rng.choice(70, count)  # with repetitions
        for evaluator in evaluators:
            part = evaluator.evaluate(states[some], game.legal(states[some]))
            assert np.array_equal(part.values, whole.values[some])
            wanted = [whole.logits[legal.offsets[at] : legal.offsets[at + 1]] for at in some]
            assert np.array_equal(part.logits, np.concatenate(wanted))


def test_a_search_with_a_network_depends_on_its_own_game_only() -> None:
    game = load_game("connect_four_2p")
    evaluator = NetEvaluator(stirred(game), game, cache_bytes_max=0)
    config = SearchConfig(simulations=40)
    states = sample_positions(game, 9, seed=2)
    seeds = np.arange(9)
    together = search_positions(game, evaluator, config, states, seeds, temperatures=1.0)
    for at in range(9):
        alone = search_positions(
            game, evaluator, config, states[at : at + 1], seeds[at : at + 1], temperatures=1.0
        )
        here = slice(together.legal.offsets[at], together.legal.offsets[at + 1])
        assert np.array_equal(alone.policy, together.policy[here])
        assert alone.actions[0] == together.actions[at]


def test_known_positions_are_not_judged_again() -> None:
    game = load_game("connect_four_2p")
    evaluator = NetEvaluator(stirred(game), game)
    states = np.repeat(sample_positions(game, 10, seed=1), 3, axis=0)
    distinct = len(np.unique(states, axis=0))
    legal = game.legal(states)
    first = evaluator.evaluate(states, legal)
    assert evaluator.counts.judged == distinct
    again = evaluator.evaluate(states, legal)
    assert evaluator.counts.judged == distinct
    assert evaluator.counts.asked == 60
    assert np.array_equal(first.logits, again.logits)


def test_the_memory_is_bounded_and_never_wrong() -> None:
    """A table far too small for what goes through it: it forgets, but what it says is right."""
    game = load_game("square8_2p")
    cache = EvaluationCache(game, size_bytes_max=20_000)
    assert cache.places <= 16
    rng = np.random.default_rng(3)
    states = np.unique(sample_positions(game, 60, seed=8), axis=0)
    count = len(states)
    answers = [rng.random(options).astype(np.float32) for options in game.legal(states).counts]
    values = rng.random((count, 2)).astype(np.float32)
    known = 0
    for _ in range(80):
        some = rng.choice(count, rng.integers(1, 12))
        rows = states[some]
        legal = game.legal(rows)
        looked, missing, evaluation = cache.look_up(rows, legal)
        known += len(some) - len(missing)
        for at in missing:
            evaluation.logits[legal.offsets[at] : legal.offsets[at + 1]] = answers[some[at]]
            evaluation.values[at] = values[some[at]]
        cache.fill_in(rows, legal, looked, missing, evaluation)
        assert np.array_equal(evaluation.logits, np.concatenate([answers[at] for at in some]))
        assert np.array_equal(evaluation.values, values[some])
    assert known > 0


def test_another_game_is_refused() -> None:
    net = stirred(load_game("square8_2p"))
    with pytest.raises(ArchitectureMismatch, match="input_planes"):
        NetEvaluator(net, load_game("square8_3p"))
    with pytest.raises(ConfigError, match="batch"):
        NetEvaluator(net, load_game("square8_2p"), batch=0)


def test_training_goes_on_beside_play() -> None:
    """The evaluator keeps the weights it was made with."""
    game = load_game("connect_four_2p")
    net = stirred(game)
    evaluator = NetEvaluator(net, game, cache_bytes_max=0)
    states = game.new_states(1)
    before = evaluator.evaluate(states, game.legal(states))
    with torch.no_grad():
        net.stem.weight.add_(1)
    after = evaluator.evaluate(states, game.legal(states))
    assert np.array_equal(before.logits, after.logits)
