"""How full a disk is, measured one way by all who ask."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

FULL_PERCENT = 95.0  # from here on a node takes no files of others in


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """One look at a disk. *total_bytes* are what ordinary users can have: used and free together."""

    total_bytes: int
    used_bytes: int

    @property
    def percent(self) -> float:
        return self.percent_with(0)

    @property
    def free_bytes(self) -> int:
        return self.total_bytes - self.used_bytes

    def percent_with(self, more_bytes: int) -> float:
        """How full it would be with so many bytes more."""
        return 100.0 * (self.used_bytes + more_bytes) / self.total_bytes if self.total_bytes else 0.0


def disk_usage(folder: Path) -> DiskUsage:
    """Look at the disk under *folder*, which may not be there yet.

    Counted as `df` does: what the system keeps for itself is neither used nor ours to use.
    """
    there = next(each for each in (folder, *folder.resolve().parents) if each.exists())
    found = shutil.disk_usage(there)
    return DiskUsage(total_bytes=found.used + found.free, used_bytes=found.used)
