"""What the manager tells and hears: events on their way out, a loop that stands still, events coming in."""

from __future__ import annotations

import asyncio
import selectors
import sys
import sysconfig
import threading
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType
from typing import Any, Protocol

import structlog

from ringrift.daemons import running
from ringrift.daemons.planning import BACKPRESSURE, NOT_LEADER, Unit
from ringrift.daemons.supervisor import Emit, Supervisor
from ringrift.errors import ConfigError
from ringrift.runtime import Runtime
from ringrift.task_owner import TaskOwner

# Events on their way out, sent one after the other by a task that holds nothing else up.


log = structlog.get_logger()

WAITING_MAX = 2000
PUBLISH_S_MAX = 10.0
STOP_S_MAX = 1.0
SOURCE = "daemon_manager"


class EventBus(Protocol):
    """What the daemon room needs of the router."""

    async def publish(
        self, event_type: Any, payload: dict[str, Any] | None = None, source: str = ""
    ) -> Any: ...

    def subscribe(self, event_type: Any, callback: Callable[[Any], Any]) -> Any: ...

    def unsubscribe(self, event_type: Any, callback: Callable[[Any], Any]) -> Any: ...


class Outbox:
    """Keeps order. Over its bound the oldest events are dropped and counted: state lives elsewhere."""

    def __init__(self, bus: EventBus | None) -> None:
        self._bus = bus
        self._waiting: deque[tuple[str, dict[str, Any]]] = deque()
        self._tasks = TaskOwner("daemon events")
        self._closed = False
        self.dropped = 0
        self.failed = 0

    def put(self, event_type: str, payload: Mapping[str, Any]) -> None:
        """Send soon. Must be called on the loop."""
        if self._bus is None or self._closed:
            return
        if len(self._waiting) >= WAITING_MAX:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append((event_type, dict(payload)))
        if not len(self._tasks):
            self._tasks.create_task(self._send_all(), name="daemon-events")

    def open(self) -> None:
        """Take events again, on the running loop."""
        self._tasks, self._closed = TaskOwner("daemon events"), False

    async def close(self, *, timeout_s: float) -> None:
        """Wait until all is sent, at most *timeout_s*; then take no more events: the bus is about to end."""
        await self._tasks.wait(timeout_s)
        self._closed = True
        self.dropped += len(self._waiting)
        await self._tasks.stop(STOP_S_MAX)
        self._waiting.clear()

    async def _send_all(self) -> None:
        assert self._bus is not None
        while self._waiting:
            event_type, payload = self._waiting.popleft()
            send = partial(self._bus.publish, event_type, payload, source=SOURCE)
            called = await running.call_async(send, timeout_s=PUBLISH_S_MAX)
            if called.error is not None:
                self.failed += 1
                log.warning("daemons.event_not_sent", type=event_type, error=called.problem)


# Notices from outside when the event loop stands still, and who holds it.
#
# A thread of its own looks what the loop's thread does. Unless that waits for something to do, it asks the
# loop for a sign of life; while none comes it reads the stack of the loop's thread, so the culprit is named
# in the act and not guessed afterwards.


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


# What the manager does when something is said: it only changes what is wanted, held or paused.
#
# Who leads is never taken from an event, which anybody may have said: an event makes the manager look whether
# this process can prove that it leads, and only what it finds counts. Nor is backpressure: an event makes it
# look at the measured pressure, as it does every few seconds anyway, and each look holds for a while.


DISK_FULL = "disk space is low"
SPLIT_BRAIN = "two leaders may exist"
DISK_PERCENT = 85.0
# The disk watch repeats itself while the disk is full; silence for this long means that it no longer is.
DISK_PAUSE_S = 900.0
PRESSURE_LOOK_S = 10.0
# Some looks may fail before work goes on; none may be the last for good.
PRESSURE_PAUSE_S = 30.0
PROOF_S_MAX = 5.0
BLOCK_ALERT_S = 0.5  # shorter blocks are counted, not sent around
BLOCK_REPEAT_S = 60.0
CULPRITS_MAX = 100


class Reactions:
    """Subscribed while the manager runs."""

    def __init__(self, supervisor: Supervisor, bus: EventBus | None, *, emit: Emit, node_id: str) -> None:
        self._supervisor, self._bus, self._emit, self._node_id = supervisor, bus, emit, node_id
        # Whether this process can prove now that it leads; None where nobody is elected.
        self.leads: Callable[[], Awaitable[bool]] | None = None
        # Why producers are to rest, as measured now; empty if they are not. None where nobody measures.
        self.pressure: Callable[[], Awaitable[str]] | None = None
        self._subscribed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unproved = False  # since the last look
        self._blocks_reported_s: dict[str, float] = {}
        self.handlers: dict[str, Callable[[Any], Any]] = {
            "BACKPRESSURE_ACTIVATED": self.on_backpressure_activated,
            "BACKPRESSURE_RELEASED": self.on_backpressure_released,
            "DISK_SPACE_LOW": self.on_disk_space_low,
            "LEADER_ELECTED": self.on_leader_elected,
            "LEADER_LOST": self.on_leader_lost,
            "SPLIT_BRAIN_DETECTED": self.on_split_brain_detected,
            "SPLIT_BRAIN_RESOLVED": self.on_split_brain_resolved,
            "REGRESSION_CRITICAL": self.on_regression_critical,
        }

    def subscribe(self) -> None:
        """Begin to listen; once."""
        self._loop = asyncio.get_running_loop()
        if self._bus is None or self._subscribed:
            return
        for event_type, handler in self.handlers.items():
            self._bus.subscribe(event_type, handler)
        self._subscribed = True

    def unsubscribe(self) -> None:
        if self._bus is None or not self._subscribed:
            return
        for event_type, handler in self.handlers.items():
            self._bus.unsubscribe(event_type, handler)
        self._subscribed = False

    # --- pressure and a full disk --------------------------------------------------------------------

    async def on_backpressure_activated(self, _: Any) -> None:
        await self.look_at_pressure()

    async def on_backpressure_released(self, _: Any) -> None:
        await self.look_at_pressure()

    async def watch_pressure(self) -> None:
        """Until cancelled: an event may be lost, or said before this process began."""
        while True:
            await self.look_at_pressure()
            await self._supervisor.runtime.sleep(PRESSURE_LOOK_S)

    async def look_at_pressure(self) -> None:
        """Let what is pausable rest while the measured pressure asks for it.

        A look that fails changes nothing: what rests goes on when its time is over.
        """
        if self.pressure is None:
            return
        asked = await running.call_async(self.pressure, timeout_s=PROOF_S_MAX)
        if asked.error is not None:
            log.warning("daemons.pressure_unknown", error=asked.problem)
            return
        cause, until_s = str(asked.value), self._supervisor.runtime.monotonic_s() + PRESSURE_PAUSE_S

        def rest(unit: Unit) -> None:
            unit.pauses[BACKPRESSURE], unit.causes[BACKPRESSURE] = until_s, cause

        if cause:
            self._change(lambda unit: unit.spec.pausable, rest)
        elif any(BACKPRESSURE in unit.pauses for unit in self._supervisor.units.values()):
            self._change(lambda _: True, lambda unit: unit.pauses.pop(BACKPRESSURE, None))

    async def on_disk_space_low(self, event: Any) -> None:
        """Rest while this machine's disk is nearly full."""
        payload = payload_of(event)
        host = payload.get("node_id") or payload.get("host")
        if host not in (None, self._node_id) or float(payload.get("usage_percent", 0.0)) < DISK_PERCENT:
            return
        until_s = self._supervisor.runtime.monotonic_s() + DISK_PAUSE_S
        self._change(lambda unit: unit.spec.pausable, lambda unit: unit.pauses.update({DISK_FULL: until_s}))

    # --- leadership -----------------------------------------------------------------------------------

    async def on_leader_elected(self, _: Any) -> None:
        await self.look_at_leadership("LEADER_ELECTED")

    async def on_leader_lost(self, _: Any) -> None:
        await self.look_at_leadership("LEADER_LOST")

    async def on_split_brain_detected(self, _: Any) -> None:
        """Stop what two leaders must not do at once, but only where this process may not be the one."""
        if not await self.look_at_leadership("SPLIT_BRAIN_DETECTED"):
            self._change(
                lambda unit: unit.spec.split_brain_stop,
                lambda unit: unit.holds.update({SPLIT_BRAIN: None}),
            )

    async def on_split_brain_resolved(self, _: Any) -> None:
        """What needs the lease itself still waits for it; the rest waited for this."""
        await self.look_at_leadership("SPLIT_BRAIN_RESOLVED")
        self._change(lambda _: True, lambda unit: unit.holds.pop(SPLIT_BRAIN, None))

    async def look_at_leadership(self, heard: str) -> bool:
        """Let daemons that need leadership follow the lease: they run while it can be proved, and else not.

        Returns whether this process proved that it leads; True as well where nobody is elected.
        """
        if self.leads is None:
            log.info("daemons.leadership_hearsay", heard=heard, done="nothing: nobody is elected here")
            return True
        asked = await running.call_async(self.leads, timeout_s=PROOF_S_MAX)
        leads = asked.value is True  # an answer that does not come proves nothing

        tell = log.info if leads else log.error
        tell("daemons.looked_at_leadership", heard=heard, leads=leads, error=asked.problem)
        if leads:
            self._change(lambda _: True, _release)
        else:
            self._change(
                lambda unit: unit.spec.leader_only, lambda unit: unit.holds.update({NOT_LEADER: None})
            )
        self._unproved = not leads
        return leads

    def leadership_proved(self) -> None:
        """The keeper of the lease proved it by itself: what a look without an answer stopped goes on."""
        if self._unproved:
            self._unproved = False
            self._change(lambda _: True, _release)

    async def on_regression_critical(self, event: Any) -> None:
        payload = payload_of(event)
        config_key = str(payload.get("config_key", "unknown"))
        self._emit(
            "HEALTH_ALERT",
            {
                "alert_type": "regression_critical",
                "severity": "critical",
                "message": f"{config_key}: {payload.get('reason') or 'the model got much worse'}",
                "node_id": self._node_id,
                "details": dict(payload),
            },
        )

    def loop_was_blocked(self, incident: Incident) -> None:
        """Called in the watchdog's thread; the event goes out from the loop."""
        if self._loop is None or incident.culprit == NOBODY:
            return
        reported_s = self._blocks_reported_s.get(incident.culprit, float("-inf"))
        if incident.blocked_s < BLOCK_ALERT_S or incident.at_s - reported_s < BLOCK_REPEAT_S:
            return
        if len(self._blocks_reported_s) >= CULPRITS_MAX:
            self._blocks_reported_s.clear()
        self._blocks_reported_s[incident.culprit] = incident.at_s
        payload = {
            "alert_type": "event_loop_blocked",
            "severity": "error",
            "message": f"the event loop stood still for {incident.blocked_s:.2f} s in {incident.culprit}",
            "node_id": self._node_id,
            "details": {"culprit": incident.culprit, "daemon": incident.daemon, "where": incident.where},
        }
        try:
            self._loop.call_soon_threadsafe(self._emit, "HEALTH_ALERT", payload)
        except RuntimeError:  # the loop was closed meanwhile
            return

    def _change(self, chosen: Callable[[Unit], bool], apply: Callable[[Unit], Any]) -> None:
        for unit in self._supervisor.units.values():
            if chosen(unit):
                apply(unit)
        self._supervisor.poke()


def _release(unit: Unit) -> None:
    unit.holds.pop(SPLIT_BRAIN, None)
    unit.holds.pop(NOT_LEADER, None)


def payload_of(event: Any) -> dict[str, Any]:
    """Return the payload of a routed event, or of a plain mapping."""
    payload = getattr(event, "payload", event)
    return dict(payload) if payload else {}
