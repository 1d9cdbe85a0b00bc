"""`ringrift engine`: a server that is started safely, and what is said of one that is not."""

import json
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from nats_server import NatsServer, start_cluster

WHOLE_S = 20.0


def ringrift(*words, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "ringrift.cli", *words], cwd=cwd, capture_output=True, text=True, timeout=60
    )


def findings(url):
    done = ringrift("engine", "check", "--json", url)
    return done.returncode, {each["what"]: each for each in json.loads(done.stdout)}


def test_a_server_that_anybody_may_use_is_a_risk():
    server = NatsServer.start()
    code, found = findings(server.url)
    server.stop()
    assert code == 1
    assert (found["access"]["verdict"], found["replicas"]["verdict"]) == ("risk", "risk")
    assert {found[what]["verdict"] for what in ("version", "JetStream", "batches", "payload", "TLS")} == {
        "good"
    }
    assert "sync_interval" in found["sync"]["text"]


def test_three_servers_can_keep_three_copies():
    servers = start_cluster()
    end_s = time.monotonic() + WHOLE_S
    while True:  # they have to find each other first
        _, found = findings(",".join(server.url for server in servers))
        if found["replicas"]["verdict"] == "good" or time.monotonic() > end_s:
            break
    for server in servers:
        server.stop()
    assert found["replicas"]["verdict"] == "good", found


def test_a_server_that_is_not_there_is_said_in_one_line():
    done = ringrift("engine", "check", "nats://127.0.0.1:9")
    assert done.returncode != 0
    assert "127.0.0.1:9" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def own_server(tmp_path):
    """`ringrift engine up` in a folder, and the line that it prints."""
    port = _free_port()
    command = [
        sys.executable,
        "-m",
        "ringrift.cli",
        "engine",
        "up",
        "--data",
        str(tmp_path),
        "--port",
        str(port),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    yield process, process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)


def test_its_own_server_lets_in_only_who_has_the_token(own_server, tmp_path):
    _, line = own_server
    url = re.search(r"nats://\S+", line).group()
    end_s = time.monotonic() + WHOLE_S
    while ringrift("engine", "check", url).returncode not in (0, 1) and time.monotonic() < end_s:
        time.sleep(0.2)
    _, found = findings(url)
    assert found["access"]["verdict"] == "good"
    without = re.sub(r"//.*@", "//", url)
    assert ringrift("engine", "check", without).returncode not in (0, 1)
    assert (tmp_path / "nats" / "server.conf").stat().st_mode & 0o077 == 0


def _free_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]
