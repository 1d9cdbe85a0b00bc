"""What the games of one participant against another say, and the tests that end a match.

The job that plays a match and the plan that judges it ask the same questions of the same counts, so that a
match ends exactly when its result decides something.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ringrift.errors import ConfigError
from ringrift.statistics.ratings import place_chances, wilson_interval
from ringrift.statistics.sprt import (
    PAIR_OUTCOMES,
    SprtConfig,
    SprtState,
    Verdict,
    judged,
    ratio_of_means,
    sprt_state,
)

Z_99 = 2.5758293035489


@dataclass(slots=True)
class Evidence:
    """All games of one participant against another, added up."""

    players: int
    games: int = 0
    wins: int = 0
    draws: int = 0
    losses: int = 0
    pairs: list[int] = field(default_factory=lambda: [0] * PAIR_OUTCOMES)
    places: list[int] = field(default_factory=list)

    @property
    def score(self) -> float:
        """Share of the points; with more than two players of the places, from 1 for the first to 0."""
        if not self.games:
            return 0.5
        if self.players == 2:
            return (self.wins + self.draws / 2) / self.games
        return _mean_place(self.places) / self.games

    @property
    def win_share(self) -> float:
        """Share of the points for two players, of first places for more."""
        if not self.games:
            return 0.0
        return self.score if self.players == 2 else self.places[0] / self.games

    def state(self, test: SprtConfig) -> SprtState:
        """Pairs that share an opening are the unit where all games came in pairs."""
        if self.players != 2:
            counts = list(reversed(self.places)) or [0] * self.players
            means = [_mean_place(place_chances(elo, self.players)) for elo in (test.elo0, test.elo1)]
            return judged(test, ratio_of_means(counts, mean0=means[0], mean1=means[1]))
        if 2 * sum(self.pairs) == self.games:
            return sprt_state(test, self.pairs)
        return sprt_state(test, [self.losses, self.draws, self.wins])

    def add(self, other: Evidence) -> None:
        """Add the games of another match of the two."""
        self.games += other.games
        self.wins += other.wins
        self.draws += other.draws
        self.losses += other.losses
        self.pairs = [one + more for one, more in zip(self.pairs, other.pairs, strict=True)]
        if self.players > 2 and other.places:
            before = self.places or [0] * self.players
            self.places = [one + more for one, more in zip(before, other.places, strict=True)]

    def turned(self) -> Evidence:
        """The same games of two players for the other of them."""
        return Evidence(
            self.players,
            games=self.games,
            wins=self.losses,
            draws=self.draws,
            losses=self.wins,
            pairs=self.pairs[::-1],
        )


class MatchVerdict(StrEnum):
    """Where a test stands."""

    OPEN = "open"
    PASSED = "passed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class MatchJudgement:
    """What a test says of the games so far. *at_cap*: only because there are no more games to come."""

    verdict: MatchVerdict
    at_cap: bool = False


@dataclass(frozen=True, slots=True)
class SequentialTest:
    """Stronger by elo1, or by elo0 only? At *games_max* the likelier of the two counts."""

    config: SprtConfig
    games_max: int

    def result(self, found: Evidence) -> MatchJudgement:
        state = found.state(self.config)
        if state.verdict is Verdict.STRONGER:
            return MatchJudgement(MatchVerdict.PASSED)
        if state.verdict is Verdict.NOT_STRONGER:
            return MatchJudgement(MatchVerdict.FAILED)
        if found.games >= self.games_max:
            return MatchJudgement(MatchVerdict.PASSED if state.llr > 0 else MatchVerdict.FAILED, at_cap=True)
        return MatchJudgement(MatchVerdict.OPEN)


@dataclass(frozen=True, slots=True)
class FloorTest:
    """At least that share against an opponent that everybody should beat.

    Decided early when the 99 % interval lies on one side, else by the share at *games_max*.
    """

    share: float
    games_min: int
    games_max: int

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ConfigError(f"floor: a share from 0 to 1, not {self.share:g}")
        if not 0 < self.games_min <= self.games_max:
            raise ConfigError("floor: without games everything would pass")

    @property
    def games_decisive(self) -> int:
        """The fewest games that can pass it: all of them won."""
        games = self.games_min
        while games < self.games_max and wilson_interval(1.0, games, z=Z_99)[0] < self.share:
            games += 1
        return games

    def interval(self, found: Evidence) -> tuple[float, float]:
        return wilson_interval(found.win_share, found.games, z=Z_99)

    def result(self, found: Evidence) -> MatchJudgement:
        share, (low, high) = found.win_share, self.interval(found)
        if found.games >= self.games_min:
            if low >= self.share:
                return MatchJudgement(MatchVerdict.PASSED)
            if high < self.share:
                return MatchJudgement(MatchVerdict.FAILED)
        if found.games >= self.games_max:
            return MatchJudgement(
                MatchVerdict.PASSED if share >= self.share else MatchVerdict.FAILED, at_cap=True
            )
        return MatchJudgement(MatchVerdict.OPEN)


@dataclass(frozen=True, slots=True)
class AllGames:
    """No test: so many games are played, and nothing has to be shown."""

    games_max: int

    def result(self, found: Evidence) -> MatchJudgement:
        if found.games >= self.games_max:
            return MatchJudgement(MatchVerdict.PASSED, at_cap=True)
        return MatchJudgement(MatchVerdict.OPEN)


MatchTest = SequentialTest | FloorTest | AllGames


def _mean_place(places: Sequence[float]) -> float:
    """The sum of places, the first worth 1 and the last 0."""
    last = len(places) - 1
    return sum(count * (last - at) / last for at, count in enumerate(places))
