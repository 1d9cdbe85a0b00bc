"""Plain Monte Carlo tree search: UCT, one random playout per simulation, and proofs where games end."""

from __future__ import annotations

from math import log, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ringrift.errors import ConfigError
from ringrift.games.compiled import cached_kernel, compiled, source_fingerprint
from ringrift.games.contract import ActionArray, Game, LegalActions, States
from ringrift.players.contract import Seeds, derived

# --- the tree -----------------------------------------------------------------------------------------
#
# The compiled tree of plain search: UCT over edges, one tree per game, all trees in flat arrays.
#
# Node `game * nodes + k` is the k-th of its game. A node's edges are shuffled when it is made, so that the
# first unvisited one is a random one. Edges hold the sum of results for the seat that chooses among them;
# with more than two players every seat so maximizes its own result.
#
# What is certain is not sampled: an edge into a finished game is proven, and so is an edge into a node where
# the seat on turn has a proven win, or only proven edges to choose from.


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


# --- the player ---------------------------------------------------------------------------------------


SIMULATIONS_MAX = 1_000_000
STATE_BYTES_MAX = 256 << 20  # states of all nodes of all trees searched at once
PLAYOUT, SHUFFLE = 0, 1  # streams of a game's seed


class RolloutPlayer:
    """Searches *simulations* per decision and plays a proven win, or the most visited action."""

    def __init__(self, game: Game, *, simulations: int, explore: float = 1.4) -> None:
        if not 1 <= simulations <= SIMULATIONS_MAX:
            raise ConfigError(f"mcts needs 1 to {SIMULATIONS_MAX} simulations, not {simulations}")
        self.name = f"mcts:{simulations}"
        self._game, self._simulations, self._explore = game, simulations, explore
        self._games_max = max(1, STATE_BYTES_MAX // (8 * game.words * (simulations + 1)))

    def choose(self, states: States, seeds: Seeds) -> ActionArray:
        legal = self._game.legal(states)
        chosen = legal.actions[legal.offsets[:-1]].copy()
        free = np.flatnonzero(legal.counts > 1)
        for start in range(0, free.size, self._games_max):
            part = free[start : start + self._games_max]
            search = _Search(self._game, states[part], seeds[part], self._simulations)
            chosen[part] = search.run(self._explore)
        return chosen


class _Search:
    """Trees of one batch of games, grown by one simulation each at a time."""

    def __init__(self, game: Game, states: States, seeds: Seeds, simulations: int) -> None:
        games = len(states)
        self._game, self._seeds, self._simulations = game, seeds, simulations
        self._roots = np.arange(games, dtype=np.int64) * (simulations + 1)
        self._states = np.empty((games * (simulations + 1), game.words), dtype=np.int64)
        self._states[self._roots] = states
        self._tree: UctTree = make_tree(len(self._states), game.players)
        self._edges = 0
        self._playouts, self._shuffles = derived(seeds, PLAYOUT), derived(seeds, SHUFFLE)
        self._add(self._roots, game.legal(states), self._shuffles)

    def run(self, explore: float) -> ActionArray:
        for simulation in range(1, self._simulations + 1):
            self._simulate(simulation, explore)
        chosen = np.empty(len(self._roots), dtype=np.int32)
        best_actions(self._tree, self._roots, chosen)
        return chosen

    def _add(self, nodes: Words, legal: LegalActions, shuffles: Seeds) -> None:
        self._tree = with_room(self._tree, self._edges + len(legal.actions))
        self._tree.seat[nodes] = self._game.to_move(self._states[nodes])
        add_nodes(self._tree, nodes, self._edges, legal.offsets, legal.actions, shuffles)
        self._edges += len(legal.actions)

    def _simulate(self, simulation: int, explore: float) -> None:
        paths = np.empty((len(self._roots), simulation), dtype=np.int64)
        lengths = np.empty(len(self._roots), dtype=np.int64)
        descend(self._tree, self._roots, explore, paths, lengths)
        last = paths[np.arange(len(paths)), lengths - 1]
        results = self._tree.outcome[last]
        fresh = np.flatnonzero(~self._tree.proven[last])
        if fresh.size:
            ends = self._grow(paths, lengths, last, fresh, simulation)
            over = self._game.terminal(ends)
            self._play_out(ends, over, derived(self._playouts[fresh], simulation))
            results[fresh] = self._game.results(ends)
            prove(self._tree, fresh[over], paths, lengths, results)
        back_up(self._tree, self._roots, paths, lengths, results)

    def _grow(self, paths: Words, lengths: Words, last: Words, fresh: Words, simulation: int) -> States:
        """Make the nodes that the last edges of the *fresh* games lead to; returns their states."""
        parents = self._roots[fresh].copy()
        deeper = np.flatnonzero(lengths[fresh] > 1)
        games = fresh[deeper]
        parents[deeper] = self._tree.child[paths[games, lengths[games] - 2]]
        states = self._states[parents]
        self._game.apply(states, self._tree.action[last[fresh]], trusted=True)
        nodes = self._roots[fresh] + simulation
        self._states[nodes] = states
        self._add(nodes, self._game.legal(states), derived(self._shuffles[fresh], simulation))
        self._tree.child[last[fresh]] = nodes
        return states

    def _play_out(self, states: States, over: npt.NDArray[np.bool_], seeds: Seeds) -> None:
        """Random games to the end, each from its own seed, so that the batch does not matter."""
        for game in np.flatnonzero(~over):
            self._game.play_random(states[game : game + 1], seed=int(seeds[game]))
