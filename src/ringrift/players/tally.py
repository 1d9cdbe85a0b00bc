"""Counting what a match has shown: wins and intervals for the first entrant, game by game and per opening."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log10, sqrt

from ringrift.players.sprt import PAIR_OUTCOMES

Z_95 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class GameRecord:
    """One finished game. *seats* holds the entrant in each seat; *opening_plies* of the moves were given."""

    opening: int
    rotation: int
    seed: int
    seats: tuple[int, ...]
    opening_plies: int
    moves: tuple[int, ...]
    results: tuple[float, ...]
    ranking: tuple[int, ...]

    def result_of(self, entrant: int) -> float:
        """Mean result over the seats of *entrant*."""
        own = [result for seat, result in zip(self.seats, self.results, strict=True) if seat == entrant]
        return sum(own) / len(own)


@dataclass(slots=True)
class Tally:
    """Results of entrant 0, counted opening by opening.

    A game counts as a win if its result lies above 0, the mean of all seats: with four players that is
    first or second place. *first_places* counts outright wins.
    """

    wins: int = 0
    draws: int = 0
    losses: int = 0
    first_places: int = 0
    pairs: list[int] = field(default_factory=lambda: [0] * PAIR_OUTCOMES)

    @property
    def games(self) -> int:
        return self.wins + self.draws + self.losses

    @property
    def score(self) -> float:
        """Share of the points; ½ before the first game."""
        return (self.wins + self.draws / 2) / self.games if self.games else 0.5

    @property
    def outcomes(self) -> list[int]:
        """Losses, draws, wins."""
        return [self.losses, self.draws, self.wins]

    @property
    def sprt_counts(self) -> list[int]:
        """Pairs where games come in pairs, else single games."""
        return self.pairs if sum(self.pairs) else self.outcomes

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the score."""
        return wilson_interval(self.score, self.games)

    def add_opening(self, records: Sequence[GameRecord]) -> None:
        """Count all games of one opening."""
        points = 0
        for record in records:
            result = record.result_of(0)
            self.wins += result > 0
            self.draws += result == 0
            self.losses += result < 0
            self.first_places += record.ranking[record.seats.index(0)] == 1
            points += 1 + (result > 0) - (result < 0)
        if len(records) == 2:
            self.pairs[points] += 1


def wilson_interval(share: float, count: int, *, z: float = Z_95) -> tuple[float, float]:
    """Wilson's interval for a share of *count* trials; (0, 1) for none."""
    if count == 0:
        return 0.0, 1.0
    centre = share + z * z / (2 * count)
    spread = z * sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def elo_difference(score: float) -> float:
    """The strength difference at which *score* is the expected share; infinite for 0 and 1."""
    if not 0 < score < 1:
        return float("inf") if score >= 1 else float("-inf")
    return 400 * log10(score / (1 - score))
