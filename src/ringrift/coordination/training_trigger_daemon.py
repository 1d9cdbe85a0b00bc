"""TRAINING_TRIGGER: trainings are planned while it runs; and why a config trains now, or does not.

The plan decides, with this daemon as one of its inputs; here its decision is shown per config, and a plateau
that asks for another curriculum is told. The modes stand for one purpose each: students, small networks, and
beginning with another config's champion are settings of the plan (`[learning.students]`,
`[learning.cascade]`), off unless somebody turns them on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from ringrift.coordination.run_coordinator import StageDaemon, get_loop_waker, get_situations
from ringrift.events.event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.controller import Controller
from ringrift.learning.facts.records import rows_missing, steps_to_train
from ringrift.learning.facts.state import ConfigState
from ringrift.learning.job_announcements import blob_path
from ringrift.learning.plan.orders import CASCADE_TOPIC as WARM_START
from ringrift.learning.plan.orders import source_name
from ringrift.learning.plan.rules import LearningRules
from ringrift.learning.plan.students import DISTILLATION, SMALL_NET
from ringrift.learning.situation import Situation, Situations
from ringrift.runtime import Runtime
from ringrift.work.coordinator import ConfigSignals, heard_by

COMPONENT = "training_trigger"
INTERVAL_S = 30.0
# Mode: the input of the plan that a daemon in this mode stands for.
_PLANS = {
    "full": "training_trigger",
    "distillation": "distillation",
    "small_net": "nnue_training",
    "cascade": "cascade_training",
}
# Mode: the stage of the plan that it shows.
_STAGES = {"distillation": DISTILLATION, "small_net": SMALL_NET}

_WAKE = frozenset(
    {
        "DATA_FRESH",
        "EVALUATION_COMPLETED",
        "HIGH_QUALITY_DATA_AVAILABLE",
        "NPZ_COMBINATION_COMPLETE",
        "NPZ_EXPORT_COMPLETE",
        "TRAINING_COMPLETED",
        "TRAINING_FAILED",
        "TRAINING_THRESHOLD_REACHED",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingDecision:
    """Whether a config trains now, and what that follows from."""

    config_key: str
    can_trigger: bool
    reason: str
    conditions: dict[str, Any] = field(default_factory=dict)
    data_info: dict[str, Any] = field(default_factory=dict)
    elo_info: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def decide(situation: Situation, *, will: bool, reason: str, now_s: float) -> TrainingDecision:
    """Put the plan's word on training and the numbers behind it together."""
    state = situation.state
    samples, curve = state.newest_samples, situation.curve
    return TrainingDecision(
        config_key=state.config,
        can_trigger=will,
        reason=reason,
        conditions=_conditions(state),
        data_info={
            "npz_path": None if samples is None else blob_path(samples.digest),
            "samples": 0 if samples is None else samples.rows,
            "age_hours": None if samples is None else max(0.0, now_s - samples.made_s) / 3600,
            "games": state.games,
            "rows": state.rows,
        },
        elo_info={
            "champion": state.champion,
            "rating": curve[-1].rating if curve else None,
            "interval": (curve[-1].low, curve[-1].high) if curve else None,
            "promotions": len(state.promotions),
        },
    )


def _conditions(state: ConfigState) -> dict[str, Any]:
    rules, has_model = state.bucket_rules, bool(state.models)
    failures = state.failures.get("train")
    return {
        "steps_available": state.bucket.available,
        "steps_to_train": steps_to_train(state.bucket, rules, rows_total=state.rows, has_model=has_model),
        "rows_missing": rows_missing(state.bucket, rules, rows_total=state.rows, has_model=has_model),
        "already_training": bool(state.open_of("train")),
        "failures_in_a_row": 0 if failures is None else failures.in_a_row,
        "blocked": {stage: block.reason for stage, block in state.blocks.items()},
    }


class TrainingTriggerDaemon(StageDaemon):
    """TRAINING_TRIGGER; in their modes, DISTILLATION, CASCADE_TRAINING and NNUE_TRAINING."""

    capability: ClassVar[str] = "training_trigger"
    emits: ClassVar[tuple[str, ...]] = ("CURRICULUM_ADVANCEMENT_NEEDED",)

    def __init__(
        self,
        mode: str = "full",
        *,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
        situations: Situations | None = None,
    ) -> None:
        name = COMPONENT if mode == "full" else f"{COMPONENT}_{mode}"
        super().__init__(name, cycle_interval=INTERVAL_S, router=router, runtime=runtime)
        self.mode, self.plans_as = mode, _PLANS[mode]
        self._situations = situations or get_situations()
        self.signals = ConfigSignals()
        self._plateaus: dict[str, int] = {}

    def _get_event_subscriptions(self) -> Mapping[Any, Callback]:
        # Up to four daemons are of this class; one of them is enough to wake the loop.
        return dict.fromkeys(heard_by(COMPONENT), self._on_event) if self.mode == "full" else {}

    def _on_event(self, event: RouterEvent) -> None:
        self.signals.note(event)
        if event.event_type in _WAKE:
            get_loop_waker().wake_for(event)

    async def _run_cycle(self) -> None:
        """Tell a plateau that began or grew: other opponents may help where more data does not."""
        if self.mode != "full":
            return
        for config, situation in self._situations.all().items():
            found = situation.feedback.plateau
            level, before = 0 if found is None else found.level, self._plateaus.get(config, 0)
            self._plateaus[config] = level
            if found is not None and level > before:
                needed = {"config_key": config, "reason": found.reason}
                await self._tell("CURRICULUM_ADVANCEMENT_NEEDED", needed)

    def decision(self, config_key: str) -> TrainingDecision:
        """Say whether *config_key* trains now and why."""
        situation = self._situations.get(config_key)
        if situation is None:
            reason = f"no run of {config_key} is open in this process"
            return TrainingDecision(config_key=config_key, can_trigger=False, reason=reason)
        will, reason = self._why(situation)
        return decide(situation, will=will, reason=reason, now_s=self._runtime.now_s())

    def decisions(self) -> dict[str, TrainingDecision]:
        return {config: self.decision(config) for config in self._situations.all()}

    def _why(self, situation: Situation) -> tuple[bool, str]:
        """What the plan says for the purpose of this mode."""
        loop, state = self._situations.loop, situation.state
        if loop is None or (off := self._off(loop.rules, state.config)):
            return False, "no run is open" if loop is None else off
        if self.mode == "cascade" and state.models:
            return False, "it has a network of its own to go on from"
        if self.mode == "cascade" and (note := state.newest_note(WARM_START)) is not None:
            return True, note.text
        return _words_of_the_plan(self._situations, state.config, _STAGES.get(self.mode, "train"))

    def _off(self, rules: LearningRules, config: str) -> str:
        """Why this mode has nothing to do by the settings; empty if it has."""
        if self.mode == "distillation" and rules.students.distillation is None:
            return "no student is wanted: set distillation in [learning.students]"
        if self.mode == "small_net" and not rules.students.small_net_games:
            return "no small network is wanted: set small_net_games in [learning.students]"
        if self.mode != "cascade":
            return ""
        if not rules.cascade.enabled:
            return "configs begin from nothing: set enabled in [learning.cascade]"
        return "" if source_name(config, rules.cascade) else f"{config} follows no other config"

    def get_status(self) -> dict[str, Any]:
        decided = {config: each.to_dict() for config, each in self.decisions().items()}
        return {**super().get_status(), "mode": self.mode, "decisions": decided}


def _words_of_the_plan(situations: Situations, config: str, stage: str) -> tuple[bool, str]:
    loop = situations.loop
    # Only a controller keeps plans; `RunningLoop` promises none.
    made = loop.plans.get(config) if isinstance(loop, Controller) else None
    if made is None:
        return False, "the plan has not been made yet"
    for said in made.explanations:
        if said.stage == stage:
            return said.will, said.reason
    return False, f"the plan says nothing of {stage}"


def create_training_trigger(
    settings: Mapping[str, str] | None = None,
    router: UnifiedEventRouter | None = None,
    runtime: Runtime | None = None,
) -> TrainingTriggerDaemon:
    """The daemon in the mode that its row of the daemon table names."""
    return TrainingTriggerDaemon((settings or {}).get("mode", "full"), router=router, runtime=runtime)
