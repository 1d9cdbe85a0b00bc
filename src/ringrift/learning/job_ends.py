"""From an item of the queue that ended to the fact that says how."""

from __future__ import annotations

from ringrift.engine.ports import WorkItem, WorkState
from ringrift.errors import ConfigError
from ringrift.learning.facts import JobEnded
from ringrift.learning.ledger import fits
from ringrift.learning.results import problem_with
from ringrift.learning.state import ConfigState, OpenJob
from ringrift.work.job_orders import read_report

ERROR_CHARS_MAX = 4_000


def ended_fact(state: ConfigState, job: OpenJob, item: WorkItem, *, at_s: float) -> JobEnded:
    """How *job* ended. A result that cannot be its answer is a failure, and says why."""
    if item.state is WorkState.CANCELLED:
        return without_report(job, item.error or "cancelled", at_s=at_s, cancelled=True)
    if item.state is WorkState.DEAD:
        return without_report(job, item.error or "no reason was given", at_s=at_s)
    if item.result is None and item.error:  # the queue has lost the answer
        return without_report(job, item.error, at_s=at_s)
    try:
        report = read_report(item.result or {})
    except ConfigError as error:
        return without_report(job, str(error), at_s=at_s)
    if problem := problem_with(state, job, report):
        return without_report(job, problem, at_s=at_s)
    fact = JobEnded(at_s=at_s, job_id=job.job_id, report=report)
    if not fits(fact):
        return without_report(job, "the report is too long to be kept", at_s=at_s)
    return fact


def without_report(job: OpenJob, error: str, *, at_s: float, cancelled: bool = False) -> JobEnded:
    """*job* failed or was cancelled, and brought nothing."""
    return JobEnded(at_s=at_s, job_id=job.job_id, cancelled=cancelled, error=error[:ERROR_CHARS_MAX])
