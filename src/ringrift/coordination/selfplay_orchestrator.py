"""The self-play orchestrator: which self-play tasks run and ran, on which node, and how fast.

Tasks are those of the work queue and of the task records, games those that the run has taken in: so every
process answers the same, and what somebody merely says counts for nothing. What it hears wakes the loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from ringrift.coordination.event_emitters import emit_selfplay_complete
from ringrift.coordination.handler_base import StoreCoordinator
from ringrift.coordination.run_coordinator import get_loop_waker
from ringrift.engine.blocking import blocking
from ringrift.engine.opening import existing_engine
from ringrift.engine.ports import Engine, WorkItem, WorkQueue, WorkState
from ringrift.errors import ConfigError
from ringrift.events.event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.health.run_status import RunStatus, read_run_status, run_state
from ringrift.process import getter_of
from ringrift.runtime import Runtime
from ringrift.work.backpressure import read_announced
from ringrift.work.coordinator import STRAINED, ConfigSignals, NodeNotes
from ringrift.work.job.protocol import JobReport, read_report
from ringrift.work.shares import board_and_players
from ringrift.work.tasks import (
    ENDS_AT_ONCE,
    PAGES_MAX,
    SELFPLAY_TYPES,
    RunningTask,
    TaskRegistry,
    ends_before,
    newest_ended,
)

NAME = "selfplay_orchestrator"
KIND = "selfplay"
HISTORY_MAX = 2000  # ended tasks that are looked at
WINDOW_S = 3600.0
ANSWER_S = 30.0


class SelfplayType(StrEnum):
    """Who made the games."""

    CANONICAL = "canonical"
    GPU_SELFPLAY = "gpu_selfplay"
    HYBRID_SELFPLAY = "hybrid_selfplay"
    BACKGROUND = "background"


GetEngine = Callable[[], Awaitable[Engine | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfplayTask:
    """One task; *end_time* is None while it runs."""

    task_id: str
    selfplay_type: SelfplayType = SelfplayType.CANONICAL
    node_id: str = ""
    board_type: str = ""
    num_players: int = 2
    games_requested: int | None = None
    games_generated: int | None = None  # None: nobody knows yet
    start_time: float = 0.0
    end_time: float | None = None
    success: bool = False
    error: str = ""

    @property
    def config_key(self) -> str:
        return f"{self.board_type}_{self.num_players}p"

    @property
    def duration(self) -> float:
        return 0.0 if self.end_time is None else max(0.0, self.end_time - self.start_time)

    @property
    def games_per_second(self) -> float:
        return (self.games_generated or 0) / self.duration if self.duration > 0 else 0.0


class SelfplayOrchestrator(StoreCoordinator):
    """Self-play tasks by node and config."""

    capability: ClassVar[str] = "scheduling"
    emits: ClassVar[tuple[str, ...]] = ("SELFPLAY_COMPLETE",)

    def __init__(
        self,
        *,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
        get_store: GetEngine = existing_engine,
    ) -> None:
        super().__init__(NAME, router=router, runtime=runtime)
        self._get_store = get_store
        self.nodes = NodeNotes()
        self.signals = ConfigSignals()
        self._ended = _EndedTasks()

    def reactions(self) -> Mapping[str, Callback]:
        wake = get_loop_waker().wake_for
        return {
            "TASK_SPAWNED": self.signals.note,
            "TASK_COMPLETED": self.signals.note,  # the loop itself listens for ends of its jobs
            "TASK_FAILED": wake,
            "TASK_ORPHANED": wake,
            "TASK_ABANDONED": wake,
            "SELFPLAY_COMPLETE": wake,
            "BACKPRESSURE_ACTIVATED": wake,
            "BACKPRESSURE_RELEASED": wake,
            "RESOURCE_CONSTRAINT": lambda event: self.nodes.note(event, STRAINED),
            "REGRESSION_DETECTED": self._noted,
            "REGRESSION_CLEARED": self._noted,
            "PROMOTION_ROLLED_BACK": self._noted,
            "CURRICULUM_REBALANCED": self.signals.note,
            "QUALITY_SCORE_UPDATED": self.signals.note,
            "IDLE_RESOURCE_DETECTED": wake,
        }

    def _noted(self, event: RouterEvent) -> None:
        self.signals.note(event)
        get_loop_waker().wake_for(event)

    # --- what it shows --------------------------------------------------------------------------------

    async def active_tasks(self) -> list[SelfplayTask]:
        """Claims of the work queue and registered tasks that play now."""
        store = await self._get_store()
        return [] if store is None else await _active(store, self.runtime)

    async def history(self, limit: int = 50) -> list[SelfplayTask]:
        """Return ended tasks, newest first, as long as the work queue keeps them."""
        store = await self._get_store()
        return [] if store is None else await _history(store, limit)

    async def why_held(self) -> str:
        """Why backpressure holds self-play back, as QUEUE_MONITOR has measured it; empty if it does not."""
        store = await self._get_store()
        return "" if store is None else (await read_announced(store.kv)).why_held(self.runtime.now_s())

    @blocking(timeout_s=ANSWER_S)
    async def is_paused(self) -> tuple[bool, str]:
        """Whether backpressure holds self-play back, and why. `ringrift explain` says what else does."""
        why = await self.why_held()
        return bool(why), why

    async def stats(self) -> dict[str, Any]:
        """The numbers of the run, the same in every process; None is what nobody knows."""
        store, held_back = await self._get_store(), {"backpressure": await self.why_held() or None}
        if store is None:
            return {**dict.fromkeys(_NUMBERS), **held_back}
        # From the store and not from events heard: these differ between processes.
        ended, seen = await self._ended.look(store.queue), await read_run_status(store.kv)
        active, now_s = await _active(store, self.runtime), self.runtime.now_s()
        # A store that others use is no run yet: its nothing is no zero.
        if seen is None and not active and KIND not in await store.queue.counts():
            return {**dict.fromkeys(_NUMBERS), **held_back}
        recent = [task for task in ended if task.end_time and now_s - task.end_time <= WINDOW_S]
        by_config = _taken_in(_counted(recent, lambda task: task.config_key), seen)
        return {
            "active_tasks": len(active),
            "completed_tasks": sum(task.success for task in ended),
            "failed_tasks": sum(not task.success for task in ended),
            "total_games": None if seen is None else _games(seen),
            "games_last_hour": sum(by_config.values()),
            "games_per_second": _speed(seen, now_s),
            "games_by_config": by_config,
            "games_by_node": _counted(recent, lambda task: task.node_id),
            **held_back,
        }

    get_active_tasks = blocking(active_tasks, timeout_s=ANSWER_S)
    get_history = blocking(history, timeout_s=ANSWER_S)

    @blocking(timeout_s=ANSWER_S)
    async def get_stats(self) -> dict[str, Any]:
        return await self.stats()


_NUMBERS = (
    "active_tasks",
    "completed_tasks",
    "failed_tasks",
    "total_games",
    "games_last_hour",
    "games_per_second",
    "games_by_config",
    "games_by_node",
)


class _EndedTasks:
    """The tasks that ended last, kept between two looks: health is asked for every few seconds, and a look
    reads only what has ended since.
    """

    def __init__(self) -> None:
        self._queue: WorkQueue | None = None
        self._tasks: dict[str, tuple[int, SelfplayTask]] = {}  # by id: the number of its end; oldest first
        self._last = self._dead = 0

    async def look(self, queue: WorkQueue) -> list[SelfplayTask]:
        """Up to as many as are looked at, as long as the work queue keeps them; oldest first."""
        dead = (await queue.counts()).get(KIND, {}).get(WorkState.DEAD, 0)
        if queue is not self._queue or dead < self._dead:  # one was revived, and has yet to end
            self._queue, self._tasks, self._last = queue, {}, await ends_before(queue, PAGES_MAX)
        self._dead = dead
        # The oldest that the queue still has: what it has forgotten is forgotten here, too.
        kept = await queue.ended(after=0, limit=1)
        while page := await queue.ended(after=self._last, limit=ENDS_AT_ONCE):
            for each in page:
                # An item that was revived ends again, and then counts by its new end.
                self._tasks.pop(each.item.id, None)
                if each.item.kind == KIND:
                    self._tasks[each.item.id] = (each.number, _ended(each.item))
            self._last = max(self._last, page[-1].number)
        oldest = kept[0].number if kept else self._last + 1
        newest = list(self._tasks.items())[-HISTORY_MAX:]
        self._tasks = {task_id: ended for task_id, ended in newest if ended[0] >= oldest}
        return [task for _, task in self._tasks.values()]


async def _active(store: Engine, runtime: Runtime) -> list[SelfplayTask]:
    async def get_store() -> Engine:
        return store

    running = await TaskRegistry(get_store, runtime=runtime).running()
    return [_running(task) for task in running if task.task_type in SELFPLAY_TYPES]


async def _history(store: Engine, limit: int) -> list[SelfplayTask]:
    return [_ended(item) for item in await newest_ended(store.queue, limit=limit, kind=KIND)]


def _running(task: RunningTask) -> SelfplayTask:
    board, players = board_and_players(task.config_key)
    return SelfplayTask(
        task_id=task.task_id,
        node_id=task.node,
        board_type=board,
        num_players=players,
        start_time=task.started_s,
    )


def _ended(item: WorkItem) -> SelfplayTask:
    board, players = board_and_players(str(item.payload.get("config", "")))
    params = item.payload.get("params")
    asked = params.get("games") if isinstance(params, Mapping) else None
    report = _report(item)
    return SelfplayTask(
        task_id=item.id,
        node_id=(item.holder or "") if report is None else report.node,
        board_type=board,
        num_players=players,
        games_requested=asked if isinstance(asked, int) else None,
        games_generated=None if report is None else _games_of(report),
        # Without a report nobody knows when it began; it was not before it was added.
        start_time=item.added_s if report is None else report.started_s,
        end_time=item.changed_s,
        success=item.state is WorkState.DONE,
        error=item.error or "",
    )


def _report(item: WorkItem) -> JobReport | None:
    """None for a job that failed, and for an item of somebody who reports in another form."""
    if item.result is None:
        return None
    try:
        return read_report(item.result)
    except ConfigError:
        return None


def _games_of(report: JobReport) -> int:
    return sum(int(each.counts.get("games", 0)) for each in report.artifacts if each.kind == "shard")


def _games(seen: RunStatus) -> int:
    """That the run has: accepted, and those whose check is due."""
    return sum(config.games + config.games_unchecked for config in seen.configs.values())


def _taken_in(made: Mapping[str, int], seen: RunStatus | None) -> dict[str, int]:
    """Without what the run refused, or has yet to take in: in its first hour it has no more than in all."""
    has = (
        {}
        if seen is None
        else {name: each.games + each.games_unchecked for name, each in seen.configs.items()}
    )
    return {config: min(games, has.get(config, games)) for config, games in made.items()}


def _speed(seen: RunStatus | None, now_s: float) -> float | None:
    """Games per second by the jobs under way; none of a run that was stopped, unknown of a silent one."""
    state = run_state(seen, now_s)
    if seen is None or state is None:
        return None
    return 0.0 if state == "stopped" else sum(config.games_per_s for config in seen.configs.values())


def _counted(tasks: Sequence[SelfplayTask], about: Callable[[SelfplayTask], str]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for task in tasks:
        found[about(task)] += task.games_generated or 0
    return dict(found)


get_selfplay_orchestrator = getter_of("get_selfplay_orchestrator", SelfplayOrchestrator)
reset_selfplay_orchestrator = SelfplayOrchestrator.reset_instance
wire_selfplay_events = SelfplayOrchestrator.wired


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
