"""GAUNTLET_FEEDBACK: which multipliers of the plan the results against baselines set, told on change.

The rule itself is part of `feedback_rules.feedback`: a player that is weak against random gets more games,
one that is strong against the heuristic plays with less noise.
"""

from __future__ import annotations

from typing import ClassVar

from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.feedback_rules import NEUTRAL, Feedback
from ringrift.learning.signals_face import Told
from ringrift.learning.signals_source import Situation, Situations
from ringrift.learning.situation_daemons import EvaluationWatcher
from ringrift.runtime import Runtime
from ringrift.status import HealthCheckResult

INTERVAL_S = 300.0
COOLDOWN_S = 300.0
_PARAMS = ("exploration", "weight")


class GauntletFeedbackController(EvaluationWatcher):
    """Looks at the results against baselines after every evaluation."""

    capability: ClassVar[str] = "training_feedback"
    plans_as = "gauntlet_feedback"
    emits: ClassVar[tuple[str, ...]] = ("HYPERPARAMETER_UPDATED",)

    def __init__(
        self,
        *,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
        situations: Situations | None = None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        super().__init__(
            "gauntlet_feedback", interval_s=interval_s, router=router, runtime=runtime, situations=situations
        )
        self._told: dict[str, Feedback] = {}
        self._told_s: dict[str, float] = {}

    async def _look(self, situation: Situation) -> None:
        config, now_s = situation.state.config, self._runtime.now_s()
        before, found = self._told.get(config, NEUTRAL), situation.feedback
        held_back = now_s - self._told_s.get(config, float("-inf")) < COOLDOWN_S
        if held_back or before.by_gauntlet == found.by_gauntlet:
            return
        self._told[config], self._told_s[config] = found, now_s
        for name, payload in _events(config, before, found):
            await self.router.publish(name, payload, self.name)

    def health_check(self) -> HealthCheckResult:
        in_force = {config: found.by_gauntlet for config, found in self._told.items() if found.by_gauntlet}
        return super().health_check().with_details(in_force=in_force)


def _events(config: str, before: Feedback, now: Feedback) -> list[Told]:
    """Each multiplier that the baselines set, or no longer set, with the value that is in force."""
    told: list[Told] = []
    for param in _PARAMS:
        if before.by_gauntlet.get(param) == now.by_gauntlet.get(param):
            continue
        sets = param in now.by_gauntlet
        reason = "; ".join(now.reasons) if sets else "results against the baselines are as expected"
        values = {"old_value": getattr(before, param), "new_value": getattr(now, param)}
        about = {"config_key": config, "param_name": param, "optimizer": "gauntlet", "reason": reason}
        told.append(("HYPERPARAMETER_UPDATED", {**about, **values}))
    return told
