"""Entry points: loops over games, compiled once for all games and kept on disk."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ringrift.games.compiled import cached_kernel, compiled, source_fingerprint
from ringrift.search.core.rooting import (
    BUDGET,
    DONE,
    ORDER,
    Roots,
    begin_game,
    deciding_node,
    finish_game,
    next_round,
    root_values,
    surprise_of,
)
from ringrift.search.core.tree import (
    ACTION,
    ALL_EDGES,
    CHILD,
    EDGE_TOTAL,
    EDGE_VISITS,
    EDGES,
    FIRST_EDGE,
    LOGIT,
    MOVER,
    NODES,
    NONE,
    PARENT,
    PARENT_EDGE,
    PRIOR,
    PROVEN,
    RAW,
    ROOT,
    UNKNOWN,
    WAITING,
    Floats32,
    Floats64,
    Ints,
    Longs,
    Selection,
    Tree,
    back_up,
    best_by_gumbel,
    best_by_puct,
    keep_branch,
    reset_node,
    set_state,
    spread_proof,
    to_probabilities,
)

FINGERPRINT = source_fingerprint(Path(__file__).parent)


class Leaves(NamedTuple):
    """Positions that the tree has not seen: where they hang, the last action, and the rows to judge."""

    games: Ints
    nodes: Ints
    actions: Ints
    states: Longs


class Judgment(NamedTuple):
    """What is known of leaves: who moves, the legal actions with logits, and values per seat."""

    movers: Longs
    offsets: Longs
    actions: Ints
    logits: Floats32
    values: Floats32


class Findings(NamedTuple):
    """What finished searches write: flat by root edge from *offsets* on, and values per seat."""

    offsets: Longs
    actions: Ints
    policy: Floats32
    visits: Ints
    values: Floats32
    surprise: Floats32


@cached_kernel(FINGERPRINT)
def plant_roots(tree: Tree, games: Longs, states: Longs) -> None:
    """Start new trees that hold nothing but their root."""
    for at in range(games.shape[0]):
        game = games[at]
        tree.used[game, NODES], tree.used[game, ALL_EDGES] = 1, 0
        reset_node(tree, game, ROOT, NONE, NONE)
        set_state(tree, game, ROOT, states[at])


@cached_kernel(FINGERPRINT)
def begin_games(tree: Tree, roots: Roots, games: Longs, settings: Selection) -> None:
    for at in range(games.shape[0]):
        if tree.node[games[at], ROOT, EDGES] > 0:
            begin_game(tree, roots, games[at], settings)


@compiled
def _descend(tree: Tree, game: int, edge: int, settings: Selection, work: Floats64) -> tuple[int, int]:
    """Follow *edge* of the root, or the best edge if it is NONE, to a new, a proven or a finished node.

    Returns the node and the edge that leads to it. The node is NONE where a simulation of the same wave
    stands at the new node already; then nothing was changed.
    """
    node, through = ROOT, edge
    while True:
        if through == NONE:
            if settings.gumbel:
                through = best_by_gumbel(tree, game, node, settings, work)
            else:
                through = best_by_puct(tree, game, node, settings)
        # Marked while it is on its way, so that the next simulation of the wave looks elsewhere.
        tree.edge[game, through, WAITING] += 1
        child = tree.edge[game, through, CHILD]
        if child == NONE:
            new = tree.used[game, NODES]
            tree.used[game, NODES] += 1
            tree.edge[game, through, CHILD] = new
            reset_node(tree, game, new, node, through)
            return new, through
        if tree.node[game, child, EDGES] == UNKNOWN:
            _retreat(tree, game, child)  # its marks would stay for ever otherwise
            return NONE, through
        if tree.node[game, child, EDGES] == 0 or tree.node[game, child, PROVEN]:
            return child, through
        node, through = child, NONE


@compiled
def _retreat(tree: Tree, game: int, node: int) -> None:
    while tree.node[game, node, PARENT] != NONE:
        tree.edge[game, tree.node[game, node, PARENT_EDGE], WAITING] -= 1
        node = tree.node[game, node, PARENT]


@compiled
def _gather_of_game(
    tree: Tree, roots: Roots, game: int, settings: Selection, leaves: Leaves, found: int, work: Floats64
) -> int:
    """Start one game's simulations of this wave; returns the number of leaves so far."""
    first = tree.node[game, ROOT, FIRST_EDGE]
    if settings.prove and deciding_node(tree, game) != NONE:
        # proven: more simulations would change nothing
        roots.numbers[game, BUDGET] = roots.numbers[game, DONE]
        return found
    if settings.gumbel:
        tries = next_round(tree, roots, game, settings)
    else:
        tries = min(settings.leaves, roots.numbers[game, BUDGET] - roots.numbers[game, DONE])
    for number in range(tries):
        edge = first + roots.places[game, number, ORDER] if settings.gumbel else NONE
        node, through = _descend(tree, game, edge, settings, work)
        if node == NONE:
            break
        roots.numbers[game, DONE] += 1
        if tree.node[game, node, EDGES] == 0 or tree.node[game, node, PROVEN]:
            back_up(tree, game, node)
            continue
        leaves.games[found] = game
        leaves.nodes[found] = node
        leaves.actions[found] = tree.edge[game, through, ACTION]
        # The state of the parent: the game applies the action to all leaves at once.
        for word in range(leaves.states.shape[1]):
            leaves.states[found, word] = tree.states[game, tree.node[game, node, PARENT], word]
        found += 1
    return found


@cached_kernel(FINGERPRINT)
def gather_leaves(tree: Tree, roots: Roots, games: Longs, settings: Selection, leaves: Leaves) -> int:
    """Start the next simulations of *games*; those that end in finished games are done at once."""
    found = 0
    widest = 0
    for at in range(games.shape[0]):
        widest = max(widest, tree.used[games[at], ALL_EDGES])
    # Once for all games: room for the edges of any node is room for all edges of the largest tree.
    work = np.empty(widest, dtype=np.float64)
    for at in range(games.shape[0]):
        found = _gather_of_game(tree, roots, games[at], settings, leaves, found, work)
    return found


@cached_kernel(FINGERPRINT)
def edges_needed(tree: Tree, count: int, leaves: Leaves, offsets: Longs) -> int:
    """Edges that the fullest of these games will have once the first *count* leaves are added."""
    # Asked before anything is added, since arrays cannot grow inside compiled code.
    most = 0
    added = np.zeros(tree.used.shape[0], dtype=np.int64)
    for leaf in range(count):
        game = leaves.games[leaf]
        added[game] += offsets[leaf + 1] - offsets[leaf]
        most = max(most, tree.used[game, ALL_EDGES] + added[game])
    return most


@compiled
def _add_edges(tree: Tree, game: int, node: int, found: Judgment, leaf: int) -> None:
    start, count = found.offsets[leaf], found.offsets[leaf + 1] - found.offsets[leaf]
    first = tree.used[game, ALL_EDGES]
    tree.node[game, node, FIRST_EDGE] = first
    tree.node[game, node, EDGES] = count
    tree.used[game, ALL_EDGES] += count
    priors = np.empty(count, dtype=np.float64)
    for at in range(count):
        priors[at] = found.logits[start + at]
    to_probabilities(priors, count)
    for at in range(count):
        edge = first + at
        tree.edge[game, edge, ACTION] = found.actions[start + at]
        tree.edge[game, edge, CHILD] = NONE
        tree.edge[game, edge, EDGE_VISITS] = 0
        tree.edge[game, edge, WAITING] = 0
        tree.edge_worth[game, edge, LOGIT] = found.logits[start + at]
        tree.edge_worth[game, edge, PRIOR] = priors[at]
        tree.edge_worth[game, edge, EDGE_TOTAL] = 0.0


@cached_kernel(FINGERPRINT)
def add_nodes(tree: Tree, count: int, leaves: Leaves, found: Judgment, settings: Selection) -> None:
    """Fill in the nodes of the first *count* leaves and back them up; a finished game has no edges."""
    for leaf in range(count):
        game, node = leaves.games[leaf], leaves.nodes[leaf]
        set_state(tree, game, node, leaves.states[leaf])
        tree.node[game, node, MOVER] = found.movers[leaf]
        for seat in range(found.values.shape[1]):
            tree.worth[game, node, RAW, seat] = found.values[leaf, seat]
        _add_edges(tree, game, node, found, leaf)
        back_up(tree, game, node)
        if settings.prove and tree.node[game, node, EDGES] == 0:
            tree.node[game, node, PROVEN] = 1
            spread_proof(tree, game, node)


@cached_kernel(FINGERPRINT)
def root_offsets(tree: Tree, games: Longs) -> Longs:
    offsets = np.zeros(games.shape[0] + 1, dtype=np.int64)
    for at in range(games.shape[0]):
        offsets[at + 1] = offsets[at] + max(tree.node[games[at], ROOT, EDGES], 0)
    return offsets


@cached_kernel(FINGERPRINT)
def finish_games(tree: Tree, roots: Roots, games: Longs, settings: Selection, out: Findings) -> Ints:
    """Write what was found at the roots; returns the chosen actions, -1 for finished games."""
    chosen = np.empty(games.shape[0], dtype=np.int32)
    for at in range(games.shape[0]):
        game, start, end = games[at], out.offsets[at], out.offsets[at + 1]
        chosen[at] = NONE
        for edge in range(end - start):
            action = tree.edge[game, tree.node[game, ROOT, FIRST_EDGE] + edge, ACTION]
            out.actions[start + edge] = action
        if end > start:
            place = finish_game(tree, roots, game, settings, out.policy[start:end], out.visits[start:end])
            chosen[at] = out.actions[start + place]
            out.surprise[at] = surprise_of(tree, game, out.policy[start:end])
        root_values(tree, game, settings, out.policy[start:end], out.values[at])
    return chosen


@cached_kernel(FINGERPRINT)
def advance_roots(tree: Tree, games: Longs, actions: Ints) -> npt.NDArray[np.bool_]:
    """Keep the branch below each action; returns which games have no such branch and lost their tree."""
    lost = np.zeros(games.shape[0], dtype=np.bool_)
    for at in range(games.shape[0]):
        game = games[at]
        first, branch = tree.node[game, ROOT, FIRST_EDGE], NONE
        for edge in range(first, first + max(tree.node[game, ROOT, EDGES], 0)):
            if tree.edge[game, edge, ACTION] == actions[at]:
                branch = tree.edge[game, edge, CHILD]
        lost[at] = branch == NONE
        if branch != NONE:
            keep_branch(tree, game, branch)
    return lost
