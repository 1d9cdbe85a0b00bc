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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from ringrift.daemons.child_logs import keep_log_small, log_tail
from ringrift.daemons.child_main import BEAT_S, READY
from ringrift.daemons.orphan_guard import process_guard
from ringrift.errors import ConfigError, RingRiftError
from ringrift.runtime import Child, Command, Runtime, system_runtime
from ringrift.status import HealthCheckResult

log = structlog.get_logger()

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
        exit_code = asyncio.ensure_future(child.wait())
        try:
            while True:
                done, _ = await asyncio.wait({exit_code}, timeout=BEAT_S if pipe else LOG_CHECK_S)
                if done:
                    return exit_code.result()
                if self._output is not None:
                    await asyncio.to_thread(keep_log_small, self._output)
                if pipe is not None and not self._paused and pipe.silence_s() > self._limits.silence_s_max:
                    raise ChildHangs(f"{self._name} has been silent for {pipe.silence_s():.0f} s")
        finally:
            exit_code.cancel()

    async def _end_child(self) -> None:
        """TERM, wait, KILL the group, reap. A second cancellation goes straight to KILL."""
        child = self._child
        if child is None:
            return
        gone = asyncio.ensure_future(child.wait())
        try:
            child.signal_group(signal.SIGTERM)
            child.signal_group(signal.SIGCONT)
            await asyncio.wait({gone}, timeout=self._limits.term_s)
        finally:
            # The leader may be gone and leave members of its group behind.
            child.signal_group(signal.SIGKILL)
            try:
                await asyncio.wait({gone}, timeout=REAP_S)
            finally:
                gone.cancel()
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
