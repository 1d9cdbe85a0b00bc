"""Opening and closing the embedded engine, and the upkeep of its database."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from typing import Any

import structlog

from ringrift.engine.limits import EngineLimits
from ringrift.engine.lock_files import LockFile
from ringrift.engine.ports import CursorKey, Engine
from ringrift.engine.sqlite import queries as sql
from ringrift.engine.sqlite.blobs import FileBlobs
from ringrift.engine.sqlite.faults import translated_errors
from ringrift.engine.sqlite.files import (
    SqliteConfig,
    check_ours,
    check_sound,
    check_wal,
    check_writable,
    connect,
    create_if_absent,
    fill_if_empty,
)
from ringrift.engine.sqlite.kv_and_events import (
    SqliteEventLog,
    SqliteKeyValue,
    drop_old_tombstones,
    expire_some,
    forget_old_positions,
    trim_some,
)
from ringrift.engine.sqlite.queries import Code
from ringrift.engine.sqlite.queue import SqliteWorkQueue
from ringrift.engine.sqlite.queue_operations import as_parameter, end_due
from ringrift.engine.sqlite.schema import MIGRATIONS, Migration, migrate, missing_migrations, settle_anchor
from ringrift.engine.sqlite.store import Store, Wakeups
from ringrift.engine.sqlite.writer import Operation, Transaction, Turnstile, Writer
from ringrift.engine.waiting import EngineClock, Topics
from ringrift.files import HeldPath, make_private_folder
from ringrift.runtime import Runtime

# Ended work leaves by age, and earlier when there is too much of it.


_SWEEP_ROWS = 2_000
_DROP_ROWS = 1_000
_LANES_KEPT = 1_000


class WorkSweep:
    """Walks over all work in small steps, one per transaction, and begins again at the end."""

    def __init__(self, limits: EngineLimits) -> None:
        self._limits = limits
        self._after = 0

    def step(self, tx: Transaction, *, by_age: bool = True) -> int:
        """Drop what is past its time among the next rows; return how many went."""
        rows = tx.db.execute(sql.SWEEP, (self._after, _SWEEP_ROWS)).fetchall()
        self._after = rows[-1][0] if len(rows) == _SWEEP_ROWS else 0
        kept_s = {
            Code.DONE: self._limits.finished_retention_s,
            Code.CANCELLED: self._limits.finished_retention_s,
            Code.DEAD: self._limits.dead_retention_s,
        }
        if not by_age:
            return self._drop_excess(tx)
        past = [seq for seq, code, at_s in rows if code in kept_s and at_s < tx.now_s - kept_s[Code(code)]]
        return _drop(tx, past) + self._drop_excess(tx)

    def _drop_excess(self, tx: Transaction) -> int:
        (count,) = tx.db.execute(sql.COUNT_WORK).fetchone()
        excess = min(count - self._limits.work_rows_max, _DROP_ROWS)
        if excess <= 0:
            return 0
        return _drop(tx, [seq for (seq,) in tx.db.execute(sql.OLDEST_ENDED, (excess,))])


def drop_empty_lanes(tx: Transaction) -> None:
    """Lanes are few; only where somebody made very many is it worth looking for empty ones."""
    (count,) = tx.db.execute(sql.COUNT_LANES).fetchone()
    if count > _LANES_KEPT:
        tx.db.execute(sql.DROP_EMPTY_LANES)
        tx.db.execute(sql.DROP_EMPTY_COUNTS)


def _drop(tx: Transaction, seqs: Sequence[int]) -> int:
    if not seqs:
        return 0
    numbers = as_parameter(seqs)
    tx.db.execute(sql.DROP_NEEDS, (numbers, numbers))
    tx.db.execute(sql.DROP_ENDS, (numbers,))
    return tx.db.execute(sql.DROP_WORK, (numbers,)).rowcount


# Upkeep of the database: expiry, retention, vacuum. One process at a time does it, by turns.


log = structlog.get_logger()

_VACUUM_PAGES = 256
_TRIM_STEPS = 50
_SLEPT_S = 60.0  # a round that comes this late was held up, and with it perhaps everybody
_RARELY = 60  # rounds between two looks at what changes slowly


class DatabaseUpkeep:
    """Says when upkeep is due and what there is to do; the writer does it."""

    def __init__(self, config: SqliteConfig, runtime: Runtime, sweep_blobs: Callable[[], None]) -> None:
        self._config, self._runtime, self._sweep_blobs = config, runtime, sweep_blobs
        self._work = WorkSweep(config.limits)
        self._rounds = 0
        self._lock = LockFile(config.database.with_name(config.database.name + ".upkeep"))
        self._next_s = self._schedule()
        self._awake_since_s = self._round_s = runtime.boot_s()
        self._held_for: CursorKey | None = None

    def wait_s(self) -> float:
        return max(0.0, self._next_s - self._runtime.monotonic_s())

    def operations(self) -> Sequence[Operation[Any]]:
        self._next_s = self._schedule()
        # Whoever comes first keeps the task for its life.
        if not self._lock.try_lock():
            return ()
        self._rounds += 1
        limits, by_age = self._config.limits, self._is_age_due()
        steps: list[Operation[Any]] = [end_due, expire_some]
        steps += [lambda tx: self._work.step(tx, by_age=by_age)]
        steps += [lambda tx: self._trim(tx, by_age=by_age)] * _TRIM_STEPS
        steps += [_vacuum_some]
        if self._rounds % _RARELY == 1:
            steps += [lambda tx: drop_old_tombstones(tx, limits), drop_empty_lanes]
            self._sweep_blobs()
            if by_age:
                steps += [lambda tx: forget_old_positions(tx, limits)]
        return steps

    def _is_age_due(self) -> bool:
        """Not soon after a start or a sleep of the machine: nobody has seen what grew old meanwhile."""
        before_s, self._round_s = self._round_s, self._runtime.boot_s()
        if self._round_s - before_s > max(_SLEPT_S, 10 * self._config.upkeep_s):
            self._awake_since_s = self._round_s
        return self._round_s - self._awake_since_s >= self._config.limits.age_grace_s

    def _trim(self, tx: Transaction, *, by_age: bool) -> int:
        trimmed = trim_some(tx, self._config.limits, is_waiting=not by_age)
        if trimmed.held_for not in (None, self._held_for):
            log.warning(
                "engine.events.held",
                subscription=trimmed.held_for.consumer,
                process=trimmed.held_for.instance,
                reason=f"the log holds more than {self._config.limits.event_retention_rows} events, and this"
                f" one has not seen the oldest; at {self._config.limits.event_rows_max} no more are taken",
            )
        self._held_for = trimmed.held_for
        return trimmed.events

    def close(self) -> None:
        self._lock.close()

    def _schedule(self) -> float:
        # Spread out, so that processes that started together do not meet at each round.
        return self._runtime.monotonic_s() + self._config.upkeep_s * self._runtime.rng.uniform(0.5, 1.5)


def _vacuum_some(tx: Transaction) -> None:
    (free,) = tx.db.execute("PRAGMA freelist_count").fetchone()
    # One page at a time: the driver ends this pragma after its first step, whatever number it is given.
    for _ in range(min(free, _VACUUM_PAGES)):
        tx.db.execute("PRAGMA incremental_vacuum(1)")


# Opening and closing the embedded engine.


class SqliteLifecycle:
    """Closes everything once, whoever asks and however often."""

    def __init__(
        self,
        store: Store,
        blobs: FileBlobs,
        *,
        wakeups: Wakeups,
        turnstile: Turnstile,
        upkeep: DatabaseUpkeep,
    ) -> None:
        self._store, self._blobs = store, blobs
        self._wakeups, self._turnstile, self._upkeep = wakeups, turnstile, upkeep
        self._lock = threading.Lock()
        self._closed = False

    @property
    def failure(self) -> str:
        return self._store.failure

    @property
    def exchanged(self) -> str:
        return self._store.writer.held.problem()

    async def close(self) -> None:
        await asyncio.to_thread(self.close_blocking)

    def close_blocking(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            config = self._store.config
            finished = self._store.writer.close()
            are_ended = {
                "writer": finished,
                "reader": self._store.close_readers(),
                "blobs": self._blobs.close(wait_s=config.call_wait_s),
            }
            self._wakeups.close()
            if stuck := [name for name, ended in are_ended.items() if not ended]:
                log.error("engine.close.stuck", path=str(config.database), threads=stuck)
            if not finished:
                return  # its thread still waits for another process: what it needs must stay open
            self._turnstile.close()
            self._upkeep.close()


def open_sqlite(
    config: SqliteConfig, runtime: Runtime, *, migrations: Sequence[Migration] = MIGRATIONS
) -> Engine:
    """Open the engine, making its files if they are absent. Blocks; start it in a thread.

    Raises `ForeignFile`, `Corrupt`, `SchemaTooNew`, `StorageFull` or `StorageReadOnly`, each with the
    files as they were.
    """
    path = config.database
    with translated_errors(path), ExitStack() as undo:
        create_if_absent(config, migrations)
        if config.may_begin_in_empty_file:
            fill_if_empty(path, migrations)
        check_ours(path)
        check_writable(path)
        _check_contents(config, migrations)
        held = HeldPath.of(path)
        db = connect(config)
        undo.callback(db.close)
        turnstile = Turnstile(path)
        undo.callback(turnstile.close)
        if missing_migrations(db, path, migrations):
            with turnstile.passed_within(config.call_wait_s):
                migrate(db, path, migrations)
        clock = EngineClock(runtime, settle_anchor(db, turnstile, runtime, wait_s=config.call_wait_s))
        make_private_folder(config.blob_dir)
        blobs = FileBlobs(config.blob_dir, runtime, held)
        upkeep = DatabaseUpkeep(config, runtime, blobs.sweep)
        undo.pop_all()
    return _assemble(
        config, runtime, clock=clock, db=db, held=held, turnstile=turnstile, blobs=blobs, upkeep=upkeep
    )


def _check_contents(config: SqliteConfig, migrations: Sequence[Migration]) -> None:
    """Look before touching: a connection that may write changes the file when it closes."""
    with closing(connect(config, read_only=True)) as db:
        check_sound(db, config.database)
        check_wal(config.database)
        missing_migrations(db, config.database, migrations)


def _assemble(
    config: SqliteConfig,
    runtime: Runtime,
    *,
    clock: EngineClock,
    db: sqlite3.Connection,
    held: HeldPath,
    turnstile: Turnstile,
    blobs: FileBlobs,
    upkeep: DatabaseUpkeep,
) -> Engine:
    wakeups = Wakeups(config.database.with_name(config.database.name + ".wake"), Topics())
    writer = Writer(
        db, turnstile, held=held, config=config, clock=clock, upkeep=upkeep, announce=wakeups.announce
    )
    store = Store(config, runtime, clock=clock, writer=writer, wakeups=wakeups)
    engine = Engine(
        events=SqliteEventLog(store),
        queue=SqliteWorkQueue(store),
        kv=SqliteKeyValue(store),
        blobs=blobs,
        lifecycle=SqliteLifecycle(store, blobs, wakeups=wakeups, turnstile=turnstile, upkeep=upkeep),
    )
    writer.start()
    return engine
