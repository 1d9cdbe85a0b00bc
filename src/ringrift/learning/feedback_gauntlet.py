"""GAUNTLET_FEEDBACK: what results against the baselines ask for.

The effect on the plan is part of `feedback_rules.feedback`; this daemon tells it, once per change.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.feedback_rules import STRONG_VS_HEURISTIC, Gauntlet, gauntlet_of
from ringrift.learning.signals_face import Told
from ringrift.learning.signals_source import Situation, Situations
from ringrift.learning.situation_daemons import EvaluationWatcher
from ringrift.runtime import Runtime
from ringrift.status import HealthCheckResult

INTERVAL_S = 300.0
COOLDOWN_S = 300.0
EXTRA_GAMES = 5_000


class GauntletAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """What a result against the baselines asks for."""

    temperature: float = 1.0  # multiplier
    quality_bar: float = 0.0  # added
    extra_games: int = 0
    epochs: float = 1.0  # multiplier
    reason: str = ""


def gauntlet_advice(result: Gauntlet) -> GauntletAdvice:
    """Weakness comes first: a player that loses to random has nothing to refine."""
    if result.vs_random is not None and result.vs_random < result.weak_below:
        reason = f"{result.vs_random:.0%} against random, below {result.weak_below:.0%}"
        return GauntletAdvice(extra_games=EXTRA_GAMES, epochs=1.5, reason=reason)
    if result.vs_heuristic is not None and result.vs_heuristic > STRONG_VS_HEURISTIC:
        reason = f"{result.vs_heuristic:.0%} against the heuristic, above {STRONG_VS_HEURISTIC:.0%}"
        return GauntletAdvice(temperature=0.8, quality_bar=0.05, reason=reason)
    return GauntletAdvice()


class GauntletFeedbackController(EvaluationWatcher):
    """Looks at the results against baselines after every evaluation."""

    capability: ClassVar[str] = "training_feedback"
    plans_as = "gauntlet_feedback"
    emits: ClassVar[tuple[str, ...]] = ("HYPERPARAMETER_UPDATED", "SELFPLAY_TARGET_UPDATED")

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
        self._advice: dict[str, GauntletAdvice] = {}
        self._told_s: dict[str, float] = {}

    async def _look(self, situation: Situation) -> None:
        config, now_s = situation.state.config, self._runtime.now_s()
        before = self._advice.get(config, GauntletAdvice())
        advice = gauntlet_advice(gauntlet_of(situation.state))
        if now_s - self._told_s.get(config, float("-inf")) < COOLDOWN_S or _same(before, advice):
            return
        self._advice[config], self._told_s[config] = advice, now_s
        for name, payload in _events(config, before, advice):
            await self.router.publish(name, payload, self.name)

    def advice(self, config_key: str) -> GauntletAdvice:
        situation = self._situations.get(config_key)
        return GauntletAdvice() if situation is None else gauntlet_advice(gauntlet_of(situation.state))

    def health_check(self) -> HealthCheckResult:
        reasons = {config: advice.reason for config, advice in self._advice.items() if advice.reason}
        return super().health_check().with_details(advice=reasons)


def _same(before: GauntletAdvice, now: GauntletAdvice) -> bool:
    """Whether it asks for the same, whatever the exact rate."""
    return msgspec.structs.replace(before, reason="") == msgspec.structs.replace(now, reason="")


def _events(config: str, before: GauntletAdvice, now: GauntletAdvice) -> list[Told]:
    told: list[Told] = []
    reason = now.reason or "results against the baselines are as expected"
    for param in ("temperature", "epochs", "quality_bar"):
        old, new = getattr(before, param), getattr(now, param)
        if old != new:
            values = {"param_name": param, "old_value": old, "new_value": new}
            about = {"config_key": config, "optimizer": "gauntlet", "reason": reason}
            told.append(("HYPERPARAMETER_UPDATED", {**about, **values}))
    if now.extra_games and not before.extra_games:
        wanted = {"extra_games": now.extra_games, "priority": "high", "reason": reason}
        told.append(("SELFPLAY_TARGET_UPDATED", {"config_key": config, **wanted}))
    return told
