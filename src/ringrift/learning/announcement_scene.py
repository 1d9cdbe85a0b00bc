"""What an announcement may look at: the state after the fact, the time, and the ratings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ringrift.learning.ratings import rate
from ringrift.learning.records import Match, ShardState
from ringrift.learning.state import ConfigState

Announcement = tuple[str, dict[str, Any]]

RATING_START = 1500.0  # of whom nobody has played
QUALITY_SHARDS = 20
_LOSSES = ("best_held", "best_loss", "held", "train")


def blob_path(digest: str) -> str:
    """Where a sealed file is found: in the engine's blobs, under its hash."""
    return f"blob:{digest}"


@dataclass(frozen=True)
class Scene:
    """One moment of one config."""

    state: ConfigState
    at_s: float

    @cached_property
    def ratings(self) -> dict[str, float]:
        """By model or baseline; fitted only for the few events that speak of strength."""
        return {name: each.rating for name, each in rate(self.state.trusted_matches()).items()}

    @property
    def config(self) -> str:
        return self.state.config

    def rating(self, participant: str) -> float:
        return float(self.ratings.get(participant, RATING_START))

    def champion_rating(self) -> float:
        return RATING_START if self.state.champion is None else self.rating(self.state.champion)

    def number(self, model: str) -> int:
        found = self.state.models.get(model)
        return 0 if found is None else found.number

    def failures_of(self, kind: str) -> int:
        found = self.state.failures.get(kind)
        return 1 if found is None else max(1, found.in_a_row)

    def matches_of(self, model: str, purpose: str) -> list[Match]:
        return [
            match
            for match in self.state.trusted_matches()
            if match.first == model and match.purpose == purpose
        ]

    def mean_quality(self) -> float:
        """Of the newest checked shards; 0 if none was scored."""
        scores: list[float] = []
        for shard in reversed(self.state.shards.values()):
            if shard.state is ShardState.CHECKED and shard.quality is not None:
                scores.append(shard.quality)
            if len(scores) == QUALITY_SHARDS:
                break
        return sum(scores) / len(scores) if scores else 0.0


def loss_of(fields: Mapping[str, Any]) -> float | None:
    """The loss that a training is compared by: on held-out games where there are any."""
    for name in _LOSSES:
        value = fields.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    return None
