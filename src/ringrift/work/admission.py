"""Puts together all that the question "may this task start?" depends on, and remembers what did.

Rates, cooldowns and breakers are this process's own memory; everything else is read, at most a second old.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ringrift.engine.arguments import check_name, check_part
from ringrift.engine.encoding import decode_entry
from ringrift.engine.ports import Engine, KeyValue
from ringrift.engine.records import read_record, write_record
from ringrift.engine.run_reports import reported
from ringrift.engine.work_rules import ALL_WORK, TASKS_WORK, hold_key
from ringrift.health.breakers import CircuitBreaker
from ringrift.machine import NodeResources
from ringrift.runtime import Runtime
from ringrift.work.backpressure import QueueLevels, QueueType
from ringrift.work.limits import (
    LOOP_ORDER,
    MEMORY_FORGOTTEN_S,
    SAFEGUARD_ORDER,
    Check,
    CoordinatorState,
    EmergencyNotice,
    EmergencyState,
    Pause,
    Question,
    SpawnVerdict,
    StateNotice,
    TaskLimits,
    TokenBucket,
    check_hard_resources,
    has_room_again,
    judge,
    memory_threshold,
    says_out_of_memory,
)
from ringrift.work.tasks import SELFPLAY_TYPES, RunningTask, TaskRegistry, TaskType, counted, task_type_of

FORMER_STATE_KEY = "tasks/state"
FRESH_S = 1.0
SPAWNS_PER_MINUTE, SPAWNS_PER_CORE = 60, 12
NODES_MAX = 2_000  # nodes and kinds that are remembered; those not heard of for longest go first

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSources:
    """Where the facts come from."""

    engine: Callable[[], Awaitable[Engine]]
    emergency: EmergencyState
    monitor: QueueLevels
    resources: Callable[[], Awaitable[NodeResources]]
    runtime: Runtime


@dataclass(frozen=True, slots=True)
class _Seen:
    at_s: float
    tasks: list[RunningTask]
    state: StateNotice
    emergency: EmergencyNotice | None
    resources: NodeResources


class TaskAdmission:
    """The memory of what started and failed here, and the one that asks the questions."""

    def __init__(self, sources: AdmissionSources, *, limits: TaskLimits | None = None) -> None:
        self._at = sources
        self.limits = limits or TaskLimits()
        self.memory = memory_threshold(self.limits, sources.runtime)
        self.registry = TaskRegistry(sources.engine, runtime=sources.runtime)
        self.offline: dict[str, str] = {}  # node: why it counts as gone
        self._halted = ""  # why this machine had no room when last looked at
        self._is_taken_over = False
        self._out_of_memory_s: float | None = None  # when a task here last was
        self._seen: _Seen | None = None
        limits = self.limits
        self._rate = TokenBucket(limits.spawns_per_minute, limits.spawns_burst)
        self._guard_rate = TokenBucket(limits.spawns_per_minute, limits.spawns_per_minute)
        self._selfplay_rate = TokenBucket(limits.selfplay_per_minute, limits.selfplay_burst)
        self._node_rates: OrderedDict[str, TokenBucket] = OrderedDict()
        self._last_spawn_s: OrderedDict[str, float] = OrderedDict()
        self._breakers: OrderedDict[str, CircuitBreaker] = OrderedDict()

    # --- asking ---------------------------------------------------------------------------------------

    async def question(self, task_type: TaskType, node: str, *, for_safeguards: bool = False) -> Question:
        """All that is known about starting a task of *task_type* on *node* now."""
        check_name("node_id", node, empty=True)
        node = node or self._at.runtime.hostname
        seen, now_s = await self._look(), self._at.runtime.now_s()
        here = self.is_this_machine(node)
        kept = await self.registry.reservation(node)
        return Question(
            task_type=task_type,
            node=node,
            now_s=now_s,
            state=self._state(seen),
            emergency=seen.emergency,
            rate=self._guard_rate if for_safeguards else self._rate,
            selfplay_rate=None if for_safeguards else self._selfplay_rate,
            node_rate=self._node_rates.get(node),
            last_spawn_s=self._last_spawn_s.get(node),
            reserved_for="" if kept is None else kept.purpose,
            reserved_until_s=None if kept is None else kept.until_s,
            node_offline=self.offline.get(node, ""),
            node_breaker=self._breakers.get(f"node {node}"),
            type_breaker=self._breakers.get(f"type {task_type.value}"),
            on_node=counted(seen.tasks, node=node),
            in_cluster=counted(seen.tasks),
            resources=seen.resources if here else None,
            backpressure=self._at.monitor.level(QueueType.TRAINING_DATA),
        )

    def is_this_machine(self, node: str) -> bool:
        return node in {"", "local", "localhost", self._at.runtime.hostname}

    async def running(self) -> list[RunningTask]:
        return (await self._look()).tasks

    async def state(self) -> StateNotice:
        return self._state(await self._look())

    async def set_state(self, state: CoordinatorState, reason: str, *, for_s: float | None = None) -> None:
        """Hold the queue, as a pause of the whole run does, so that nothing that waits is claimed.

        A pause by a person is apart from it, and stays.
        """
        kv, now_s = (await self._at.engine()).kv, self._at.runtime.now_s()
        if state is CoordinatorState.RUNNING:
            await kv.delete(hold_key(TASKS_WORK))
        else:
            until_s = None if for_s is None else now_s + for_s
            pause = Pause(reason=reason, at_s=now_s, state=state, until_s=until_s)
            await write_record(kv, hold_key(TASKS_WORK), pause, ttl_s=for_s)
        self.forget_view()

    def forget_view(self) -> None:
        """Look again at the next question."""
        self._seen = None

    async def _look(self) -> _Seen:
        now_s = self._at.runtime.monotonic_s()
        if self._seen is not None and now_s - self._seen.at_s < FRESH_S:
            return self._seen
        if not self._at.monitor.is_fresh:
            await self._at.monitor.refresh()
        kv = (await self._at.engine()).kv
        await self._take_over_former_state(kv)
        own = await read_record(kv, hold_key(TASKS_WORK), Pause)
        pause = own or await read_record(kv, hold_key(ALL_WORK), Pause)
        stored = StateNotice() if pause is None else _noticed(pause)
        resources = await self._at.resources()
        self._forget_memory()
        self._note_room(resources)
        self._seen = _Seen(
            now_s, await self.registry.running(), stored, await self._at.emergency.notice(), resources
        )
        return self._seen

    async def _take_over_former_state(self, kv: KeyValue) -> None:
        """A pause that an earlier version stored in a place of its own becomes a hold of the queue."""
        if self._is_taken_over:
            return
        entry = await kv.get(FORMER_STATE_KEY)
        self._is_taken_over = True  # not before: a store that is away is asked again
        if entry is None:
            return
        former, now_s = decode_entry(entry, StateNotice), self._at.runtime.now_s()
        left_s = None if former.until_s is None else former.until_s - now_s
        if former.state is not CoordinatorState.RUNNING and (left_s is None or left_s > 0):
            await self.set_state(former.state, former.reason, for_s=left_s)
        await kv.delete(FORMER_STATE_KEY)

    def _note_room(self, resources: NodeResources) -> None:
        """Halt at the limit, go on at nine tenths of it."""
        ask = Question(task_type=TaskType.OTHER, node="", now_s=0.0, resources=resources)
        refusal = check_hard_resources(ask, self.limits)
        if refusal is not None:
            self._halted = refusal.reason
        elif self._halted and has_room_again(resources, self.limits):
            self._halted = ""

    def _state(self, seen: _Seen) -> StateNotice:
        now_s = self._at.runtime.now_s()
        if seen.emergency is not None:
            notice = seen.emergency
            return StateNotice(
                state=CoordinatorState.EMERGENCY,
                reason=notice.reason,
                since_s=notice.since_s,
                until_s=notice.until_s,
            )
        stored = seen.state
        if stored.until_s is not None and now_s >= stored.until_s:
            stored = StateNotice()
        if stored.state is CoordinatorState.RUNNING and self._halted:
            return StateNotice(
                state=CoordinatorState.PAUSED, reason=self._halted, since_s=now_s, by_resources=True
            )
        return stored

    # --- remembering ----------------------------------------------------------------------------------

    def started(self, task_type: TaskType, node: str) -> None:
        """Count a start against the rates."""
        now_s, node = self._at.runtime.now_s(), node or self._at.runtime.hostname
        self._rate, self._guard_rate = self._rate.taken(now_s), self._guard_rate.taken(now_s)
        if task_type in SELFPLAY_TYPES:
            self._selfplay_rate = self._selfplay_rate.taken(now_s)
        bucket = self._node_rates.get(node)
        fresh = TokenBucket(self.limits.node_per_minute, self.limits.node_burst)
        _remember(self._node_rates, node, (bucket or fresh).taken(now_s))
        _remember(self._last_spawn_s, node, now_s)
        self.forget_view()

    def succeeded(self, task_type: TaskType, node: str) -> None:
        for key in _breaker_keys(task_type, node or self._at.runtime.hostname):
            self._breakers.pop(key, None)
        self._note_memory(node, enough=True)
        self.forget_view()

    async def failed(self, task_type: TaskType, node: str, reason: str) -> EmergencyNotice | None:
        """Count a failure; return the emergency stop if memory ran out."""
        now_s = self._at.runtime.now_s()
        for key in _breaker_keys(task_type, node or self._at.runtime.hostname):
            _remember(self._breakers, key, self._breakers.get(key, CircuitBreaker()).failed(now_s))
        self._note_memory(node, enough=not says_out_of_memory(reason))
        self.forget_view()
        return await self._at.emergency.after_failure(reason)

    def _note_memory(self, node: str, *, enough: bool) -> None:
        """Where tasks run out of memory, the next ones start beside others only while less of it is used."""
        if not self.is_this_machine(node):
            return
        if not enough:
            self._out_of_memory_s = self._at.runtime.monotonic_s()
        self._limit_memory(self.memory.record_outcome(success=enough))

    def _forget_memory(self) -> None:
        """Without an outcome nothing would ever raise the limit again."""
        last_s = self._out_of_memory_s
        if last_s is not None and self._at.runtime.monotonic_s() - last_s >= MEMORY_FORGOTTEN_S:
            self._out_of_memory_s = None
            self.memory.reset()
            self._limit_memory(self.memory.value)

    def _limit_memory(self, share: float) -> None:
        percent = 100.0 if share == self.memory.initial_value else 100.0 * share
        self.limits = replace(self.limits, memory_percent_warning=percent)

    def open_breakers(self) -> dict[str, str]:
        """What is held back after failures in a row, with the state of its breaker."""
        now_s = self._at.runtime.now_s()
        return {
            key: breaker.state(now_s).value
            for key, breaker in tuple(self._breakers.items())
            if breaker.opened_s is not None
        }


def _noticed(pause: Pause) -> StateNotice:
    return StateNotice(state=pause.state, reason=pause.why, since_s=pause.at_s, until_s=pause.until_s)


def _breaker_keys(task_type: TaskType, node: str) -> tuple[str, str]:
    return f"node {node}", f"type {task_type.value}"


def _remember(table: OrderedDict[K, V], key: K, value: V) -> None:
    table[key] = value
    table.move_to_end(key)
    while len(table) > NODES_MAX:
        table.popitem(last=False)


def limits_for_machine(cores: int, *, spawns_per_minute: int | None = None) -> TaskLimits:
    """The documented limits, wider where a machine has more cores than they had in mind."""
    per_minute = float(spawns_per_minute or max(SPAWNS_PER_MINUTE, SPAWNS_PER_CORE * cores))
    usual = TaskLimits()
    widest = max(usual.node_tasks_max, cores)
    return replace(
        usual,
        per_node={**usual.per_node, TaskType.SELFPLAY: max(usual.per_node[TaskType.SELFPLAY], cores)},
        node_tasks_max=widest,
        cluster_tasks_max=max(usual.cluster_tasks_max, widest),
        spawns_per_minute=per_minute,
        spawns_burst=max(usual.spawns_burst, cores),
        selfplay_per_minute=per_minute / 2,
        selfplay_burst=max(usual.selfplay_burst, cores),
        node_per_minute=per_minute / 2,
        node_burst=max(1.0, per_minute / 2),
    )


# What a program may start (every check of `SAFEGUARD_ORDER`), and what the loop may order (`LOOP_ORDER`).


class SpawnGate:
    """Says whether a kind of work may start on a node. Every no has a reason and a time to ask again."""

    def __init__(self, admission: TaskAdmission) -> None:
        check_part("admission", admission, TaskAdmission)
        self._admission = admission
        self.asked = 0
        self.refused: dict[str, int] = {}  # by check

    async def allow(self, kind: str, node: str = "") -> SpawnVerdict:
        """Whether work of *kind* (a job kind or a task type) may start on *node* now."""
        return await self._judge(kind, node, SAFEGUARD_ORDER)

    async def may_order(self, kind: str, node: str = "") -> SpawnVerdict:
        """Whether the loop may order work of *kind*: an emergency, a pause, a full disk hold it."""
        return await self._judge(kind, node, LOOP_ORDER)

    async def throttle(self, kind: str) -> float:
        """The part of full speed that backpressure leaves to work of *kind*."""
        question = await self._admission.question(task_type_of(kind), "", for_safeguards=True)
        return question.backpressure.throttle_factor

    async def _judge(self, kind: str, node: str, order: tuple[Check, ...]) -> SpawnVerdict:
        question = await self._admission.question(task_type_of(kind), node, for_safeguards=True)
        verdict = judge(question, self._admission.limits, order)
        self.asked += 1
        if not verdict.ok:
            self.refused[verdict.check] = self.refused.get(verdict.check, 0) + 1
        return verdict

    def started(self, kind: str, node: str = "") -> None:
        """Count a start against the rates."""
        self._admission.started(task_type_of(kind), node)

    def succeeded(self, kind: str, node: str = "") -> None:
        self._admission.succeeded(task_type_of(kind), node)

    async def failed(self, kind: str, node: str, reason: str) -> None:
        """Count a failure. One that says that memory ran out turns the emergency stop on."""
        await self._admission.failed(task_type_of(kind), node, reason)

    @property
    def works_here(self) -> bool:
        return self.asked > 0

    @reported
    def get_stats(self) -> dict[str, Any]:
        return {
            "asked": self.asked,
            "refused": dict(self.refused),
            "open_breakers": self._admission.open_breakers(),
            "memory_warning": self._admission.memory.to_dict(),
        }
