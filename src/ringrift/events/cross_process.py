"""Events between processes, through the log.

An event that crosses is in the log, durably, before any handler sees it. The process that publishes it
dispatches it to its own subscriptions at once; every other process reads it. Each subscription has a
cursor of its own under the identity of its process, so that after a crash it goes on exactly where it
was, also with what the process itself had published but not handled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import Context
from typing import Any

import structlog

from ringrift.engine.ports import Appended, EventLog, LogEvent, LogRecord
from ringrift.errors import Corrupt, RingRiftError, Unavailable
from ringrift.events.catalog.audit import LastSeen, SeenRecorder
from ringrift.events.delivery import Dispatcher
from ringrift.events.event import Delivery, RouterEvent, decode_body, from_log, session_of, to_log
from ringrift.events.positions import Cursor, CursorStore, Identity, LogConnection, Reader
from ringrift.events.subscriptions import MailboxPlace, Subscription, SubscriptionTable
from ringrift.runtime import Runtime, result_before
from ringrift.settings import Settings
from ringrift.task_owner import TaskOwner

log = structlog.get_logger()

# With the limit on mailboxes below, no more than about two reads wait in one of them.
_BATCH = 256
_TYPES_MAX = 64  # who wants more types than that wants nearly everything
_MAILBOX_FULL = 256  # a subscription this far behind is fed again when half is done
# The log ends a wait when it grows; in a silent one this is how often the rest of a round is done.
_WAIT_S = 30.0
_STOP_S = 5.0
# Own events need not be read, and come many at a time: the cursors are moved past several at once.
_OWN_S = 0.05
_OWNER = "events between processes"
_Stored = Appended | RingRiftError


class CrossProcess:
    """Appends to the log, reads it, and keeps the cursors."""

    def __init__(
        self,
        log_connection: LogConnection,
        *,
        table: SubscriptionTable,
        dispatcher: Dispatcher,
        is_ending: Callable[[], bool],
        arrive: Callable[[RouterEvent], None],
        runtime: Runtime,
        settings: Settings,
        retry_s: float,
    ) -> None:
        self._log_connection, self._table, self._dispatcher = log_connection, table, dispatcher
        self._arrive, self._runtime, self._retry_s = arrive, runtime, retry_s
        self._backlog_s, self._strict = settings.event_backlog, settings.event_validation_strict
        self._session, self._is_ending = runtime.new_id(), is_ending
        self._log_closes: Callable[[], Awaitable[None]] | None = None
        self._seen_recorder: SeenRecorder | None = None
        self._log: EventLog | None = None
        self._identity: Identity | None = None
        self._cursor_store: CursorStore | None = None
        self._opening = asyncio.Lock()
        self._wake = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        self._tasks = TaskOwner(_OWNER)
        self._winding_down = False  # handlers that still run may publish, but no more is read for them
        self.rests = False  # nothing is read until somebody starts it, whoever uses it
        self._adopting: set[asyncio.Task[None]] = set()
        # Own events between append and dispatch, and own events that lost their loop before the end.
        self._appending: dict[str, Sequence[Subscription]] = {}
        self._stray_ids: set[str] = set()
        self._stray_seqs: set[int] = set()
        self._starved: set[Subscription] = set()
        self._last_fed = 0  # of the log: how far it was read
        self._last_own = 0  # from there up to here, if above it, this very process published everything
        self._last_known = 0  # how long it was when last waited for
        self._arrived = self._failures = 0
        self._failed_s: float | None = None
        self._degraded = False

    def keep_last_seen(self, last_seen: Callable[[], Mapping[str, LastSeen]]) -> None:
        """Write down now and then what *last_seen* says."""
        if self._log_connection.open_kv is not None:
            self._seen_recorder = SeenRecorder(last_seen, self._log_connection.open_kv, self._runtime)

    def when_log_closes(self, log_closes: Callable[[], Awaitable[None]]) -> None:
        """Await *log_closes* before somebody else closes the log; what it calls is `leave`."""
        self._log_closes = log_closes

    @property
    def instance(self) -> str:
        """The name of this process, "" before it was asked for."""
        return "" if self._identity is None else self._identity.instance

    async def identify(self) -> str:
        """Return the name under which this process keeps positions and dead letters."""
        async with self._opening:
            return (await self._claim()).instance

    @property
    def is_reading(self) -> bool:
        return self._reader is not None and not self._reader.done()

    @property
    def _has_crashed(self) -> bool:
        reader = self._reader
        return reader is not None and reader.done() and not reader.cancelled() and bool(reader.exception())

    # --- publishing -----------------------------------------------------------------------------------

    async def append(self, delivery: Delivery, targets: Sequence[Subscription]) -> bool:
        """Store an event durably; False if its id was stored before. Raises if it cannot be stored."""
        event = delivery.event
        hostname = self._runtime.hostname
        entry = to_log(event, session=self._session, hostname=hostname, strict=self._strict)
        if self._seen_recorder is not None and self._seen_recorder.is_due:
            await self._seen_recorder.keep()  # first: whoever is cancelled in it has not published yet
        event_log = await self._open()
        # A process that only publishes needs no cursors, and takes no identity for it. While nobody reads,
        # what is handled here is noted, so that it is not handled again after a restart.
        if self._table.crossing():
            await self._ready(event_log)
            self.start_soon()
        # From here on the reader may meet the record first; this tells it that the publisher is coming.
        self._appending[event.event_id] = targets
        # A task of its own, shielded: a cancelled publisher must not leave open whether it is stored.
        storing = self._tasks.create_task(_store(event_log, entry))
        try:
            appended = await asyncio.shield(storing)
        except asyncio.CancelledError:
            if not _is_only_stopped(storing):
                self._adopt(delivery, targets, storing)
                raise
            appended = Unavailable(f"the router stopped while it stored {event.event_type}")
        return self._stored(delivery, targets, appended)

    def _stored(self, delivery: Delivery, targets: Sequence[Subscription], appended: _Stored) -> bool:
        del self._appending[delivery.event.event_id]
        if isinstance(appended, Exception):
            raise appended
        if appended.duplicate:
            return False
        delivery.log_seq = appended.seq
        # No foreign event lies in between, so up to here nothing has to be read (`_feed`).
        if appended.seq == max(self._last_own, self._last_fed) + 1:
            self._last_own = appended.seq
        if self._cursor_store is not None:
            # Before the dispatch: a position that is recorded meanwhile has to stay below this event.
            self._cursor_store.expect(targets, appended.seq)
        return True

    def _adopt(
        self,
        delivery: Delivery,
        targets: Sequence[Subscription],
        storing: asyncio.Task[_Stored],
    ) -> None:
        """The publisher was cancelled while its event was on its way: deliver it without him.

        Not if we have stopped or the loop is ending: then it comes out of the log at the next start.
        """
        if self._is_ending():
            return
        cursor_store = self._cursor_store

        async def finish() -> None:
            stored = self._stored(delivery, targets, await storing)
            # Another cursor store: it was stopped and started since, and the new reader brings the event.
            if stored and cursor_store is self._cursor_store and not self._winding_down:
                self._arrive(delivery.event)
                self._post(delivery, targets)

        task = self._tasks.create_task(finish(), name="append of a cancelled publisher")
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)

    def handled(self, delivery: Delivery, subscription: Subscription) -> None:
        """One subscription is through with one event."""
        if self._cursor_store is not None:
            self._cursor_store.handled(delivery, subscription)
        if subscription in self._starved and len(subscription.mailbox) <= _MAILBOX_FULL // 2:
            self._starved.discard(subscription)
            self._wake.set()

    # --- life -----------------------------------------------------------------------------------------

    def subscribed(self) -> None:
        """Somebody new listens: read for him too."""
        self._wake.set()
        self.start_soon()

    def unsubscribed(self, subscription: Subscription) -> None:
        self._starved.discard(subscription)
        if self._cursor_store is not None:
            self._cursor_store.leave(subscription)

    def start_soon(self) -> None:
        """Start reading, on the running loop, if nothing reads yet."""
        if not (self.is_reading or self.rests or self._winding_down or self._is_ending()):
            # An empty context: the reader belongs to no trace and to no event's handler.
            self._reader = self._tasks.create_task(self._read_forever(), name="reader", context=Context())

    async def start(self) -> None:
        """Open the log and start reading. Raises if the log cannot be opened."""
        await self._ready(await self._open())
        self.rests = False
        if self._cursor_store is not None:
            self._cursor_store.wake()
        self.start_soon()

    async def stop_reading(self) -> None:
        """Read nothing more until `pause` or `close` is through."""
        # First those whose publisher was cancelled: they still post deliveries.
        await self._finish_adopting()
        self._winding_down = True
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait({self._reader}, timeout=_STOP_S)
            self._reader = None

    async def _finish_adopting(self) -> None:
        if self._adopting:
            await asyncio.wait(tuple(self._adopting), timeout=_STOP_S)

    async def pause(self) -> None:
        """Stop reading and recording, with everything recorded, until the next use on any loop."""
        await self.stop_reading()
        if self._cursor_store is not None:
            await self._cursor_store.pause()
        self._winding_down = False

    async def leave(self) -> None:
        """Read nothing more, and `close`; the next use begins again."""
        try:
            await self.stop_reading()
            await self.close()
        finally:
            self._winding_down = False

    async def close(self) -> None:
        """Record every position and let go of the identity. The next use takes it again."""
        await self._tasks.wait(_STOP_S)  # whoever publishes now has his event stored
        if self._seen_recorder is not None and self._log is not None:
            await self._seen_recorder.keep()
        cursor_store, self._cursor_store, self._log = self._cursor_store, None, None
        if cursor_store is not None:
            await cursor_store.pause()
        tasks, self._tasks = self._tasks, TaskOwner(_OWNER)
        await tasks.stop(_STOP_S)
        # Last: until the positions are stored, no other process may take the identity.
        self._release()
        self._winding_down = False

    def let_go(self) -> None:
        """Drop the identity at once; what was handled but not recorded stands in the notes."""
        cursor_store, self._cursor_store, self._log = self._cursor_store, None, None
        for task in (self._reader, None if cursor_store is None else cursor_store.recorder):
            if task is not None and not task.done() and not task.get_loop().is_closed():
                task.get_loop().call_soon_threadsafe(task.cancel)
        self._reader = None
        self._release()

    def _release(self) -> None:
        identity, self._identity = self._identity, None
        if identity is not None and identity.notes is not None:
            identity.notes.close()
        if identity is not None and identity.release is not None:
            identity.release()

    def rebind(self) -> None:
        """A new loop took the router over; what the old one left unfinished is read from the log."""
        self._opening = asyncio.Lock()
        self._wake = asyncio.Event()
        self._reader, self._tasks = None, TaskOwner(_OWNER)  # the old loop has ended the others
        self._winding_down = False
        self._adopting.clear()
        self._starved.clear()
        self._stray_ids.update(self._appending)
        self._appending.clear()
        if self._cursor_store is not None:
            self._stray_seqs |= self._cursor_store.rebind()
        self._last_own = 0  # what this process published and could not dispatch is read

    def stats(self) -> dict[str, Any]:
        cursor_store = self._cursor_store
        return {
            "cross_process_failures": self._failures,
            "cross_process_degraded": self._degraded or self._has_crashed,
            "last_cp_failure_time": self._failed_s,
            "retention_gaps": 0 if cursor_store is None else cursor_store.gaps,
            "events_missed": 0 if cursor_store is None else cursor_store.missed,
        }

    # --- reading --------------------------------------------------------------------------------------

    async def _open(self) -> EventLog:
        if self._log is None:
            async with self._opening:
                if self._log is None:
                    self._log = await self._log_connection.open_log()
                    if self._log_connection.before_close is not None and self._log_closes is not None:
                        self._log_connection.before_close(self._log_closes)
        return self._log

    async def _claim(self) -> Identity:
        self._identity = self._identity or await self._log_connection.claim()
        return self._identity

    async def _ready(self, event_log: EventLog) -> CursorStore:
        """Return the open cursor store with a cursor for every subscription."""
        cursor_store = self._cursor_store
        if cursor_store is not None and cursor_store.covers(self._table.crossing()):
            return cursor_store
        async with self._opening:
            if self._cursor_store is None:
                self._cursor_store = CursorStore(
                    event_log,
                    await self._claim(),
                    runtime=self._runtime,
                    backlog_s=self._backlog_s,
                    last_at_start=(await event_log.bounds()).last,
                    is_ending=self._is_ending,
                    rests=self.rests,
                )
                self._last_fed = self._last_own = self._last_known = 0
            again = await self._cursor_store.join(self._table.crossing())
            if again:
                self._last_own = 0  # they are read, too
            self._stray_seqs |= again
            return self._cursor_store

    async def _read_forever(self) -> None:
        while True:
            try:
                # Before looking and not after it: what wakes us while we look must not be forgotten.
                self._wake.clear()
                cursor_store = await self._ready(await self._open())
                hungry = self._hungry(cursor_store)
                if self._seen_recorder is not None and self._seen_recorder.is_due:
                    await self._seen_recorder.keep()
                if not await self._feed(cursor_store, hungry):
                    await self._wait(cursor_store, is_reading=bool(hungry))
                self._degraded = False
            except Corrupt as error:
                self._note_failure(error)
                # The same read would fail again; the next publish or subscription starts a reader anew.
                log.critical("events.log_unreadable", error=str(error))
                return
            except RingRiftError as error:
                self._note_failure(error)
                await self._runtime.sleep(self._retry_s)

    def _note_failure(self, error: RingRiftError) -> None:
        if not self._degraded:
            log.error("events.log_unavailable", error=str(error))
        self._failures += 1
        self._failed_s = self._runtime.now_s()
        self._degraded = True

    def _hungry(self, cursor_store: CursorStore) -> list[Reader]:
        """The subscriptions that can take more."""
        readers = cursor_store.readers(self._table.crossing())
        full = [item for item, _ in readers if len(item.mailbox) >= _MAILBOX_FULL]
        if not full:
            return readers
        self._starved.update(full)
        return [reader for reader in readers if reader[0] not in self._starved]

    async def _feed(self, cursor_store: CursorStore, hungry: list[Reader]) -> bool:
        """Look at the next records; True if there may be more."""
        cursor_store.keep_recording()
        if not hungry:
            return False
        after = min(cursor.fed for _, cursor in hungry)
        # All since the last read was published here: no read is needed, the cursors only move.
        if after == self._last_fed < self._last_own and self._last_known <= self._last_own:
            self._fed(hungry, self._last_own)  # dispatched when it was published
            return False
        first, last = await cursor_store.log.bounds()
        if after < first - 1:
            cursor_store.skip_gap(first, hungry)
            after = min(cursor.fed for _, cursor in hungry)
        if after >= last:
            self._last_fed = last
            return False
        records = await cursor_store.log.read(after=after, limit=_BATCH, types=_types(hungry))
        full = len(records) == _BATCH
        # A full batch says nothing of what follows; a short one covers all up to *last*, wanted or not.
        upto = records[-1].seq if full else max([last, *(record.seq for record in records[-1:])])
        cursors = dict(hungry) if records else {}
        for record in records:
            self._offer(record, cursors, cursor_store.last_at_start)
        self._fed(hungry, upto)
        return full

    def _fed(self, hungry: list[Reader], upto: int) -> None:
        for _, cursor in hungry:
            cursor.feed(upto)
        self._last_fed = max(self._last_fed, upto)

    def _offer(self, record: LogRecord, cursors: Mapping[Subscription, Cursor], last_at_start: int) -> None:
        """Deliver one record to those who want it and have not handled it."""
        takers = [
            (item, cursor)
            for item in self._table.targets(record.type)
            if (cursor := cursors.get(item)) is not None and cursor.is_new(record.seq) and item.active
        ]
        if not takers:
            return
        try:
            body = decode_body(record)
        except Corrupt as error:
            log.error("events.record_skipped", seq=record.seq, error=str(error))
            return
        stray = record.id in self._stray_ids or record.seq in self._stray_seqs
        if session_of(body) == self._session and not stray:
            # This very run published it, so its publisher dispatches it, and not the reader.
            awaited = self._appending.get(record.id, ())
            for item, cursor in takers:
                if item in awaited:  # its publisher has not come back from the append yet
                    cursor.expect(record.seq)
            return
        event = from_log(record, body)
        delivery, again = Delivery(event, record.seq), None
        for item, cursor in takers:
            cursor.expect(record.seq)
            # Only one with a position of an earlier run can have handled it before, without a record of that.
            if cursor.restored and record.seq <= last_at_start:
                again = again or Delivery(from_log(record, body, redelivered=True), record.seq)
                self._post(again, (item,))
            else:
                self._post(delivery, (item,))
        # Cursors differ, so a record is offered more than once; it counts the first time.
        if record.seq > self._arrived:
            self._arrived = record.seq
            self._arrive(event)

    def _post(self, delivery: Delivery, targets: Iterable[Subscription]) -> None:
        for subscription in targets:
            self._dispatcher.post_or_report(MailboxPlace(delivery, subscription))

    async def _wait(self, cursor_store: CursorStore, *, is_reading: bool) -> None:
        """Until the log grows, a subscription joins, or one that was full has room."""
        if not is_reading:  # what is in the log changes nothing
            await self._wake.wait()
            return
        waiting = cursor_store.log.wait(after=self._last_fed, timeout_s=_WAIT_S)
        grown = await result_before(waiting, self._wake.wait())
        if grown is None:
            return
        self._last_known = grown
        if grown <= self._last_own:
            await result_before(self._runtime.sleep(_OWN_S), self._wake.wait())


def _is_only_stopped(storing: asyncio.Task[_Stored]) -> bool:
    """Whether the store was ended, and its publisher was not cancelled."""
    publisher = asyncio.current_task()
    return storing.cancelled() and publisher is not None and not publisher.cancelling()


async def _store(event_log: EventLog, entry: LogEvent) -> _Stored:
    """Append; an error is returned, because it belongs to the publisher and not to the owner of the task."""
    try:
        [appended] = await event_log.append([entry])
    except RingRiftError as error:
        return error
    return appended


def _types(hungry: Iterable[Reader]) -> list[str] | None:
    """The types to read; None for all."""
    wanted: set[str] = set()
    for subscription, _ in hungry:
        if subscription.event_types is None:
            return None
        wanted.update(subscription.event_types)
        if len(wanted) > _TYPES_MAX:
            return None
    return sorted(wanted)
