"""A search for better parameters in a process of its own, beside any run: laid out, run and watched here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ringrift.engine.ports import Blobs
from ringrift.errors import Conflict
from ringrift.runtime import Runtime
from ringrift.settings import get_settings
from ringrift.work.job_commands import job_argv, job_environment
from ringrift.work.job_folders import JobFolder
from ringrift.work.job_inputs import lay_out
from ringrift.work.job_limits import limits_for
from ringrift.work.job_orders import JobOrder
from ringrift.work.job_runner import JobTask, RunningJob
from ringrift.work.job_verdicts import Fate, judge

LOOK_S = 1.0
ID = "tune.here"

Tell = Callable[[str, dict[str, Any]], None]  # what the job says last, and what it found so far


async def search_here(
    order: JobOrder, folder: Path, blobs: Blobs, runtime: Runtime, tell: Tell
) -> dict[str, Any]:
    """Run *order* in *folder*, which a later call with the same order goes on in; returns its result.

    Raises `Conflict` with the job's own words if it does not end well.
    """
    place, settings = JobFolder(folder), get_settings()
    await lay_out(place, order, blobs)
    said = settings.job("tune")
    task = JobTask(
        argv=job_argv("tune", said),
        env=job_environment(
            item_id=ID,
            kind="tune",
            config=order.config,
            out=str(place.out.absolute()),
            trace={},
            also=said.env,
        ),
        folder=place.out,
        params=place.params,
        log=place.log,
        limits=limits_for("tune", order, said),
        grace_s=settings.job_grace_period,
    )
    job = RunningJob(task, runtime=runtime)
    watching = asyncio.ensure_future(_watch(job, runtime, tell))
    try:
        end = await job.run()
    finally:
        watching.cancel()
        await asyncio.wait({watching})
    verdict = judge(end, attempt=1)
    if verdict.fate is not Fate.COMPLETE or end.talk.result is None:
        raise Conflict(f"the search did not end well: {verdict.error or 'it said nothing'}; see {place.log}")
    return end.talk.result


async def _watch(job: RunningJob, runtime: Runtime, tell: Tell) -> None:
    while True:
        await runtime.sleep(LOOK_S)
        tell(job.talk.last_line, job.talk.extra)
