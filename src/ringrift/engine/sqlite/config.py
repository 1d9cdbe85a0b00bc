"""Settings of the embedded engine, checked when built."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ringrift.engine.limits import EngineLimits
from ringrift.errors import ConfigError
from ringrift.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteConfig:
    """Where the files are, and the bounds on waiting."""

    database: Path
    blob_dir: Path
    limits: EngineLimits = field(default_factory=EngineLimits)
    database_bytes_max: int = 64 * 2**30
    call_wait_s: float = 10.0  # a caller waits this long for its answer, then gets `Unavailable`
    poll_s: float = 1.5  # longest time between two looks of a waiter that no other process can wake
    lost_wakeup_s: float = 5.0  # the same where they can: one of them may be killed before it does
    upkeep_s: float = 10.0  # mean time between two rounds of upkeep
    pending_max: int = 10_000  # calls waiting for the writer; more are refused
    batch_max: int = 1_000  # calls that share one commit
    may_begin_among_files: bool = False  # make a database where sealed files lie, which speaks for a lost one
    may_begin_in_empty_file: bool = (
        False  # take an empty file for a new database, and not for one that was cut off
    )

    def __post_init__(self) -> None:
        for name in ("call_wait_s", "poll_s", "lost_wakeup_s", "upkeep_s", "pending_max", "batch_max"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be above 0")
        if self.database_bytes_max < 2**20:
            raise ConfigError(f"database_bytes_max is {self.database_bytes_max}; it must be at least 1 MiB")

    @classmethod
    def from_settings(cls, settings: Settings) -> SqliteConfig:
        return cls(
            database=settings.coordinator_db,
            blob_dir=settings.blob_dir,
            limits=EngineLimits(
                event_retention_s=settings.event_retention_hours * 3600.0,
                event_retention_rows=settings.event_retention_rows,
            ),
        )
