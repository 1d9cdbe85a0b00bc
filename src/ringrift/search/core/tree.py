"""The trees of all games in plain arrays, one row of each array per game.

Nodes and edges are numbered in the order of their creation, so a child comes after its parent and the
edges of a node after those of older nodes: cutting a tree down to one branch moves everything forward
and can be done in place. Node 0 is the root.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ringrift.games.compiled import compiled

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Floats32 = npt.NDArray[np.float32]
Floats64 = npt.NDArray[np.float64]

NONE = -1
UNKNOWN = -1  # number of edges of a node that has not been judged
ROOT = 0
WON, LOST = 1.0, -1.0  # the best and the worst a game can end with


# Fields of a node.
PARENT, PARENT_EDGE, MOVER, FIRST_EDGE, EDGES, VISITS, PROVEN = range(7)
NODE_FIELDS = 7
# Worth of a node: what the evaluator or the rules said of it, and the sum over all visits.
RAW, TOTAL = range(2)
# Fields of an edge; WAITING counts the simulations on their way through it.
ACTION, CHILD, EDGE_VISITS, WAITING = range(4)
EDGE_FIELDS = 4
# Worth of an edge; its total is for the player on turn before it.
LOGIT, PRIOR, EDGE_TOTAL = range(3)
EDGE_WORTHS = 3
# How much of a game's row is in use.
NODES, ALL_EDGES = range(2)


class Tree(NamedTuple):
    """Few arrays with many fields each: compiled calls get expensive with the number of arrays."""

    states: Longs  # games x nodes x words
    # Games x nodes x fields; EDGES is 0 for a finished game, UNKNOWN until it is judged; PROVEN is 1 where
    # the RAW worth is what best play leads to.
    node: Ints
    worth: Floats64  # games x nodes x (RAW, TOTAL) x players
    edge: Ints  # games x edges x fields
    edge_worth: Floats64  # games x edges x (LOGIT, PRIOR, EDGE_TOTAL)
    used: Ints  # games x (NODES, ALL_EDGES)


def make_tree(games: int, *, nodes: int, edges: int, words: int, players: int) -> Tree:
    return Tree(
        states=np.zeros((games, nodes, words), dtype=np.int64),
        node=np.full((games, nodes, NODE_FIELDS), UNKNOWN, dtype=np.int32),
        worth=np.zeros((games, nodes, 2, players), dtype=np.float64),
        edge=np.zeros((games, edges, EDGE_FIELDS), dtype=np.int32),
        edge_worth=np.zeros((games, edges, EDGE_WORTHS), dtype=np.float64),
        used=np.zeros((games, 2), dtype=np.int32),
    )


def with_room(tree: Tree, *, nodes: int = 0, edges: int = 0) -> Tree:
    """The same trees with room for at least so many nodes and edges per game."""
    if nodes > tree.node.shape[1]:
        tree = tree._replace(
            states=_widened(tree.states, nodes),
            node=_widened(tree.node, nodes),
            worth=_widened(tree.worth, nodes),
        )
    if edges > tree.edge.shape[1]:
        tree = tree._replace(edge=_widened(tree.edge, edges), edge_worth=_widened(tree.edge_worth, edges))
    return tree


def _widened(old: npt.NDArray[Any], wanted: int) -> npt.NDArray[Any]:
    """Half as much again at least, so that growing step by step stays cheap."""
    new = np.zeros((old.shape[0], max(wanted, old.shape[1] * 3 // 2), *old.shape[2:]), dtype=old.dtype)
    new[:, : old.shape[1]] = old
    return new


@compiled
def reset_node(tree: Tree, game: int, node: int, parent: int, edge: int) -> None:
    """Make *node* a fresh one that nobody has judged."""
    tree.node[game, node, PARENT] = parent
    tree.node[game, node, PARENT_EDGE] = edge
    tree.node[game, node, EDGES] = UNKNOWN
    tree.node[game, node, VISITS] = 0
    tree.node[game, node, PROVEN] = 0
    for seat in range(tree.worth.shape[3]):
        tree.worth[game, node, RAW, seat] = 0.0
        tree.worth[game, node, TOTAL, seat] = 0.0


@compiled
def back_up(tree: Tree, game: int, leaf: int) -> None:
    """Count one visit of *leaf* with its own value on the whole way from the root."""
    players = tree.worth.shape[3]
    node = leaf
    while True:
        tree.node[game, node, VISITS] += 1
        for seat in range(players):
            tree.worth[game, node, TOTAL, seat] += tree.worth[game, leaf, RAW, seat]
        above = tree.node[game, node, PARENT]
        if above == NONE:
            return
        edge = tree.node[game, node, PARENT_EDGE]
        tree.edge[game, edge, EDGE_VISITS] += 1
        tree.edge[game, edge, WAITING] -= 1
        tree.edge_worth[game, edge, EDGE_TOTAL] += tree.worth[game, leaf, RAW, tree.node[game, above, MOVER]]
        node = above


@compiled
def spread_proof(tree: Tree, game: int, node: int) -> None:
    """*node* is proven: prove those above it as far as it decides them, without the root.

    A node is decided by a reply that wins, or by the best of its replies once all are proven. The root is
    left out because its edges are looked at one by one when the action is chosen.
    """
    while tree.node[game, node, PARENT] > ROOT:
        above = tree.node[game, node, PARENT]
        mover, best = tree.node[game, above, MOVER], node
        if tree.worth[game, node, RAW, mover] < WON:
            first = tree.node[game, above, FIRST_EDGE]
            for edge in range(first, first + tree.node[game, above, EDGES]):
                child = tree.edge[game, edge, CHILD]
                if child == NONE or tree.node[game, child, PROVEN] == 0:
                    return
                if tree.worth[game, child, RAW, mover] > tree.worth[game, best, RAW, mover]:
                    best = child
        tree.node[game, above, PROVEN] = 1
        for seat in range(tree.worth.shape[3]):
            tree.worth[game, above, RAW, seat] = tree.worth[game, best, RAW, seat]
        node = above


@compiled
def edge_total(tree: Tree, game: int, node: int, edge: int) -> float:
    """The sum over the visits of an edge for the player on turn at *node*; if it is proven, of the truth."""
    child = tree.edge[game, edge, CHILD]
    if child != NONE and tree.node[game, child, PROVEN]:
        worth = tree.worth[game, child, RAW, tree.node[game, node, MOVER]]
        return float(worth * tree.edge[game, edge, EDGE_VISITS])
    return float(tree.edge_worth[game, edge, EDGE_TOTAL])


@compiled
def set_state(tree: Tree, game: int, node: int, state: Longs) -> None:
    for word in range(state.shape[0]):
        tree.states[game, node, word] = state[word]


@compiled
def _copy_node(tree: Tree, game: int, old: int, new: int) -> None:
    set_state(tree, game, new, tree.states[game, old])
    for field in range(NODE_FIELDS):
        tree.node[game, new, field] = tree.node[game, old, field]
    for seat in range(tree.worth.shape[3]):
        tree.worth[game, new, RAW, seat] = tree.worth[game, old, RAW, seat]
        tree.worth[game, new, TOTAL, seat] = tree.worth[game, old, TOTAL, seat]


@compiled
def keep_branch(tree: Tree, game: int, branch: int) -> None:
    """Make node *branch* the root and drop everything that does not hang below it."""
    used = tree.used[game, NODES]
    places = np.full(used, NONE, dtype=np.int32)
    old_first = np.empty(used, dtype=np.int32)
    for node in range(used):
        old_first[node] = tree.node[game, node, FIRST_EDGE]
    nodes, edges = 0, 0
    for old in range(branch, used):
        above = tree.node[game, old, PARENT]
        if old != branch and places[above] == NONE:
            continue
        new, above_new, through = nodes, NONE, NONE
        if old != branch:
            above_new = places[above]
            number = tree.node[game, old, PARENT_EDGE] - old_first[above]
            through = tree.node[game, above_new, FIRST_EDGE] + number
            tree.edge[game, through, CHILD] = new
        places[old] = new
        nodes += 1
        _copy_node(tree, game, old, new)
        tree.node[game, new, PARENT] = above_new
        tree.node[game, new, PARENT_EDGE] = through
        tree.node[game, new, FIRST_EDGE] = edges
        for edge in range(old_first[old], old_first[old] + max(tree.node[game, new, EDGES], 0)):
            for field in range(EDGE_FIELDS):
                tree.edge[game, edges, field] = tree.edge[game, edge, field]
            for field in range(EDGE_WORTHS):
                tree.edge_worth[game, edges, field] = tree.edge_worth[game, edge, field]
            tree.edge[game, edges, CHILD] = NONE  # set again when the child is moved
            edges += 1
    tree.used[game, NODES] = nodes
    tree.used[game, ALL_EDGES] = edges


# --- which edge to follow -----------------------------------------------------------------------------
#
# Which edge to follow at a node: PUCT, or Gumbel's improved policy; and what both say about a node.
#
# Values of edges are those of the player on turn at the node, whatever the number of players.


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
