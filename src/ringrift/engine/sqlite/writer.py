"""The one thread of a process that writes: everything that waits shares one commit.

An operation is a function of the transaction. Each runs in its own savepoint, so that a refused one, or one
that raises anything at all, leaves no trace and harms no other; all are acknowledged after the one commit
that made them durable. Should the thread end by a defect, it lets go of the database, so that other processes
go on, and everybody who waits or asks later hears why.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import structlog

from ringrift.engine.lock_files import LockFile
from ringrift.engine.sqlite.faults import from_sqlite, translated_errors
from ringrift.engine.sqlite.files import SqliteConfig
from ringrift.engine.sqlite.schema import TimeNote, schema_too_new, schema_version
from ringrift.engine.waiting import ALL, ENDS, EVENTS, KV, QUEUE, EngineClock
from ringrift.errors import ConfigError, RingRiftError, Unavailable, storable_text
from ringrift.files import HeldPath, full_disk
from ringrift.process_identity import who_locks
from ringrift.runtime import log_full_disk

# Whatever an operation raises is one of our errors when it leaves the thread that runs operations.


log = structlog.get_logger()


@contextmanager
def contained(path: Path, *, passing: type[Exception] = RingRiftError) -> Iterator[None]:
    """Raise anything at all as one of our errors, so that no operation can harm the thread that runs it.

    What is neither the disk's nor SQLite's fault is a value that slipped through the checks, or a defect: a
    retry cannot help.
    """
    try:
        with translated_errors(path):
            yield
    except (RingRiftError, passing):
        raise
    except BaseException as error:
        what = f"{type(error).__name__}: {storable_text(error, chars_max=500)}"
        # The stack goes with the error to whoever asked; to write it out here would hold up the others.
        log.error("engine.operation.failed", path=str(path), error=what)
        raise ConfigError(f"{path}: the engine cannot do this: {what}") from error


# Whose turn it is to write, across processes, in fair order and without polling.
#
# Two file locks: who wants to write takes the turn, then the pen, and gives the turn on. Who has just
# written must take the turn again, which by then belongs to the next in line; so nobody writes twice while
# another waits. The kernel frees both when a process dies. The wait itself has no end here: the callers of
# the writer have a deadline of their own, and leave with `Unavailable` when a stopped process holds the pen.


_RETRY_S = 0.02


class Turnstile:
    """One per process; used by its writer thread alone."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._turn = LockFile(database.with_name(database.name + ".turn"))
        self._pen = LockFile(database.with_name(database.name + ".pen"))

    @contextmanager
    def passed(self) -> Iterator[None]:
        """Wait for the turn, and hold the pen."""
        self._turn.lock()
        try:
            self._pen.lock()
        finally:
            self._turn.unlock()
        try:
            yield
        finally:
            self._pen.unlock()

    @contextmanager
    def passed_within(self, wait_s: float) -> Iterator[None]:
        """As `passed`, with an end to the waiting: `Unavailable`. For the rare moments outside the writer."""
        pause, tries = threading.Event(), max(1, int(wait_s / _RETRY_S))
        for _ in range(tries):
            if self._pen.try_lock():
                break
            pause.wait(_RETRY_S)
        else:
            raise Unavailable(f"{self.holder()} has held {self._database} for {wait_s:g} s")
        try:
            yield
        finally:
            self._pen.unlock()

    def holder(self) -> str:
        """Who keeps the others waiting, in words."""
        return who_locks(self._pen.path, self._turn.path)

    def close(self) -> None:
        self._turn.close()
        self._pen.close()


T = TypeVar("T")


@dataclass(slots=True)
class Transaction:
    """What an operation may use: the connection, the time, and the topics that it changed."""

    db: sqlite3.Connection
    now_s: float
    changed: set[str] = field(default_factory=set)


Operation = Callable[[Transaction], T]


class Upkeep(Protocol):
    """Background work that the writer does between the calls."""

    def wait_s(self) -> float:
        """Seconds until the next round."""
        ...

    def operations(self) -> Sequence[Operation[Any]]:
        """The operations that are due now, each to be run in a transaction of its own."""
        ...

    def close(self) -> None:
        """Leave upkeep to the other processes."""
        ...


@dataclass(slots=True, eq=False)
class Call(Generic[T]):
    """An operation on its way, and who waits for its outcome. Guarded by the writer's lock."""

    operation: Operation[T]
    answer: asyncio.Future[T] | None = None
    started: bool = False
    abandoned: bool = False
    result: T | None = None
    error: RingRiftError | None = None


class Writer:
    """Owns the writing connection and its thread."""

    def __init__(
        self,
        db: sqlite3.Connection,
        turnstile: Turnstile,
        *,
        held: HeldPath,
        config: SqliteConfig,
        clock: EngineClock,
        upkeep: Upkeep,
        announce: Callable[[Collection[str]], None],
    ) -> None:
        self._db, self._turnstile, self._config, self._clock = db, turnstile, config, clock
        self._upkeep, self._announce = upkeep, announce
        self.held = held  # another file under the name of the database is somebody else's
        self._time_note = TimeNote()
        log_full_disk()
        self._disk = full_disk()
        self._schema_version = schema_version(db)
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._pending: deque[Call[Any]] = deque()
        self._closing = False
        self._taken: list[Call[Any]] = []  # by the thread, and not answered yet
        self._ended = ""  # why there is no thread any more
        self.forget_cached: list[Callable[[], None]] = []  # called when a transaction was undone
        self._thread = threading.Thread(target=self._run, name="ringrift-writer", daemon=True)

    @property
    def path(self) -> Path:
        return self._config.database

    @property
    def failure(self) -> str:
        """Why nothing is written any more; "" while the thread works or after it was asked to end."""
        if self._ended and not self._closing:
            return self._ended
        return "" if self._closing else self.held.problem()

    def start(self) -> None:
        self._thread.start()

    async def call(self, operation: Operation[T]) -> T:
        """Run *operation* and return its result once it is durable.

        Raises `Unavailable` at the deadline. An operation that had not begun by then never will; one
        that had may still take effect.
        """
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        call = Call(operation, answer)
        self._submit(call)
        try:
            async with asyncio.timeout(self._config.call_wait_s):
                return await answer
        except TimeoutError:
            raise self._abandon(call) from None
        except asyncio.CancelledError:
            self._abandon(call)
            raise

    def close(self) -> bool:
        """Finish what was accepted and end the thread; return False if it is stuck."""
        with self._work:
            self._closing = True
            self._work.notify()
        self._thread.join(self._config.call_wait_s)
        return not self._thread.is_alive()

    def _submit(self, call: Call[Any]) -> None:
        with self._work:
            if self._ended and not self._closing:
                raise Unavailable(self._ended)
            if self._closing:
                raise Unavailable(f"the engine on {self.path} is closed")
            if len(self._pending) >= self._config.pending_max:
                raise Unavailable(f"{len(self._pending)} calls wait for {self.path} already")
            self._pending.append(call)
            self._work.notify()

    def _abandon(self, call: Call[Any]) -> Unavailable:
        with self._lock:
            call.abandoned = True
            started = call.started
        wait_s = self._config.call_wait_s
        if started:
            return Unavailable(f"{self.path} took more than {wait_s:g} s; the write may still take effect")
        holder = self._turnstile.holder()
        return Unavailable(f"{holder} has held {self.path} for {wait_s:g} s; nothing was written")

    # --- in the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        reason = f"the engine on {self.path} is closed"
        try:
            while self._wait_for_work():
                self._write_round()
        except BaseException as error:
            reason = f"the writer of {self.path} has ended: {type(error).__name__}: {storable_text(error)}"
            log.critical("engine.writer.ended", path=str(self.path), error=reason)
            raise
        finally:
            self._end(reason)

    def _wait_for_work(self) -> bool:
        """Return True when there are calls; do upkeep when it is due; False at the end."""
        while True:
            with self._work:
                if not self._pending and not self._closing:
                    self._work.wait(self._upkeep.wait_s())
                if self._closing:
                    return bool(self._pending)
                waiting = bool(self._pending)
            if self._upkeep.wait_s() <= 0:
                self._do_upkeep()
            if waiting:
                return True

    def _write_round(self) -> None:
        with self._turnstile.passed():
            batch = self._take()
            changed = self._transact(batch) if batch else frozenset()
        _answer(batch)
        self._taken = []
        # After the answers: who waits here for what is written here has heard of it when it looks.
        self._tell(changed)

    def _tell(self, changed: frozenset[str]) -> None:
        """Wake those who wait; it is stored already, so that a wake-up which fails costs them a poll."""
        if not changed:
            return
        try:
            with contained(self.path):
                self._announce(changed)
        except RingRiftError as error:
            log.warning("engine.wakeups.failed", path=str(self.path), error=str(error))

    def _do_upkeep(self) -> None:
        try:
            with contained(self.path):
                self._check_held()
                operations = self._upkeep.operations()
        except RingRiftError as error:
            log.warning("engine.upkeep.failed", path=str(self.path), error=str(error))
            return
        for operation in operations:
            call: Call[Any] = Call(operation)
            with self._turnstile.passed():
                changed = self._transact([call])
            self._tell(changed)
            if call.error is not None:
                log.warning("engine.upkeep.failed", path=str(self.path), error=str(call.error))
                return

    def _take(self) -> list[Call[Any]]:
        with self._lock:
            count = min(len(self._pending), self._config.batch_max)
            batch = [self._pending.popleft() for _ in range(count)]
            live = [call for call in batch if not call.abandoned]
            for call in live:
                call.started = True
            self._taken = live
        return live

    def _transact(self, batch: Sequence[Call[Any]]) -> frozenset[str]:
        """Run the batch in one transaction; return the topics that changed."""
        db = self._db
        tx = Transaction(db, self._clock.now_s())
        try:
            self._check_held()
            db.execute("BEGIN IMMEDIATE")
            found = schema_version(db)
            if found != self._schema_version:
                raise schema_too_new(self.path, found, self._schema_version)
            before = db.total_changes
            for call in batch:
                self._run_one(tx, call)
            if db.total_changes > before:
                self._time_note.write(db, tx.now_s)
            db.execute("COMMIT")
            if db.total_changes > before:
                self._disk.wrote()
        except (sqlite3.Error, RingRiftError) as error:
            self._undo_all(batch, error)
            return frozenset()
        finally:
            if db.in_transaction:  # whatever ended it: no other process may wait for this one
                db.execute("ROLLBACK")
        return frozenset(tx.changed)

    def _check_held(self) -> None:
        """What is written to a file that nobody finds any more would be acknowledged, and lost."""
        if problem := self.held.problem():
            raise Unavailable(f"{problem}; nothing was written")

    def _run_one(self, tx: Transaction, call: Call[Any]) -> None:
        db = tx.db
        db.execute("SAVEPOINT one")
        try:
            with contained(self.path):
                call.result = call.operation(tx)
        except RingRiftError as error:
            if not db.in_transaction:
                raise  # SQLite undid the whole transaction, not just this part of it
            call.error = error
        if call.error is not None:
            db.execute("ROLLBACK TO one")
        db.execute("RELEASE one")

    def _undo_all(self, batch: Sequence[Call[Any]], error: sqlite3.Error | RingRiftError) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        for forget in self.forget_cached:
            forget()
        ours = error if isinstance(error, RingRiftError) else from_sqlite(error, self.path)
        for call in batch:
            call.error = ours or Unavailable(f"{self.path}: {error}; nothing was written")

    def _end(self, reason: str) -> None:
        """Let go of the database and leave nobody waiting, also when a defect ended the thread."""
        try:
            self._db.close()  # undoes a transaction that is open
        finally:
            with self._lock:
                self._ended = reason
                taken, self._taken = self._taken, []
                left = list(self._pending)
                self._pending.clear()
            for call in taken:
                call.error = Unavailable(f"{reason}; the write may have taken effect")
            for call in left:
                call.error = Unavailable(reason)
            _answer([*taken, *left])
            if not self._closing:
                # Others take over; and who waits here for a change finds out that there is none to come.
                self._turnstile.close()
                self._upkeep.close()
                self._tell(frozenset({EVENTS, KV, QUEUE, ENDS, ALL}))


def _answer(batch: Sequence[Call[Any]]) -> None:
    """Hand the outcomes over, with one wake-up per event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Call[Any]]] = {}
    for call in batch:
        if call.answer is not None:
            by_loop.setdefault(call.answer.get_loop(), []).append(call)
    for loop, calls in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, calls)
        except RuntimeError:
            continue  # the loop has ended, and nobody waits there any more


def _resolve(calls: Sequence[Call[Any]]) -> None:
    for call in calls:
        assert call.answer is not None
        if call.answer.done():
            continue
        if call.error is not None:
            call.answer.set_exception(call.error)
        else:
            call.answer.set_result(call.result)
