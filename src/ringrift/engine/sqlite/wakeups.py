"""Wake-ups between processes: a datagram socket per waiting process and topic, in a private folder.

After a commit the writer sends each changed topic to the sockets that are named after it, so that nobody is
woken for what nobody there waits for. A lost wake-up costs a waiter at most its poll time, so every failure
here is harmless; where sockets do not work, polling remains.
"""

from __future__ import annotations

import os
import secrets
import socket
import stat
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from ringrift.engine.waiting import Topics, Waiter
from ringrift.held_folder import make_folder, make_folders, open_file

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

    def announce(self, changed: Collection[str]) -> None:
        """Wake the waiters of this and all other processes; never blocks."""
        self._topics.wake(changed)
        folder_fd = self._folder_fd
        if folder_fd is None:
            return
        for name in os.listdir(folder_fd):
            owner, _, topic = name.partition(_TOPIC)
            if owner == self._name:
                continue
            if topic in changed:
                self._send(name, topic.encode())
            elif not topic:  # of an earlier version: one socket for all topics
                self._send(name, ",".join(sorted(changed)).encode())

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
