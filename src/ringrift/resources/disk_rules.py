"""How full is too full, and what may go at which level: pure rules."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from ringrift.data.artifacts import Artifact, ArtifactKind
from ringrift.data.disk_usage import FULL_PERCENT, DiskUsage
from ringrift.errors import ConfigError

DAY_S = 86_400.0


class DiskLevel(IntEnum):
    """Ordered: each level includes what the ones below it do."""

    FINE = 0
    PROACTIVE = 1  # free what costs nothing, before it is urgent
    WARNING = 2  # tell everybody
    CRITICAL = 3  # no new files are taken in
    EMERGENCY = 4  # free whatever is safe to free


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskRules:
    """Levels in percent of the disk. They must rise: an emergency below critical would never be one."""

    target: float = 50.0
    proactive: float = 70.0
    warning: float = 88.0
    critical: float = FULL_PERCENT
    emergency: float = 96.0

    def __post_init__(self) -> None:
        levels = (self.target, self.proactive, self.warning, self.critical, self.emergency)
        if not all(low < high for low, high in zip((0.0, *levels), (*levels, 100.0), strict=True)):
            told = ", ".join(f"{level:g}" for level in levels)
            raise ConfigError(
                f"disk levels are {told}; they must rise from target to proactive, warning, critical and "
                "emergency, between 0 and 100"
            )

    def level(self, percent: float) -> DiskLevel:
        bars = (self.proactive, self.warning, self.critical, self.emergency)
        return DiskLevel(sum(percent >= bar for bar in bars))

    def to_free(self, usage: DiskUsage) -> int:
        """How many bytes to free: once it begins it goes down to the target, to have peace for a while."""
        if self.level(usage.percent) is DiskLevel.FINE:
            return 0
        return max(0, usage.used_bytes - int(usage.total_bytes * self.target / 100.0))


# How old a file must be before its local copy may go, if enough others exist. More fullness, less patience.
AGE_S_MIN = {
    DiskLevel.PROACTIVE: 7 * DAY_S,
    DiskLevel.WARNING: DAY_S,
    DiskLevel.CRITICAL: 3_600.0,
    DiskLevel.EMERGENCY: 600.0,
}


def worth_freeing(artifact: Artifact, *, copies: int, now_s: float, inherited: bool, poor: bool) -> float:
    """Higher goes first: unfinished games, what lives on elsewhere, poor games, old ones, many copies."""
    age_days = max(0.0, now_s - artifact.created_s) / DAY_S
    quality = 0.5 if artifact.quality is None else artifact.quality
    score = min(age_days / 30.0, 5.0) * 10.0 + (1.0 - quality) * 30.0 + 5.0 * min(copies, 5)
    spare = artifact.kind is ArtifactKind.UNFINISHED
    return score + (400.0 if spare else 0.0) + (200.0 if inherited else 0.0) + (100.0 if poor else 0.0)
