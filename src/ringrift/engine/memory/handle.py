"""One process's hold on a memory store."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from ringrift.engine import arguments as check
from ringrift.engine.engine_clock import EngineClock
from ringrift.engine.fencing import check_guard
from ringrift.engine.limits import EngineLimits
from ringrift.engine.ports import Entry, WriteGuard
from ringrift.engine.waiting import ENDS, EVENTS, KV, QUEUE, Look, Topics, wait_for_change
from ringrift.errors import Unavailable
from ringrift.runtime import Runtime

T = TypeVar("T")


class Handle:
    """Gate of every call: each one yields to the loop once, and a closed handle refuses."""

    def __init__(
        self,
        runtime: Runtime,
        topics: Topics,
        limits: EngineLimits,
        *,
        make_clock: Callable[[], EngineClock],
        entry: Callable[[str], Entry | None],
    ) -> None:
        self.runtime, self.limits, self._entry = runtime, limits, entry
        self._topics, self._make_clock = topics, make_clock
        self._clock: EngineClock | None = None
        self._open = True

    @property
    def clock(self) -> EngineClock:
        self._clock = self._clock or self._make_clock()
        return self._clock

    async def enter(self) -> float:
        """Let others run, as a call to a real store does; return the engine's time."""
        self.check_open()
        await self.runtime.sleep(0)
        self.check_open()
        return self.clock.now_s()

    def check_guard(self, guard: WriteGuard | None, now_s: float) -> None:
        """Raise `LeaseLost` unless *guard* holds. Nobody runs between this and the write that follows."""
        if guard is not None:
            check.check_guard(guard)
            entry = self._entry(guard.key)
            alive = entry is not None and (entry.expires_s is None or entry.expires_s > now_s)
            check_guard(guard, entry.revision if entry is not None and alive else None)

    def check_open(self) -> None:
        if not self._open:
            raise Unavailable("this engine handle is closed")

    def changed(self, topic: str) -> None:
        self._topics.wake((topic,))

    async def wait(self, look: Look[T], *, topic: str, timeout_s: float) -> T | None:
        return await wait_for_change(
            look,
            topic=topic,
            topics=self._topics,
            runtime=self.runtime,
            clock=self.clock,
            timeout_s=timeout_s,
            poll_s=math.inf,
        )

    @property
    def failure(self) -> str:
        """Memory does not fail."""
        return ""

    @property
    def exchanged(self) -> str:
        """Nobody else can reach it."""
        return ""

    async def close(self) -> None:
        self._open = False
        self._topics.wake((EVENTS, KV, QUEUE, ENDS))  # whoever waits here finds out
