"""Which config was served how much processor time, by jobs of every kind.

Kept in memory only. After a restart everybody begins anew, which is fair enough.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ringrift.learning.state import OpenJob
from ringrift.work.shares import FairTurns

SELFPLAY = "selfplay"
JOB_S_FIRST = {"selfplay": 20.0, "validate": 2.0, "export": 2.0, "train": 20.0, "evaluate": 20.0}
JOB_S_OTHER = 30.0
NEWEST_SHARE = 0.3  # of the newest measurement in what is expected of the next job


@dataclass(slots=True)
class Effort:
    """A job counts with what is expected of it until it ends."""

    turns: FairTurns = FairTurns()
    expected_s: dict[tuple[str, str], float] = field(default_factory=dict)  # config and kind: of one job
    booked_s: dict[str, float] = field(default_factory=dict)  # open job: what was expected of it

    def start(self, config: str, job: OpenJob, *, share: float) -> None:
        first_s = JOB_S_FIRST.get(job.kind, JOB_S_OTHER)
        expected_s = self.expected_s.get((config, job.kind), first_s)
        self.booked_s[job.job_id] = expected_s
        self.turns = self.turns.started(config, share=share, expected_s=expected_s)

    def end(self, config: str, job: OpenJob, cpu_s: float | None, *, share: float) -> None:
        """*cpu_s* is None for a job that failed: it served nobody."""
        booked_s, measured_s = self.booked_s.pop(job.job_id, 0.0), cpu_s or 0.0
        self.turns = self.turns.ended(config, share=share, expected_s=booked_s, measured_s=measured_s)
        if cpu_s is not None:
            before_s = self.expected_s.get((config, job.kind), cpu_s)
            self.expected_s[config, job.kind] = before_s + NEWEST_SHARE * (cpu_s - before_s)
