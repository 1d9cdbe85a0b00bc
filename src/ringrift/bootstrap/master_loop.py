"""At most one master loop per data folder, and a way for others to see whether it runs.

The holder keeps an exclusive lock on the PID file for as long as it lives, so the system ends the claim with
the process, however that ends. Others only read the file: a number whose process is gone, or began at another
time than the file says (the number was given out again), is a stale file.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import psutil
import structlog

from ringrift.errors import AlreadyExists, StorageReadOnly
from ringrift.settings import get_settings

log = structlog.get_logger()

PID_FILE = "master_loop.pid"
START_TOLERANCE_S = 2.0  # the system rounds, and reckons start times from a clock that may be set


@dataclass(frozen=True, slots=True)
class MasterLoop:
    """The process that the PID file names."""

    pid: int
    began_s: float | None  # None: the file was written by something that does not tell

    @property
    def is_alive(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            return self.began_s is None or abs(process.create_time() - self.began_s) <= START_TOLERANCE_S
        except psutil.NoSuchProcess:
            return False


def pid_file() -> Path:
    return get_settings().coordination_dir / PID_FILE


def read_master_loop(path: Path | None = None) -> MasterLoop | None:
    """Return what the file says; None if there is no file, or nothing that names a process in it."""
    try:
        words = (path or pid_file()).read_text(encoding="utf-8").split()
        return MasterLoop(int(words[0]), float(words[1]) if len(words) > 1 else None)
    except (FileNotFoundError, ValueError, IndexError):
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


class MasterLoopGuard:
    """Claims the master loop for a `with` block. `AlreadyExists` if another process has it."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or pid_file()
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        """Claim it and write the PID file. Calling it again changes nothing."""
        if self._file is not None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = self.path.open("a+", encoding="utf-8")
        except OSError as error:
            raise StorageReadOnly(f"{self.path} cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            holder = read_master_loop(self.path)
            raise AlreadyExists(f"master loop (process {holder.pid if holder else 'unknown'})") from None
        stale = read_master_loop(self.path)
        if stale is not None:
            log.info("master_loop.took_over_stale_file", pid=stale.pid)
        file.seek(0)
        file.truncate()
        file.write(f"{os.getpid()} {psutil.Process().create_time()}\n")
        file.flush()
        self._file = file

    def release(self) -> None:
        """Give it up. The file stays and is empty: removing it could let two processes each lock one."""
        if self._file is not None:
            self._file.seek(0)
            self._file.truncate()
            self._file.close()
            self._file = None

    @property
    def is_held(self) -> bool:
        return self._file is not None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
