"""FEEDBACK_LOOP: tells what the results of each config changed in its plan, when that changes.

The feedback itself is `feedback_rules.feedback`, which the plan uses too. This daemon tells the values that
are in force: as events, and to whoever asks `get_feedback`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from ringrift.engine.run_reports import reported, reported_health
from ringrift.events.routed_event import RouterEvent
from ringrift.events.router import get_router
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.feedback_rules import NEUTRAL, Feedback
from ringrift.learning.freshness_view import freshness_of
from ringrift.learning.quality_scores import passes_gate, quality_of
from ringrift.learning.signals import FeedbackSignals, get_feedback_signals, read_signal
from ringrift.learning.signals_face import Told, heard_by
from ringrift.learning.signals_source import Situation, Situations, get_situations
from ringrift.runtime import Runtime
from ringrift.status import HealthCheckResult
from ringrift.work.stages import StageDaemon

INTERVAL_S = 30.0
COOLDOWN_S = 300.0
CHANGE_MIN = 0.05
SOURCE = "feedback_loop"


@dataclass(slots=True)
class _Said:
    """What was said of one config, and when."""

    feedback: Feedback = NEUTRAL
    at_s: float = float("-inf")
    budget: float = 1.0
    penalty: float = 0.0
    asked_for_check: bool = False


class FeedbackLoopController(StageDaemon):
    """The feedback of every config, told on change; small changes and quick ones are held back."""

    capability: ClassVar[str] = "training_feedback"
    plans_as = "feedback_loop"
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
        interval_s: float = INTERVAL_S,
    ) -> None:
        super().__init__(SOURCE, cycle_interval=interval_s, router=router, runtime=runtime)
        self.router = router or get_router()
        self._situations = situations or get_situations()
        self.signals = signals or get_feedback_signals()
        self._said: dict[str, _Said] = {}

    def _get_event_subscriptions(self) -> Mapping[Any, Callback]:
        return dict.fromkeys(heard_by(SOURCE), self._on_event)

    async def _on_event(self, event: RouterEvent) -> None:
        """Keep the signal, and look at its config at once."""
        if event.source == self.name:
            return
        signal = read_signal(event.event_type, event.payload, at_s=self._runtime.now_s())
        if signal is None:
            return
        self.signals.add(signal)
        situation = self._situations.get(signal.config_key)
        if situation is not None:
            await self._look(situation)

    async def _run_cycle(self) -> None:
        for situation in self._situations.all().values():
            await self._look(situation)

    async def _look(self, situation: Situation) -> None:
        config = situation.state.config
        said = self._said.setdefault(config, _Said())
        told = _quality_events(situation, said)
        now_s, found = self._runtime.now_s(), in_force(situation)
        if now_s - said.at_s >= COOLDOWN_S and worth_telling(said.feedback, found):
            told += feedback_events(config, said.feedback, found)
            said.feedback, said.at_s = found, now_s
        for name, payload in told:
            await self.router.publish(name, payload, self.name)

    # --- what it knows --------------------------------------------------------------------------------------

    def get_feedback(self, config_key: str) -> Feedback:
        """What is in force for *config_key* by its results; neutral for a config that does not run here."""
        situation = self._situations.get(config_key)
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


def feedback_events(config: str, before: Feedback, now: Feedback) -> list[Told]:
    """A change of feedback as events."""
    reason = "; ".join(now.reasons) or "nothing unusual any more"
    params = {**now.numbers(), "intensity": now.intensity.word}
    told: list[Told] = [
        ("ADAPTIVE_PARAMS_CHANGED", {"config_key": config, "params": params, "reason": reason})
    ]
    if abs(now.exploration - before.exploration) >= CHANGE_MIN:
        adjusted = {"exploration": now.exploration, "previous": before.exploration, "reason": reason}
        told.append(("EXPLORATION_ADJUSTED", {"config_key": config, **adjusted}))
        if now.exploration > max(1.0, before.exploration):
            boost = {"boost_factor": now.exploration, "reason": reason}
            told.append(("EXPLORATION_BOOST", {"config_key": config, **boost}))
    if abs(now.learning_rate - before.learning_rate) >= CHANGE_MIN:
        changed = {"param_name": "learning_rate_multiplier", "optimizer": "feedback", "reason": reason}
        values = {"old_value": before.learning_rate, "new_value": now.learning_rate}
        told.append(("HYPERPARAMETER_UPDATED", {"config_key": config, **changed, **values}))
    return told


def _quality_events(situation: Situation, said: _Said) -> list[Told]:
    """What the quality of games changed in the plan, and a second look at games that are too poor."""
    config, view, found = situation.state.config, quality_of(situation.state), situation.feedback
    if view.score is None:
        return []
    told: list[Told] = []
    if found.quality_budget != said.budget:
        kind = "increase" if found.quality_budget > said.budget else "decrease"
        budget = {"budget_multiplier": found.quality_budget, "old_multiplier": said.budget}
        about = {"config_key": config, "quality_score": view.score, "adjustment_type": kind}
        told.append(("QUALITY_FEEDBACK_ADJUSTED", {**about, **budget}))
    if found.quality_penalty > said.penalty:
        reason = f"the newest {view.games} games score {view.score:.2f}"
        penalty = {"penalty": found.quality_penalty, "rate_multiplier": found.learning_rate}
        about = {"config_key": config, "current_weight": found.weight, "reason": reason}
        told.append(("QUALITY_PENALTY_APPLIED", {**about, **penalty}))
    said.budget, said.penalty = found.quality_budget, found.quality_penalty
    low = not passes_gate(config, view)
    if low and not said.asked_for_check:
        reason = f"the newest games score {view.score:.2f}"
        told.append(("QUALITY_CHECK_REQUESTED", {"config_key": config, "reason": reason, "priority": "high"}))
    said.asked_for_check = low
    return told


def get_feedback_loop_controller() -> FeedbackLoopController:
    return FeedbackLoopController.get_instance()
