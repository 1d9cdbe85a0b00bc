"""When each event of the catalog was last seen sent and received in a data folder.

One small record for all processes, so that the wiring audit can tell what is declared from what happens.
Every process adds what it saw some seconds after it began, then about once a minute and when it ends, never
with each event; a crash costs a minute.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import msgspec
import structlog

from ringrift.engine.encoding import decode_entry
from ringrift.engine.ports import KeyValue
from ringrift.errors import AlreadyExists, RevisionMismatch, RingRiftError
from ringrift.runtime import Runtime

SEEN_KEY = "events/seen"
KEEP_FIRST_S, KEEP_EVERY_S = 5.0, 60.0
TRIES_MAX = 20  # others add to it at the same time

log = structlog.get_logger()


class LastSeen(msgspec.Struct, frozen=True, array_like=True):
    """The newest time of one event; None: never in this folder."""

    sent_s: float | None = None
    received_s: float | None = None

    def merged(self, other: LastSeen) -> LastSeen:
        return LastSeen(_later(self.sent_s, other.sent_s), _later(self.received_s, other.received_s))


def _later(one: float | None, other: float | None) -> float | None:
    known = [each for each in (one, other) if each is not None]
    return max(known) if known else None


async def read_last_seen(kv: KeyValue) -> dict[str, LastSeen]:
    """By event; empty where no process has kept anything yet."""
    entry = await kv.get(SEEN_KEY)
    return {} if entry is None else decode_entry(entry, dict[str, LastSeen])


class SeenKeeper:
    """Adds what one router saw to the record of the folder."""

    def __init__(
        self,
        seen: Callable[[], Mapping[str, LastSeen]],
        open_kv: Callable[[], Awaitable[KeyValue]],
        runtime: Runtime,
    ) -> None:
        self._seen, self._open_kv, self._runtime = seen, open_kv, runtime
        self._due_s = runtime.monotonic_s() + KEEP_FIRST_S
        self._kept: dict[str, LastSeen] = {}
        self._problem = ""

    @property
    def is_due(self) -> bool:
        return self._runtime.monotonic_s() >= self._due_s

    async def keep(self) -> None:
        """Write down what is new. Nobody's event waits or fails because this cannot be written."""
        self._due_s = self._runtime.monotonic_s() + KEEP_EVERY_S
        seen = dict(self._seen())
        if seen == self._kept:
            return
        try:
            await self._add(await self._open_kv(), seen)
        except RingRiftError as error:
            if str(error) != self._problem:
                log.warning("events.last_seen_not_kept", error=str(error))
            self._problem = str(error)
            return
        self._kept, self._problem = seen, ""

    async def _add(self, kv: KeyValue, seen: Mapping[str, LastSeen]) -> None:
        for _ in range(TRIES_MAX):
            entry = await kv.get(SEEN_KEY)
            known = {} if entry is None else decode_entry(entry, dict[str, LastSeen])
            added = {name: each.merged(known.get(name, LastSeen())) for name, each in seen.items()}
            value = msgspec.json.encode({**known, **added})
            try:
                if entry is None:
                    await kv.create(SEEN_KEY, value)
                else:
                    await kv.update(SEEN_KEY, value, revision=entry.revision)
            except (AlreadyExists, RevisionMismatch):
                continue
            return
        log.warning("events.last_seen_not_kept", error=f"others wrote it {TRIES_MAX} times meanwhile")
