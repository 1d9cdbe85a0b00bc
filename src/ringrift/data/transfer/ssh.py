"""Other nodes over OpenSSH: programs run to their end, connections, and the receiver's command there.

The host key must be known beforehand, and no question is ever asked. A connection is shared through a
control socket, with other processes of this node too, and ends with the process that made it, or by itself
when nobody uses it for a while.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import shlex
import signal
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from ringrift.data.artifacts import Receipt, in_batches
from ringrift.data.config import DataNode, has_ssh
from ringrift.data.protection.promises import KeepAnswer, KeepRequest, Released, ReleaseRequest
from ringrift.data.receive_main import FULL, MODULE, REFUSED, ReceiveReply, ReceiveRequest
from ringrift.data.transfer.contract import (
    ASKED_AT_ONCE,
    READ_AT_ONCE,
    READ_BYTES_PER_S,
    TransferCall,
    TransferFailed,
)
from ringrift.decoding import decode_as
from ringrift.errors import ConfigError, RingRiftError, StorageFull
from ringrift.files import make_folders, remove_file, write_file
from ringrift.runtime import Child, Command, Runtime

# Other programs (ssh, rsync) run to their end: heard, bounded in time and output, never left behind.


_PACKAGES = {"ssh": "openssh-client"}  # where the package is not called like the program
OUTPUT_BYTES_MAX = 64 << 20
COMPLAINT_CHARS_MAX = 600
_READ_BYTES = 1 << 16
_REAP_S = 10.0
_LEFTOVER_S = 86_400.0


class ProgramMissing(TransferFailed):
    """A way needs a program that is not installed; another way may do without."""

    def __init__(self, program: str, *, where: str) -> None:
        package = _PACKAGES.get(program, program)
        super().__init__(
            f"{program} is not installed on {where}; install the package {package} there", retry_after_s=300.0
        )
        self.program, self.where = program, where


class Scratch:
    """A folder for files that live as long as one call. What killed processes left goes after a day."""

    def __init__(self, folder: Path, runtime: Runtime) -> None:
        self.folder, self._runtime = folder, runtime
        self._swept = False

    @asynccontextmanager
    async def file(self, content: bytes = b"") -> AsyncIterator[Path]:
        path = self.folder / self._runtime.new_id()
        await asyncio.to_thread(self._write, path, content)
        try:
            yield path
        finally:
            remove_file(path)

    def _write(self, path: Path, content: bytes) -> None:
        make_folders(self.folder)
        if not self._swept:
            self._swept = True
            self._sweep()
        write_file(path, content)

    def _sweep(self) -> None:
        for leftover in self.folder.iterdir():
            with suppress(FileNotFoundError):
                old = leftover.stat().st_mtime < self._runtime.wall_s() - _LEFTOVER_S
                if old and leftover.is_file():
                    remove_file(leftover)


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """How a program ended and what it said."""

    code: int
    output: bytes
    complaint: str  # the end of its stderr


Hear = Callable[[bytes], Awaitable[None]]


class Programs:
    """Runs programs. One that says nothing for as long as it may be silent is ended."""

    def __init__(self, scratch: Scratch, runtime: Runtime) -> None:
        self.scratch, self._runtime = scratch, runtime

    async def run(
        self,
        argv: Sequence[str],
        *,
        quiet_s: float,
        stdin: Path | None = None,
        hear: Hear | None = None,
        stays: bool = False,
    ) -> ProgramEnd:
        """Run to the end; *hear* gets the output piece by piece, else it is collected within a bound.

        What the program started ends with it, unless it *stays* in the background after a good end.
        """
        async with self.scratch.file() as complaints:
            command = Command(argv=argv, env=_plain_language(), input=stdin, output=complaints, piped=True)
            try:
                child = await self._runtime.spawn(command)
            except FileNotFoundError:
                raise ProgramMissing(argv[0], where="this machine") from None
            code: int | None = None
            try:
                output = await _listen(child, argv[0], quiet_s, hear)
                async with asyncio.timeout(quiet_s):
                    code = await child.wait()
            except TimeoutError:
                raise TransferFailed(f"{argv[0]} was silent for {quiet_s:g} s and was ended") from None
            finally:
                await _end(child, kill=not (stays and code == 0))
            return ProgramEnd(code, output, await asyncio.to_thread(_tail, complaints))


async def _listen(child: Child, name: str, quiet_s: float, hear: Hear | None) -> bytes:
    kept = bytearray()
    while True:
        async with asyncio.timeout(quiet_s):
            piece = await child.read(_READ_BYTES)
        if not piece:
            return bytes(kept)
        if hear is not None:
            await hear(piece)
            continue
        kept += piece
        if len(kept) > OUTPUT_BYTES_MAX:
            raise TransferFailed(f"{name} said more than {OUTPUT_BYTES_MAX >> 20} MiB")


async def _end(child: Child, *, kill: bool) -> None:
    """Leave nothing of it: the group is killed, which is harmless if it ended by itself."""
    if kill:
        child.signal_group(signal.SIGKILL)
    child.stop_reading()
    with suppress(TimeoutError):  # a child stuck in the kernel is left to init
        async with asyncio.timeout(_REAP_S):
            await child.wait()


def _plain_language() -> dict[str, str]:
    """The environment of this process, with messages that we can read."""
    return {**os.environ, "LC_ALL": "C"}


def _tail(path: Path) -> str:
    text = path.read_text(encoding="utf8", errors="replace").strip()
    return " ".join(text[-COMPLAINT_CHARS_MAX:].split())


# Connections: the overlay address first, one connection for many commands.


log = structlog.get_logger()

CONNECT_S = 10.0
KEEP_S = 120
OVERLAY_AGAIN_S = 300.0  # after this long on a second-best address the first is tried again
CLOSE_S = 5.0
SSH_FAILED = 255
ALIVE_S, ALIVE_COUNT = 12, 3  # a line on which nothing comes for so many times so long is dead
BUFFERED_BYTES = 4 << 20  # that ssh and the kernel take before the line has brought them
_SOCKET_PATH_MAX = 103  # what the kernel takes for a socket, and macOS takes less than Linux
_SOCKET_NAME = 12
_SSH_SUFFIX = 18  # ssh makes the socket under a longer name first


class SshUnreachable(TransferFailed):
    """No address of the node answers by ssh."""

    def __init__(self, node: str, *, attempts: Sequence[tuple[str, str]]) -> None:
        reasons = "; ".join(f"{address}: {why}" for address, why in attempts)
        super().__init__(f"ssh to {node} fails ({reasons})", retry_after_s=30.0)
        self.node, self.attempts = node, tuple(attempts)


@dataclass(frozen=True, slots=True)
class SshLine:
    """A way to one node that worked when it was tried."""

    node: DataNode
    address: str
    options: tuple[str, ...]

    @property
    def target(self) -> str:
        return f"{self.node.ssh_user}@{self.address}" if self.node.ssh_user else self.address

    @property
    def rsync_target(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.node.ssh_user}@{host}" if self.node.ssh_user else host

    @property
    def remote_shell(self) -> str:
        """What `rsync -e` wants."""
        return shlex.join(("ssh", *self.options))

    def command(self, words: Sequence[str]) -> list[str]:
        """The remote shell reads the words as they are."""
        return ["ssh", *self.options, "--", self.target, shlex.join(words)]


class Ssh:
    """Lines to nodes, kept while they work. Close it to end the connections that it made."""

    def __init__(
        self,
        programs: Programs,
        runtime: Runtime,
        *,
        control_dir: Path | None = None,
        connect_s: float = CONNECT_S,
        alive_s: int = ALIVE_S,
        close_s: float = CLOSE_S,
    ) -> None:
        self._programs, self._runtime = programs, runtime
        self._connect_s, self._alive_s, self._close_s = connect_s, alive_s, close_s
        self._control_dir = control_dir if control_dir is None or _has_room(control_dir) else None
        self._too_long = control_dir if self._control_dir is None else None
        self._lines: dict[str, tuple[SshLine, float]] = {}
        self._made: dict[tuple[str, str], SshLine] = {}  # shared connections that this process began
        self._connecting: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def line(self, node: DataNode) -> SshLine:
        """Return a line that works; raises `SshUnreachable` with what each address answered."""
        if not node.addresses:
            raise ConfigError(f"node {node.name!r} has neither ssh_host nor overlay_ip")
        async with self._connecting[node.name]:
            known = self._lines.get(node.name)
            if known is not None and self._still_good(node, *known) and await self._is_shared(known[0]):
                return known[0]
            return await self._connect(node)

    async def run(
        self,
        line: SshLine,
        words: Sequence[str],
        *,
        quiet_s: float,
        stdin: Path | None = None,
        hear: Hear | None = None,
    ) -> ProgramEnd:
        """Run a command there. A line that breaks is forgotten, and the next call connects anew."""
        outcome = await self._programs.run(line.command(words), quiet_s=quiet_s, stdin=stdin, hear=hear)
        if outcome.code == SSH_FAILED:
            self.forget(line)
            raise TransferFailed(
                f"the line to {line.node.name} broke: {outcome.complaint or 'no reason given'}"
            )
        return outcome

    def forget(self, line: SshLine) -> None:
        self._lines.pop(line.node.name, None)

    async def close(self) -> None:
        """End the shared connections that were made here, all at once and within `close_s`.

        Commands of other processes on them run to their ends, and connections of others stay. One that
        does not answer ends by itself later.
        """
        made, self._made, self._lines = list(self._made.values()), {}, {}
        try:
            async with asyncio.timeout(self._close_s), asyncio.TaskGroup() as group:
                for line in made:
                    group.create_task(self._stop_sharing(line))
        except TimeoutError:
            log.warning("ssh.close_timed_out", connections=len(made), seconds=self._close_s)

    async def _stop_sharing(self, line: SshLine) -> None:
        stopping = ["ssh", *line.options, "-O", "stop", "--", line.target]
        try:
            await self._programs.run(stopping, quiet_s=self._connect_s)
        except (RingRiftError, OSError) as error:
            log.warning("ssh.close_failed", node=line.node.name, error=str(error))

    def _still_good(self, node: DataNode, line: SshLine, since_s: float) -> bool:
        if line.node != node:
            return False  # its entry changed
        best = line.address == node.addresses[0]
        return best or self._runtime.monotonic_s() - since_s < OVERLAY_AGAIN_S

    async def _is_shared(self, line: SshLine) -> bool:
        """Whether commands find the connection; without, each would log in anew when its maker has left."""
        if self._control_dir is None:
            return True
        return await asyncio.to_thread((self._control_dir / _socket_name(line.node, line.address)).exists)

    async def _connect(self, node: DataNode) -> SshLine:
        if self._control_dir is not None:
            await asyncio.to_thread(self._control_dir.mkdir, 0o700, parents=True, exist_ok=True)
        elif self._too_long is not None:
            log.warning("ssh.control_path_too_long", folder=str(self._too_long), shared_connections=False)
            self._too_long = None
        attempts = []
        for address in node.addresses:
            line = SshLine(node, address, self._options(node, address))
            ways = ("-o", "ControlMaster=yes", "-f", "-N") if self._control_dir is not None else ()
            words = () if self._control_dir is not None else ("true",)
            probe = ["ssh", *ways, *line.options, "--", line.target, *words]
            if await self._is_connected(line):
                outcome = ProgramEnd(0, b"", "")
            else:
                outcome = await self._programs.run(probe, quiet_s=self._connect_s + self._alive_s, stays=True)
                if outcome.code == 0 and self._control_dir is not None:
                    self._made[node.name, address] = line
            if outcome.code == 0:
                self._lines[node.name] = (line, self._runtime.monotonic_s())
                log.info("ssh.connected", node=node.name, address=address)
                return line
            attempts.append((address, outcome.complaint or f"ssh ended with {outcome.code}"))
        raise SshUnreachable(node.name, attempts=attempts)

    async def _is_connected(self, line: SshLine) -> bool:
        """Whether a master of an earlier call, or of another process, still serves the address."""
        if self._control_dir is None:
            return False
        check = ["ssh", *line.options, "-O", "check", "--", line.target]
        return (await self._programs.run(check, quiet_s=self._connect_s)).code == 0

    def _options(self, node: DataNode, address: str) -> tuple[str, ...]:
        asked = {
            "BatchMode": "yes",
            "StrictHostKeyChecking": "yes",
            "ConnectTimeout": f"{self._connect_s:.0f}",
            "ServerAliveInterval": str(self._alive_s),
            "ServerAliveCountMax": str(ALIVE_COUNT),
            "LogLevel": "ERROR",
        }
        if node.ssh_known_hosts:
            asked |= {"UserKnownHostsFile": node.ssh_known_hosts, "GlobalKnownHostsFile": "none"}
        if self._control_dir is not None:
            socket = str(self._control_dir / _socket_name(node, address)).replace("%", "%%")
            asked |= {"ControlPath": socket, "ControlPersist": str(KEEP_S)}
        identity = ("-i", node.ssh_key, "-o", "IdentitiesOnly=yes") if node.ssh_key else ()
        named = [word for key, value in asked.items() for word in ("-o", f"{key}={value}")]
        return ("-T", "-p", str(node.ssh_port), *identity, *named)


def _socket_name(node: DataNode, address: str) -> str:
    way = f"{node.name} {node.ssh_user} {address} {node.ssh_port} {node.ssh_key} {node.ssh_known_hosts}"
    return hashlib.sha256(way.encode()).hexdigest()[:_SOCKET_NAME]


def _has_room(control_dir: Path) -> bool:
    """Whether sockets fit into the folder; without one, every command connects by itself."""
    return len(str(control_dir)) + 1 + _SOCKET_NAME + _SSH_SUFFIX <= _SOCKET_PATH_MAX


# Another node's store, asked over ssh by the receiver's command there.


_HOME = "~/"


def data_folder(node: DataNode) -> str:
    """The data folder there. Commands and rsync begin in the home folder, so that its sign can go."""
    return node.root_path.removeprefix(_HOME).rstrip("/") or "/"


class SshStores:
    """Asks the stores of other nodes. *this* is how they know us."""

    reaches = staticmethod(has_ssh)

    def __init__(self, ssh: Ssh, scratch: Scratch, *, this: str) -> None:
        self.ssh, self._scratch, self.this = ssh, scratch, this

    async def look(self, line: SshLine, call: TransferCall, *, by: str) -> dict[str, int]:
        """Ask what the node has of a call's files, read again if it wants that; return how far others are."""
        terms, receipts, offsets = call.terms, list[Receipt](), dict[str, int]()
        # In short questions where the files are read for the answer.
        bytes_max = READ_AT_ONCE if terms.read_again else math.inf
        for some in in_batches(call.open.values(), files_max=ASKED_AT_ONCE, bytes_max=bytes_max):
            sizes = {card.digest: card.size for card in some}
            asked = ReceiveRequest(sizes=sizes, read_again=terms.read_again)
            reading_s = sum(sizes.values()) / READ_BYTES_PER_S if terms.read_again else 0.0
            found = await self.ask(line, "look", asked, by=by, quiet_s=terms.timeout_s + reading_s)
            receipts += found.receipts
            offsets |= found.offsets
        call.found(receipts)
        call.lacks(call.open)
        return offsets

    async def keep(self, node: DataNode, request: KeepRequest, *, timeout_s: float) -> KeepAnswer:
        asked = ReceiveRequest(keep=request)
        reply = await self.ask(await self.ssh.line(node), "keep", asked, by="ssh", quiet_s=timeout_s)
        if reply.kept is None:
            raise TransferFailed(f"{node.name} does not know how to keep files; is its ringrift older?")
        return reply.kept

    async def release(self, node: DataNode, request: ReleaseRequest, *, timeout_s: float) -> Released:
        asked = ReceiveRequest(release=request)
        await self.ask(await self.ssh.line(node), "release", asked, by="ssh", quiet_s=timeout_s)
        return Released(files=0)

    async def ask(
        self, line: SshLine, action: str, request: ReceiveRequest, *, by: str, quiet_s: float
    ) -> ReceiveReply:
        """Raises `TransferFailed` if there is no answer, `StorageFull` if there is no room there."""
        node = line.node
        # Joined, so that no value is taken for an option.
        words = [node.python.removeprefix(_HOME), "-m", MODULE, action, f"--data-dir={data_folder(node)}"]
        words += [f"--node={node.name}", f"--peer={self.this}", f"--by={by}"]
        async with self._scratch.file(msgspec.json.encode(request)) as asked:
            outcome = await self.ssh.run(line, words, quiet_s=quiet_s, stdin=asked)
        return _answer(node, outcome)


def _answer(node: DataNode, outcome: ProgramEnd) -> ReceiveReply:
    if outcome.code == FULL:
        raise StorageFull(f"{node.name}: {outcome.complaint}", retry_after_s=60.0)
    if outcome.code == REFUSED:
        raise TransferFailed(f"{node.name} refuses: {outcome.complaint}", retry_after_s=5.0)
    if outcome.code != 0:
        raise TransferFailed(
            f"the receiver on {node.name} ended with {outcome.code} ({outcome.complaint}); is ringrift "
            f"installed there for {node.python}?",
            retry_after_s=30.0,
        )
    try:
        return decode_as(outcome.output, ReceiveReply)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TransferFailed(
            f"the answer of {node.name} cannot be read ({error})", retry_after_s=5.0
        ) from None
