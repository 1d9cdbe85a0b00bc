"""The data server: gives this node's sealed files to other nodes, and takes theirs, over signed HTTP.

It runs in a process of its own, so that hashing and copying never hold up the control process.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
import socketserver
import ssl
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast

import msgspec
import structlog
from msgspec.structs import replace

from ringrift.data.config import read_nodes
from ringrift.data.protection.promises import (
    Holder,
    KeepAnswer,
    KeepRequest,
    Released,
    ReleaseRequest,
    open_holder,
)
from ringrift.data.transfer.chunks import (
    Buffers,
    ChunkedFile,
    ChunksLacking,
    Incoming,
    chunk_count,
    chunk_length,
)
from ringrift.data.transfer.contract import ASKED_AT_ONCE, CHUNK_BYTES, Moved
from ringrift.data.transfer.http.wire import (
    CHUNKS_AT_ONCE,
    DIGEST,
    FILES_AT_ONCE,
    HEAD,
    HEAD_BYTES_MAX,
    NODE,
    NONCE,
    PAYLOAD_BYTES_MAX,
    PREFIX,
    SIGNATURE,
    TIME,
    ChunkRange,
    Chunks,
    File,
    Files,
    FileToSeal,
    Hello,
    NotSigned,
    OnceOnly,
    Positions,
    ReplayedRequest,
    ServerRefusal,
    SignedText,
    Signer,
    StaleRequest,
    data_secret,
    decode,
    digest_of,
    encode,
    split_hashes,
)
from ringrift.data.transfer.receiving import SMALL_BYTES_MAX, Intake, open_intake
from ringrift.engine.sqlite.faults import translated_errors
from ringrift.errors import ConfigError, Corrupt, DigestMismatch, RingRiftError, StorageFull, Unavailable
from ringrift.files import make_folders, remove_file, replace_file
from ringrift.runtime import Runtime, system_runtime
from ringrift.settings import Settings, load_settings
from ringrift.tls import CertificateFiles, own_files

# What is done for each request, without a word about HTTP. Requests name files by digest and chunks by
# position; nothing a peer says becomes part of a path unchecked.


# The answers.


VERIFIER = "http"
_BUFFERS = 12  # room for chunks, of all connections together


class Payload(Protocol):
    """The bytes that follow the head of a request."""

    def read_into(self, piece: memoryview) -> None:
        """Fill *piece*; `ConnectionError` if the sender ends before."""
        ...

    @property
    def left(self) -> int: ...

    @property
    def peer(self) -> str:
        """The node that signed the request."""
        ...


@dataclass(frozen=True, slots=True)
class FilePart:
    """Bytes of a file that follow the head of an answer."""

    path: Path
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """A head and what follows it."""

    head: bytes
    parts: tuple[FilePart, ...] = ()


Answer = msgspec.Struct | ServerAnswer  # a head alone, or with what follows it


class Answers:
    """The verbs. Safe from several threads."""

    def __init__(self, intake: Intake, buffers: Buffers, holder: Holder) -> None:
        self._intake, self._buffers, self._holder = intake, buffers, holder
        self._verbs: Mapping[str, tuple[type[Any], Callable[[Any, Payload], Answer]]] = {
            "hello": (Files, self._hello),
            "held": (Files, self._held),
            "batch": (Files, self._batch),
            "missing": (ChunkRange, self._missing),
            "chunks": (Chunks, self._chunks),
            "seal": (FileToSeal, self._seal),
            "fetch_batch": (Files, self._fetch_batch),
            "fetch_hashes": (Positions, self._fetch_hashes),
            "fetch_chunks": (Positions, self._fetch_chunks),
            "keep": (KeepRequest, self._keep),
            "release": (ReleaseRequest, self._release),
        }

    def answer(self, verb: str, head: bytes, payload: Payload) -> ServerAnswer:
        """Do what is asked; `ConfigError` for an unknown verb or a wrong head."""
        if (known := self._verbs.get(verb)) is None:
            raise ConfigError(f"no verb is called {verb[:40]!r}")
        asked, act = known
        found = act(decode(head, asked), payload)
        return ServerAnswer(encode(found)) if isinstance(found, msgspec.Struct) else found

    def _hello(self, _asked: Files, _payload: Payload) -> Hello:
        return Hello(self._intake.node)

    # --- files that are here --------------------------------------------------------------------------

    def _keep(self, asked: KeepRequest, _payload: Payload) -> KeepAnswer:
        return self._holder.keep(asked)

    def _release(self, asked: ReleaseRequest, _payload: Payload) -> Released:
        return self._holder.release(asked)

    # --- files that come ------------------------------------------------------------------------------

    def _held(self, asked: Files, _payload: Payload) -> Moved:
        _check_count(len(asked.files), ASKED_AT_ONCE)
        sizes = {file.digest: file.size for file in asked.files}
        return Moved(receipts=self._intake.look(sizes, read_again=asked.read_again))

    def _batch(self, asked: Files, payload: Payload) -> Moved:
        _check_small(asked.files)
        with self._intake.batch(VERIFIER) as batch, self._buffers.borrow() as buffer:
            self._intake.check_room(payload.left)
            for file in asked.files:
                piece = buffer[: file.size]
                payload.read_into(piece)
                batch.add(file.digest, piece)
            taken = batch.seal()
        self._intake.cards.put(asked.cards, taken.receipts, sender=payload.peer)
        return taken

    def _missing(self, asked: ChunkRange, _payload: Payload) -> Positions:
        hashes = split_hashes(asked.hashes)
        _check_positions(asked.file, (asked.first, asked.first + max(0, len(hashes) - 1)))
        incoming = self._intake.incoming(asked.file.digest, asked.file.size)
        missing = tuple(incoming.missing(asked.first, hashes))
        begun = incoming.begun(missing)
        return Positions(asked.file, missing, begun if any(begun) else ())

    def _chunks(self, sent: Chunks, payload: Payload) -> Positions:
        hashes = split_hashes(sent.hashes)
        _check_positions(sent.file, sent.positions)
        if len(hashes) != len(sent.positions):
            raise ConfigError(f"{len(sent.positions)} chunks have {len(hashes)} hashes")
        incoming = self._intake.incoming(sent.file.digest, sent.file.size)
        wrong = []
        with self._buffers.borrow() as buffer, incoming.receiving():
            begun = sent.begun or (0,) * len(sent.positions)
            for position, expected, done in zip(sent.positions, hashes, begun, strict=True):
                piece = buffer[: chunk_length(sent.file.size, position)]
                self._read_chunk(incoming, position, piece, done, payload)
                try:
                    incoming.write(position, expected, piece)
                except DigestMismatch:
                    wrong.append(position)
        return Positions(sent.file, tuple(wrong))

    def _read_chunk(
        self, incoming: Incoming, position: int, piece: memoryview, done: int, payload: Payload
    ) -> None:
        """Read a chunk, or what is left of one; if the line breaks, what came of it is kept."""
        if done:
            incoming.beginning(position, piece[:done])
        before = payload.left
        try:
            payload.read_into(piece[done:])
        except OSError:
            incoming.keep_begun(position, piece[: done + before - payload.left])
            raise

    def _seal(self, file: FileToSeal, payload: Payload) -> Moved:
        receipt = self._intake.held(file.digest, file.size)
        if receipt is None:
            incoming = self._intake.incoming(file.digest, file.size)
            try:
                receipt = self._intake.seal(incoming, VERIFIER)
            except DigestMismatch as error:
                return Moved.wrong(file.digest, error.found)
        self._intake.cards.put(file.cards, (receipt,), sender=payload.peer)
        return Moved(receipts=(receipt,))

    # --- files that go --------------------------------------------------------------------------------

    def _fetch_batch(self, asked: Files, _payload: Payload) -> ServerAnswer:
        _check_small(asked.files)
        there = [file for file in asked.files if self._size(file.digest) == file.size]
        parts = tuple(FilePart(self._intake.folder.place(file.digest), 0, file.size) for file in there)
        return ServerAnswer(encode(Files(tuple(there))), parts)

    def _fetch_hashes(self, asked: Positions, _payload: Payload) -> Chunks:
        return self._hashed(asked)

    def _fetch_chunks(self, asked: Positions, _payload: Payload) -> ServerAnswer:
        chunks = self._hashed(asked)
        begun = asked.begun if chunks.positions and asked.begun else (0,) * len(chunks.positions)
        chunks = replace(chunks, begun=begun if any(begun) else ())
        path, size = self._intake.folder.place(chunks.file.digest), chunks.file.size
        parts = tuple(
            FilePart(path, p * CHUNK_BYTES + done, chunk_length(size, p) - done)
            for p, done in zip(chunks.positions, begun, strict=True)
        )
        return ServerAnswer(encode(chunks), parts)

    def _hashed(self, asked: Positions) -> Chunks:
        """The asked chunks with their hashes; none if the file is not here."""
        _check_positions(asked.file, asked.positions)
        if self._size(asked.file.digest) != asked.file.size:
            return Chunks(asked.file, (), b"")
        path = self._intake.folder.place(asked.file.digest)
        source = ChunkedFile(path, asked.file.digest, self._intake.index)
        try:
            with self._buffers.borrow() as buffer:
                hashes = source.hashes(asked.positions, buffer)
        finally:
            source.close()
        return Chunks(asked.file, asked.positions, b"".join(hashes))

    def _size(self, digest: str) -> int | None:
        try:
            return os.stat(self._intake.folder.place(digest)).st_size
        except FileNotFoundError:
            return None


def _check_count(count: int, count_max: int) -> None:
    if count > count_max:
        raise ConfigError(f"{count} are too many at once; at most {count_max}")


def _check_small(files: tuple[File, ...]) -> None:
    _check_count(len(files), FILES_AT_ONCE)
    if large := [file for file in files if file.size > SMALL_BYTES_MAX]:
        raise ConfigError(f"{large[0].digest[:12]} is too large for a batch")


def _check_positions(file: File, positions: tuple[int, ...]) -> None:
    _check_count(len(positions), CHUNKS_AT_ONCE)
    if any(not 0 <= position < chunk_count(file.size) for position in positions):
        raise ConfigError(f"{file.digest[:12]} has no such chunk")


# The server itself: connections, heads, signatures.


# The data server's HTTP side: a thread for each connection, signatures, limits, and errors told in words.
#
# A connection is a *stranger's* until a request on it was signed rightly. A stranger gets little: a few
# kilobytes of headers, seconds to say something signed, and a place only until another stranger needs it, the
# oldest first. So those who say nothing never keep a peer out, and memory is bounded by the buffers and the
# number of connections, whatever is sent.


log = structlog.get_logger()

CONNECTIONS_MAX = 64  # of peers
IDLE_S = 120.0
STRANGERS_MAX = 32
STRANGERS_OF_ONE_ADDRESS_MAX = 16
STRANGER_S = 10.0  # to say something signed
STRANGER_HEAD_BYTES_MAX = 16_384  # of a head that came without its digest
LINES_BYTES_MAX = 16_384  # of the request line and the headers together
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
    (RingRiftError, 503, "unavailable"),
)


class DataHttpServer(ThreadingHTTPServer):
    """Listens and hands each connection to a thread. A stranger makes way for the next; a peer stays."""

    daemon_threads = True
    request_queue_size = _BACKLOG

    def __init__(
        self,
        address: tuple[str, int],
        *,
        answers: Answers,
        signer: Signer,
        once_only: OnceOnly,
        monotonic_s: Callable[[], float],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self.answers, self.signer, self.once_only = answers, signer, once_only
        self.refused: Counter[str] = Counter()
        self._monotonic_s = monotonic_s
        self._peers: set[socket.socket] = set()
        self._strangers: dict[socket.socket, tuple[str, float]] = {}  # address and arrival, the oldest first
        self._lock = threading.Lock()
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Conversation)

    def server_bind(self) -> None:
        # The base class of HTTP servers would ask the name service for this host's name.
        socketserver.TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        address = client_address[0]
        with self._lock:
            self._make_room_for(address)
            self._strangers[request] = (address, self._monotonic_s())
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        if self._tls is None:
            super().process_request_thread(request, client_address)
            return
        wrapped = self._tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        with self._lock:
            arrival = self._strangers.pop(request, None)
            if arrival is not None:
                self._strangers[wrapped] = arrival
        try:
            if arrival is None:
                raise ConnectionError("sent away before it began")
            wrapped.settimeout(STRANGER_S)
            wrapped.do_handshake()
        except OSError as error:
            log.info("data_server.no_tls", peer=client_address[0], why=str(error))
            if isinstance(error, ssl.SSLError) and error.reason == "HTTP_REQUEST":
                _say_in_plain(wrapped)
            self.shutdown_request(wrapped)
            return
        super().process_request_thread(wrapped, client_address)

    def _make_room_for(self, address: str) -> None:
        same = [each for each, (its, _) in self._strangers.items() if its == address]
        if len(same) >= STRANGERS_OF_ONE_ADDRESS_MAX:
            self._send_away(same[0], "too many connections of one address")
        elif len(self._strangers) >= STRANGERS_MAX:
            self._send_away(next(iter(self._strangers)), "too many connections that said nothing signed")

    def service_actions(self) -> None:
        """Called twice a second by the loop that listens: those who said nothing signed in time go."""
        with self._lock:
            oldest_s = self._monotonic_s() - STRANGER_S
            late = [each for each, (_, came_s) in self._strangers.items() if came_s < oldest_s]
            for each in late:
                self._send_away(each, f"nothing signed within {STRANGER_S:g} s")

    def _send_away(self, stranger: socket.socket, why: str) -> None:
        address, _ = self._strangers.pop(stranger)
        self.refused["stranger"] += 1
        log.info("data_server.stranger_sent_away", peer=address, why=why)
        _end(stranger)

    def is_known(self, connection: socket.socket) -> None:
        """Something on this connection was signed; `Unavailable` if there are too many such already."""
        with self._lock:
            if connection in self._peers:
                return
            if len(self._peers) >= CONNECTIONS_MAX:
                raise Unavailable("all connections are taken", retry_after_s=5.0)
            self._strangers.pop(connection, None)
            self._peers.add(connection)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._peers.discard(request)
            self._strangers.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - as the base class
        log.error("data_server.connection_failed", peer=client_address[0], exc_info=sys.exc_info())

    def hang_up(self) -> None:
        """End all connections, so that their threads do."""
        with self._lock:
            connections = [*self._peers, *self._strangers]
        for connection in connections:
            _end(connection)


def _end(connection: socket.socket) -> None:
    """Wake the thread that waits for this connection; it closes it."""
    try:
        # Not by the method of a TLS socket, which is for the thread that reads.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
    except OSError:  # the other side was first
        return


def _say_in_plain(connection: socket.socket) -> None:
    """Tell a peer that did not know; it sends nothing that it should not have."""
    try:
        socket.socket.sendall(connection, b"HTTP/1.1 426 Upgrade Required\r\nContent-Length: 0\r\n\r\n")
    except OSError:
        return


class _BoundedLines:
    """What comes in on a connection. The lines before a body are bounded together."""

    def __init__(self, stream: BufferedIOBase) -> None:
        self._stream, self.bytes_left = stream, LINES_BYTES_MAX

    def readline(self, size: int = -1) -> bytes:
        line = self._stream.readline(self.bytes_left + 1 if size < 0 else min(size, self.bytes_left + 1))
        self.bytes_left -= len(line)
        if self.bytes_left < 0:
            raise ConnectionError(f"more than {LINES_BYTES_MAX} bytes of headers")
        return line

    def readinto1(self, piece: memoryview) -> int:
        """Read what is there: bytes that came are not lost if the line breaks before the next ones."""
        return self._stream.readinto1(piece)

    def close(self) -> None:
        self._stream.close()

    @property
    def closed(self) -> bool:
        return self._stream.closed


class _RequestPayload:
    """The payload of a request, read from the connection."""

    def __init__(self, stream: _BoundedLines, length: int, *, peer: str = "") -> None:
        self._stream, self.left, self.peer = stream, length, peer

    def read_into(self, piece: memoryview) -> None:
        if len(piece) > self.left:
            raise ConfigError("the payload is shorter than its head says")
        done = 0
        while done < len(piece):
            count = self._stream.readinto1(piece[done:])
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

    def setup(self) -> None:
        super().setup()
        self.lines = _BoundedLines(self.rfile)
        self.rfile = cast(BufferedIOBase, self.lines)

    def handle_one_request(self) -> None:
        self.lines.bytes_left = LINES_BYTES_MAX
        super().handle_one_request()

    def do_POST(self) -> None:
        nonce = self.headers.get(NONCE, "")
        try:
            head, payload = self._read_head()
        except RingRiftError as error:  # what follows cannot be told from the next request
            self.close_connection = True
            self._refuse(error, nonce)
            return
        try:
            self.server.once_only.admit(self.headers.get(TIME, ""), nonce)
            answer = self.server.answers.answer(self.path.removeprefix(PREFIX), head, payload)
            payload.discard()
            self._send(200, nonce, answer)
        except RingRiftError as error:
            payload.discard()
            self._refuse(error, nonce)

    def handle(self) -> None:
        try:
            super().handle()
        except OSError as error:  # the peer went away, or said nothing for too long
            log.info("data_server.connection_lost", peer=self.client_address[0], why=str(error))

    def _read_head(self) -> tuple[bytes, _RequestPayload]:
        """The head of a request by somebody who knows the secret, and what follows it."""
        whole, length = self._lengths()
        digest = self.headers.get(DIGEST)
        if digest is None:  # of an earlier version: small enough to be read on trust
            if length > STRANGER_HEAD_BYTES_MAX:
                raise ConfigError(f"a head of {length} bytes needs its digest in {DIGEST}")
            head = self._read(length)
            self._check(digest_of(head), length, whole)
        else:
            self._check(digest, length, whole)
            head = self._read(length)
            if not hmac.compare_digest(digest_of(head), digest):
                raise NotSigned("the head is not the one that was signed")
        return head, _RequestPayload(self.lines, whole - length, peer=self.headers.get(NODE, ""))

    def _lengths(self) -> tuple[int, int]:
        """How long the body is, and its head."""
        said = self.headers.get("Content-Length", ""), self.headers.get(HEAD, "")
        if not all(text.isascii() and text.isdigit() and len(text) < 16 for text in said):
            raise ConfigError("the request does not say how long it is")
        whole, length = int(said[0]), int(said[1])
        if length > min(whole, HEAD_BYTES_MAX) or whole - length > PAYLOAD_BYTES_MAX:
            raise ConfigError(f"a head of {length} bytes in a body of {whole} is more than this server takes")
        return whole, length

    def _read(self, length: int) -> bytes:
        buffer = bytearray(length)
        _RequestPayload(self.lines, length).read_into(memoryview(buffer))
        return bytes(buffer)

    def _check(self, digest: str, length: int, whole: int) -> None:
        words = SignedText(
            method=self.command,
            path=self.path,
            node=self.headers.get(NODE, ""),
            time=self.headers.get(TIME, ""),
            nonce=self.headers.get(NONCE, ""),
            head_length=length,
            head_digest=digest,
            content_length=whole,
        )
        self.server.signer.check_request(words, self.headers.get(SIGNATURE))
        self.server.is_known(self.connection)

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

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """What is no request of a peer; told in a line, and the connection ends."""
        self.close_connection = True
        status = 405 if code == HTTPStatus.NOT_IMPLEMENTED else code
        log.info("data_server.malformed", peer=self.client_address[0], what=(message or "")[:200])
        text = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        log.info("data_server.malformed", peer=self.client_address[0], what=format % args)


# The server and its daemon.


ADDRESS_FILE = "data_server.json"
_UPKEEP_S = 60.0
_STOP_S = 5.0


class ServerAddress(msgspec.Struct, frozen=True):
    """Where the data server of a data folder listens."""

    host: str
    port: int
    pid: int


class DataServer:
    """Serves one blob folder until it is cancelled."""

    def __init__(
        self,
        intake: Intake,
        holder: Holder,
        *,
        secret: bytes,
        address: tuple[str, int],
        address_file: Path,
        runtime: Runtime,
        tls: CertificateFiles | None = None,
    ) -> None:
        self._tls = tls
        self._intake, self._holder, self._secret, self._address = intake, holder, secret, address
        self._address_file, self._runtime = address_file, runtime
        self.port = 0

    async def run(self, *, on_ready: Callable[[], None] | None = None) -> None:
        """Listen, look after the folder, and end cleanly when cancelled."""
        server = await asyncio.to_thread(self._listen)
        thread = threading.Thread(target=server.serve_forever, name="ringrift-data-server", daemon=True)
        thread.start()
        log.info("data_server.listening", host=self._address[0], port=self.port, node=self._intake.node)
        try:
            if on_ready is not None:
                on_ready()
            while True:
                await asyncio.to_thread(self._look_after_the_folder)
                await self._runtime.sleep(_UPKEEP_S)
        finally:
            await asyncio.shield(asyncio.to_thread(self._end, server, thread))

    def _listen(self) -> DataHttpServer:
        host, port = self._address
        try:
            server = DataHttpServer(
                self._address,
                answers=Answers(self._intake, Buffers(_BUFFERS), self._holder),
                signer=Signer(self._secret),
                once_only=OnceOnly(now_s=self._runtime.now_s, monotonic_s=self._runtime.monotonic_s),
                monotonic_s=self._runtime.monotonic_s,
                tls=None if self._tls is None else self._tls.context(),
            )
        except OSError as error:
            why = error.strerror or str(error)
            raise Unavailable(f"cannot listen on {host}:{port}: {why}", retry_after_s=30.0) from error
        self.port = int(server.server_address[1])
        self._say_where(ServerAddress(host, self.port, os.getpid()))
        return server

    def _say_where(self, address: ServerAddress) -> None:
        with translated_errors(self._address_file):
            make_folders(self._address_file.parent)
            replace_file(self._address_file, msgspec.json.encode(address), durable=False)

    def _look_after_the_folder(self) -> None:
        """Let go of what nobody continues, remove old leftovers and the lists of files that are gone."""
        self._intake.let_go_of_idle()
        self._intake.folder.sweep(self._runtime.now_s())
        self._intake.cards.sweep()
        for digest in self._intake.index.known():
            if not self._intake.folder.place(digest).exists():
                self._intake.index.forget(digest)

    def _end(self, server: DataHttpServer, thread: threading.Thread) -> None:
        server.shutdown()
        server.server_close()
        server.hang_up()
        thread.join(_STOP_S)
        self._intake.close()
        self._intake.index.close()
        self._holder.promises.close()
        remove_file(self._address_file)


def create_data_server() -> DataServer:
    """Make the data server, as the settings say: it runs in a process of its own."""
    return data_server(load_settings().settings, system_runtime())


def data_server(settings: Settings, runtime: Runtime) -> DataServer:
    this = read_nodes(settings.node_name or runtime.hostname, settings.nodes).this
    return DataServer(
        open_intake(settings, runtime, node=this.name),
        open_holder(settings, runtime, node=this),
        secret=data_secret(settings),
        address=(settings.data_host, this.data_port or settings.data_port),
        address_file=settings.data_dir / ADDRESS_FILE,
        runtime=runtime,
        tls=own_files(settings, runtime) if settings.data_tls else None,
    )
