"""Notices from outside when the event loop stands still, and who holds it.

A thread of its own looks what the loop's thread does. Unless that waits for something to do, it asks the loop
for a sign of life; while none comes it reads the stack of the loop's thread, so the culprit is named in the
act and not guessed afterwards.
"""

from __future__ import annotations

import asyncio
import selectors
import sys
import sysconfig
import threading
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import structlog

from ringrift.errors import ConfigError
from ringrift.runtime import Runtime

log = structlog.get_logger()

NOTED_S = 0.05
DUMPED_S = 1.0
ASKED_EVERY_S = 0.1
INCIDENTS_MAX = 50
STACK_LINES_MAX = 40
DAEMON_TASK_PREFIX = "daemon:"
NOBODY = "nobody: the loop was not given the processor"
_STANDARD = sysconfig.get_paths()["stdlib"]


@dataclass(frozen=True, slots=True)
class Incident:
    """One time that the loop stood still."""

    at_s: float  # wall clock
    blocked_s: float
    culprit: str  # the task, or the function when no task ran
    daemon: str  # the daemon's name, when one of them held the loop
    where: str  # file:line in function
    stack: str


class LoopWatchdog:
    """Runs from `start` to `stop`, at one loop at a time."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        noted_s: float = NOTED_S,
        dumped_s: float = DUMPED_S,
        asked_every_s: float = ASKED_EVERY_S,
        on_incident: Callable[[Incident], None] | None = None,
    ) -> None:
        if not 0 < noted_s <= dumped_s:
            raise ConfigError(
                f"noted_s is {noted_s} and dumped_s {dumped_s}; the first must not be the larger"
            )
        self._runtime = runtime
        self._noted_s, self._dumped_s, self._asked_every_s = noted_s, dumped_s, asked_every_s
        self._on_incident = on_incident
        self._incidents: deque[Incident] = deque(maxlen=INCIDENTS_MAX)
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._blocked_since_s: float | None = None
        self.worst_s = 0.0
        self.count = 0

    def start(self) -> None:
        """Watch the running loop, whose thread is this one."""
        if self._thread is not None:
            return
        self._stop = threading.Event()
        arguments = (asyncio.get_running_loop(), threading.get_ident(), self._stop)
        self._thread = threading.Thread(target=self._watch, args=arguments, name="loop-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if self._thread is None:
            return
        self._stop.set()
        self._thread.join(timeout=1.0)
        self._thread = None

    def incidents(self) -> list[Incident]:
        """Return the latest incidents, oldest first."""
        return list(self._incidents)

    def status(self) -> dict[str, Any]:
        """Return the numbers; may be called from any thread, also while the loop stands still."""
        since_s = self._blocked_since_s
        last = self._incidents[-1] if self._incidents else None
        return {
            "watched": self._thread is not None,
            "blocked_for_s": 0.0 if since_s is None else self._runtime.monotonic_s() - since_s,
            "incidents": self.count,
            "worst_s": self.worst_s,
            "last_culprit": "" if last is None else last.culprit,
        }

    def _watch(self, loop: asyncio.AbstractEventLoop, thread_id: int, stop: threading.Event) -> None:
        while not stop.wait(self._asked_every_s):
            if _is_waiting(sys._current_frames().get(thread_id)) and not loop.is_closed():
                continue
            answered = threading.Event()
            asked_s = self._runtime.monotonic_s()
            try:
                loop.call_soon_threadsafe(answered.set)
            except RuntimeError:  # the loop is closed; there is nothing left to watch
                return
            # The thread that stops us is the loop's own: it waits for us then, and that is no fault.
            if not answered.wait(self._noted_s) and not stop.is_set():
                self._loop_is_blocked(loop, thread_id, answered, stop, asked_s)

    def _loop_is_blocked(
        self,
        loop: asyncio.AbstractEventLoop,
        thread_id: int,
        answered: threading.Event,
        stop: threading.Event,
        asked_s: float,
    ) -> None:
        self._blocked_since_s = asked_s
        caught = _catch(loop, thread_id, at_s=self._runtime.now_s())
        if not answered.wait(max(self._dumped_s - self._noted_s, 0.0)):
            caught = _catch(loop, thread_id, at_s=caught.at_s)
            log.error(
                "daemons.loop_blocked",
                culprit=caught.culprit,
                daemon=caught.daemon,
                where=caught.where,
                stack=caught.stack,
            )
        while not answered.wait(self._asked_every_s) and not stop.is_set() and not loop.is_closed():
            continue
        self._blocked_since_s = None
        incident = replace(caught, blocked_s=self._runtime.monotonic_s() - asked_s)
        self._incidents.append(incident)
        self.count += 1
        self.worst_s = max(self.worst_s, incident.blocked_s)
        log.warning(
            "daemons.loop_lag",
            culprit=incident.culprit,
            where=incident.where,
            blocked_s=round(incident.blocked_s, 3),
        )
        if self._on_incident is not None:
            self._on_incident(incident)


def _catch(loop: asyncio.AbstractEventLoop, thread_id: int, *, at_s: float) -> Incident:
    """Read off the loop's thread what it is doing."""
    frame = sys._current_frames().get(thread_id)
    if frame is None or _is_waiting(frame):
        return Incident(at_s, 0.0, NOBODY, "", "", "")
    task = asyncio.current_task(loop)
    name = "" if task is None else task.get_name()
    daemon = name.removeprefix(DAEMON_TASK_PREFIX) if name.startswith(DAEMON_TASK_PREFIX) else ""
    where = _where(frame)
    stack = "".join(traceback.format_stack(frame)[-STACK_LINES_MAX:])
    has_name = name and not name.startswith("Task-")  # the names that asyncio itself gives say nothing
    return Incident(at_s, 0.0, daemon or (name if has_name else where), daemon, where, stack)


def _is_waiting(frame: FrameType | None) -> bool:
    """Whether a loop's thread waits for something to do; a selector serves to wait for other things, too."""
    if frame is None or frame.f_code.co_filename != selectors.__file__:
        return False
    return frame.f_back is not None and frame.f_back.f_code.co_filename == asyncio.base_events.__file__


def _where(innermost: FrameType) -> str:
    """Name the innermost place outside the standard library: who waits there is to blame."""
    frame: FrameType | None = innermost
    while frame is not None and _is_standard(frame.f_code.co_filename):
        frame = frame.f_back
    chosen = innermost if frame is None else frame
    return f"{chosen.f_code.co_filename}:{chosen.f_lineno} in {chosen.f_code.co_qualname}"


def _is_standard(filename: str) -> bool:
    return filename.startswith((_STANDARD, "<frozen")) and "site-packages" not in filename
