"""Telling that an event loop is ending while it still runs.

Whoever ends a loop in good order (`asyncio.run` does) cancels all of its tasks once, before any of them
goes on, and then runs it only until those are through. A task started after that is never finished. The
loop itself does not say so; a task that nobody has any other reason to cancel does.
"""

from __future__ import annotations

import asyncio
from contextvars import Context


class LoopWatch:
    """One idle task on a loop; it takes no time and holds nothing."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._task = loop.create_task(_wait_for_the_end(), name="ringrift-loop-watch", context=Context())
        # A program may also drop a loop without ending its tasks; this one is no loss worth a message.
        self._task._log_destroy_pending = False  # type: ignore[attr-defined]

    @property
    def is_ending(self) -> bool:
        """Whether everything on the loop has been cancelled; may be asked from any thread."""
        return self._task.done() or self._task.cancelling() > 0

    def stop(self) -> None:
        """End the watch, from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._task.cancel)
        except RuntimeError:  # the loop is closed, and its tasks with it
            return


async def _wait_for_the_end() -> None:
    await asyncio.get_running_loop().create_future()
