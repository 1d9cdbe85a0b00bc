"""Which edge to follow at a node: PUCT, or Gumbel's improved policy; and what both say about a node.

Values of edges are those of the player on turn at the node, whatever the number of players.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ringrift.games.compiled import compiled
from ringrift.search.core.tree import (
    EDGE_TOTAL,
    EDGE_VISITS,
    EDGES,
    FIRST_EDGE,
    LOGIT,
    LOST,
    MOVER,
    PRIOR,
    RAW,
    TOTAL,
    VISITS,
    WAITING,
    Floats64,
    Tree,
    edge_total,
)

TINY = 1e-12


class Selection(NamedTuple):
    """The numbers of a search, in the form compiled code takes."""

    gumbel: bool
    considered: int
    c_visit: float
    c_scale: float
    rescale: bool
    c_puct: float
    fpu_reduction: float
    noise_weight: float
    noise_alpha: float  # 0: derived from the number of actions
    leaves: int
    prove: bool


@compiled
def best_by_puct(tree: Tree, game: int, node: int, settings: Selection) -> int:
    """The edge with the best upper bound; the first of equals."""
    first, count = tree.node[game, node, FIRST_EDGE], tree.node[game, node, EDGES]
    tried_prior, visits = 0.0, 0
    for edge in range(first, first + count):
        made = tree.edge[game, edge, EDGE_VISITS] + tree.edge[game, edge, WAITING]
        if made > 0:
            visits += made
            tried_prior += tree.edge_worth[game, edge, PRIOR]
    mover = tree.node[game, node, MOVER]
    value = tree.worth[game, node, TOTAL, mover] / tree.node[game, node, VISITS]
    untried = value - settings.fpu_reduction * math.sqrt(tried_prior)
    reach = settings.c_puct * math.sqrt(max(visits, 1))
    best, best_score = first, -np.inf
    for edge in range(first, first + count):
        waiting = tree.edge[game, edge, WAITING]
        made = tree.edge[game, edge, EDGE_VISITS] + waiting
        worth = untried
        if made > 0:
            # A simulation on its way counts as lost, so that the next one looks elsewhere.
            worth = (tree.edge_worth[game, edge, EDGE_TOTAL] + LOST * waiting) / made
        score = worth + reach * tree.edge_worth[game, edge, PRIOR] / (1 + made)
        if score > best_score:
            best, best_score = edge, score
    return best


@compiled
def mixed_value(tree: Tree, game: int, node: int) -> float:
    """What an untried action is taken to be worth: the judged value and the tried actions' values, mixed."""
    first, count = tree.node[game, node, FIRST_EDGE], tree.node[game, node, EDGES]
    visits, prior, weighted = 0, 0.0, 0.0
    for edge in range(first, first + count):
        made = tree.edge[game, edge, EDGE_VISITS]
        if made > 0:
            visits += made
            prior += tree.edge_worth[game, edge, PRIOR]
            weighted += tree.edge_worth[game, edge, PRIOR] * edge_total(tree, game, node, edge) / made
    raw = tree.worth[game, node, RAW, tree.node[game, node, MOVER]]
    return (raw + visits * weighted / max(prior, TINY)) / (1 + visits) if visits else raw


@compiled
def add_values(tree: Tree, game: int, node: int, settings: Selection, out: Floats64) -> None:
    """Write each edge's logit plus its scaled value to *out*; untried edges get the mixed value."""
    first, count = tree.node[game, node, FIRST_EDGE], tree.node[game, node, EDGES]
    unknown = mixed_value(tree, game, node)
    low, high, most = np.inf, -np.inf, 0
    for at in range(count):
        made = tree.edge[game, first + at, EDGE_VISITS]
        out[at] = edge_total(tree, game, node, first + at) / made if made > 0 else unknown
        low, high, most = min(low, out[at]), max(high, out[at]), max(most, made)
    scale = (settings.c_visit + most) * settings.c_scale
    if not settings.rescale:
        low, high = -1.0, 1.0
    spread = max(high - low, 1e-8)
    for at in range(count):
        out[at] = tree.edge_worth[game, first + at, LOGIT] + scale * (out[at] - low) / spread


@compiled
def to_probabilities(scores: Floats64, count: int) -> None:
    """Softmax of the first *count* scores, in place."""
    top = -np.inf
    for at in range(count):
        top = max(top, scores[at])
    total = 0.0
    for at in range(count):
        scores[at] = math.exp(scores[at] - top)
        total += scores[at]
    for at in range(count):
        scores[at] /= total


@compiled
def best_by_gumbel(tree: Tree, game: int, node: int, settings: Selection, work: Floats64) -> int:
    """The edge whose share of visits lags most behind the improved policy; the first of equals."""
    first, count = tree.node[game, node, FIRST_EDGE], tree.node[game, node, EDGES]
    if count == 1:
        return first
    add_values(tree, game, node, settings, work)
    to_probabilities(work, count)
    visits = 0
    for edge in range(first, first + count):
        visits += tree.edge[game, edge, EDGE_VISITS]
    best, best_score = first, -np.inf
    for at in range(count):
        score = work[at] - tree.edge[game, first + at, EDGE_VISITS] / (1.0 + visits)
        if score > best_score:
            best, best_score = first + at, score
    return best
