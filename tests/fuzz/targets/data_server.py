"""Raw bytes to the data server's connections, from a stranger and from a peer that knows the secret.

An input whose first byte is odd is a peer's: a verb, the head and the payload, which the target signs. Any
other goes to the server as it is. Whatever comes in, no error leaves the conversation, no answer is a 500,
and nothing becomes visible in the folder but files that are what their names say.
"""

import hashlib
import socket
import tempfile
from pathlib import Path

from ringrift.data.config import DataNode
from ringrift.data.protection.promises import open_holder
from ringrift.data.transfer.http.server import Answers, Buffers, DataHttpServer
from ringrift.data.transfer.http.wire import OnceOnly, SignedText, Signer, digest_of
from ringrift.data.transfer.receiving import open_intake
from ringrift.runtime import SystemRuntime
from ringrift.settings import load_settings

SECRET = b"the secret of the fuzzer"
VERBS = (
    "hello",
    "held",
    "batch",
    "missing",
    "chunks",
    "seal",
    "fetch_batch",
    "fetch_hashes",
    "fetch_chunks",
    "keep",
    "release",
)
CONTENT = b"content"
RUNTIME = SystemRuntime(seed=1)  # a process has one, for as long as it lives
DIGEST = hashlib.sha256(CONTENT).hexdigest()
_FILE = b'["%s",7]' % DIGEST.encode()
_HASH = b"n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg="


def _peer(verb: str, head: bytes, payload: bytes = b"") -> bytes:
    return bytes([2 * VERBS.index(verb) + 1]) + head + b"\x00" + payload


SEEDS = [
    b"POST /v1/hello HTTP/1.1\r\nContent-Length: 2\r\nRingrift-Head: 2\r\n\r\n{}",
    b"POST /v1/held HTTP/1.1\r\nContent-Length: 4194304\r\nRingrift-Head: 4194304\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /v1/hello HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 0\r\nRingrift-Head: 0\r\n\r\n",
    _peer("hello", b'{"files":[]}'),
    _peer("held", b'{"files":[' + _FILE + b"]}"),
    _peer("batch", b'{"files":[' + _FILE + b'],"cards":[{"digest":"x"}]}', CONTENT),
    _peer("missing", b'{"file":' + _FILE + b',"first":0,"hashes":"' + _HASH + b'"}'),
    _peer("chunks", b'{"file":' + _FILE + b',"positions":[0],"hashes":"' + _HASH + b'"}', CONTENT),
    _peer("seal", b'["' + DIGEST.encode() + b'",7,[]]'),
    _peer("fetch_batch", b'{"files":[' + _FILE + b"]}"),
    _peer("fetch_hashes", b'{"file":' + _FILE + b',"positions":[0]}'),
    _peer("fetch_chunks", b'{"file":' + _FILE + b',"positions":[0]}'),
    _peer("keep", b'{"files":[' + _FILE + b"]}"),
]


def _signed(data: bytes, now_s: float) -> bytes:
    head, _, payload = data[1:].partition(b"\x00")
    words = SignedText(
        method="POST",
        path=f"/v1/{VERBS[data[0] // 2 % len(VERBS)]}",
        node="peer",
        time=f"{now_s:.6f}",
        nonce="nonce",
        head_length=len(head),
        head_digest=digest_of(head),
        content_length=len(head) + len(payload),
    )
    lines = [f"{name}: {value}" for name, value in Signer(SECRET).request_headers(words).items()]
    start = f"POST {words.path} HTTP/1.1\r\nContent-Length: {words.content_length}\r\n"
    return (start + "\r\n".join(lines) + "\r\n\r\n").encode() + head + payload


def run(data: bytes) -> None:
    """One connection that says *data* and ends."""
    runtime = RUNTIME
    with tempfile.TemporaryDirectory() as folder:
        settings = load_settings({"RINGRIFT_DATA_DIR": folder}).settings
        intake = open_intake(settings, runtime, node="here")
        holder = open_holder(settings, runtime, node=DataNode(name="here"))
        once_only = OnceOnly(now_s=runtime.now_s, monotonic_s=runtime.monotonic_s)
        server = DataHttpServer(
            ("127.0.0.1", 0),
            answers=Answers(intake, Buffers(), holder),
            signer=Signer(SECRET),
            once_only=once_only,
            monotonic_s=runtime.monotonic_s,
        )
        said = _signed(data, once_only.server_s()) if data[:1] and data[0] % 2 else data
        try:
            answer = _converse(server, said)
        finally:
            server.server_close()
            intake.close()
            intake.index.close()
            holder.promises.close()
        assert b"HTTP/1.1 500" not in answer, answer[:300]
        for file in Path(settings.blob_dir).glob("[0-9a-f][0-9a-f]/*"):
            assert hashlib.sha256(file.read_bytes()).hexdigest() == file.name


def _converse(server: DataHttpServer, said: bytes) -> bytes:
    """What the server answers; whatever its connection raises comes through."""
    ours = socket.create_connection(server.server_address[:2])
    theirs, address = server.get_request()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        ours.setblocking(False)
        try:
            ours.send(said)
        except BlockingIOError:
            return b""
        ours.shutdown(socket.SHUT_WR)
        server.finish_request(theirs, address)
        try:
            return ours.recv(1 << 20)
        except BlockingIOError:
            return b""
