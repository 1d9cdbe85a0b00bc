"""Telling a process from a later one that was given the same number.

A process is known by its number and its start, counted from the start of the machine: setting the wall clock
changes neither.
"""

from __future__ import annotations

import getpass
import os
import sys
from importlib import import_module
from pathlib import Path

START_TOLERANCE_S = 0.02  # two ticks
# Other systems tell the time of day at which a process began, as older files of ours do.
_TIME_OF_DAY_FROM_S = 1e9
_TIME_OF_DAY_TOLERANCE_S = 2.0  # the system rounds, and reckons it from a clock that may be set
# In /proc/PID/stat behind the name, which may itself hold brackets and spaces.
_STATE, _START_TICKS, _ENVIRONMENT_START, _ENVIRONMENT_END = 0, 19, 47, 48
_ENDED = ("Z", "X")
_STOPPED = ("T", "t")


def user_name() -> str:
    """Who runs this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in some containers
        return f"user {os.getuid()}"


def own_start_s() -> float:
    """When this process began, as others see it."""
    began_s = _start_s(os.getpid())
    assert began_s is not None, "this process runs"
    return began_s


def is_alive(pid: int, began_s: float | None) -> bool:
    """Whether the process *pid* that began then still runs; None: whatever has the number now."""
    try:
        found_s = _start_s(pid)
    except PermissionError:  # it is another user's, of which the system tells nothing more
        return True
    if found_s is None:
        return False
    if began_s is None:
        return True
    if began_s < _TIME_OF_DAY_FROM_S:
        return abs(found_s - began_s) <= START_TOLERANCE_S
    if found_s < _TIME_OF_DAY_FROM_S:
        found_s += _boot_wall_s()
    return abs(found_s - began_s) <= _TIME_OF_DAY_TOLERANCE_S


def is_stopped(pid: int) -> bool:
    """Whether a signal, or a debugger, keeps the process *pid* from going on; False if that is not told."""
    fields = _stat_fields(pid) if sys.platform == "linux" else None
    return fields is not None and fields[_STATE] in _STOPPED


def has_open(pid: int, path: Path) -> bool | None:
    """Whether the process *pid* has the file open that *path* leads to; None if that cannot be seen."""
    try:
        wanted, found = path.stat(), list(os.scandir(f"/proc/{pid}/fd"))
    except OSError:
        return None
    for each in found:
        try:
            if os.path.samestat(each.stat(), wanted):
                return True
        except OSError:
            continue  # closed meanwhile
    return False


def who_locks(*paths: Path) -> str:
    """Which process keeps others from *paths* by a lock, in words that help; any, if that is not told."""
    for path in paths:
        for pid in _lockers(path):
            if pid == os.getpid() or has_open(pid, path) is False:
                continue
            if is_stopped(pid):
                return f"process {pid}, which is stopped (`kill -CONT {pid}` lets it go on),"
            return f"process {pid}"
    return "another process"


def _lockers(path: Path) -> list[int]:
    try:
        inode, locks = str(path.stat().st_ino), Path("/proc/locks").read_text(encoding="utf-8")
    except OSError:
        return []
    found = []
    for line in locks.splitlines():
        # Number, "->" if it only waits, two words of the kind, for what, process, device and inode, range.
        words = line.split()
        if len(words) > 5 and words[3] == "WRITE" and words[5].rpartition(":")[2] == inode:
            found.append(int(words[4]))
    return [pid for pid in found if pid > 0]  # in another container it has no number


def process_numbers() -> str:
    """Where process numbers are counted: two processes know each other's only if it is the same."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except FileNotFoundError:
        return ""


def environment_area() -> tuple[int, int]:
    """From where to where in memory the environment lies that others see of this process; Linux alone."""
    fields = _stat_fields(os.getpid())
    assert fields is not None, "this process runs"
    return int(fields[_ENVIRONMENT_START]), int(fields[_ENVIRONMENT_END])


def _start_s(pid: int) -> float | None:
    """When the process began; None if there is none, or only what its parent has not fetched yet."""
    if sys.platform != "linux":
        return _start_s_elsewhere(pid)
    # Read here and not by psutil, whose loading alone takes a tenth of what `ringrift status` may.
    fields = _stat_fields(pid)
    if fields is None or fields[_STATE] in _ENDED:
        return None
    return int(fields[_START_TICKS]) / os.sysconf("SC_CLK_TCK")


def _stat_fields(pid: int) -> list[str] | None:
    try:
        content = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return content.rpartition(")")[2].split()


def _boot_wall_s() -> float:
    """The time of day at which the machine started, by its wall clock of now."""
    booted = Path("/proc/stat").read_text(encoding="utf-8")
    return float(booted.partition("\nbtime ")[2].split()[0])


def _start_s_elsewhere(pid: int) -> float | None:
    psutil = import_module("psutil")
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return float(process.create_time())
    except psutil.NoSuchProcess:
        return None
    except psutil.AccessDenied as error:
        raise PermissionError(str(error)) from error
