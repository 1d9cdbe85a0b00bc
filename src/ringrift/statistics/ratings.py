"""Ratings from results, all at once: of games between two by Bradley and Terry's model, of placings of
several by Plackett and Luce's. See `choices`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ringrift.errors import ConfigError
from ringrift.statistics.choices import EQUAL_RESULTS, Contest, Estimate, Prior, fit

# Ratings from games between two: Bradley and Terry's model, all results at once. See `choices`.


@dataclass(frozen=True, slots=True)
class PairResult:
    """Games between two, counted for the first. A draw is half a win for each."""

    first: str
    second: str
    wins: float
    draws: float
    losses: float

    def contest(self) -> Contest:
        half = self.draws / 2
        return Contest((self.first, self.second), (1, 1), (self.wins + half, self.losses + half))


def rate_pairs(
    results: Iterable[PairResult],
    *,
    fixed: Mapping[str, float],
    priors: Mapping[str, Prior] | None = None,
    order: Sequence[str] = (),
    equal_results: float = EQUAL_RESULTS,
) -> dict[str, Estimate]:
    """Ratings of all who are linked to somebody *fixed* or with a prior; *fixed* ratings stay exactly."""
    contests = (each.contest() for each in results)
    return fit(contests, fixed=fixed, priors=priors, order=order, equal_results=equal_results)


# Ratings from placings of several: Plackett and Luce's model, all results at once. See `choices`.
#
# The first place goes to one of all, the second to one of the rest, and so on; each time with a chance in
# proportion to strength.


@dataclass(frozen=True, slots=True)
class Ranking:
    """Who came first, second and so on, and how often exactly so. Copies of one may take several places."""

    order: tuple[str, ...]
    count: float = 1.0

    def contests(self) -> Iterable[Contest]:
        """One per place that was still open between different participants."""
        for place, chosen in enumerate(self.order):
            left = Counter(self.order[place:])
            if len(left) > 1:
                members = tuple(left)
                yield Contest(
                    members,
                    tuple(float(left[member]) for member in members),
                    tuple(self.count if member == chosen else 0.0 for member in members),
                )


def rate_rankings(
    rankings: Iterable[Ranking],
    *,
    fixed: Mapping[str, float],
    priors: Mapping[str, Prior] | None = None,
    order: Sequence[str] = (),
    equal_results: float = EQUAL_RESULTS,
) -> dict[str, Estimate]:
    """Ratings of all who are linked to somebody *fixed* or with a prior; *fixed* ratings stay exactly."""
    contests = (contest for ranking in rankings for contest in ranking.contests())
    return fit(contests, fixed=fixed, priors=priors, order=order, equal_results=equal_results)


def rankings_among_copies(one: str, others: str, places: Sequence[int]) -> list[Ranking]:
    """The rankings of *one* that came first, second, … so often among copies of *others*."""
    if one == others:
        raise ConfigError(f"{one} among copies of itself says nothing")
    copies = len(places) - 1
    return [
        Ranking((others,) * place + (one,) + (others,) * (copies - place), count)
        for place, count in enumerate(places)
        if count
    ]


def place_chances(elo: float, players: int) -> list[float]:
    """How likely somebody *elo* stronger than all the others comes first, second, … last."""
    strength: float = 10 ** (elo / 400)
    chances, left = [], 1.0
    for others in range(players - 1, 0, -1):
        ahead = left * strength / (strength + others)
        chances.append(ahead)
        left -= ahead
    return [*chances, left]
