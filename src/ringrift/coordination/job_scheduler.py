"""The job scheduler: puts jobs into the one queue by priority, and takes them off hosts that are gone.

Workers pull, so placing a job means to say who may claim it. A job that only one host may claim is stuck
when that host dies: it is taken back and offered to everybody, one step more urgent. What a dead host had
claimed comes back by itself when the lease runs out.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, ClassVar

import structlog

from ringrift.coordination.handler_base import HandlerBase, SubscribedCoordinator, says_that_we_are_gone
from ringrift.coordination.run_coordinator import get_loop_waker
from ringrift.engine.arguments import check_integer, check_name, check_part, refuse
from ringrift.engine.blocking import blocking
from ringrift.engine.opening import engine_on_demand
from ringrift.engine.ports import Json, NewWork, WorkItem, WorkQueue, WorkState
from ringrift.engine.run_reports import reported
from ringrift.errors import ConfigError, Unavailable
from ringrift.events.event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.health.run_status import read_run_status
from ringrift.process import getter_of
from ringrift.runtime import Runtime, system_runtime
from ringrift.work.coordinator import AWAY, STRAINED, NodeNotes

log = structlog.get_logger()

NAME = "job_scheduler"
JOBS_MAX = 1000
UNDERSERVED_GAMES = 100
INTERVAL_S = 30.0
ANSWER_S = 10.0


class JobPriority(IntEnum):
    """Lower goes first."""

    CRITICAL = 0
    HIGH = 1
    NORMAL = 2
    LOW = 3


QUEUE_PRIORITIES: Mapping[JobPriority, int] = {
    JobPriority.CRITICAL: 120,
    JobPriority.HIGH: 90,
    JobPriority.NORMAL: 60,
    JobPriority.LOW: 30,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledJob:
    """A job to be done."""

    job_type: str
    priority: JobPriority = JobPriority.NORMAL
    config: Json = field(default_factory=dict)
    host_preference: str | None = None  # only this host may claim it
    requires_gpu: bool = False
    job_id: str | None = None


class PriorityJobScheduler(SubscribedCoordinator):
    """Jobs that were scheduled here and have not ended."""

    capability: ClassVar[str] = "scheduling"
    emits: ClassVar[tuple[str, ...]] = ("BATCH_DISPATCHED", "JOB_PREEMPTED")

    def __init__(
        self,
        get_queue: Callable[[], Awaitable[WorkQueue]] | None = None,
        *,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        super().__init__(NAME, router=router, runtime=runtime)
        self._get_queue = get_queue or _shared_queue
        self._jobs: dict[str, ScheduledJob] = {}
        self.nodes = NodeNotes()
        self.requeued = 0
        self.preempted = 0

    def reactions(self) -> Mapping[str, Callback]:
        return {
            "HOST_OFFLINE": self._on_offline,
            "HOST_ONLINE": self.nodes.clear,
            "NODE_OVERLOADED": self._on_overloaded,
        }

    # --- scheduling -----------------------------------------------------------------------------------

    async def schedule(self, job: ScheduledJob) -> str:
        """Offer *job* and return its id; `Unavailable` when as many are scheduled as may be."""
        # First, so that jobs that have ended do not count against the limit.
        await self.forget_ended()
        if len(self._jobs) >= JOBS_MAX:
            raise Unavailable(f"{JOBS_MAX} jobs are scheduled already", retry_after_s=INTERVAL_S)
        if job.host_preference and self.nodes.factor(job.host_preference, self.runtime.now_s()) == 0:
            # Nobody else may claim it, so it would wait for a host that may never return.
            raise ConfigError(f"{job.host_preference} is away; schedule the job without a host")
        queue = await self._get_queue()
        (job_id,) = await queue.add([_as_work(job)])
        self._jobs[job_id] = replace(job, job_id=job_id)
        hosts = [job.host_preference] if job.host_preference else []
        await self.tell(
            "BATCH_DISPATCHED",
            {
                "batch_id": job_id,
                "batch_type": job.job_type,
                "config_key": str(job.config.get("config", "")),
                "jobs_dispatched": 1,
                "jobs_failed": 0,
                "target_nodes": hosts,
            },
        )
        return job_id

    async def cancel(self, job_id: str, *, reason: str = "cancelled") -> bool:
        self._jobs.pop(job_id, None)
        return await (await self._get_queue()).cancel(job_id, reason=reason)

    async def preempt(self, job_id: str, *, for_job_id: str) -> str | None:
        """Make room: stop a less urgent job and offer it again. Returns its new id, None if it had ended."""
        queue = await self._get_queue()
        victim, urgent = await queue.get(job_id), await queue.get(for_job_id)
        if victim is None or urgent is None or victim.state is not WorkState.CLAIMED:
            return None
        if victim.priority >= urgent.priority:
            raise ConfigError(f"{for_job_id} is not more urgent than {job_id}")
        # In one step: cancelled first it could be lost by a crash, and offered first it could run twice.
        again = await queue.replace(job_id, _again(victim), reason=f"preempted by {for_job_id}")
        if again is None:
            return None
        if (job := self._jobs.pop(job_id, None)) is not None:
            self._jobs[again] = replace(job, job_id=again)
        self.preempted += 1
        await self.tell(
            "JOB_PREEMPTED",
            {
                "node_id": victim.holder or "",
                "preempted_job_id": job_id,
                "preempted_job_type": victim.kind,
                "preempting_job_id": for_job_id,
                "preempting_job_type": urgent.kind,
                "runtime_seconds": max(0.0, self.runtime.now_s() - victim.changed_s),
            },
        )
        return again

    async def requeue_host(self, host: str) -> list[str]:
        """Offer to everybody what only *host* could do; return the new ids."""
        queue = await self._get_queue()
        # Claims whose lease has run out are ready after this, and so are moved as well.
        await queue.expire()
        moved = []
        for job_id, job in list(self._jobs.items()):
            if job.host_preference != host:
                continue
            item = await queue.get(job_id)
            # One that is claimed may be under way after all: its lease decides.
            if item is None or item.state not in (WorkState.READY, WorkState.BLOCKED):
                continue
            priority = JobPriority(max(JobPriority.CRITICAL, job.priority - 1))
            anywhere = replace(job, host_preference=None, priority=priority, job_id=None)
            again = await queue.replace(job_id, _as_work(anywhere), reason=f"{host} is gone")
            if again is None:
                continue
            del self._jobs[job_id]
            self._jobs[again] = replace(anywhere, job_id=again)
            moved.append(again)
        self.requeued += len(moved)
        return moved

    async def forget_ended(self) -> None:
        """Drop jobs that ended; the queue keeps them as long as it keeps anything."""
        queue = await self._get_queue()
        for job_id in list(self._jobs):
            item = await queue.get(job_id)
            if item is None or item.state in (WorkState.DONE, WorkState.DEAD, WorkState.CANCELLED):
                del self._jobs[job_id]

    # --- what others say ------------------------------------------------------------------------------

    async def _on_offline(self, event: RouterEvent) -> None:
        if says_that_we_are_gone(event, self.runtime):
            return
        self.nodes.note(event, AWAY)
        moved = await self.requeue_host(str(event.payload["node_id"]))
        log.info("jobs.host_gone", host=event.payload["node_id"], moved=len(moved))
        get_loop_waker().wake_for(event)

    async def _on_overloaded(self, event: RouterEvent) -> None:
        """New jobs may still name the host; those that wait for it alone are offered to others."""
        self.nodes.note(event, STRAINED)
        await self.requeue_host(str(event.payload["node_id"]))

    @property
    def works_here(self) -> bool:
        return super().works_here or bool(self._jobs)

    @reported
    def get_stats(self) -> dict[str, Any]:
        waiting = [job.priority.name.lower() for job in self._jobs.values()]
        by_priority = {name: waiting.count(name) for name in sorted(set(waiting))}
        counts = {"requeued": self.requeued, "preempted": self.preempted}
        return {"scheduled": len(self._jobs), "by_priority": by_priority, **counts}


def select_curriculum_config(
    games_by_config: Mapping[str, int] | None = None, *, rng: random.Random | None = None
) -> str:
    """Pick a config at random, the rarer played the likelier; those below 100 games before all others.

    Without *games_by_config* it goes by the status of the run; `ConfigError` if there is none, and for
    anything but numbers of games by config.
    """
    games_by_config = _games_of_the_run() if games_by_config is None else games_by_config
    _check_games(games_by_config)
    if not games_by_config:
        raise ConfigError("there is no config to choose from")
    few = {config: games for config, games in games_by_config.items() if games < UNDERSERVED_GAMES}
    among = few or dict(games_by_config)
    weights = [1.0 / (max(0, games) + 1) for games in among.values()]
    return (rng or system_runtime().rng).choices(list(among), weights)[0]


def _check_games(games_by_config: object) -> None:
    if not isinstance(games_by_config, Mapping):
        refuse("games_by_config", games_by_config, "a dict from config key to its number of games")
    for config, games in games_by_config.items():
        check_name("a config", config)
        check_integer(f"games_by_config[{config!r}]", games, low=0)


@blocking(timeout_s=ANSWER_S)
async def _games_of_the_run() -> dict[str, int]:
    run = await read_run_status((await engine_on_demand()).kv)
    return {} if run is None else {config: seen.games for config, seen in run.configs.items()}


class JobSchedulerDaemon(HandlerBase):
    """JOB_SCHEDULER: keeps the scheduler of this process wired and its list short."""

    capability: ClassVar[str] = "scheduling"

    def __init__(
        self,
        scheduler: PriorityJobScheduler | None = None,
        *,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        super().__init__("job_scheduler_daemon", cycle_interval=INTERVAL_S, router=router, runtime=runtime)
        self.scheduler = get_job_scheduler() if scheduler is None else scheduler
        check_part("scheduler", self.scheduler, PriorityJobScheduler)
        self._unwire: Callable[[], None] | None = None

    async def _on_start(self) -> None:
        self._unwire = self.scheduler.wire_for()

    async def _run_cycle(self) -> None:
        await self.scheduler.forget_ended()

    async def _on_stop(self) -> None:
        if self._unwire is not None:
            self._unwire()


get_job_scheduler = getter_of("get_job_scheduler", PriorityJobScheduler)
reset_job_scheduler = PriorityJobScheduler.reset_instance
wire_job_events = PriorityJobScheduler.wired


def create_job_scheduler_daemon(
    router: UnifiedEventRouter | None = None, runtime: Runtime | None = None
) -> JobSchedulerDaemon:
    return JobSchedulerDaemon(router=router, runtime=runtime)


async def _shared_queue() -> WorkQueue:
    return (await engine_on_demand()).queue


def _as_work(job: ScheduledJob) -> NewWork:
    return NewWork(
        kind=job.job_type,
        payload=dict(job.config),
        id=job.job_id,
        priority=QUEUE_PRIORITIES[job.priority],
        requires=frozenset({"gpu"}) if job.requires_gpu else frozenset(),
        node=job.host_preference,
        group=str(job.config.get("config", "")),
    )


def _again(item: WorkItem) -> NewWork:
    return NewWork(
        kind=item.kind,
        payload=item.payload,
        priority=item.priority,
        requires=item.requires,
        node=item.node,
        group=item.group,
        attempts_max=item.attempts_max,
    )
