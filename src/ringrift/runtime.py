"""Time, randomness, identity, waiting and spawning: everything the world may do differently.

The control plane takes a `Runtime` and reads no clock itself, so that the same code runs under simulated
time (`ringrift.testing.simulation`). `monotonic_s` orders and measures inside one process; `now_s` is for the
records that several processes share and for expiry that must survive a restart: setting the wall clock does
not change it. `wall_s` is for people and for the ages of files.
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
from collections.abc import Coroutine, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, TextIO, TypeVar, cast

import structlog

from ringrift import clock
from ringrift.clock import ClockAnchor
from ringrift.errors import Conflict, Corrupt, Unavailable
from ringrift.files import full_disk, open_file
from ringrift.process import process_scope
from ringrift.redaction import hide_secrets

# What becomes of a log line before it is written.
#
# A condition of the outside is told without a traceback: `Unavailable`, `Conflict` and `Corrupt` say what is
# the matter, so where the program was when they came up helps nobody. A bug keeps its traceback.
# What only says again that the disk is full is left out.


log = structlog.get_logger()

T = TypeVar("T")


def log_full_disk() -> None:
    """Let a full disk be said in the log of this process."""
    full_disk().say = log.log


def prepare_line(_logger: object, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor, to stand before the one that renders exceptions."""
    if full_disk().leaves_out(line):
        raise structlog.DropEvent
    error = line.get("exc_info")
    if isinstance(error, Conflict | Corrupt | Unavailable):
        del line["exc_info"]
        line.setdefault("error", str(error))
    return line


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program to start in a session of its own."""

    argv: Sequence[str]
    env: Mapping[str, str] | None = None
    cwd: Path | None = None
    pass_fds: tuple[int, ...] = ()
    output: Path | None = None  # None discards stdout and stderr
    input: Path | None = None  # the file that it reads as stdin; None: nothing
    piped: bool = False  # stdout is read with `Child.read` instead


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

    async def read(self, size: int) -> bytes:
        """Return up to *size* bytes of a piped stdout, as soon as there are any; none at its end."""
        ...

    def stop_reading(self) -> None:
        """Let go of a piped stdout, which may be held open by what the child left behind."""
        ...


class Runtime(Protocol):
    """What the control plane may ask of the world."""

    @property
    def hostname(self) -> str: ...

    @property
    def pid(self) -> int: ...

    @property
    def rng(self) -> random.Random: ...

    @property
    def boot_id(self) -> str:
        """Which start of which machine this is; `boot_s` means nothing across different ones."""
        ...

    def now_s(self) -> float:
        """Seconds since the epoch as all processes on one engine count them: no step, and never back.

        It begins with the wall clock; see `keep_time`.
        """
        ...

    def wall_s(self) -> float:
        """What the wall clock says; may jump."""
        ...

    def boot_s(self) -> float:
        """Seconds since the machine started, sleep included: the same in all its processes."""
        ...

    def keep_time(self, anchor: ClockAnchor) -> None:
        """Count `now_s` from *anchor*, as the others on the same engine do; the first one given stays."""
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
        self.boot_id = clock.boot_id()
        self._own_anchor = ClockAnchor(self.boot_id, self.boot_s(), self.wall_s())
        self._anchor: ClockAnchor | None = None
        self._id_prefix = ""
        self._id_count = 0
        self._renew_id_prefix()
        os.register_at_fork(after_in_child=self._after_fork)

    def now_s(self) -> float:
        return (self._anchor or self._own_anchor).at(self.boot_s())

    def wall_s(self) -> float:
        return clock.wall_s()

    def monotonic_s(self) -> float:
        return clock.monotonic_s()

    def boot_s(self) -> float:
        return clock.boot_s()

    def keep_time(self, anchor: ClockAnchor) -> None:
        self._anchor = self._anchor or anchor

    def new_id(self) -> str:
        # A random prefix per process and a counter: as unique as a UUID at a tenth of the cost.
        self._id_count += 1
        return f"{self._id_prefix}{self._id_count:012x}"

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def spawn(self, command: Command) -> Child:
        pipe = await OutputPipe.open() if command.piped else None
        try:
            with ExitStack() as files:
                if pipe is not None:
                    files.callback(pipe.close_write_end)
                sink = _opened(files, command.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, "ab")
                process = await asyncio.create_subprocess_exec(
                    *command.argv,
                    env=None if command.env is None else dict(command.env),
                    cwd=command.cwd,
                    pass_fds=command.pass_fds,
                    stdin=_opened(files, command.input, os.O_RDONLY, "rb"),
                    stdout=sink if pipe is None else pipe.write_fd,
                    stderr=sink,
                    start_new_session=True,
                )
        except BaseException:
            if pipe is not None:
                pipe.close()
            raise
        return _SystemChild(process, pipe)

    def _after_fork(self) -> None:
        self.pid = os.getpid()
        self._renew_id_prefix()

    def _renew_id_prefix(self) -> None:
        text = os.urandom(12).hex()
        self._id_prefix = f"{text[:8]}-{text[8:12]}-4{text[13:16]}-a{text[17:20]}-"


def _opened(files: ExitStack, path: Path | None, flags: int, mode: str) -> IO[bytes] | int:
    if path is None:
        return subprocess.DEVNULL
    return files.enter_context(os.fdopen(open_file(path, flags), mode))


class OutputPipe:
    """The reading end of a child's stdout."""

    def __init__(self, write_fd: int, reader: asyncio.StreamReader, transport: asyncio.ReadTransport) -> None:
        self.write_fd, self.reader, self._transport = write_fd, reader, transport

    @classmethod
    async def open(cls) -> OutputPipe:
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_fd, "rb", 0)
        )
        return cls(write_fd, reader, transport)

    def close_write_end(self) -> None:
        """Leave it to the child alone, so that its end is the end of the output."""
        os.close(self.write_fd)

    def close(self) -> None:
        self._transport.close()


class _SystemChild:
    def __init__(self, process: asyncio.subprocess.Process, pipe: OutputPipe | None) -> None:
        self._process, self._pipe = process, pipe

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

    async def read(self, size: int) -> bytes:
        return b"" if self._pipe is None else await self._pipe.reader.read(size)

    def stop_reading(self) -> None:
        if self._pipe is not None:
            self._pipe.close()


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


@contextmanager
def first_error() -> Iterator[None]:
    """Around a task group: raise its first error as it is. Whoever reads of an end wants its cause.

    Whoever is cancelled in the same moment is cancelled: a group would raise its errors alone.
    """
    task = asyncio.current_task()
    assert task is not None, "task groups are in tasks"
    cancels = task.cancelling()
    try:
        yield
    except ExceptionGroup as errors:
        if task.cancelling() > cancels:
            raise asyncio.CancelledError from errors
        raise errors.exceptions[0] from None


async def result_before(work: Coroutine[Any, Any, T], *others: Coroutine[Any, Any, object]) -> T | None:
    """Return what *work* gives; None if one of *others* is over before. Those that are not over are ended.

    An error of any of them ends all and is raised.
    """
    with first_error():
        async with asyncio.TaskGroup() as group:
            working = group.create_task(work)
            waits = [working, *(group.create_task(each) for each in others)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for each in waits:
                each.cancel()
    # Work that was done when it was to be ended counts: a claim that nobody took would be lost.
    return None if working.cancelled() else working.result()


async def first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait until one of *waits* is over, and end the others."""
    await result_before(*waits)


def system_runtime() -> Runtime:
    """Return the runtime that this process's shared objects use."""
    return process_scope().get(SystemRuntime, _system_runtime)


def _system_runtime() -> SystemRuntime:
    if not structlog.is_configured():
        _log_to_stderr()
    return SystemRuntime()


def _log_to_stderr() -> None:
    """Stdout belongs to the program. One that configures structlog, before or later, has its own way."""
    *usual, renderer = structlog.get_config()["processors"]
    structlog.configure(
        processors=[prepare_line, *usual, hide_secrets, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", LogStderr())),
    )


# How long to wait after failures in a row: longer after each, and never longer than a limit.


# Enough for every wait to reach its limit, and few enough for no number to overflow: a count of failures may
# have been written by another program.
_STEPS_MAX = 500


def back_off_s(failures: int, *, first_s: float, longest_s: float, growth: float = 2.0) -> float:
    """Return the wait after so many failures in a row: *first_s*, and *growth* times as long each time.

    Whoever must not come back in the same moment as others spreads it with the `Runtime`'s randomness.
    """
    steps = min(max(failures - 1, 0), _STEPS_MAX)
    return min(first_s * growth**steps, longest_s)
