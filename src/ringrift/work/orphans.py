"""Processes of jobs whose worker was killed: found by the mark in their environment, and ended.

A mark is inherited by everything a job starts, also by what left its process group, and it names the item, so
that no other process can be taken for it, however numbers are used again.
"""

from __future__ import annotations

import psutil
import structlog

log = structlog.get_logger()

ITEM_VARIABLE = "RINGRIFT_JOB_ITEM"
REAP_S = 5.0


def end_processes_of(item_id: str) -> int:
    """Kill all that still works on an item and wait until it is gone; return how many. Blocking."""
    found = [process for process in psutil.process_iter() if _works_on(process, item_id)]
    for process in found:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    _, alive = psutil.wait_procs(found, timeout=REAP_S)
    if found:
        log.warning("worker.orphans_ended", item=item_id, pids=[p.pid for p in found], alive=len(alive))
    return len(found)


def _works_on(process: psutil.Process, item_id: str) -> bool:
    try:
        return process.environ().get(ITEM_VARIABLE) == item_id
    except (psutil.Error, OSError):  # gone, or another user's
        return False
