"""How strong each participant of a config is, and where that goes: ratings, the trend of a window of
measurements, whether a config has stopped getting stronger, and how far it has fallen behind its best. Pure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from functools import lru_cache
from itertools import pairwise, zip_longest
from math import hypot, inf, log2, sqrt
from statistics import fmean
from typing import Protocol

import msgspec

from ringrift.health.run_status import Curve
from ringrift.learning.facts.records import Match
from ringrift.statistics.ratings import Z_95, Contest, JointFit, Prior, fit, rankings_among_copies

# Ratings, recomputed from all matches. A pool holds the matches of one number of players and one search
# setting: ratings of different pools have nothing to do with each other. A model takes part under the hash
# of its weights, so no rating passes to another file of the same name. One baseline, the random player, is
# pinned; the nominal ratings of the others are only where the fit starts to believe (see docs/ratings.md).


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


# What a window of measurements says: trend, plateau, regression, anomaly.
#
# Slopes come from a regression around the means, with the error of the slope. Raw epoch seconds have ten
# digits before the point; unless they are centered first, a slope over a minute is lost in rounding.


WINDOW_POINTS = 100
PLATEAU_POINTS = 10
PLATEAU_GAIN = 0.001
REGRESSION_SHARE = 0.05  # off the best
ANOMALY_SD = 3.0
ANOMALY_POINTS_MIN = 10
SIGNIFICANT = 1.96  # errors that a slope must be away from 0


class TrendDirection(StrEnum):
    """Where a metric goes."""

    IMPROVING = "improving"
    DEGRADING = "degrading"
    STABLE = "stable"  # no slope that stands out from the noise
    PLATEAU = "plateau"  # the best is old
    UNKNOWN = "unknown"  # too few points


@dataclass(frozen=True, slots=True)
class Line:
    """A fitted line: value at the mean of x, slope, and the standard error of the slope."""

    slope: float
    error: float
    mean_x: float
    mean_y: float
    points: int

    @property
    def significance(self) -> float:
        """How many errors the slope is from 0."""
        if self.slope == 0.0:
            return 0.0
        return math.copysign(math.inf, self.slope) if self.error == 0.0 else self.slope / self.error


def fit_line(xs: Sequence[float], ys: Sequence[float], errors: Sequence[float] | None = None) -> Line | None:
    """Fit a line around the means; None if the points have no width in x.

    *errors* are the standard errors of *ys*. The slope's error is then at least what they alone make.
    """
    count = len(xs)
    if count < 2 or len(ys) != count:
        return None
    weights = [1.0] * count if errors is None else [1.0 / max(error, 1e-9) ** 2 for error in errors]
    total = math.fsum(weights)
    mean_x = xs[0] + math.fsum(w * (x - xs[0]) for w, x in zip(weights, xs, strict=True)) / total
    mean_y = math.fsum(w * y for w, y in zip(weights, ys, strict=True)) / total
    width = math.fsum(w * (x - mean_x) ** 2 for w, x in zip(weights, xs, strict=True))
    if width <= 0.0 or not math.isfinite(width):
        return None
    shared = math.fsum(w * (x - mean_x) * (y - mean_y) for w, x, y in zip(weights, xs, ys, strict=True))
    slope = shared / width
    left = math.fsum(
        w * (y - mean_y - slope * (x - mean_x)) ** 2 for w, x, y in zip(weights, xs, ys, strict=True)
    )
    scatter = math.sqrt(left / (count - 2) / width) if count > 2 else math.inf
    known = math.sqrt(1.0 / width) if errors is not None else 0.0
    return Line(
        slope, known if count == 2 and errors is not None else max(scatter, known), mean_x, mean_y, count
    )


@dataclass(frozen=True, slots=True)
class WindowAnalysis:
    """Everything a window says at once."""

    points: int
    current: float | None
    best: float | None
    direction: TrendDirection
    slope: float  # per unit of the given times, or per point
    slope_error: float
    points_since_best: int
    is_plateau: bool
    is_regression: bool
    regression_share: float  # how far the newest value is off the best, as a share of it
    is_anomaly: bool
    deviations: float  # of the newest value from the ones before it, in standard deviations


def analyse(
    values: Sequence[float], times: Sequence[float] | None = None, *, higher_is_better: bool = True
) -> WindowAnalysis:
    """Judge the last `WINDOW_POINTS` of *values*, oldest first."""
    window = list(values[-WINDOW_POINTS:])
    when = list(times[-WINDOW_POINTS:]) if times is not None else [float(at) for at in range(len(window))]
    if not window:
        return WindowAnalysis(
            0, None, None, TrendDirection.UNKNOWN, 0.0, 0.0, 0, False, False, 0.0, False, 0.0
        )
    best, since = _best(window, higher_is_better=higher_is_better)
    line = fit_line(when, window)
    off = regression_share(window, higher_is_better=higher_is_better)
    flat = since >= PLATEAU_POINTS
    deviations = deviation(window)
    return WindowAnalysis(
        points=len(window),
        current=window[-1],
        best=best,
        direction=_direction(line, flat=flat, higher_is_better=higher_is_better),
        slope=line.slope if line else 0.0,
        slope_error=line.error if line and math.isfinite(line.error) else 0.0,
        points_since_best=since,
        is_plateau=flat,
        is_regression=off > REGRESSION_SHARE,
        regression_share=off,
        is_anomaly=abs(deviations) > ANOMALY_SD,
        deviations=deviations,
    )


def trend(
    values: Sequence[float], times: Sequence[float] | None = None, *, higher_is_better: bool = True
) -> TrendDirection:
    return analyse(values, times, higher_is_better=higher_is_better).direction


def is_plateau(values: Sequence[float], *, higher_is_better: bool = True) -> bool:
    """Whether the last ten points brought no gain of a thousandth."""
    return _best(values[-WINDOW_POINTS:], higher_is_better=higher_is_better)[1] >= PLATEAU_POINTS


def regression_share(values: Sequence[float], *, higher_is_better: bool = True) -> float:
    """How far the newest value is off the best one, as a share of it; 0 at the best."""
    if not values:
        return 0.0
    best = max(values) if higher_is_better else min(values)
    off = best - values[-1] if higher_is_better else values[-1] - best
    return off / abs(best) if best else 0.0


def deviation(values: Sequence[float]) -> float:
    """Standard deviations between the newest value and those before it; 0 if that cannot be told."""
    before = values[-WINDOW_POINTS:-1]
    if len(before) + 1 < ANOMALY_POINTS_MIN:
        return 0.0
    mean = math.fsum(before) / len(before)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in before) / (len(before) - 1))
    if spread <= 1e-12 * max(1.0, abs(mean)):  # a constant says nothing about what is usual
        return 0.0
    return (values[-1] - mean) / spread


def _best(values: Sequence[float], *, higher_is_better: bool) -> tuple[float | None, int]:
    """The best value, and how many points ago something better by `PLATEAU_GAIN` last came."""
    if not values:
        return None, 0
    sign = 1.0 if higher_is_better else -1.0
    best = record = values[0]
    last = 0
    for at, value in enumerate(values):
        best = value if sign * (value - best) > 0 else best
        if sign * (value - record) > PLATEAU_GAIN:
            record, last = value, at
    return best, len(values) - 1 - last


def _direction(line: Line | None, *, flat: bool, higher_is_better: bool) -> TrendDirection:
    if line is None or line.points < 3:
        return TrendDirection.UNKNOWN
    if abs(line.significance) >= SIGNIFICANT:
        rising = (line.slope > 0) == higher_is_better
        # A curve that rose at first and is flat since is a plateau, whatever the line through all of it says.
        if not (rising and flat):
            return TrendDirection.IMPROVING if rising else TrendDirection.DEGRADING
    return TrendDirection.PLATEAU if flat else TrendDirection.STABLE


# Whether a config has stopped getting stronger, and what the plan should do about it.
#
# A plateau is found in two ways: the ratings by rows have no slope that stands out, or one candidate after
# another is refused by the promotion test. The answer grows with the length of the plateau, so that a short
# one costs little and a long one is not answered by the same again.


POINTS_MIN = 6  # of the rating curve
POINTS_WINDOW = 10
GAIN_MIN = 15.0  # rating points over the window below which it counts as flat
SIGNIFICANT_GAIN = 1.64
REFUSED_MIN = 5  # candidates in a row
LEVEL_MAX = 3
CURVE_Z = 1.96  # rounded, as in decisions that are to be made again from the same facts


class PlateauFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A plateau, and what it changes. The multipliers are for the plan to apply."""

    level: int  # 1 to 3: how many windows it lasts
    reason: str
    rows_since: int  # rows from which on nothing was gained
    gain: float  # rating points over the window, by the fitted line
    gain_error: float
    refused: int  # candidates since the last promotion
    exploration: float  # wider search in self-play
    learning_rate: float  # smaller steps
    simulations: float  # better targets
    share: float  # of self-play
    advice: str


class _Answer(msgspec.Struct, frozen=True):
    exploration: float
    learning_rate: float
    simulations: float
    share: float
    advice: str


# Level 1 asks for other games, level 2 also for smaller steps, level 3 also for better targets and a search
# for better parameters. None takes anything away from the config: a plateau that starves a config never ends.
_ANSWERS = (
    _Answer(1.2, 1.0, 1.0, 1.1, "explore more in self-play"),
    _Answer(1.35, 0.5, 1.0, 1.1, "explore more, and train with half the learning rate"),
    _Answer(
        1.5, 0.25, 1.5, 1.1, "explore more, train with smaller steps, search deeper, and tune the parameters"
    ),
)


def plateau(curve: Sequence[Curve], *, rows: int = 0, refused: int = 0) -> PlateauFinding | None:
    """Judge *curve*, ordered by rows. *refused* candidates came since the last one; *rows* are there now."""
    points = sorted(curve, key=lambda point: point.rows)
    stalled = refused // REFUSED_MIN
    flat = _flat_windows(points)
    level = min(LEVEL_MAX, max(stalled, flat))
    if not level:
        return None
    gain, error = _gain(points[-POINTS_WINDOW:])
    since = _since(points, flat=flat, rows=rows)
    answer = _ANSWERS[level - 1]
    why = []
    if stalled:
        why.append(f"{refused} candidates in a row were refused")
    if flat:
        shown = min(len(points), POINTS_WINDOW)
        why.append(f"{gain:+.0f} ± {CURVE_Z * error:.0f} rating points over the last {shown} models")
    return PlateauFinding(
        level=level,
        reason=f"plateau: {' and '.join(why)}; {answer.advice}",
        rows_since=since,
        gain=round(gain, 2),
        gain_error=round(error, 2),
        refused=refused,
        exploration=answer.exploration,
        learning_rate=answer.learning_rate,
        simulations=answer.simulations,
        share=answer.share,
        advice=answer.advice,
    )


def _flat_windows(points: Sequence[Curve]) -> int:
    """For how many windows in a row, the newest first, the curve is flat."""
    flat = 0
    end = len(points)
    while flat < LEVEL_MAX and end >= POINTS_MIN:
        window = points[max(0, end - POINTS_WINDOW) : end]
        if not _is_flat(window):
            break
        flat += 1
        end -= POINTS_WINDOW
    return flat


def _is_flat(window: Sequence[Curve]) -> bool:
    """No gain that matters, and none that stands out from the intervals."""
    gain, error = _gain(window)
    return len(window) >= POINTS_MIN and gain < GAIN_MIN and gain < SIGNIFICANT_GAIN * error


def _gain(window: Sequence[Curve]) -> tuple[float, float]:
    """The rise of the fitted line over the window, and its standard error."""
    errors = [max(1.0, (point.high - point.low) / (2 * CURVE_Z)) for point in window]
    line = fit_line([float(point.rows) for point in window], [point.rating for point in window], errors)
    if line is None:
        return 0.0, 0.0
    span = window[-1].rows - window[0].rows
    return line.slope * span, line.error * span


def _since(points: Sequence[Curve], *, flat: int, rows: int) -> int:
    if not points:
        return 0
    if not flat:
        return points[-1].rows
    return min(points[max(0, len(points) - flat * POINTS_WINDOW)].rows, rows or points[-1].rows)


# How steady the ratings of a config are: the newest two days of its curve, or of any series.
#
# A rating that swings or falls is placed better by more games. The sequential test alone decides about a
# promotion: this neither holds one back nor brings one about.


STABILITY_SPAN_S = 48 * 3600.0
STABILITY_SAMPLES_MIN = 5
DECLINE_PER_HOUR = -2.0
STABLE_BELOW, DEVELOPING_BELOW = 0.3, 0.6


class StabilityLevel(StrEnum):
    """What a rating does."""

    STABLE = "stable"
    DEVELOPING = "developing"
    VOLATILE = "volatile"
    DECLINING = "declining"
    UNKNOWN = "unknown"


class RatedAt(Protocol):
    """A rating at a time: a point of a curve, or a sample."""

    @property
    def at_s(self) -> float: ...

    @property
    def rating(self) -> float: ...


@dataclass(frozen=True, slots=True)
class RatingSample:
    """A rating at a wall-clock time."""

    at_s: float
    rating: float


@dataclass(frozen=True, slots=True)
class StabilityAssessment:
    """The answer, with what it is made of."""

    level: StabilityLevel
    volatility: float  # 0 is steady, 1 is not
    slope_per_hour: float
    slope_error: float
    deviation: float
    swing: float
    samples: int
    is_safe: bool  # unknown is safe
    reason: str
    advice: list[str] = field(default_factory=list)


def assess_stability(samples: Sequence[RatedAt], *, now_s: float) -> StabilityAssessment:
    """Judge the ratings of the last 48 hours."""
    recent = sorted(
        (each for each in samples if each.at_s >= now_s - STABILITY_SPAN_S), key=lambda each: each.at_s
    )
    ratings = [each.rating for each in recent]
    if len(recent) < STABILITY_SAMPLES_MIN:
        text = f"{len(recent)} ratings in 48 hours, {STABILITY_SAMPLES_MIN} are needed"
        return StabilityAssessment(StabilityLevel.UNKNOWN, 0.0, 0.0, 0.0, 0.0, 0.0, len(recent), True, text)
    line = fit_line([each.at_s / 3600.0 for each in recent], ratings)
    slope, error = (line.slope, line.error) if line is not None else (0.0, 0.0)
    score = volatility(ratings, slope)
    level = _level(score, slope)
    safe = level not in (StabilityLevel.VOLATILE, StabilityLevel.DECLINING)
    reason = f"volatility {score:.2f}, {slope:+.1f} ± {error:.1f} rating points per hour"
    advice = [] if safe else ["play more rating games"]
    deviation, swing = _spread(ratings), max(ratings) - min(ratings)
    return StabilityAssessment(
        level, score, slope, error, deviation, swing, len(recent), safe, reason, advice
    )


def _spread(ratings: Sequence[float]) -> float:
    """The standard deviation, asked for often; `statistics.pstdev` is exact and takes many times as long."""
    mean = fmean(ratings)
    return sqrt(fmean([(rating - mean) ** 2 for rating in ratings]))


def volatility(ratings: Sequence[float], slope_per_hour: float) -> float:
    """0.4 spread, 0.3 swing, 0.2 changes of direction, 0.1 decline; between 0 and 1."""
    spread = _spread(ratings)
    swing = max(ratings) - min(ratings)
    turns = _turns(ratings) / max(1, len(ratings) - 2)
    decline = min(0.5, -slope_per_hour / 5.0) if slope_per_hour < 0 else 0.0
    score = (
        # A spread of 50 points counts in full; one below 20 is taken as 20, so that noise is no swing.
        0.4 * spread / 50.0 + 0.3 * min(1.0, swing / (3 * max(spread, 20.0))) + 0.2 * turns + 0.1 * decline
    )
    return min(1.0, score)


def _turns(ratings: Sequence[float]) -> int:
    steps = [after - before for before, after in pairwise(ratings) if after != before]
    return sum(first * second < 0 for first, second in pairwise(steps))


def _level(score: float, slope_per_hour: float) -> StabilityLevel:
    # First: a steady fall has little volatility and would pass for stable.
    if slope_per_hour < DECLINE_PER_HOUR:
        return StabilityLevel.DECLINING
    if score < STABLE_BELOW:
        return StabilityLevel.STABLE
    return StabilityLevel.DEVELOPING if score < DEVELOPING_BELOW else StabilityLevel.VOLATILE


# How far a config has fallen behind its best, and how bad that is.
#
# Severity goes by rating points. Two regressions in a row count one level higher.


ESCALATE_AFTER = 2
ACT_AFTER = 3  # in a row: a rollback is advised whatever the severity


class RegressionSeverity(IntEnum):
    """Ordered: more is worse."""

    NONE = 0
    MINOR = 1
    MODERATE = 2
    SEVERE = 3
    CRITICAL = 4

    @property
    def word(self) -> str:
        return self.name.lower()


RATING_DROPS = (20.0, 35.0, 50.0, 75.0)


class RegressionFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A drop, with what it was measured by."""

    severity: RegressionSeverity
    model: str | None
    rating: float
    best: float
    drop: float  # rating points off the best
    drop_error: float  # standard error of that
    in_a_row: int
    reason: str

    @property
    def needs_rollback(self) -> bool:
        return self.severity >= RegressionSeverity.SEVERE or self.in_a_row >= ACT_AFTER


def severity_of(drop: float) -> RegressionSeverity:
    return RegressionSeverity(sum(drop >= step for step in RATING_DROPS))


def regression(curve: Sequence[Curve], *, in_a_row_before: int = 0) -> RegressionFinding | None:
    """Judge the newest point of *curve* against the best before it.

    A drop within its error is none, however large it looks: small pools have wide intervals. The error is
    that of the difference, where the curve has it: ratings of one fit move together.
    """
    if len(curve) < 2:
        return None
    newest = curve[-1]
    best = max(curve[:-1], key=lambda point: point.rating)
    drop = best.rating - newest.rating
    error = best.newest_difference_error
    if error is None:
        error = math.hypot(_error(best), _error(newest))
    severity = severity_of(drop)
    if severity is RegressionSeverity.NONE or drop < CURVE_Z * error:
        return None
    in_a_row = in_a_row_before + 1
    if in_a_row >= ESCALATE_AFTER:
        severity = RegressionSeverity(min(RegressionSeverity.CRITICAL, severity + 1))
    return RegressionFinding(
        severity=severity,
        model=newest.model,
        rating=newest.rating,
        best=best.rating,
        drop=drop,
        drop_error=error,
        in_a_row=in_a_row,
        reason=f"{drop:.0f} ± {CURVE_Z * error:.0f} rating points below {best.model[:12]}",
    )


def _error(point: Curve) -> float:
    return (point.high - point.low) / (2 * CURVE_Z)
