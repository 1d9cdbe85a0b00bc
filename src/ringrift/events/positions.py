"""How far each subscription of this process has come in the log, and the durable copies of that."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextvars import Context
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import structlog

from ringrift.engine.lock_files import take_instance_slot
from ringrift.engine.opening import get_engine, shared_engine
from ringrift.engine.ports import CursorKey, EventLog, KeyValue, Position
from ringrift.errors import RingRiftError, Unavailable
from ringrift.events.event import Delivery
from ringrift.events.subscriptions import Subscription
from ringrift.files import make_folders, open_file
from ringrift.runtime import Runtime
from ringrift.settings import Settings
from ringrift.task_owner import TaskOwner

# How far one subscription has come in the log: pure bookkeeping, no I/O.


class Cursor:
    """Up to `fed` every record was looked at; of those, `outstanding` ones are not handled yet.

    Events of this very process are handled before the reader comes to them; they stand in `done`.
    """

    __slots__ = ("dirty", "done", "fed", "outstanding", "restored")

    def __init__(self, position: Position, *, restored: bool) -> None:
        self.fed = position.floor
        self.done = set(position.done_above)
        self.outstanding: set[int] = set()
        self.restored = restored
        self.dirty = not restored

    def expect(self, seq: int) -> None:
        self.outstanding.add(seq)

    def finish(self, seq: int) -> None:
        self.outstanding.discard(seq)
        self.done.add(seq)
        self.dirty = True

    def feed(self, upto: int) -> None:
        self.fed = max(self.fed, upto)

    def give_up_oldest(self) -> int | None:
        """Stop waiting for the oldest unhandled event; return which one it was."""
        oldest = min(self.outstanding, default=None)
        if oldest is not None:
            self.outstanding.discard(oldest)
        return oldest

    def rewind(self, *, still_running: int = 0) -> set[int]:
        """Look again at what was under way and is lost now, all but one that still runs.

        Returns the sequence numbers.
        """
        kept = self.outstanding & {still_running}
        lost = self.outstanding - kept
        self.outstanding = kept
        if lost:
            # What was handled behind the oldest stands in `done` and is not offered again.
            self.fed = min(self.fed, min(lost) - 1)
        return lost

    def is_new(self, seq: int) -> bool:
        """Whether this event was neither looked at nor handled."""
        return seq > self.fed and seq not in self.done and seq not in self.outstanding

    def position(self) -> Position:
        """Return what may be recorded now, and forget what the floor covers."""
        # Never past an event that is under way: after a crash it has to be read again.
        floor = min(self.fed, min(self.outstanding, default=self.fed + 1) - 1)
        self.done = {seq for seq in self.done if seq > floor}
        return Position(floor, tuple(sorted(self.done)))


# What was handled since the last recorded position, in a file that survives `kill -9`.
#
# A position is recorded a moment after its handler ends. In between, the note is all that keeps a killed
# process from handling the event again; writing it is one write into the page cache, done before anything
# else can happen. Two files take turns, so that one can be emptied once the positions behind it are
# recorded. A power cut may lose notes; the events are then handled again, never lost.


log = structlog.get_logger()


class Note(NamedTuple):
    """One handled event of one subscription."""

    seq: int
    event_id: str
    subscription: str


class DeliveryNotes:
    """Owned by one process at a time; the instance's lock sees to that."""

    def __init__(self, folder: Path, instance: str) -> None:
        self._paths = [folder / f"{instance}.notes.{side}" for side in ("a", "b")]
        # Appending: after `empty` the next note stands at the new end and not behind a hole.
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        try:
            make_folders(folder)
            self._files = [open_file(path, flags, 0o600) for path in self._paths]
        except OSError as error:
            raise Unavailable(f"{folder}: delivery notes cannot be kept: {error.strerror}") from error
        self._side = 0
        self._failing = False
        # Another thread may close them as the engine ends, and their numbers then belong to other files.
        self._lock = threading.Lock()

    def read(self) -> Iterator[Note]:
        """Yield what an earlier run left; a line cut off by a crash is not a note."""
        # Through the open files: under their paths there may be those of another run by now.
        for file in self._files:
            for line in os.pread(file, os.fstat(file).st_size, 0).split(b"\n")[:-1]:
                # The name of the subscription comes last because it may contain spaces.
                parts = line.decode("utf-8", "replace").split(" ", 2)
                if len(parts) == 3 and parts[0].isdigit():
                    yield Note(int(parts[0]), parts[1], parts[2])

    def write(self, note: Note) -> None:
        """Write one note. Without room for it the event may be handled again after a crash, no more."""
        line = f"{note.seq} {note.event_id} {note.subscription}\n".encode()
        try:
            with self._lock:
                if self._files:
                    os.write(self._files[self._side], line)
        except OSError as error:
            self._tell(error)
        else:
            self._failing = False

    def turn(self) -> int:
        """Write to the other file from now on; return the side that positions taken now will cover."""
        covered = self._side
        self._side = 1 - covered
        return covered

    def empty(self, side: int) -> None:
        try:
            with self._lock:
                if self._files:
                    os.ftruncate(self._files[side], 0)
        except OSError as error:
            self._tell(error)  # notes that stay repeat what the positions say

    def _tell(self, error: OSError) -> None:
        if not self._failing:
            self._failing = True
            log.error("events.notes_not_kept", path=str(self._paths[0]), error=error.strerror)

    def close(self) -> None:
        with self._lock:
            for file in self._files:
                os.close(file)
            self._files = []


# The log as this process reads it, and the identity that its reading positions are kept under.


_FOLDER = "instances"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who reads: held by one process at a time, and taken again after its restart."""

    instance: str
    notes: DeliveryNotes | None = None
    release: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConnection:
    """How to come by the log, and (only for those who subscribe) by an identity."""

    open_log: Callable[[], Awaitable[EventLog]]
    claim: Callable[[], Awaitable[Identity]]
    open_kv: Callable[[], Awaitable[KeyValue]] | None = None  # where it is kept when events were last seen
    # Takes what has to be done before the log is closed by somebody else than its reader.
    before_close: Callable[[Callable[[], Awaitable[None]]], None] | None = None


def process_log_connection(settings: Settings) -> LogConnection:
    """The connection of this process to its own engine; nothing is opened or written before it is used."""

    async def open_log() -> EventLog:
        return (await get_engine()).events

    async def claim() -> Identity:
        return await asyncio.to_thread(_claim, settings)

    async def open_kv() -> KeyValue:
        return (await get_engine()).kv

    def before_close(finish: Callable[[], Awaitable[None]]) -> None:
        shared_engine().before_close(finish)

    return LogConnection(open_log=open_log, claim=claim, open_kv=open_kv, before_close=before_close)


def _claim(settings: Settings) -> Identity:
    slot = take_instance_slot(settings, sys.argv)
    # Not every file system takes a colon in a name.
    try:
        notes = DeliveryNotes(settings.coordination_dir / _FOLDER, slot.name.replace(":", "."))
    except BaseException:
        # Still held, it would make the next attempt another instance, with none of these positions.
        slot.close()
        raise
    return Identity(instance=slot.name, notes=notes, release=slot.close)


# The cursors of all subscriptions of this process, and their durable copies.


def _newest(done: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(done)[-_DONE_MAX:])


Reader = tuple[Subscription, Cursor]

_GROUP_S = 0.5  # positions gathered before one commit; the notes bridge this time
_LAZY_S = 30.0  # positions that moved only over foreign events, or did not: whose is live is seen by that
_RETRY_S = 1.0
_STOP_S = 30.0  # what it writes when it is told to stop is written
_OWNER = "positions of subscriptions"
_DONE_MAX = 10_000  # events handled behind one that could be neither handled nor stored as a dead letter
_RESTING_NOTES = 200_000  # in each of the two files: what is older has mostly left the log
_NOTES_READ = 256


class CursorStore:
    """Restores cursors, records them soon after they move, and reports what retention took away."""

    def __init__(
        self,
        log: EventLog,
        identity: Identity,
        *,
        runtime: Runtime,
        backlog_s: float,
        last_at_start: int,
        is_ending: Callable[[], bool],
        rests: bool = False,
    ) -> None:
        """While it *rests*, as nobody reads, positions are not stored: they would hold all that comes in."""
        self.log, self.instance = log, identity.instance
        self.last_at_start, self._is_ending = last_at_start, is_ending
        self.gaps = self.missed = 0
        self._notes, self._runtime, self._backlog_s = identity.notes, runtime, backlog_s
        self._cursors: dict[str, Cursor] = {}
        self._members: set[Subscription] = set()
        self._readers: tuple[tuple[Subscription, ...], list[Reader]] | None = None
        self._left: dict[str, Subscription] = {}
        self._stored: dict[str, Position] | None = None
        self._moved = asyncio.Event()
        self._recording = asyncio.Lock()
        self._tasks = TaskOwner(_OWNER)
        self.recorder: asyncio.Task[None] | None = None
        self._rests, self._noted = rests, 0  # how many notes it wrote while it rested

    def cursor(self, subscription: Subscription) -> Cursor | None:
        return self._cursors.get(subscription.name) if subscription in self._members else None

    def covers(self, subscriptions: Iterable[Subscription]) -> bool:
        # The table hands out the same tuple until one joins or leaves, so identity answers most calls.
        known = self._readers is not None and self._readers[0] is subscriptions
        return known or self._members.issuperset(subscriptions)

    def readers(self, subscriptions: tuple[Subscription, ...]) -> list[Reader]:
        """Those of *subscriptions* that have joined, with their cursors.

        There are hundreds, and every event asks: the list is kept until one joins or leaves.
        """
        if self._readers is None or self._readers[0] is not subscriptions:
            found = [(item, self._cursors[item.name]) for item in subscriptions if item in self._members]
            # One of them has yet to join; a list that is kept now would leave it out for good.
            if len(found) < len(subscriptions):
                return found
            self._readers = (subscriptions, found)
        return self._readers[1]

    async def join(self, subscriptions: Iterable[Subscription]) -> set[int]:
        """Give each subscription its cursor; return what it must see though this run published it."""
        if self._stored is None:
            self._stored = await self._restore()
        absent = [item for item in subscriptions if item not in self._members]
        again: set[int] = set()
        if any(item.name not in self._cursors | self._stored for item in absent):
            # A new one begins a little back: events sent while its process came up are meant for it.
            start = await self.log.seq_at(since_s=self._runtime.now_s() - self._backlog_s)
        for item in absent:
            if item.name in self._cursors:  # back after it had left
                again |= self._cursors[item.name].rewind(still_running=self._running_seq(item.name))
            elif item.name in self._stored:
                self._cursors[item.name] = Cursor(self._stored[item.name], restored=True)
            else:
                self._cursors[item.name] = Cursor(Position(start), restored=False)
        if any(self._cursors[item.name].dirty for item in absent):
            await self.record()  # where a new subscription began must not move with a crash
        # One may have ended while this waited for the store.
        self._members.update(item for item in absent if item.active)
        self._readers = None
        return again

    def leave(self, subscription: Subscription) -> None:
        """The cursor stays: a handler that is started again goes on where it stopped.

        It is stored once more, and no longer says that somebody lives.
        """
        self._readers = None
        if subscription in self._members:
            self._members.discard(subscription)
            self._cursors[subscription.name].dirty = True
        self._left[subscription.name] = subscription

    def _running_seq(self, name: str) -> int:
        """Return which event a subscription of this name, ended since, is still busy with; 0 if none."""
        left = self._left.pop(name, None)
        return 0 if left is None or left.waiting_in is None else left.waiting_in.log_seq

    def expect(self, targets: Iterable[Subscription], seq: int) -> None:
        for item in targets:
            if (cursor := self.cursor(item)) is not None:
                cursor.expect(seq)

    def handled(self, delivery: Delivery, subscription: Subscription) -> None:
        cursor = self._cursors.get(subscription.name)
        if cursor is None:
            return
        if self._notes is not None:
            self._notes.write(Note(delivery.log_seq, delivery.event.event_id, subscription.name))
            if self._rests:
                # In the notes alone: nobody knows for how long, and in memory it would only grow.
                cursor.outstanding.discard(delivery.log_seq)
                self._noted += 1
                if self._noted % _RESTING_NOTES == 0:
                    self._notes.empty(1 - self._notes.turn())
                return
        cursor.finish(delivery.log_seq)
        self._moved.set()
        self.keep_recording()

    def wake(self) -> None:
        """Somebody reads again: the cursors take over what was handled meanwhile."""
        if not self._rests:
            return
        self._rests = False
        for note in () if self._notes is None else self._notes.read():
            if (cursor := self._cursors.get(note.subscription)) is not None and cursor.is_new(note.seq):
                cursor.finish(note.seq)
        for cursor in self._cursors.values():
            cursor.done = set(_newest(cursor.done))

    def keep_recording(self) -> None:
        if self.recorder is None and not (self._rests or self._is_ending()):
            # An empty context: recording belongs to no trace and to no event's handler.
            recording = self._record_forever()
            self.recorder = self._tasks.create_task(recording, name="recorder", context=Context())

    def skip_gap(self, first: int, hungry: Iterable[Reader]) -> None:
        """Say so when retention removed events that a subscription had not seen."""
        for subscription, cursor in hungry:
            missed = first - 1 - cursor.fed
            if missed > 0:
                self.gaps += 1
                self.missed += missed
                log.error("events.missed", subscription=subscription.name, events=missed, first_left=first)
                cursor.feed(first - 1)
                cursor.dirty = True

    def rebind(self) -> set[int]:
        """A new loop took over; return the sequence numbers that have to be looked at again."""
        self._moved, self._recording = asyncio.Event(), asyncio.Lock()
        self.recorder, self._tasks = None, TaskOwner(_OWNER)  # the old loop has ended it
        again: set[int] = set()
        for cursor in self._cursors.values():
            again |= cursor.rewind()
        return again

    async def record(self, *, everything: bool = False) -> None:
        """Store the positions that moved; the notes behind them are done with then.

        With *everything* also those of the other subscriptions, as a sign that they live.
        """
        # One at a time: a second one would turn the notes back to the side that the first then empties.
        async with self._recording:
            await self._record(everything=everything)

    async def _record(self, *, everything: bool) -> None:
        live = {item.name for item in self._members} if everything else set()
        moved = {name: c for name, c in self._cursors.items() if c.dirty or name in live}
        if not moved:
            return
        positions = {CursorKey(name, self.instance): c.position() for name, c in moved.items()}
        # In the same step as the positions: no handler may end between them and the change of sides. While
        # nobody reads they cover no note: one that joined stores where it begins.
        covered = None if self._notes is None or self._rests else self._notes.turn()
        for name, cursor in moved.items():
            # Before the commit: what moves while it is written is recorded once more.
            cursor.dirty = False
            if len(cursor.done) > _DONE_MAX:
                log.error("events.given_up", subscription=name, seq=cursor.give_up_oldest())
        try:
            await self.log.commit(positions)
        except BaseException:
            for cursor in moved.values():
                cursor.dirty = True
            raise
        if self._notes is not None and covered is not None:
            self._notes.empty(covered)

    async def pause(self) -> None:
        """Stop recording, after all positions are recorded once more."""
        await self._tasks.stop(_STOP_S)
        if self.recorder is not None and not self.recorder.done():
            # It ignores its cancellation, and may never let go of the lock.
            self._recording = asyncio.Lock()
        self._tasks, self.recorder = TaskOwner(_OWNER), None
        if self._rests:
            return  # the notes have it all
        try:
            await self.record(everything=True)
        except RingRiftError as error:
            log.error("events.positions_not_recorded", error=str(error))

    async def _record_forever(self) -> None:
        everything_s = self._runtime.monotonic_s() + _LAZY_S
        while True:
            try:
                async with asyncio.timeout(max(0.0, everything_s - self._runtime.monotonic_s())):
                    await self._moved.wait()
            except TimeoutError:
                pass
            everything = self._runtime.monotonic_s() >= everything_s
            if everything:
                everything_s = self._runtime.monotonic_s() + _LAZY_S
            if self._notes is not None:
                # Without notes nothing bridges this time, so positions are recorded at once.
                await self._runtime.sleep(_GROUP_S)
            self._moved.clear()
            try:
                await self.record(everything=everything)
            except RingRiftError as error:
                log.error("events.positions_not_recorded", error=str(error))
                self._moved.set()
                await self._runtime.sleep(_RETRY_S)

    async def _restore(self) -> dict[str, Position]:
        """Read the recorded positions and record what the notes say beyond them.

        At once: the notes are emptied with the first positions that move, whoever's they are.
        """
        stored = dict(await self.log.positions(self.instance))
        done: dict[str, set[int]] = {}
        async for note in self._valid_notes():
            # Without a stored position there is no floor that a note could stand above.
            if note.subscription in stored:
                done.setdefault(note.subscription, set()).add(note.seq)
        for name, seqs in done.items():
            position = stored[name]
            stored[name] = Position(position.floor, _newest({*position.done_above, *seqs}))
        if done and self._notes is not None:
            await self.log.commit({CursorKey(name, self.instance): stored[name] for name in done})
            self._notes.empty(0)
            self._notes.empty(1)
        return stored

    async def _valid_notes(self) -> AsyncIterator[Note]:
        """The notes of events that are in the log: it may have been deleted since, and have others there."""
        notes: dict[int, list[Note]] = {}
        for note in () if self._notes is None else self._notes.read():
            notes.setdefault(note.seq, []).append(note)
        after = -1
        for seq in sorted(notes):
            if seq <= after:
                continue
            # Many at a time: after a rest there are as many as events since.
            for record in await self.log.read(after=seq - 1, limit=_NOTES_READ):
                after = record.seq
                for note in notes.get(record.seq, ()):
                    if note.event_id == record.id:
                        yield note
