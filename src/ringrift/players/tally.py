"""Counting what a match has shown: wins and intervals for the first entrant, game by game and per opening."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ringrift.statistics.shares import wilson_interval
from ringrift.statistics.sprt import PAIR_OUTCOMES


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
    first or second place. *first_places* counts outright wins. *places* counts first, second, … place; of
    places that several share, the seats take turns in getting the better one.
    """

    wins: int = 0
    draws: int = 0
    losses: int = 0
    first_places: int = 0
    pairs: list[int] = field(default_factory=lambda: [0] * PAIR_OUTCOMES)
    places: list[int] = field(default_factory=list)

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
            self._count_place(record)
            points += 1 + (result > 0) - (result < 0)
        if len(records) == 2:
            self.pairs[points] += 1

    def _count_place(self, record: GameRecord) -> None:
        if not self.places:
            self.places = [0] * len(record.seats)
        rank = record.ranking[record.seats.index(0)]
        shared = record.ranking.count(rank)
        # A game that was cut off has no ranks; all its seats are equal.
        self.places[max(rank, 1) - 1 + (record.opening + record.rotation) % shared] += 1
