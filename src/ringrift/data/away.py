"""Nodes that were said to be away. A copy on one of them does not count until it is heard of again."""

from __future__ import annotations

from collections.abc import Mapping

from ringrift.engine.ports import EventLog, LogRecord
from ringrift.errors import Corrupt
from ringrift.events.event_wire import decode_body
from ringrift.events.routed_event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.runtime import Runtime

OFFLINE, ONLINE = "HOST_OFFLINE", "HOST_ONLINE"
_PAGE = 1_000
AWAY_S = 6 * 3600.0  # then it is asked again: an unheard return must not block repairs for good


class AwayNodes:
    """Hears of nodes that go and come."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._since: dict[str, float] = {}

    def hears(self) -> Mapping[str, Callback]:
        return {OFFLINE: self.on_offline, ONLINE: self.on_online}

    def on_offline(self, event: RouterEvent) -> None:
        self._since[str(event.payload["node_id"])] = self._runtime.monotonic_s()

    def on_online(self, event: RouterEvent) -> None:
        self._since.pop(str(event.payload["node_id"]), None)

    def now(self) -> frozenset[str]:
        oldest_s = self._runtime.monotonic_s() - AWAY_S
        return frozenset(name for name, since_s in self._since.items() if since_s > oldest_s)


class AwayLog:
    """The same, read from the event log, each event once: for those who did not run when it was told."""

    def __init__(self, events: EventLog, runtime: Runtime) -> None:
        self._events, self._runtime = events, runtime
        self._after: int | None = None
        self._since: dict[str, float] = {}  # by the wall clock

    async def refresh(self) -> frozenset[str]:
        """Return who is away as of now."""
        oldest_s = self._runtime.now_s() - AWAY_S
        if self._after is None:
            self._after = await self._events.seq_at(since_s=oldest_s)
        last = (await self._events.bounds()).last
        while page := await self._events.read(after=self._after, limit=_PAGE, types=(OFFLINE, ONLINE)):
            for record in page:
                self._hear(record)
            self._after = page[-1].seq
        self._after = max(self._after, last)
        return frozenset(name for name, since_s in self._since.items() if since_s > oldest_s)

    def _hear(self, record: LogRecord) -> None:
        try:
            payload = decode_body(record).get("payload") or {}
        except Corrupt:
            return  # whoever handles events tells of it
        node = str(payload.get("node_id") or payload.get("host") or "")
        if record.type == OFFLINE:
            self._since[node] = record.appended_s
        else:
            self._since.pop(node, None)
