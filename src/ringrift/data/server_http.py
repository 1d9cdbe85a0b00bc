"""The data server's HTTP side: a thread for each connection, signatures, limits, and errors told in words.

Memory is bounded by the buffers and the number of connections, whatever is sent.
"""

from __future__ import annotations

import socket
import socketserver
import sys
import threading
from collections import Counter
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import structlog

from ringrift.data.server_answers import Answers, ServerAnswer
from ringrift.data.transfer.incoming import ChunksLacking
from ringrift.data.transfer.messages import (
    HEAD_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    PREFIX,
    ServerRefusal,
    encode,
)
from ringrift.data.transfer.signing import (
    HEAD,
    NODE,
    NONCE,
    SIGNATURE,
    TIME,
    NotSigned,
    OnceOnly,
    ReplayedRequest,
    Signer,
    StaleRequest,
    Words,
)
from ringrift.errors import ConfigError, Corrupt, RingRiftError, StorageFull, Unavailable

log = structlog.get_logger()

CONNECTIONS_MAX = 64
IDLE_S = 120.0
_DISCARDED_AT_ONCE = 1 << 18
_BACKLOG = 128

# The first class that fits an error gives the status and the word for it.
REFUSALS: tuple[tuple[type[RingRiftError], int, str], ...] = (
    (NotSigned, 401, "not_signed"),
    (StaleRequest, 409, "stale"),
    (ReplayedRequest, 409, "replayed"),
    (StorageFull, 507, "full"),
    (ChunksLacking, 503, "chunks_lacking"),
    (Unavailable, 503, "unavailable"),
    (ConfigError, 400, "wrong"),
    (Corrupt, 422, "corrupt"),
)


class DataHttpServer(ThreadingHTTPServer):
    """Listens and hands each connection to a thread; one too many is turned away."""

    daemon_threads = True
    request_queue_size = _BACKLOG

    def __init__(
        self, address: tuple[str, int], *, answers: Answers, signer: Signer, once_only: OnceOnly
    ) -> None:
        self.answers, self.signer, self.once_only = answers, signer, once_only
        self.refused: Counter[str] = Counter()
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Conversation)

    def server_bind(self) -> None:
        # The base class of HTTP servers would ask the name service for this host's name.
        socketserver.TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            crowded = len(self._connections) >= CONNECTIONS_MAX
            if not crowded:
                self._connections.add(request)
        if crowded:
            self.refused["crowded"] += 1
            log.warning("data_server.crowded", peer=client_address[0], connections=CONNECTIONS_MAX)
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - as the base class
        log.error("data_server.connection_failed", peer=client_address[0], exc_info=sys.exc_info())

    def hang_up(self) -> None:
        """End all connections, so that their threads do."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:  # the other side was first
                continue


class _RequestPayload:
    """The payload of a request, read from the connection."""

    def __init__(self, conversation: _Conversation, length: int) -> None:
        self._stream, self.left = conversation.rfile, length

    def read_into(self, piece: memoryview) -> None:
        if len(piece) > self.left:
            raise ConfigError("the payload is shorter than its head says")
        done = 0
        while done < len(piece):
            count = self._stream.readinto(piece[done:])
            if not count:
                raise ConnectionError("the sender ended in the middle")
            done += count
            self.left -= count

    def discard(self) -> None:
        """Read the rest, so that a sender who still sends gets the answer."""
        buffer = memoryview(bytearray(min(self.left, _DISCARDED_AT_ONCE)))
        while self.left:
            self.read_into(buffer[: self.left])


class _Conversation(BaseHTTPRequestHandler):
    """One connection: requests one after the other until either side ends it."""

    server: DataHttpServer
    protocol_version = "HTTP/1.1"
    server_version = "ringrift-data"
    sys_version = ""
    timeout = IDLE_S
    disable_nagle_algorithm = True
    wbufsize: ClassVar[int] = 0

    def do_POST(self) -> None:
        nonce = self.headers.get(NONCE, "")
        try:
            head, payload = self._read_head()
        except ConfigError as error:
            self.close_connection = True
            self._refuse(error, nonce)
            return
        try:
            self._check(head, payload.left)
            answer = self.server.answers.answer(self.path.removeprefix(PREFIX), head, payload)
            payload.discard()
            self._send(200, nonce, answer)
        except RingRiftError as error:
            if isinstance(error, NotSigned):
                self.close_connection = True
            else:
                payload.discard()
            self._refuse(error, nonce)

    def handle(self) -> None:
        try:
            super().handle()
        except OSError as error:  # the peer went away, or said nothing for too long
            log.info("data_server.connection_lost", peer=self.client_address[0], why=str(error))

    def _read_head(self) -> tuple[bytes, _RequestPayload]:
        try:
            whole, head = int(self.headers.get("Content-Length", "")), int(self.headers.get(HEAD, ""))
        except ValueError:
            raise ConfigError("the request does not say how long it is") from None
        if not 0 <= head <= min(whole, HEAD_BYTES_MAX) or whole - head > PAYLOAD_BYTES_MAX:
            raise ConfigError(f"a head of {head} bytes in a body of {whole} is more than this server takes")
        buffer = bytearray(head)
        _RequestPayload(self, head).read_into(memoryview(buffer))
        return bytes(buffer), _RequestPayload(self, whole - head)

    def _check(self, head: bytes, payload_length: int) -> None:
        words = Words(
            method=self.command,
            path=self.path,
            node=self.headers.get(NODE, ""),
            time=self.headers.get(TIME, ""),
            nonce=self.headers.get(NONCE, ""),
            head=head,
            content_length=len(head) + payload_length,
        )
        self.server.signer.check_request(words, self.headers.get(SIGNATURE))
        self.server.once_only.admit(words.time, words.nonce)

    def _refuse(self, error: RingRiftError, nonce: str) -> None:
        status, reason = next((s, word) for kind, s, word in REFUSALS if isinstance(error, kind))
        retry_after_s = error.retry_after_s if isinstance(error, Unavailable) else 0.0
        what = error.what if isinstance(error, Unavailable) else str(error)
        self.server.refused[reason] += 1
        log.info("data_server.refused", peer=self.client_address[0], reason=reason, what=what)
        server_s = self.server.once_only.server_s()
        self._send(status, nonce, ServerAnswer(encode(ServerRefusal(reason, what, retry_after_s, server_s))))

    def _send(self, status: int, nonce: str, answer: ServerAnswer) -> None:
        length = len(answer.head) + sum(part.length for part in answer.parts)
        signature = self.server.signer.response_signature(
            nonce=nonce, status=status, head=answer.head, content_length=length
        )
        lines = [
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            f"Content-Length: {length}",
            f"{HEAD}: {len(answer.head)}",
            f"{SIGNATURE}: {signature}",
            *(["Connection: close"] if self.close_connection else []),
            "\r\n",
        ]
        self.wfile.write("\r\n".join(lines).encode() + answer.head)
        for part in answer.parts:
            with part.path.open("rb", buffering=0) as file:
                sent = self.connection.sendfile(file, part.offset, part.length)
            if sent != part.length:
                raise ConnectionError(f"{part.path.name[:12]} became shorter while it was sent")

    def log_message(self, format: str, *args: Any) -> None:
        log.info("data_server.malformed", peer=self.client_address[0], what=format % args)
