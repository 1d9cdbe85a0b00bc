"""Opening and closing the embedded engine."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing

import structlog

from ringrift.engine.engine_clock import EngineClock
from ringrift.engine.ports import Engine
from ringrift.engine.sqlite.blobs import FileBlobs
from ringrift.engine.sqlite.config import SqliteConfig
from ringrift.engine.sqlite.events import SqliteEventLog
from ringrift.engine.sqlite.faults import told_in_our_words
from ringrift.engine.sqlite.files import (
    check_ours,
    check_sound,
    check_writable,
    connect,
    create_if_absent,
    fill_if_empty,
)
from ringrift.engine.sqlite.kv import SqliteKeyValue
from ringrift.engine.sqlite.queue import SqliteWorkQueue
from ringrift.engine.sqlite.schema import MIGRATIONS, Migration, migrate, missing_migrations
from ringrift.engine.sqlite.store import Store
from ringrift.engine.sqlite.time_anchor import settle_anchor
from ringrift.engine.sqlite.turnstile import Turnstile
from ringrift.engine.sqlite.upkeep import DatabaseUpkeep
from ringrift.engine.sqlite.wakeups import Wakeups
from ringrift.engine.sqlite.wal_check import check_wal
from ringrift.engine.sqlite.writer import Writer
from ringrift.engine.waiting import Topics
from ringrift.file_identity import HeldPath
from ringrift.private_files import make_private_folder
from ringrift.runtime import Runtime

log = structlog.get_logger()


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
    with told_in_our_words(path), ExitStack() as undo:
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
