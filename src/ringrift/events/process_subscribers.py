"""Who polls the queue between processes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ringrift.engine.encoding import decode_entry
from ringrift.engine.ports import KeyValue
from ringrift.runtime import system_runtime

_PREFIX = "event-subscribers/"
_STABLE_TTL_S = 30 * 86_400.0
_DEAD_AFTER_S = 300.0


def _hostname() -> str:
    return system_runtime().hostname


@dataclass(frozen=True, slots=True)
class CrossProcessEvent:
    """A stored event as pollers see it; `event_id` is its number in the log."""

    event_id: int
    event_type: str
    payload: dict[str, Any] = field(default_factory=dict)
    source: str = ""
    created_at: float = 0.0
    hostname: str = field(default_factory=_hostname)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    """One poller and when it last asked."""

    subscriber_id: str
    process_name: str
    hostname: str
    event_types: list[str] | None
    last_poll_s: float

    def describe(self, now_s: float) -> dict[str, Any]:
        return {
            "subscriber_id": self.subscriber_id,
            "process_name": self.process_name,
            "hostname": self.hostname,
            "last_poll_ago": max(0.0, now_s - self.last_poll_s),
        }


class Subscribers:
    """Kept among the keys of the engine; those who stop polling expire."""

    def __init__(self, kv: KeyValue) -> None:
        self._kv = kv

    async def save(self, subscriber: Subscriber) -> None:
        stable = ":stable:" in subscriber.subscriber_id
        ttl_s = _STABLE_TTL_S if stable else _DEAD_AFTER_S
        value = json.dumps(asdict(subscriber)).encode()
        await self._kv.put(_PREFIX + subscriber.subscriber_id, value, ttl_s=ttl_s)

    async def get(self, subscriber_id: str) -> Subscriber | None:
        entry = await self._kv.get(_PREFIX + subscriber_id)
        return None if entry is None else decode_entry(entry, Subscriber)

    async def touch(self, subscriber_id: str, now_s: float) -> Subscriber | None:
        """Note that a subscriber polls."""
        found = await self.get(subscriber_id)
        if found is not None:
            await self.save(replace(found, last_poll_s=now_s))
        return found

    async def all(self) -> list[Subscriber]:
        entries = await self._kv.entries(_PREFIX)
        found = [decode_entry(entry, Subscriber) for entry in entries]
        now_s = system_runtime().now_s()
        return [item for item in found if now_s - item.last_poll_s <= _DEAD_AFTER_S]
