"""The compiled tree of plain search: UCT over edges, one tree per game, all trees in flat arrays.

Node `game * nodes + k` is the k-th of its game. A node's edges are shuffled when it is made, so that the
first unvisited one is a random one. Edges hold the sum of results for the seat that chooses among them;
with more than two players every seat so maximises its own result.
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


def make_tree(nodes: int, edges: int) -> UctTree:
    return UctTree(
        first=np.zeros(nodes, dtype=np.int64),
        edges=np.zeros(nodes, dtype=np.int64),
        tried=np.zeros(nodes, dtype=np.int64),
        seat=np.zeros(nodes, dtype=np.int64),
        visits=np.zeros(nodes, dtype=np.int64),
        action=np.zeros(edges, dtype=np.int32),
        child=np.full(edges, NO_NODE, dtype=np.int64),
        edge_visits=np.zeros(edges, dtype=np.int64),
        edge_sum=np.zeros(edges),
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
    )


@compiled
def best_edge(tree: UctTree, node: int, explore: float) -> int:
    """The first edge not yet tried, else the one with the highest upper confidence bound."""
    first = tree.first[node]
    if tree.tried[node] < tree.edges[node]:
        return first + tree.tried[node]
    best, best_bound = first, -1e30
    logarithm = log(tree.visits[node])
    for edge in range(first, first + tree.edges[node]):
        visits = tree.edge_visits[edge]
        bound = tree.edge_sum[edge] / visits + explore * sqrt(logarithm / visits)
        if bound > best_bound:
            best, best_bound = edge, bound
    return best


@cached_kernel(FINGERPRINT)
def descend(tree: UctTree, roots: Words, explore: float, paths: Words, lengths: Words) -> None:
    """Write each tree's path of edges down to an edge without a child, or to a finished game."""
    for game in range(roots.shape[0]):
        node, length = roots[game], 0
        while node != NO_NODE and tree.edges[node] > 0:
            edge = best_edge(tree, node, explore)
            paths[game, length] = edge
            length += 1
            node = tree.child[edge]
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
def most_visited(tree: UctTree, roots: Words, out: Any) -> None:
    """Each root's action with most visits; the better result decides between equals."""
    for game in range(roots.shape[0]):
        first = tree.first[roots[game]]
        best = first
        for edge in range(first + 1, first + tree.tried[roots[game]]):
            more = tree.edge_visits[edge] - tree.edge_visits[best]
            if more > 0 or (more == 0 and tree.edge_sum[edge] > tree.edge_sum[best]):
                best = edge
        out[game] = tree.action[best]
