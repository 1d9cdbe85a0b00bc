"""Lines to other nodes over OpenSSH: the overlay address first, one connection for many commands.

The host key must be known beforehand, and no question is ever asked. A connection is shared through a
control socket, with other processes of this node too, and ends with the process that made it, or by itself
when nobody uses it for a while.
"""

from __future__ import annotations

import asyncio
import hashlib
import shlex
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from ringrift.data.nodes import DataNode
from ringrift.data.transfer.contract import TransferFailed
from ringrift.data.transfer.programs import Hear, ProgramEnd, Programs
from ringrift.errors import ConfigError, RingRiftError
from ringrift.runtime import Runtime

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
        told = "; ".join(f"{address}: {why}" for address, why in attempts)
        super().__init__(f"ssh to {node} fails ({told})", retry_after_s=30.0)
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
