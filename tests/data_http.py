"""A real data server in a process of its own, a line that does damage, and the HTTP transport to it."""

import asyncio
import json
import os
import random
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from data_transports import HERE, THERE, Store, TransportBench
from held_port import HeldPort
from ringrift.data.config import DataNode
from ringrift.data.transfer.http.client import HttpTransport
from ringrift.data.transfer.http.server import ADDRESS_FILE, data_server
from ringrift.runtime import SystemRuntime
from ringrift.settings import load_settings

SECRET = "the secret of the tests"
START_S = 60.0
ENTRY_POINT = "ringrift.data.transfer.http.server:create_data_server"


@dataclass
class DataServerProcess:
    """The data server of one data folder, run as its supervisor does."""

    root: Path
    name: str = THERE
    secret: str = SECRET
    port: int = 0
    process: subprocess.Popen | None = None
    more: dict = field(default_factory=dict)  # of its environment
    _held: HeldPort | None = None

    def start(self):
        """Start on the port it had, or on one that stays its own until it is stopped."""
        if not self.port:
            self._held = HeldPort()
            self.port = self._held.number
        address = self.root / ADDRESS_FILE
        address.unlink(missing_ok=True)
        environment = {
            **os.environ,
            "RINGRIFT_DATA_DIR": str(self.root),
            "RINGRIFT_NODE_ID": self.name,
            "RINGRIFT_DATA_PORT": str(self.port),
            "RINGRIFT_DATA_SECRET": self.secret,
            **self.more,
        }
        self.root.mkdir(parents=True, exist_ok=True)
        self._beats, beat_fd = os.pipe()
        with (self.root / "data_server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ringrift.daemons.child_main", str(beat_fd), ENTRY_POINT],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(beat_fd,),
                start_new_session=True,
            )
        os.close(beat_fd)
        deadline = time.monotonic() + START_S
        while not address.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError((self.root / "data_server.log").read_text())
            time.sleep(0.02)
        assert json.loads(address.read_text())["port"] == self.port
        return self

    def kill(self):
        """As by the kernel, or by a person."""
        self.process.kill()
        self._ended()

    def _ended(self):
        self.process.wait(60)
        os.close(self._beats)

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            self._ended()
        if self._held is not None:
            self._held.give_back()

    def node(self, **fields):
        return DataNode(name=self.name, **({"ssh_host": "127.0.0.1", "data_port": self.port} | fields))


class DataServerThread:
    """The data server of one data folder in a thread of this process: quick to start, not to be killed."""

    def __init__(self, root, name, *, secret=SECRET):
        self.root, self.name = root, name
        self._held = HeldPort()
        environment = {
            "RINGRIFT_DATA_DIR": str(root),
            "RINGRIFT_NODE_ID": name,
            "RINGRIFT_DATA_PORT": str(self._held.number),
            "RINGRIFT_DATA_SECRET": secret,
        }
        self._server = data_server(load_settings(environment).settings, SystemRuntime())
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    async def _run(self):
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        with suppress(asyncio.CancelledError):
            await self._server.run(on_ready=self._ready.set)

    def start(self):
        self._thread.start()
        assert self._ready.wait(START_S)
        return self

    def stop(self):
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(START_S)
        self._held.give_back()

    @property
    def entry(self):
        """What the config files of others say of it."""
        return {"ssh_host": "127.0.0.1", "data_port": self._held.number}


def http_transport(store, runtime=None, *, secret=SECRET, node=HERE, **limits):
    runtime = runtime or SystemRuntime()
    return HttpTransport(store.intake(node, **limits), secret=secret.encode(), runtime=runtime)


def http_bench(tmp_path):
    runtime = SystemRuntime()
    here, there = Store(tmp_path / HERE, runtime), Store(tmp_path / THERE, runtime)
    server = DataServerProcess(there.root).start()
    gone = server.node(data_port=1)

    async def stop():
        await asyncio.to_thread(server.stop)

    return TransportBench(http_transport(here, runtime), server.node(), here, there, gone, [stop])


@dataclass
class Cut:
    """The last bytes that a connection carries."""

    piece: bytes


class BadLine:
    """A proxy on loopback. *damage* decides, for each piece of bytes in either direction, what comes out.

    It gets the bytes and returns those to pass on, None to reset the connection, or a `Cut` to do both.
    """

    def __init__(self, port, damage):
        self._port, self._damage = port, damage
        self._server = None
        self._tasks = set()
        self._open = asyncio.Event()
        self._open.set()

    def hold(self):
        """Let new connections wait, as those to a machine that starts again."""
        self._open.clear()

    def let_go(self):
        self._open.set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _connected(self, reader, writer):
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            await self._open.wait()
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._port)
            ways = [(reader, there_writer), (there_reader, writer)]
            await asyncio.gather(*(self._pass_on(*way, (writer, there_writer)) for way in ways))
        except OSError:
            writer.transport.abort()
        finally:
            self._tasks.discard(task)

    async def _pass_on(self, reader, writer, both):
        try:
            while piece := await reader.read(1 << 16):
                piece = self._damage(piece)
                if isinstance(piece, Cut):
                    writer.write(piece.piece)
                    await writer.drain()
                    piece = None
                if piece is None:
                    for end in both:
                        end.transport.abort()
                    return
                writer.write(piece)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


def flipped(piece, rng: random.Random):
    """The same bytes with one bit turned."""
    turned = bytearray(piece)
    turned[rng.randrange(len(turned))] ^= 1 << rng.randrange(8)
    return bytes(turned)
