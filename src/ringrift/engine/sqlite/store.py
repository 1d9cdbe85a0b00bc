"""The database of one process: writes through the writer, reads beside it, waits on topics."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from ringrift.engine import arguments
from ringrift.engine.blocking import end_threads
from ringrift.engine.engine_clock import EngineClock
from ringrift.engine.fencing import check_guard
from ringrift.engine.ports import WriteGuard
from ringrift.engine.sqlite.config import SqliteConfig
from ringrift.engine.sqlite.containment import contained
from ringrift.engine.sqlite.files import connect
from ringrift.engine.sqlite.kv_sql import LIVE_REVISION_OF
from ringrift.engine.sqlite.wakeups import Wakeups
from ringrift.engine.sqlite.writer import Operation, Transaction, Writer
from ringrift.engine.waiting import Look, wait_for_change
from ringrift.errors import ConfigError, Unavailable
from ringrift.runtime import Runtime

T = TypeVar("T")
Query = Callable[[sqlite3.Connection], T]

_READERS = 2


class Store:
    """What the three ports above SQLite share."""

    def __init__(
        self, config: SqliteConfig, runtime: Runtime, *, clock: EngineClock, writer: Writer, wakeups: Wakeups
    ) -> None:
        self.config, self.runtime, self.clock = config, runtime, clock
        self.writer, self._wakeups = writer, wakeups
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="ringrift-reader")
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._pid = os.getpid()
        self._closed = False
        self._unread = ""  # why no reader could be started

    @property
    def failure(self) -> str:
        """Why this process can no longer use the database; "" while it can."""
        return self.writer.failure or self._unread

    def check_process(self) -> None:
        """A forked child has neither the threads nor the locks of its parent."""
        if os.getpid() != self._pid:
            raise ConfigError(f"{self.config.database} was opened before a fork; open it again in the child")

    async def write(self, operation: Operation[T], *, guard: WriteGuard | None = None) -> T:
        self.check_process()
        if guard is None:
            return await self.writer.call(operation)

        arguments.check_guard(guard)

        def guarded(tx: Transaction) -> T:
            found = tx.db.execute(LIVE_REVISION_OF, (guard.key, tx.now_s)).fetchone()
            check_guard(guard, None if found is None else found[0])
            return operation(tx)

        return await self.writer.call(guarded)

    async def read(self, query: Query[T]) -> T:
        """Run *query* on a snapshot of what is committed."""
        try:
            async with asyncio.timeout(self.config.call_wait_s):
                return await asyncio.wrap_future(self.begin_read(query))
        except TimeoutError:
            raise Unavailable(
                f"{self.config.database} could not be read in {self.config.call_wait_s:g} s"
            ) from None

    def begin_read(self, query: Query[T]) -> Future[T]:
        self.check_process()
        if self._closed:
            raise Unavailable(f"the engine on {self.config.database} is closed")
        try:
            return self._readers.submit(self._read, query)
        except RuntimeError as error:  # no thread could be started, or the program is ending
            self._unread = f"{self.config.database} cannot be read: {error}"
            raise Unavailable(self._unread) from error

    async def wait(self, look: Look[T], *, topic: str, timeout_s: float) -> T | None:
        config = self.config
        return await wait_for_change(
            look,
            topic=topic,
            topics=self._wakeups,
            runtime=self.runtime,
            clock=self.clock,
            timeout_s=timeout_s,
            poll_s=max(config.poll_s, config.lost_wakeup_s) if self._wakeups.works else config.poll_s,
        )

    def close_readers(self) -> bool:
        """End the threads that read; return False if one is stuck, whose connection must stay open."""
        self._closed = True
        ended = end_threads(self._readers, wait_s=self.config.call_wait_s)
        if not ended:  # every caller has given up by now, so nobody misses what it would find
            for connection in self._connections:
                connection.interrupt()
            ended = end_threads(self._readers, wait_s=self.config.call_wait_s)
        if ended:
            for connection in self._connections:
                connection.close()
        return ended

    def _read(self, query: Query[T]) -> T:
        with contained(self.config.database):
            db: sqlite3.Connection | None = getattr(self._local, "db", None)
            if db is None:
                if problem := self.writer.held.problem():
                    raise Unavailable(problem)
                db = connect(self.config, read_only=True)
                self._local.db = db
                self._connections.append(db)
            db.execute("BEGIN")  # one snapshot for all statements of the query
            try:
                return query(db)
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")
