"""How strong each participant of a config is, recomputed from all its matches.

A pool holds the matches of one number of players and one search setting: ratings of different pools have
nothing to do with each other. A model takes part under the hash of its weights, so no rating passes to
another file of the same name. One baseline, the random player, is pinned; the nominal ratings of the others
are only where the fit starts to believe (see docs/ratings.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import zip_longest
from math import hypot, inf, log2

import msgspec

from ringrift.learning.facts.records import Match
from ringrift.statistics.ratings import Z_95, Contest, JointFit, Prior, fit, rankings_among_copies

PINNED = "random"
BASELINES = frozenset({"random", "heuristic", "mcts"})
# Baselines are set by node count, never by time: a second's thought is worth more on a faster machine.
ANCHORS: Mapping[str, float] = {
    PINNED: 400.0,
    "heuristic": 1200.0,
    "mcts:32": 1500.0,
    "mcts:128": 1700.0,
    "mcts:512": 1900.0,
    "mcts:1024": 2000.0,
    "mcts:2048": 2100.0,
}
ELO_PER_DOUBLING = 100.0  # of the nodes, between the steps of the ladder
# A nominal rating was not measured on this board: it gives way to a handful of games.
ANCHOR_DEVIATION = 300.0
# More participants than this are rated in groups by age; what older groups came to is believed, with its
# error, and not fitted again.
GROUP_MAX = 200
GROUPS_KEPT = 64
RATED_KEPT = 16  # answers, of all configs together


class Pool(msgspec.Struct, frozen=True, order=True):
    """What makes ratings comparable, beside the config."""

    players: int
    simulations: int


class Rating(msgspec.Struct, frozen=True, kw_only=True):
    """A rating with its 95 % interval, and the games behind it."""

    rating: float
    low: float
    high: float
    games: int

    @property
    def deviation(self) -> float:
        return (self.high - self.low) / (2 * Z_95)


def is_baseline(participant: str) -> bool:
    """Whether it plays without a network, at a strength that never changes."""
    return participant.partition(":")[0] in BASELINES


def pools(matches: Iterable[Match]) -> dict[Pool, list[Match]]:
    """The trusted matches by pool. Baselines among themselves belong to every search setting."""
    found: dict[Pool, list[Match]] = {}
    shared: dict[int, list[Match]] = {}
    for match in matches:
        if match.recalled or match.games <= 0 or match.first == match.second:
            continue
        if is_baseline(match.first) and is_baseline(match.second):
            shared.setdefault(match.players, []).append(match)
        else:
            found.setdefault(Pool(match.players, match.simulations), []).append(match)
    for players, among_baselines in shared.items():
        ours = [pool for pool in found if pool.players == players] or [Pool(players, 0)]
        for pool in ours:
            found.setdefault(pool, []).extend(among_baselines)
    return found


def rate(
    matches: Sequence[Match], *, anchors: Mapping[str, float] = ANCHORS, pool: Pool | None = None
) -> dict[str, Rating]:
    """The ratings of *pool*, or of the pool of the newest match.

    The order of *matches* means nothing. Who has no chain of games to a baseline has no rating. Asking again
    for what was fitted before costs next to nothing, from whichever thread (see `RatingRefits`).
    """
    trusted = tuple(match for match in matches if not match.recalled)
    return dict(_rated(trusted, tuple(anchors.items()), pool).ratings)


def difference_errors(matches: Sequence[Match], one: str, others: Iterable[str]) -> dict[str, float]:
    """The standard error of how far each of *others* is from *one*, in the pool of the newest match.

    All must be rated. Those who are fitted together share most of their error; their difference does not
    have it.
    """
    trusted = tuple(match for match in matches if not match.recalled)
    rated = _rated(trusted, tuple(ANCHORS.items()), None)
    return {other: rated.difference_error(one, other) for other in others}


@dataclass(frozen=True, slots=True)
class _Rated:
    """The ratings of a pool, and the fits they came from: the oldest group first."""

    ratings: dict[str, Rating] = field(default_factory=dict)
    fits: Sequence[JointFit] = ()

    def difference_error(self, one: str, other: str) -> float:
        for found in reversed(self.fits):
            if one in found.estimates and other in found.estimates:
                return found.difference_deviation(one, other)
        # Of different groups, which are fitted one after the other: nothing is known of what they share.
        return hypot(self.ratings[one].deviation, self.ratings[other].deviation)


@lru_cache(maxsize=RATED_KEPT)
def _rated(matches: tuple[Match, ...], ladder: tuple[tuple[str, float], ...], pool: Pool | None) -> _Rated:
    found, anchors = pools(matches), dict(ladder)
    if not found:
        return _Rated()
    if pool is None:
        pool = max(found, key=lambda each: (max(match.at_s for match in found[each]), each))
    table = _added_up(found.get(pool, []))
    games: Counter[str] = Counter()
    for row in table:
        games[row.first] += row.games
        games[row.second] += row.games
    fits = _rate_in_groups(table, anchors)
    # A baseline is in every group; the newest knows it best.
    estimates = {name: each for fitted in fits for name, each in fitted.estimates.items()}
    ratings = {
        name: Rating(rating=each.rating, low=each.low, high=each.high, games=games[name])
        for name, each in estimates.items()
    }
    return _Rated(ratings, fits)


@dataclass(slots=True)
class _Row:
    """All matches of one participant with another."""

    first: str
    second: str
    players: int
    games: int = 0
    points: float = 0.0  # of the first and of the second, where two play
    points_against: float = 0.0
    places: list[int] = field(default_factory=list)  # where more do
    since_s: float = inf

    def contests(self) -> Iterable[Contest]:
        if self.players == 2:
            yield Contest((self.first, self.second), (1.0, 1.0), (self.points, self.points_against))
            return
        for ranking in rankings_among_copies(self.first, self.second, self.places):
            yield from ranking.contests()


def _added_up(matches: Iterable[Match]) -> list[_Row]:
    """Thousands of matches are a few hundred rows, and the fit is the same: results of one pair add up."""
    rows: dict[tuple[str, str], _Row] = {}
    for match in matches:
        pair = (match.first, match.second)
        row = rows.get(pair)
        if row is None:
            rows[pair] = row = _Row(match.first, match.second, match.players)
        row.since_s, row.games = min(row.since_s, match.at_s), row.games + match.games
        if match.players == 2:
            row.points += match.wins + match.draws / 2
            row.points_against += match.losses + match.draws / 2
        else:
            row.places = [sum(both) for both in zip_longest(row.places, match.places, fillvalue=0)]
    return list(rows.values())


def _rate_in_groups(table: Sequence[_Row], anchors: Mapping[str, float]) -> list[JointFit]:
    """Every row counts once, in the group of its younger participant."""
    born = _first_seen(table)
    fixed = tuple((name, value) for name, value in anchors.items() if name == PINNED)
    believed = {
        name: Prior(nominal, ANCHOR_DEVIATION)
        for name in born
        if name != PINNED and (nominal := _nominal(name, anchors)) is not None
    }
    age_order = sorted(born, key=lambda name: (name in believed, born[name], name))
    models = [name for name in age_order if name not in believed and name != PINNED]
    group_of = {name: at // GROUP_MAX for at, name in enumerate(models)}
    contests: dict[int, list[Contest]] = {}
    for row in table:
        group = max(group_of.get(row.first, 0), group_of.get(row.second, 0))
        contests.setdefault(group, []).extend(row.contests())
    fits: list[JointFit] = []
    for group in sorted(contests):
        ours = contests[group]
        here = {member for contest in ours for member in contest.members}
        priors = tuple((name, believed[name]) for name in age_order if name in here and name in believed)
        order = tuple(name for name in age_order if name in here)
        found = _fit_group(frozenset(Counter(ours).items()), fixed, priors, order)
        fits.append(found)
        believed |= {
            name: Prior(each.rating, each.deviation)
            for name, each in found.estimates.items()
            if each.deviation
        }
    return fits


@lru_cache(maxsize=GROUPS_KEPT)
def _fit_group(
    contests: frozenset[tuple[Contest, int]],
    fixed: tuple[tuple[str, float], ...],
    priors: tuple[tuple[str, Prior], ...],
    order: tuple[str, ...],
) -> JointFit:
    """Kept because the matches of an older group seldom change."""
    several = (contest for contest, times in contests for _ in range(times))
    return fit(several, fixed=dict(fixed), priors=dict(priors), order=order)


def _nominal(name: str, anchors: Mapping[str, float]) -> float | None:
    """The rating on the ladder; search baselines between its steps by the doublings of their nodes."""
    if name in anchors:
        return anchors[name]
    kind, _, nodes = name.partition(":")
    step = anchors.get("mcts:32")
    if kind != "mcts" or step is None or not nodes.isdecimal() or int(nodes) == 0:
        return None
    return step + ELO_PER_DOUBLING * log2(int(nodes) / 32)


def _first_seen(table: Iterable[_Row]) -> dict[str, float]:
    seen: dict[str, float] = {}
    for row in table:
        for name in (row.first, row.second):
            seen[name] = min(row.since_s, seen.get(name, inf))
    return seen
