"""ARCHITECTURE_FEEDBACK: how much effort each network size deserves, by what tuning runs found."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from ringrift.events.routed_event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.signals_source import Situations
from ringrift.learning.situation_daemons import SituationDaemon
from ringrift.learning.state import ConfigState
from ringrift.runtime import Runtime
from ringrift.status import HealthCheckResult

INTERVAL_S = 60.0
WEIGHT_MIN = 0.1
CHANGE_MIN = 0.02
TOPIC = "architecture"  # of the notes that a finished search leaves
PRESETS = ("small", "medium", "large")
SHARPNESS = 4.0  # a score ahead by a quarter weighs e times as much


def architecture_weights(scores: Mapping[str, float]) -> dict[str, float]:
    """Weights that sum to 1, at least a tenth each; a size without a score counts as the mean."""
    names = sorted({*PRESETS, *scores})
    mean = math.fsum(scores.values()) / len(scores) if scores else 0.0
    raw = {name: math.exp(SHARPNESS * (scores.get(name, mean) - mean)) for name in names}
    total = math.fsum(raw.values())
    spare = 1.0 - WEIGHT_MIN * len(names)
    return {name: round(WEIGHT_MIN + spare * value / total, 4) for name, value in raw.items()}


def architecture_scores(state: ConfigState) -> dict[str, float]:
    """Score by size, from the newest note that has one."""
    for note in reversed(state.notes):
        scores = note.details.get("scores")
        if note.topic == TOPIC and isinstance(scores, Mapping):
            return {str(name): float(score) for name, score in scores.items()}
    return {}


class ArchitectureFeedback(SituationDaemon):
    """Tells the weights when what is known of the sizes changes."""

    capability: ClassVar[str] = "training_feedback"
    plans_as = "architecture_feedback"
    emits: ClassVar[tuple[str, ...]] = ("ARCHITECTURE_WEIGHTS_UPDATED",)

    def __init__(
        self,
        *,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
        situations: Situations | None = None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        super().__init__(
            "architecture_feedback",
            interval_s=interval_s,
            router=router,
            runtime=runtime,
            situations=situations,
        )
        self._told: dict[str, dict[str, float]] = {}

    def _get_event_subscriptions(self) -> Mapping[Any, Callback]:
        heard = ("EVALUATION_COMPLETED", "TRAINING_COMPLETED", "NAS_COMPLETED")
        return dict.fromkeys(heard, self._on_event)

    async def _on_event(self, event: RouterEvent) -> None:
        await self._look(str(event.payload.get("config_key")))

    async def _run_cycle(self) -> None:
        for config in self._situations.all():
            await self._look(config)

    async def _look(self, config: str) -> None:
        weights, before = self.weights(config), self._told.get(config)
        if weights is None or (before is not None and _close(before, weights)):
            return
        self._told[config] = weights
        await self.router.publish(
            "ARCHITECTURE_WEIGHTS_UPDATED", {"config_key": config, "weights": weights}, self.name
        )

    def weights(self, config_key: str) -> dict[str, float] | None:
        """The weights now; None for a config that does not run here."""
        situation = self._situations.get(config_key)
        return None if situation is None else architecture_weights(architecture_scores(situation.state))

    def health_check(self) -> HealthCheckResult:
        return super().health_check().with_details(weights=dict(self._told))


def _close(before: Mapping[str, float], now: Mapping[str, float]) -> bool:
    return before.keys() == now.keys() and all(abs(before[name] - now[name]) < CHANGE_MIN for name in now)
