"""Reading the run's status where the control process keeps it."""

from __future__ import annotations

import structlog

from ringrift.engine.ports import KeyValue
from ringrift.errors import Corrupt, Unavailable
from ringrift.learning.run_status import STATUS_KEY, RunStatus, decode_run_status

log = structlog.get_logger()


async def read_run_status(kv: KeyValue) -> RunStatus | None:
    """Return the latest status; None if no run ever told one. Raises `Corrupt` for one of another version."""
    entry = await kv.get(STATUS_KEY)
    return None if entry is None else decode_run_status(entry.value)


class RunReader:
    """Follows the status; decodes it only when it is new, and keeps the last good one."""

    def __init__(self) -> None:
        self._latest: RunStatus | None = None
        self._revision = 0
        self._problem = ""

    async def read(self, kv: KeyValue) -> RunStatus | None:
        try:
            entry = await kv.get(STATUS_KEY)
            if entry is not None and entry.revision != self._revision:
                self._revision = entry.revision
                self._latest = decode_run_status(entry.value)
        except (Unavailable, Corrupt) as error:
            if str(error) != self._problem:  # a second would say the same every second
                self._problem = str(error)
                log.warning("page.no_status", error=self._problem)
        return self._latest
