"""Nodes that were said to be away. A copy on one of them does not count until it is heard of again."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import structlog

from ringrift.data.kv_records import KvRecords
from ringrift.engine.ports import EventLog, KeyValue, LogRecord
from ringrift.errors import Corrupt, Unavailable
from ringrift.events.event_wire import decode_body
from ringrift.events.routed_event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.runtime import Runtime

log = structlog.get_logger()

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


class _Away(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    since_s: float


class AwayLog:
    """Since when nodes are away, for whoever deletes: a node that died never tells that it is back.

    Read from the event log, each event once. The log forgets after a day, so it is also kept in the
    key-value store: until the node is said to be back, or for *for_s*.
    """

    def __init__(self, events: EventLog, kv: KeyValue, runtime: Runtime, *, for_s: float) -> None:
        self._events, self._runtime, self._for_s = events, runtime, for_s
        self._records = KvRecords(kv, "data/away/", _Away)
        self._after: int | None = None
        self._since: dict[str, float] = {}  # by the wall clock

    async def refresh(self) -> Mapping[str, float]:
        """Return who is away as of now, each with the time at which that was told."""
        if self._after is None:
            self._since = {each.node: each.since_s for each in await self._records.all()}
            self._after = await self._events.seq_at(since_s=self._runtime.now_s() - self._for_s)
        kept, last = dict(self._since), (await self._events.bounds()).last
        while page := await self._events.read(after=self._after, limit=_PAGE, types=(OFFLINE, ONLINE)):
            for record in page:
                self._hear(record)
            self._after = page[-1].seq
        self._after = max(self._after, last)
        await self._keep(kept)
        return dict(self._since)

    async def _keep(self, kept: Mapping[str, float]) -> None:
        try:
            for node in kept.keys() - self._since.keys():
                await self._records.delete(node)
            for node, since_s in self._since.items():
                if kept.get(node) != since_s:
                    await self._records.put(node, _Away(node=node, since_s=since_s), ttl_s=self._for_s)
        except Unavailable as error:
            log.warning("data.away_not_kept", error=str(error))  # the next who looks keeps it

    def _hear(self, record: LogRecord) -> None:
        try:
            payload = decode_body(record).get("payload") or {}
        except Corrupt:
            return  # whoever handles events tells of it
        node = str(payload.get("node_id") or payload.get("host") or "")
        if record.type == OFFLINE and node:
            self._since[node] = record.appended_s
        else:
            self._since.pop(node, None)
