"""The tasks that run deliveries which no publisher waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import structlog

from ringrift.events.subscriptions import Delivery

log = structlog.get_logger()


class DeliveryTasks:
    """Owns them until they end; *never_began* hears of one that was cancelled before its first step."""

    def __init__(self, never_began: Callable[[Delivery], None]) -> None:
        self._tasks: dict[asyncio.Task[None], Delivery | None] = {}  # in the order of their start
        self._never_began = never_began

    def __iter__(self) -> Iterator[asyncio.Task[None]]:
        return iter(tuple(self._tasks))

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, None], delivery: Delivery | None = None) -> None:
        context = None if delivery is None else delivery.context
        task = asyncio.get_running_loop().create_task(work, context=context)
        self._tasks[task] = delivery
        task.add_done_callback(self._reap)

    def _reap(self, task: asyncio.Task[None]) -> None:
        delivery = self._tasks.pop(task, None)
        if task.cancelled():
            if delivery is not None and not delivery.begun:
                self._never_began(delivery)
        elif (error := task.exception()) is not None:
            log.error("events.delivery_crashed", exc_info=error)

    async def wait(self, *, timeout_s: float) -> None:
        """Wait for those there are and those they start."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while self._tasks and (left_s := deadline_s - loop.time()) > 0:
            await asyncio.wait(tuple(self._tasks), timeout=left_s)

    async def cancel(self) -> None:
        """End those there are now."""
        left = tuple(self._tasks)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)  # unlike `gather`, lets the loop reap those that had ended already

    def forget(self) -> list[Delivery]:
        """Let go of tasks whose loop is gone; return the deliveries that none of them had begun."""
        unbegun = [item for item in self._tasks.values() if item is not None and not item.begun]
        self._tasks.clear()
        return unbegun
