"""Feedback: from results to what is done differently, and the daemons that tell of it.

The rule itself is `learning.judging.feedback`, which the plan uses too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

import msgspec

from ringrift.coordination.curriculum_integration import (
    CurriculumIntegration,
    CurriculumIntegrationDaemon,
    export_curriculum_weights,
    get_curriculum_integration,
    get_curriculum_weight,
    load_curriculum_weights,
    reset_curriculum_integration,
    wire_curriculum_events,
)
from ringrift.coordination.run_coordinator import AskedDaemon, EvaluationWatcher, LastSaid, SituationDaemon
from ringrift.engine.run_reports import reported, reported_health
from ringrift.events.event import Announcement, RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.intake import is_claim
from ringrift.learning.judging.feedback import (
    NEUTRAL,
    Feedback,
    Momentum,
    TrainingIntensity,
    feedback,
    momentum_of,
    passes_gate,
    quality_of,
)
from ringrift.learning.plan.training_data import freshness_of
from ringrift.learning.situation import Situation, Situations
from ringrift.learning.tuning import tuned_rules
from ringrift.process import getter_of, reset_of
from ringrift.runtime import Runtime
from ringrift.status import HealthCheckResult
from ringrift.work.coordinator import heard_by

__all__ = [
    "NEUTRAL",
    "ArchitectureFeedback",
    "CurriculumIntegration",
    "CurriculumIntegrationDaemon",
    "Feedback",
    "FeedbackLoopController",
    "FeedbackSignal",
    "FeedbackSignals",
    "GauntletFeedbackController",
    "Momentum",
    "SignalType",
    "TrainingIntensity",
    "export_curriculum_weights",
    "feedback",
    "get_curriculum_integration",
    "get_curriculum_weight",
    "get_feedback_loop_controller",
    "get_feedback_signals",
    "load_curriculum_weights",
    "momentum_of",
    "reset_curriculum_integration",
    "reset_feedback_loop_controller",
    "reset_feedback_signals",
    "wire_curriculum_events",
]


# ARCHITECTURE_FEEDBACK: which size of network the next trainings are spent on.


ARCHITECTURE_INTERVAL_S = 60.0


class ArchitectureFeedback(SituationDaemon):
    """Tells the size in force, when another one is: the settings', or one that a search showed to be better.

    A config trains one size at a time, so its weight is 1.
    """

    capability: ClassVar[str] = "training_feedback"
    plans_as = "architecture_feedback"
    interval_s = ARCHITECTURE_INTERVAL_S
    emits: ClassVar[tuple[str, ...]] = ("ARCHITECTURE_WEIGHTS_UPDATED",)

    def _set_up(self) -> None:
        self._reported = LastSaid(self._situations, self.plans_as, dict[str, float], {})

    def _get_event_subscriptions(self) -> Mapping[Any, Callback]:
        heard = ("EVALUATION_COMPLETED", "TRAINING_COMPLETED", "NAS_COMPLETED")
        return dict.fromkeys(heard, self._on_event)

    async def _on_event(self, event: RouterEvent) -> None:
        await self._look_at(event.payload.get("config_key"))

    async def _look(self, situation: Situation) -> None:
        config = situation.state.config
        before = await self._reported.of(config)
        weights = self.weights(config)
        if weights is None or weights == before:
            return
        self._reported.known[config] = weights
        await self.tell([("ARCHITECTURE_WEIGHTS_UPDATED", {"config_key": config, "weights": weights})])
        await self._reported.keep(config)

    def weights(self, config_key: str) -> dict[str, float] | None:
        """The size in force with its weight; None for a config that does not run here."""
        loop = self._situations.loop
        if loop is None or config_key not in loop.configs():
            return None
        return {tuned_rules(loop.state(config_key), loop.rules).preset: 1.0}

    def health_check(self) -> HealthCheckResult:
        return super().health_check().with_details(weights=dict(self._reported.known))


# GAUNTLET_FEEDBACK: which multipliers of the plan the results against baselines set, told on change.
#
# A player that is weak against random gets more games, one that is strong against the heuristic plays with
# less noise.


GAUNTLET_INTERVAL_S = 300.0
GAUNTLET_COOLDOWN_S = 300.0
_PARAMS = ("exploration", "weight")


class GauntletFeedbackController(EvaluationWatcher):
    """Looks at the results against baselines after every evaluation."""

    capability: ClassVar[str] = "training_feedback"
    plans_as = "gauntlet_feedback"
    interval_s = GAUNTLET_INTERVAL_S
    emits: ClassVar[tuple[str, ...]] = ("HYPERPARAMETER_UPDATED",)

    def _set_up(self) -> None:
        self._reported = LastSaid(self._situations, self.plans_as, Feedback, NEUTRAL)
        self._reported_s: dict[str, float] = {}

    async def _look(self, situation: Situation) -> None:
        config, now_s = situation.state.config, self._runtime.now_s()
        # Compared with what was told last, so that a change during the cooldown is told after it.
        before, found = await self._reported.of(config), situation.feedback
        held_back = now_s - self._reported_s.get(config, float("-inf")) < GAUNTLET_COOLDOWN_S
        if held_back or before.by_gauntlet == found.by_gauntlet:
            return
        self._reported.known[config], self._reported_s[config] = _in_numbers(found), now_s
        await self.tell(_gauntlet_events(config, before, found))
        await self._reported.keep(config)

    def health_check(self) -> HealthCheckResult:
        events = self._reported.known.items()
        in_force = {config: found.by_gauntlet for config, found in events if found.by_gauntlet}
        return super().health_check().with_details(in_force=in_force)


def _in_numbers(found: Feedback) -> Feedback:
    """What a later change is compared with; the words are for whoever heard it."""
    return msgspec.structs.replace(found, plateau=None, reasons=())


def _gauntlet_events(config: str, before: Feedback, now: Feedback) -> list[Announcement]:
    """Each multiplier that the baselines set, or no longer set, with the value that is in force."""
    events: list[Announcement] = []
    for param in _PARAMS:
        if before.by_gauntlet.get(param) == now.by_gauntlet.get(param):
            continue
        sets = param in now.by_gauntlet
        reason = "; ".join(now.reasons) if sets else "results against the baselines are as expected"
        values = {"old_value": getattr(before, param), "new_value": getattr(now, param)}
        about = {"config_key": config, "param_name": param, "optimizer": "gauntlet", "reason": reason}
        events.append(("HYPERPARAMETER_UPDATED", {**about, **values}))
    return events


# Signals: what other parts of the system said that feedback listens to, newest kept per config.
#
# A signal is a hint with a time. It makes the feedback look again at once; what feedback decides follows from
# the state of the run alone.


HISTORY_MAX = 1_000
CONFIGS_MAX = 1_000


class SignalType(StrEnum):
    """What a signal is about."""

    INTENSITY = "intensity"
    EXPLORATION = "exploration"
    CURRICULUM = "curriculum"
    FRESHNESS = "freshness"
    QUALITY = "quality"
    REGRESSION = "regression"
    PROMOTION = "promotion"


@dataclass(frozen=True, slots=True)
class FeedbackSignal:
    """One signal."""

    signal_type: SignalType
    config_key: str  # empty: about the whole system
    value: float | None
    source: str
    reason: str
    at_s: float


@dataclass(frozen=True, slots=True)
class _Meaning:
    """How an event is read: its type, and the field that holds its number."""

    signal_type: SignalType
    field: str = ""


_INTENSITY, _EXPLORATION = SignalType.INTENSITY, SignalType.EXPLORATION
_REGRESSION, _PROMOTION = SignalType.REGRESSION, SignalType.PROMOTION
MEANINGS: Mapping[str, _Meaning] = {
    "CLUSTER_CAPACITY_CHANGED": _Meaning(_INTENSITY, "available_gpus"),
    "CMAES_COMPLETED": _Meaning(_INTENSITY, "best_score"),
    "CPU_PIPELINE_JOB_COMPLETED": _Meaning(SignalType.FRESHNESS, "duration_seconds"),
    "CURRICULUM_ADVANCED": _Meaning(SignalType.CURRICULUM, "elo"),
    "DATABASE_CREATED": _Meaning(SignalType.FRESHNESS),
    "DATA_FRESH": _Meaning(SignalType.FRESHNESS, "data_age_hours"),
    "ELO_VELOCITY_CHANGED": _Meaning(_INTENSITY, "velocity"),
    "EVALUATION_COMPLETED": _Meaning(_INTENSITY, "win_rate"),
    "EVALUATION_FAILED": _Meaning(_INTENSITY),
    "HEALTH_CHECK_FAILED": _Meaning(_INTENSITY, "consecutive_failures"),
    "HIGH_QUALITY_DATA_AVAILABLE": _Meaning(SignalType.QUALITY, "avg_quality"),
    "ITERATION_COMPLETED": _Meaning(_INTENSITY, "duration_seconds"),
    "MODEL_PROMOTED": _Meaning(_PROMOTION, "elo"),
    "NAS_COMPLETED": _Meaning(_INTENSITY, "best_score"),
    "P2P_CLUSTER_UNHEALTHY": _Meaning(_INTENSITY, "healthy_nodes"),
    "PBT_COMPLETED": _Meaning(_INTENSITY, "best_score"),
    "PLATEAU_DETECTED": _Meaning(_EXPLORATION, "current_value"),
    "PROMOTION_REJECTED": _Meaning(_PROMOTION, "elo_improvement"),
    "QUALITY_CHECK_FAILED": _Meaning(SignalType.QUALITY, "last_quality"),
    "QUALITY_DEGRADED": _Meaning(SignalType.QUALITY, "quality_score"),
    "QUALITY_FEEDBACK_ADJUSTED": _Meaning(SignalType.QUALITY, "budget_multiplier"),
    "QUALITY_SCORE_UPDATED": _Meaning(SignalType.QUALITY, "quality_score"),
    "REGRESSION_DETECTED": _Meaning(_REGRESSION, "elo_drop"),
    "REGRESSION_MINOR": _Meaning(_REGRESSION, "elo_drop"),
    "REGRESSION_MODERATE": _Meaning(_REGRESSION, "elo_drop"),
    "SCHEDULER_REGISTERED": _Meaning(SignalType.CURRICULUM),
    "SELFPLAY_RATE_CHANGED": _Meaning(SignalType.CURRICULUM, "new_rate"),
    "TRAINING_COMPLETED": _Meaning(_INTENSITY, "val_loss"),
    "TRAINING_EARLY_STOPPED": _Meaning(_INTENSITY, "best_loss"),
    "TRAINING_LOSS_ANOMALY": _Meaning(_EXPLORATION, "anomaly_ratio"),
    "TRAINING_LOSS_TREND": _Meaning(_INTENSITY, "improvement_rate"),
    "TRAINING_ROLLBACK_COMPLETED": _Meaning(_REGRESSION),
    "TRAINING_ROLLBACK_NEEDED": _Meaning(_REGRESSION),
    "WORK_COMPLETED": _Meaning(_INTENSITY, "duration_seconds"),
    "WORK_FAILED": _Meaning(_INTENSITY, "attempts"),
    "WORK_TIMEOUT": _Meaning(_INTENSITY, "duration_seconds"),
}


def read_signal(event_type: str, payload: Mapping[str, Any], *, at_s: float) -> FeedbackSignal | None:
    """What an event says to the feedback; None if nothing."""
    meaning = MEANINGS.get(event_type)
    if meaning is None:
        return None
    value = payload.get(meaning.field) if meaning.field else None
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    words = (payload.get(name) for name in ("reason", "recommendation", "error", "trend"))
    reason = next((str(word) for word in words if word), event_type.lower().replace("_", " "))
    config = str(payload.get("config_key") or "")
    return FeedbackSignal(meaning.signal_type, config, number, event_type, reason[:300], at_s)


class FeedbackSignals:
    """The last thousand signals, and the newest of each type per config."""

    def __init__(self) -> None:
        self._history: deque[FeedbackSignal] = deque(maxlen=HISTORY_MAX)
        self._latest: dict[str, dict[SignalType, FeedbackSignal]] = {}
        self.total = 0

    def add(self, signal: FeedbackSignal) -> None:
        self.total += 1
        self._history.append(signal)
        self._latest.setdefault(signal.config_key, {})[signal.signal_type] = signal
        # Keys come from payloads that anybody may publish, so their number needs a bound.
        while len(self._latest) > CONFIGS_MAX:
            del self._latest[next(iter(self._latest))]

    def latest(self, config_key: str) -> dict[SignalType, FeedbackSignal]:
        return dict(self._latest.get(config_key, {}))

    def history(
        self, limit: int = 100, *, config_key: str | None = None, signal_type: SignalType | None = None
    ) -> list[FeedbackSignal]:
        """Up to *limit* signals, oldest first."""
        found = [
            each
            for each in self._history
            if config_key in (None, each.config_key) and signal_type in (None, each.signal_type)
        ]
        return found[-limit:] if limit > 0 else []


get_feedback_signals = getter_of("get_feedback_signals", FeedbackSignals)
reset_feedback_signals = reset_of("reset_feedback_signals", FeedbackSignals)


# FEEDBACK_LOOP: tells what the results of each config changed in its plan, when that changes: the values that
# are in force, as events, and to whoever asks `get_feedback`.


INTERVAL_S = 30.0
CHANGE_MIN = 0.05
SOURCE = "feedback_loop"


class _Said(msgspec.Struct, frozen=True, kw_only=True):
    """What was said of one config."""

    feedback: Feedback = NEUTRAL
    budget: float = 1.0
    penalty: float = 0.0
    asked_for_check: bool = False


class FeedbackLoopController(AskedDaemon):
    """The feedback of every config, told on change. Small changes are held back."""

    capability: ClassVar[str] = "training_feedback"
    plans_as = SOURCE
    interval_s = INTERVAL_S
    emits: ClassVar[tuple[str, ...]] = (
        "ADAPTIVE_PARAMS_CHANGED",
        "EXPLORATION_ADJUSTED",
        "EXPLORATION_BOOST",
        "HYPERPARAMETER_UPDATED",
        "QUALITY_CHECK_REQUESTED",
        "QUALITY_FEEDBACK_ADJUSTED",
        "QUALITY_PENALTY_APPLIED",
    )

    def __init__(
        self,
        *,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
        situations: Situations | None = None,
        signals: FeedbackSignals | None = None,
        interval_s: float | None = None,
    ) -> None:
        super().__init__(router=router, runtime=runtime, situations=situations, interval_s=interval_s)
        self.signals = signals or get_feedback_signals()
        self._said = LastSaid(self._situations, self.plans_as, _Said, _Said())

    def _get_event_subscriptions(self) -> Mapping[Any, Callback]:
        return dict.fromkeys(heard_by(SOURCE), self._on_event)

    async def _on_event(self, event: RouterEvent) -> None:
        """Keep the signal, and look at its config at once."""
        # Its own events would make it look again at what it has just told.
        if event.source == self.name or is_claim(event):
            return  # the loop tells what was claimed itself once it has taken it in
        signal = read_signal(event.event_type, event.payload, at_s=self._runtime.now_s())
        if signal is None:
            return
        self.signals.add(signal)
        await self._look_at(signal.config_key)

    async def _look(self, situation: Situation) -> None:
        config = situation.state.config
        before = await self._said.of(config)
        (events, said), found = _quality_events(situation, before), in_force(situation)
        # However soon after the last: the next order goes by it, and what was told must be what is in force.
        if worth_telling(before.feedback, found):
            events += feedback_events(config, before.feedback, found)
            said = msgspec.structs.replace(said, feedback=_in_numbers(found))
        self._said.known[config] = said
        await self.tell(events)
        if said != before:
            await self._said.keep(config)

    # --- what it knows --------------------------------------------------------------------------------------

    def get_feedback(self, config_key: str) -> Feedback:
        """What is in force for *config_key* by its results; neutral for a config that no run has."""
        situation = self._answers.get(config_key)
        return NEUTRAL if situation is None else in_force(situation)

    @reported
    def get_summary(self) -> dict[str, dict[str, Any]]:
        """The feedback of every config, with its reasons, and how fresh its games are."""
        now_s = self._runtime.now_s()
        return {
            config: {
                **in_force(situation).numbers(),
                "freshness": freshness_of(situation.state, now_s=now_s).reason,
                "intensity": situation.feedback.intensity.word,
                "momentum": situation.feedback.momentum.value,
                "reasons": list(situation.feedback.reasons),
            }
            for config, situation in self._situations.all().items()
        }

    @reported_health
    def health_check(self) -> HealthCheckResult:
        details = {"configs": self.get_summary(), "signals": self.signals.total}
        return super().health_check().with_details(**details)


def in_force(situation: Situation) -> Feedback:
    """The feedback as the plan goes by it: the price of a row changes only where the rules let it."""
    return msgspec.structs.replace(situation.feedback, steps_per_row=situation.state.price)


def worth_telling(before: Feedback, now: Feedback) -> bool:
    """Whether a change is large enough for others to act on."""
    if before.intensity is not now.intensity:
        return True
    old, new = before.numbers(), now.numbers()
    return any(abs(new[name] - old[name]) >= CHANGE_MIN for name in new)


def feedback_events(config: str, before: Feedback, now: Feedback) -> list[Announcement]:
    """A change of feedback as events."""
    reason = "; ".join(now.reasons) or "nothing unusual any more"
    params = {**now.numbers(), "intensity": now.intensity.word}
    events: list[Announcement] = [
        ("ADAPTIVE_PARAMS_CHANGED", {"config_key": config, "params": params, "reason": reason})
    ]
    if abs(now.exploration - before.exploration) >= CHANGE_MIN:
        adjusted = {"exploration": now.exploration, "previous": before.exploration, "reason": reason}
        events.append(("EXPLORATION_ADJUSTED", {"config_key": config, **adjusted}))
        if now.exploration > max(1.0, before.exploration):
            boost = {"boost_factor": now.exploration, "reason": reason}
            events.append(("EXPLORATION_BOOST", {"config_key": config, **boost}))
    if abs(now.learning_rate - before.learning_rate) >= CHANGE_MIN:
        changed = {"param_name": "learning_rate_multiplier", "optimizer": "feedback", "reason": reason}
        values = {"old_value": before.learning_rate, "new_value": now.learning_rate}
        events.append(("HYPERPARAMETER_UPDATED", {"config_key": config, **changed, **values}))
    return events


def _quality_events(situation: Situation, said: _Said) -> tuple[list[Announcement], _Said]:
    """What the quality of games changed in the plan, and a second look at games that are too poor."""
    config, view, found = situation.state.config, quality_of(situation.state), situation.feedback
    if view.score is None:
        return [], said
    events: list[Announcement] = []
    if found.quality_budget != said.budget:
        kind = "increase" if found.quality_budget > said.budget else "decrease"
        budget = {"budget_multiplier": found.quality_budget, "old_multiplier": said.budget}
        about = {"config_key": config, "quality_score": view.score, "adjustment_type": kind}
        events.append(("QUALITY_FEEDBACK_ADJUSTED", {**about, **budget}))
    if found.quality_penalty > said.penalty:
        reason = f"the newest {view.games} games score {view.score:.2f}"
        penalty = {"penalty": found.quality_penalty, "rate_multiplier": found.learning_rate}
        about = {"config_key": config, "current_weight": found.weight, "reason": reason}
        events.append(("QUALITY_PENALTY_APPLIED", {**about, **penalty}))
    low = not passes_gate(config, view)
    if low and not said.asked_for_check:
        reason = f"the newest games score {view.score:.2f}"
        events.append(
            ("QUALITY_CHECK_REQUESTED", {"config_key": config, "reason": reason, "priority": "high"})
        )
    now = {"budget": found.quality_budget, "penalty": found.quality_penalty, "asked_for_check": low}
    return events, msgspec.structs.replace(said, **now)


get_feedback_loop_controller = getter_of("get_feedback_loop_controller", FeedbackLoopController)
reset_feedback_loop_controller = FeedbackLoopController.reset_instance
