"""How full is too full: one ordered level, from the depth of a queue and its two limits.

Pure decisions. A level rises as soon as the depth reaches it, and falls only when the depth is a tenth below
it, so that a depth that wavers around a threshold changes nothing. More depth never means a lower level.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from ringrift.errors import ConfigError

BAND = 0.1  # how far below its threshold a depth must fall before the level does
TREND_SHARE = 0.1  # a change by less than this share of the former depth is no trend


class BackpressureLevel(IntEnum):
    """Ordered: `level >= BackpressureLevel.HIGH` means what it says. `str(level)` is the written name."""

    NONE = 0
    LOW = 1
    SOFT = 2  # production should slow down from here on
    MEDIUM = 3
    HARD = 4
    HIGH = 5
    CRITICAL = 6
    STOP = 7  # nothing more until the queue drains

    @classmethod
    def _missing_(cls, value: object) -> BackpressureLevel | None:
        """Read a written name, in any case."""
        return cls.__members__.get(value.upper()) if isinstance(value, str) else None

    def __str__(self) -> str:
        return self.name.lower()

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    @property
    def throttle_factor(self) -> float:
        """The share of full speed at which producers should run."""
        return _FACTORS[self]

    @property
    def throttles(self) -> bool:
        return self >= BackpressureLevel.SOFT


_FACTORS = {
    BackpressureLevel.NONE: 1.0,
    BackpressureLevel.LOW: 0.75,
    BackpressureLevel.SOFT: 0.5,
    BackpressureLevel.MEDIUM: 0.25,
    BackpressureLevel.HARD: 0.1,
    BackpressureLevel.HIGH: 0.05,
    BackpressureLevel.CRITICAL: 0.01,
    BackpressureLevel.STOP: 0.0,
}
_OF_SOFT = ((BackpressureLevel.NONE, 0.5), (BackpressureLevel.LOW, 0.75), (BackpressureLevel.SOFT, 1.0))
_OF_HARD = (
    (BackpressureLevel.MEDIUM, 0.5),
    (BackpressureLevel.HARD, 0.75),
    (BackpressureLevel.HIGH, 0.9),
    (BackpressureLevel.CRITICAL, 1.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """What one queue may hold, and how fast it usually empties."""

    soft: float
    hard: float
    target: float
    drain_per_hour: float

    def __post_init__(self) -> None:
        if not 0 < self.target <= self.soft < self.hard or self.drain_per_hour <= 0:
            raise ConfigError("a queue needs 0 < target <= soft < hard and drain_per_hour above 0")

    def drain_s(self, depth: float) -> float:
        """How long the queue needs to come down to its target."""
        return max(0.0, depth - self.target) / self.drain_per_hour * 3600.0


def level_of(depth: float, limits: QueueLimits) -> BackpressureLevel:
    """The level of a depth by itself, without its past."""
    for level, share in _OF_SOFT:
        if depth < share * limits.soft:
            return level
    for level, share in _OF_HARD:
        if depth < share * limits.hard:
            return level
    return BackpressureLevel.STOP


def next_level(previous: BackpressureLevel, depth: float, limits: QueueLimits) -> BackpressureLevel:
    """The level after *previous*: up at once, down only below the band."""
    rising = level_of(depth, limits)
    falling = level_of(depth / (1.0 - BAND), limits)
    return max(rising, min(previous, falling))


def level_for_speed(multiplier: float) -> BackpressureLevel:
    """The mildest level that slows producers down to *multiplier* of full speed or further."""
    return next(level for level in BackpressureLevel if _FACTORS[level] <= multiplier + 1e-9)


def trend_of(depth: float, former: float | None) -> str:
    """Where a depth is going, against its mean five to ten minutes ago: rising, falling or stable."""
    if former is None:
        return "stable"
    change = depth - former
    if abs(change) <= TREND_SHARE * former or change == 0:
        return "stable"
    return "rising" if change > 0 else "falling"
