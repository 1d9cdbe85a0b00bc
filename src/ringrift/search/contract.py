"""The contract between a search, whoever judges positions for it, and whoever uses what it found.

Values are per seat in [-1, 1], seats counted from 0. Everything about actions is flat, one game after the
other, and aligned with the legal actions of the game.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from ringrift.errors import ConfigError
from ringrift.games.contract import ActionArray, Game, LegalActions, States

Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]

SIMULATIONS_MAX = 1_000_000
SURPRISE_MAX = 100.0
LEAVES_MAX = 1024


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What an evaluator thinks of a batch of positions."""

    logits: Floats  # as many as legal actions, in their order
    values: Floats  # games x players, per seat


class Interrupted(Exception):
    """An evaluator was asked to leave the search that it judges for; what was searched of it is lost."""


class Evaluator(Protocol):
    """Judges positions. It may raise `Interrupted` where whoever uses the search expects it.

    What it says of a position must not depend on the rest of the batch: a search is deterministic for its
    seed only as far as its evaluator is.
    """

    def evaluate(self, states: States, legal: LegalActions) -> Evaluation:
        """Judge running games, at least one; finished games are never asked about."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchConfig:
    """How to search. The defaults suit self-play with few simulations."""

    simulations: int = 64
    root: Literal["gumbel", "puct"] = "gumbel"
    # Gumbel: actions tried at the root, and how much values weigh against the policy.
    considered: int = 16
    c_visit: float = 50.0
    c_scale: float = 0.1
    rescale: bool = True  # stretch the values seen at a node to [0, 1]; else they keep their full range
    prove: bool = True  # what follows from finished games in the tree is exact, and not searched again
    # PUCT: exploration, the value of actions not tried yet, noise on the root's policy.
    c_puct: float = 1.5
    fpu_reduction: float = 0.25
    noise_weight: float = 0.25
    noise_alpha: float | None = None  # None: 10 divided by the number of legal actions
    leaves: int = 1  # leaves per game and wave; while a leaf waits for its value it counts as lost
    tree_reuse: bool = False

    def __post_init__(self) -> None:
        limits: tuple[tuple[str, float, float, float], ...] = (
            ("simulations", self.simulations, 1, SIMULATIONS_MAX),
            ("considered", self.considered, 1, SIMULATIONS_MAX),
            ("c_visit", self.c_visit, 0, 1e6),
            ("c_scale", self.c_scale, 0, 1e6),
            ("c_puct", self.c_puct, 0, 1e6),
            ("fpu_reduction", self.fpu_reduction, 0, 2),
            ("noise_weight", self.noise_weight, 0, 1),
            ("noise_alpha", 1 if self.noise_alpha is None else self.noise_alpha, 1e-3, 1e3),
            ("leaves", self.leaves, 1, LEAVES_MAX),
        )
        for name, value, low, high in limits:
            if not low <= value <= high:
                raise ConfigError(f"search: {name} must be {low:g} to {high:g}, not {value:g}")
        if self.root not in ("gumbel", "puct"):
            raise ConfigError(f"search: root must be 'gumbel' or 'puct', not {self.root!r}")


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What the searches of some games found, in the order in which the games were named."""

    actions: ActionArray  # the action to play; -1 where the game is over
    legal: LegalActions
    policy: Floats  # target of training, aligned with `legal.actions`, sums to 1 in each running game
    visits: npt.NDArray[np.int32]  # aligned with `legal.actions`
    root_values: Floats  # games x players: what the position is worth to each seat, by this search
    simulations: npt.NDArray[np.int32]  # made in this search, per game
    surprise: Floats  # per game: how far the policy is from the evaluator's, at most SURPRISE_MAX


# Evaluators that need no network.


class UniformEvaluator:
    """Knows nothing: every action is as good as any other and every position even."""

    def __init__(self, game: Game) -> None:
        self._players = game.players

    def evaluate(self, states: States, legal: LegalActions) -> Evaluation:
        return Evaluation(
            logits=np.zeros(len(legal.actions), dtype=np.float32),
            values=np.zeros((len(states), self._players), dtype=np.float32),
        )
