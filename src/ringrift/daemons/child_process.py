"""A daemon in a process of its own: the only kind that can really be killed.

The child leads its own session, so a signal reaches everything it started. Its end is noticed at once. A
child made from an entry point beats on a pipe; one that stays silent too long hangs, and crashes here.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import structlog

from ringrift.daemons.child_main import BEAT_S, READY
from ringrift.errors import ConfigError, RingRiftError
from ringrift.files import open_file, remove_file
from ringrift.foreign_files.paths import is_plain_file
from ringrift.process import process_scope
from ringrift.runtime import Child, Command, Runtime, result_before, system_runtime
from ringrift.status import HealthCheckResult

# The logs that children write: bounded while they grow, and their last lines for an error.
#
# A child can put a link or a pipe in the place of its log; such a one is left alone.


LOG_BYTES_MAX = 1_000_000
TAIL_BYTES = 4096
TAIL_LINES = 5


def keep_log_small(path: Path | None, *, bytes_max: int = LOG_BYTES_MAX) -> None:
    """Move the end of a log that grew too long aside and empty it; the child appends on."""
    if path is None or not is_plain_file(path) or path.stat().st_size <= bytes_max:
        return
    aside = path.with_suffix(path.suffix + ".1")
    end = _last_bytes(path, bytes_max)
    remove_file(aside)
    with os.fdopen(open_file(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        file.write(end)
    with os.fdopen(open_file(path, os.O_WRONLY | os.O_NOFOLLOW), "wb") as file:
        file.truncate(0)


def log_tail(path: Path | None, *, lines: int = TAIL_LINES) -> list[str]:
    """Return the last lines of a log, or none if there is no log."""
    if path is None or not is_plain_file(path):
        return []
    text = _last_bytes(path, TAIL_BYTES).decode("utf-8", "replace")
    return list(deque(text.splitlines(), maxlen=lines))


def _last_bytes(path: Path, count: int) -> bytes:
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - count, 0))
        return file.read(count)


# No child outlives the supervisor, not even its children, not even after `kill -9`.
#
# The kernel can be asked to end a direct child with its parent, but not what that child started. So one small
# process per supervisor keeps the list of process groups and sees the supervisor's end as the end of a pipe.


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


SILENCE_S_MAX = 15.0
TERM_S = 5.0
REAP_S = 2.0
LOG_CHECK_S = 10.0
_FD = "{fd}"  # stands for the write end of the heartbeat pipe until the child is started


class ChildDied(RingRiftError):
    """The child ended although nobody asked it to."""

    def __init__(self, name: str, *, code: int, tail: Sequence[str] = ()) -> None:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        said = f"; it said: {' | '.join(tail)}" if tail else ""
        super().__init__(f"{name} {how}{said}")
        self.name, self.code = name, code


class ChildHangs(RingRiftError):
    """The child has not beaten for too long; it is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLimits:
    """How patient the parent is."""

    term_s: float = TERM_S  # between TERM and KILL
    silence_s_max: float = SILENCE_S_MAX  # between two beats

    def __post_init__(self) -> None:
        if self.term_s < 0 or self.silence_s_max <= 2 * BEAT_S:
            raise ConfigError(f"term_s must be 0 or more and silence_s_max above {2 * BEAT_S:g}: {self}")


class ProcessDaemon:
    """Runs one command and ends when it does. Cancelling `run` ends the whole process group."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        runtime: Runtime | None = None,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        output: Path | None = None,
        limits: ProcessLimits | None = None,
    ) -> None:
        if not argv:
            raise ConfigError("a process daemon needs a command")
        if isinstance(argv, str) or not all(isinstance(word, str) for word in argv):
            raise ConfigError(f"the command is {argv!r}; it must be a list of words, each a text")
        self._argv, self._env, self._cwd, self._output = tuple(argv), env, cwd, output
        self._runtime = runtime or system_runtime()
        self._name = name or Path(argv[0]).name
        self._limits = limits or ProcessLimits()
        self._beats = _FD in self._argv
        # Only a runtime of this very process starts real children.
        self._guard = process_guard() if self._runtime.pid == os.getpid() else None
        self._child: Child | None = None
        self._pipe: _BeatPipe | None = None
        self._paused = False

    @classmethod
    def for_entry_point(
        cls,
        entry_point: str,
        settings: Mapping[str, str] | None = None,
        *,
        runtime: Runtime | None = None,
        output: Path | None = None,
        limits: ProcessLimits | None = None,
    ) -> ProcessDaemon:
        """Return a daemon that runs `module:factory` in a Python process of its own."""
        if not isinstance(entry_point, str) or not all(entry_point.partition(":")):
            raise ConfigError(f"the entry point is {entry_point!r}; it must be 'module:factory'")
        argv = [sys.executable, "-m", "ringrift.daemons.child_main", _FD, entry_point]
        argv.append(json.dumps(dict(settings or {})))
        return cls(argv, runtime=runtime, name=entry_point, output=output, limits=limits)

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    async def run(self, *, on_ready: Callable[[], None] | None = None) -> None:
        """Run the child once. Returns when it exits with 0; raises `ChildDied` or `ChildHangs`."""
        keep_log_small(self._output)
        ready = on_ready or _nothing
        pipe = self._pipe = _BeatPipe(self._runtime, ready) if self._beats else None
        try:
            self._child = await self._runtime.spawn(self._command(pipe))
            if self._guard is not None:
                self._guard.add(self._child.pid)
            if pipe is None:
                ready()
            else:
                pipe.child_has_its_end()
            code = await self._watch(self._child, pipe)
        finally:
            try:
                await self._end_child()
            finally:
                if pipe is not None:
                    pipe.close()
                self._pipe = self._child = None
        if code != 0:
            raise ChildDied(self._name, code=code, tail=log_tail(self._output))

    def pause(self) -> None:
        """Stop the whole group where it stands."""
        self._paused = True
        if self._child is not None:
            self._child.signal_group(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._paused = False
        if self._child is not None:
            self._child.signal_group(signal.SIGCONT)
        if self._pipe is not None:
            self._pipe.last_beat_s = self._runtime.monotonic_s()

    def health_check(self) -> HealthCheckResult:
        """Healthy while the child lives and, if it beats, beats."""
        if self._child is None:
            return HealthCheckResult.unhealthy("no child")
        silence_s = 0.0 if self._pipe is None else self._pipe.silence_s()
        return HealthCheckResult.ok(pid=self._child.pid, silence_s=round(silence_s, 1))

    def _command(self, pipe: _BeatPipe | None) -> Command:
        if pipe is None:
            return Command(
                argv=_bound_to_parent(self._argv), env=self._env, cwd=self._cwd, output=self._output
            )
        argv = tuple(str(pipe.write_fd) if word == _FD else word for word in self._argv)
        fds = (pipe.write_fd,)
        return Command(argv=argv, env=self._env, cwd=self._cwd, output=self._output, pass_fds=fds)

    async def _watch(self, child: Child, pipe: _BeatPipe | None) -> int:
        exit_code = await result_before(child.wait(), self._look_after(pipe))
        assert exit_code is not None
        return exit_code

    async def _look_after(self, pipe: _BeatPipe | None) -> NoReturn:
        while True:
            await self._runtime.sleep(BEAT_S if pipe else LOG_CHECK_S)
            if self._output is not None:
                await asyncio.to_thread(keep_log_small, self._output)
            if pipe is not None and not self._paused and pipe.silence_s() > self._limits.silence_s_max:
                raise ChildHangs(f"{self._name} has been silent for {pipe.silence_s():.0f} s")

    async def _end_child(self) -> None:
        """TERM, wait, KILL the group, reap. A second cancellation goes straight to KILL."""
        child = self._child
        if child is None:
            return
        try:
            child.signal_group(signal.SIGTERM)
            child.signal_group(signal.SIGCONT)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limits.term_s):
                    await child.wait()
        finally:
            # The leader may be gone and leave members of its group behind.
            child.signal_group(signal.SIGKILL)
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(REAP_S):
                        await child.wait()
            finally:
                if self._guard is not None:
                    self._guard.remove(child.pid)


class _BeatPipe:
    """The parent's end of the child's heartbeat."""

    def __init__(self, runtime: Runtime, on_ready: Callable[[], None]) -> None:
        self._runtime, self._on_ready = runtime, on_ready
        self._read_fd, self.write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.last_beat_s = runtime.monotonic_s()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read_fd, self._read)
        self._write_open = self._read_open = True

    def silence_s(self) -> float:
        return self._runtime.monotonic_s() - self.last_beat_s

    def child_has_its_end(self) -> None:
        """Close our copy of the write end, so that the child's death closes the pipe."""
        if self._write_open:
            os.close(self.write_fd)
            self._write_open = False

    def close(self) -> None:
        self.child_has_its_end()
        if self._read_open:
            self._loop.remove_reader(self._read_fd)
            os.close(self._read_fd)
            self._read_open = False

    def _read(self) -> None:
        try:
            signs = os.read(self._read_fd, 4096)
        except BlockingIOError:
            return
        if not signs:  # the other end is closed; the exit code follows
            self._loop.remove_reader(self._read_fd)
            return
        self.last_beat_s = self._runtime.monotonic_s()
        if READY in signs:
            self._on_ready()


def _bound_to_parent(argv: Sequence[str]) -> tuple[str, ...]:
    """Have the kernel end a foreign command with us, where the system has the tool for it."""
    setpriv = shutil.which("setpriv") if sys.platform == "linux" else None
    return (setpriv, "--pdeathsig", "KILL", *argv) if setpriv else tuple(argv)


def _nothing() -> None:
    return
