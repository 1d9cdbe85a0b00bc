"""Ratings from results, all at once: of games between two by Bradley and Terry's model, of placings of
several by Plackett and Luce's. Both are choices, of which the second section fits all at once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import exp, log, log1p, log10, sqrt
from operator import mul

from ringrift.errors import ConfigError

# --- shares -------------------------------------------------------------------------------------------
#
# What a share of points says: its interval, and the difference in strength that it stands for.


Z_95 = 1.959963984540054


def wilson_interval(share: float, count: int, *, z: float = Z_95) -> tuple[float, float]:
    """Wilson's interval for a share of *count* trials; (0, 1) for none."""
    if count == 0:
        return 0.0, 1.0
    center = share + z * z / (2 * count)
    spread = z * sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    return max(0.0, (center - spread) / scale), min(1.0, (center + spread) / scale)


def elo_difference(score: float) -> float:
    """The strength difference at which *score* is the expected share; infinite for 0 and 1."""
    if not 0 < score < 1:
        return float("inf") if score >= 1 else float("-inf")
    return 400 * log10(score / (1 - score))


# --- choices ------------------------------------------------------------------------------------------
#
# Strengths from choices: whoever was ahead of the others that were left, each time.
#
# A game of two is one choice, a ranking of n players is n - 1 of them: first of all, first of the rest and
# so on. Somebody is chosen with a chance in proportion to 10^(rating / 400). The ratings that make all
# choices together the likeliest are found at once, so the order of results means nothing and adding
# tables up is the same as fitting their union. The likelihood is concave: there is one answer, found by
# Newton's method, and its curvature there gives the intervals.


# Cholesky factors of a symmetric matrix that is mostly empty to the left of its diagonal.
#
# Each row is kept from its first entry to the diagonal, and the factor fills nothing outside of that. Who
# played whom is such a matrix when the players stand in order of time: a row of a hundred players has a
# handful of entries, and the factor costs next to nothing. A full matrix costs what it costs anyway.


class ProfileMatrix:
    """A symmetric positive definite matrix; `factor` turns it into its lower Cholesky factor, in place."""

    def __init__(self, size: int, linked: Iterable[tuple[int, int]]) -> None:
        """Make room for the entries (row, column) in *linked* and for the diagonal."""
        starts = list(range(size))
        for one, other in linked:
            row, column = max(one, other), min(one, other)
            starts[row] = min(starts[row], column)
        self.starts = starts
        self.rows = [[0.0] * (row - start + 1) for row, start in enumerate(starts)]

    def clear(self) -> None:
        for row in self.rows:
            row[:] = [0.0] * len(row)

    def add(self, one: int, other: int, value: float) -> None:
        row, column = (one, other) if one >= other else (other, one)
        self.rows[row][column - self.starts[row]] += value

    def factor(self) -> None:
        """Raises `ValueError` where the matrix is not positive definite."""
        rows, starts = self.rows, self.starts
        for i, row in enumerate(rows):
            start = starts[i]
            for j in range(start, i):
                other, other_start = rows[j], starts[j]
                first = max(start, other_start)
                done = _dot(row[first - start : j - start], other[first - other_start : -1])
                row[j - start] = (row[j - start] - done) / other[-1]
            rest = row[-1] - _dot(row[:-1], row[:-1])
            if rest <= 0:
                raise ValueError(f"not positive definite at row {i}")
            row[-1] = sqrt(rest)

    def forward(self, right: list[float], *, first: int = 0) -> list[float]:
        """Solve `L y = right`, whose entries before *first* are zero."""
        solved = [0.0] * len(right)
        for i in range(first, len(right)):
            row, start = self.rows[i], self.starts[i]
            begin = max(start, first)
            solved[i] = (right[i] - _dot(row[begin - start : -1], solved[begin:i])) / row[-1]
        return solved

    def solve(self, right: list[float]) -> list[float]:
        """Solve `L Lᵀ x = right`."""
        solved = self.forward(right)
        for i in range(len(solved) - 1, -1, -1):
            row, start = self.rows[i], self.starts[i]
            solved[i] /= row[-1]
            value = solved[i]
            for column in range(start, i):
                solved[column] -= row[column - start] * value
        return solved

    def inverse_diagonal(self) -> list[float]:
        """The diagonal of the inverse of the factored matrix."""
        size = len(self.rows)
        found = []
        for i in range(size):
            unit = [0.0] * size
            unit[i] = 1.0
            column = self.forward(unit, first=i)[i:]
            found.append(_dot(column, column))
        return found


def _dot(one: list[float], other: list[float]) -> float:
    return sum(map(mul, one, other), 0.0)


ELO_PER_NAT = 400 / log(10)
STEPS_MAX = 60
STEP_NATS_MAX = 3.0  # a longer step leaves the region where the curvature means anything
SURE_NATS = 0.5  # a step as short as this always leads upwards
CLOSE_NATS = 1e-6  # Newton doubles the digits each time, so the rest is far smaller
EXPONENT_MAX = 700.0  # a longer lead than a float can tell from certainty
# As many results against its own opponents as each participant gets on top, as if all were equal. Without
# them an unbeaten participant would be infinitely strong.
EQUAL_RESULTS = 1.0


@dataclass(frozen=True, slots=True)
class Contest:
    """How often each of *members* was chosen from among them all; *copies* of one compete side by side."""

    members: tuple[str, ...]
    copies: tuple[float, ...]
    chosen: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(set(self.members)) != len(self.members) or len(self.members) < 2:
            raise ConfigError(f"a contest needs two or more different members, not {self.members}")
        if min(self.chosen) < 0 or min(self.copies) <= 0:
            raise ConfigError(f"counts of a contest must not be negative: {self.chosen}, {self.copies}")


@dataclass(frozen=True, slots=True)
class Prior:
    """What is believed of a rating before any result."""

    mean: float
    deviation: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """A rating and its standard error."""

    rating: float
    deviation: float
    results: float = 0.0

    @property
    def low(self) -> float:
        return self.rating - Z_95 * self.deviation

    @property
    def high(self) -> float:
        return self.rating + Z_95 * self.deviation


@dataclass(frozen=True, slots=True)
class JointFit:
    """The ratings of one fit, and how they depend on each other."""

    estimates: dict[str, Estimate]
    places: dict[str, int]  # of those who are not fixed, in the curvature
    curvature: ProfileMatrix | None  # factored; None where all are fixed

    def difference_deviation(self, one: str, other: str) -> float:
        """Return the standard error of the difference of two ratings.

        Most of the error of a rating is how far its whole neighborhood lies from the baselines. Neighbors
        share that, so their difference is far better known than both ratings.
        """
        if one == other or self.curvature is None:
            return 0.0
        right = [0.0] * len(self.places)
        for name, sign in ((one, 1.0), (other, -1.0)):
            if name in self.places:
                right[self.places[name]] = sign
        # dᵀ (L Lᵀ)⁻¹ d is the squared length of L⁻¹ d.
        half = self.curvature.forward(right)
        return sqrt(_dot(half, half)) * ELO_PER_NAT


def fit(
    contests: Iterable[Contest],
    *,
    fixed: Mapping[str, float],
    priors: Mapping[str, Prior] | None = None,
    order: Sequence[str] = (),
    equal_results: float = EQUAL_RESULTS,
) -> JointFit:
    """Rate everybody who is linked, through any chain of contests, to somebody *fixed* or with a prior.

    The others are left out: nothing says where on the scale they stand. *order* is a hint that saves time
    (who meets whom should stand close together) and changes nothing else.
    """
    priors = {name: prior for name, prior in (priors or {}).items() if name not in fixed}
    merged = _merge(contests)
    reached = _linked(merged, {*fixed, *priors})
    used = [each for each in merged if each.members[0] in reached]
    results = _results(used)
    played = set(results)
    place = {name: at for at, name in enumerate(order)}
    free = sorted(played - set(fixed), key=lambda name: (place.get(name, len(place)), name))
    estimates = {name: Estimate(fixed[name], 0.0, results[name]) for name in fixed if name in played}
    if not free:
        return JointFit(estimates, {}, None)
    problem = _Problem(free, _with_equal_results(used, {*fixed, *priors}, equal_results), fixed, priors)
    nats, variances = problem.solve()
    for name, value, variance in zip(free, nats, variances, strict=True):
        estimates[name] = Estimate(value * ELO_PER_NAT, sqrt(variance) * ELO_PER_NAT, results[name])
    return JointFit(estimates, {name: at for at, name in enumerate(free)}, problem.curvature)


def _merge(contests: Iterable[Contest]) -> list[Contest]:
    """One contest per set of members, in an order that doesn't depend on theirs."""
    merged: dict[tuple[tuple[str, float], ...], list[float]] = {}
    for contest in contests:
        rows = sorted(zip(contest.members, contest.copies, contest.chosen, strict=True))
        key = tuple((member, copies) for member, copies, _ in rows)
        sums = merged.setdefault(key, [0.0] * len(rows))
        for at, (_, _, chosen) in enumerate(rows):
            sums[at] += chosen
    return [
        Contest(tuple(member for member, _ in key), tuple(copies for _, copies in key), tuple(sums))
        for key, sums in sorted(merged.items())
        if sum(sums) > 0
    ]


def _linked(contests: Sequence[Contest], roots: set[str]) -> set[str]:
    neighbors: defaultdict[str, set[str]] = defaultdict(set)
    for contest in contests:
        for member in contest.members:
            neighbors[member].update(contest.members)
    reached, waiting = set(roots), list(roots)
    while waiting:
        found = neighbors[waiting.pop()] - reached
        reached |= found
        waiting.extend(found)
    return reached


def _results(contests: Sequence[Contest]) -> defaultdict[str, float]:
    results: defaultdict[str, float] = defaultdict(float)
    for contest in contests:
        total = sum(contest.chosen)
        for member in contest.members:
            results[member] += total
    return results


def _with_equal_results(contests: Sequence[Contest], known: Collection[str], amount: float) -> list[Contest]:
    """Each member that is not *known* brings *amount* results as if all were equal.

    They go to its contests in proportion to what these say of its strength: a hundred wins out of a hundred
    against somebody weak say little, and results there would pull hardest of all.
    """
    said = [_information(contest) for contest in contests]
    sums: defaultdict[str, float] = defaultdict(float)
    for contest, information in zip(contests, said, strict=True):
        for member in contest.members:
            sums[member] += information
    widened = []
    for contest, information in zip(contests, said, strict=True):
        copies = sum(contest.copies)
        extra = amount * sum(information / sums[member] for member in contest.members if member not in known)
        chosen = (
            own + extra * each / copies for own, each in zip(contest.chosen, contest.copies, strict=True)
        )
        widened.append(Contest(contest.members, contest.copies, tuple(chosen)))
    return widened


def _information(contest: Contest) -> float:
    """How curved the likelihood of a contest is, about: its size times the spread of its results."""
    total, copies = sum(contest.chosen) + 1, sum(contest.copies)
    shares = [(own + each / copies) / total for own, each in zip(contest.chosen, contest.copies, strict=True)]
    return total * (1 - sum(share * share for share in shares))


def _first_guess(contests: Sequence[Contest], known: Mapping[str, float], free: Sequence[str]) -> list[float]:
    """In nats: from those who are known outwards, each through the contest that says most of it."""
    found = {name: value / ELO_PER_NAT for name, value in known.items()}
    at: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
    for number, contest in enumerate(contests):
        entry = (-_information(contest), number)
        for member in contest.members:
            at[member].append(entry)
    waiting = sorted({entry for name in found for entry in at[name]})
    while waiting:
        contest = contests[heappop(waiting)[1]]
        all_copies = sum(contest.copies)
        per_copy = {  # one more result, shared equally, keeps it finite
            member: log(own / copies + 1 / all_copies)
            for member, own, copies in zip(contest.members, contest.chosen, contest.copies, strict=True)
        }
        start = next(member for member in contest.members if member in found)
        for member in contest.members:
            if member not in found:
                found[member] = found[start] + per_copy[member] - per_copy[start]
                for entry in at[member]:
                    heappush(waiting, entry)
    return [found[name] for name in free]


class _Problem:
    """The concave function to be maximized, in natural units (nats) of strength."""

    def __init__(
        self,
        free: Sequence[str],
        contests: Sequence[Contest],
        fixed: Mapping[str, float],
        priors: Mapping[str, Prior],
    ) -> None:
        index = {name: at for at, name in enumerate(free)}
        known = {name: prior.mean for name, prior in priors.items()} | dict(fixed)
        self._start = _first_guess(contests, known, free)
        self._size = len(free)
        self._priors = [
            (index[name], prior.mean / ELO_PER_NAT, (ELO_PER_NAT / prior.deviation) ** 2)
            for name, prior in priors.items()
            if name in index
        ]
        # A fixed member stands behind all free ones in the list of values and never moves.
        self._values_fixed = [value / ELO_PER_NAT for value in fixed.values()]
        index |= {name: self._size + at for at, name in enumerate(fixed)}
        self._pairs: list[tuple[int, int, float, float, float]] = []
        self._contests: list[tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...], float]] = []
        for each in contests:
            members = tuple(index[member] for member in each.members)
            offsets = tuple(log(copies) for copies in each.copies)
            if len(members) == 2:
                row = (*members, offsets[0] - offsets[1], each.chosen[0], sum(each.chosen))
                self._pairs.append(row)
            else:
                self._contests.append((members, offsets, each.chosen, sum(each.chosen)))
        self.curvature = ProfileMatrix(self._size, self._links())

    def solve(self) -> tuple[list[float], list[float]]:
        """The best values and their variances."""
        values = list(self._start)
        for _ in range(STEPS_MAX):
            step = self._newton_step(values)
            longest = max(map(abs, step))
            scale = 1.0 if longest <= SURE_NATS else self._scale(values, step, STEP_NATS_MAX / longest)
            values = [value + scale * change for value, change in zip(values, step, strict=True)]
            if longest * scale < CLOSE_NATS:
                break
        # The curvature was taken less than `CLOSE_NATS` away.
        return values, self.curvature.inverse_diagonal()

    def _scale(self, values: Sequence[float], step: Sequence[float], longest: float) -> float:
        """How much of *step* to take, at most *longest*, so that it leads upwards."""
        height, scale = self._height(values), min(1.0, longest)
        while scale > CLOSE_NATS:
            tried = [value + scale * change for value, change in zip(values, step, strict=True)]
            if self._height(tried) >= height:
                break
            scale /= 2
        return scale

    def _links(self) -> Iterable[tuple[int, int]]:
        size = self._size
        yield from ((one, other) for one, other, *_ in self._pairs if one < size and other < size)
        for members, *_ in self._contests:
            inside = [member for member in members if member < size]
            yield from ((one, other) for one in inside for other in inside if other < one)

    def _height(self, free_values: Sequence[float]) -> float:
        values = [*free_values, *self._values_fixed]
        height = -sum(precision * (values[at] - mean) ** 2 / 2 for at, mean, precision in self._priors)
        for one, other, offset, chosen, total in self._pairs:
            lead = values[one] - values[other] + offset
            height += chosen * lead - total * (log1p(exp(-abs(lead))) + max(lead, 0.0))
        for members, offsets, counts, total in self._contests:
            strengths = [values[at] + offset for at, offset in zip(members, offsets, strict=True)]
            top = max(strengths)
            height -= total * (top + log(sum(exp(each - top) for each in strengths)))
            height += sum(count * each for count, each in zip(counts, strengths, strict=True))
        return height

    def _newton_step(self, free_values: Sequence[float]) -> list[float]:
        """Leaves the factored curvature at *free_values* behind."""
        values, hessian = [*free_values, *self._values_fixed], self.curvature
        gradient = [0.0] * len(values)
        hessian.clear()
        for at, mean, precision in self._priors:
            gradient[at] -= precision * (values[at] - mean)
            hessian.add(at, at, precision)
        self._add_pairs(values, gradient)
        self._add_contests(values, gradient)
        hessian.factor()
        return hessian.solve(gradient[: self._size])

    def _add_pairs(self, values: Sequence[float], gradient: list[float]) -> None:
        """The same as `_add_contests` for two members, in a fraction of the time."""
        size, add = self._size, self.curvature.add
        diagonal = [0.0] * len(values)
        for one, other, offset, chosen, total in self._pairs:
            share = 1 / (1 + exp(min(values[other] - values[one] - offset, EXPONENT_MAX)))
            rest = chosen - total * share
            gradient[one] += rest
            gradient[other] -= rest
            curvature = total * share * (1 - share)
            diagonal[one] += curvature
            diagonal[other] += curvature
            if one < size and other < size:
                add(one, other, -curvature)
        for at in range(size):
            add(at, at, diagonal[at])

    def _add_contests(self, values: Sequence[float], gradient: list[float]) -> None:
        size, add = self._size, self.curvature.add
        for members, offsets, chosen, total in self._contests:
            strengths = [values[at] + offset for at, offset in zip(members, offsets, strict=True)]
            top = max(strengths)
            weights = [exp(each - top) for each in strengths]
            whole = sum(weights)
            shares = [weight / whole for weight in weights]
            for place, at in enumerate(members):
                share = shares[place]
                gradient[at] += chosen[place] - total * share
                if at >= size:
                    continue
                add(at, at, total * share * (1 - share))
                for other, other_share in zip(members[:place], shares, strict=False):
                    if other < size:
                        add(at, other, -total * share * other_share)


# --- ratings ------------------------------------------------------------------------------------------


# Ratings from placings of several: Plackett and Luce's model, all results at once.
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
