"""The database of one process: writes through the writer, reads beside it, waits on topics."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sqlite3
import stat
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import structlog

from ringrift.engine import arguments
from ringrift.engine.blocking import end_threads
from ringrift.engine.fencing import check_guard
from ringrift.engine.ports import WriteGuard
from ringrift.engine.sqlite.files import SqliteConfig, connect
from ringrift.engine.sqlite.queries import LIVE_REVISION_OF
from ringrift.engine.sqlite.writer import Operation, Transaction, Writer, contained
from ringrift.engine.waiting import (
    ENDS,
    EVENTS,
    KV,
    QUEUE,
    EngineClock,
    Look,
    Topics,
    Waiter,
    wait_for_change,
)
from ringrift.errors import ConfigError, Unavailable
from ringrift.files import make_folder, make_folders, open_file
from ringrift.runtime import Runtime

# Wake-ups between processes: a datagram socket per waiting process and topic, in a private folder.
#
# After a commit the writer sends each changed topic to the sockets that are named after it, so that nobody is
# woken for what nobody there waits for. A lost wake-up costs a waiter at most its poll time, so every failure
# here is harmless; where sockets do not work, polling remains.


log = structlog.get_logger()

_DATAGRAM_BYTES = 256
_THROUGH_DESCRIPTOR = Path("/proc/self/fd")
_STOP = b"\x00"
_TOPIC = "."  # stands before it in a name


class Wakeups:
    """Sends and receives changed topics."""

    def __init__(self, folder: Path, topics: Topics) -> None:
        self._folder, self._topics = folder, topics
        self._folder_fd = _private_folder(folder)
        self._is_through_descriptor = _THROUGH_DESCRIPTOR.exists()
        self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sender.setblocking(False)
        self._name = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._lock = threading.Lock()
        self._receivers: dict[str, tuple[socket.socket, threading.Thread]] = {}  # by topic
        self._closed = False

    @property
    def works(self) -> bool:
        """Whether other processes can wake those who wait here."""
        return self._folder_fd is not None

    @contextmanager
    def listening(self, topic: str) -> Iterator[Waiter]:
        """Listen here and to other processes."""
        self._ensure_receiver(topic)
        with self._topics.listening(topic) as waiter:
            yield waiter

    def changes(self, topic: str) -> int | None:
        """How often *topic* has changed here and elsewhere; None if changes elsewhere are not heard of."""
        is_heard = topic in self._receivers and self._folder_fd is not None
        return self._topics.changes(topic) if is_heard else None

    def announce(self, changed: Collection[str]) -> None:
        """Wake the waiters of this and all other processes; never blocks."""
        self._topics.wake(changed)
        folder_fd = self._folder_fd
        if folder_fd is None:
            return
        plain = ",".join(sorted({EVENTS, KV, QUEUE, ENDS}.intersection(changed)))
        for name in os.listdir(folder_fd):
            owner, _, topic = name.partition(_TOPIC)
            if owner == self._name:
                continue
            if topic in changed:
                self._send(name, topic.encode())
            elif not topic:  # of an earlier version: one socket for all topics
                self._send(name, plain.encode())

    def _send(self, name: str, message: bytes) -> None:
        try:
            self._sender.sendto(message, self._address(name))
        except ConnectionRefusedError:
            self._remove(name)  # its process is gone; names are never used twice
        except OSError:
            return  # its buffer is full of wake-ups already, or it went away just now

    def _ensure_receiver(self, topic: str) -> None:
        if topic in self._receivers or self._folder_fd is None:
            return
        with self._lock:
            if topic in self._receivers or self._closed:
                return
            receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                receiver.bind(self._address(f"{self._name}{_TOPIC}{topic}"))
            except OSError as error:
                receiver.close()
                self._folder_fd = None  # stays open: the writer may be using it
                log.warning("engine.wakeups.polling", folder=str(self._folder), reason=str(error))
                return
            thread = threading.Thread(
                target=self._receive, args=(receiver,), name=f"ringrift-wakeups-{topic}", daemon=True
            )
            self._receivers[topic] = (receiver, thread)
            thread.start()

    def _receive(self, receiver: socket.socket) -> None:
        while True:
            message = receiver.recv(_DATAGRAM_BYTES)
            if message == _STOP:
                return
            self._topics.wake(message.decode(errors="replace").split(","))

    def close(self) -> None:
        with self._lock:
            self._closed = True
        for topic, (receiver, thread) in self._receivers.items():
            name = f"{self._name}{_TOPIC}{topic}"
            self._send(name, _STOP)
            thread.join(1.0)
            self._remove(name)
            receiver.close()
        self._sender.close()
        if self._folder_fd is not None:
            os.close(self._folder_fd)
            self._folder_fd = None

    def _remove(self, name: str) -> None:
        try:
            os.unlink(name, dir_fd=self._folder_fd)
        except OSError:
            return  # another process was first

    def _address(self, name: str) -> str:
        # A path through the descriptor is short, however deep the folder lies, and leads nowhere else.
        if self._is_through_descriptor:
            return str(_THROUGH_DESCRIPTOR / str(self._folder_fd) / name)
        return str(self._folder / name)


def _private_folder(folder: Path) -> int | None:
    """Open the folder, made if need be; None when it is not ours alone."""
    try:
        make_folders(folder.parent)
        with suppress(FileExistsError):
            make_folder(folder, 0o700)
        descriptor = open_file(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        log.warning("engine.wakeups.polling", folder=str(folder), reason=str(error))
        return None
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        log.warning("engine.wakeups.polling", folder=str(folder), reason="other users may write there")
        os.close(descriptor)
        return None
    return descriptor


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

    def changes(self, topic: str) -> int | None:
        """How often *topic* has changed, since somebody waited for it first; None if nobody can tell."""
        return self._wakeups.changes(topic)

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
