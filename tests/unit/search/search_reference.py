"""The search once more, in plain Python: one game, one simulation after the other, as papers describe it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from ringrift.games.contract import Game, State
from ringrift.search.contract import Evaluator, SearchConfig
from ringrift.search.core.rooting import gumbel, move_key


@dataclass
class Node:
    state: State
    mover: int
    raw: list[float]
    actions: list[int]
    logits: list[float]
    visits: list[int] = field(default_factory=list)
    totals: list[list[float]] = field(default_factory=list)
    children: dict[int, Node] = field(default_factory=dict)

    @property
    def priors(self) -> list[float]:
        return softmax(self.logits)

    def q(self, edge: int) -> float:
        return self.totals[edge][self.mover] / self.visits[edge]


def softmax(scores: list[float]) -> list[float]:
    weights = [math.exp(score - max(scores)) for score in scores]
    return [weight / sum(weights) for weight in weights]


def make_node(game: Game, evaluator: Evaluator, state: State) -> Node:
    states = state[None, :]
    mover = int(game.to_move(states)[0])
    legal = game.legal(states)
    if not len(legal.actions):
        return Node(state, mover, game.results(states)[0].tolist(), [], [])
    said = evaluator.evaluate(states, legal)
    count = len(legal.actions)
    return Node(
        state,
        mover,
        said.values[0].tolist(),
        legal.actions.tolist(),
        said.logits.tolist(),
        [0] * count,
        [[0.0] * game.players for _ in range(count)],
    )


def completed(node: Node, config: SearchConfig) -> list[float]:
    """Logits plus scaled values, the mixed value in place of unknown ones."""
    tried = [edge for edge, visits in enumerate(node.visits) if visits]
    mixed = node.raw[node.mover]
    if tried:
        prior = sum(node.priors[edge] for edge in tried)
        mean = sum(node.priors[edge] * node.q(edge) for edge in tried) / prior
        total = sum(node.visits)
        mixed = (mixed + total * mean) / (1 + total)
    values = [node.q(edge) if node.visits[edge] else mixed for edge in range(len(node.actions))]
    low, high = (min(values), max(values)) if config.rescale else (-1.0, 1.0)
    scale = (config.c_visit + max(node.visits)) * config.c_scale
    spread = max(high - low, 1e-8)
    return [logit + scale * (value - low) / spread for logit, value in zip(node.logits, values, strict=True)]


def gumbel_edge(node: Node, config: SearchConfig) -> int:
    policy = softmax(completed(node, config))
    total = sum(node.visits)
    scores = [share - visits / (1 + total) for share, visits in zip(policy, node.visits, strict=True)]
    return scores.index(max(scores))


def puct_edge(node: Node, value: float, config: SearchConfig) -> int:
    tried_prior = sum(prior for prior, visits in zip(node.priors, node.visits, strict=True) if visits)
    untried = value - config.fpu_reduction * math.sqrt(tried_prior)
    reach = config.c_puct * math.sqrt(max(sum(node.visits), 1))
    scores = [
        (node.q(edge) if node.visits[edge] else untried) + reach * node.priors[edge] / (1 + node.visits[edge])
        for edge in range(len(node.actions))
    ]
    return scores.index(max(scores))


def considered_visits(considered: int, simulations: int) -> list[int]:
    """For each simulation, how often the action to try must have been tried before."""
    if considered <= 1:
        return list(range(simulations))
    levels = math.ceil(math.log2(considered))
    sequence: list[int] = []
    visits = [0] * considered
    while len(sequence) < simulations:
        for _ in range(max(1, simulations // (levels * considered))):
            sequence += visits[:considered]
            visits = [count + 1 if at < considered else count for at, count in enumerate(visits)]
        considered = max(2, considered // 2)
    return sequence[:simulations]


class Reference:
    """One search from one position."""

    def __init__(
        self, game: Game, evaluator: Evaluator, config: SearchConfig, state: State, seed: int, ply: int = 0
    ) -> None:
        self.game, self.evaluator, self.config = game, evaluator, config
        self.root = make_node(game, evaluator, state)
        self.value = list(self.root.raw)
        key = np.uint64(move_key(seed, ply))
        self.noise = [gumbel(key, edge) for edge in range(len(self.root.actions))]

    def run(self, temperature: float) -> int:
        """Search; returns the chosen edge."""
        self.noise = [temperature * noise for noise in self.noise]
        count = len(self.root.actions)
        considered = min(self.config.considered, count, self.config.simulations)
        for wanted in considered_visits(considered, self.config.simulations):
            edge = None
            if self.config.root == "gumbel":
                scores = self.root_scores()
                allowed = [edge for edge in range(count) if self.root.visits[edge] == wanted]
                edge = max(allowed, key=lambda edge: (scores[edge], -edge))
            self.simulate(self.root, edge, self.value, sum(self.root.visits) + 1)
        if self.config.root == "puct":
            return max(range(count), key=lambda e: (self.root.visits[e], self.root.priors[e], -e))
        most = max(self.root.visits)
        scores = self.root_scores()
        return max((e for e in range(count) if self.root.visits[e] == most), key=lambda e: (scores[e], -e))

    def root_scores(self) -> list[float]:
        scores = completed(self.root, self.config)
        return [score + noise for score, noise in zip(scores, self.noise, strict=True)]

    def simulate(self, node: Node, edge: int | None, totals: list[float], visits: int) -> list[float]:
        """One simulation through *node*, whose visits had these *totals*; returns what it is worth."""
        if not node.actions:
            return node.raw
        if edge is None:
            mean = totals[node.mover] / visits
            gumbel_root = self.config.root == "gumbel"
            edge = gumbel_edge(node, self.config) if gumbel_root else puct_edge(node, mean, self.config)
        if edge not in node.children:
            states = node.state[None, :].copy()
            self.game.apply(states, np.array([node.actions[edge]], dtype=np.int32))
            node.children[edge] = make_node(self.game, self.evaluator, states[0])
            worth = node.children[edge].raw
        else:
            worth = self.simulate(node.children[edge], None, node.totals[edge], node.visits[edge])
        node.visits[edge] += 1
        node.totals[edge] = [total + value for total, value in zip(node.totals[edge], worth, strict=True)]
        if node is self.root:
            self.value = [total + value for total, value in zip(self.value, worth, strict=True)]
        return worth

    def values(self) -> list[float]:
        """What the position is worth to each seat."""
        if self.config.root == "puct":
            return [total / (1 + self.config.simulations) for total in self.value]
        tried = [edge for edge, visits in enumerate(self.root.visits) if visits]
        policy = self.policy()
        weight = sum(policy[edge] for edge in tried)
        return [
            sum(policy[edge] * self.root.totals[edge][seat] / self.root.visits[edge] for edge in tried)
            / weight
            for seat in range(self.game.players)
        ]

    def policy(self) -> list[float]:
        if self.config.root == "puct":
            return [visits / sum(self.root.visits) for visits in self.root.visits]
        return softmax(completed(self.root, self.config))
