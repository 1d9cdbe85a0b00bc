"""Waiting for a change without polling: topics, and those who wait for them.

A waiter may live on any event loop of this process and may be woken from any thread. Nothing is lost
between looking and waiting: a waiter that is listening keeps a wake-up until its next wait.
"""

from __future__ import annotations

import asyncio
import math
import re
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager
from typing import Protocol, TypeVar

from ringrift.clock import ClockAnchor
from ringrift.engine.ports import Entry, KeyValue
from ringrift.runtime import Runtime

# The engine's time: what leases, delays, expiry and ages are counted in.
#
# It goes by the time since the machine started, which nobody can set, from an anchor that is stored with the
# state; so all processes agree, and a wall clock that is set, for one process or for all, changes nothing.
# Only the first use after a start of the machine looks at the wall clock, to count the time that it was off;
# the engine's time never goes back.


class EngineClock:
    """The time of one engine in one process, which keeps the same time from then on."""

    def __init__(self, runtime: Runtime, anchor: ClockAnchor) -> None:
        self._runtime, self._anchor = runtime, anchor
        runtime.keep_time(anchor)

    def now_s(self) -> float:
        return self._anchor.at(self._runtime.boot_s())


T = TypeVar("T")

EVENTS = "events"
QUEUE = "queue"  # work came, or came back
ENDS = "ends"  # work ended
KV = "kv"
ALL = "*"  # there is nothing more to wait for

_FOLDER = re.compile(r"[a-z0-9_]{1,40}")


def kv_topic(key: str) -> str:
    """The topic of a key, or of all keys with this prefix: that of its first folder, if it names one.

    Whoever waits for requests of people, of which there are few, is not woken by each of the many facts.
    """
    folder, slash, _ = key.partition("/")
    return f"{KV}-{folder}" if slash and _FOLDER.fullmatch(folder) else KV


Look = Callable[[], Awaitable[tuple[T | None, float | None]]]
"""Looks once: what was found, and the engine's time at which looking again may find something."""


class Waiter:
    """One coroutine that listens to one topic."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Wake from any thread."""
        try:
            here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is self._loop:
            self._woken.set()
            return
        try:
            self._loop.call_soon_threadsafe(self._woken.set)
        except RuntimeError:
            return  # that loop has ended, and its waiters with it

    async def wait(self, runtime: Runtime, timeout_s: float) -> None:
        """Return at the next wake-up, or after *timeout_s*."""
        if timeout_s == math.inf:
            await self._woken.wait()
            self._woken.clear()
            return
        async with asyncio.TaskGroup() as group:
            timer = group.create_task(self._wake_after(runtime, timeout_s))
            await self._woken.wait()
            timer.cancel()
        self._woken.clear()

    async def _wake_after(self, runtime: Runtime, timeout_s: float) -> None:
        await runtime.sleep(timeout_s)
        self._woken.set()


class Topics:
    """Who in this process waits for what."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: dict[str, dict[Waiter, None]] = {}  # in the order of arrival
        self._changes: Counter[str] = Counter()

    @contextmanager
    def listening(self, topic: str) -> Iterator[Waiter]:
        waiter = Waiter()
        with self._lock:
            self._waiters.setdefault(topic, {})[waiter] = None
        try:
            yield waiter
        finally:
            with self._lock:
                self._waiters[topic].pop(waiter, None)

    def changes(self, topic: str) -> int:
        """How often *topic* has changed, as far as it was heard of here."""
        with self._lock:
            return self._changes[topic]

    def wake(self, topics: Iterable[str]) -> None:
        with self._lock:
            woken = self._waiters.keys() if ALL in (topics := tuple(topics)) else topics
            self._changes.update(woken)
            found = [waiter for topic in woken for waiter in self._waiters.get(topic, ())]
        for waiter in found:
            waiter.wake()


class Listening(Protocol):
    """Where one can listen to a topic."""

    def listening(self, topic: str) -> AbstractContextManager[Waiter]: ...


async def wait_for_change(
    look: Look[T],
    *,
    topic: str,
    topics: Listening,
    runtime: Runtime,
    clock: EngineClock,
    timeout_s: float,
    poll_s: float,
) -> T | None:
    """Return what *look* finds, looking again at every change of *topic*; None at the time-out.

    *poll_s* is the longest time between two looks, for wake-ups that got lost.
    """
    deadline_s = runtime.monotonic_s() + timeout_s
    with topics.listening(topic) as waiter:
        while True:
            found, again_s = await look()
            left_s = deadline_s - runtime.monotonic_s()
            if found is not None or left_s <= 0:
                return found
            pause_s = min(left_s, poll_s)
            if again_s is not None:
                pause_s = min(pause_s, max(0.0, again_s - clock.now_s()))
            await waiter.wait(runtime, pause_s)


async def entry_changed(kv: KeyValue, entry: Entry) -> None:
    """Wait until the value under a key is another than the caller saw.

    Some stores begin to watch only when the first change is asked for, so it counts from what was seen. What
    a store watches is a prefix: keys that only begin alike wake nobody.
    """
    async with aclosing(kv.watch(entry.key, after=entry.revision)) as changes:
        async for change in changes:
            if change.key == entry.key:
                return
