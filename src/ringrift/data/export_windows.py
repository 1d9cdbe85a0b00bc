"""Which games each config was last exported from: read from the ends of work, each of them once."""

from __future__ import annotations

from collections.abc import Mapping

from ringrift.engine.ports import EndedWork, WorkQueue
from ringrift.errors import ConfigError
from ringrift.work.job_orders import read_order

WINDOW_KINDS = ("export", "train")  # the job that reads the games that are learned from
_PAGE = 1_000


class ExportWindows:
    """The inputs of the last export of each config, games, and those of its last training, samples."""

    def __init__(self, queue: WorkQueue) -> None:
        self._queue, self._number = queue, 0
        self._inputs: dict[str, dict[str, frozenset[str]]] = {}  # config: by kind of work

    async def refresh(self) -> Mapping[str, frozenset[str]]:
        """Return the windows as they are now; only ends that are new are read."""
        while page := await self._queue.ended(after=self._number, limit=_PAGE):
            for end in page:
                if end.number > self._number:  # another task may have been faster
                    self._take(end)
        return {config: frozenset().union(*inputs.values()) for config, inputs in self._inputs.items()}

    def _take(self, end: EndedWork) -> None:
        self._number = end.number
        if end.item.kind not in WINDOW_KINDS:
            return
        try:
            order = read_order(end.item.payload)
        except ConfigError:
            return  # work of another make: its inputs are not known
        self._inputs.setdefault(order.config, {})[end.item.kind] = frozenset(order.inputs.values())
