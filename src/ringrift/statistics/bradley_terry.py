"""Ratings from games between two: Bradley and Terry's model, all results at once. See `choices`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ringrift.statistics.choices import EQUAL_RESULTS, Contest, Estimate, Prior, fit


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
