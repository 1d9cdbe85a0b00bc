"""What happens at the roots: noise, sequential halving over the considered actions, the final choice.

A round of sequential halving tries every considered action once. Their branches are disjoint and the
choice among them waits for the end of the round, so the leaves of a round can be judged together and the
result is the same as one by one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ringrift.games.compiled import compiled
from ringrift.search.core.tree import (
    CHILD,
    EDGE_VISITS,
    EDGES,
    FIRST_EDGE,
    LOGIT,
    LOST,
    MOVER,
    NONE,
    PRIOR,
    PROVEN,
    RAW,
    ROOT,
    TINY,
    TOTAL,
    VISITS,
    WON,
    Floats32,
    Floats64,
    Ints,
    Longs,
    Selection,
    Tree,
    add_values,
    to_probabilities,
)

# --- random numbers by counting -----------------------------------------------------------------------
#
# Random numbers by counting: sample number i of a key is a function of both and of nothing else.
#
# So a game's draws depend on its own seed and move, and never on which games are searched beside it.


GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
TO_UNIT = 2.0**-53


@compiled
def mixed(word: np.uint64) -> np.uint64:
    """Spread the bits of *word* evenly."""
    word = (word ^ (word >> np.uint64(30))) * MIX_1
    word = (word ^ (word >> np.uint64(27))) * MIX_2
    return word ^ (word >> np.uint64(31))


@compiled
def move_key(seed: int, ply: int) -> np.uint64:
    """The key of all draws for move number *ply* of the game with *seed*."""
    return mixed(mixed(np.uint64(seed) + GOLDEN) + (np.uint64(ply) + np.uint64(1)) * GOLDEN)


@compiled
def uniform(key: np.uint64, number: int) -> float:
    """Sample *number*, between 0 and 1 and never equal to either."""
    word = mixed(key + (np.uint64(number) + np.uint64(1)) * GOLDEN)
    return (float(word >> np.uint64(11)) + 0.5) * TO_UNIT


@compiled
def gumbel(key: np.uint64, number: int) -> float:
    return -math.log(-math.log(uniform(key, number)))


@compiled
def log_gamma_sample(key: np.uint64, number: int, shape: float) -> float:
    """Logarithm of a gamma-distributed sample (Marsaglia and Tsang): small shapes underflow otherwise."""
    stream = mixed(key + (np.uint64(number) + np.uint64(1)) * GOLDEN)
    boost = math.log(uniform(stream, 0)) / shape if shape < 1.0 else 0.0
    d = (shape + 1.0 if shape < 1.0 else shape) - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    draw = 1
    while True:
        radius = math.sqrt(-2.0 * math.log(uniform(stream, draw)))
        normal = radius * math.cos(2.0 * math.pi * uniform(stream, draw + 1))
        v = (1.0 + c * normal) ** 3
        chance = uniform(stream, draw + 2)
        draw += 3
        if v > 0.0 and math.log(chance) < 0.5 * normal * normal + d - d * v + d * math.log(v):
            return math.log(d * v) + boost


# --- the roots ----------------------------------------------------------------------------------------


CHOICE_DRAW = 1 << 40  # number of the draw that picks the action, apart from those of the noise


# Numbers of a game: its random draws, the simulations to make and made, the actions still in the running,
# the halvings that the budget is spread over, the rounds before the next one, whether the policy gets noise.
SEED, PLY, BUDGET, DONE, CONSIDERED, LEVELS, ROUNDS_LEFT, EXPLORE = range(8)
ROOT_NUMBERS = 8
# Per root edge: visits made before this search, and the edges in order, the considered ones first.
BEFORE, ORDER = range(2)


class Roots(NamedTuple):
    """The state of all searches apart from their trees."""

    numbers: Longs  # games x numbers
    temperatures: Floats64
    places: Ints  # games x root edges x (BEFORE, ORDER)
    noise: Floats64  # games x root edges


@compiled
def begin_game(tree: Tree, roots: Roots, game: int, settings: Selection) -> None:
    """Draw the noise of this search; the root has been judged."""
    count = tree.node[game, ROOT, EDGES]
    key = move_key(roots.numbers[game, SEED], roots.numbers[game, PLY])
    for at in range(count):
        roots.places[game, at, BEFORE] = tree.edge[game, tree.node[game, ROOT, FIRST_EDGE] + at, EDGE_VISITS]
        roots.places[game, at, ORDER] = at
    if settings.gumbel:
        for at in range(count):
            roots.noise[game, at] = roots.temperatures[game] * gumbel(key, at)
        _begin_halving(tree, roots, game, settings)
    else:
        _mix_noise(tree, roots, game, settings, key)


@compiled
def _begin_halving(tree: Tree, roots: Roots, game: int, settings: Selection) -> None:
    count = tree.node[game, ROOT, EDGES]
    considered = max(1, min(settings.considered, count, roots.numbers[game, BUDGET]))
    levels = 0
    while 1 << levels < considered:
        levels += 1
    scores = np.empty(count, dtype=np.float64)
    for at in range(count):
        scores[at] = tree.edge_worth[game, tree.node[game, ROOT, FIRST_EDGE] + at, LOGIT]
    roots.numbers[game, CONSIDERED] = count
    _keep_best(roots, game, scores, considered)
    roots.numbers[game, LEVELS] = levels
    roots.numbers[game, ROUNDS_LEFT] = rounds_before_halving(roots.numbers[game, BUDGET], levels, considered)


@compiled
def rounds_before_halving(budget: int, levels: int, considered: int) -> int:
    return budget if considered == 1 else max(1, budget // (levels * considered))


@compiled
def _mix_noise(tree: Tree, roots: Roots, game: int, settings: Selection, key: np.uint64) -> None:
    """Set the root's policy, with Dirichlet noise mixed in where it is wanted."""
    first, count = tree.node[game, ROOT, FIRST_EDGE], tree.node[game, ROOT, EDGES]
    weight = settings.noise_weight if roots.numbers[game, EXPLORE] else 0.0
    alpha = settings.noise_alpha if settings.noise_alpha > 0.0 else 10.0 / count
    pure = np.empty(count, dtype=np.float64)
    noise = roots.noise[game]
    for at in range(count):
        pure[at] = tree.edge_worth[game, first + at, LOGIT]
        noise[at] = log_gamma_sample(key, at, alpha) if weight > 0.0 else 0.0
    to_probabilities(pure, count)
    to_probabilities(noise, count)
    for at in range(count):
        tree.edge_worth[game, first + at, PRIOR] = pure[at] + weight * (noise[at] - pure[at])


@compiled
def _keep_best(roots: Roots, game: int, scores: Floats64, keep: int) -> None:
    """Sort the best *keep* of the considered actions to the front, equals by number, and drop the others."""
    places, noise = roots.places[game], roots.noise[game]
    for place in range(keep):
        best = place
        for other in range(place + 1, roots.numbers[game, CONSIDERED]):
            this, that = places[best, ORDER], places[other, ORDER]
            ahead = scores[that] + noise[that] - scores[this] - noise[this]
            if ahead > 0.0 or (ahead == 0.0 and that < this):
                best = other
        places[place, ORDER], places[best, ORDER] = places[best, ORDER], places[place, ORDER]
    roots.numbers[game, CONSIDERED] = keep


@compiled
def next_round(tree: Tree, roots: Roots, game: int, settings: Selection) -> int:
    """Halve if it is time; returns how many of the considered actions to try now, the first in order."""
    considered = roots.numbers[game, CONSIDERED]
    left = roots.numbers[game, BUDGET] - roots.numbers[game, DONE]
    halve = roots.numbers[game, ROUNDS_LEFT] == 0 and considered > 2
    if halve or left < considered:
        scores = np.empty(tree.node[game, ROOT, EDGES], dtype=np.float64)
        add_values(tree, game, ROOT, settings, scores)
        considered = max(2, considered // 2) if halve else considered
        _keep_best(roots, game, scores, considered)
    if halve:
        rounds = rounds_before_halving(roots.numbers[game, BUDGET], roots.numbers[game, LEVELS], considered)
        roots.numbers[game, ROUNDS_LEFT] = rounds
    roots.numbers[game, ROUNDS_LEFT] -= 1
    return min(considered, left)


@compiled
def deciding_node(tree: Tree, game: int) -> int:
    """The node that more search cannot change: one below the root that wins, or the best if all are proven.

    NONE while there is no such node.
    """
    first, mover = tree.node[game, ROOT, FIRST_EDGE], tree.node[game, ROOT, MOVER]
    best, all_proven = NONE, True
    for edge in range(first, first + tree.node[game, ROOT, EDGES]):
        child = tree.edge[game, edge, CHILD]
        if child == NONE or tree.node[game, child, PROVEN] == 0:
            all_proven = False
        elif best == NONE or tree.worth[game, child, RAW, mover] > tree.worth[game, best, RAW, mover]:
            best = child
    return best if best != NONE and (all_proven or tree.worth[game, best, RAW, mover] == WON) else NONE


@compiled
def finish_game(
    tree: Tree, roots: Roots, game: int, settings: Selection, policy: Floats32, visits: Ints
) -> int:
    """Write the policy target and the visits of the root's edges; returns the place of the chosen edge."""
    first, count = tree.node[game, ROOT, FIRST_EDGE], tree.node[game, ROOT, EDGES]
    for at in range(count):
        visits[at] = tree.edge[game, first + at, EDGE_VISITS]
    scores = np.empty(count, dtype=np.float64)
    if settings.gumbel:
        return _finish_gumbel(tree, roots, game, settings, policy, scores)
    total = 0
    for at in range(count):
        total += visits[at]
    for at in range(count):
        policy[at] = visits[at] / total
    temperature = roots.temperatures[game]
    if temperature <= 0.0:
        return _most_visited(tree, game)
    for at in range(count):
        scores[at] = math.log(visits[at]) / temperature if visits[at] > 0 else -np.inf
    to_probabilities(scores, count)
    drawn = uniform(move_key(roots.numbers[game, SEED], roots.numbers[game, PLY]), CHOICE_DRAW)
    chosen = _most_visited(tree, game)
    for at in range(count):
        drawn -= scores[at]
        if drawn < 0.0:
            return at
    return chosen


@compiled
def _finish_gumbel(
    tree: Tree, roots: Roots, game: int, settings: Selection, policy: Floats32, scores: Floats64
) -> int:
    """The improved policy is the target; of the actions tried most in this search the best is chosen.

    An action that is proven to win goes before the others, and one that is proven to lose behind them.
    """
    first, count = tree.node[game, ROOT, FIRST_EDGE], tree.node[game, ROOT, EDGES]
    add_values(tree, game, ROOT, settings, scores)
    top, most = LOST, 0
    for at in range(count):
        top = max(top, _proof(tree, game, first + at))
    for at in range(count):
        if _proof(tree, game, first + at) == top:
            most = max(most, tree.edge[game, first + at, EDGE_VISITS] - roots.places[game, at, BEFORE])
    chosen, best = 0, -np.inf
    for at in range(count):
        tried = tree.edge[game, first + at, EDGE_VISITS] - roots.places[game, at, BEFORE]
        fits = tried == most and _proof(tree, game, first + at) == top
        if fits and scores[at] + roots.noise[game, at] > best:
            chosen, best = at, scores[at] + roots.noise[game, at]
    to_probabilities(scores, count)
    for at in range(count):
        policy[at] = scores[at]
    return chosen


@compiled
def surprise_of(tree: Tree, game: int, policy: Floats32) -> float:
    """Kullback-Leibler divergence of the search's policy from the evaluator's, at the root, in nats."""
    first, count = tree.node[game, ROOT, FIRST_EDGE], tree.node[game, ROOT, EDGES]
    top, total, found = -np.inf, 0.0, 0.0
    for at in range(count):
        top = max(top, tree.edge_worth[game, first + at, LOGIT])
    for at in range(count):
        total += math.exp(tree.edge_worth[game, first + at, LOGIT] - top)
    for at in range(count):
        if policy[at] > 0.0:
            prior = tree.edge_worth[game, first + at, LOGIT] - top - math.log(total)
            found += policy[at] * (math.log(policy[at]) - prior)
    return max(found, 0.0)


@compiled
def _proof(tree: Tree, game: int, edge: int) -> float:
    """WON or LOST if that is proven of an edge of the root, else 0."""
    child, mover = tree.edge[game, edge, CHILD], tree.node[game, ROOT, MOVER]
    if child == NONE or tree.node[game, child, PROVEN] == 0:
        return 0.0
    worth = tree.worth[game, child, RAW, mover]
    return float(worth) if abs(worth) == WON else 0.0


@compiled
def root_values(tree: Tree, game: int, settings: Selection, policy: Floats32, values: Floats32) -> None:
    """Write what the root is worth to each seat.

    PUCT visits what it believes in, so the mean over all simulations serves. Halving tries bad actions as
    often as good ones, so there it is the improved policy that weighs the tried actions, unless proofs say
    what the position is worth.
    """
    first, count = tree.node[game, ROOT, FIRST_EDGE], tree.node[game, ROOT, EDGES]
    weight = 0.0
    for seat in range(values.shape[0]):
        values[seat] = tree.worth[game, ROOT, TOTAL, seat] / tree.node[game, ROOT, VISITS]
    for at in range(count):
        if tree.edge[game, first + at, EDGE_VISITS] > 0:
            weight += policy[at]
    if not settings.gumbel or weight < TINY:
        return
    decided = deciding_node(tree, game)
    for seat in range(values.shape[0]):
        if decided != NONE:
            values[seat] = tree.worth[game, decided, RAW, seat]
        else:
            values[seat] = _weighed(tree, game, policy, weight, seat)


@compiled
def _weighed(tree: Tree, game: int, policy: Floats32, weight: float, seat: int) -> float:
    """What the tried actions are worth to *seat* on average, by their share in the policy."""
    first, value = tree.node[game, ROOT, FIRST_EDGE], 0.0
    for at in range(tree.node[game, ROOT, EDGES]):
        made = tree.edge[game, first + at, EDGE_VISITS]
        if made > 0:
            child = tree.edge[game, first + at, CHILD]
            total = tree.worth[game, child, TOTAL, seat]
            if tree.node[game, child, PROVEN]:
                total = tree.worth[game, child, RAW, seat] * made
            value += policy[at] / weight * total / made
    return value


@compiled
def _most_visited(tree: Tree, game: int) -> int:
    """Place of the root's edge with most visits; of equals the one with the higher prior, then the first."""
    first, count = tree.node[game, ROOT, FIRST_EDGE], tree.node[game, ROOT, EDGES]
    best = 0
    for at in range(1, count):
        more = tree.edge[game, first + at, EDGE_VISITS] - tree.edge[game, first + best, EDGE_VISITS]
        prior = tree.edge_worth[game, first + at, PRIOR] > tree.edge_worth[game, first + best, PRIOR]
        if more > 0 or (more == 0 and prior):
            best = at
    return best
