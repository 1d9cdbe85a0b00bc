"""The self-play scheduler: how much of self-play each config gets, as the run decided it.

The shares are the loop's own; this shows them as priorities, weights and allotments under the documents'
names, tells when they change, and keeps what others said of nodes and configs beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ringrift.coordination.event_router import get_router
from ringrift.coordination.handler_base import says_that_we_are_gone
from ringrift.coordination.job_scheduler import (
    JobPriority,
    JobSchedulerDaemon,
    PriorityJobScheduler,
    ScheduledJob,
    create_job_scheduler_daemon,
    get_job_scheduler,
    reset_job_scheduler,
    select_curriculum_config,
    wire_job_events,
)
from ringrift.coordination.progress_watchdog import velocity_per_hour
from ringrift.coordination.run_coordinator import SAID, StageDaemon, get_loop_waker
from ringrift.coordination.selfplay_orchestrator import (
    SelfplayOrchestrator,
    SelfplayTask,
    SelfplayType,
    emit_selfplay_completion,
    get_selfplay_orchestrator,
    get_selfplay_stats,
    reset_selfplay_orchestrator,
    wire_selfplay_events,
)
from ringrift.engine.blocking import run_blocking
from ringrift.engine.opening import get_engine
from ringrift.engine.ports import KeyValue
from ringrift.engine.records import read_record, write_record
from ringrift.engine.run_reports import answers_here, reported
from ringrift.events.event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.health.run_status import ConfigStatus, RunStatus, read_run_status
from ringrift.learning.intake import is_claim
from ringrift.learning.plan.stages import LoopWaker
from ringrift.learning.situation import stored_status
from ringrift.process import getter_of
from ringrift.runtime import Runtime
from ringrift.work.coordinator import AWAY, STRAINED, ConfigSignals, NodeNote, NodeNotes, heard_by
from ringrift.work.shares import (
    ConfigView,
    board_and_players,
    config_shares,
    curriculum_weight,
    curriculum_weights,
    games_needed,
    next_kind,
    quality_factor,
    search_budget,
    split_whole,
)
from ringrift.work.worker.records import WorkerRecord, live_workers

__all__ = [
    "ConfigView",
    "JobPriority",
    "JobSchedulerDaemon",
    "LoopWaker",
    "NodeNote",
    "NodeNotes",
    "PriorityJobScheduler",
    "ScheduledJob",
    "SelfplayOrchestrator",
    "SelfplayScheduler",
    "SelfplayTask",
    "SelfplayType",
    "config_shares",
    "create_job_scheduler_daemon",
    "create_selfplay_scheduler",
    "curriculum_weights",
    "emit_selfplay_completion",
    "games_needed",
    "get_job_scheduler",
    "get_loop_waker",
    "get_selfplay_orchestrator",
    "get_selfplay_scheduler",
    "get_selfplay_stats",
    "next_kind",
    "quality_factor",
    "reset_job_scheduler",
    "reset_selfplay_orchestrator",
    "reset_selfplay_scheduler",
    "search_budget",
    "select_curriculum_config",
    "wire_job_events",
    "wire_selfplay_events",
]

NAME = "selfplay_scheduler"
ANNOUNCED_KEY = SAID + NAME  # the shares as they were last told, by config
INTERVAL_S = 15.0
FIRST_S = 1.0
ANSWER_S = 10.0
# Shares move a little with every plan; telling each move would never end.
SHARE_CHANGE_MIN = 0.02
RATE_CHANGE_MIN = 0.20
GAMES_PER_CONFIG = 500
# Memory of a GPU that self-play of a board needs; a node without a GPU plays on its processor.
GPU_MEMORY_GB = {"hex8": 8.0, "square8": 8.0, "square19": 24.0, "hexagonal": 40.0}
GPU_MEMORY_GB_OTHER = 8.0

_WAKE = (
    "BACKPRESSURE_RELEASED IDLE_RESOURCE_DETECTED MODEL_PROMOTED NEW_GAMES_AVAILABLE NODE_ACTIVATED "
    "NODE_RECOVERED "
    "P2P_CLUSTER_HEALTHY PROMOTION_ROLLED_BACK SELFPLAY_COMPLETE SELFPLAY_TARGET_UPDATED TRAINING_COMPLETED"
)
_NODE_AWAY = "HOST_OFFLINE NODE_RETIRED NODE_TERMINATED NODE_UNHEALTHY P2P_NODE_DEAD"
_NODE_STRAINED = "MEMORY_PRESSURE NODE_OVERLOADED RESOURCE_CONSTRAINT RESOURCE_CONSTRAINT_DETECTED"
_NODE_WELL = "HOST_ONLINE NODE_ACTIVATED NODE_RECOVERED"
_CAPACITY = "IDLE_STATE_BROADCAST NODE_CAPACITY_UPDATED"


class SelfplayScheduler(StageDaemon):
    """SELFPLAY_COORDINATOR, and the coordinator `selfplay_scheduler`."""

    capability: ClassVar[str] = "scheduling"
    plans_as = "selfplay_coordinator"
    emits: ClassVar[tuple[str, ...]] = (
        "NODE_INCOMPATIBLE_WITH_WORKLOAD",
        "P2P_SELFPLAY_SCALED",
        "SCHEDULER_REGISTERED",
        "SELFPLAY_ALLOCATION_UPDATED",
        "SELFPLAY_RATE_CHANGED",
    )

    def __init__(
        self,
        *,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
        kv: KeyValue | None = None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        super().__init__(NAME, cycle_interval=interval_s, router=router, runtime=runtime)
        self._kv = kv
        self.nodes = NodeNotes()
        self.signals = ConfigSignals()
        self.run_seen: RunStatus | None = None
        self._reported_workers: int | None = None
        self._reported_unfit: frozenset[str] = frozenset()  # nodes

    def _get_event_subscriptions(self) -> Mapping[Any, Callback]:
        """Every event that the catalog names; each is noted, and does what its group does."""
        return dict.fromkeys(heard_by(NAME), self._on_event)

    async def _on_event(self, event: RouterEvent) -> None:
        name = event.event_type
        # An event about a node alone must not pass for a signal of all configs. What somebody merely
        # claims is no signal: it counts once the run has taken it in.
        of_a_config = event.payload.get("config_key") or "node_id" not in event.payload
        if of_a_config and not is_claim(event):
            self.signals.note(event)
        if name in _NODE_AWAY.split() and not says_that_we_are_gone(event, self._runtime):
            self.nodes.note(event, AWAY)
        elif name in _NODE_STRAINED.split():
            self.nodes.note(event, STRAINED)
        elif name in _NODE_WELL.split():
            self.nodes.clear(event)
        elif name in _CAPACITY.split():
            await self._on_capacity(event)
        if name in _WAKE.split():
            get_loop_waker().wake_for(event)

    async def _on_capacity(self, event: RouterEvent) -> None:
        """A GPU that no config of the run fits on is told once, until one fits on it."""
        payload, run = event.payload, self.run_seen
        whole_gb = float(payload.get("gpu_memory_gb") or 0.0)
        memory_gb = whole_gb or float(payload.get("gpu_memory_free_gb") or 0.0)
        if run is None or not run.configs or memory_gb <= 0:
            return
        fitting = [config for config in run.configs if gpu_memory_needed_gb(config) <= memory_gb]
        note = self.nodes.current(self._runtime.now_s()).get(str(payload["node_id"]))
        is_noted = note is not None and note.event in _CAPACITY.split()
        if fitting and is_noted:
            self.nodes.clear(event)
        # What is free shows only that a config fits: a GPU may be short of it because it works.
        if fitting or not whole_gb:
            return
        self.nodes.note(event, AWAY)
        if is_noted:
            return
        problem = {
            "node_id": str(payload["node_id"]),
            "has_gpu": True,
            "gpu_vram_gb": memory_gb,
            "reason": f"no config of the run fits into {memory_gb:g} GB",
            "compatible_configs": fitting,
        }
        await self._tell("NODE_INCOMPATIBLE_WITH_WORKLOAD", problem)

    # --- the cycle ------------------------------------------------------------------------------------

    async def _rest(self) -> None:
        # A run says how it is soon after its start; a whole interval without priorities would be long.
        await self._runtime.sleep(
            min(FIRST_S, self._cycle_interval) if self.run_seen is None else self._cycle_interval
        )

    async def _run_cycle(self) -> None:
        kv = self._kv or (await get_engine()).kv
        run = await read_run_status(kv)
        if run is None:
            return
        self.run_seen = run
        await self._tell_workers(run)
        await self._tell_unfit(await live_workers(kv), run)
        # Kept in the store of the run: a start is no change, and what moved meanwhile is one.
        announced = await read_record(kv, ANNOUNCED_KEY, dict[str, float]) or {}
        for config in run.configs:
            if config not in announced:
                registered = {"config_key": config, "scheduler_name": "share_of_selfplay"}
                await self._tell("SCHEDULER_REGISTERED", registered)
        shares = {config: seen.share for config, seen in run.configs.items()}
        changed = _changed(announced, shares)
        for config in changed:
            await self._tell_share(config, announced.get(config), shares)
        # Only what was told is remembered, so small moves add up until they are told; and only after it was:
        # whoever is killed in between says it again.
        kept = {**{c: s for c, s in announced.items() if c in shares}, **_kept(shares, changed)}
        if kept != announced:
            await write_record(kv, ANNOUNCED_KEY, kept)

    async def _tell_workers(self, run: RunStatus) -> None:
        if self._reported_workers is not None and self._reported_workers != run.workers:
            scaled = {"old_count": self._reported_workers, "new_count": run.workers}
            await self._tell("P2P_SELFPLAY_SCALED", {**scaled, "reason": "workers came or went"})
        self._reported_workers = run.workers

    async def _tell_unfit(self, workers: list[WorkerRecord], run: RunStatus) -> None:
        """A node of whose workers none takes any work that the run has ordered is told once."""
        fit = {each.node for each in workers if each.kinds is None or run.queue.keys() & {*each.kinds}}
        unfit = {each.node: each for each in workers if run.queue and each.node not in fit}
        for node in sorted(unfit.keys() - self._reported_unfit):
            kinds, has_gpu = unfit[node].kinds or (), any(each.gpus for each in workers if each.node == node)
            why = f"its workers take only {', '.join(kinds)}; the run has {', '.join(sorted(run.queue))}"
            problem = {"node_id": node, "has_gpu": has_gpu, "reason": why, "compatible_configs": []}
            await self._tell("NODE_INCOMPATIBLE_WITH_WORKLOAD", problem)
        self._reported_unfit = frozenset(unfit)

    async def _tell_share(self, config: str, old: float | None, shares: Mapping[str, float]) -> None:
        new = shares[config]
        why = f"the share of self-play is {new:.0%}"
        updated = {"config_key": config, "allocation_weights": dict(shares), "reason": why}
        await self._tell("SELFPLAY_ALLOCATION_UPDATED", updated)
        if old and abs(new - old) / old > RATE_CHANGE_MIN:
            rates = {"old_rate": old * len(shares), "new_rate": new * len(shares)}
            change = {**rates, "change_percent": 100 * (new - old) / old}
            await self._tell("SELFPLAY_RATE_CHANGED", {"config_key": config, **change, "reason": why})

    # --- what it shows --------------------------------------------------------------------------------

    def get_priorities(self) -> dict[str, float]:
        """Return the share of self-play by config, highest first."""
        shares = {config: seen.share for config, seen in self._configs().items()}
        return dict(sorted(shares.items(), key=lambda item: (-item[1], item[0])))

    def get_priority_configs(self, top_n: int = 12) -> list[tuple[str, float]]:
        return list(self.get_priorities().items())[:top_n]

    def get_config_weights(self) -> dict[str, float]:
        """Return the curriculum weights: the shares as factors around 1."""
        shares = self.get_priorities()
        return {config: curriculum_weight(share, len(shares)) for config, share in shares.items()}

    def allocate_games(self, total_games: int | None = None) -> dict[str, int]:
        """Split games by share; everybody gets at least one. By default 500 per config."""
        shares = self.get_priorities()
        total = GAMES_PER_CONFIG * len(shares) if total_games is None else total_games
        # At least one: rounding must not leave a config without games.
        return split_whole(total, shares, least=1)

    def allocate_to_nodes(self, nodes: Mapping[str, int], total_games: int) -> dict[str, int]:
        """Split games over *nodes* (name: slots), less for strained ones and none for those away."""
        now_s = self._runtime.now_s()
        weights = {node: slots * self.nodes.factor(node, now_s) for node, slots in nodes.items()}
        return split_whole(total_games, weights)

    def search_budget(self, config: str) -> int:
        seen = self._configs().get(config)
        games, rating = (0, None) if seen is None else (seen.games, seen.rating)
        return search_budget(config, games=games, rating=rating)

    def velocity(self, config: str) -> float | None:
        """Return rating points per hour; None while it is not known."""
        seen = self._configs().get(config)
        return None if seen is None else velocity_per_hour(seen.curve)

    @reported
    def get_metrics(self) -> dict[str, Any]:
        now_s = self._runtime.now_s()
        return {
            "priorities": self.get_priorities(),
            "curriculum_weights": self.get_config_weights(),
            "nodes": {node: note.reason or note.event for node, note in self.nodes.current(now_s).items()},
            "signals": self.signals.all(),
        }

    @reported
    def get_status(self) -> dict[str, Any]:
        return {**super().get_status(), **self.get_metrics()}

    def _configs(self) -> Mapping[str, ConfigStatus]:
        """As the last cycle saw them; where none runs, as the run last told."""
        run = self.run_seen if answers_here(self) else run_blocking(stored_status(), timeout_s=ANSWER_S)
        return {} if run is None else run.configs


def gpu_memory_needed_gb(config: str) -> float:
    board, players = board_and_players(config)
    return GPU_MEMORY_GB.get(board, GPU_MEMORY_GB_OTHER) * (2.0 if players == 4 else 1.0)


def _changed(old: Mapping[str, float], new: Mapping[str, float]) -> list[str]:
    # -1 is far from every share: a config that was never told of is always told.
    return [config for config, share in new.items() if abs(share - old.get(config, -1.0)) > SHARE_CHANGE_MIN]


def _kept(shares: Mapping[str, float], configs: list[str]) -> dict[str, float]:
    return {config: shares[config] for config in configs}


# The scheduler of this process; it hears events once it is started.
get_selfplay_scheduler = getter_of("get_selfplay_scheduler", SelfplayScheduler)
reset_selfplay_scheduler = SelfplayScheduler.reset_instance


def create_selfplay_scheduler(
    router: UnifiedEventRouter | None = None, runtime: Runtime | None = None
) -> SelfplayScheduler:
    """The daemon: the scheduler of this process, or one of its own on another *router*."""
    if router is None or router is get_router():
        return get_selfplay_scheduler()
    return SelfplayScheduler(router=router, runtime=runtime)
