"""What the games of one participant against another say, and the tests that end a match.

The job that plays a match and the plan that judges it ask the same questions of the same counts, so that a
match ends exactly when its result decides something.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from math import log, sqrt

from ringrift.errors import ConfigError
from ringrift.statistics.ratings import place_chances, wilson_interval

# --- the sequential test ------------------------------------------------------------------------------
#
# The sequential test of a match: stop as soon as the score says which of two strengths is the likelier.
#
# The generalized sequential probability ratio test of Van den Bergh, as chess engine testing uses it. The
# data are counts of equally spaced scores: of games (loss, draw, win), or better of pairs of games that
# share an opening (0, ½, 1, 1½, 2 points), because the two games of a pair are not independent. The
# log-likelihood ratio compares the most likely distributions whose strength is exactly each hypothesis.


# An outcome that was not seen yet is not impossible; without this share a first run of equal outcomes
# would have no variance.
UNSEEN = 1e-3
GAMES_PER_PAIR = 2
PAIR_OUTCOMES = 5
# Normalized Elo is this many times the mean score above ½ per standard deviation of one game.
NORMALIZED_ELO_PER_DEVIATION = 800 / log(10)
BISECTIONS = 60


class Verdict(StrEnum):
    """What the test says now."""

    CONTINUE = "continue"
    STRONGER = "stronger"  # elo1 is accepted
    NOT_STRONGER = "not_stronger"  # elo0 is accepted


class EloScale(StrEnum):
    """What an Elo difference means."""

    LOGISTIC = "logistic"  # of the expected score
    NORMALIZED = "normalised"  # of the score per standard deviation: the same number of games decides


@dataclass(frozen=True, slots=True)
class SprtConfig:
    """Is the player rather elo1 stronger, or elo0? Wrong with at most alpha and beta."""

    elo0: float
    elo1: float
    alpha: float = 0.05
    beta: float = 0.05
    scale: EloScale = EloScale.LOGISTIC

    def __post_init__(self) -> None:
        if not self.elo0 < self.elo1:
            raise ConfigError(f"sprt: elo0 must lie below elo1, not {self.elo0:g} and {self.elo1:g}")
        for name, rate in (("alpha", self.alpha), ("beta", self.beta)):
            if not 0 < rate < 0.5:
                raise ConfigError(f"sprt: {name} must lie between 0 and 0.5, not {rate:g}")

    @property
    def lower(self) -> float:
        """Log-likelihood ratio at which elo0 is accepted."""
        return log(self.beta / (1 - self.alpha))

    @property
    def upper(self) -> float:
        """Log-likelihood ratio at which elo1 is accepted."""
        return log((1 - self.beta) / self.alpha)


@dataclass(frozen=True, slots=True)
class SprtState:
    """Where a test stands."""

    llr: float
    lower: float
    upper: float
    verdict: Verdict


def expected_score(elo: float) -> float:
    """Share of the points that a player *elo* stronger gets."""
    return float(1 / (1 + 10 ** (-elo / 400)))


def sprt_state(config: SprtConfig, counts: Sequence[int]) -> SprtState:
    """Judge *counts* of outcomes from worst to best: three for single games, five for pairs."""
    return judged(config, log_likelihood_ratio(config, counts))


def judged(config: SprtConfig, llr: float) -> SprtState:
    """What a log-likelihood ratio says within the bounds of *config*."""
    verdict = Verdict.CONTINUE
    if llr >= config.upper:
        verdict = Verdict.STRONGER
    elif llr <= config.lower:
        verdict = Verdict.NOT_STRONGER
    return SprtState(llr=llr, lower=config.lower, upper=config.upper, verdict=verdict)


def log_likelihood_ratio(config: SprtConfig, counts: Sequence[int]) -> float:
    if len(counts) not in (3, PAIR_OUTCOMES) or min(counts) < 0:
        raise ConfigError(f"sprt takes counts of 3 or {PAIR_OUTCOMES} outcomes, not {list(counts)}")
    if sum(counts) == 0:
        return 0.0
    if config.scale is EloScale.LOGISTIC:
        return ratio_of_means(counts, mean0=expected_score(config.elo0), mean1=expected_score(config.elo1))
    shares, scores, total = _shares(counts)
    mean = sum(share * score for share, score in zip(shares, scores, strict=True))
    variance = sum(share * (score - mean) ** 2 for share, score in zip(shares, scores, strict=True))
    # A pair's mean score deviates √2 times less than a game's.
    games = GAMES_PER_PAIR if len(counts) == PAIR_OUTCOMES else 1
    deviations = (mean - 0.5) / sqrt(variance)
    from_elo0, from_elo1 = (
        deviations - elo / NORMALIZED_ELO_PER_DEVIATION * sqrt(games) for elo in (config.elo0, config.elo1)
    )
    return total / 2 * log((1 + from_elo0**2) / (1 + from_elo1**2))


def ratio_of_means(counts: Sequence[int], *, mean0: float, mean1: float) -> float:
    """How much likelier *mean1* is than *mean0*, as a logarithm, for counts of scores spread from 0 to 1.

    Nothing is assumed of the distribution but its bounds: of all with the right mean, the likeliest counts.
    """
    return _ratio_of_means(tuple(counts), mean0, mean1)


@lru_cache(maxsize=1024)  # the plan asks for the same match at every look, until it has more games
def _ratio_of_means(counts: tuple[int, ...], mean0: float, mean1: float) -> float:
    if sum(counts) == 0:
        return 0.0
    shares, scores, total = _shares(counts)
    at_mean0, at_mean1 = _likeliest(shares, scores, mean0), _likeliest(shares, scores, mean1)
    return total * sum(
        share * log(one / zero) for share, zero, one in zip(shares, at_mean0, at_mean1, strict=True)
    )


def _shares(counts: Sequence[int]) -> tuple[list[float], list[float], float]:
    """Share and score of each outcome, and how many there were."""
    weights = [max(float(count), UNSEEN) for count in counts]
    total = sum(weights)
    return (
        [weight / total for weight in weights],
        [at / (len(counts) - 1) for at in range(len(counts))],
        total,
    )


def _likeliest(shares: Sequence[float], scores: Sequence[float], mean: float) -> list[float]:
    """The distribution of that *mean* under which *shares* are the likeliest.

    It is `share / (1 + tilt * (score - mean))`, and the tilt is the one zero of a falling function.
    """
    low, high = -1 / (scores[-1] - mean), 1 / (mean - scores[0])
    for _ in range(BISECTIONS):
        tilt = (low + high) / 2
        slope = sum(
            share * (score - mean) / (1 + tilt * (score - mean))
            for share, score in zip(shares, scores, strict=True)
        )
        low, high = (tilt, high) if slope > 0 else (low, tilt)
    tilt = (low + high) / 2
    return [share / (1 + tilt * (score - mean)) for share, score in zip(shares, scores, strict=True)]


# --- what the games say -------------------------------------------------------------------------------


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
class MatchJudgment:
    """What a test says of the games so far. *at_cap*: only because there are no more games to come."""

    verdict: MatchVerdict
    at_cap: bool = False


# Elo above elo0, and the risk that one who is only as strong as elo0 seems to be ahead by that much. A test
# of a few points takes as many games to see that a player is far ahead, as it asks for the same small step.
CLEAR_GAINS = ((100.0, 0.01), (240.0, 0.005))


@dataclass(frozen=True, slots=True)
class ClearGain:
    """How sure it is that a player is that far ahead."""

    elo: float
    llr: float
    bound: float  # from which on it is believed

    @property
    def is_shown(self) -> bool:
        return self.llr >= self.bound


@dataclass(frozen=True, slots=True)
class SequentialTest:
    """Stronger by elo1, or by elo0 only? At *games_max* the likelier of the two counts.

    With *clear_gains* one who is far ahead passes sooner; their risks come on top of alpha.
    """

    config: SprtConfig
    games_max: int
    clear_gains: bool = False

    def result(self, found: Evidence) -> MatchJudgment:
        state = found.state(self.config)
        if state.verdict is Verdict.STRONGER or any(gain.is_shown for gain in self.gains(found)):
            return MatchJudgment(MatchVerdict.PASSED)
        if state.verdict is Verdict.NOT_STRONGER:
            return MatchJudgment(MatchVerdict.FAILED)
        if found.games >= self.games_max:
            return MatchJudgment(MatchVerdict.PASSED if state.llr > 0 else MatchVerdict.FAILED, at_cap=True)
        return MatchJudgment(MatchVerdict.OPEN)

    def gains(self, found: Evidence) -> list[ClearGain]:
        """What *found* says of each gain that lets a player pass sooner."""
        config, found_gains = self.config, []
        for elo, risk in CLEAR_GAINS if self.clear_gains else ():
            wider = SprtConfig(config.elo0, config.elo0 + elo, config.alpha, config.beta, config.scale)
            found_gains.append(ClearGain(elo, found.state(wider).llr, -log(risk)))
        return found_gains

    def way_to_pass(self, found: Evidence) -> float:
        """How much of the way to the nearest bound of those at which the player passes is done."""
        state = found.state(self.config)
        return max([state.llr / state.upper, *(gain.llr / gain.bound for gain in self.gains(found))])


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

    def result(self, found: Evidence) -> MatchJudgment:
        share, (low, high) = found.win_share, self.interval(found)
        if found.games >= self.games_min:
            if low >= self.share:
                return MatchJudgment(MatchVerdict.PASSED)
            if high < self.share:
                return MatchJudgment(MatchVerdict.FAILED)
        if found.games >= self.games_max:
            return MatchJudgment(
                MatchVerdict.PASSED if share >= self.share else MatchVerdict.FAILED, at_cap=True
            )
        return MatchJudgment(MatchVerdict.OPEN)


@dataclass(frozen=True, slots=True)
class AllGames:
    """No test: so many games are played, and nothing has to be shown."""

    games_max: int

    def result(self, found: Evidence) -> MatchJudgment:
        if found.games >= self.games_max:
            return MatchJudgment(MatchVerdict.PASSED, at_cap=True)
        return MatchJudgment(MatchVerdict.OPEN)


MatchTest = SequentialTest | FloorTest | AllGames


def _mean_place(places: Sequence[float]) -> float:
    """The sum of places, the first worth 1 and the last 0."""
    last = len(places) - 1
    return sum(count * (last - at) / last for at, count in enumerate(places))
