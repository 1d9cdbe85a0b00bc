"""Telling a process from a later one that was given the same number."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

START_TOLERANCE_S = 2.0  # the system rounds, and reckons start times from a clock that may be set
# In /proc/PID/stat behind the name, which may itself hold brackets and spaces.
_STATE, _START_TICKS = 0, 19
_ENDED = ("Z", "X")


def own_start_s() -> float:
    """When this process began, as others see it."""
    began_s = _start_s(os.getpid())
    assert began_s is not None, "this process runs"
    return began_s


def is_alive(pid: int, began_s: float | None) -> bool:
    """Whether the process *pid* that began then still runs; None: whatever has the number now."""
    found_s = _start_s(pid)
    if found_s is None:
        return False
    return began_s is None or abs(found_s - began_s) <= START_TOLERANCE_S


def _start_s(pid: int) -> float | None:
    """When the process began; None if there is none, or only what its parent has not fetched yet."""
    if sys.platform != "linux":
        return _start_s_elsewhere(pid)
    # Read here and not by psutil, whose loading alone takes a tenth of what `ringrift status` may.
    try:
        told = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        booted = Path("/proc/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = told.rpartition(")")[2].split()
    if fields[_STATE] in _ENDED:
        return None
    boot_s = float(booted.partition("\nbtime ")[2].split()[0])
    return boot_s + int(fields[_START_TICKS]) / os.sysconf("SC_CLK_TCK")


def _start_s_elsewhere(pid: int) -> float | None:
    psutil = import_module("psutil")
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return float(process.create_time())
    except psutil.NoSuchProcess:
        return None
