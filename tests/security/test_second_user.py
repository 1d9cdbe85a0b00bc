"""Another user of the same machine beside a real run: what he can read, lock, connect to, signal; and what
of the run's secrets a look at processes, logs and answers would show him."""

import fcntl
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

DEADLINE_S = 120.0
NOBODY = 65534
DATA_SECRET = "planted-data-secret-5d1f0c"
CLOUD_KEY = "planted-cloud-key-77aa21"
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


class WatchedRun:
    """`ringrift run` with secrets in its environment and the usual umask, in a folder that all may reach."""

    def __init__(self, folder):
        self.data, self.log = folder / "data", folder / "run.log"
        self.environment = {
            **os.environ,
            "RINGRIFT_DATA_DIR": str(self.data),
            "RINGRIFT_HEALTH_PORT": "0",
            "RINGRIFT_DATA_PORT": "0",
            "RINGRIFT_DATA_SECRET": DATA_SECRET,
            "AWS_SECRET_ACCESS_KEY": CLOUD_KEY,
            "NO_COLOR": "1",
        }
        with self.log.open("wb") as log:
            command = [sys.executable, "-m", "ringrift.cli", "run", "--plain", "--no-open"]
            command += ["--configs", "connect_four_2p", "--workers", "1"]
            self.process = subprocess.Popen(
                command, env=self.environment, stdout=log, stderr=log, umask=0o022
            )
        self.command_lines = set()
        self.url = self._wait_until_ready()

    def _wait_until_ready(self):
        end_s, address = time.monotonic() + DEADLINE_S, self.data / "coordination" / "probes.json"
        while time.monotonic() < end_s:
            assert self.process.poll() is None, self.log.read_text()
            self.look_at_processes()
            with suppress(OSError, ValueError):
                url = json.loads(address.read_text())["url"]
                with urllib.request.urlopen(f"{url}/readyz", timeout=10) as answer:
                    if answer.status == 200:
                        return url
            time.sleep(0.05)
        raise AssertionError(self.log.read_text())

    def look_at_processes(self):
        """As `ps` shows them to everybody."""
        with suppress(psutil.NoSuchProcess):
            for each in (top := psutil.Process(self.process.pid), *top.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    self.command_lines.add(" ".join(each.cmdline()))

    def command(self, *words):
        done = subprocess.run(
            [sys.executable, "-m", "ringrift.cli", *words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        return done.stdout + done.stderr

    @property
    def token(self):
        return (self.data / "http_token").read_text().strip()

    def end(self):
        self.process.terminate()
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(DEADLINE_S)


@pytest.fixture(scope="module")
def run():
    folder = Path(tempfile.mkdtemp(prefix="ringrift-second-user-", dir="/tmp"))
    folder.chmod(0o755)
    watched = WatchedRun(folder)
    yield watched
    if watched.process.poll() is None:
        watched.end()
    shutil.rmtree(folder)


def as_nobody(attempt):
    """What *attempt* returns in a process of another user; it must need no further import."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            found = attempt()
        except BaseException as error:
            found = f"{type(error).__name__}: {error}"
        os.write(writing, json.dumps(found).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return json.loads(said)


def refused(act):
    """The names of the targets on which *act* did not fail for want of permission."""

    def attempt(targets):
        succeeded = []
        for target in targets:
            try:
                act(target)
                succeeded.append(target)
            except PermissionError:
                continue
            except (OSError, sqlite3.Error) as error:
                if "unable to open" not in str(error):
                    succeeded.append(f"{target}: {error}")
        return succeeded

    return attempt


@AS_ROOT
def test_another_user_reads_locks_and_wakes_nothing(run):
    paths = [str(path) for path in run.data.rglob("*")]
    assert any(path.endswith("coordinator.db.pen") for path in paths), "there is what he would lock"

    def lock(path):
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def read(path):
        os.listdir(path) if os.path.isdir(path) else open(path, "rb").close()

    def wake(path):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"queue", path)

    def query(path):
        sqlite3.connect(f"file:{path}?mode=ro", uri=True).execute("SELECT * FROM sqlite_schema").fetchone()

    def attempt():
        files = [path for path in paths if not path.endswith(".wake")]
        return [
            *refused(read)([str(run.data), *paths]),
            *refused(lock)(files),
            *refused(wake)(paths),
            *refused(query)(paths),
        ]

    assert as_nobody(attempt) == []


@AS_ROOT
def test_another_user_neither_signals_nor_writes(run):
    def attempt():
        found = refused(lambda pid: os.kill(pid, signal.SIGTERM))([run.process.pid])
        make = refused(lambda name: os.close(os.open(f"{run.data}/{name}", os.O_CREAT | os.O_WRONLY)))
        return found + make(["http_token", "emergency", "coordination/master_loop.pid"])

    assert as_nobody(attempt) == []


def ask(url, body=None, **headers):
    request = urllib.request.Request(url, data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_whoever_has_no_key_steers_nothing_and_a_claim_of_leadership_stops_nothing(run):
    claim = b'{"event_type": "LEADER_ELECTED", "payload": {"leader_id": "evil"}}'
    json_type = {"Content-Type": "application/json"}
    assert ask(f"{run.url}/event", claim, **json_type)[0] == 401
    assert ask(f"{run.url}/pause", b"{}", **json_type)[0] == 401
    status, why = ask(f"{run.url}/event", claim, Authorization=f"Bearer {run.token}", **json_type)
    assert (status, "does not come by HTTP" in why) == (403, True)
    assert "running" in run.command("status")
    assert ask(f"{run.url}/status")[0] == 200, "reading stays open on loopback"


def test_the_link_acts_and_no_secret_is_in_a_command_line_a_log_an_answer_or_a_file(run):
    link = run.command("link").strip()
    code = link.rpartition("#enter=")[2]
    assert link.startswith(f"{run.url}/#enter=")
    status, said = ask(
        f"{run.url}/session", json.dumps({"code": code}).encode(), **{"Content-Type": "application/json"}
    )
    session = json.loads(said)["session"]
    assert status == 200
    key = {"Authorization": f"Bearer {session}", "Content-Type": "application/json"}
    assert ask(f"{run.url}/pause", b'{"reason": "seen by all"}', **key)[0] == 204
    assert ask(f"{run.url}/resume", b"{}", **key)[0] == 204
    answers = [ask(f"{run.url}{path}")[1] for path in ("/status", "/metrics", "/", "/livez")]
    answers += [
        run.command(*words.split()) for words in ("config show", "config show --json", "status --json")
    ]
    run.look_at_processes()
    token = run.token
    assert run.end() == 0
    shown = {f"a command line: {line}": line for line in run.command_lines}
    shown |= {f"answer {number}": text for number, text in enumerate(answers)} | {
        "the log": run.log.read_text()
    }
    for path in run.data.rglob("*"):
        if path.is_file() and path.name not in {"http_token", "data_secret"}:
            shown[str(path)] = path.read_bytes().decode("latin1")
    for secret in (DATA_SECRET, CLOUD_KEY, token, code, session):
        assert [where for where, text in shown.items() if secret in text] == []
