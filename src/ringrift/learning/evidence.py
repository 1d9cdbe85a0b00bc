"""The matches that speak for or against a participant, added up, and what the test says of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ringrift.learning.records import Match
from ringrift.statistics.plackett_luce import place_chances
from ringrift.statistics.sprt import PAIR_OUTCOMES, SprtConfig, SprtState, judged, ratio_of_means, sprt_state


@dataclass(slots=True)
class Evidence:
    """All trusted games of one participant against another."""

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


def gather(
    participant: str,
    opponent: str,
    matches: Sequence[Match],
    *,
    players: int,
    purpose: str,
    only: int | None = None,
) -> Evidence:
    """Add up what was played between the two for *purpose*, with *only* that many simulations if given.

    Matches for ratings count for a promotion too; those for a rollback answer another question. Among
    copies only the one who sat alone was tested.
    """
    found = Evidence(players, places=[0] * players if players > 2 else [])
    for match in matches:
        wanted = match.purpose == purpose or (purpose == "promotion" and match.purpose == "rating")
        if match.recalled or match.players != players or not wanted or only not in (None, match.simulations):
            continue
        if (match.first, match.second) == (participant, opponent):
            _add(found, match)
        elif (match.second, match.first) == (participant, opponent) and players == 2:
            _add_turned(found, match)
    return found


def _add(found: Evidence, match: Match) -> None:
    found.games += match.games
    found.wins += match.wins
    found.draws += match.draws
    found.losses += match.losses
    for at, count in enumerate(match.pairs or ()):
        found.pairs[at] += count
    if found.players > 2:
        for at, count in enumerate(match.places):
            found.places[at] += count


def _add_turned(found: Evidence, match: Match) -> None:
    found.games += match.games
    found.wins += match.losses
    found.draws += match.draws
    found.losses += match.wins
    for at, count in enumerate(reversed(match.pairs or ())):
        found.pairs[at] += count


def _mean_place(places: Sequence[float]) -> float:
    """The sum of places, the first worth 1 and the last 0."""
    last = len(places) - 1
    return sum(count * (last - at) / last for at, count in enumerate(places))
