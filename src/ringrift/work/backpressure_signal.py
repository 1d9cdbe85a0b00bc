"""The pressure on the whole machine as one number, and what producers make of it. Pure decisions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ringrift.work.backpressure_levels import BackpressureLevel, level_for_speed
from ringrift.work.queue_depths import WorkCounts, in_hand, waiting, waiting_in_all
from ringrift.work.task_resources import NodeResources

FULL_SPEED_BELOW = 0.2
STANDSTILL_ABOVE = 0.7
PAUSE_BELOW = 0.1
HEALTHY_BELOW = 0.3
COOLDOWN_S = 60.0

_RANGES = {
    "queue": (5.0, 50.0),
    "training": (1.0, 5.0),
    "disk": (40.0, 75.0),
    "sync": (3.0, 30.0),
    "memory": (30.0, 70.0),
}
_WEIGHTS = {"queue": 0.25, "memory": 0.25, "training": 0.20, "disk": 0.15, "sync": 0.15}
_TRAINING = ("train", "training")
_SYNC = ("sync", "data_sync")


@dataclass(frozen=True, slots=True)
class BackpressureSignal:
    """Pressures from 0 to 1 and what follows from them."""

    queue_pressure: float
    training_pressure: float
    disk_pressure: float
    sync_pressure: float
    memory_pressure: float
    at_s: float

    @property
    def overall_pressure(self) -> float:
        return sum(weight * float(getattr(self, f"{name}_pressure")) for name, weight in _WEIGHTS.items())

    @property
    def spawn_rate_multiplier(self) -> float:
        """1 at low pressure, 0 at high pressure, in proportion between."""
        span = STANDSTILL_ABOVE - FULL_SPEED_BELOW
        return min(1.0, max(0.0, (STANDSTILL_ABOVE - self.overall_pressure) / span))

    @property
    def should_pause(self) -> bool:
        return self.spawn_rate_multiplier < PAUSE_BELOW

    @property
    def is_healthy(self) -> bool:
        return self.overall_pressure < HEALTHY_BELOW

    @property
    def level(self) -> BackpressureLevel:
        return level_for_speed(self.spawn_rate_multiplier)

    @property
    def highest(self) -> str:
        """What presses most, by its weight."""
        return max(_WEIGHTS, key=lambda name: _WEIGHTS[name] * float(getattr(self, f"{name}_pressure")))

    def to_dict(self) -> dict[str, Any]:
        return {
            **{f"{name}_pressure": round(getattr(self, f"{name}_pressure"), 3) for name in _WEIGHTS},
            "overall_pressure": round(self.overall_pressure, 3),
            "spawn_rate_multiplier": round(self.spawn_rate_multiplier, 3),
            "should_pause": self.should_pause,
            "is_healthy": self.is_healthy,
            "level": str(self.level),
            "timestamp": self.at_s,
        }


def signal_of(counts: WorkCounts, resources: NodeResources, *, now_s: float) -> BackpressureSignal:
    """Put work and machine together. Training counts its jobs, memory what the machine has in use."""
    return BackpressureSignal(
        queue_pressure=_ramp("queue", waiting_in_all(counts)),
        training_pressure=_ramp("training", waiting(counts, _TRAINING) + in_hand(counts, _TRAINING)),
        disk_pressure=_ramp("disk", resources.disk_percent),
        sync_pressure=_ramp("sync", waiting(counts, _SYNC) + in_hand(counts, _SYNC)),
        memory_pressure=_ramp("memory", resources.memory_percent),
        at_s=now_s,
    )


def _ramp(name: str, value: float) -> float:
    low, high = _RANGES[name]
    return min(1.0, max(0.0, (value - low) / (high - low)))


@dataclass(frozen=True, slots=True)
class Announced:
    """Whether the world was told that producers should slow down, and since when."""

    active: bool = False
    changed_s: float | None = None
    level: BackpressureLevel = BackpressureLevel.NONE

    def step(
        self, level: BackpressureLevel, now_s: float, *, cooldown_s: float = COOLDOWN_S
    ) -> tuple[Announced, bool]:
        """Return what is announced next and whether that is news; there is no news in the cooldown."""
        wanted = level.throttles
        resting = self.changed_s is not None and now_s - self.changed_s < cooldown_s
        if wanted == self.active or resting:
            worst = max(self.level, level) if self.active else self.level
            return replace(self, level=worst), False
        return Announced(wanted, now_s, level if wanted else self.level), True
