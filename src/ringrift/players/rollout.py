"""Plain Monte Carlo tree search: UCT, one random playout per simulation, and proofs where games end."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ringrift.errors import ConfigError
from ringrift.games.contract import ActionArray, Game, LegalActions, States
from ringrift.players.contract import Seeds, derived
from ringrift.players.uct_tree import (
    UctTree,
    Words,
    add_nodes,
    back_up,
    best_actions,
    descend,
    make_tree,
    prove,
    with_room,
)

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
