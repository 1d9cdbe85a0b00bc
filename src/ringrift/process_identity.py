"""Telling a process from a later one that was given the same number."""

from __future__ import annotations

import psutil

START_TOLERANCE_S = 2.0  # the system rounds, and reckons start times from a clock that may be set


def own_start_s() -> float:
    """When this process began, as others see it."""
    return float(psutil.Process().create_time())


def is_alive(pid: int, began_s: float | None) -> bool:
    """Whether the process *pid* that began then still runs; None: whatever has the number now."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return began_s is None or abs(process.create_time() - began_s) <= START_TOLERANCE_S
    except psutil.NoSuchProcess:
        return False
