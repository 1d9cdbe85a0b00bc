"""Keys and values, the event log and blobs in memory, each seen through the handle of one process."""

from __future__ import annotations

import hashlib
import io
import math
from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO, TypeVar

from ringrift.engine import arguments as check
from ringrift.engine.arguments import check_bytes, check_path
from ringrift.engine.encoding import check_digest, mismatch
from ringrift.engine.fencing import check_guard
from ringrift.engine.limits import BLOB_CALL_BYTES_MAX, EngineLimits
from ringrift.engine.ports import (
    Appended,
    Change,
    ChangePage,
    CursorKey,
    Entry,
    LogBounds,
    LogEvent,
    LogRecord,
    Position,
    WriteGuard,
    log_is_full,
    merge_positions,
)
from ringrift.engine.waiting import (
    ALL,
    EVENTS,
    KV,
    QUEUE,
    EngineClock,
    Look,
    Topics,
    kv_topic,
    wait_for_change,
)
from ringrift.engine.work_rules import changes_holds
from ringrift.errors import AlreadyExists, RevisionMismatch, Unavailable
from ringrift.runtime import Runtime

# One process's hold on a memory store.


T = TypeVar("T")


class Handle:
    """Gate of every call: each one yields to the loop once, and a closed handle refuses."""

    def __init__(
        self,
        runtime: Runtime,
        topics: Topics,
        limits: EngineLimits,
        *,
        make_clock: Callable[[], EngineClock],
        entry: Callable[[str], Entry | None],
    ) -> None:
        self.runtime, self.limits, self._entry = runtime, limits, entry
        self._topics, self._make_clock = topics, make_clock
        self._clock: EngineClock | None = None
        self._open = True

    @property
    def clock(self) -> EngineClock:
        self._clock = self._clock or self._make_clock()
        return self._clock

    async def enter(self) -> float:
        """Let others run, as a call to a real store does; return the engine's time."""
        self.check_open()
        await self.runtime.sleep(0)
        self.check_open()
        return self.clock.now_s()

    def check_guard(self, guard: WriteGuard | None, now_s: float) -> None:
        """Raise `LeaseLost` unless *guard* holds. Nobody runs between this and the write that follows."""
        if guard is not None:
            check.check_guard(guard)
            entry = self._entry(guard.key)
            alive = entry is not None and (entry.expires_s is None or entry.expires_s > now_s)
            check_guard(guard, entry.revision if entry is not None and alive else None)

    def check_open(self) -> None:
        if not self._open:
            raise Unavailable("this engine handle is closed")

    def changed(self, *topics: str) -> None:
        self._topics.wake(topics)

    async def wait(self, look: Look[T], *, topic: str, timeout_s: float) -> T | None:
        return await wait_for_change(
            look,
            topic=topic,
            topics=self._topics,
            runtime=self.runtime,
            clock=self.clock,
            timeout_s=timeout_s,
            poll_s=math.inf,
        )

    @property
    def failure(self) -> str:
        """Memory does not fail."""
        return ""

    @property
    def exchanged(self) -> str:
        """Nobody else can reach it."""
        return ""

    async def close(self) -> None:
        self._open = False
        self._topics.wake((ALL,))  # whoever waits here finds out


# Keys and values in memory.


@dataclass(slots=True)
class KvState:
    """Live entries, the last change of every key, and the engine's revision."""

    revision: int = 0
    live: dict[str, Entry] = field(default_factory=dict)
    folders: dict[str, dict[str, None]] = field(default_factory=dict)  # up to the last "/": live keys
    changes: dict[str, Change] = field(default_factory=dict)  # in order of revision
    expiring: dict[str, float] = field(default_factory=dict)  # live key: when

    def under(self, folder: str) -> list[Entry]:
        """The entries whose key has no further "/" after *folder*; some may have run out."""
        return [self.live[key] for key in self.folders.get(folder, ())]


class MemoryKeyValue:
    """See `KeyValue`."""

    def __init__(self, handle: Handle, state: KvState) -> None:
        self._handle, self._state = handle, state

    async def get(self, key: str) -> Entry | None:
        check.check_key(key)
        await self._enter()
        return self._state.live.get(key)

    async def entries(self, *prefixes: str) -> list[Entry]:
        for prefix in prefixes:
            check.check_prefix(prefix)
        await self._enter()
        found: set[str] = set()
        for prefix in prefixes or ("",):
            for folder, keys in self._state.folders.items():
                if folder.startswith(prefix) or prefix.startswith(folder):
                    found.update(key for key in keys if key.startswith(prefix))
        return [self._state.live[key] for key in sorted(found)]

    async def create(
        self, key: str, value: bytes, *, ttl_s: float | None = None, guard: WriteGuard | None = None
    ) -> int:
        check.check_entry(key, value, ttl_s)
        now_s = await self._enter()
        self._handle.check_guard(guard, now_s)
        if (present := self._state.live.get(key)) is not None:
            raise AlreadyExists(key, revision=present.revision)
        return self._store(key, value, ttl_s, now_s)

    async def put(
        self, key: str, value: bytes, *, ttl_s: float | None = None, guard: WriteGuard | None = None
    ) -> int:
        check.check_entry(key, value, ttl_s)
        now_s = await self._enter()
        self._handle.check_guard(guard, now_s)
        return self._store(key, value, ttl_s, now_s)

    async def update(
        self,
        key: str,
        value: bytes,
        *,
        revision: int,
        ttl_s: float | None = None,
        guard: WriteGuard | None = None,
    ) -> int:
        check.check_entry(key, value, ttl_s)
        check.check_integer("revision", revision)
        now_s = await self._enter()
        self._handle.check_guard(guard, now_s)
        self._check_revision(key, revision)
        return self._store(key, value, ttl_s, now_s)

    async def delete(self, key: str, *, revision: int | None = None, guard: WriteGuard | None = None) -> bool:
        check.check_key(key)
        if revision is not None:
            check.check_integer("revision", revision)
        self._handle.check_guard(guard, await self._enter())
        if revision is not None:
            self._check_revision(key, revision)
        if key not in self._state.live:
            return False
        self._drop(key)
        return True

    def watch(self, prefix: str = "", *, after: int | None = None) -> AsyncGenerator[Change, None]:
        check.check_watch(prefix, after)
        return self._watch(prefix, self._state.revision if after is None else after)

    async def _watch(self, prefix: str, after: int) -> AsyncGenerator[Change, None]:
        async def look() -> tuple[list[Change] | None, float | None]:
            await self._enter()
            found = [
                change
                for change in self._state.changes.values()
                if change.revision > after and change.key.startswith(prefix)
            ]
            return found or None, min(self._state.expiring.values(), default=None)

        while True:
            changes = await self._handle.wait(look, topic=kv_topic(prefix), timeout_s=math.inf)
            for change in changes or ():
                after = change.revision
                yield change

    async def changes(self, prefix: str = "", *, after: int, limit: int = 1_000) -> ChangePage:
        check.check_prefix(prefix)
        check.check_page(after, limit)
        await self._enter()
        newer = (
            change
            for change in self._state.changes.values()
            if change.revision > after and change.key.startswith(prefix)
        )
        found = tuple(islice(newer, limit))
        if len(found) == limit:
            return ChangePage(found, found[-1].revision, complete=False)
        return ChangePage(found, self._state.revision, complete=True)

    async def _enter(self) -> float:
        now_s = await self._handle.enter()
        self._expire(now_s)
        return now_s

    def _expire(self, now_s: float) -> None:
        due = sorted((at_s, key) for key, at_s in self._state.expiring.items() if at_s <= now_s)
        for _, key in due:
            self._drop(key)

    def _drop(self, key: str) -> None:
        del self._state.live[key]
        self._state.expiring.pop(key, None)
        keys = self._state.folders[_folder(key)]
        del keys[key]
        if not keys:
            del self._state.folders[_folder(key)]
        self._record(key, None)

    def _check_revision(self, key: str, revision: int) -> None:
        present = self._state.live.get(key)
        current = None if present is None else present.revision
        if current != revision:
            raise RevisionMismatch(key, expected=revision, current=current)

    def _store(self, key: str, value: bytes, ttl_s: float | None, now_s: float) -> int:
        revision = self._record(key, value)
        expires_s = None if ttl_s is None else now_s + ttl_s
        self._state.live[key] = Entry(key=key, value=value, revision=revision, expires_s=expires_s)
        self._state.folders.setdefault(_folder(key), {})[key] = None
        self._state.expiring.pop(key, None)
        if expires_s is not None:
            self._state.expiring[key] = expires_s
        return revision

    def _record(self, key: str, value: bytes | None) -> int:
        state = self._state
        state.revision += 1
        state.changes.pop(key, None)  # a key's last change stands at the end
        state.changes[key] = Change(key=key, value=value, revision=state.revision)
        self._handle.changed(KV, kv_topic(key))
        if changes_holds(key):
            self._handle.changed(QUEUE)  # a hold that ends lets work be claimed
        return state.revision


def _folder(key: str) -> str:
    return key[: key.rfind("/") + 1]


# The event log in memory.


@dataclass(slots=True)
class EventState:
    """The records in order, and where each id stands."""

    records: list[LogRecord] = field(default_factory=list)
    seq_by_id: dict[str, int] = field(default_factory=dict)
    last_seq: int = 0
    positions: dict[CursorKey, Position] = field(default_factory=dict)
    stored_s: dict[CursorKey, float] = field(default_factory=dict)  # when each position was last stored


class MemoryEventLog:
    """See `EventLog`."""

    def __init__(self, handle: Handle, state: EventState) -> None:
        self._handle, self._state = handle, state

    async def append(self, events: Sequence[LogEvent]) -> list[Appended]:
        check.check_events(events)
        now_s = await self._handle.enter()
        self._make_room(now_s)
        outcome = [self._append_one(event, now_s) for event in events]
        self._trim(now_s)
        if any(not appended.duplicate for appended in outcome):
            self._handle.changed(EVENTS)
        return outcome

    def _make_room(self, now_s: float) -> None:
        self._trim(now_s)
        rows, limits = len(self._state.records), self._handle.limits
        if rows >= limits.event_rows_max:
            live = self._live(now_s - limits.subscription_life_s)
            raise log_is_full(rows, min(live, key=lambda each: each[1].floor)[0])

    def _append_one(self, event: LogEvent, now_s: float) -> Appended:
        state = self._state
        if (seq := state.seq_by_id.get(event.id)) is not None:
            return Appended(seq, duplicate=True)
        state.last_seq += 1
        state.seq_by_id[event.id] = state.last_seq
        # A clock that goes back must not unsort the log.
        stamp_s = max(now_s, state.records[-1].appended_s) if state.records else now_s
        state.records.append(
            LogRecord(seq=state.last_seq, id=event.id, type=event.type, body=event.body, appended_s=stamp_s)
        )
        return Appended(state.last_seq, duplicate=False)

    async def read(self, *, after: int, limit: int, types: Sequence[str] | None = None) -> list[LogRecord]:
        check.check_read(after, limit, types)
        await self._handle.enter()
        records = self._state.records
        start = bisect_right(records, after, key=attrgetter("seq"))
        wanted = None if types is None else frozenset(types)
        found: list[LogRecord] = []
        for index in range(start, len(records)):
            if len(found) >= limit:
                break
            if wanted is None or records[index].type in wanted:
                found.append(records[index])
        return found

    async def bounds(self) -> LogBounds:
        await self._handle.enter()
        return LogBounds(self._first(), self._state.last_seq)

    async def seq_at(self, *, since_s: float) -> int:
        check.check_since(since_s)
        await self._handle.enter()
        return self._seq_before(since_s)

    async def last_by_type(self) -> dict[str, float]:
        await self._handle.enter()
        return {record.type: record.appended_s for record in self._state.records}

    async def wait(self, *, after: int, timeout_s: float) -> int:
        check.check_log_wait(after, timeout_s)

        async def look() -> tuple[int | None, float | None]:
            await self._handle.enter()
            return (self._state.last_seq if self._state.last_seq > after else None), None

        await self._handle.wait(look, topic=EVENTS, timeout_s=timeout_s)
        return self._state.last_seq

    async def positions(self, instance: str) -> dict[str, Position]:
        check.check_text("instance", instance, empty=True)
        await self._handle.enter()
        return {key.consumer: at for key, at in self._state.positions.items() if key.instance == instance}

    async def commit(self, positions: Mapping[CursorKey, Position]) -> None:
        check.check_positions(positions)
        now_s = await self._handle.enter()
        stored = self._state.positions
        for key, given in positions.items():
            stored[CursorKey(*key)] = merge_positions(stored.get(key), given)
            self._state.stored_s[CursorKey(*key)] = now_s

    async def forget(self, keys: Sequence[CursorKey]) -> None:
        check.check_cursor_keys(keys)
        await self._handle.enter()
        for key in keys:
            self._state.positions.pop(key, None)
            self._state.stored_s.pop(key, None)

    async def trim(self) -> int:
        return self._trim(await self._handle.enter())

    def _trim(self, now_s: float) -> int:
        state, limits = self._state, self._handle.limits
        old_s = now_s - limits.event_retention_s
        by_age = min(self._seq_before(old_s), self._seen_by_all(old_s))
        seen = self._seen_by_all(now_s - limits.subscription_life_s)
        keep_from = 1 + max(by_age, min(state.last_seq - limits.event_retention_rows, seen))
        count = bisect_left(state.records, keep_from, key=attrgetter("seq"))
        for record in state.records[:count]:
            del state.seq_by_id[record.id]
        del state.records[:count]
        return count

    def _seen_by_all(self, since_s: float) -> int:
        """Return up to where everybody has seen the log who stored its position since then."""
        return min((position.floor for _, position in self._live(since_s)), default=self._state.last_seq)

    def _live(self, since_s: float) -> list[tuple[CursorKey, Position]]:
        stored_s = self._state.stored_s
        return [(key, at) for key, at in self._state.positions.items() if stored_s[key] >= since_s]

    def _first(self) -> int:
        return self._state.records[0].seq if self._state.records else self._state.last_seq + 1

    def _seq_before(self, since_s: float) -> int:
        count = bisect_left(self._state.records, since_s, key=attrgetter("appended_s"))
        return self._first() - 1 if count == 0 else self._state.records[count - 1].seq


# Blobs in memory.


@dataclass(slots=True)
class BlobState:
    """Committed content, and uploads that may be continued."""

    content: dict[str, bytes] = field(default_factory=dict)
    partial: dict[str, bytearray] = field(default_factory=dict)


class MemoryUpload:
    """See `Upload`."""

    def __init__(self, handle: Handle, state: BlobState, digest: str) -> None:
        self._handle, self._state, self._digest = handle, state, digest
        self._received = state.partial.setdefault(digest, bytearray())

    @property
    def offset(self) -> int:
        return len(self._received)

    async def write(self, chunk: bytes) -> None:
        check_bytes("chunk", chunk, size_max=BLOB_CALL_BYTES_MAX)
        await self._handle.enter()
        self._received += chunk

    async def commit(self) -> str:
        await self._handle.enter()
        self._state.partial.pop(self._digest, None)
        content = bytes(self._received)
        found = hashlib.sha256(content).hexdigest()
        if found != self._digest:
            raise mismatch(self._digest, self._digest, found)
        self._state.content[self._digest] = content
        return self._digest

    async def abort(self) -> None:
        await self._handle.enter()
        self._state.partial.pop(self._digest, None)


class MemoryBlobs:
    """See `Blobs`."""

    def __init__(self, handle: Handle, state: BlobState) -> None:
        self._handle, self._state = handle, state

    async def put(self, path: Path) -> str:
        content = _content_of(path)
        await self._handle.enter()
        return self._keep(content)

    async def put_bytes(self, content: bytes) -> str:
        check_bytes("content", content, size_max=BLOB_CALL_BYTES_MAX)
        await self._handle.enter()
        return self._keep(content)

    def _keep(self, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        self._state.content[digest] = content
        return digest

    async def upload(self, digest: str) -> MemoryUpload:
        check_digest(digest)
        await self._handle.enter()
        return MemoryUpload(self._handle, self._state, digest)

    async def open(self, digest: str) -> BinaryIO:
        return io.BytesIO(self._state.content[await self._checked(digest)])

    async def path(self, digest: str) -> Path | None:
        await self._checked(digest)
        return None

    async def has(self, digest: str) -> bool:
        return await self._checked(digest) in self._state.content

    async def size(self, digest: str) -> int | None:
        content = self._state.content.get(await self._checked(digest))
        return None if content is None else len(content)

    async def verify(self, digest: str) -> None:
        found = hashlib.sha256(self._state.content[await self._checked(digest)]).hexdigest()
        if found != digest:
            raise mismatch(digest, digest, found)

    async def delete(self, digest: str) -> bool:
        return self._state.content.pop(await self._checked(digest), None) is not None

    async def digests(self) -> list[str]:
        await self._handle.enter()
        return sorted(self._state.content)

    async def _checked(self, digest: str) -> str:
        check_digest(digest)
        await self._handle.enter()
        return digest


def _content_of(path: Path) -> bytes:
    check_path(path)
    return path.read_bytes()
