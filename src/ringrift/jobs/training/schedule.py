"""The learning rate over the steps of a run: up in a line, then down along half a cosine."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi

from ringrift.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LearningRate:
    """Rises to *peak* over *warmup_steps*, then falls to *end* at *steps* and stays there."""

    peak: float
    end: float
    warmup_steps: int
    steps: int

    def __post_init__(self) -> None:
        if not (0 <= self.end <= self.peak and self.peak > 0 and self.warmup_steps >= 0 and self.steps >= 1):
            raise ConfigError(f"learning rate: need 0 <= end <= peak and steps from 1 up, not {self}")

    def at(self, step: int) -> float:
        """The rate of step number *step*, from 0."""
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        falling = max(1, self.steps - self.warmup_steps)
        share = min(1.0, (step - self.warmup_steps) / falling)
        return self.end + (self.peak - self.end) * (1 + cos(pi * share)) / 2
