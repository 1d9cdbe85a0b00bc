"""Real servers on loopback: sshd (with rsync) and an S3 server, each started once and stopped again.

Without sshd or rsync these tests are skipped, except in CI. A test asks for `ssh_server` or `s3_bucket` and
gets nodes from it: `ssh_server.node("gpu-1", root)`, `s3_bucket.node("archive")`.
"""

import asyncio
import getpass
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import obstore
import psutil
import pytest
from obstore.store import S3Store

from held_port import HeldPort
from ringrift.data.config import DataNode

START_S = 60.0
SSHD_CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
ListenAddress ::1
HostKey {folder}/host_key
PidFile none
AuthorizedKeysFile {folder}/user_key.pub
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
MaxStartups 100
SetEnv "PYTHONPATH={paths}"
{gate}
"""


def program(name, package):
    """Return where a program is; skip the test where it is not installed."""
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"CI must have {name}")
        pytest.skip(f"no {name} here; Debian's package {package} brings it")
    return found


def stop_process(process):
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(30)


# A forced command in which a receiver gets at most 400 KB of what it is sent, and then no more of it.
GATE = """\
#!/bin/sh
case "$SSH_ORIGINAL_COMMAND" in
*{receiver}*)
  if [ -e {folder}/gate ]; then
    {{ dd bs=4096 count=100 status=none; touch {folder}/in-the-middle; exec tail -f /dev/null; }} |
      sh -c "$SSH_ORIGINAL_COMMAND"
    exit
  fi ;;
esac
exec sh -c "$SSH_ORIGINAL_COMMAND"
"""


@dataclass
class SshServer:
    """An sshd of our own. Nodes on it differ by their folder."""

    folder: Path
    sshd: str
    port: int = 0
    process: subprocess.Popen | None = None
    gate: str = ""  # a line of its config

    def prepare(self):
        self._held = HeldPort()
        self.port = self._held.number
        for name in ("host_key", "user_key"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)]
            subprocess.run(command, check=True)
        if os.geteuid() == 0:
            # sshd run by root asks for this folder, which the system makes at boot; a container has none.
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)

    def start(self):
        config = self.folder / "sshd_config"
        paths = os.environ["PYTHONPATH"]  # which sshd does not pass on by itself
        config.write_text(SSHD_CONFIG.format(port=self.port, folder=self.folder, gate=self.gate, paths=paths))
        with (self.folder / "sshd.log").open("ab") as log:
            command = [self.sshd, "-D", "-e", "-f", str(config)]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        if not self._answers():
            pytest.fail("sshd does not start:\n" + (self.folder / "sshd.log").read_text())
        host_key = " ".join((self.folder / "host_key.pub").read_text().split()[:2])
        names = f"[127.0.0.1]:{self.port},[localhost]:{self.port},[::1]:{self.port}"
        self.known_hosts.write_text(f"{names} {host_key}\n")

    def hold(self, receiver):
        """Commands with *receiver* in them stand still in the middle of a large file, until `let_go`."""
        program = self.folder / "gate.sh"
        program.write_text(GATE.format(receiver=receiver, folder=self.folder))
        program.chmod(0o755)
        (self.folder / "gate").touch()
        self.gate = f"ForceCommand {program}"
        self.stop()
        self.start()

    @property
    def holds_one(self):
        """Whether a receiver stands still in the middle of its work."""
        return (self.folder / "in-the-middle").exists()

    def let_go(self):
        (self.folder / "gate").unlink()

    def _answers(self):
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                with socket.create_connection(("127.0.0.1", self.port), 5) as line:
                    return line.recv(4) == b"SSH-"
            except OSError:
                time.sleep(0.05)
        return False

    def stop(self):
        """End the listener and every connection it serves."""
        if self.process is not None:
            self.kill_connections()
            stop_process(self.process)
            self.process = None

    def kill_connections(self):
        """Kill all that serves a connection, receivers among them; return how many processes that were."""
        killed = 0
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
                killed += 1
        return killed

    def close(self):
        self.stop()
        self._held.give_back()

    @property
    def known_hosts(self):
        return self.folder / "known_hosts"

    @property
    def key(self):
        return self.folder / "user_key"

    @property
    def options(self):
        """For a plain `ssh` or `rsync -e` beside ours."""
        return [
            *("-p", str(self.port), "-i", str(self.key), "-o", f"UserKnownHostsFile={self.known_hosts}"),
            *("-o", "StrictHostKeyChecking=yes", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes"),
            *("-F", "none"),
        ]

    def node(self, name, root, **fields):
        """A node whose data folder is *root*, reached over this server."""
        known = {
            "ssh_host": "127.0.0.1",
            "ssh_port": self.port,
            "ssh_user": getpass.getuser(),
            "ssh_key": str(self.key),
            "ssh_known_hosts": str(self.known_hosts),
            "root_path": str(root),
            "python": sys.executable,
        }
        return DataNode(name=name, **(known | fields))


@contextmanager
def running_sshd(folder):
    program("ssh", "openssh-client")
    program("rsync", "rsync")
    server = SshServer(folder, program("sshd", "openssh-server"))
    server.prepare()
    server.start()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def ssh_server(tmp_path_factory):
    """sshd with a host key and a user key of its own; rsync is there too."""
    with running_sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture
def own_ssh_server(tmp_path_factory):
    """An sshd that the test may stop and start."""
    with running_sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@dataclass
class S3Server:
    """moto's server, a process of its own."""

    process: subprocess.Popen
    url: str

    def make_bucket(self, name):
        request = urllib.request.Request(f"{self.url}/{name}", method="PUT")
        with urllib.request.urlopen(request, timeout=START_S) as answer:
            answer.read()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory):
    log = tmp_path_factory.mktemp("s3") / "moto.log"
    with log.open("wb") as sink:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink)
    deadline = time.monotonic() + START_S
    while not (found := re.search(r"http://127\.0\.0\.1:\d+", log.read_text())):
        if process.poll() is not None or time.monotonic() > deadline:
            stop_process(process)
            pytest.fail("the S3 server does not start:\n" + log.read_text())
        time.sleep(0.05)
    yield S3Server(process, found.group())
    stop_process(process)


@dataclass
class Bucket:
    """A bucket of this test alone."""

    server: S3Server
    name: str

    def node(self, name="archive", prefix="ringrift", endpoint=None, **fields):
        """The bucket as a store node."""
        known = {"s3_url": f"s3://{self.name}/{prefix}", "s3_endpoint": endpoint or self.server.url}
        return DataNode(name=name, role="archive", **(known | fields))

    @property
    def objects(self):
        """What another client sees."""
        options = {"allow_http": True}
        return S3Store(
            self.name,
            endpoint=self.server.url,
            region="us-east-1",
            access_key_id="test",
            secret_access_key="test",
            client_options=options,
        )

    def names(self):
        return sorted(meta["path"] for batch in obstore.list(self.objects) for meta in batch)

    def read(self, key):
        return bytes(obstore.get(self.objects, key).bytes())

    def write(self, key, content):
        obstore.put(self.objects, key, content)

    def delete(self, key):
        obstore.delete(self.objects, key)


@pytest.fixture
def s3_bucket(s3_server, monkeypatch):
    """A fresh bucket, with credentials in the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    bucket = Bucket(s3_server, f"ringrift-{uuid.uuid4().hex[:12]}")
    s3_server.make_bucket(bucket.name)
    return bucket


class SlowLine:
    """A line to a server on loopback that brings so many bytes a second each way, or stands still.

    Its buffers are small, so that what a sender got rid of is on its way and not in the memory of the test.
    """

    BUFFER_BYTES = 1 << 12
    TICK_S = 0.05

    def __init__(self, port, *, bytes_per_s, fast_bytes=0):
        self._target, self.bytes_per_s = port, bytes_per_s
        self._fast_bytes = fast_bytes  # of each connection, such as its login
        self.port = 0
        self.stands_still = False
        self.pauses = []  # (bytes after which, seconds for which) it stands still
        self.carried = 0
        self._server, self._lines = None, set()

    async def __aenter__(self):
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.BUFFER_BYTES)
        listening.bind(("127.0.0.1", 0))
        self._server = await asyncio.start_server(self._serve, sock=listening, limit=self.BUFFER_BYTES)
        self.port = listening.getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()
        await self.break_off()

    async def break_off(self):
        """End all connections that go over it."""
        for task in list(self._lines):
            task.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)

    async def _serve(self, reader, writer):
        task = asyncio.current_task()
        self._lines.add(task)
        far = socket.socket()
        far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.BUFFER_BYTES)
        far.setblocking(False)
        writers = [writer]
        try:
            await asyncio.get_running_loop().sock_connect(far, ("127.0.0.1", self._target))
            far_reader, other = await asyncio.open_connection(sock=far, limit=self.BUFFER_BYTES)
            writers.append(other)
            ways = [self._pump(reader, other), self._pump(far_reader, writer)]
            await asyncio.gather(*ways)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._lines.discard(task)
            for each in writers:
                each.transport.abort()
                each.close()
            far.close()

    async def _pump(self, reader, writer):
        writer.transport.set_write_buffer_limits(self.BUFFER_BYTES)
        fast = self._fast_bytes
        while piece := await reader.read(max(1, int(self.bytes_per_s * self.TICK_S))):
            while self.stands_still:
                await asyncio.sleep(self.TICK_S)
            self.carried += len(piece)
            if self.pauses and self.carried >= self.pauses[0][0]:
                await asyncio.sleep(self.pauses.pop(0)[1])
            fast -= len(piece)
            if fast < 0:
                await asyncio.sleep(len(piece) / self.bytes_per_s)
            writer.write(piece)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
