"""The queue between processes, for code that polls and acknowledges by hand or has no event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import structlog

from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.event_router import get_router
from ringrift.engine.arguments import check_database
from ringrift.engine.blocking import blocking, loop_is_running, run_blocking
from ringrift.engine.opening import engine_on_demand, open_engine_at
from ringrift.engine.ports import CursorKey, Engine, EventLog, KeyValue, LogEvent, LogRecord, Position
from ringrift.engine.records import KvRecords
from ringrift.errors import RingRiftError, StorageFull, StorageReadOnly, Unavailable
from ringrift.events.catalog.names import normalize_event_type
from ringrift.events.dead_letter_queue import ProcessDeadLetters
from ringrift.events.event import (
    Delivery,
    EventSource,
    RouterEvent,
    current_delivery,
    decode_body,
    from_log,
    to_log,
)
from ringrift.events.positions import Identity, LogConnection, process_log_connection
from ringrift.events.router_reports import Failure, FailureKind
from ringrift.events.subscriptions import Subscription, SubscriptionHandle, callback_name
from ringrift.events.unified_router import Surroundings, UnifiedEventRouter
from ringrift.files import make_private_folder
from ringrift.process import SingletonMixin
from ringrift.runtime import back_off_s, system_runtime
from ringrift.settings import Settings

# Who polls the queue between processes.


_PREFIX = "event-subscribers/"
# A stable subscriber may be a program that runs once a month; its list of types must outlive the pause.
_STABLE_TTL_S = 30 * 86_400.0
# Others have the process id in their name: after a restart nobody polls under the old one.
_DEAD_AFTER_S = 300.0


@dataclass(frozen=True, slots=True)
class CrossProcessEvent:
    """A stored event as pollers see it; `event_id` is its number in the log.

    `hostname` is where it was published; "" if it was stored by a version that did not write that down.
    """

    event_id: int
    event_type: str
    payload: dict[str, Any] = field(default_factory=dict)
    source: str = ""
    created_at: float = 0.0
    hostname: str = ""


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
        self._records = KvRecords(kv, _PREFIX, Subscriber)

    async def save(self, subscriber: Subscriber) -> None:
        stable = ":stable:" in subscriber.subscriber_id
        ttl_s = _STABLE_TTL_S if stable else _DEAD_AFTER_S
        await self._records.put(subscriber.subscriber_id, subscriber, ttl_s=ttl_s)

    async def get(self, subscriber_id: str) -> Subscriber | None:
        return await self._records.get(subscriber_id)

    async def touch(self, subscriber_id: str, now_s: float) -> Subscriber | None:
        """Note that a subscriber polls."""
        found = await self.get(subscriber_id)
        if found is not None:
            await self.save(replace(found, last_poll_s=now_s))
        return found

    async def all(self) -> list[Subscriber]:
        found, now_s = await self._records.all(), system_runtime().now_s()
        # Stable ones stay stored for long, so being stored does not mean to be active.
        return [item for item in found if now_s - item.last_poll_s <= _DEAD_AFTER_S]


# The queue between processes, for code that polls and acknowledges by hand.
#
# It stands on the log that the router uses: an event published here reaches the subscriptions of every
# router, and one published at a router can be polled here.


log = structlog.get_logger()

T = TypeVar("T")

_INSTANCE = "queue"  # acknowledgements are kept by subscriber id, whoever polls
_SESSION = "queue"
_SCAN = 1000
# The position is stored whole at each acknowledgement, so the list behind a gap must have an end.
_DONE_MAX = 10_000  # events acknowledged behind one that is not
# Well above the waits of `publish`, so that its own error comes before the time-out of the bridge.
_CALL_S = 60.0
_RETRY_S, _RETRY_S_MAX = 0.1, 1.6


class CrossProcessEventQueue(SingletonMixin):
    """Publish, poll and acknowledge, from plain threads."""

    def __init__(self, db_path: Path | str | None = None, *, settings: Settings | None = None) -> None:
        self._path = check_database("db_path", db_path)
        self._settings = settings or get_settings()
        self._engine: Engine | None = None
        self._polled: dict[str, frozenset[int]] = {}  # what each subscriber got from its last poll

    @blocking(timeout_s=_CALL_S)
    async def publish(
        self,
        event_type: Any,
        payload: Mapping[str, Any] | None = None,
        source: str = "",
        max_retries: int = 5,
    ) -> int:
        """Store an event; return its number, or -1 where nothing can be written.

        While the log cannot be reached it tries again, *max_retries* times; the event is stored once.
        """
        # Made once, outside of the retries: by its id the log recognizes an append that it already has.
        event = RouterEvent(normalize_event_type(event_type), dict(payload or {}), source=source)
        entry = to_log(event, session=_SESSION, hostname=system_runtime().hostname)
        try:
            return await self._append_patiently(entry, max_retries)
        # The documents' answer where a program has no right to write; a full disk is an error and is raised.
        except StorageReadOnly:
            return -1

    @blocking(timeout_s=_CALL_S)
    async def subscribe(
        self,
        process_name: str,
        event_types: Sequence[Any] | None = None,
        stable: bool = False,  # noqa: FBT001, FBT002 - in the published order
    ) -> str:
        """Return the id to poll with. A stable one goes on after a restart; one process should have it."""
        runtime = system_runtime()
        place = "stable" if stable else str(runtime.pid)
        subscriber = Subscriber(
            subscriber_id=f"{runtime.hostname}:{place}:{process_name}",
            process_name=process_name,
            hostname=runtime.hostname,
            event_types=None if event_types is None else [normalize_event_type(t) for t in event_types],
            last_poll_s=runtime.now_s(),
        )
        await Subscribers((await self._open()).kv).save(subscriber)
        return subscriber.subscriber_id

    @blocking(timeout_s=_CALL_S)
    async def poll(
        self,
        subscriber_id: str,
        event_types: Sequence[Any] | None = None,
        limit: int = 100,
        since_event_id: int | None = None,
    ) -> list[CrossProcessEvent]:
        """Return events that this subscriber has not acknowledged, in order."""
        # For the length of the log, an event is given up only if this subscriber was handed it before.
        before = self._polled.get(subscriber_id, frozenset())
        found = await self._poll(subscriber_id, event_types, limit, since_event_id, polled=before)
        self._polled[subscriber_id] = frozenset(event.event_id for event in found)
        return found

    def ack(self, subscriber_id: str, event_id: int) -> bool:
        """Acknowledge one event; it is not polled again."""
        return self.ack_batch(subscriber_id, [event_id]) == 1

    @blocking(timeout_s=_CALL_S)
    async def ack_batch(self, subscriber_id: str, event_ids: Sequence[int]) -> int:
        """Acknowledge several events; return how many were given."""
        if event_ids:
            await self._ack(subscriber_id, event_ids)
        return len(event_ids)

    @blocking(timeout_s=_CALL_S)
    async def get_pending_count(self, subscriber_id: str) -> int:
        return len(await self._poll(subscriber_id, None, 100_000, None))

    @blocking(timeout_s=_CALL_S)
    async def get_last_acked_event_id(self, subscriber_id: str) -> int:
        """Return the highest number that this subscriber has dealt with."""
        position = await self._position((await self._open()), subscriber_id)
        return max((position.floor, *position.done_above))

    @blocking(timeout_s=_CALL_S)
    async def cleanup(self) -> tuple[int, int, int]:
        """Apply retention now (it also runs by itself); return how many events, subscribers, acks went."""
        engine = await self._open()
        return await engine.events.trim(), 0, 0

    def close(self) -> None:
        """Let go of a database of our own; the engine of the process is left alone."""
        if self._engine is not None and self._path is not None:
            run_blocking(self._engine.close(), timeout_s=_CALL_S)
        self._engine = None

    def router(self) -> UnifiedEventRouter:
        """Make a router on this log, for those who want handlers called instead of polling."""

        async def open_log() -> EventLog:
            return (await self._open()).events

        async def claim() -> Identity:
            settings = self._settings
            if self._path is not None:
                # With the log, not with this process's own: whoever reads it must find who else does.
                readers = self._path.with_name(f"{self._path.name}.readers")
                await asyncio.to_thread(make_private_folder, readers)
                settings = replace(settings, coordinator_db=readers / self._path.name)
            return await process_log_connection(settings).claim()

        log_connection = LogConnection(open_log=open_log, claim=claim)
        around = Surroundings(
            settings=self._settings, log_connection=log_connection, dead_letters=ProcessDeadLetters()
        )
        return UnifiedEventRouter(surroundings=around)

    # --- on the engine --------------------------------------------------------------------------------

    async def _open(self) -> Engine:
        if self._path is None:
            return await engine_on_demand()
        # A file of its own gets an engine of its own: the process's engine is on another database.
        if self._engine is None:
            self._engine = await open_engine_at(self._path, self._settings, system_runtime())
        return self._engine

    async def _append_patiently(self, entry: LogEvent, retries: int) -> int:
        for attempt in range(retries):
            try:
                return await self._append(entry)
            # Both are kinds of `Unavailable`, but neither passes within the seconds that are waited here.
            except (StorageFull, StorageReadOnly):
                raise
            except Unavailable:
                wait_s = back_off_s(attempt + 1, first_s=_RETRY_S, longest_s=_RETRY_S_MAX)
                await system_runtime().sleep(wait_s)
        return await self._append(entry)

    async def _append(self, entry: LogEvent) -> int:
        [appended] = await (await self._open()).events.append([entry])
        return appended.seq

    async def _position(self, engine: Engine, subscriber_id: str) -> Position:
        return (await engine.events.positions(_INSTANCE)).get(subscriber_id, Position(0))

    async def _poll(
        self,
        subscriber_id: str,
        event_types: Sequence[Any] | None,
        limit: int,
        since: int | None,
        *,
        polled: Collection[int] = (),
    ) -> list[CrossProcessEvent]:
        engine = await self._open()
        subscribers = Subscribers(engine.kv)
        subscriber = await subscribers.touch(subscriber_id, system_runtime().now_s())
        types = None if subscriber is None else subscriber.event_types
        if event_types is not None:
            # What a call asks for wins over the registration, for this call only.
            types = [normalize_event_type(event_type) for event_type in event_types]
        stored = (await engine.events.positions(_INSTANCE)).get(subscriber_id)
        position = stored or Position(0)
        # One that acknowledges lives, and what it has yet to see stays; one that only looks holds nobody up.
        if stored is not None and since is None:
            position = await self._advance(engine, subscriber_id, subscriber, stored, polled=polled)
        found: list[LogRecord] = []
        after = max(position.floor, since or 0)
        done = frozenset(position.done_above)
        while len(found) < limit and (
            records := await engine.events.read(after=after, limit=_SCAN, types=types)
        ):
            found += [record for record in records if record.seq not in done]
            after = records[-1].seq
        return [_as_polled(record) for record in found[:limit]]

    async def _ack(self, subscriber_id: str, event_ids: Sequence[int]) -> None:
        engine = await self._open()
        # Its types decide which gaps matter: what it is not registered for needs no acknowledgement.
        subscriber = await Subscribers(engine.kv).get(subscriber_id)
        position = await self._position(engine, subscriber_id)
        acknowledged = Position(position.floor, (*position.done_above, *event_ids))
        await self._advance(engine, subscriber_id, subscriber, acknowledged)

    async def _advance(
        self,
        engine: Engine,
        subscriber_id: str,
        subscriber: Subscriber | None,
        position: Position,
        *,
        polled: Collection[int] = (),
    ) -> Position:
        """Store how far everything that concerns a subscriber is acknowledged.

        What it is registered for concerns it, whatever it asked for in one call. An event is given up when
        very many behind it were acknowledged, or when it was *polled* before and the log is longer than it
        should be because of it.
        """
        types = None if subscriber is None else subscriber.event_types
        floor, done = position.floor, set(position.done_above)
        last = (await engine.events.bounds()).last  # first: what is appended meanwhile is not passed over

        def is_settled(record: LogRecord) -> bool:
            if record.seq in done:
                return True
            is_too_long = last - record.seq >= self._settings.event_retention_rows
            if (is_too_long and record.seq in polled) or sum(seq > record.seq for seq in done) > _DONE_MAX:
                _report_given_up(subscriber_id, record)
                return True
            return False

        # Damaged records are left out, so a short answer does not mean that there are no more.
        while ahead := await engine.events.read(after=floor, limit=_SCAN, types=types):
            waits = next((record for record in ahead if not is_settled(record)), None)
            if waits is not None:
                floor = waits.seq - 1
                break
            floor = ahead[-1].seq
        else:
            floor = max(floor, last)
        moved = Position(floor, tuple(sorted(seq for seq in done if seq > floor)))
        await engine.events.commit({CursorKey(subscriber_id, _INSTANCE): moved})
        return moved

    @blocking(timeout_s=_CALL_S)
    async def get_stats(self) -> dict[str, Any]:
        engine = await self._open()
        first, last = await engine.events.bounds()
        by_type: dict[str, int] = {}
        # Counted from the log itself, in pages: there is no count by type, and retention bounds the length.
        after = first - 1
        while records := await engine.events.read(after=after, limit=_SCAN):
            for record in records:
                by_type[record.type] = by_type.get(record.type, 0) + 1
            after = records[-1].seq
        now_s = system_runtime().now_s()
        return {
            "total_events": sum(by_type.values()),
            "last_event_id": last,
            "events_by_type": by_type,
            "active_subscribers": [item.describe(now_s) for item in await Subscribers(engine.kv).all()],
            "retention_hours": self._settings.event_retention_hours,
        }


def _report_given_up(subscriber_id: str, record: LogRecord) -> None:
    log.error("events.given_up", subscription=subscriber_id, seq=record.seq, event_type=record.type)
    nobody = Subscription(subscriber_id, (record.type,), str)  # its letter is for people: no router has it
    try:
        delivery = Delivery(from_log(record, decode_body(record)), record.seq)
        # Given up is not dropped: a person finds it among the dead letters.
        failure = Failure(delivery, nobody, FailureKind.UNACKNOWLEDGED, "polled and never acknowledged")
        ProcessDeadLetters().capture_failure(failure, instance=_INSTANCE)
    except RingRiftError as error:
        log.critical("events.dead_letter_lost", event_id=record.id, error=str(error))


def _as_polled(record: LogRecord) -> CrossProcessEvent:
    body = decode_body(record)
    return CrossProcessEvent(
        event_id=record.seq,
        event_type=record.type,
        payload=body.get("payload") or {},
        source=body.get("source", ""),
        created_at=record.appended_s,
        hostname=body.get("hostname", ""),
    )


# --- of this process --------------------------------------------------------------------------------------


def get_event_queue(db_path: Path | str | None = None) -> CrossProcessEventQueue:
    """Return the queue of this process; another *db_path* than it was made with is a `ConfigError`."""
    if db_path is None:
        return CrossProcessEventQueue.get_instance()
    return CrossProcessEventQueue.get_instance(Path(db_path))


def reset_event_queue() -> None:
    queue = CrossProcessEventQueue.reset_instance()
    if queue is not None:
        queue.close()


def publish_event(event_type: Any, payload: Mapping[str, Any] | None = None, source: str = "") -> int:
    return get_event_queue().publish(event_type, payload, source)


def bridge_to_cross_process(
    event_type: Any, payload: Mapping[str, Any] | None = None, source: str = ""
) -> int:
    return publish_event(event_type, payload, source)


def subscribe_process(
    process_name: str,
    event_types: Sequence[Any] | None = None,
    stable: bool = False,  # noqa: FBT001, FBT002 - in the published order
) -> str:
    return get_event_queue().subscribe(process_name, event_types, stable)


def poll_events(
    subscriber_id: str,
    event_types: Sequence[Any] | None = None,
    limit: int = 100,
    since_event_id: int | None = None,
) -> list[CrossProcessEvent]:
    return get_event_queue().poll(subscriber_id, event_types, limit, since_event_id)


def ack_event(subscriber_id: str, event_id: int) -> bool:
    return get_event_queue().ack(subscriber_id, event_id)


def ack_events(subscriber_id: str, event_ids: Sequence[int]) -> int:
    return get_event_queue().ack_batch(subscriber_id, event_ids)


# Handlers for events of other processes, in programs that have no event loop of their own.


PollHandler = Callable[[CrossProcessEvent], Any]

_START_S = 30.0


class CrossProcessEventPoller:
    """Subscribes its handlers at the router and, if no loop runs, keeps one running for them.

    Order, isolation, time limits, dead letters and the position after a restart are the router's: that
    of this process, or with *db_path* one of its own on the log in that file.
    """

    def __init__(
        self,
        process_name: str,
        event_types: Sequence[Any] | None = None,
        poll_interval: float = 1.0,
        db_path: Path | str | None = None,
        stable: bool = True,  # noqa: FBT001, FBT002 - in the published order
        *,
        router: UnifiedEventRouter | None = None,
    ) -> None:
        self.process_name, self.poll_interval, self.stable = process_name, poll_interval, stable
        self._event_types = None if event_types is None else tuple(event_types)
        self._own_log = None if db_path is None else CrossProcessEventQueue(db_path)
        self._own_router = router if self._own_log is None else self._own_log.router()
        self._handlers: list[tuple[Any, PollHandler]] = []
        self._handles: list[SubscriptionHandle] = []
        self._running = False  # not read off the handles: it may be started before it has a handler
        self._borrowing = False
        self._lock = threading.Lock()

    @property
    def router(self) -> UnifiedEventRouter:
        return self._own_router or get_router()

    @property
    def is_running(self) -> bool:
        return self._running

    def register_handler(self, event_type: Any, handler: PollHandler) -> None:
        """Call *handler* with each event of a type (None: of every type this poller is for)."""
        self._handlers.append((event_type, handler))
        if self._running:
            self._subscribe(event_type, handler)

    def start(self) -> None:
        """Begin to deliver; returns when the log is being read."""
        with self._lock:
            if self._running:
                return
            self._running = True
            for event_type, handler in self._handlers:
                self._subscribe(event_type, handler)
            # Waiting for the loop of the bridge would hold up a loop that runs here.
            if self.router.bound_loop is None and not loop_is_running():
                run_blocking(self.router.occupy(), timeout_s=_START_S)
                self._borrowing = True

    def stop(self, timeout: float = 5.0) -> None:
        """Stop delivering; what was handled is recorded."""
        with self._lock:
            self._running = False
            # Subscriptions first: while the router finishes its deliveries, no new one may begin.
            while self._handles:
                self._handles.pop()()
            if self._borrowing:
                self._borrowing = False
                run_blocking(_within(self.router.vacate(), timeout), timeout_s=timeout + 1.0)
            if self._own_log is not None:
                self.router.let_go()
                self._own_log.close()

    def _subscribe(self, event_type: Any, handler: PollHandler) -> None:
        types = [event_type] if event_type is not None else self._event_types or [None]
        for each in types:
            # The position after a restart is found by this name, so nothing in it differs between starts.
            name = f"poller:{self.process_name}/{each or 'all'}/{callback_name(handler)}"
            self._handles.append(
                self.router.subscribe(each, _adapter(handler), name, bus=EventSource.CROSS_PROCESS)
            )


async def _within(work: Coroutine[Any, Any, None], timeout_s: float) -> None:
    async with asyncio.timeout(timeout_s):
        await work


def _adapter(handler: PollHandler) -> Callable[[RouterEvent], Any]:
    def handle(event: RouterEvent) -> Any:
        delivery = current_delivery.get()
        seq = 0 if delivery is None else delivery.log_seq
        fields = (event.event_type, event.payload, event.source, event.timestamp, _hostname_of(event))
        return handler(CrossProcessEvent(seq, *fields))

    return handle


def _hostname_of(event: RouterEvent) -> str:
    """Where it was published; "" if that is not known any more."""
    if isinstance(event.cross_process_event, LogRecord):
        return str(decode_body(event.cross_process_event).get("hostname", ""))
    return "" if event.origin is EventSource.CROSS_PROCESS else system_runtime().hostname
