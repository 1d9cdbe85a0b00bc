"""A hostile peer against a real data server: without the secret, with what it overheard, and with the secret.

Single limits are tested beside the server (`integration/test_data_http_server.py`); here everything at once
must leave the folder as it was and the server there for its real peers.
"""

import hashlib
import http.client
import json
import os
import socket
import stat
import time
from contextlib import suppress

import psutil
import pytest

from data_http import SECRET, DataServerProcess
from data_transports import THERE
from ringrift.data.transfer.http.connection import HttpLine, ServerTime
from ringrift.data.transfer.http.wire import Files, Hello, SignedText, Signer, digest_of
from ringrift.runtime import SystemRuntime

DEADLINE_S = 60.0
CONTENT = b"what a real peer sent"
DIGEST = hashlib.sha256(CONTENT).hexdigest()
OTHER = hashlib.sha256(b"something else").hexdigest()
ELSEWHERE = ("../../http_token", "/etc/passwd", "..%2f..%2fx", "a" * 63, "A" * 64, "\x00" * 64, "")


class Server(DataServerProcess):
    """With one sealed file, and secrets beside the blobs."""

    def begin(self):
        place = self.root / "blobs" / DIGEST[:2] / DIGEST
        place.parent.mkdir(parents=True)
        place.write_bytes(CONTENT)
        (self.root / "http_token").write_text("private")
        return self.start()

    def visible(self):
        """Every file with its content, without what is unfinished and what the server notes for itself."""
        found = (path for path in self.root.rglob("*") if path.is_file() or path.is_symlink())
        own = ("blobs/.", "data_server", ".db")
        kept = [path for path in found if not any(part in str(path) for part in own)]
        return {str(path.relative_to(self.root)): path.read_bytes() for path in kept}

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE_S)

    def serves(self):
        runtime = SystemRuntime()
        signer, server_time = Signer(SECRET.encode()), ServerTime(runtime)
        line = HttpLine(
            self.connect(), host="h", signer=signer, node="real", runtime=runtime, server_time=server_time
        )
        answer = line.ask("hello", Files(()), Hello)
        line.close()
        return answer.node == THERE


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    process = Server(tmp_path_factory.mktemp("peer") / THERE).begin()
    yield process
    process.stop()


def signed(verb, head, payload=b"", *, secret=SECRET, nonce=None, time_s=None):
    """A request by hand: its headers."""
    words = SignedText(
        method="POST",
        path=f"/v1/{verb}",
        node="evil",
        time=f"{time.time() if time_s is None else time_s:.6f}",
        nonce=nonce or os.urandom(8).hex(),
        head_length=len(head),
        head_digest=digest_of(head),
        content_length=len(head) + len(payload),
    )
    return Signer(secret.encode()).request_headers(words)


def say(server, verb, head, payload=b"", headers=None):
    """Status and body; (0, b"") where the server hung up."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
    try:
        connection.request(
            "POST", f"/v1/{verb}", body=head + payload, headers=headers or signed(verb, head, payload)
        )
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def test_without_the_secret_nothing_is_answered_or_changed(server):
    before, head = server.visible(), json.dumps({"files": [[DIGEST, len(CONTENT)]]}).encode()
    stolen = signed("fetch_batch", head)
    for headers in (
        {},
        signed("fetch_batch", head, secret="a guess of sixteen letters"),
        stolen | {"Ringrift-Signature": "0" * 64},
        stolen | {"Ringrift-Node": "real"},
        {name: value for name, value in stolen.items() if name != "Ringrift-Signature"},
        {"Ringrift-Head": str(len(head)), "Authorization": "Bearer x"},
    ):
        status, body = say(server, "fetch_batch", head, headers=headers or {"Ringrift-Head": "1"})
        assert status in {400, 401}
        assert CONTENT not in body
    assert server.visible() == before
    assert server.serves()


def test_what_was_overheard_cannot_be_said_again_or_later_or_of_another_verb(server):
    head = json.dumps({"files": [[DIGEST, len(CONTENT)]]}).encode()
    overheard = signed("fetch_batch", head)
    assert say(server, "fetch_batch", head, headers=overheard)[0] == 200
    assert say(server, "fetch_batch", head, headers=overheard)[0] == 409
    assert say(server, "held", head, headers=signed("fetch_batch", head))[0] == 401
    assert say(server, "held", head, headers=signed("held", head, time_s=time.time() - 4000))[0] == 409
    longer = json.dumps({"files": [[OTHER, 5]]}).encode()
    assert say(server, "held", longer, headers=signed("held", head))[0] in {400, 401}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_with_the_secret_no_name_leads_out_of_the_folder(server, name):
    before = server.visible()
    file = [name, 7]
    for verb, head in (
        ("held", {"files": [file]}),
        ("batch", {"files": [file]}),
        ("fetch_batch", {"files": [file]}),
        ("fetch_chunks", {"file": file, "positions": [0]}),
        ("missing", {"file": file, "first": 0, "hashes": ""}),
        ("seal", file),
    ):
        status, body = say(server, verb, json.dumps(head).encode(), b"private")
        assert status == 400, (verb, status)
        assert b"private" not in body
    assert server.visible() == before


def test_with_the_secret_wrong_bytes_never_become_visible(server):
    before = server.visible()
    head = json.dumps({"files": [[OTHER, 7]]}).encode()
    status, body = say(server, "batch", head, b"forgery")
    assert (status, OTHER.encode() in body) == (200, True), "told as failed"
    assert json.loads(body).get("receipts", []) == []
    huge = json.dumps({"file": [OTHER, 1 << 60], "first": 0, "hashes": ""}).encode()
    assert say(server, "missing", huge)[0] == 507
    for size in (-1, 1 << 70, 1.5, "7"):
        assert say(server, "held", json.dumps({"files": [[OTHER, size]]}).encode())[0] in {400, 507}
    assert say(server, "seal", json.dumps([OTHER, 7, []]).encode())[0] in {200, 400, 422, 503}
    assert server.visible() == before
    assert server.serves()


def test_a_link_in_the_receiving_folder_is_not_followed(server, tmp_path):
    target = tmp_path / "target"
    target.write_text("mine")
    large = hashlib.sha256(b"x" * 7).hexdigest()
    incoming = server.root / "blobs" / ".incoming"
    incoming.mkdir(exist_ok=True)
    for name in (large, f"{large}.part", f"{large}.7"):
        with suppress(FileExistsError):
            (incoming / name).symlink_to(target)
    say(server, "missing", json.dumps({"file": [large, 7], "first": 0, "hashes": ""}).encode())
    say(server, "batch", json.dumps({"files": [[large, 7]]}).encode(), b"x" * 7)
    assert target.read_text() == "mine"
    for link in incoming.iterdir():
        if stat.S_ISLNK(link.lstat().st_mode):
            link.unlink()


def test_noise_floods_and_slow_talkers_keep_no_peer_out(server):
    before, memory = server.visible(), psutil.Process(server.process.pid).memory_info().rss
    noise = [
        b"\x16\x03\x01\x02\x00" + os.urandom(200),
        b"GET / HTTP/1.1\r\n" * 50,
        b"POST /v1/held HTTP/1.1\r\nContent-Length: 4194304\r\nRingrift-Head: 4194304\r\n\r\n"
        + bytes(1 << 16),
        b"POST /v1/hello HTTP/1.1\r\n" + b"X: y\r\n" * 2000,
        b"POST /v1/hello HTTP/1.1\r\nContent-Length: -1\r\nRingrift-Head: \xd9\xa1\r\n\r\n",
        b"POST /v1/hello HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"\r\n" * 1000,
        b"P",
        b"",
    ]
    held = []
    for number in range(120):
        sock = server.connect()
        held.append(sock)
        with suppress(OSError):
            sock.sendall(noise[number % len(noise)])
        if number % 30 == 0:
            assert server.serves()
    assert server.serves()
    assert psutil.Process(server.process.pid).memory_info().rss - memory < 50 << 20
    for sock in held:
        sock.close()
    assert server.visible() == before
