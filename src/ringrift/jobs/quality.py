"""How much a game is worth as teaching material: five parts of a score from 0 to 1.

Outcome, length, balance of phases, difference from the other games, and whether the source is known. It
orders and reports; it decides nothing about what is right, which is the replay's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log

import numpy as np

from ringrift.games.contract import ActionArray

WEIGHTS = {"outcome": 0.25, "length": 0.25, "phases": 0.20, "diversity": 0.15, "source": 0.15}
DECISIVE, DRAWN = 1.0, 0.3
UNKNOWN_PART = 0.7
SOURCE_KNOWN, SOURCE_UNKNOWN = 0.8, 0.5
CATEGORIES = ((0.9, "excellent"), (0.7, "good"), (0.5, "fair"), (0.0, "poor"))


@dataclass(frozen=True, slots=True)
class GameTraits:
    """What the score looks at."""

    decisive: bool
    actions: ActionArray
    kinds: tuple[str, ...]  # phase or type of each move
    source_known: bool


def quality_score(traits: GameTraits, *, optimal_moves: float, diversity: float) -> float:
    moves = len(traits.actions)
    parts = {
        "outcome": DECISIVE if traits.decisive else DRAWN,
        "length": min(moves / optimal_moves, optimal_moves / moves),
        "phases": phase_balance(traits.kinds),
        "diversity": diversity,
        "source": SOURCE_KNOWN if traits.source_known else SOURCE_UNKNOWN,
    }
    return sum(WEIGHTS[name] * value for name, value in parts.items())


def quality_category(score: float) -> str:
    return next(name for least, name in CATEGORIES if score >= least)


def phase_balance(kinds: Sequence[str]) -> float:
    """Evenness of the kinds of moves: 1 if all are as frequent; a game of one kind cannot tell."""
    counts = Counter(kinds)
    if len(counts) < 2:
        return UNKNOWN_PART
    shares = [count / len(kinds) for count in counts.values()]
    return -sum(share * log(share) for share in shares) / log(len(counts))


def diversities(games: Sequence[ActionArray]) -> list[float]:
    """Per game, the share of its moves that come after it parted from every other game."""
    if len(games) < 2:
        return [UNKNOWN_PART] * len(games)
    order = sorted(range(len(games)), key=lambda at: games[at].tolist())
    shared = [0] * len(games)
    for left, right in pairwise(order):
        common = _common_moves(games[left], games[right])
        shared[left], shared[right] = max(shared[left], common), max(shared[right], common)
    return [1 - count / len(actions) for count, actions in zip(shared, games, strict=True)]


def _common_moves(one: ActionArray, other: ActionArray) -> int:
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if different.size else length
