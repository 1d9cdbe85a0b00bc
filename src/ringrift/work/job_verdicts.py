"""What becomes of a work item after its job ended: completed, given back, or failed."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from ringrift.errors import storable_text
from ringrift.work.job_limits import EndReason, Usage
from ringrift.work.job_talk import JobTalk, number

# The exit codes of jobs, see docs/jobs.md. A worker never imports the jobs themselves.
DONE, WRONG_INPUT, STOPPED, DATA_REFUSED, UNAVAILABLE = 0, 2, 3, 4, 5

_BY_ITSELF = {STOPPED: "stopped_by_itself"}

RETRY_S, RETRY_S_MAX = 5.0, 300.0
UNAVAILABLE_S = 60.0
ERROR_CHARS_MAX = 2000
CORES = os.cpu_count() or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """How a job's process ended."""

    exit_code: int  # negative: the number of the signal
    talk: JobTalk
    wall_s: float
    usage: Usage
    ending: EndReason | None = None  # None: it ended by itself
    why: str = ""
    log_tail: Sequence[str] = ()

    @property
    def cpu_s(self) -> float:
        """What was measured; what the job says of itself counts as far as the machine could have given it."""
        return max(self.usage.cpu_s, min(self.talk.cpu_s, self.wall_s * CORES))


class Fate(StrEnum):
    """What the worker tells the queue."""

    COMPLETE = "complete"
    RELEASE = "release"  # costs no attempt
    FAIL = "fail"
    DROP = "drop"  # another has the item, or nobody: say nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class JobVerdict:
    """The fate of the item, and the words for it."""

    fate: Fate
    status: str = ""
    error: str = ""
    retry_after_s: float = 0.0
    final: bool = False


def judge(end: JobEnd, *, attempt: int) -> JobVerdict:
    """Decide by how the job ended; what it said counts only for the words."""
    if end.ending is EndReason.LEASE_LOST:
        return JobVerdict(fate=Fate.DROP, error=end.why)
    if end.exit_code in (DONE, DATA_REFUSED) and end.talk.result is not None:
        return JobVerdict(fate=Fate.COMPLETE, status="done" if end.exit_code == DONE else "data_refused")
    if end.ending in (EndReason.STOP, EndReason.YIELD):
        return JobVerdict(fate=Fate.RELEASE, status="stopped")
    error = _error(end)
    if end.ending is None and end.exit_code == WRONG_INPUT:
        return JobVerdict(fate=Fate.FAIL, status="wrong_input", error=error, final=True)
    if end.ending is None and end.exit_code == UNAVAILABLE:
        after_s = _retry_after_s(end.talk)
        return JobVerdict(fate=Fate.FAIL, status="unavailable", error=error, retry_after_s=after_s)
    after_s = min(RETRY_S * 2 ** min(max(attempt, 1) - 1, 16), RETRY_S_MAX)
    status = end.ending.value if end.ending is not None else _BY_ITSELF.get(end.exit_code, "crashed")
    return JobVerdict(fate=Fate.FAIL, status=status, error=error, retry_after_s=after_s)


def _retry_after_s(talk: JobTalk) -> float:
    said = (talk.result or {}).get("retry_after_s")
    try:
        after_s = number(float(said)) if isinstance(said, str) else number(said)
    except ValueError:
        after_s = None
    return min(max(after_s or UNAVAILABLE_S, 1.0), RETRY_S_MAX)


def _error(end: JobEnd) -> str:
    said = (end.talk.result or {}).get("error")
    parts = [end.why or _how(end.exit_code)]
    if end.exit_code == STOPPED and not end.why:
        parts = ["it stopped although the worker did not ask for it"]
    if end.exit_code == DONE and end.talk.result is None and not end.why:
        parts = ["it ended without a result line"]
        if end.talk.lines_refused:
            parts.append(f"{end.talk.lines_refused} of its lines could not be read")
    if said:
        parts.append(str(said))
    elif end.log_tail:
        parts.append(f"its last words: {' | '.join(end.log_tail)}")
    return storable_text("; ".join(parts), chars_max=ERROR_CHARS_MAX)


def _how(code: int) -> str:
    if code >= 0:
        return f"the job exited with code {code}"
    known = {int(each): each.name for each in signal.Signals}
    return f"the job was killed by {known.get(-code, f'signal {-code}')}"
