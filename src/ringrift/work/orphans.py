"""Processes of jobs whose worker was killed: found by the mark in their environment, and ended.

A mark is inherited by everything a job starts, also by what left its process group, and it names the folder
of the job. The name of the item would not do: runs of one config in two data folders order items of the same
names, and would end each other's jobs.
"""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import structlog

log = structlog.get_logger()

OUT_VARIABLE = "RINGRIFT_JOB_OUT"
REAP_S = 5.0


def end_processes_in(out: Path) -> int:
    """Kill all that still works in the folder *out* and wait until it is gone; return how many. Blocking."""
    wanted = os.path.realpath(out)
    found = [process for process in psutil.process_iter() if _works_in(process, wanted)]
    for process in found:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    _, alive = psutil.wait_procs(found, timeout=REAP_S)
    if found:
        log.warning("worker.orphans_ended", folder=wanted, pids=[p.pid for p in found], alive=len(alive))
    return len(found)


def _works_in(process: psutil.Process, folder: str) -> bool:
    try:
        named = process.environ().get(OUT_VARIABLE)
    except (psutil.Error, OSError):  # gone, or another user's
        return False
    return named is not None and os.path.realpath(named) == folder
