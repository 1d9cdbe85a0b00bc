"""Real NATS servers for tests, on free ports of loopback; they end with the tests."""

import atexit
import json
import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import nats

PROGRAM = Path(sysconfig.get_path("scripts")) / "nats-server"
START_S = 20.0
TRIES = 5


class NatsServer:
    """One server, by its configuration; it may be killed and started again."""

    def __init__(self, folder, port, config):
        self.folder, self.port, self.url = folder, port, f"nats://127.0.0.1:{port}"
        self.log, self.config = folder / "server.log", folder / "server.conf"
        self.config.write_text(config)
        self.process = None
        atexit.register(self.stop)

    @classmethod
    def start(cls):
        """A server alone."""
        return _whole(cls._alone)[0]

    @classmethod
    def _alone(cls):
        folder, (port,) = _folder(), _ports(1)
        return [cls(folder, port, f'listen: 127.0.0.1:{port}\njetstream {{ store_dir: "{folder}/store" }}\n')]

    def run(self):
        self.log.unlink(missing_ok=True)
        self.process = subprocess.Popen([PROGRAM, "-c", self.config, "-l", self.log])

    def is_up(self):
        """Whether it gets ready; not where somebody else took its port meanwhile."""
        end_s = time.monotonic() + START_S
        while "Server is ready" not in (self.log.read_text() if self.log.exists() else ""):
            if self.process.poll() is not None:
                return False
            assert time.monotonic() < end_s, "the server does not start"
            time.sleep(0.02)
        return True

    def kill(self):
        self.process.kill()
        self.process.wait(10)

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    async def drop(self, name):
        """Remove the streams of one engine."""
        client = await nats.connect(self.url)
        for part in ("STATE", "EVENTS"):
            answer = await client.request(f"$JS.API.STREAM.DELETE.{name}_{part}", b"", timeout=5)
            json.loads(answer.data)
        await client.close()

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(10)
        shutil.rmtree(self.folder, ignore_errors=True)


def start_cluster(count=3):
    """Servers that keep copies for each other."""
    return _whole(lambda: _cluster(count))


def _whole(make):
    """The servers that *make* returns, all of them up."""
    for _ in range(TRIES):
        servers = make()
        for server in servers:
            server.run()
        up = [server.is_up() for server in servers]
        if all(up):
            return servers
        for server in servers:
            server.stop()
    raise AssertionError("no server gets its ports")


def _cluster(count):
    clients, routes = _ports(count), _ports(count)
    known = ", ".join(f"nats://127.0.0.1:{port}" for port in routes)
    servers = []
    for number in range(count):
        folder = _folder()
        config = f"""
server_name: n{number}
listen: 127.0.0.1:{clients[number]}
jetstream {{ store_dir: "{folder}/store" }}
cluster {{ name: c, listen: 127.0.0.1:{routes[number]}, routes: [{known}] }}
"""
        servers.append(NatsServer(folder, clients[number], config))
    return servers


def _folder():
    # What is stored need not survive the machine: in memory, syncs take no time.
    shared = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="ringrift-nats-", dir=shared if shared.is_dir() else None))


def _ports(count):
    """Free ones; a server that comes back needs the one that it had."""
    with ExitStack() as held:
        found = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in found:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in found]
