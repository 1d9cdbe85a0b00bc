"""Who was served how much: kinds of work by their shares, configs by theirs.

Kept in memory only. After a restart everybody begins anew, which is fair enough.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ringrift.learning.state import OpenJob
from ringrift.work.shares import KIND_SHARES, FairClock, FairTurns, kind_of_share

SELFPLAY = "selfplay"
JOB_S_FIRST = {"selfplay": 45.0, "validate": 3.0, "export": 5.0, "train": 30.0, "evaluate": 45.0}
JOB_S_OTHER = 60.0
NEWEST_SHARE = 0.3  # of the newest measurement in what is expected of the next job


@dataclass(slots=True)
class Effort:
    """A job counts with what is expected of it until it ends."""

    clock: FairClock = FairClock()
    turns: FairTurns = FairTurns()  # of the configs, for self-play
    expected_s: dict[str, float] = field(default_factory=lambda: dict(JOB_S_FIRST))  # kind: of one job
    booked_s: dict[str, float] = field(default_factory=dict)  # open job: what was expected of it

    def start(self, config: str, job: OpenJob, *, share: float) -> None:
        expected_s = self.expected_s.get(job.kind, JOB_S_OTHER)
        self.booked_s[job.job_id] = expected_s
        self.clock = self.clock.started(kind_of_share(job.kind), KIND_SHARES, expected_s=expected_s)
        if job.kind == SELFPLAY:
            self.turns = self.turns.started(config, share=share, expected_s=expected_s)

    def end(self, config: str, job: OpenJob, took_s: float | None, *, share: float) -> None:
        """*took_s* is None for a job that failed: it served nobody."""
        booked_s, measured_s = self.booked_s.pop(job.job_id, 0.0), took_s or 0.0
        self.clock = self.clock.ended(kind_of_share(job.kind), expected_s=booked_s, measured_s=measured_s)
        if job.kind == SELFPLAY:
            self.turns = self.turns.ended(config, share=share, expected_s=booked_s, measured_s=measured_s)
        if took_s is not None:
            before_s = self.expected_s.get(job.kind, took_s)
            self.expected_s[job.kind] = before_s + NEWEST_SHARE * (took_s - before_s)
