"""`python -m ringrift.jobs.host FD KINDS KINDS`: the process from which a worker's jobs are forked.

It has loaded what jobs load first, which takes a job longer than many jobs take, and does one thing: for each
order that comes over the socket FD, with the job's stdin, stdout and stderr beside it, it forks a child that
is what `python -m ringrift.jobs KIND …` would be: a session, an environment, a folder, descriptors and exit
code of its own. What jobs of the first KINDS need is loaded before the first order is taken, what the second
ones need when no order comes for a while, and so are the compiled rules of each config of which a job ended
well. It never computes, starts no thread and touches no GPU, so that a
child may do all of that. When the worker is gone it kills what it forked and ends; when it is killed, the
kernel kills its children.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ringrift.decoding import decode_as
from ringrift.errors import ConfigError
from ringrift.jobs.kinds import EXIT_INTERRUPTED, job_main, leave, main, one_thread_per_process
from ringrift.process_identity import environment_area

MESSAGE_BYTES_MAX = 64_000  # of an order; the buffer of a socket takes several
# The environment that others see of a process is the one that it was started with. This variable of the host
# keeps the room in which a child writes what its own environment has beside the host's.
ROOM_VARIABLE = "RINGRIFT_JOB_ROOM"
ROOM_BYTES = 8192
STREAMS = 3  # stdin, stdout, stderr
IDLE_S = 2.0  # without an order, before what the next jobs may need is loaded
_PR_SET_PDEATHSIG = 1
# What the modules of a kind do not load but its jobs do, each time: what torch's determinism setting loads,
# and the compiler, with the first game.
_LOADED_LATE = {
    "train": "torch._inductor",
    **dict.fromkeys(("validate", "export", "consolidate"), "ringrift.games.compiled"),
}


# A library that is broken breaks only the jobs that need it, and not the host of all others.
_NOT_LOADED = (ImportError, OSError, RuntimeError, AttributeError, TypeError, ValueError)


class HostOrder(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """Start a job. Its three streams travel with this message."""

    number: int
    argv: tuple[str, ...]  # after `python -m ringrift.jobs`
    env: dict[str, str]
    folder: str
    config: str = ""  # of the job; its rules are loaded for the next


class HostReady(msgspec.Struct, frozen=True, tag="ready"):
    """What was to be loaded at once is loaded."""


class HostStarted(msgspec.Struct, frozen=True, kw_only=True, tag="started"):
    """The job is a process in a session of its own."""

    number: int
    pid: int


class HostRefused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """Nothing was started."""

    number: int
    reason: str
    errno: int = 0
    outdated: bool = False  # another host would start it


class HostEnded(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """The job's process is gone."""

    number: int
    code: int  # negative: the number of the signal
    cpu_s: float  # with what it started and waited for


HostReply = HostReady | HostStarted | HostRefused | HostEnded


@dataclass(slots=True)
class _Loaded:
    """The modules that children need not load again, and the files that they came from."""

    waiting: list[str]  # kinds whose modules are loaded when nothing else is to do
    kinds: set[str] = field(default_factory=set)
    games: set[tuple[str, str]] = field(default_factory=set)  # kinds of jobs and configs that ended well
    played: set[str] = field(default_factory=set)  # configs whose rules are to be loaded as well
    files: dict[str, tuple[int, int]] = field(default_factory=dict)

    def load(self, kind: str) -> None:
        """Load what jobs of *kind* need first. What cannot be loaded fails again in its jobs, in words."""
        if kind in self.kinds:
            return
        self.kinds.add(kind)
        try:
            with suppress(ConfigError):  # there is no such kind, or it is not installed
                job_main(kind)
                if late := _LOADED_LATE.get(kind):
                    importlib.import_module(late)
        except _NOT_LOADED as error:
            sys.stderr.write(f"what jobs of the kind {kind} need is not loaded: {error!r}\n")
        if "numba" in sys.modules:
            # What numba loads with the first compiled function, however small.
            target = importlib.import_module("numba.core.registry").cpu_target
            target.typing_context.refresh()
            target.target_context.refresh()
        self._settle()

    def load_next(self) -> None:
        while self.waiting and self.waiting[0] in self.kinds:
            self.waiting.pop(0)
        if self.waiting:
            self.load(self.waiting.pop(0))
        elif self.played:
            self._load_game(self.played.pop())

    def note_played(self, kind: str, config: str) -> None:
        """A job ended well: what it compiled is on disk by now, and can be loaded."""
        if config and (kind, config) not in self.games:
            self.games.add((kind, config))
            self.played.add(config)

    def _load_game(self, config: str) -> None:
        """Load the rules of a game of ours, and all machine code that jobs found or left on disk."""
        try:
            registry = importlib.import_module("ringrift.games.registry")
            compiled = importlib.import_module("ringrift.games.compiled")
            with suppress(ConfigError):  # such as no game any more; its job says so itself
                if registry.is_compiled(config):
                    registry.load_game(config)
                    compiled.load_stored_kernels()
        except _NOT_LOADED as error:
            sys.stderr.write(f"the rules of {config} are not loaded: {error!r}\n")
        self._settle()

    def _settle(self) -> None:
        self._note_files()
        # Children copy the pages that they write to, and a collector writes to whatever it looks at.
        gc.collect()
        gc.freeze()

    def _note_files(self) -> None:
        own = str(Path(__file__).parents[1]) + os.sep
        for name, module in list(sys.modules.items()):
            path = getattr(module, "__file__", None)
            if path and path not in self.files and (path.startswith(own) or name in ("numba", "torch")):
                self.files[path] = _stamp(path)

    def is_outdated(self) -> bool:
        """Whether a program that is started now would not be the one that is loaded here."""
        return any(_stamp(path) != stamp for path, stamp in self.files.items())


def _stamp(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)


class _Host:
    def __init__(self, channel: socket.socket, *, now: Iterable[str], later: Iterable[str]) -> None:
        self._channel = channel
        self._loaded = _Loaded(waiting=list(later))
        for kind in now:
            self._loaded.load(kind)
        self._room = _Room()
        self._pid = os.getpid()
        self._jobs: dict[int, HostOrder] = {}  # pid: what it does
        self._wake, wake_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler that is ours writes to the wake-up pipe
        signal.set_wakeup_fd(wake_in)

    def serve(self) -> HostOrder | None:
        """Fork for each order until the worker is gone.

        Returns twice: the order in each child, which is to carry it out, and None in the host at its end.
        """
        self._say(HostReady())
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            wait_s = IDLE_S if self._loaded.waiting or self._loaded.played else None
            ready = {fd for fd, _ in poll.poll(None if wait_s is None else 1000 * wait_s)}
            if not ready:
                self._loaded.load_next()
            if self._wake in ready:
                self._reap()
            if self._channel.fileno() in ready:
                message, streams = self._hear()
                if not message:
                    self._end_jobs()
                    return None
                order = decode_as(message, HostOrder)
                if self._start(order, streams):
                    return order

    def _hear(self) -> tuple[bytes, Sequence[int]]:
        """The next message, with the streams beside it; nothing if the worker is gone."""
        try:
            message, streams, _, _ = socket.recv_fds(self._channel, MESSAGE_BYTES_MAX + 1, STREAMS)
        except ConnectionResetError:  # it had not read everything
            return b"", ()
        return message, streams

    def _start(self, order: HostOrder, streams: Sequence[int]) -> bool:
        """Fork; whether this is the child."""
        if self._loaded.is_outdated():
            why = HostRefused(number=order.number, reason="its files have changed", outdated=True)
            return self._refuse(why, streams)
        self._loaded.load(order.argv[0])
        if (threads := len(os.listdir("/proc/self/task"))) > 1:
            # Only this thread would be in the child, which would wait for what the others hold.
            why = HostRefused(number=order.number, reason=f"{threads} threads run in it", outdated=True)
            return self._refuse(why, streams)
        reading, tell = os.pipe2(os.O_CLOEXEC)
        try:
            pid = os.fork()
        except OSError as error:
            for each in (reading, tell):
                os.close(each)
            why = HostRefused(number=order.number, reason=error.strerror or "fork", errno=error.errno or 0)
            return self._refuse(why, streams)
        if pid == 0:
            self._become(order, streams, tell)
            return True
        for each in (tell, *streams):
            os.close(each)
        with os.fdopen(reading, "rb") as answer:
            problem = answer.read().decode(errors="replace")
        if problem:
            os.waitpid(pid, 0)
            return self._refuse(HostRefused(number=order.number, reason=problem), ())
        self._jobs[pid] = order
        self._say(HostStarted(number=order.number, pid=pid))
        return False

    def _refuse(self, why: HostRefused, streams: Sequence[int]) -> bool:
        for each in streams:
            os.close(each)
        self._say(why)
        return False

    def _become(self, order: HostOrder, streams: Sequence[int], tell: int) -> None:
        """Make of the forked child what a program that was started has; the host waits for it."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self._pid:
            os._exit(1)
        try:
            os.chdir(order.folder)
        except OSError as error:
            os.write(tell, f"{order.folder}: {error.strerror}".encode())
            os._exit(1)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        self._room.show(order.env)
        os.environ.clear()
        os.environ.update(order.env)
        sys.argv[1:] = order.argv
        sys.path[0] = os.getcwd()
        self._channel.detach()
        for name in os.listdir("/proc/self/fd"):
            if int(name) >= STREAMS and int(name) != tell:
                with suppress(OSError):  # that of the list itself
                    os.close(int(name))
        os.close(tell)

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._wake, 4096)
        for pid, order in tuple(self._jobs.items()):
            ended, status, usage = os.wait4(pid, os.WNOHANG)
            if ended:
                del self._jobs[pid]
                code, cpu_s = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
                self._say(HostEnded(number=order.number, code=code, cpu_s=round(cpu_s, 3)))
                if code == 0:
                    self._loaded.note_played(order.argv[0], order.config)

    def _say(self, reply: HostReply) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # its end is read next
            self._channel.sendall(msgspec.json.encode(reply))

    def _end_jobs(self) -> None:
        for pid in self._jobs:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


class _Room:
    """Where a child shows its own environment to others, who look for jobs by it."""

    def __init__(self) -> None:
        start, end = environment_area()
        shown = ctypes.string_at(start, end - start)
        at = shown.rindex(f"{ROOM_VARIABLE}=".encode())
        self._start, self._size = start + at, end - start - at
        self._before = set(shown[:at].split(b"\0"))

    def show(self, env: dict[str, str]) -> None:
        """Write what *env* has beside the host's environment; what stood there is gone."""
        pairs = (os.fsencode(f"{name}={value}") for name, value in env.items())
        text = b"".join(pair + b"\0" for pair in pairs if pair not in self._before)
        text = text[: self._size - 1]
        ctypes.memmove(self._start, text.ljust(self._size, b"\0"), self._size)


def fits_in_host(argv: Sequence[str], env: dict[str, str], own: Iterable[str]) -> bool:
    """Whether an order of that can be sent, and the variables *own*, of the job alone, can be shown."""
    shown = sum(len(os.fsencode(f"{name}={env[name]}")) + 1 for name in own if name in env)
    return shown < ROOM_BYTES and len(msgspec.json.encode((argv, env))) < MESSAGE_BYTES_MAX - 10_000


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def run(argv: Sequence[str]) -> None:
    """The process from its start; ends it, also in each child."""
    one_thread_per_process()
    descriptor, now, later = argv
    channel = socket.socket(fileno=int(descriptor))
    order = _Host(channel, now=_words(now), later=_words(later)).serve()
    if order is None:
        sys.exit(0)
    try:
        code = main(list(order.argv))
    except KeyboardInterrupt:  # before the job could take the signal: nothing was begun
        code = EXIT_INTERRUPTED
    leave(code)


if __name__ == "__main__":
    run(sys.argv[1:])
