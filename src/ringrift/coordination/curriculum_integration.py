"""CURRICULUM_INTEGRATION: effort per config as curriculum weights, tiers, and opponents that are mastered.

The weights are a view of the shares of self-play, which the plan of the run follows. There is one table.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.run_coordinator import ListeningCoordinator, StageDaemon
from ringrift.engine.run_reports import reported
from ringrift.errors import ConfigError
from ringrift.events.event import Announcement
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.files import make_folders, replace_file
from ringrift.learning.facts.state import ConfigState
from ringrift.learning.situation import Situation, Situations
from ringrift.runtime import Runtime, system_runtime
from ringrift.status import HealthCheckResult
from ringrift.work.shares import curriculum_weights

__all__ = [
    "CurriculumIntegration",
    "CurriculumIntegrationDaemon",
    "export_curriculum_weights",
    "get_curriculum_integration",
    "get_curriculum_weight",
    "load_curriculum_weights",
    "reset_curriculum_integration",
    "wire_curriculum_events",
]


# The curriculum weights as a file: a view of the shares of self-play that other programs can read.
#
# Written at once or not at all. A reader takes nothing that is too old, from the future or not as it should
# be: {} means that all configs count the same.


FILE_NAME = "curriculum_weights.json"
# Twice the interval of writing: one write that failed does not make readers distrust the file.
AGE_S_MAX = 7_200.0
AHEAD_S_MAX = 60.0  # the clock of the reader may be a little behind the writer's
# Far more than all configs need; a reader must not load whatever somebody put there.
FILE_BYTES_MAX = 1_000_000
WEIGHT_DEFAULT = 1.0


def curriculum_file() -> Path:
    return get_settings().data_dir / FILE_NAME


def export_curriculum_weights(
    weights: Mapping[str, float], path: Path | None = None, *, runtime: Runtime | None = None
) -> Path:
    """Write *weights* with the time; `ConfigError` for one that is no number above 0."""
    wrong = {name: value for name, value in weights.items() if not math.isfinite(value) or value <= 0}
    if wrong:
        raise ConfigError(f"curriculum weights must be numbers above 0, not {wrong}")
    target = path or curriculum_file()
    now_s = (runtime or system_runtime()).now_s()
    content = {
        "weights": dict(weights),
        "updated_at": now_s,
        "updated_at_iso": datetime.fromtimestamp(now_s, UTC).isoformat(),
    }
    make_folders(target.parent)
    # Other programs may read it, and it can be written anew at any time: no need to wait for the disk.
    replace_file(target, (json.dumps(content, indent=1) + "\n").encode(), private=False, durable=False)
    return target


def load_curriculum_weights(
    path: Path | None = None, *, max_age_s: float = AGE_S_MAX, runtime: Runtime | None = None
) -> dict[str, float]:
    """The weights of the file; {} if there are none to be relied on."""
    try:
        text = (path or curriculum_file()).read_bytes()
        content = json.loads(text) if len(text) <= FILE_BYTES_MAX else None
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(content, dict):
        return {}
    updated_s, weights = content.get("updated_at"), content.get("weights")
    if updated_s is None or not _is_number(updated_s) or not isinstance(weights, dict):
        return {}
    if not -AHEAD_S_MAX <= (runtime or system_runtime()).now_s() - updated_s <= max_age_s:
        return {}
    # One wrong weight costs its own config only; the reader counts that one as 1.
    return {name: float(value) for name, value in weights.items() if _is_number(value) and value > 0}


def get_curriculum_weight(
    config_key: str, path: Path | None = None, default: float = WEIGHT_DEFAULT
) -> float:
    """The weight of one config; 1.0 if nothing is known of it."""
    return load_curriculum_weights(path).get(config_key, default)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


# The coordinator and its daemon.


INTERVAL_S = 120.0
WRITE_S = 3_600.0  # well within the age at which readers stop to believe the file
# Shares move a little with every game; consumers should not follow that.
CHANGE_MIN = 0.05
MASTERED_RATE = 0.85
# With fewer games a rate of 0.85 is reached by luck too often.
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
class _Announced:
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
        self._announced: dict[str, _Announced] = {}
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
        # Taken once: a look that no event asked for must not name the event of an earlier one.
        trigger, self._trigger = self._trigger, "interval"
        weights = curriculum_weights({config: each.share for config, each in situations.items()})
        if not self._weights:  # after a restart only what moved since the last run is a change
            kept = await asyncio.to_thread(load_curriculum_weights, self._path, runtime=self._runtime)
            self._weights = {config: kept.get(config, WEIGHT_DEFAULT) for config in weights}
        events = self._rebalanced(weights, trigger)
        for config, situation in situations.items():
            memory = self._announced.setdefault(config, _Announced())
            events += _advanced(situation, memory, trigger) + _mastered(situation.state, memory)
        stale = self._runtime.now_s() - self._written_s > WRITE_S
        # `_rebalanced` keeps the table only if it told of it, so identity says that something changed.
        if stale or self._weights is weights:
            # The file before the events: whoever reacts to one and reads the file finds its weights.
            await self._write(weights)
        await self.tell(events)

    def weights(self) -> dict[str, float]:
        """The weights now; {} while there is no run."""
        return _weights(self._answers)

    @reported
    def get_metrics(self) -> dict[str, Any]:
        """Of the run in this process: health is asked often, and must not wait for the store."""
        tiers = {config: memory.tier for config, memory in self._announced.items()}
        return {**super().get_metrics(), "weights": _weights(self._situations), "tiers": tiers}

    async def _write(self, weights: Mapping[str, float]) -> None:
        await asyncio.to_thread(export_curriculum_weights, weights, self._path, runtime=self._runtime)
        self._written_s = self._runtime.now_s()

    def _rebalanced(self, weights: dict[str, float], trigger: str) -> list[Announcement]:
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
        events: list[Announcement] = [
            ("CURRICULUM_REBALANCED", {**table, "trigger": trigger, "reason": reason})
        ]
        for config, weight in changed.items():
            one = {"config_key": config, "new_weight": weight, "trigger": trigger, "all_weights": weights}
            events.append(("CURRICULUM_UPDATED", one))
            old = {"component": "share", "old_weight": before.get(config, 1.0), "new_weight": weight}
            moved = {"config_key": config, **old, "reason": reason, "trigger_event": trigger}
            events.append(("WEIGHT_UPDATED", moved))
        return events


def _weights(situations: Situations) -> dict[str, float]:
    return curriculum_weights({config: each.share for config, each in situations.all().items()})


def _advanced(situation: Situation, memory: _Announced, trigger: str) -> list[Announcement]:
    """A champion in a higher tier than the one before."""
    rating = situation.curve[-1].rating if situation.curve else None
    tier, before = tier_of(rating), memory.tier
    # Also when the tier fell: coming back up later is an advance again.
    memory.tier = tier
    if before is None or _rank(tier) <= _rank(before) or rating is None:
        return []
    moved = {"old_tier": before, "new_tier": tier, "trigger": trigger, "elo": rating}
    return [("CURRICULUM_ADVANCED", {"config_key": situation.state.config, **moved})]


def _rank(tier: str) -> int:
    order = [UNRATED, "beginner", *(name for _, name in reversed(TIERS))]
    return order.index(tier)


def _mastered(state: ConfigState, memory: _Announced) -> list[Announcement]:
    """Baselines that the champion beats nearly always, each told once per champion."""
    played: dict[str, tuple[float, int]] = {}
    for match in state.matches[-MATCHES_SEEN:]:
        # Opponents that are not models of the run are the baselines.
        if match.first == state.champion and not match.recalled and match.second not in state.models:
            points, games = played.get(match.second, (0.0, 0))
            played[match.second] = (points + match.wins + match.draws / 2, games + match.games)
    events: list[Announcement] = []
    for opponent, (points, games) in played.items():
        key = (str(state.champion), opponent)
        if games < MASTERED_GAMES_MIN or points / games < MASTERED_RATE or key in memory.mastered:
            continue
        if len(memory.mastered) >= OPPONENTS_MAX:
            # Forgetting means at worst to tell something twice.
            memory.mastered.clear()
        memory.mastered.add(key)
        rate = {"win_rate": points / games, "games": games, "model_id": key[0]}
        events.append(("OPPONENT_MASTERED", {"config_key": state.config, "opponent": opponent, **rate}))
    return events


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
wire_curriculum_events = CurriculumIntegration.wired
