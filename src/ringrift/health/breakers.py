"""A circuit breaker as plain decisions: outcomes and time in, whether to try out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from ringrift.errors import ConfigError
from ringrift.runtime import back_off_s

__all__ = ["BreakerConfig", "BreakerState", "CircuitBreaker"]


class BreakerState(StrEnum):
    """Whether calls go through."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"  # one trial call decides


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerConfig:
    """When to open and how long to wait."""

    failures_max: int = 5  # in a row
    cooldown_s: float = 60.0
    cooldown_s_max: float = 900.0  # doubled by each failed trial up to here

    def __post_init__(self) -> None:
        if self.failures_max < 1 or not 0 < self.cooldown_s <= self.cooldown_s_max:
            raise ConfigError("a breaker needs failures_max >= 1 and 0 < cooldown_s <= cooldown_s_max")


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """One breaker; every step returns the next one."""

    config: BreakerConfig = BreakerConfig()
    failures: int = 0
    opened_s: float | None = None
    cooldown_s: float = 0.0

    def state(self, now_s: float) -> BreakerState:
        if self.opened_s is None:
            return BreakerState.CLOSED
        waited = now_s - self.opened_s
        return BreakerState.HALF_OPEN if waited >= self.cooldown_s else BreakerState.OPEN

    def allows(self, now_s: float) -> bool:
        return self.state(now_s) is not BreakerState.OPEN

    def succeeded(self) -> CircuitBreaker:
        return CircuitBreaker(self.config)

    def failed(self, now_s: float) -> CircuitBreaker:
        """Count a failure; opens at the limit, and again (for longer) when a trial fails."""
        failures = self.failures + 1
        if self.opened_s is not None:
            # A call that began before it opened says nothing new: only a trial makes the wait longer.
            if self.state(now_s) is BreakerState.OPEN:
                return replace(self, failures=failures)
            longer = back_off_s(2, first_s=self.cooldown_s, longest_s=self.config.cooldown_s_max)
            return replace(self, failures=failures, opened_s=now_s, cooldown_s=longer)
        if failures < self.config.failures_max:
            return replace(self, failures=failures)
        return replace(self, failures=failures, opened_s=now_s, cooldown_s=self.config.cooldown_s)
