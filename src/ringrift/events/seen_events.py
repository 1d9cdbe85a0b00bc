"""What was published lately, so that the same event is not handled twice."""

from __future__ import annotations

from itertools import islice
from typing import Any

from ringrift.events.routed_event import EventSource, RouterEvent


class SeenEvents:
    """Ids (and, if wanted, contents) of the last events; the oldest go first."""

    def __init__(self, *, events_max: int, ttl_s: float, by_content: bool) -> None:
        self.events_max, self.ttl_s, self.by_content = events_max, ttl_s, by_content
        self.duplicates = 0
        self.content_duplicates = 0
        self._ids: dict[str, float] = {}
        self._contents: dict[str, float] = {}

    def note(self, event_id: str, now_s: float) -> None:
        """Remember an id that is new by construction."""
        ids = self._ids
        ids[event_id] = now_s
        if len(ids) > self.events_max:
            self._drop_oldest(ids)

    def is_duplicate(self, event: RouterEvent, now_s: float) -> bool:
        """Remember *event*; True if its id was seen, or its content when that is wanted.

        A publisher may repeat the same content on purpose, so content is never compared for events
        published directly at the router.
        """
        if self._seen(self._ids, event.event_id, now_s):
            self.duplicates += 1
            return True
        if not self.by_content or event.origin is EventSource.ROUTER:
            return False
        if self._seen(self._contents, event.content_hash, now_s):
            self.content_duplicates += 1
            return True
        return False

    def forget(self, event: RouterEvent) -> None:
        self._ids.pop(event.event_id, None)
        if self.by_content:
            self._contents.pop(event.content_hash, None)

    def clear(self) -> None:
        self._ids.clear()
        self._contents.clear()

    def stats(self) -> dict[str, Any]:
        return {
            "duplicates_prevented": self.duplicates,
            "content_duplicates_prevented": self.content_duplicates,
            "total_duplicates_prevented": self.duplicates + self.content_duplicates,
            "seen_events_count": len(self._ids),
            "seen_content_hashes_count": len(self._contents),
            "max_seen_events": self.events_max,
            "dedup_ttl_seconds": self.ttl_s,
        }

    def _seen(self, table: dict[str, float], key: str, now_s: float) -> bool:
        known_s = table.get(key)
        if known_s is not None and now_s - known_s < self.ttl_s:
            return True
        table.pop(key, None)
        table[key] = now_s
        if len(table) > self.events_max:
            self._drop_oldest(table)
        return False

    def _drop_oldest(self, table: dict[str, float]) -> None:
        # A tenth at a time: taking the first key of a dictionary again and again gets slower each time.
        for key in list(islice(table, max(1, self.events_max // 10))):
            del table[key]
