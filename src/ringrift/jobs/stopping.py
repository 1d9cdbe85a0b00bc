"""The request to stop: set once by a signal, looked at by the job between two steps of its work."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import structlog

log = structlog.get_logger()


class StopNow(Exception):
    """Leaves a job that has nothing to seal half-way; the frame turns it into an exit code."""


class StopRequest:
    """Says whether the job should seal what it has and end."""

    def __init__(self) -> None:
        self.reason: str | None = None

    @property
    def requested(self) -> bool:
        return self.reason is not None

    def request(self, reason: str) -> None:
        if self.reason is None:
            self.reason = reason


@contextmanager
def stop_on_signals(stop: StopRequest) -> Iterator[None]:
    """SIGTERM and SIGINT request a stop; a signal never interrupts a write."""

    def asked(number: int, _frame: FrameType | None) -> None:
        stop.request(signal.Signals(number).name)

    before = {number: signal.signal(number, asked) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
