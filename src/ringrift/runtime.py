"""Time, randomness, identity, waiting and spawning: everything the world may do differently.

The control plane takes a `Runtime` and reads no clock itself, so that the same code runs under simulated
time (`ringrift.testing.simulation`). `monotonic_s` orders and measures; `now_s` is for people, for the
records that several processes share, and for expiry that must survive a restart.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TextIO, cast

import structlog

from ringrift.process import process_scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program to start in a session of its own."""

    argv: Sequence[str]
    env: Mapping[str, str] | None = None
    cwd: Path | None = None
    pass_fds: tuple[int, ...] = ()
    output: Path | None = None  # None discards stdout and stderr


class Child(Protocol):
    """A started program."""

    @property
    def pid(self) -> int: ...

    async def wait(self) -> int:
        """Return the exit code; negative is the number of the signal that ended it."""
        ...

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the child and everything it started; silent if all are gone."""
        ...


class Runtime(Protocol):
    """What the control plane may ask of the world."""

    @property
    def hostname(self) -> str: ...

    @property
    def pid(self) -> int: ...

    @property
    def rng(self) -> random.Random: ...

    def now_s(self) -> float:
        """Wall-clock seconds since the epoch; may jump."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never go back; only differences mean anything."""
        ...

    def new_id(self) -> str:
        """A fresh 36-character identifier, unique across processes and restarts."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    async def spawn(self, command: Command) -> Child: ...


class SystemRuntime:
    """The real world."""

    def __init__(self, *, seed: int | None = None) -> None:
        self.hostname = socket.gethostname()
        self.pid = os.getpid()
        self.rng = random.Random(seed)
        self._id_prefix = ""
        self._id_count = 0
        self._renew_id_prefix()
        os.register_at_fork(after_in_child=self._after_fork)

    def now_s(self) -> float:
        return time.time()

    def monotonic_s(self) -> float:
        return time.monotonic()

    def new_id(self) -> str:
        # A random prefix per process and a counter: as unique as a UUID at a tenth of the cost.
        self._id_count += 1
        return f"{self._id_prefix}{self._id_count:012x}"

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def spawn(self, command: Command) -> Child:
        sink = subprocess.DEVNULL if command.output is None else command.output.open("ab")
        try:
            process = await asyncio.create_subprocess_exec(
                *command.argv,
                env=None if command.env is None else dict(command.env),
                cwd=command.cwd,
                pass_fds=command.pass_fds,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
        finally:
            if not isinstance(sink, int):
                sink.close()
        return _SystemChild(process)

    def _after_fork(self) -> None:
        self.pid = os.getpid()
        self._renew_id_prefix()

    def _renew_id_prefix(self) -> None:
        text = os.urandom(12).hex()
        self._id_prefix = f"{text[:8]}-{text[8:12]}-4{text[13:16]}-a{text[17:20]}-"


class _SystemChild:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        return await self._process.wait()

    def signal_group(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return


class LogStderr:
    """Stderr as a place for log lines: whoever logs is not stopped because nobody reads any more.

    It is looked up for each line, because programs and tests exchange `sys.stderr`.
    """

    def __init__(self) -> None:
        self.lines_lost = 0

    def write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):  # the reader is gone, the disk is full, the file is closed
            self.lines_lost += 1

    def flush(self) -> None:
        """Every line is written at once."""


def system_runtime() -> Runtime:
    """Return the runtime that this process's shared objects use."""
    return process_scope().get(SystemRuntime, _system_runtime)


def _system_runtime() -> SystemRuntime:
    if not structlog.is_configured():
        _log_to_stderr()
    return SystemRuntime()


def _log_to_stderr() -> None:
    """Stdout belongs to the program. One that configures structlog, before or later, has its own way."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", LogStderr())),
    )
