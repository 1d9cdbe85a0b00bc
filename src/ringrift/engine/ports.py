"""The four ports behind which all durable state lives.

Every adapter keeps these promises; `ringrift.testing.engine_contract` checks them on each one:

- What a call acknowledged survives `kill -9` of any process.
- Sequence numbers, revisions and tokens of one engine only grow, also over deletion and restart.
- Times are the engine's own (`Runtime.now_s`): seconds since the epoch that no setting of a wall clock
  changes, the same for every caller. A lease or entry that ran out is gone for all of them at once.
- Errors are those of `ringrift.errors`; nothing foreign leaks out.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from ringrift.errors import Unavailable

__all__ = [
    "Appended",
    "Blobs",
    "Change",
    "ChangePage",
    "Claim",
    "Claimant",
    "Completion",
    "CursorKey",
    "EndedWork",
    "Engine",
    "EngineLifecycle",
    "Entry",
    "EventLog",
    "Json",
    "KeyValue",
    "LogBounds",
    "LogEvent",
    "LogRecord",
    "NewWork",
    "Position",
    "Upload",
    "WorkItem",
    "WorkQueue",
    "WorkState",
    "WriteGuard",
]


# The port for sealed files. See `ringrift.engine.ports`.


class Upload(Protocol):
    """A blob on its way in; invisible until committed, and resumable after a crash."""

    @property
    def offset(self) -> int:
        """How many bytes are there already."""
        ...

    async def write(self, chunk: bytes) -> None: ...

    async def commit(self) -> str:
        """Sync, verify the digest and make the blob visible; `Corrupt` if the bytes differ."""
        ...

    async def abort(self) -> None:
        """Throw away what was written."""
        ...


class Blobs(Protocol):
    """Immutable content named by its SHA-256 in hex."""

    async def put(self, path: Path) -> str:
        """Copy a file in and return its digest. Putting the same content again is free."""
        ...

    async def put_bytes(self, content: bytes) -> str: ...

    async def upload(self, digest: str) -> Upload:
        """Begin, or continue, to receive the blob *digest*."""
        ...

    async def open(self, digest: str) -> BinaryIO:
        """Open for reading; `KeyError` if absent."""
        ...

    async def path(self, digest: str) -> Path | None:
        """Return the local file, or None if absent or not a file in this adapter."""
        ...

    async def has(self, digest: str) -> bool: ...

    async def size(self, digest: str) -> int | None: ...

    async def verify(self, digest: str) -> None:
        """Read it all; `Corrupt` if the content does not match its name."""
        ...

    async def delete(self, digest: str) -> bool: ...

    async def digests(self) -> list[str]: ...


Json = Mapping[str, Any]


# --- events -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvent:
    """An event as it is stored: the id makes a repeated append harmless."""

    id: str
    type: str
    body: bytes


class Appended(NamedTuple):
    """Where an event stands; *duplicate* when its id was there before."""

    seq: int
    duplicate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """A stored event."""

    seq: int
    id: str
    type: str
    body: bytes
    appended_s: float


class CursorKey(NamedTuple):
    """Whose reading position: a subscription in one process instance."""

    consumer: str
    instance: str


@dataclass(frozen=True, slots=True)
class Position:
    """Everything up to *floor* is handled, and the few in *done_above* too."""

    floor: int
    done_above: tuple[int, ...] = ()


class LogBounds(NamedTuple):
    """First and last stored sequence number; first is last + 1 in an empty log."""

    first: int
    last: int


class EventLog(Protocol):
    """An append-only log of bounded age and length that several processes read at their own pace."""

    async def append(self, events: Sequence[LogEvent]) -> list[Appended]:
        """Store *events* in order, durably and together.

        Raises `Unavailable` when the log already holds twice the number that it should keep, because a live
        subscription has not seen the oldest.
        """
        ...

    async def read(self, *, after: int, limit: int, types: Sequence[str] | None = None) -> list[LogRecord]:
        """Return up to *limit* records with a sequence number above *after*, in order."""
        ...

    async def bounds(self) -> LogBounds: ...

    async def seq_at(self, *, since_s: float) -> int:
        """Return the largest sequence number appended before the engine's time *since_s*."""
        ...

    async def last_by_type(self) -> dict[str, float]:
        """Return when the newest of each type was appended. Looks at the whole log: for people who ask."""
        ...

    async def wait(self, *, after: int, timeout_s: float) -> int:
        """Return the last sequence number once it exceeds *after*, or at the time-out."""
        ...

    async def positions(self, instance: str) -> dict[str, Position]:
        """Return the stored position of every consumer of *instance*."""
        ...

    async def commit(self, positions: Mapping[CursorKey, Position]) -> None:
        """Store reading positions. A floor never moves back.

        A subscription counts as live for as long as events are kept after its position was stored, moved
        or not; for an hour when there are more events than the log should keep.
        """
        ...

    async def forget(self, keys: Sequence[CursorKey]) -> None:
        """Drop reading positions that nobody will use again."""
        ...

    async def trim(self) -> int:
        """Apply retention now; return how many events went. Also runs by itself.

        No event leaves, for its age or for their number, that a live subscription has yet to see.
        """
        ...


# --- conditions on writes -----------------------------------------------------------------------------


class WriteGuard(NamedTuple):
    """A condition on a write: the key-value entry *key* is alive and still has *revision*.

    It is looked at together with the write, which is refused with `LeaseLost` if it does not hold: whoever
    lost a role cannot write in its name, however late it finds out.
    """

    key: str
    revision: int


# --- work ---------------------------------------------------------------------------------------------


class WorkState(StrEnum):
    """Where an item is in its life."""

    BLOCKED = "blocked"  # waits for other items
    READY = "ready"  # may be claimed (from its not-before time on)
    CLAIMED = "claimed"  # held under a lease
    DONE = "done"
    DEAD = "dead"  # attempts spent, or something it needed died
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewWork:
    """An item to add."""

    kind: str
    payload: Json = field(default_factory=dict)
    id: str | None = None
    priority: int = 0  # higher goes first; equal priorities in order of arrival
    requires: frozenset[str] = frozenset()  # capabilities that the claimant must have, all of them
    node: str | None = None  # only this node may claim it
    group: str = ""  # what it belongs to (its config), and is held together with; empty: to nothing
    after: tuple[str, ...] = ()  # items that must be done first
    idempotency_key: str | None = None  # a second add under the key returns the first item
    attempts_max: int = 3
    delay_s: float = 0.0
    trace: Mapping[str, str] = field(default_factory=dict)  # tracing context, carried to the worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimant:
    """Who asks for work and what it can do."""

    worker: str
    node: str = ""
    capabilities: frozenset[str] = frozenset()
    kinds: frozenset[str] | None = None  # None: any kind
    except_kinds: frozenset[str] = frozenset()  # of those


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to work on one item until the lease runs out."""

    id: str
    kind: str
    payload: Json
    token: int
    attempt: int
    lease_until_s: float
    trace: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkItem:
    """All that is known of an item."""

    id: str
    kind: str
    payload: Json
    state: WorkState
    priority: int
    attempts: int
    attempts_max: int
    holder: str | None
    token: int
    lease_until_s: float | None
    result: Json | None
    error: str | None
    added_s: float
    changed_s: float
    group: str = ""
    requires: frozenset[str] = frozenset()
    node: str | None = None
    not_before_s: float | None = None  # of a READY item whose time has not come
    waits_for: tuple[str, ...] = ()  # of a BLOCKED item: those of `after` that are not done


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedWork:
    """An item that is done, dead or cancelled; *number* grows engine-wide from end to end, with gaps."""

    number: int
    item: WorkItem


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The outcome of one claim."""

    id: str
    token: int
    result: Json = field(default_factory=dict)


class WorkQueue(Protocol):
    """Hands each item to one claimant at a time, and again when its lease runs out.

    A claim that ended (lease over, item claimed by another, cancelled) is refused with `LeaseLost`;
    the item is never completed twice. An expired lease costs the attempt, a release does not.

    While the key-value entry `hold_key(group)` is alive, no item of the group is handed out, and while that
    of `ALL_WORK` is, none at all: it is looked at together with the claim, whoever claims. So it is with the
    lease `work_lease(group, kind)`, for the items of that kind: its holder does such work himself. Whoever
    waits in a claim is woken when a hold ends. Items that are claimed already are not touched.
    """

    async def add(self, items: Sequence[NewWork], *, guard: WriteGuard | None = None) -> list[str]:
        """Store *items* together; return their ids. Unknown ids in `after` are a `ConfigError`."""

    async def claim(
        self, claimant: Claimant, *, lease_s: float, limit: int = 1, wait_s: float = 0.0
    ) -> list[Claim]:
        """Hand out up to *limit* items; wait up to *wait_s* for the first, without polling."""

    async def renew(self, item_id: str, *, token: int, lease_s: float) -> float:
        """Extend a lease; return its new end."""

    async def complete(self, item_id: str, *, token: int, result: Json | None = None) -> None: ...

    async def complete_many(self, done: Sequence[Completion]) -> list[str]:
        """Complete each item whose token is current; return the ids that were refused."""

    async def fail(
        self, item_id: str, *, token: int, error: str, retry_after_s: float = 0.0, final: bool = False
    ) -> WorkState:
        """Count a failed attempt: READY again after the delay, or DEAD at the limit or when *final*."""

    async def release(self, item_id: str, *, token: int) -> None:
        """Give an item back untouched; the attempt is not counted."""

    async def cancel(self, item_id: str, *, reason: str, guard: WriteGuard | None = None) -> bool:
        """Cancel an item that has not ended; its claimant finds out at its next call."""

    async def replace(
        self, item_id: str, new: NewWork, *, reason: str, guard: WriteGuard | None = None
    ) -> str | None:
        """Cancel an item and add *new*, both or neither; return the new id, None if the item had ended."""

    async def get(self, item_id: str) -> WorkItem | None: ...

    async def counts(self) -> dict[str, dict[WorkState, int]]:
        """Return the number of items by kind and state."""

    async def dead(self, *, limit: int = 100) -> list[WorkItem]:
        """Return dead items, newest first."""

    async def ready(self, *, limit: int = 100) -> list[WorkItem]:
        """Return items that may be claimed now, in the order in which they would be."""

    async def delayed(self, *, limit: int = 1000) -> list[WorkItem]:
        """Return items whose time has not come yet, such as after a failed attempt; the next first."""

    async def blocked(self, *, limit: int = 1000) -> list[WorkItem]:
        """Return items that wait for others, in the order of arrival."""

    async def claimed(self, *, limit: int = 1000) -> list[WorkItem]:
        """Return items that are held under a lease, in the order in which their leases end."""

    async def unended(self, *, after: int, limit: int) -> list[tuple[int, WorkItem]]:
        """Return up to *limit* items that wait, are blocked or held, each with its number; in that order.

        Numbers grow as items are added and stay: whoever goes on from the last one misses no open item.
        """

    async def ended(self, *, after: int, limit: int, wait_s: float = 0.0) -> list[EndedWork]:
        """Return up to *limit* items that ended after number *after*, in the order of their ends.

        With none, wait up to *wait_s* for one.
        Whoever goes on from the last number it saw meets every end once. A revived item has yet to end.
        """

    async def revive(self, item_id: str, *, guard: WriteGuard | None = None) -> None:
        """Give a dead item a fresh set of attempts."""

    async def expire(self) -> int:
        """End the leases that ran out; return how many. Also runs by itself."""


# --- keys and values ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A value under a key."""

    key: str
    value: bytes
    revision: int
    expires_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A key that changed; *value* is None when it was deleted or expired."""

    key: str
    value: bytes | None
    revision: int


@dataclass(frozen=True, slots=True)
class ChangePage:
    """Changes in the order of their revisions; there is no other up to *revision*."""

    changes: tuple[Change, ...]
    revision: int
    complete: bool  # nothing had changed after it when it was read


class KeyValue(Protocol):
    """Small values with compare-and-swap. Revisions are engine-wide and never repeat."""

    async def get(self, key: str) -> Entry | None: ...

    async def entries(self, *prefixes: str) -> list[Entry]:
        """Return the live entries whose key starts with one of *prefixes*, as of one moment, by key.

        Without a prefix, all of them.
        """
        ...

    async def create(
        self, key: str, value: bytes, *, ttl_s: float | None = None, guard: WriteGuard | None = None
    ) -> int:
        """Store a new key and return its revision; `AlreadyExists` if it is there and alive."""
        ...

    async def put(
        self, key: str, value: bytes, *, ttl_s: float | None = None, guard: WriteGuard | None = None
    ) -> int:
        """Store whatever was there before."""
        ...

    async def update(
        self,
        key: str,
        value: bytes,
        *,
        revision: int,
        ttl_s: float | None = None,
        guard: WriteGuard | None = None,
    ) -> int:
        """Store if the key still has *revision*; `RevisionMismatch` otherwise."""
        ...

    async def delete(self, key: str, *, revision: int | None = None, guard: WriteGuard | None = None) -> bool:
        """Delete (if it still has *revision*, when given); return whether it was there."""
        ...

    def watch(self, prefix: str = "", *, after: int | None = None) -> AsyncGenerator[Change, None]:
        """Yield the changes after revision *after* (None: from now on), expiry included.

        A key that changes several times before it is read may be reported once, with its last change.
        """
        ...

    async def changes(self, prefix: str = "", *, after: int, limit: int = 1_000) -> ChangePage:
        """Return what changed after revision *after* without waiting; from 0 on, everything there is.

        Deletions are remembered for a day; whoever looks less often begins again at 0.
        """
        ...


@dataclass(frozen=True, slots=True)
class Engine:
    """One place where state lives."""

    events: EventLog
    queue: WorkQueue
    kv: KeyValue
    blobs: Blobs
    lifecycle: EngineLifecycle

    @property
    def failure(self) -> str:
        """Why this engine can no longer be used in this process; "" while it can. Only a new one helps."""
        return self.lifecycle.failure

    @property
    def exchanged(self) -> str:
        """What became of its files if others are in their place by now; "" if they are there."""
        return self.lifecycle.exchanged

    async def close(self) -> None:
        """Finish what was accepted, then let go. Safe to call twice."""
        await self.lifecycle.close()


class EngineLifecycle(Protocol):
    """Background upkeep (retention, lease expiry, vacuum), how it is, and the way out."""

    @property
    def failure(self) -> str: ...

    @property
    def exchanged(self) -> str: ...

    async def close(self) -> None: ...


# Reading positions only grow: what was handled once stays handled, in whatever order commits arrive.


_FULL_RETRY_S = 10.0


def merge_positions(stored: Position | None, given: Position) -> Position:
    """Return the position that has handled everything that either one has."""
    if stored is None:
        floor, done = given.floor, set(given.done_above)
    else:
        floor, done = max(stored.floor, given.floor), {*stored.done_above, *given.done_above}
    return Position(floor, tuple(sorted(seq for seq in done if seq > floor)))


def log_is_full(rows: int, unseen_by: CursorKey) -> Unavailable:
    """Return what the publisher gets: there is no room without dropping what somebody has yet to see."""
    return Unavailable(
        f"the event log is full: it holds {rows:,} events, and the subscription {unseen_by.consumer!r} of"
        f" {unseen_by.instance!r} has not seen the oldest",
        retry_after_s=_FULL_RETRY_S,
    )
