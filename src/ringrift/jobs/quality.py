"""How much a game is worth as teaching material: five parts of a score from 0 to 1.

Outcome, length, balance of phases, difference from the other games, and whether the source is known. It
orders and reports; it decides nothing about what is right, which is the replay's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log
from statistics import fmean

import numpy as np

from ringrift.games.contract import ActionArray
from ringrift.jobs.scratch import scratch_database

WEIGHTS = {"outcome": 0.25, "length": 0.25, "phases": 0.20, "diversity": 0.15, "source": 0.15}
DECISIVE, DRAWN = 1.0, 0.3
UNKNOWN_PART = 0.7
SOURCE_KNOWN, SOURCE_UNKNOWN = 0.8, 0.5
CATEGORIES = ((0.9, "excellent"), (0.7, "good"), (0.5, "fair"), (0.0, "poor"))
ACTION_TYPE = ">i4"  # big end first, so that bytes sort as the actions do

_TABLES = """
CREATE TABLE games (
  number INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  rows INTEGER NOT NULL,
  moves INTEGER NOT NULL,
  fixed REAL NOT NULL,  -- the parts of the score that need no other game
  actions BLOB NOT NULL,
  shared INTEGER NOT NULL DEFAULT 0  -- first moves that the most similar other game has too
);
CREATE INDEX by_actions ON games (actions);
CREATE INDEX by_moves ON games (moves);
"""


@dataclass(frozen=True, slots=True)
class GameTraits:
    """What the score looks at."""

    decisive: bool
    actions: ActionArray
    kinds: Sequence[str]  # phase or type of each move
    source_known: bool


@dataclass(frozen=True, slots=True)
class ScoredGame:
    """A game and its score."""

    name: str
    rows: int
    quality: float


def quality_category(score: float) -> str:
    return next(name for least, name in CATEGORIES if score >= least)


def phase_balance(kinds: Sequence[str]) -> float:
    """Evenness of the kinds of moves: 1 if all are as frequent; a game of one kind cannot tell."""
    counts = Counter(kinds)
    if len(counts) < 2:
        return UNKNOWN_PART
    shares = [count / len(kinds) for count in counts.values()]
    return -sum(share * log(share) for share in shares) / log(len(counts))


class QualityScores:
    """Scores games against each other, as many as there are; a context manager."""

    def __init__(self) -> None:
        self._db = scratch_database(_TABLES)

    def __enter__(self) -> QualityScores:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def __len__(self) -> int:
        count: int = self._db.execute("SELECT count(*) FROM games").fetchone()[0]
        return count

    def add(self, name: str, traits: GameTraits, *, rows: int) -> None:
        fixed = {
            "outcome": DECISIVE if traits.decisive else DRAWN,
            "phases": phase_balance(traits.kinds),
            "source": SOURCE_KNOWN if traits.source_known else SOURCE_UNKNOWN,
        }
        self._db.execute(
            "INSERT INTO games (name, rows, moves, fixed, actions) VALUES (?, ?, ?, ?, ?)",
            (
                name,
                rows,
                len(traits.actions),
                sum(WEIGHTS[part] * value for part, value in fixed.items()),
                traits.actions.astype(ACTION_TYPE).tobytes(),
            ),
        )

    def scored(self, optimal_moves: float | None = None) -> Iterator[ScoredGame]:
        """Every game in the order in which they came; *optimal_moves* is their median if not given."""
        count = len(self)
        if not count:
            return
        self._compare()
        optimal = optimal_moves or self._median_moves(count)
        found = self._db.execute("SELECT name, rows, moves, fixed, shared FROM games ORDER BY number")
        for name, rows, moves, fixed, shared in found:
            length = min(moves / optimal, optimal / moves)
            diversity = 1 - shared / moves if count > 1 else UNKNOWN_PART
            score = fixed + WEIGHTS["length"] * length + WEIGHTS["diversity"] * diversity
            yield ScoredGame(name, rows, round(score, 4))

    def _compare(self) -> None:
        """Note how far each game went with another; its most similar one stands beside it when sorted."""
        before: tuple[int, bytes] | None = None
        longest = "UPDATE games SET shared = max(shared, ?) WHERE number = ?"
        for number, actions in self._db.execute("SELECT number, actions FROM games ORDER BY actions"):
            if before is not None:
                common = common_moves(before[1], actions)
                self._db.executemany(longest, [(common, before[0]), (common, number)])
            before = (number, actions)

    def _median_moves(self, count: int) -> float:
        middle = "SELECT moves FROM games ORDER BY moves LIMIT ? OFFSET ?"
        found = self._db.execute(middle, (2 - count % 2, (count - 1) // 2))
        return fmean(row[0] for row in found)


def common_moves(one: bytes, other: bytes) -> int:
    """How many first actions two games share."""
    length = min(len(one), len(other))
    left, right = (np.frombuffer(content[:length], ACTION_TYPE) for content in (one, other))
    different = np.flatnonzero(left != right)
    return int(different[0]) if different.size else len(left)
