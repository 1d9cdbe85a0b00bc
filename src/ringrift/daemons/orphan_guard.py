"""No child outlives the supervisor, not even its children, not even after `kill -9`.

The kernel can be asked to end a direct child with its parent, but not what that child started. So one small
process per supervisor keeps the list of process groups and sees the supervisor's end as the end of a pipe.
"""

from __future__ import annotations

import os
import sys
import weakref
from pathlib import Path

import structlog

from ringrift.process import process_scope

log = structlog.get_logger()

_GUARD = Path(__file__).with_name("guard_main.py")


class OrphanGuard:
    """The list of process groups that must not be left behind."""

    def __init__(self) -> None:
        self._pid: int | None = None
        self._write_fd: int | None = None
        self._finalizer: weakref.finalize[[int, int], OrphanGuard] | None = None
        self._groups: set[int] = set()

    @property
    def pid(self) -> int | None:
        return self._pid

    def add(self, group: int) -> None:
        """Watch over a group from now on."""
        self._groups.add(group)
        if not self._is_alive():
            self._start()
            for known in self._groups:
                self._tell(b"+%d\n" % known)
            return
        self._tell(b"+%d\n" % group)

    def remove(self, group: int) -> None:
        """A group has ended; its number may soon belong to others."""
        if group in self._groups:
            self._groups.discard(group)
            self._tell(b"-%d\n" % group)

    def _is_alive(self) -> bool:
        if self._pid is None:
            return False
        try:
            return os.waitpid(self._pid, os.WNOHANG) == (0, 0)
        except ChildProcessError:
            return False

    def _start(self) -> None:
        if self._finalizer is not None:
            self._finalizer.detach()
            if self._write_fd is not None:
                os.close(self._write_fd)
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(write_fd, False)
        quiet = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
        try:
            pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", str(_GUARD)],
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, read_fd, 0), *quiet],
                setsid=True,
            )
        finally:
            os.close(read_fd)
        self._pid, self._write_fd = pid, write_fd
        self._finalizer = weakref.finalize(self, _end, write_fd, pid)

    def _tell(self, line: bytes) -> None:
        if self._write_fd is None:
            return
        try:
            os.write(self._write_fd, line)
        except OSError as error:  # the next `add` starts another guard
            log.warning("daemons.guard_lost", error=str(error))


def process_guard() -> OrphanGuard:
    """Return the guard of this process."""
    return process_scope().get(OrphanGuard, OrphanGuard)


def _end(write_fd: int, pid: int) -> None:
    os.close(write_fd)
    try:
        os.waitpid(pid, 0)  # it ends with its pipe
    except ChildProcessError:
        return
