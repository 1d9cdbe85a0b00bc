"""Are symmetries consistent: do rules, observation and network mean the same by a turned board?"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ringrift.games.contract import Game, LegalActions, States
from ringrift.jobs.diagnose_symptoms import Symptom
from ringrift.network.evaluator import NetEvaluator
from ringrift.network.model import ResidualNet
from ringrift.network.samples import sample_positions

POSITIONS = 128
VALUE_SPREAD_WARNING = 0.35


def check_symmetries(game: Game, *, seed: int, positions: int = POSITIONS) -> Symptom:
    """Turn positions of random play every way, and compare what the rules say before and after."""
    states = sample_positions(game, positions, seed=seed)
    for symmetry in range(1, game.symmetries):
        if fault := _fault(game, states, symmetry, seed=seed):
            return Symptom(
                check="symmetries",
                level="problem",
                config=game.key,
                text=f"symmetry {symmetry} of {game.key} is wrong: {fault}",
                advice="Training turns samples by it, so every model learns wrong moves: mend the game.",
                evidence={"symmetry": symmetry},
            )
    return Symptom(
        check="symmetries",
        level="fine",
        config=game.key,
        text=f"{game.symmetries} symmetries agree on {positions} positions: moves, observation, outcome",
        evidence={"symmetries": game.symmetries, "positions": positions},
    )


def check_network_symmetry(
    game: Game, net: ResidualNet, *, seed: int, positions: int = POSITIONS
) -> Symptom | None:
    """How far the values of one position differ when the board is turned; None if it cannot be turned."""
    if game.symmetries < 2:
        return None
    states = sample_positions(game, positions, seed=seed)
    evaluator = NetEvaluator(net, game, cache_bytes_max=0)
    said = np.stack(
        [_values(game, evaluator, game.turned(states, symmetry)) for symmetry in range(game.symmetries)]
    )
    spread = float(np.mean(said.max(axis=0) - said.min(axis=0)))
    much = spread > VALUE_SPREAD_WARNING
    return Symptom(
        check="network_symmetry",
        level="warning" if much else "fine",
        config=game.key,
        text=f"the network's value of a position differs by {spread:.2f} on average over its symmetries",
        advice="More training with random symmetries (augment) brings it down." if much else "",
        evidence={"spread": round(spread, 4)},
    )


def _values(game: Game, evaluator: NetEvaluator, states: States) -> npt.NDArray[np.float32]:
    values = evaluator.evaluate(states, game.legal(states)).values
    mine: npt.NDArray[np.float32] = values[np.arange(len(states)), game.to_move(states)]
    return mine


def _fault(game: Game, states: States, symmetry: int, *, seed: int) -> str:
    """What differs between the turned positions and the positions; empty if nothing does."""
    legal, turned = game.legal(states), game.turned(states, symmetry)
    actions = game.turned_actions(states, legal, symmetry)
    there = game.legal(turned)
    if not np.array_equal(there.counts, legal.counts):
        return "another number of legal moves"
    for at in range(len(states)):
        mapped = actions[legal.offsets[at] : legal.offsets[at + 1]]
        if not np.array_equal(np.sort(mapped), np.sort(there.of(at))):
            return "the turned moves are not the legal moves of the turned position"
    planes = game.observe(states).reshape(len(states), game.observation_shape[0], -1)
    seen = game.observe(turned).reshape(planes.shape)
    if not np.allclose(planes[:, :, game.turned_grid(symmetry)], seen):
        return "the turned position looks otherwise than the turned observation"
    return _fault_after_a_move(game, states, turned, legal, actions, seed=seed, symmetry=symmetry)


def _fault_after_a_move(
    game: Game,
    states: States,
    turned: States,
    legal: LegalActions,
    turned_actions: npt.NDArray[np.int32],
    *,
    seed: int,
    symmetry: int,
) -> str:
    """Make a random move on both boards; they must still be the same but for the turn."""
    rng = np.random.default_rng(seed)
    chosen = legal.offsets[:-1] + (rng.random(len(states)) * legal.counts).astype(np.int64)
    here, there = states.copy(), turned.copy()
    game.apply(here, legal.actions[chosen])
    game.apply(there, turned_actions[chosen])
    if not np.array_equal(game.terminal(here), game.terminal(there)):
        return "the same move ends one game and not the other"
    if not np.allclose(game.results(here), game.results(there)):
        return "the same move gives another result"
    running = ~game.terminal(here)
    if running.any() and not np.array_equal(game.turned(here[running], symmetry), there[running]):
        return "the same move leads to another position"
    return ""
