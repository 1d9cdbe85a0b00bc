"""What holds work back: how much of each kind may run at once, the emergency stop, games that are too old."""

from __future__ import annotations

import asyncio
import os
import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import structlog

from ringrift.decoding import decode_as
from ringrift.engine.arguments import check_part
from ringrift.engine.encoding import UNREADABLE
from ringrift.engine.limits import TTL_S_MIN
from ringrift.engine.ports import KeyValue
from ringrift.engine.work_rules import EMERGENCY_WORK, hold_key
from ringrift.errors import ConfigError, Unavailable
from ringrift.files import make_folders, remove_file, replace_file
from ringrift.health.breakers import CircuitBreaker
from ringrift.machine import NodeResources
from ringrift.runtime import Runtime, back_off_s, system_runtime
from ringrift.work.backpressure import BackpressureLevel
from ringrift.work.tasks import SELFPLAY_TYPES, TaskType, family

# The emergency stop: nothing new starts until it is cleared.
#
# It is on when its file lies in the data folder (a person may simply create it) or when the key-value port
# says so, which reaches other machines. One that the product turned on by itself, after a job ran out of
# memory, ends by itself; one that a person turned on stays until `ringrift resume --clear-emergency`.


log = structlog.get_logger()

FILE_NAME = "EMERGENCY_STOP"
KEY = "work/emergency_stop"
HOLD = hold_key(EMERGENCY_WORK)  # while it is there the queue hands nothing out
AUTOMATIC_S, AUTOMATIC_S_MAX = 300.0, 3600.0  # doubled each time it happens again within the memory
MEMORY_S = 6 * 3600.0
ANSWER_S = 10.0
FILE_BYTES_MAX = 65_536

_OUT_OF_MEMORY = re.compile(
    r"\bout of memory\b|\boom\b|\boom[-_ ]?kill|\bmemoryerror\b|cannot allocate memory|\bbad_alloc\b",
    re.IGNORECASE,
)


def says_out_of_memory(text: str) -> bool:
    """Whether a failure's reason says that memory ran out."""
    return _OUT_OF_MEMORY.search(text) is not None


class EmergencyNotice(msgspec.Struct, frozen=True, kw_only=True):
    """Why everything stands still, since when, and until when (None: until a person clears it)."""

    reason: str
    since_s: float
    by: str = "a person"
    until_s: float | None = None
    times: int = 1  # how often it came by itself, in a row

    def is_on(self, now_s: float) -> bool:
        return self.until_s is None or now_s < self.until_s

    def to_dict(self) -> dict[str, Any]:
        noted: dict[str, Any] = msgspec.to_builtins(self)
        return noted


@dataclass(frozen=True, slots=True)
class EmergencyPlaces:
    """Where the stop is written down."""

    folder: Path
    kv: Callable[[], Awaitable[KeyValue]]

    @property
    def file(self) -> Path:
        return self.folder / FILE_NAME


class EmergencyState:
    """Reads, sets and clears it. The file is the truth of this machine, the key that of all of them."""

    def __init__(self, places: EmergencyPlaces, *, runtime: Runtime | None = None) -> None:
        check_part("places", places, EmergencyPlaces)
        self._places = places
        self._runtime = runtime or system_runtime()

    async def notice(self) -> EmergencyNotice | None:
        """Return what is in force now."""
        now_s = self._runtime.now_s()
        in_file = await asyncio.to_thread(self._read_file)
        if in_file is not None and in_file.is_on(now_s):
            return in_file
        if in_file is not None:
            await asyncio.to_thread(_drop_file, self._places.file)  # its time is over
        in_store = await self._read_key()
        return in_store if in_store is not None and in_store.is_on(now_s) else None

    async def turn_on(
        self, reason: str, *, by: str = "a person", for_s: float | None = None
    ) -> EmergencyNotice:
        """Stop everything; for *for_s* seconds, or until it is cleared."""
        now_s = self._runtime.now_s()
        until_s = None if for_s is None else now_s + for_s
        return await self._write(EmergencyNotice(reason=reason, since_s=now_s, by=by, until_s=until_s))

    async def after_failure(self, reason: str) -> EmergencyNotice | None:
        """Stop everything for a while if *reason* says that memory ran out; longer each time in a row."""
        if not says_out_of_memory(reason):
            return None
        now_s, former = self._runtime.now_s(), await self.notice() or await self._read_key()
        if former is not None and former.is_on(now_s):
            return former  # one flood of failures is one emergency
        again = former is not None and former.until_s is not None and now_s - former.until_s < MEMORY_S
        times = former.times + 1 if former is not None and again else 1
        for_s = back_off_s(times, first_s=AUTOMATIC_S, longest_s=AUTOMATIC_S_MAX)
        why = f"a job ran out of memory: {reason.strip()[:300]}"
        notice = EmergencyNotice(
            reason=why, since_s=now_s, by="safeguards", until_s=now_s + for_s, times=times
        )
        return await self._write(notice)

    async def clear(self) -> EmergencyNotice | None:
        """Let work start again; return what was in force."""
        found = await self.notice()
        try:
            await asyncio.to_thread(remove_file, self._places.file)
        except OSError as error:
            why = f"{self._places.file} cannot be removed: {error.strerror}"
            raise Unavailable(f"{why}; the emergency stop stays on") from None
        kv = await self._places.kv()
        # The key last: cut off before it, the stop is still told, and can be ended again.
        await kv.delete(HOLD)
        await kv.delete(KEY)
        if found is not None:
            log.warning("emergency_stop.cleared", reason=found.reason)
        return found

    async def _write(self, notice: EmergencyNotice) -> EmergencyNotice:
        value = msgspec.json.encode(notice)
        await asyncio.to_thread(_write_file, self._places.file, value)
        kv = await self._places.kv()
        await kv.put(KEY, value)
        pause = Pause(
            reason=f"emergency stop: {notice.reason}",
            by=notice.by,
            at_s=notice.since_s,
            until_s=notice.until_s,
            state=CoordinatorState.EMERGENCY,
        )
        left_s = None if notice.until_s is None else max(TTL_S_MIN, notice.until_s - self._runtime.now_s())
        await kv.put(HOLD, msgspec.json.encode(pause), ttl_s=left_s)
        log.error("emergency_stop.on", reason=notice.reason, by=notice.by, until_s=notice.until_s)
        return notice

    def _read_file(self) -> EmergencyNotice | None:
        try:
            with self._places.file.open("rb") as file:
                content = file.read(FILE_BYTES_MAX)
                made_s = os.fstat(file.fileno()).st_mtime
        except FileNotFoundError:
            return None
        except OSError as error:  # a folder of that name, or no right to read it: it is there
            return EmergencyNotice(reason=f"{FILE_NAME} cannot be read: {error.strerror}", since_s=0.0)
        # A person may write anything into the file; that it is there is what counts.
        said = content.decode(errors="replace").strip() or f"the file {FILE_NAME} is in the data folder"
        return _read(content) or EmergencyNotice(reason=said[:300], since_s=made_s)

    async def _read_key(self) -> EmergencyNotice | None:
        entry = await (await self._places.kv()).get(KEY)
        if entry is None:
            return None
        # A notice that cannot be read is no reason to go on.
        unreadable = EmergencyNotice(reason=f"the notice under {KEY} cannot be read", since_s=0.0)
        return _read(entry.value) or unreadable


def _read(content: bytes) -> EmergencyNotice | None:
    try:
        return decode_as(content, EmergencyNotice)
    except UNREADABLE:
        return None


def _drop_file(path: Path) -> None:
    try:
        remove_file(path)
    except OSError as error:  # it says itself that its time is over
        log.warning("emergency_stop.file_stays", path=str(path), error=str(error))


def _write_file(path: Path, content: bytes) -> None:
    make_folders(path.parent)
    replace_file(path, content)


# Limits that move by themselves so that what they guard succeeds at a wanted rate.


DEAD_BAND = 0.05
COOLDOWN_S = 60.0
HISTORY_MAX = 100


class AdjustmentStrategy(StrEnum):
    """How a step is sized."""

    LINEAR = "linear"  # a fixed share of the range
    EXPONENTIAL = "exponential"  # a fixed share of the value
    ADAPTIVE = "adaptive"  # in proportion to how far off the rate is


@dataclass(frozen=True, slots=True)
class ThresholdChange:
    """One move of a limit."""

    at_s: float
    before: float
    after: float
    success_rate: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdRules:
    """When and how far a limit moves."""

    target_success_rate: float = 0.9
    window_size: int = 50
    strategy: AdjustmentStrategy = AdjustmentStrategy.ADAPTIVE
    factor: float = 0.1
    higher_is_more_permissive: bool = True
    cooldown_s: float = COOLDOWN_S
    dead_band: float = DEAD_BAND  # so far off the rate may be

    def __post_init__(self) -> None:
        if not 0.0 < self.target_success_rate <= 1.0 or self.window_size < 2 or self.factor <= 0:
            raise ConfigError(
                "a threshold needs a rate in (0, 1], a window of 2 or more and a positive factor"
            )


class DynamicThreshold:
    """A value between two bounds, moved by outcomes.

    Nothing moves before half a window of outcomes is there, near the wanted rate, or soon after a move.
    """

    def __init__(
        self,
        name: str,
        initial_value: float,
        min_value: float,
        max_value: float,
        *,
        rules: ThresholdRules | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        if not min_value <= initial_value <= max_value or min_value == max_value:
            raise ConfigError(f"{name}: {initial_value} must lie between {min_value} and {max_value}")
        self.name, self.min_value, self.max_value = name, min_value, max_value
        self.initial_value, self.rules = initial_value, rules or ThresholdRules()
        self._runtime = runtime or system_runtime()
        self._value = initial_value
        self._outcomes: deque[bool] = deque(maxlen=self.rules.window_size)
        self._changed_s: float | None = None
        self.changes: deque[ThresholdChange] = deque(maxlen=HISTORY_MAX)

    @property
    def value(self) -> float:
        return self._value

    @property
    def success_rate(self) -> float | None:
        """None before the first outcome."""
        return sum(self._outcomes) / len(self._outcomes) if self._outcomes else None

    def record_outcome(self, *, success: bool) -> float:
        """Take in an outcome, move if it is time to, and return the value."""
        self._outcomes.append(success)
        self._adjust(success=success)
        return self._value

    def reset(self) -> None:
        self._value, self._changed_s = self.initial_value, None
        self._outcomes.clear()

    def _adjust(self, *, success: bool) -> None:
        rate, rules = self.success_rate, self.rules
        wanted = rules.target_success_rate
        now_s = self._runtime.monotonic_s()
        if (
            rate is None
            or len(self._outcomes) < rules.window_size / 2
            or abs(rate - wanted) <= rules.dead_band
        ):
            return
        # A failure that is still in the window moves it once, and not with every success after it as well.
        if success == (rate < wanted):
            return
        # The outcomes in the window belong to the old value; a second step on them would go too far.
        if self._changed_s is not None and now_s - self._changed_s < rules.cooldown_s:
            return
        # Too many failures: let more through.
        sign = 1.0 if (rate < wanted) == rules.higher_is_more_permissive else -1.0
        moved = min(self.max_value, max(self.min_value, self._value + sign * self._step(abs(rate - wanted))))
        if moved != self._value:
            reason = f"{rate:.0%} succeeded, {wanted:.0%} are wanted"
            self.changes.append(ThresholdChange(self._runtime.now_s(), self._value, moved, rate, reason))
            self._value, self._changed_s = moved, now_s

    def _step(self, off: float) -> float:
        if self.rules.strategy is AdjustmentStrategy.LINEAR:
            return self.rules.factor * (self.max_value - self.min_value)
        if self.rules.strategy is AdjustmentStrategy.EXPONENTIAL:
            return self.rules.factor * abs(self._value)
        return min(1.0, 2 * off) * self.rules.factor * (self.max_value - self.min_value)

    @property
    def is_in_use(self) -> bool:
        return bool(self._outcomes or self.changes)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "value": self._value,
            "min": self.min_value,
            "max": self.max_value,
            "success_rate": self.success_rate,
            "target_success_rate": self.rules.target_success_rate,
            "outcomes": len(self._outcomes),
            "changes": len(self.changes),
        }


MEMORY_WARNING = "memory_warning"
MEMORY_LEAST = 0.6
# One job in twenty that runs out of memory is one too many; a step lasts until other jobs have shown what it
# brought. Where none runs out any more, the limit comes back as it went, and where none ends at all, by time.
MEMORY_FORGOTTEN_S = 3600.0
MEMORY_RULES = ThresholdRules(
    target_success_rate=0.98,
    window_size=20,
    strategy=AdjustmentStrategy.LINEAR,
    factor=0.2,
    higher_is_more_permissive=False,  # the more memory is used, the fewer jobs succeed
    cooldown_s=600.0,
    dead_band=0.01,
)


def memory_threshold(limits: TaskLimits, runtime: Runtime) -> DynamicThreshold:
    """The part of the memory from which no further task starts; it begins where the machine halts anyway."""
    most = limits.memory_percent_max / 100.0
    least = min(MEMORY_LEAST, 0.65 * most)
    return DynamicThreshold(MEMORY_WARNING, most, least, most, rules=MEMORY_RULES, runtime=runtime)


# May this task start here, now? Pure decisions: one look at the world in, a verdict with its reason out.
#
# `can_spawn` and the safeguards ask the same questions in two orders. Every refusal says why and when to ask
# again. Limits on processor and memory never refuse a machine its first task: a busy machine works slowly, it
# does not stand still.


# What tasks may use, and all that the answer depends on.


MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class SpawnVerdict:
    """Whether it may start; if not why, and when it is worth asking again."""

    ok: bool
    reason: str = ""
    retry_after_s: float = 0.0
    delay_s: float = 0.0  # of one that may start: wait this long first
    check: str = ""  # what refused it

    def as_pair(self) -> tuple[bool, str]:
        return self.ok, self.reason


class CoordinatorState(StrEnum):
    """Whether new tasks may start at all."""

    RUNNING = "running"
    PAUSED = "paused"
    DRAINING = "draining"  # what runs may end
    EMERGENCY = "emergency"
    STOPPED = "stopped"


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """What holds the work queue, or one group of it: who paused it, when, why and until when."""

    reason: str = ""
    by: str = ""
    at_s: float = 0.0
    state: CoordinatorState = CoordinatorState.PAUSED
    until_s: float | None = None  # None: until somebody lets it go on

    @property
    def why(self) -> str:
        return self.reason or f"by {self.by or 'a user'}"

    def to_dict(self) -> dict[str, Any]:
        """As the status of the run shows it."""
        end = {} if self.until_s is None else {"until_s": self.until_s}
        return {"reason": self.reason, "by": self.by, "at_s": self.at_s, **end}


@dataclass(frozen=True, slots=True, kw_only=True)
class StateNotice:
    """The state, why it is so, and until when (None: until somebody changes it)."""

    state: CoordinatorState = CoordinatorState.RUNNING
    reason: str = ""
    since_s: float = 0.0
    until_s: float | None = None
    by_resources: bool = False  # ends by itself when the machine has room again


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """Lets *per_minute* through in the long run and *burst* at once; every step returns the next one."""

    per_minute: float
    burst: float
    spent: float = 0.0
    at_s: float = 0.0

    def __post_init__(self) -> None:
        if self.per_minute <= 0 or self.burst < 1:
            raise ConfigError("a rate needs per_minute above 0 and a burst of 1 or more")

    def left(self, now_s: float) -> float:
        refilled = max(0.0, now_s - self.at_s) * self.per_minute / MINUTE_S
        return self.burst - max(0.0, self.spent - refilled)

    def used_share(self, now_s: float) -> float:
        return 1.0 - self.left(now_s) / self.burst

    def wait_s(self, now_s: float) -> float:
        """How long until the next one may pass; 0 when it may now."""
        # A token short of whole by rounding is whole.
        lacking = 1.0 - self.left(now_s) - 1e-9
        return max(0.0, lacking) * MINUTE_S / self.per_minute

    def taken(self, now_s: float) -> TokenBucket:
        return replace(self, spent=self.burst - self.left(now_s) + 1.0, at_s=max(self.at_s, now_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLimits:
    """What may run, start and be used. Percentages of the machine."""

    per_node: Mapping[TaskType, int] = field(
        default_factory=lambda: {
            TaskType.SELFPLAY: 32,
            TaskType.TRAINING: 1,
            TaskType.SYNC: 2,
            TaskType.EXPORT: 2,
        }
    )
    per_cluster: Mapping[TaskType, int] = field(
        default_factory=lambda: {
            TaskType.SELFPLAY: 500,
            TaskType.TRAINING: 3,
            TaskType.CMAES: 1,
            TaskType.TOURNAMENT: 2,
            TaskType.PIPELINE: 1,
            TaskType.IMPROVEMENT_LOOP: 1,
        }
    )
    node_tasks_max: int = 32
    cluster_tasks_max: int = 200
    spawns_per_minute: float = 60.0
    spawns_burst: float = 10.0
    selfplay_per_minute: float = 30.0
    selfplay_burst: float = 5.0
    node_per_minute: float = 30.0
    node_burst: float = 30.0
    node_cooldown_s: float = 1.0
    disk_percent_max: float = 93.0
    disk_free_gb_min: float = 5.0  # a large disk has room left at 93 %
    memory_percent_max: float = 95.0
    memory_percent_soft: float = 80.0
    memory_percent_warning: float = 100.0  # lower where tasks ran out of memory
    cpu_percent_max: float = 95.0
    load_per_core_max: float = 1.5
    resume_share: float = 0.9  # a machine that was too full works again below this share of the limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """All that a verdict depends on."""

    task_type: TaskType
    node: str
    now_s: float
    state: StateNotice = StateNotice()
    emergency: EmergencyNotice | None = None
    rate: TokenBucket | None = None
    selfplay_rate: TokenBucket | None = None
    node_rate: TokenBucket | None = None
    last_spawn_s: float | None = None  # on the node
    reserved_for: str = ""  # who has the node for itself
    reserved_until_s: float | None = None
    node_offline: str = ""  # why the node counts as gone
    node_breaker: CircuitBreaker | None = None
    type_breaker: CircuitBreaker | None = None
    on_node: Mapping[TaskType, int] = field(default_factory=dict)  # running tasks by type
    in_cluster: Mapping[TaskType, int] = field(default_factory=dict)
    resources: NodeResources | None = None  # None: the node is another machine, which judges for itself
    backpressure: BackpressureLevel = BackpressureLevel.NONE


# The questions, one by one, and the answer.


ASK_AGAIN_S = 5.0

Check = Callable[[Question, TaskLimits], SpawnVerdict | None]


def judge(question: Question, limits: TaskLimits, checks: Sequence[Check]) -> SpawnVerdict:
    """The first refusal in the order of *checks*, or a yes with the delay that the rate asks for."""
    for check in checks:
        refusal = check(question, limits)
        if refusal is not None:
            return replace(refusal, check=check.__name__.removeprefix("check_"))
    return SpawnVerdict(True, "ok", delay_s=_delay_s(question))


def _delay_s(question: Question) -> float:
    """Nothing up to 80 % of the rate, then one to five seconds."""
    buckets = [bucket for bucket in (question.rate, question.node_rate) if bucket is not None]
    used = max((bucket.used_share(question.now_s) for bucket in buckets), default=0.0)
    return 0.0 if used < 0.8 else 1.0 + 4.0 * min(1.0, (used - 0.8) / 0.2)


def refuse(reason: str, retry_after_s: float = ASK_AGAIN_S) -> SpawnVerdict:
    return SpawnVerdict(False, reason, max(0.0, retry_after_s))


# --- the questions ------------------------------------------------------------------------------------


def check_emergency(ask: Question, _limits: TaskLimits) -> SpawnVerdict | None:
    notice = ask.emergency
    if notice is None or not notice.is_on(ask.now_s):
        return None
    wait_s = MINUTE_S if notice.until_s is None else notice.until_s - ask.now_s
    end = "until it is cleared" if notice.until_s is None else f"for {wait_s:.0f} s more"
    return refuse(f"emergency stop {end}: {notice.reason}", wait_s)


def check_state(ask: Question, limits: TaskLimits) -> SpawnVerdict | None:
    emergency = check_emergency(ask, limits)
    if emergency is not None:
        return emergency
    notice = ask.state
    ended = notice.until_s is not None and ask.now_s >= notice.until_s
    if notice.state is CoordinatorState.RUNNING or ended:
        return None
    wait_s = ASK_AGAIN_S if notice.until_s is None else notice.until_s - ask.now_s
    why = f": {notice.reason}" if notice.reason else ""
    return refuse(f"task coordination is {notice.state.value}{why}", wait_s)


def check_rate(ask: Question, _limits: TaskLimits) -> SpawnVerdict | None:
    named = [("tasks", ask.rate)]
    if ask.task_type in SELFPLAY_TYPES:
        named.append(("self-play tasks", ask.selfplay_rate))
    for what, bucket in named:
        if bucket is not None and (wait_s := bucket.wait_s(ask.now_s)) > 0:
            return refuse(f"more than {bucket.per_minute:g} {what} a minute", wait_s)
    return None


def check_node_rate(ask: Question, _limits: TaskLimits) -> SpawnVerdict | None:
    if ask.node_rate is None or (wait_s := ask.node_rate.wait_s(ask.now_s)) <= 0:
        return None
    return refuse(f"more than {ask.node_rate.per_minute:g} tasks a minute on {ask.node}", wait_s)


def check_cooldown(ask: Question, limits: TaskLimits) -> SpawnVerdict | None:
    if ask.last_spawn_s is None:
        return None
    wait_s = ask.last_spawn_s + limits.node_cooldown_s - ask.now_s
    return (
        refuse(f"{ask.node} began a task less than {limits.node_cooldown_s:g} s ago", wait_s)
        if wait_s > 0
        else None
    )


def check_reservations(ask: Question, _limits: TaskLimits) -> SpawnVerdict | None:
    free_in_s = 0.0 if ask.reserved_until_s is None else ask.reserved_until_s - ask.now_s
    if not ask.reserved_for or free_in_s <= 0 or ask.reserved_for == ask.task_type.value:
        return None
    return refuse(f"{ask.node} is reserved for {ask.reserved_for}", free_in_s)


def check_node_health(ask: Question, limits: TaskLimits) -> SpawnVerdict | None:
    if ask.node_offline:
        return refuse(f"{ask.node} is offline: {ask.node_offline}", MINUTE_S)
    return check_node_breaker(ask, limits)


def check_node_breaker(ask: Question, _limits: TaskLimits) -> SpawnVerdict | None:
    return _refused_by(ask.node_breaker, f"tasks on {ask.node}", ask.now_s)


def check_type_breaker(ask: Question, _limits: TaskLimits) -> SpawnVerdict | None:
    return _refused_by(ask.type_breaker, f"{ask.task_type.value} tasks", ask.now_s)


def _refused_by(breaker: CircuitBreaker | None, what: str, now_s: float) -> SpawnVerdict | None:
    if breaker is None or breaker.opened_s is None or breaker.allows(now_s):
        return None
    wait_s = breaker.opened_s + breaker.cooldown_s - now_s
    return refuse(f"{breaker.failures} {what} failed in a row", wait_s)


def check_node_limit(ask: Question, limits: TaskLimits) -> SpawnVerdict | None:
    return _over(limits.per_node, ask.on_node, ask.task_type, f"on {ask.node}")


def check_cluster_limit(ask: Question, limits: TaskLimits) -> SpawnVerdict | None:
    return _over(limits.per_cluster, ask.in_cluster, ask.task_type, "in the cluster")


def _over(
    most: Mapping[TaskType, int], running: Mapping[TaskType, int], task_type: TaskType, where: str
) -> SpawnVerdict | None:
    kind = family(task_type)
    number = sum(count for other, count in running.items() if family(other) is kind)
    if kind not in most or number < most[kind]:
        return None
    return refuse(f"{number} of {most[kind]} {kind.value} tasks run {where}")


def check_totals(ask: Question, limits: TaskLimits) -> SpawnVerdict | None:
    here, everywhere = sum(ask.on_node.values()), sum(ask.in_cluster.values())
    if here >= limits.node_tasks_max:
        return refuse(f"{here} of {limits.node_tasks_max} tasks run on {ask.node}")
    if everywhere >= limits.cluster_tasks_max:
        return refuse(f"{everywhere} of {limits.cluster_tasks_max} tasks run in the cluster")
    return None


def check_hard_resources(ask: Question, limits: TaskLimits) -> SpawnVerdict | None:
    """Disk and memory that are all but gone."""
    seen = ask.resources
    if seen is None:
        return None
    if seen.disk_percent >= limits.disk_percent_max and seen.disk_free_gb < limits.disk_free_gb_min:
        return refuse(f"disk {seen.disk_percent:.0f} % full, {seen.disk_free_gb:.1f} GB free", MINUTE_S)
    if seen.memory_percent >= limits.memory_percent_max:
        return refuse(f"memory {seen.memory_percent:.0f} % used")
    return None


def check_memory_warning(ask: Question, limits: TaskLimits) -> SpawnVerdict | None:
    """What tasks that ran out of memory have taught; a machine is never refused its first one for it."""
    seen, most = ask.resources, limits.memory_percent_warning
    if seen is None or seen.memory_percent < most or not sum(ask.on_node.values()):
        return None
    text = f"memory {seen.memory_percent:.0f} % used"
    return refuse(f"{text}; {most:.0f} % is the limit beside other tasks, as tasks ran out of memory")


def check_resources(ask: Question, limits: TaskLimits) -> SpawnVerdict | None:
    """Also what others use of the processor. Each task of ours counts as one core of its own."""
    seen, ours = ask.resources, sum(ask.on_node.values())
    if (refusal := check_hard_resources(ask, limits)) is not None or seen is None or ours == 0:
        return refusal
    if (refusal := check_memory_warning(ask, limits)) is not None:
        return refusal
    if seen.cpu_percent is None:
        return None
    others_percent = seen.cpu_percent - 100.0 * ours / seen.cores
    if others_percent >= limits.cpu_percent_max:
        return refuse(f"other programs use {others_percent:.0f} % of the processor")
    return None


def check_soft_resources(ask: Question, limits: TaskLimits) -> SpawnVerdict | None:
    """The stricter bounds of the safeguards."""
    seen, ours = ask.resources, sum(ask.on_node.values())
    if (refusal := check_hard_resources(ask, limits)) is not None or seen is None or ours == 0:
        return refusal
    if (refusal := check_memory_warning(ask, limits)) is not None:
        return refusal
    if seen.memory_percent >= limits.memory_percent_soft:
        return refuse(f"memory {seen.memory_percent:.0f} % used")
    others = (seen.load - ours) / seen.cores
    if others >= limits.load_per_core_max:
        return refuse(f"{others:.1f} other programs per core want to run")
    return None


def check_backpressure_level(ask: Question, _limits: TaskLimits) -> SpawnVerdict | None:
    if ask.task_type not in SELFPLAY_TYPES or ask.backpressure is not BackpressureLevel.STOP:
        return None
    return refuse("more data waits than can be used (backpressure stop)", MINUTE_S)


SPAWN_ORDER: tuple[Check, ...] = (
    check_state,
    check_rate,
    check_cooldown,
    check_reservations,
    check_node_health,
    check_node_limit,
    check_cluster_limit,
    check_resources,
    check_backpressure_level,
)
SAFEGUARD_ORDER: tuple[Check, ...] = (
    check_emergency,
    check_state,  # a pause holds whoever asks
    check_node_breaker,
    check_type_breaker,
    check_rate,
    check_node_rate,
    check_node_limit,
    check_totals,
    check_soft_resources,
)


def has_room_again(resources: NodeResources, limits: TaskLimits) -> bool:
    """Whether a machine that was too full may work again."""
    disk_ok = (
        resources.disk_percent < limits.resume_share * limits.disk_percent_max
        or resources.disk_free_gb >= limits.disk_free_gb_min / limits.resume_share
    )
    return disk_ok and resources.memory_percent < limits.resume_share * limits.memory_percent_max


# What may hold back the loop of a config. Its orders are bounded by the slots of the workers, every stage of
# every config has a breaker of its own, and jobs give way to other programs: so no rate, no breaker that one
# config would open for all, and no look at the processor.
LOOP_ORDER: tuple[Check, ...] = (
    check_state,
    check_hard_resources,
    check_memory_warning,
    check_backpressure_level,
)


# How old games may be before a training waits for newer ones: one rule, for the files of a node and for the
# games of a run. The age is that of the newest game, by when it was made: copying a file renews nothing.


FRESH_HOURS_MAX = 24.0
GAMES_MIN = 50  # made within the limit
NEVER_HOURS = 1e6  # what events call the age of data that does not exist


def why_stale(age_s: float | None, games: int, *, hours_max: float, games_min: int) -> str:
    """Why data whose newest game is of *age_s* is too old or too little; empty if it is fresh."""
    if age_s is not None and age_s <= hours_max * 3600 and games >= games_min:
        return ""
    return f"{games} games of the last {hours_max:g} h, {games_min} are needed"
