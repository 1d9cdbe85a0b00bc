"""CURRICULUM_INTEGRATION: effort per config as curriculum weights, tiers, and opponents that are mastered.

The weights are a view of the shares of self-play, which the plan of the run follows. There is one table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ringrift.engine.run_reports import reported
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.curriculum_weights import (
    curriculum_file,
    export_curriculum_weights,
    get_curriculum_weight,
    load_curriculum_weights,
)
from ringrift.learning.signals_face import ListeningCoordinator, Told
from ringrift.learning.signals_source import Situation, Situations
from ringrift.learning.state import ConfigState
from ringrift.runtime import Runtime
from ringrift.status import HealthCheckResult
from ringrift.work.shares import curriculum_weights
from ringrift.work.stages import StageDaemon

__all__ = [
    "CurriculumIntegration",
    "CurriculumIntegrationDaemon",
    "curriculum_file",
    "export_curriculum_weights",
    "get_curriculum_integration",
    "get_curriculum_weight",
    "load_curriculum_weights",
    "reset_curriculum_integration",
    "tier_of",
    "wire_curriculum_events",
]

INTERVAL_S = 120.0
WRITE_S = 3_600.0  # well within the age at which readers stop to believe the file
CHANGE_MIN = 0.05
MASTERED_RATE = 0.85
MASTERED_GAMES_MIN = 30
OPPONENTS_MAX = 1_000
MATCHES_SEEN = 2_000
TIERS = (
    (2000.0, "master"),
    (1800.0, "expert"),
    (1650.0, "production"),
    (1500.0, "advanced"),
    (1200.0, "intermediate"),
    (800.0, "novice"),
)
UNRATED = "unrated"


def tier_of(rating: float | None) -> str:
    """The tier of a rating, by the documents' ladder."""
    if rating is None:
        return UNRATED
    return next((name for least, name in TIERS if rating >= least), "beginner")


@dataclass(slots=True)
class _Told:
    """What was said of one config."""

    tier: str | None = None
    mastered: set[tuple[str, str]] = field(default_factory=set)  # model, opponent


class CurriculumIntegration(ListeningCoordinator):
    """Hears whatever may move effort, looks at the run, and tells what moved."""

    component: ClassVar[str] = "curriculum_integration"
    emits: ClassVar[tuple[str, ...]] = (
        "CURRICULUM_ADVANCED",
        "CURRICULUM_REBALANCED",
        "CURRICULUM_UPDATED",
        "OPPONENT_MASTERED",
        "WEIGHT_UPDATED",
    )

    def __init__(self, *, path: Path | None = None, **parts: Any) -> None:
        super().__init__(**parts)
        self._path = path
        self._weights: dict[str, float] = {}
        self._told: dict[str, _Told] = {}
        self._written_s = float("-inf")
        self._trigger = "first look"

    async def _on_event(self, event_type: str, _payload: Mapping[str, Any], /) -> None:
        self._trigger = event_type.lower()
        await self.judge()

    async def judge(self) -> None:
        """Look at all configs, tell what changed, and keep the file fresh."""
        situations = self._situations.all()
        if not situations:
            return
        trigger, self._trigger = self._trigger, "interval"
        weights = curriculum_weights({config: each.share for config, each in situations.items()})
        told = self._rebalanced(weights, trigger)
        for config, situation in situations.items():
            memory = self._told.setdefault(config, _Told())
            told += _advanced(situation, memory, trigger) + _mastered(situation.state, memory)
        stale = self._runtime.now_s() - self._written_s > WRITE_S
        if stale or self._weights is weights:
            await self._write(weights)
        await self.tell(told)

    def weights(self) -> dict[str, float]:
        """The weights now; {} while there is no run."""
        return _weights(self._answers)

    @reported
    def get_metrics(self) -> dict[str, Any]:
        """Of the run in this process: health is asked often, and must not wait for the store."""
        tiers = {config: told.tier for config, told in self._told.items()}
        return {**super().get_metrics(), "weights": _weights(self._situations), "tiers": tiers}

    async def _write(self, weights: Mapping[str, float]) -> None:
        await asyncio.to_thread(export_curriculum_weights, weights, self._path, runtime=self._runtime)
        self._written_s = self._runtime.now_s()

    def _rebalanced(self, weights: dict[str, float], trigger: str) -> list[Told]:
        before = self._weights
        changed = {
            config: weight
            for config, weight in weights.items()
            if abs(weight - before.get(config, 0.0)) >= CHANGE_MIN
        }
        if not changed and before.keys() == weights.keys():
            return []
        self._weights = weights
        reason = "the shares of self-play moved"
        table = {"weights": weights, "previous_weights": before, "changed_configs": sorted(changed)}
        told: list[Told] = [("CURRICULUM_REBALANCED", {**table, "trigger": trigger, "reason": reason})]
        for config, weight in changed.items():
            one = {"config_key": config, "new_weight": weight, "trigger": trigger, "all_weights": weights}
            told.append(("CURRICULUM_UPDATED", one))
            old = {"component": "share", "old_weight": before.get(config, 1.0), "new_weight": weight}
            moved = {"config_key": config, **old, "reason": reason, "trigger_event": trigger}
            told.append(("WEIGHT_UPDATED", moved))
        return told


def _weights(situations: Situations) -> dict[str, float]:
    return curriculum_weights({config: each.share for config, each in situations.all().items()})


def _advanced(situation: Situation, memory: _Told, trigger: str) -> list[Told]:
    """A champion in a higher tier than the one before."""
    rating = situation.curve[-1].rating if situation.curve else None
    tier, before = tier_of(rating), memory.tier
    memory.tier = tier
    if before is None or _rank(tier) <= _rank(before) or rating is None:
        return []
    moved = {"old_tier": before, "new_tier": tier, "trigger": trigger, "elo": rating}
    return [("CURRICULUM_ADVANCED", {"config_key": situation.state.config, **moved})]


def _rank(tier: str) -> int:
    order = [UNRATED, "beginner", *(name for _, name in reversed(TIERS))]
    return order.index(tier)


def _mastered(state: ConfigState, memory: _Told) -> list[Told]:
    """Baselines that the champion beats nearly always, each told once per champion."""
    played: dict[str, tuple[float, int]] = {}
    for match in state.matches[-MATCHES_SEEN:]:
        if match.first == state.champion and not match.recalled and match.second not in state.models:
            points, games = played.get(match.second, (0.0, 0))
            played[match.second] = (points + match.wins + match.draws / 2, games + match.games)
    told: list[Told] = []
    for opponent, (points, games) in played.items():
        key = (str(state.champion), opponent)
        if games < MASTERED_GAMES_MIN or points / games < MASTERED_RATE or key in memory.mastered:
            continue
        if len(memory.mastered) >= OPPONENTS_MAX:
            memory.mastered.clear()
        memory.mastered.add(key)
        rate = {"win_rate": points / games, "games": games, "model_id": key[0]}
        told.append(("OPPONENT_MASTERED", {"config_key": state.config, "opponent": opponent, **rate}))
    return told


class CurriculumIntegrationDaemon(StageDaemon):
    """Asks the coordinator to look, at an interval, so that the file stays fresh when nothing happens."""

    capability: ClassVar[str] = "training_feedback"
    plans_as = "curriculum_integration"
    emits: ClassVar[tuple[str, ...]] = CurriculumIntegration.emits

    def __init__(
        self,
        *,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
        integration: CurriculumIntegration | None = None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        super().__init__("curriculum_integration", cycle_interval=interval_s, router=router, runtime=runtime)
        self._integration = integration or get_curriculum_integration()

    async def _run_cycle(self) -> None:
        await self._integration.judge()

    def health_check(self) -> HealthCheckResult:
        return super().health_check().with_details(**self._integration.get_metrics())


def get_curriculum_integration(**parts: Any) -> CurriculumIntegration:
    """Return the coordinator of this process; other *parts* than it was made with are a `ConfigError`."""
    return CurriculumIntegration.get_instance(**parts)


reset_curriculum_integration = CurriculumIntegration.reset_instance


def wire_curriculum_events(router: UnifiedEventRouter | None = None) -> CurriculumIntegration:
    """Return the coordinator, subscribed. With a *router* of its own it is not the one of the process."""
    made = get_curriculum_integration() if router is None else CurriculumIntegration(router=router)
    made.wire()
    return made
