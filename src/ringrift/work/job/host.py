"""The host process of a worker, from which its jobs are forked (`ringrift.jobs.host`).

It starts with the first job, and another takes its place after so many jobs or when the program's files have
changed; the one before ends with the last of its jobs. A job that it forked is a `Child` like one that was
started. If a host dies, its jobs are killed with it and the next job gets another host: nothing that a job
does can end the host, and nothing that happens to the host can end the worker.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import structlog

from ringrift.daemons.child_process import keep_log_small, log_tail, process_guard
from ringrift.decoding import decoder_of
from ringrift.errors import Unavailable
from ringrift.files import make_folders, open_file
from ringrift.jobs.host import (
    MESSAGE_BYTES_MAX,
    ROOM_BYTES,
    ROOM_VARIABLE,
    HostEnded,
    HostOrder,
    HostReady,
    HostRefused,
    HostReply,
    HostStarted,
    fits_in_host,
)
from ringrift.runtime import Child, Command, OutputPipe, Runtime
from ringrift.setting_kinds import JobSettings
from ringrift.task_owner import TaskOwner
from ringrift.work.job.protocol import CONFIG_VARIABLE, OWN_VARIABLES, base_environment, job_argv
from ringrift.work.worker.records import has_gpu_in_reach

log = structlog.get_logger()

# What the loop orders, in the order of a round: loaded while nothing else is to do.
LOADED = ("selfplay", "validate", "export", "train", "evaluate")
HOST = (sys.executable, "-m", "ringrift.jobs.host")
ANSWER_S = 120.0  # the longest load of a kind's libraries, on a machine that is busy with others
END_S = 5.0
FULL_S = 0.05  # before an order is sent again that had no room in the socket
RETRY_S = 5.0
LOST = -int(signal.SIGKILL)  # how a job ended whose host is gone: the kernel kills it then

_decoder = decoder_of(HostReply)


class JobHost:
    """Starts jobs for one worker."""

    def __init__(
        self, runtime: Runtime, *, folder: Path, name: str, kinds: frozenset[str] | None, jobs_max: int
    ) -> None:
        """A host is renewed after *jobs_max* jobs; with 0 every job is a program that is started."""
        self._runtime, self._jobs_max = runtime, jobs_max
        is_real = sys.platform == "linux" and runtime.pid == os.getpid()
        # What a library asks of a GPU before a fork is of no use after it.
        self._may_fork = is_real and jobs_max > 0 and not has_gpu_in_reach()
        self._folder, self._log = folder, folder / f"{name}.log"
        self._kinds = tuple(kind for kind in LOADED if kinds is None or kind in kinds)
        self._current: _HostProcess | None = None
        self._tasks = TaskOwner("hosts of jobs")
        self._renewing: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()

    def takes(self, kind: str, said: JobSettings, env: dict[str, str]) -> bool:
        """Whether jobs of *kind* are forked: not other programs, and none with variables of its own."""
        is_ours = not said.command and not said.env
        return self._may_fork and is_ours and fits_in_host(job_argv(kind, said), env, OWN_VARIABLES)

    async def spawn(self, command: Command) -> Child:
        """Start a job; `OSError` as if it was started, `Unavailable` if there is no host to do it."""
        for _ in range(2):
            host = await self._host()
            child = await host.start(command)
            if child is not None:
                if host.jobs >= self._jobs_max and self._renewing is None:
                    self._renewing = self._tasks.create_task(self._renew())
                return child
            async with self._starting:
                if self._current is host:
                    self._current = None
                    host.retire()
        raise Unavailable("the host of jobs refuses them, and so does a fresh one", retry_after_s=RETRY_S)

    async def close(self) -> None:
        """End the host, and with it whatever it forked and still runs."""
        if (renewing := self._renewing) is not None:
            renewing.cancel()
            await asyncio.wait({renewing})
        if self._current is not None:
            await self._current.end()
        await self._tasks.stop(END_S)

    async def _host(self) -> _HostProcess:
        async with self._starting:
            if self._current is None or self._current.is_lost:
                self._current = await self._start()
            return self._current

    async def _renew(self) -> None:
        """Have the next host ready, with all that this one has loaded, before it takes the place."""
        before = self._current
        try:
            fresh = await self._start(now=() if before is None else sorted(before.kinds))
            await asyncio.wait({fresh.ready}, timeout=ANSWER_S)
            if not fresh.ready.done() or fresh.is_lost:
                await fresh.end()
                raise ChildProcessError("it did not become ready")
            async with self._starting:
                before, self._current = self._current, fresh
            if before is not None:
                before.retire()
        except OSError as error:  # such as no room for another process; this one goes on
            log.warning("worker.host_not_renewed", error=str(error))
        finally:
            self._renewing = None

    async def _start(self, *, now: Sequence[str] = ()) -> _HostProcess:
        await asyncio.to_thread(make_folders, self._folder)
        await asyncio.to_thread(keep_log_small, self._log)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                child = await self._runtime.spawn(
                    Command(
                        argv=(*HOST, str(theirs.fileno()), ",".join(now), ",".join(self._kinds)),
                        # The room comes last, so that nothing follows what a job writes there.
                        env={**base_environment(), ROOM_VARIABLE: " " * ROOM_BYTES},
                        cwd=self._folder,
                        pass_fds=(theirs.fileno(),),
                        output=self._log,
                    )
                )
        except BaseException:
            ours.close()
            raise
        process_guard().add(child.pid)
        log.info("worker.host_started", pid=child.pid)
        return _HostProcess(self._runtime, child, ours, self._log, tasks=self._tasks)


class _HostProcess:
    """One host, and the jobs that it forked."""

    def __init__(
        self, runtime: Runtime, child: Child, channel: socket.socket, log_path: Path, *, tasks: TaskOwner
    ) -> None:
        self._runtime, self._child, self._channel, self._log = runtime, child, channel, log_path
        self.jobs = 0
        self.kinds: set[str] = set()  # of those jobs
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answers: dict[int, asyncio.Future[HostStarted | HostRefused]] = {}
        self._running: dict[int, asyncio.Future[HostEnded]] = {}
        self._is_retired = False
        self._ended = tasks.create_task(child.wait(), name=f"host {child.pid}")
        self._ended.add_done_callback(self._lose)
        channel.setblocking(False)
        asyncio.get_running_loop().add_reader(channel, self._hear)

    @property
    def is_lost(self) -> bool:
        return self._ended.done()

    async def start(self, command: Command) -> Child | None:
        """Fork a job; None if this host cannot any more."""
        self.jobs += 1
        self.kinds.add(command.argv[3])
        number, loop = self.jobs, asyncio.get_running_loop()
        order = HostOrder(
            number=number,
            argv=tuple(command.argv[3:]),
            env=dict(command.env or {}),
            folder=str((command.cwd or Path()).absolute()),
            config=(command.env or {}).get(CONFIG_VARIABLE, ""),
        )
        answer = self._answers[number] = loop.create_future()
        ended = self._running[number] = loop.create_future()
        pipe = await OutputPipe.open()
        try:
            with ExitStack() as files:
                files.callback(pipe.close_write_end)
                stdin = _opened(files, command.input, os.O_RDONLY)
                stderr = _opened(files, command.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                async with asyncio.timeout(ANSWER_S):
                    await self._send(order, (stdin, pipe.write_fd, stderr))
                    said = await answer
        except TimeoutError:
            self._forget(number, pipe)
            self._child.signal_group(signal.SIGKILL)
            raise Unavailable("the host of jobs does not answer", retry_after_s=RETRY_S) from None
        except BaseException:
            self._forget(number, pipe)
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                _end_unwanted(answer.result())  # it began just now, and nobody would hear of it
            raise
        if isinstance(said, HostStarted):
            return HostedChild(said.pid, ended, pipe)
        self._forget(number, pipe)
        if said.outdated:
            log.info("worker.host_outdated", reason=said.reason)
            return None
        raise OSError(said.errno, said.reason)

    def retire(self) -> None:
        """Start nothing more; end with the last job."""
        self._is_retired = True
        self._end_if_idle()

    async def end(self) -> None:
        self._close()
        try:
            async with asyncio.timeout(END_S):
                await asyncio.wait({self._ended})
        except TimeoutError:
            log.warning("worker.host_killed", pid=self._child.pid)
            self._child.signal_group(signal.SIGKILL)

    async def _send(self, order: HostOrder, streams: Sequence[int]) -> None:
        message = msgspec.json.encode(order)
        # A host that died is noticed by whoever waits for the answer.
        with suppress(BrokenPipeError, ConnectionResetError):
            while not self.is_lost:
                try:
                    socket.send_fds(self._channel, [message], streams)
                except BlockingIOError:  # it loads libraries, and many orders wait for it
                    await self._runtime.sleep(FULL_S)
                    continue
                return

    def _hear(self) -> bool:
        """Take in the next message; whether there was one."""
        try:
            message = self._channel.recv(MESSAGE_BYTES_MAX)
        except OSError:  # there is none now, or it is closed
            return False
        if not message:
            asyncio.get_running_loop().remove_reader(self._channel)
            return False
        said = _decoder.decode(message)
        if isinstance(said, HostReady):
            self.ready.set_result(None)
        elif isinstance(said, HostEnded):
            if (ended := self._running.pop(said.number, None)) is not None:
                ended.set_result(said)
            self._end_if_idle()
        elif (answer := self._answers.pop(said.number, None)) is not None and not answer.done():
            answer.set_result(said)
        else:
            _end_unwanted(said)  # whoever asked for it does not wait any more
        return True

    def _lose(self, _: asyncio.Future[int]) -> None:
        """The process is gone: its jobs were killed with it, and what it was asked is not begun."""
        while self._hear():  # what it said before
            continue
        process_guard().remove(self._child.pid)
        if self._running:
            log.error("worker.host_lost", pid=self._child.pid, jobs=len(self._running))
        why = " | ".join(log_tail(self._log)) or "it said nothing"
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(Unavailable(f"the host of jobs died: {why}", retry_after_s=RETRY_S))
        for number, ended in self._running.items():
            if not ended.done():
                ended.set_result(HostEnded(number=number, code=LOST, cpu_s=0.0))
        self._answers.clear()
        self._running.clear()
        if not self.ready.done():
            self.ready.set_result(None)
        self._close()

    def _forget(self, number: int, pipe: OutputPipe) -> None:
        pipe.close()
        self._answers.pop(number, None)
        self._running.pop(number, None)
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if self._is_retired and not self._running:
            self._close()

    def _close(self) -> None:
        if self._channel.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._channel)
            self._channel.close()


class HostedChild:
    """A job that a host forked."""

    def __init__(self, pid: int, ended: asyncio.Future[HostEnded], pipe: OutputPipe) -> None:
        self._pid, self._ended, self._pipe = pid, ended, pipe

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def cpu_s(self) -> float:
        """Its processor time, with what it started, once it has ended; 0 if nobody could say."""
        return self._ended.result().cpu_s if self._ended.done() else 0.0

    async def wait(self) -> int:
        return (await asyncio.shield(self._ended)).code

    def signal_group(self, number: signal.Signals) -> None:
        _signal_group(self._pid, number)

    async def read(self, size: int) -> bytes:
        return await self._pipe.reader.read(size)

    def stop_reading(self) -> None:
        self._pipe.close()


def _end_unwanted(said: HostStarted | HostRefused) -> None:
    if isinstance(said, HostStarted):
        _signal_group(said.pid, signal.SIGKILL)


def _signal_group(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, number)


def _opened(files: ExitStack, path: Path | None, flags: int) -> int:
    descriptor = open_file(path or Path(os.devnull), flags)
    files.callback(os.close, descriptor)
    return descriptor
