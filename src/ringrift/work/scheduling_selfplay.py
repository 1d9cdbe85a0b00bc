"""The self-play orchestrator: which self-play tasks run and ran, on which node, and how fast.

A record of what was told: workers tell tasks, the loop tells what they brought. A task is known by its id,
so an event that comes twice counts once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar

from ringrift.events.emitters import emit_selfplay_complete
from ringrift.events.routed_event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.runtime import Runtime
from ringrift.work.scheduling_bell import get_bell
from ringrift.work.scheduling_budget import board_and_players, quality_factor
from ringrift.work.scheduling_face import CoordinatorFace
from ringrift.work.scheduling_notes import STRAINED, ConfigSignals, NodeNotes

NAME = "selfplay_orchestrator"
HISTORY_MAX = 500
ACTIVE_MAX = 1000
WINDOW_S = 3600.0


class SelfplayType(StrEnum):
    """Who made the games."""

    CANONICAL = "canonical"
    GPU_SELFPLAY = "gpu_selfplay"
    HYBRID_SELFPLAY = "hybrid_selfplay"
    BACKGROUND = "background"


_TYPES = frozenset(each.value for each in SelfplayType)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfplayTask:
    """One task; *end_time* is None while it runs."""

    task_id: str
    selfplay_type: SelfplayType = SelfplayType.CANONICAL
    node_id: str = ""
    board_type: str = ""
    num_players: int = 2
    games_requested: int = 0
    games_generated: int = 0
    start_time: float = 0.0
    end_time: float | None = None
    success: bool = False
    error: str = ""
    iteration: int = 0

    @property
    def config_key(self) -> str:
        return f"{self.board_type}_{self.num_players}p"

    @property
    def duration(self) -> float:
        return 0.0 if self.end_time is None else max(0.0, self.end_time - self.start_time)

    @property
    def games_per_second(self) -> float:
        return self.games_generated / self.duration if self.duration > 0 else 0.0


class SelfplayOrchestrator(CoordinatorFace):
    """Self-play tasks by node and config."""

    capability: ClassVar[str] = "scheduling"
    emits: ClassVar[tuple[str, ...]] = ("SELFPLAY_COMPLETE", "QUALITY_FEEDBACK_ADJUSTED")

    def __init__(self, *, router: UnifiedEventRouter | None = None, runtime: Runtime | None = None) -> None:
        super().__init__(NAME, router=router, runtime=runtime)
        self._active: dict[str, SelfplayTask] = {}
        self._history: deque[SelfplayTask] = deque(maxlen=HISTORY_MAX)
        self._ended: set[str] = set()
        self.nodes = NodeNotes()
        self.signals = ConfigSignals()
        self._quality_factors: dict[str, float] = {}
        self._regressed: dict[str, str] = {}
        self._pressure: str | None = None
        self.games_total = 0

    def reactions(self) -> Mapping[str, Callback]:
        ring = get_bell().ring_for
        return {
            "TASK_SPAWNED": self._on_spawned,
            "TASK_COMPLETED": self._on_task_ended,
            "TASK_FAILED": self._on_task_ended,
            "TASK_ORPHANED": self._on_task_ended,
            "TASK_ABANDONED": self._on_task_ended,
            "SELFPLAY_COMPLETE": self._on_complete,
            "BACKPRESSURE_ACTIVATED": self._on_pressure,
            "BACKPRESSURE_RELEASED": self._on_relief,
            "RESOURCE_CONSTRAINT": lambda event: self.nodes.note(event, STRAINED),
            "REGRESSION_DETECTED": self._on_regression,
            "REGRESSION_CLEARED": self._on_cleared,
            "PROMOTION_ROLLED_BACK": self._on_rolled_back,
            "CURRICULUM_REBALANCED": self.signals.note,
            "QUALITY_SCORE_UPDATED": self._on_quality,
            "IDLE_RESOURCE_DETECTED": ring,
        }

    # --- tasks ----------------------------------------------------------------------------------------

    def _on_spawned(self, event: RouterEvent) -> None:
        told = event.payload
        if told.get("task_type") != "selfplay" or told["task_id"] in self._ended:
            return
        if len(self._active) >= ACTIVE_MAX:
            self._end(replace(next(iter(self._active.values())), error="no end was told"))
        board, players = board_and_players(str(told.get("config_key") or ""))
        self._active[told["task_id"]] = SelfplayTask(
            task_id=told["task_id"],
            node_id=str(told.get("node_id") or ""),
            board_type=board,
            num_players=players,
            start_time=event.timestamp,
        )

    def _on_task_ended(self, event: RouterEvent) -> None:
        """An end without games; those come with SELFPLAY_COMPLETE, which may come first or last."""
        task = self._active.get(str(event.payload.get("task_id") or ""))
        if task is None or event.event_type == "TASK_COMPLETED":
            return
        why = event.payload.get("error") or event.payload.get("reason") or event.event_type.lower()
        self._end(replace(task, end_time=event.timestamp, error=str(why)))
        get_bell().ring_for(event)

    def _on_complete(self, event: RouterEvent) -> None:
        told = event.payload
        task_id = str(told.get("task_id") or event.event_id)
        if task_id in self._ended:
            return
        board, players = board_and_players(str(told.get("config_key") or ""))
        took_s = float(told.get("duration_seconds") or 0.0)
        task = self._active.get(task_id) or SelfplayTask(task_id=task_id, start_time=event.timestamp - took_s)
        kind = str(told.get("selfplay_type") or "")
        self._end(
            replace(
                task,
                selfplay_type=SelfplayType(kind) if kind in _TYPES else task.selfplay_type,
                node_id=str(told.get("node_id") or task.node_id),
                board_type=board,
                num_players=players,
                games_generated=int(told.get("games_generated") or 0),
                end_time=event.timestamp,
                success=told.get("success") is not False,
                error=str(told.get("error") or ""),
                iteration=int(told.get("iteration") or 0),
            )
        )
        get_bell().ring_for(event)

    def _end(self, task: SelfplayTask) -> None:
        self._active.pop(task.task_id, None)
        if len(self._history) == HISTORY_MAX:
            self._ended.discard(self._history[0].task_id)
        self._history.append(task)
        self._ended.add(task.task_id)
        self.games_total += task.games_generated

    # --- what others say ------------------------------------------------------------------------------

    def _on_pressure(self, event: RouterEvent) -> None:
        self._pressure = str(event.payload.get("reason") or event.payload.get("level"))
        self.nodes.note(event, STRAINED)

    def _on_relief(self, event: RouterEvent) -> None:
        self._pressure = None
        self.nodes.clear(event)
        get_bell().ring_for(event)

    def _on_regression(self, event: RouterEvent) -> None:
        self._regressed[str(event.payload["config_key"])] = str(event.payload.get("severity"))

    def _on_cleared(self, event: RouterEvent) -> None:
        self._regressed.pop(str(event.payload["config_key"]), None)
        get_bell().ring_for(event)

    def _on_rolled_back(self, event: RouterEvent) -> None:
        self._regressed.pop(str(event.payload["config_key"]), None)
        self.signals.note(event)
        get_bell().ring_for(event)

    async def _on_quality(self, event: RouterEvent) -> None:
        """Poor games ask for more of them; the change is told when the factor changes."""
        config, score = str(event.payload["config_key"]), float(event.payload["quality_score"])
        old, new = self._quality_factors.get(config, 1.0), quality_factor(score)
        self._quality_factors[config] = new
        if new != old:
            change = {"quality_score": score, "budget_multiplier": new, "old_multiplier": old}
            kind = "raised" if new > old else "lowered"
            told = {"config_key": config, **change, "adjustment_type": kind}
            await self.tell("QUALITY_FEEDBACK_ADJUSTED", told)

    # --- what it shows --------------------------------------------------------------------------------

    def get_active_tasks(self) -> list[SelfplayTask]:
        return list(self._active.values())

    def get_history(self, limit: int = 50) -> list[SelfplayTask]:
        """Return ended tasks, newest first."""
        return list(self._history)[::-1][:limit]

    def budget_multiplier(self, config_key: str) -> float:
        return self._quality_factors.get(config_key, 1.0)

    def is_paused(self) -> tuple[bool, str]:
        """Whether self-play is held back, and why. A regression holds nothing back: the champion plays on."""
        return (self._pressure is not None, self._pressure or "")

    def get_stats(self) -> dict[str, Any]:
        now_s = self.runtime.now_s()
        recent = [task for task in self._history if task.end_time and now_s - task.end_time <= WINDOW_S]
        games = sum(task.games_generated for task in recent)
        seconds = sum(task.duration for task in recent)
        by_config: dict[str, int] = {}
        by_node: dict[str, int] = {}
        for task in recent:
            by_config[task.config_key] = by_config.get(task.config_key, 0) + task.games_generated
            by_node[task.node_id] = by_node.get(task.node_id, 0) + task.games_generated
        return {
            "active_tasks": len(self._active),
            "completed_tasks": sum(task.success for task in self._history),
            "failed_tasks": sum(not task.success for task in self._history),
            "total_games": self.games_total,
            "games_last_hour": games,
            "games_per_second": games / seconds if seconds else 0.0,
            "games_by_config": by_config,
            "games_by_node": by_node,
            "backpressure": self._pressure,
            "regressed": dict(self._regressed),
            "budget_multipliers": dict(self._quality_factors),
        }


def get_selfplay_orchestrator() -> SelfplayOrchestrator:
    """Return the orchestrator of this process."""
    return SelfplayOrchestrator.get_instance()


reset_selfplay_orchestrator = SelfplayOrchestrator.reset_instance


def wire_selfplay_events(router: UnifiedEventRouter | None = None) -> SelfplayOrchestrator:
    """Return the orchestrator of this process, subscribed; for another *router*, one of its own."""
    found = get_selfplay_orchestrator() if router is None else SelfplayOrchestrator(router=router)
    found.wire()
    return found


async def emit_selfplay_completion(
    task_id: str,
    board_type: str | None = None,
    num_players: int | None = None,
    games_generated: int | None = None,
    *,
    selfplay_type: str = SelfplayType.CANONICAL.value,
    **fields: Any,
) -> bool:
    """Tell that a self-play task that no worker ran has ended; further fields as `emit_selfplay_complete`.

    The config is named by board and players, or by `config_key`.
    """
    return await emit_selfplay_complete(
        task_id, board_type, num_players, games_generated, source=NAME, selfplay_type=selfplay_type, **fields
    )


def get_selfplay_stats() -> dict[str, Any]:
    return get_selfplay_orchestrator().get_stats()
