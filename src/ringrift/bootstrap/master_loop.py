"""Whether a master loop runs on the data folder: what others read of its PID file.

A number whose process is gone, or began at another time than the file says (the number was given out again),
is a stale file. `master_loop_guard` writes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ringrift.errors import Corrupt
from ringrift.foreign_files.paths import read_regular
from ringrift.process_identity import is_alive
from ringrift.settings import get_settings

__all__ = [
    "PID_FILE",
    "MasterLoop",
    "ensure_master_loop_running",
    "is_master_loop_running",
    "pid_file",
    "read_master_loop",
    "require_running_master_loop",
]

PID_FILE = "master_loop.pid"
PID_BYTES_MAX = 1_000


@dataclass(frozen=True, slots=True)
class MasterLoop:
    """The process that the PID file names."""

    pid: int
    began_s: float | None  # None: the file was written by something that does not tell
    profile: str = ""  # of its daemons; empty: it does not tell

    @property
    def is_alive(self) -> bool:
        return is_alive(self.pid, self.began_s)


def pid_file() -> Path:
    return get_settings().coordination_dir / PID_FILE


def read_master_loop(path: Path | None = None) -> MasterLoop | None:
    """Return what the file says; None if there is no file, or nothing that names a process in it."""
    try:
        words = read_regular(path or pid_file(), bytes_max=PID_BYTES_MAX).decode().split()
        began_s = float(words[1]) if len(words) > 1 else None
        return MasterLoop(int(words[0]), began_s, words[2] if len(words) > 2 else "")
    except (FileNotFoundError, Corrupt, ValueError, IndexError):
        return None


def is_master_loop_running(path: Path | None = None) -> bool:
    """Whether the file names a live process."""
    found = read_master_loop(path)
    return found is not None and found.is_alive


def require_running_master_loop(path: Path | None = None) -> None:
    """Raise `RuntimeError` unless a master loop runs; RINGRIFT_SKIP_MASTER_LOOP_CHECK=1 lets it pass."""
    if get_settings().skip_master_loop_check or is_master_loop_running(path):
        return
    found = read_master_loop(path)
    stale = f"; {found.pid} in {path or pid_file()} is gone" if found else ""
    raise RuntimeError(
        f"no master loop is running{stale}. Start it, or set RINGRIFT_SKIP_MASTER_LOOP_CHECK=1"
    )


ensure_master_loop_running = require_running_master_loop
