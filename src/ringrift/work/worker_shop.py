"""What all claims of a worker share."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from ringrift.engine.ports import Engine
from ringrift.errors import RingRiftError
from ringrift.runtime import Runtime
from ringrift.settings import Settings
from ringrift.work.durations_book import DurationBook
from ringrift.work.durations_rules import TaskOutcome
from ringrift.work.job_folders import JobFolders
from ringrift.work.job_host import JobHost
from ringrift.work.worker_config import WorkerConfig
from ringrift.work.worker_events import WorkerEvents

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """Where a worker works, and what with."""

    config: WorkerConfig
    engine: Engine
    runtime: Runtime
    settings: Settings
    folders: JobFolders
    events: WorkerEvents
    durations: DurationBook
    host: JobHost | None = None  # None: every job is a program that is started

    async def timeout_s(self, kind: str, config: str) -> float | None:
        """From measured durations; None if they cannot be had now."""
        try:
            return await self.durations.timeout_s(kind, config)
        except RingRiftError as error:
            log.warning("worker.durations_unknown", kind=kind, error=str(error))
            return None

    async def measured(self, kind: str, config: str, seconds: float, *, outcome: TaskOutcome) -> None:
        """Remember how long a job took; the job is over whether that works or not."""
        try:
            await self.durations.record(kind, config, self.config.node, seconds, outcome=outcome)
        except RingRiftError as error:
            log.warning("worker.duration_not_kept", kind=kind, error=str(error))
