"""The compiled tree of plain search: UCT over edges, one tree per game, all trees in flat arrays.

Node `game * nodes + k` is the k-th of its game. A node's edges are shuffled when it is made, so that the
first unvisited one is a random one. Edges hold the sum of results for the seat that chooses among them;
with more than two players every seat so maximises its own result.

What is certain is not sampled: an edge into a finished game is proven, and so is an edge into a node where
the seat on turn has a proven win, or only proven edges to choose from.
"""

from __future__ import annotations

from math import log, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ringrift.games.compiled import cached_kernel, compiled, source_fingerprint

Words = npt.NDArray[np.int64]
FINGERPRINT = source_fingerprint(Path(__file__))
NO_NODE = -1
WIN = 1.0


class UctTree(NamedTuple):
    """Per node: first edge, number of edges, edges tried, seat on turn, visits. Per edge: the rest."""

    first: Words
    edges: Words
    tried: Words
    seat: Words
    visits: Words
    action: npt.NDArray[np.int32]
    child: Words
    edge_visits: Words
    edge_sum: npt.NDArray[np.float64]
    proven: npt.NDArray[np.bool_]
    outcome: npt.NDArray[np.float32]  # edges x players, where proven


def make_tree(nodes: int, players: int) -> UctTree:
    """Room for *nodes*, and for no edge yet."""
    return UctTree(
        first=np.zeros(nodes, dtype=np.int64),
        edges=np.zeros(nodes, dtype=np.int64),
        tried=np.zeros(nodes, dtype=np.int64),
        seat=np.zeros(nodes, dtype=np.int64),
        visits=np.zeros(nodes, dtype=np.int64),
        action=np.zeros(0, dtype=np.int32),
        child=np.full(0, NO_NODE, dtype=np.int64),
        edge_visits=np.zeros(0, dtype=np.int64),
        edge_sum=np.zeros(0),
        proven=np.zeros(0, dtype=np.bool_),
        outcome=np.zeros((0, players), dtype=np.float32),
    )


def with_room(tree: UctTree, edges: int) -> UctTree:
    """The same tree with room for at least *edges* edges."""
    room = tree.action.shape[0]
    if room >= edges:
        return tree
    more = max(edges, 2 * room) - room
    return tree._replace(
        action=np.append(tree.action, np.zeros(more, dtype=np.int32)),
        child=np.append(tree.child, np.full(more, NO_NODE, dtype=np.int64)),
        edge_visits=np.append(tree.edge_visits, np.zeros(more, dtype=np.int64)),
        edge_sum=np.append(tree.edge_sum, np.zeros(more)),
        proven=np.append(tree.proven, np.zeros(more, dtype=np.bool_)),
        outcome=np.pad(tree.outcome, ((0, more), (0, 0))),
    )


@compiled
def best_edge(tree: UctTree, node: int, explore: float) -> int:
    """The first edge not yet tried, else the one with the highest upper confidence bound."""
    first = tree.first[node]
    if tree.tried[node] < tree.edges[node]:
        return first + tree.tried[node]
    best, best_bound = first, -1e30
    logarithm, seat = log(tree.visits[node]), tree.seat[node]
    for edge in range(first, first + tree.edges[node]):
        if tree.proven[edge]:
            bound = np.float64(tree.outcome[edge, seat])
        else:
            visits = tree.edge_visits[edge]
            bound = tree.edge_sum[edge] / visits + explore * sqrt(logarithm / visits)
        if bound > best_bound:
            best, best_bound = edge, bound
    return best


@cached_kernel(FINGERPRINT)
def descend(tree: UctTree, roots: Words, explore: float, paths: Words, lengths: Words) -> None:
    """Write each tree's path of edges down to one that is proven or has no child yet."""
    for game in range(roots.shape[0]):
        node, length = roots[game], 0
        while node != NO_NODE:
            edge = best_edge(tree, node, explore)
            paths[game, length] = edge
            length += 1
            node = NO_NODE if tree.proven[edge] else tree.child[edge]
        lengths[game] = length


@cached_kernel(FINGERPRINT)
def add_nodes(tree: UctTree, nodes: Words, start: int, offsets: Words, actions: Any, random: Words) -> None:
    """Give *nodes* their legal actions as edges from *start* on, in random order."""
    for at in range(nodes.shape[0]):
        node, count = nodes[at], offsets[at + 1] - offsets[at]
        first = start + offsets[at]
        tree.first[node] = first
        tree.edges[node] = count
        word = np.uint64(random[at]) | np.uint64(1)
        for place in range(count):
            tree.action[first + place] = actions[offsets[at] + place]
            word ^= word << np.uint64(13)
            word ^= word >> np.uint64(7)
            word ^= word << np.uint64(17)
            other = first + np.int64(((word >> np.uint64(32)) * np.uint64(place + 1)) >> np.uint64(32))
            tree.action[first + place] = tree.action[other]
            tree.action[other] = actions[offsets[at] + place]


@compiled
def proven_choice(tree: UctTree, node: int) -> int:
    """The edge that decides *node*: a proven win, else the best if all are proven; -1 if it is open."""
    first, seat = tree.first[node], tree.seat[node]
    best, open_edges = -1, False
    for edge in range(first, first + tree.edges[node]):
        if not tree.proven[edge]:
            open_edges = True
        elif best < 0 or tree.outcome[edge, seat] > tree.outcome[best, seat]:
            best = edge
    if best >= 0 and (not open_edges or tree.outcome[best, seat] >= WIN):
        return best
    return -1


@cached_kernel(FINGERPRINT)
def back_up(tree: UctTree, roots: Words, paths: Words, lengths: Words, results: Any) -> None:
    """Count a visit along each path and add the result of the seat that chose each edge."""
    for game in range(roots.shape[0]):
        node = roots[game]
        for step in range(lengths[game]):
            edge = paths[game, step]
            if tree.edge_visits[edge] == 0:
                tree.tried[node] += 1
            tree.visits[node] += 1
            tree.edge_visits[edge] += 1
            tree.edge_sum[edge] += results[game, tree.seat[node]]
            node = tree.child[edge]


@cached_kernel(FINGERPRINT)
def prove(tree: UctTree, games: Words, paths: Words, lengths: Words, results: Any) -> None:
    """Note the outcome of the finished *games* at the ends of their paths, and what follows from it."""
    for game in games:
        step = lengths[game] - 1
        edge = paths[game, step]
        tree.proven[edge] = True
        tree.outcome[edge] = results[game]
        while step > 0:
            above = paths[game, step - 1]
            decisive = proven_choice(tree, tree.child[above])
            if decisive < 0:
                break
            tree.proven[above] = True
            tree.outcome[above] = tree.outcome[decisive]
            step -= 1


@cached_kernel(FINGERPRINT)
def best_actions(tree: UctTree, roots: Words, out: Any) -> None:
    """Each root's action: a proven win, then most visits, then the better result; proven losses last."""
    for game in range(roots.shape[0]):
        node = roots[game]
        best = tree.first[node]
        for edge in range(best + 1, best + tree.tried[node]):
            if _is_better(tree, edge, best, tree.seat[node]):
                best = edge
        out[game] = tree.action[best]


@compiled
def _is_better(tree: UctTree, edge: int, other: int, seat: int) -> bool:
    outcome = tree.outcome[edge, seat] - tree.outcome[other, seat]  # 0 where nothing is proven
    visits = tree.edge_visits[edge] - tree.edge_visits[other]
    if outcome != 0:
        return outcome > 0
    if visits != 0:
        return visits > 0
    return tree.edge_sum[edge] > tree.edge_sum[other]
