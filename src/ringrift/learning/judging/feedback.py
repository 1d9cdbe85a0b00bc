"""What the results of a config ask for: how good its newest games are, and one pure rule for all that follows
from results, so that no two answers can contradict each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum, StrEnum
from itertools import islice, takewhile
from typing import Any

import msgspec

from ringrift.health.run_status import Curve
from ringrift.learning.facts.facts import QUALITY_MONITOR
from ringrift.learning.facts.records import Model, ModelState, Shard, ShardState
from ringrift.learning.facts.state import ConfigState
from ringrift.learning.judging.promotion import PromotionRules
from ringrift.learning.judging.ratings import (
    ANOMALY_SD,
    WINDOW_POINTS,
    PlateauFinding,
    deviation,
    difference_errors,
    fit_line,
    plateau,
    rate,
)
from ringrift.learning.plan.stages import (
    CURRICULUM_INTEGRATION,
    FEEDBACK_LOOP,
    GAUNTLET_FEEDBACK,
    stops_of,
)
from ringrift.work.shares import ConfigView, board_and_players, quality_factor

# How good the newest games of a config are, read from the reports of their check.
#
# A score is between 0 and 1 and stays what it was measured to be: it does not decay with time, and a config
# whose games were not scored yet is unknown, which holds nothing up. Only shards are refused, never a stage,
# so that bad games cannot keep good ones from being played.


SHARDS_SEEN = 50  # the newest ones
HIGH, LOW = 0.8, 0.6
HALF_CONFIDENCE_GAMES = 100.0
GATE_GAMES_MIN = 50
_GATES_BY_PLAYERS = {2: 0.50, 3: 0.55, 4: 0.65}
_GATES_BY_BOARD = {"hex8": 0.0, "square8": 0.02, "square19": 0.05, "hexagonal": 0.08}


class QualityState(StrEnum):
    """A score in a word."""

    EXCELLENT = "excellent"
    GOOD = "good"
    DEGRADED = "degraded"
    POOR = "poor"
    UNKNOWN = "unknown"


class QualityView(msgspec.Struct, frozen=True, kw_only=True):
    """The quality of the newest checked games of a config."""

    score: float | None  # None: nothing was scored yet
    state: QualityState
    confidence: float  # 0 to 1, by the number of games
    games: int
    high_quality_games: int
    low_quality_games: int
    refused: int
    reasons: dict[str, int]  # why games were refused, and how often

    @property
    def refused_share(self) -> float:
        total = self.games + self.refused
        return self.refused / total if total else 0.0


def quality_state(score: float | None) -> QualityState:
    if score is None:
        return QualityState.UNKNOWN
    if score >= 0.9:
        return QualityState.EXCELLENT
    if score >= 0.7:
        return QualityState.GOOD
    return QualityState.DEGRADED if score >= 0.5 else QualityState.POOR


def quality_of(state: ConfigState) -> QualityView:
    """The quality of what *state* has checked last."""
    checked = (
        s for s in reversed(state.shards.values()) if s.state in (ShardState.CHECKED, ShardState.REFUSED)
    )
    return quality_view(islice(checked, SHARDS_SEEN))


def quality_view(shards: Iterable[Shard]) -> QualityView:
    """Put checked shards together, each by the number of its games."""
    games = high = low = refused = scored = 0
    total = 0.0
    reasons: dict[str, int] = {}
    for shard in shards:
        games += shard.games
        refused += shard.refused
        for reason, count in shard.reasons.items():
            reasons[reason] = reasons.get(reason, 0) + count
        if shard.quality is None:
            continue
        scored += shard.games
        total += shard.quality * shard.games
        high += shard.games if shard.quality >= HIGH else 0
        low += shard.games if shard.quality < LOW else 0
    score = round(total / scored, 4) if scored else None
    return QualityView(
        score=score,
        state=quality_state(score),
        confidence=1.0 - 2.0 ** (-scored / HALF_CONFIDENCE_GAMES),
        games=games,
        high_quality_games=high,
        low_quality_games=low,
        refused=refused,
        reasons=reasons,
    )


def quality_gate(config: str) -> float:
    """The score that the documents ask for before training, by players and board."""
    board, players = board_and_players(config)
    return _GATES_BY_PLAYERS.get(players, 0.50) + _GATES_BY_BOARD.get(board, 0.0)


def passes_gate(config: str, view: QualityView) -> bool:
    """Whether the score reaches the gate of its config. Unknown passes, and so do too few games."""
    return view.score is None or view.games < GATE_GAMES_MIN or view.score >= quality_gate(config)


# `feedback` looks at the state and the rating curve, and returns multipliers between fixed bounds with the
# reasons. The plan applies them. The same facts give the same feedback, so a decision can be replayed.
# Everything that is not known counts as neutral, and no finding ever takes a config out of the plan.


EXPLORATION_MIN, EXPLORATION_MAX = 0.8, 2.0
SIMULATIONS_MIN, SIMULATIONS_MAX = 1.0, 1.5
RATE_MIN, RATE_MAX = 0.25, 1.2
STEPS_MIN, STEPS_MAX = 0.8, 1.25
WEIGHT_MIN, WEIGHT_MAX = 0.7, 1.3

MOMENTUM_POINTS = 5
VELOCITY_POINTS = 5
SLOW_PER_HOUR = 5.0
QUALITY_LOW = 0.5
QUALITY_GAMES_MIN = 50
LOSSES_SEEN = 20
MODELS_SEEN = 200
MATCHES_SEEN = 400
GAUNTLET_GAMES_MIN = 30
STRONG_VS_HEURISTIC, WEAK_VS_RANDOM = 0.80, 0.70
STREAK_ACCELERATED, STREAK_HOT = 3, 5
LESS_NOISE = 0.8


class Momentum(StrEnum):
    """Where the last ratings went."""

    ACCELERATING = "accelerating"
    IMPROVING = "improving"
    STABLE = "stable"
    PLATEAU = "plateau"
    REGRESSING = "regressing"
    UNKNOWN = "unknown"


class TrainingIntensity(IntEnum):
    """How hard to train on what new rows have earned; ordered."""

    REDUCED = 0
    NORMAL = 1
    ACCELERATED = 2
    HOT_PATH = 3

    @property
    def word(self) -> str:
        return self.name.lower()


# Training stays paid for by new rows: intensity only moves the price a little.
_STEPS = {
    TrainingIntensity.REDUCED: 0.8,
    TrainingIntensity.NORMAL: 1.0,
    TrainingIntensity.ACCELERATED: 1.1,
    TrainingIntensity.HOT_PATH: 1.25,
}
_RATES = {
    TrainingIntensity.REDUCED: 0.9,
    TrainingIntensity.NORMAL: 1.0,
    TrainingIntensity.ACCELERATED: 1.1,
    TrainingIntensity.HOT_PATH: 1.2,
}
# Effort follows progress. A config that goes back gets less until training or a roll-back has mended it.
_WEIGHTS = {
    Momentum.ACCELERATING: 1.3,
    Momentum.IMPROVING: 1.15,
    Momentum.STABLE: 1.0,
    Momentum.PLATEAU: 1.1,
    Momentum.REGRESSING: 0.85,
    Momentum.UNKNOWN: 1.0,
}


class Feedback(msgspec.Struct, frozen=True, kw_only=True):
    """What to do differently, as multipliers of what the rules say, and why."""

    intensity: TrainingIntensity = TrainingIntensity.NORMAL
    exploration: float = 1.0  # noise and temperature of self-play
    simulations: float = 1.0  # of self-play
    learning_rate: float = 1.0
    steps_per_row: float = 1.0
    weight: float = 1.0  # of the config's share of self-play
    quality_budget: float = 1.0  # the part of the weight that the quality of games has
    quality_penalty: float = 0.0  # what poor games take from the learning rate
    by_gauntlet: dict[str, float] = {}  # those of the multipliers that results against baselines set
    momentum: Momentum = Momentum.UNKNOWN
    plateau: PlateauFinding | None = None
    reasons: tuple[str, ...] = ()

    def numbers(self) -> dict[str, float]:
        """The multipliers by name."""
        names = ("exploration", "simulations", "learning_rate", "steps_per_row", "weight")
        return {name: getattr(self, name) for name in names}

    def remark(self, *names: str) -> str:
        """What differs from the rules in these numbers, and why; empty if nothing does."""
        changed = [
            f"{name.replace('_', ' ')} x {getattr(self, name):g}"
            for name in names
            if getattr(self, name) != 1.0
        ]
        return f"{', '.join(changed)} ({'; '.join(self.reasons)})" if changed else ""


NEUTRAL = Feedback()


class Gauntlet(msgspec.Struct, frozen=True, kw_only=True):
    """How the newest judged model does against the baselines; None: not played enough.

    Shares of the points for two players, of first places for more.
    """

    vs_random: float | None = None
    vs_heuristic: float | None = None
    players: int = 2

    @property
    def weak_below(self) -> float:
        """The share against random below which a model is weak; with more seats a first place is rarer."""
        return WEAK_VS_RANDOM if self.players == 2 else PromotionRules().floor(self.players)


def feedback(state: ConfigState, curve: Sequence[Curve] = ()) -> Feedback:
    """What the results so far ask for. *curve* is the rating curve of the config, oldest first."""
    stops = stops_of(state)
    found = plateau(curve, rows=state.rows, refused=refused_in_a_row(state))
    quality = quality_view(()) if QUALITY_MONITOR in stops else quality_of(state)
    games = Gauntlet() if GAUNTLET_FEEDBACK in stops else gauntlet_of(state)
    momentum = momentum_of([point.rating for point in curve])
    reasons: list[str] = [] if found is None else [found.reason]
    intensity = _intensity(quality, promoted_in_a_row(state), reasons)
    exploration = _exploration(state, curve, quality, games, found, reasons)
    rate = _RATES[intensity] if found is None else min(1.0, found.learning_rate)
    # More of the same steps does not end a plateau.
    steps = _STEPS[intensity] if found is None else min(1.0, _STEPS[intensity])
    is_poor = intensity is TrainingIntensity.REDUCED and found is None
    budget = _quality_budget(quality, reasons)
    if found is not None:
        budget = max(1.0, budget)  # good games are no reason for fewer while nothing gets better
    weight = budget * (_WEIGHTS[momentum] if found is None else max(_WEIGHTS[momentum], found.share))
    by_gauntlet = {}
    if games.vs_random is not None and games.vs_random < games.weak_below:
        weight = by_gauntlet["weight"] = WEIGHT_MAX
        reasons.append(f"only {games.vs_random:.0%} against random: more games")
    if exploration == LESS_NOISE:
        by_gauntlet["exploration"] = exploration
    if momentum not in (Momentum.UNKNOWN, Momentum.STABLE):
        reasons.append(f"ratings are {momentum.value}")
    if CURRICULUM_INTEGRATION in stops:
        weight = 1.0
    if FEEDBACK_LOOP in stops:  # only the share of the config is left, which is not its own
        return Feedback(weight=_between(WEIGHT_MIN, weight, WEIGHT_MAX), momentum=momentum, plateau=found)
    return Feedback(
        intensity=intensity,
        exploration=_between(EXPLORATION_MIN, exploration, EXPLORATION_MAX),
        simulations=_between(SIMULATIONS_MIN, 1.0 if found is None else found.simulations, SIMULATIONS_MAX),
        learning_rate=_between(RATE_MIN, rate, RATE_MAX),
        steps_per_row=_between(STEPS_MIN, steps, STEPS_MAX),
        weight=_between(WEIGHT_MIN, weight, WEIGHT_MAX),
        quality_budget=budget,
        quality_penalty=round(1.0 - rate, 4) if is_poor else 0.0,
        by_gauntlet=by_gauntlet,
        momentum=momentum,
        plateau=found,
        reasons=tuple(reasons),
    )


def momentum_of(ratings: Sequence[float]) -> Momentum:
    """Judge the last five ratings by what they gained in all."""
    recent = ratings[-MOMENTUM_POINTS:]
    if len(recent) < 3:
        return Momentum.UNKNOWN
    gain = recent[-1] - recent[0]
    if gain >= 25:
        return Momentum.ACCELERATING
    if gain >= 12:
        return Momentum.IMPROVING
    if gain < -12:
        return Momentum.REGRESSING
    return Momentum.PLATEAU if abs(gain) < 5 else Momentum.STABLE


def velocity_per_hour(curve: Sequence[Curve]) -> tuple[float, float] | None:
    """Rating points per hour by centered regression, with the error; None with too few points."""
    recent = curve[-VELOCITY_POINTS:]
    line = fit_line([point.at_s / 3600.0 for point in recent], [point.rating for point in recent])
    return None if line is None or line.points < 3 else (line.slope, line.error)


def gauntlet_of(state: ConfigState) -> Gauntlet:
    """Shares against random and against the heuristic of the newest model that played them."""
    players = 2
    played: dict[str, tuple[str, float, int]] = {}  # opponent: model, points, games
    for match in reversed(state.matches[-MATCHES_SEEN:]):
        if match.recalled or match.second not in ("random", "heuristic"):
            continue
        model, points, games = played.get(match.second, (match.first, 0.0, 0))
        if model == match.first:
            players = match.players
            points += match.wins + match.draws / 2 if players == 2 else sum(match.places[:1])
            played[match.second] = (model, points, games + match.games)
    rates = {
        name: points / games for name, (_, points, games) in played.items() if games >= GAUNTLET_GAMES_MIN
    }
    return Gauntlet(vs_random=rates.get("random"), vs_heuristic=rates.get("heuristic"), players=players)


def refused_in_a_row(state: ConfigState) -> int:
    """Candidates refused since the last one that was promoted."""
    return _in_a_row(state, accepted=False)


def promoted_in_a_row(state: ConfigState) -> int:
    return _in_a_row(state, accepted=True)


def anomalies(state: ConfigState) -> int:
    """How many of the last losses lie far from those before them."""
    newest = islice(reversed(state.models.values()), LOSSES_SEEN + WINDOW_POINTS)
    losses = [loss for model in newest if (loss := held_loss(model.losses)) is not None][::-1]
    first = max(0, len(losses) - LOSSES_SEEN)
    return sum(abs(deviation(losses[: at + 1])) > ANOMALY_SD for at in range(first, len(losses)))


def held_loss(losses: Mapping[str, Any]) -> float | None:
    """The loss on held-out games, whichever way it was written down."""
    for name in ("best_held", "held", "best_loss"):
        value = losses.get(name)
        if isinstance(value, Mapping):
            parts = [part for part in value.values() if isinstance(part, int | float)]
            value = math.fsum(parts) if parts else None
        if isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    return None


def _intensity(quality: QualityView, streak: int, reasons: list[str]) -> TrainingIntensity:
    """The higher of what quality and a run of promotions allow."""
    by_streak = (
        TrainingIntensity.HOT_PATH
        if streak >= STREAK_HOT
        else TrainingIntensity.ACCELERATED
        if streak >= STREAK_ACCELERATED
        else TrainingIntensity.REDUCED
    )
    chosen = max(_quality_level(quality), by_streak)
    if chosen is not TrainingIntensity.NORMAL:
        text = "unknown" if quality.score is None else f"{quality.score:.2f}"
        reasons.append(f"training is {chosen.word}: quality {text}, {streak} promotions in a row")
    return chosen


def _quality_level(quality: QualityView) -> TrainingIntensity:
    if quality.score is None or quality.games < QUALITY_GAMES_MIN:
        return TrainingIntensity.NORMAL
    if quality.score >= 0.90:
        return TrainingIntensity.HOT_PATH
    if quality.score >= 0.80:
        return TrainingIntensity.ACCELERATED
    return TrainingIntensity.NORMAL if quality.score >= QUALITY_LOW else TrainingIntensity.REDUCED


def _quality_budget(quality: QualityView, reasons: list[str]) -> float:
    """Poor games ask for more of them; too few say nothing."""
    if quality.games < QUALITY_GAMES_MIN:
        return 1.0
    budget = quality_factor(quality.score)
    if budget > 1.0:
        reasons.append(f"more games, as their quality is {quality.score:.2f}")
    return budget


def _exploration(
    state: ConfigState,
    curve: Sequence[Curve],
    quality: QualityView,
    games: Gauntlet,
    found: PlateauFinding | None,
    reasons: list[str],
) -> float:
    """The strongest call for variety; a fresh promotion damps it, and a strong player needs less."""
    calls = {"": 1.0}
    if quality.score is not None and quality.score < QUALITY_LOW and quality.games >= QUALITY_GAMES_MIN:
        calls[f"the quality of games is {quality.score:.2f}"] = 1.3
    if strange := anomalies(state):
        calls[f"{strange} losses were far off"] = 1.0 + 0.15 * strange
    speed = velocity_per_hour(curve)
    if speed is not None and len(curve) >= VELOCITY_POINTS and abs(speed[0]) < SLOW_PER_HOUR:
        calls[f"{speed[0]:+.1f} rating points per hour"] = 1.2
    if found is not None:
        calls["the plateau"] = found.exploration
    why = max(calls, key=lambda name: calls[name])
    wanted = calls[why]
    if wanted > 1.0:
        reasons.append(f"explore more: {why}")
        return wanted * (0.9 if promoted_in_a_row(state) else 1.0)
    if games.vs_heuristic is not None and games.vs_heuristic > STRONG_VS_HEURISTIC:
        reasons.append(f"{games.vs_heuristic:.0%} against the heuristic: less noise")
        return LESS_NOISE
    return 1.0


def _in_a_row(state: ConfigState, *, accepted: bool) -> int:
    """Models that nobody judged because a newer one was there say nothing either way."""
    verdicts = (_verdict(model) for model in reversed(state.models.values()))
    judged = islice((each for each in verdicts if each is not None), MODELS_SEEN)
    return sum(1 for _ in takewhile(lambda each: each is accepted, judged))


def _verdict(model: Model) -> bool | None:
    """Whether a model was promoted or refused; None while it is judged."""
    was = {state for _, state, _ in model.history}
    if ModelState.ROLLED_BACK in was or ModelState.REJECTED in was:
        return False
    return True if ModelState.PRODUCTION in was else None


def _between(low: float, value: float, high: float) -> float:
    return round(min(high, max(low, value)), 4)


# The rating curve of a config: its champions, since when, after how many rows, and how strong.


CURVE_POINTS_MAX = 500


def rating_curve(state: ConfigState) -> tuple[Curve, ...]:
    """Oldest first, without those that were taken back.

    A champion that has no chain of games to a baseline has no rating, and no point yet.
    """
    if not state.promotions:
        return ()
    ratings = rate(state.matches)
    changes = [
        change
        for change in state.promotions[-CURVE_POINTS_MAX:]
        if change.model in ratings and state.models[change.model].state is not ModelState.ROLLED_BACK
    ]
    if not changes:
        return ()
    errors = difference_errors(state.matches, changes[-1].model, {change.model for change in changes})
    return tuple(
        Curve(
            model=change.model,
            at_s=change.at_s,
            rows=change.rows,
            rating=ratings[change.model].rating,
            low=ratings[change.model].low,
            high=ratings[change.model].high,
            newest_difference_error=errors[change.model],
        )
        for change in changes
    )


class RatingCurves:
    """The curves of several configs, and what they ask for: made again only when there is a new result."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, ...], tuple[Curve, ...]]] = {}
        self._feedback: dict[str, tuple[int, Feedback]] = {}

    def feedback(self, state: ConfigState) -> Feedback:
        """What the results so far ask for; an order is no result."""
        mark = state.facts - state.issued.total()
        known = self._feedback.get(state.config)
        if known is None or known[0] != mark:
            known = (mark, feedback(state, self.of(state)))
            self._feedback[state.config] = known
        return known[1]

    def of(self, state: ConfigState) -> tuple[Curve, ...]:
        recalls = sum(not recall.withdrawn for recall in state.recalls.values())
        mark = (len(state.matches), len(state.promotions), state.rollbacks, len(state.recalls), recalls)
        known = self._known.get(state.config)
        if known is None or known[0] != mark:
            known = (mark, rating_curve(state))
            self._known[state.config] = known
        return known[1]


def config_view(state: ConfigState, curves: RatingCurves) -> ConfigView:
    """What the share of a config is made of."""
    curve = curves.of(state)
    pace = velocity_per_hour(curve)
    return ConfigView(
        config=state.config,
        rating=curve[-1].rating if curve else None,
        rate_per_hour=None if pace is None else pace[0],
        rate_error=0.0 if pace is None else pace[1],
        hours_served=sum(state.served_s.values()) / 3600,
        weight=curves.feedback(state).weight,
    )
