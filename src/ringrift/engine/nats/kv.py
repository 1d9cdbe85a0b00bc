"""Keys and values on JetStream: a key is a subject, its newest message the value, its number the revision.

An entry that ran out is gone for whoever reads, by the engine's time; whoever follows changes writes that
down. The server removes what nobody follows some time later.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ringrift.engine import arguments as check
from ringrift.engine.fencing import check_guard
from ringrift.engine.nats.stream import (
    GONE,
    NAME,
    PAGE,
    TTL,
    ConditionFailed,
    Stored,
    Stream,
    StreamPage,
    Write,
    damaged,
    hashed,
    spelled,
    text_of,
    token_of,
)
from ringrift.engine.ports import Change, ChangePage, Entry, WriteGuard
from ringrift.engine.waiting import KV, QUEUE, EngineClock, Topics, kv_topic, wait_for_change
from ringrift.engine.work_rules import changes_holds
from ringrift.errors import AlreadyExists, RevisionMismatch
from ringrift.runtime import Runtime

T = TypeVar("T")

EXPIRES = "Ringrift-Expires"
PREFIXES_MAX = 500
SUBJECT_CHARS_MAX = 1_000  # of 4,096 that a line to the server may have
GRACE_S = 60.0  # after which the server itself removes an entry that ran out


@dataclass(frozen=True, slots=True)
class NatsStore:
    """What the ports of one handle share."""

    stream: Stream
    runtime: Runtime
    clock: EngineClock
    topics: Topics
    announce: Callable[..., None]

    @property
    def prefix(self) -> str:
        return self.stream.link.config.subjects

    async def call(self, work: Callable[[], Awaitable[T]]) -> T:
        async def on_link() -> T:
            return await work()

        return await self.stream.link.call(on_link())

    async def wait(
        self, look: Callable[[], Awaitable[tuple[T | None, float | None]]], *, topic: str, timeout_s: float
    ) -> T | None:
        return await wait_for_change(
            look,
            topic=topic,
            topics=self.topics,
            runtime=self.runtime,
            clock=self.clock,
            timeout_s=timeout_s,
            poll_s=self.stream.link.config.poll_s,
        )


@dataclass(slots=True)
class _Expiring:
    """The entries under a prefix that run out, as far as the changes were read."""

    seq: int = 0
    entries: dict[str, Entry] = field(default_factory=dict)  # by subject, without their values


class NatsKeyValue:
    """See `KeyValue`."""

    def __init__(self, store: NatsStore) -> None:
        self._store, self._stream = store, store.stream
        self._known: dict[str, Entry] = {}  # of guards: an entry with that revision never changes
        self._expiring: dict[str, _Expiring] = {}  # by prefix

    # --- where entries lie ----------------------------------------------------------------------------------

    def subject(self, key: str) -> str:
        tokens, rest = self._tokens(key)
        # What is too long for a subject is told by a hash, and by a header.
        return ".".join(tokens) if not rest else f"{'.'.join(tokens)}.{hashed(rest)}"

    def _tokens(self, key: str) -> tuple[list[str], str]:
        """The words of a subject for *key*, as many as it holds, and what is left of the key."""
        tokens, parts = [self._store.prefix, "k"], key.split("/")
        for number, part in enumerate(parts):
            token = token_of(part)
            if sum(map(len, tokens)) + len(tokens) + len(token) > SUBJECT_CHARS_MAX:
                return tokens, "/".join(parts[number:])
            tokens.append(token)
        return tokens, ""

    def _below(self, prefix: str) -> str:
        """A subject that matches all keys with that prefix, and perhaps others."""
        folder, slash, _ = prefix.rpartition("/")
        return f"{'.'.join(self._tokens(folder)[0])}.>" if slash else f"{self._store.prefix}.k.>"

    def _key(self, stored: Stored) -> str | None:
        """None where the server noted that a key ran out whose subject does not tell its name."""
        if (name := stored.headers.get(NAME)) is not None:
            return text_of(name)
        parts = [text_of(token) for token in stored.subject.split(".")[2:]]
        return None if None in parts else "/".join(part or "" for part in parts)

    def _as_stored(self, stored: Stored) -> Entry | None:
        """An entry, also one that ran out; None where there is nothing any more."""
        if stored.is_gone:
            return None
        if (key := self._key(stored)) is None:
            raise damaged(stored.subject, "it does not tell its key")
        text = stored.headers.get(EXPIRES)
        expires_s = None if text is None else float(text)
        return Entry(key=key, value=stored.data, revision=stored.seq, expires_s=expires_s)

    def _entry(self, stored: Stored | None) -> Entry | None:
        """None where there is nothing, or what ran out."""
        entry = None if stored is None else self._as_stored(stored)
        if entry is None or entry.expires_s is None or entry.expires_s > self._store.clock.now_s():
            return entry
        return None

    # --- reading --------------------------------------------------------------------------------------------

    async def get(self, key: str) -> Entry | None:
        check.check_key(key)
        return await self._store.call(lambda: self._get(key))

    async def _get(self, key: str) -> Entry | None:
        return self._entry(await self._stream.get(self.subject(key)))

    async def entries(self, *prefixes: str) -> list[Entry]:
        for prefix in prefixes:
            check.check_prefix(prefix)
        return await self._store.call(lambda: self.read(*prefixes))

    async def read(self, *prefixes: str) -> list[Entry]:
        """As `entries`, on the loop of the connection."""
        wanted = prefixes or ("",)
        found: dict[str, Entry] = {}
        for stored in await self._stream.matching(*sorted({self._below(prefix) for prefix in wanted})):
            entry = self._entry(stored)
            if entry is not None and entry.key.startswith(wanted):
                found[entry.key] = entry
        return [found[key] for key in sorted(found)]

    # --- writing --------------------------------------------------------------------------------------------

    async def create(
        self, key: str, value: bytes, *, ttl_s: float | None = None, guard: WriteGuard | None = None
    ) -> int:
        check.check_entry(key, value, ttl_s)

        expected = 0

        async def work() -> int:
            nonlocal expected
            try:
                return await self._write(key, value, ttl_s, expected=expected, guard=guard)
            except ConditionFailed:
                found = await self._stream.get(self.subject(key))
                if (present := self._entry(found)) is not None:
                    raise AlreadyExists(key, revision=present.revision) from None
                expected = 0 if found is None else found.seq
                raise

        return await self._guarded(work, guard)

    async def put(
        self, key: str, value: bytes, *, ttl_s: float | None = None, guard: WriteGuard | None = None
    ) -> int:
        check.check_entry(key, value, ttl_s)

        async def work() -> int:
            return await self._write(key, value, ttl_s, expected=None, guard=guard)

        return await self._guarded(work, guard)

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

        async def work() -> int:
            # An entry that ran out has no revision, though its message may be there.
            await self._check_revision(key, revision)
            try:
                return await self._write(key, value, ttl_s, expected=revision, guard=guard)
            except ConditionFailed:
                await self._check_revision(key, revision)
                raise

        return await self._guarded(work, guard)

    async def delete(self, key: str, *, revision: int | None = None, guard: WriteGuard | None = None) -> bool:
        check.check_key(key)
        if revision is not None:
            check.check_integer("revision", revision)

        async def work() -> bool:
            if revision is not None:
                expected = (await self._check_revision(key, revision)).revision
            elif (present := await self._get(key)) is None:
                await self._require_anew(guard)
                return False
            else:
                expected = present.revision
            await self._write_gone(key, expected, guard=guard)
            return True

        return await self._guarded(work, guard)

    async def _guarded(self, work: Callable[[], Awaitable[T]], guard: WriteGuard | None) -> T:
        if guard is not None:
            check.check_guard(guard)

        async def guarded() -> T:
            while True:
                await self.require(guard)
                try:
                    return await work()
                except ConditionFailed:
                    # By the guard, or because somebody came in between: the next round tells.
                    self.forget(*([] if guard is None else [guard]))
                except (AlreadyExists, RevisionMismatch):
                    await self._require_anew(guard)  # who lost the role is to hear that first
                    raise

        return await self._store.call(guarded)

    async def require(self, guard: WriteGuard | None) -> None:
        """Raise `LeaseLost` unless *guard* holds, as far as it can be known before a write."""
        if guard is None:
            return
        entry = self._known.get(guard.key)
        if entry is None or entry.revision != guard.revision:
            entry = await self._get(guard.key)
        elif entry.expires_s is not None and entry.expires_s <= self._store.clock.now_s():
            entry = None
        check_guard(guard, None if entry is None else entry.revision)
        assert entry is not None
        self._known[guard.key] = entry

    async def _require_anew(self, guard: WriteGuard | None) -> None:
        """For what writes nothing, so that no condition is looked at."""
        if guard is not None:
            self.forget(guard)
            await self.require(guard)

    def forget(self, *guards: WriteGuard) -> None:
        """What was known of them may be old."""
        for guard in guards:
            self._known.pop(guard.key, None)

    def condition(self, guard: WriteGuard, name: str) -> Write:
        """A message that is stored only while *guard* holds, for a batch; *name* is its place."""
        return Write(f"{self._store.prefix}.c.{name}", expected=guard.revision, of=self.subject(guard.key))

    async def _check_revision(self, key: str, revision: int) -> Entry:
        present = await self._get(key)
        current = None if present is None else present.revision
        if present is None or current != revision:
            raise RevisionMismatch(key, expected=revision, current=current)
        return present

    async def _write(
        self, key: str, value: bytes, ttl_s: float | None, *, expected: int | None, guard: WriteGuard | None
    ) -> int:
        headers = self._named(key)
        if ttl_s is not None:
            headers[EXPIRES] = repr(self._store.clock.now_s() + ttl_s)
            headers[TTL] = f"{math.ceil(ttl_s + GRACE_S)}s"
        return await self._send(key, Write(self.subject(key), value, headers, expected), guard)

    async def _write_gone(self, key: str, expected: int, *, guard: WriteGuard | None = None) -> int:
        kept_s = self._stream.link.config.limits.tombstone_retention_s
        headers = {**self._named(key), GONE: "deleted", TTL: f"{math.ceil(kept_s)}s"}
        return await self._send(key, Write(self.subject(key), b"", headers, expected), guard)

    async def _send(self, key: str, write: Write, guard: WriteGuard | None) -> int:
        """The number of the entry, whatever else is stored with it."""
        around = []
        if changes_holds(key):
            around.append(Write(f"{self._store.prefix}.w.holds"))
        if guard is not None and write.expected is None and not around:
            # The one condition that a message may have is free.
            write = Write(write.subject, write.data, write.headers, guard.revision, self.subject(guard.key))
        elif guard is not None:
            around.append(self.condition(guard, "key"))
        seq = await self._stream.write(*around, write)
        self._store.announce(KV, kv_topic(key), *([QUEUE] if changes_holds(key) else []))
        return seq

    def _named(self, key: str) -> dict[str, str]:
        """The whole name where the subject holds hashes."""
        return {NAME: spelled(key)} if "~" in self.subject(key) else {}

    # --- what changed ---------------------------------------------------------------------------------------

    async def changes(self, prefix: str = "", *, after: int, limit: int = 1_000) -> ChangePage:
        check.check_prefix(prefix)
        check.check_page(after, limit)
        return await self._store.call(lambda: self._changes(prefix, after, limit))

    async def _changes(self, prefix: str, after: int, limit: int) -> ChangePage:
        await self._expire(prefix)
        newest: int = (await self._stream.state())["last_seq"]  # before the page: nothing falls in between
        page = await self._page(prefix, after, min(limit, PAGE))
        found = tuple(
            Change(key=key, value=None if each.is_gone else each.data, revision=each.seq)
            for each in page.messages
            if (key := self._key(each)) is not None and key.startswith(prefix)
        )
        upto = max([newest, *(each.seq for each in page.messages)]) if page.complete else page.seq
        return ChangePage(found, upto, page.complete)

    async def _page(self, prefix: str, after: int, limit: int) -> StreamPage:
        return await self._stream.page(self._below(prefix), after=after, limit=limit)

    async def _expire(self, prefix: str) -> float | None:
        """Write down which entries under *prefix* ran out; return when the next one will."""
        if prefix not in self._expiring and len(self._expiring) >= PREFIXES_MAX:
            self._expiring.clear()  # they are read again by whoever still asks
        known, now_s = self._expiring.setdefault(prefix, _Expiring()), self._store.clock.now_s()
        complete = False
        while not complete:
            after = known.seq
            page = await self._page(prefix, after, PAGE)
            if known.seq != after:
                continue  # another look was faster, and knows of newer ones
            for each in page.messages:
                known.entries.pop(each.subject, None)
                entry = self._as_stored(each)
                if entry is not None and entry.expires_s is not None and entry.key.startswith(prefix):
                    known.entries[each.subject] = replace(entry, value=b"")
            known.seq, complete = max(known.seq, page.seq), page.complete
        due = [
            each for each in known.entries.values() if each.expires_s is not None and each.expires_s <= now_s
        ]
        for entry in sorted(due, key=lambda each: (each.expires_s or 0.0, each.key)):
            with suppress(ConditionFailed):  # renewed, or written down by somebody else: the next page tells
                await self._write_gone(entry.key, entry.revision)
            subject = self.subject(entry.key)
            if known.entries.get(subject) is entry:  # another look may have met its successor
                del known.entries[subject]
        return min((each.expires_s for each in known.entries.values() if each.expires_s), default=None)

    def watch(self, prefix: str = "", *, after: int | None = None) -> AsyncGenerator[Change, None]:
        check.check_watch(prefix, after)
        return self._watch(prefix, after)

    async def _watch(self, prefix: str, after: int | None) -> AsyncGenerator[Change, None]:
        if after is None:
            after = (await self._store.call(self._stream.state))["last_seq"]
        seen = after

        async def look() -> tuple[list[Change] | None, float | None]:
            async def work() -> tuple[list[Change] | None, float | None]:
                nonlocal seen
                next_s = await self._expire(prefix)
                while True:
                    page = await self._changes(prefix, seen, PAGE)
                    seen = page.revision
                    if page.changes or page.complete:
                        return list(page.changes) or None, next_s

            return await self._store.call(work)

        while True:
            found = await self._store.wait(look, topic=kv_topic(prefix), timeout_s=math.inf)
            for change in found or ():
                yield change
