"""Room for chunks, bounded for all connections together."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager

from ringrift.data.transfer.contract import CHUNK_BYTES
from ringrift.errors import Unavailable

_COUNT = 12
_WAIT_S = 30.0


class Buffers:
    """As many buffers of one chunk as there may be requests with a payload at the same time."""

    def __init__(self, count: int = _COUNT, *, wait_s: float = _WAIT_S) -> None:
        self._free: queue.LifoQueue[memoryview | None] = queue.LifoQueue()
        self._wait_s = wait_s
        for _ in range(count):
            self._free.put(None)  # made on first use

    @contextmanager
    def borrow(self) -> Iterator[memoryview]:
        """Use a buffer; `Unavailable` if none gets free in time."""
        try:
            buffer = self._free.get(timeout=self._wait_s)
        except queue.Empty:
            raise Unavailable("all buffers are in use", retry_after_s=5.0) from None
        buffer = buffer or memoryview(bytearray(CHUNK_BYTES))
        try:
            yield buffer
        finally:
            self._free.put(buffer)
