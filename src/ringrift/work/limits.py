"""What tasks may use, and all that the answer to "may this one start?" depends on.

The answer itself is in `limits_checks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from ringrift.errors import ConfigError
from ringrift.health.breakers import CircuitBreaker
from ringrift.work.backpressure_levels import BackpressureLevel
from ringrift.work.emergency import EmergencyNotice
from ringrift.work.task_resources import NodeResources
from ringrift.work.task_types import TaskType

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
