"""The cursors of all subscriptions of this process, and their durable copies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextvars import Context

import structlog

from ringrift.engine.ports import CursorKey, EventLog, Position
from ringrift.errors import RingRiftError
from ringrift.events.cursors import Cursor
from ringrift.events.delivery_notes import Note
from ringrift.events.log_seat import Identity
from ringrift.events.routed_event import RouterEvent
from ringrift.events.subscriptions import Subscription
from ringrift.runtime import Runtime

log = structlog.get_logger()

Reader = tuple[Subscription, Cursor]

_GROUP_S = 0.5  # positions gathered before one commit; the notes bridge this time
_LAZY_S = 30.0  # positions that moved only over foreign events, or did not: whose is live is seen by that
_RETRY_S = 1.0
_DONE_MAX = 10_000  # events handled behind one that could be neither handled nor stored as a dead letter


class CursorBook:
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
    ) -> None:
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
        self.recorder: asyncio.Task[None] | None = None

    def cursor(self, subscription: Subscription) -> Cursor | None:
        return self._cursors.get(subscription.name) if subscription in self._members else None

    def covers(self, subscriptions: Iterable[Subscription]) -> bool:
        known = self._readers is not None and self._readers[0] is subscriptions
        return known or self._members.issuperset(subscriptions)

    def readers(self, subscriptions: tuple[Subscription, ...]) -> list[Reader]:
        """Those of *subscriptions* that have joined, with their cursors.

        There are hundreds, and every event asks: the list is kept until one joins or leaves.
        """
        if self._readers is None or self._readers[0] is not subscriptions:
            found = [(item, self._cursors[item.name]) for item in subscriptions if item in self._members]
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
        return 0 if left is None or left.waiting_in is None else left.waiting_in._seq

    def expect(self, targets: Iterable[Subscription], seq: int) -> None:
        for item in targets:
            if (cursor := self.cursor(item)) is not None:
                cursor.expect(seq)

    def handled(self, event: RouterEvent, subscription: Subscription) -> None:
        cursor = self._cursors.get(subscription.name)
        if cursor is None:
            return
        cursor.finish(event._seq)
        if self._notes is not None:
            self._notes.write(Note(event._seq, event.event_id, subscription.name))
        self._moved.set()
        self.keep_recording()

    def keep_recording(self) -> None:
        if self.recorder is None and not self._is_ending():
            # An empty context: recording belongs to no trace and to no event's handler.
            recording = self._record_forever()
            self.recorder = asyncio.get_running_loop().create_task(recording, context=Context())
            self.recorder.add_done_callback(_recorder_ended)

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
        self._moved = asyncio.Event()
        self.recorder = None
        again: set[int] = set()
        for cursor in self._cursors.values():
            again |= cursor.rewind()
        return again

    async def record(self, *, everything: bool = False) -> None:
        """Store the positions that moved; the notes behind them are done with then.

        With *everything* also those of the other subscriptions, as a sign that they live.
        """
        live = {item.name for item in self._members} if everything else set()
        moved = {name: c for name, c in self._cursors.items() if c.dirty or name in live}
        if not moved:
            return
        positions = {CursorKey(name, self.instance): c.position() for name, c in moved.items()}
        covered = None if self._notes is None else self._notes.turn()
        for name, cursor in moved.items():
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
        if self.recorder is not None:
            self.recorder.cancel()
            await asyncio.wait({self.recorder})
            self.recorder = None
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
        notes = [] if self._notes is None else list(self._notes.read())
        noted: set[str] = set()
        for seq in sorted({note.seq for note in notes}):
            found = await self.log.read(after=seq - 1, limit=1)
            for note in (note for note in notes if note.seq == seq and note.subscription in stored):
                # A note left behind by a log that was deleted since names another event.
                if found and (found[0].seq, found[0].id) == (seq, note.event_id):
                    position = stored[note.subscription]
                    done = (*position.done_above, seq)
                    stored[note.subscription] = Position(position.floor, done)
                    noted.add(note.subscription)
        if noted:
            await self.log.commit({CursorKey(name, self.instance): stored[name] for name in noted})
        return stored


def _recorder_ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("events.recorder_crashed", exc_info=error)
