"""Which games each config was last exported from: read from the ends of work, each of them once."""

from __future__ import annotations

from collections.abc import Mapping

from ringrift.engine.ports import EndedWork, WorkQueue
from ringrift.errors import ConfigError
from ringrift.work.job_orders import read_order

WINDOW_KIND = "export"  # the job that reads the games that are learned from
_PAGE = 1_000


class ExportWindows:
    """The inputs of the last export of each config."""

    def __init__(self, queue: WorkQueue) -> None:
        self._queue, self._number = queue, 0
        self._windows: dict[str, frozenset[str]] = {}

    async def refresh(self) -> Mapping[str, frozenset[str]]:
        """Return the windows as they are now; only ends that are new are read."""
        while page := await self._queue.ended(after=self._number, limit=_PAGE):
            for end in page:
                if end.number > self._number:  # another task may have been faster
                    self._take(end)
        return dict(self._windows)

    def _take(self, end: EndedWork) -> None:
        self._number = end.number
        if end.item.kind != WINDOW_KIND:
            return
        try:
            order = read_order(end.item.payload)
        except ConfigError:
            return  # an export of another make: its inputs are not known
        self._windows[order.config] = frozenset(order.inputs.values())
