"""Connections to another node's data server: signed requests, over several connections side by side.

Every call of a connection blocks; each has a worker that takes the next piece of work.
"""

from __future__ import annotations

import asyncio
import fcntl
import http.client
import os
import select
import socket
import ssl
import struct
import sys
import termios
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Generic, ParamSpec, Protocol, TypeVar

import msgspec

from ringrift.data.artifacts import Artifact, Receipt
from ringrift.data.transfer.chunks import ChunksLacking
from ringrift.data.transfer.contract import CHUNK_BYTES, Pace, Terms, TransferCall, watched
from ringrift.data.transfer.http.wire import (
    HEAD,
    HEAD_BYTES_MAX,
    PREFIX,
    SIGNATURE,
    NotSigned,
    ServerRefusal,
    SignedText,
    Signer,
    decode,
    digest_of,
    encode,
)
from ringrift.errors import RingRiftError, StorageFull, Unavailable
from ringrift.runtime import Runtime, back_off_s
from ringrift.tls import WrongCertificate, parse_pin, wrap_pinned

# One connection.


T = TypeVar("T")

CONNECT_S = 5.0
_METHOD = "POST"
_SENT_AT_ONCE = 1 << 20
_ENCRYPTED_AT_ONCE = 1 << 16
_STRIDE_MIN, _STRIDE_MAX, _QUICK_S = 1 << 14, 1 << 20, 0.05
_LOOK_S = 0.25  # between two looks at what the network took
_SO_NWRITE = 0x1024  # what macOS calls the bytes that wait to be sent
TLS_ALONE = "it speaks TLS alone; name its fingerprint as data_tls_sha256"


class LineBroken(Unavailable):
    """The connection ended, timed out or spoke nonsense; a new one may do better."""

    came = 0  # bytes of what was being read


class Unreachable(LineBroken):
    """None of the node's addresses answers."""


class ClockDiffers(LineBroken):
    """The server's clock was far from what we took it for; the next request goes by it."""


class ServerTime:
    """What the server's clock says, learned when it refuses ours."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._offset_s = runtime, 0.0

    def now_s(self) -> float:
        return self._runtime.now_s() + self._offset_s

    def learn(self, server_s: float) -> None:
        self._offset_s = server_s - self._runtime.now_s()


class HttpLine:
    """Used by one thread at a time; `abort` may come from any."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        host: str,
        signer: Signer,
        node: str,
        runtime: Runtime,
        server_time: ServerTime,
    ) -> None:
        self._socket, self._signer, self._node = sock, signer, node
        self._runtime, self._server_time = runtime, server_time
        self._connection = http.client.HTTPConnection(host)
        self._connection.sock = sock
        self._nonce = ""
        self._response: http.client.HTTPResponse | None = None
        self._handed = self._received = 0  # bytes of payloads
        self._stride = _STRIDE_MIN

    def ask(self, verb: str, message: msgspec.Struct, answer: type[T]) -> T:
        """Send a request without payload; return the head of its answer or raise what the server refused."""
        head = encode(message)
        self.begin(verb, head, 0)
        try:
            return self.finish(answer)
        except ClockDiffers:
            self.begin(verb, head, 0)
            return self.finish(answer)

    def begin(self, verb: str, head: bytes, payload_length: int) -> None:
        """Send the head of a request; the payload must follow."""
        self._nonce = self._runtime.new_id()
        words = SignedText(
            method=_METHOD,
            path=PREFIX + verb,
            node=self._node,
            time=f"{self._server_time.now_s():.6f}",
            nonce=self._nonce,
            head_length=len(head),
            head_digest=digest_of(head),
            content_length=len(head) + payload_length,
        )
        with _as_line_broken(), self._hearing_why():
            self._connection.putrequest(_METHOD, words.path, skip_accept_encoding=True)
            self._connection.putheader("Content-Length", str(words.content_length))
            for name, value in self._signer.request_headers(words).items():
                self._connection.putheader(name, value)
            self._connection.endheaders(head)

    def send_part(self, file: IO[bytes], offset: int, length: int) -> None:
        """Send bytes of a file. It may take as long as it takes, if only some of them go now and then."""
        with _as_line_broken(), self._hearing_why():
            encrypted = isinstance(self._socket, ssl.SSLSocket)
            while length:
                if encrypted:
                    piece = os.pread(file.fileno(), min(length, _ENCRYPTED_AT_ONCE), offset)
                    self._socket.sendall(piece)
                    sent = len(piece)
                else:
                    self._wait(select.POLLOUT)
                    try:
                        sent = os.sendfile(
                            self._socket.fileno(), file.fileno(), offset, min(length, _SENT_AT_ONCE)
                        )
                    except BlockingIOError:
                        continue
                if not sent:
                    raise ConnectionError("the file is shorter than it was")
                offset, length = offset + sent, length - sent
                self._handed += sent

    @contextmanager
    def _hearing_why(self) -> Iterator[None]:
        """A server need not read what it will not answer: what it said before it closed the line counts."""
        try:
            yield
        except (BrokenPipeError, ConnectionResetError):
            try:
                status = self._connection.getresponse().status
            except (OSError, http.client.HTTPException):
                status = 0
            if status == http.client.UPGRADE_REQUIRED:
                raise ConnectionError(TLS_ALONE) from None
            raise

    def moved(self) -> int:
        """Bytes of payloads that came, or that the other side's kernel has taken; asked from any thread."""
        return max(0, self._handed - self._unsent()) + self._received

    def _unsent(self) -> int:
        """What we handed over and the network still has to bring."""
        try:
            if sys.platform == "darwin":
                return self._socket.getsockopt(socket.SOL_SOCKET, _SO_NWRITE)
            return int(struct.unpack("i", fcntl.ioctl(self._socket, termios.TIOCOUTQ, b"\0" * 4))[0])
        except (OSError, ValueError):  # it is closed, or knows no such question
            return 0

    def _wait(self, event: int) -> None:
        """Wait until the connection is ready; `TimeoutError` if nothing moves at all for the time limit.

        Without an *event*: until everything that we sent was taken.
        """
        poll = select.poll()
        poll.register(self._socket, event)
        limit_s = self._socket.gettimeout() or CONNECT_S
        still_s, unsent = 0.0, self._unsent()
        while (event or unsent) and not poll.poll(_LOOK_S * 1000):
            still_s, before, unsent = still_s + _LOOK_S, unsent, self._unsent()
            if unsent != before:
                still_s = 0.0
            elif still_s >= limit_s:
                raise TimeoutError(f"nothing moved for {limit_s:g} s")

    def finish(self, answer: type[T]) -> T:
        """Return the head of the answer, once its signature was right."""
        with _as_line_broken():
            # What we sent may be on its way for longer than the answer may take once it is there. On an
            # encrypted line more than answers comes in.
            self._wait(0 if isinstance(self._socket, ssl.SSLSocket) else select.POLLIN)
            response = self._response = self._connection.getresponse()
            if response.status == http.client.UPGRADE_REQUIRED:
                raise ConnectionError(TLS_ALONE)
            length = int(response.headers.get("Content-Length", "-1"))
            head_length = int(response.headers.get(HEAD, "-1"))
            if not 0 <= head_length <= min(length, HEAD_BYTES_MAX):
                raise ConnectionError("the answer does not say how long it is")
            head = bytearray(head_length)
            self._fill(memoryview(head))
        self._signer.check_response(
            response.headers.get(SIGNATURE),
            nonce=self._nonce,
            status=response.status,
            head=bytes(head),
            content_length=length,
        )
        if response.status != http.client.OK:
            refusal = decode(bytes(head), ServerRefusal)
            if refusal.reason == "stale":
                self._server_time.learn(refusal.server_s)
            _raise(refusal)
        return decode(bytes(head), answer)

    def read_into(self, piece: memoryview) -> None:
        """Read the next bytes of the answer's payload; an error says how many came before it."""
        before = self._received
        try:
            with _as_line_broken():
                self._read_counted(piece)
        except LineBroken as error:
            error.came = self._received - before
            raise

    def _read_counted(self, piece: memoryview) -> None:
        """Read in strides that a slow line fills soon, so that whoever watches sees it move."""
        done = 0
        while done < len(piece):
            begun_s = self._runtime.monotonic_s()
            stride = piece[done : done + self._stride]
            self._fill(stride)
            done += len(stride)
            self._received += len(stride)
            quick = self._runtime.monotonic_s() - begun_s < _QUICK_S
            self._stride = min(self._stride * 2, _STRIDE_MAX) if quick else _STRIDE_MIN

    def _fill(self, piece: memoryview) -> None:
        assert self._response is not None, "an answer was begun"
        done = 0
        while done < len(piece):
            count = self._response.readinto(piece[done:])
            if not count:
                raise ConnectionError("the answer ended in the middle")
            done += count

    def abort(self) -> None:
        """End it now; a thread that waits for it wakes with `LineBroken`."""
        try:
            # Not by the method of a TLS socket, which is for the thread that reads.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        except OSError:
            return  # it is over already

    def close(self) -> None:
        self._connection.close()
        self._socket.close()


def connect(
    addresses: Sequence[str], port: int, *, timeout_s: float, pin: str = ""
) -> tuple[socket.socket, str]:
    """Connect to the first address that answers; `Unreachable` names why each did not.

    With a *pin*, only over TLS with whoever has its key.
    """
    why = []
    for host in addresses:
        try:
            sock = socket.create_connection((host, port), timeout=min(CONNECT_S, timeout_s))
        except OSError as error:
            why.append(f"{host}:{port}: {error.strerror or error}")
            continue
        sock.settimeout(timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not pin:
            return sock, host
        try:
            return wrap_pinned(sock, parse_pin(pin)), host
        except WrongCertificate as error:
            why.append(f"{host}:{port}: {error.what}")
        except OSError as error:
            sock.close()
            why.append(f"{host}:{port}: no TLS ({error})")
    raise Unreachable("; ".join(why), retry_after_s=5.0)


@contextmanager
def _as_line_broken() -> Iterator[None]:
    try:
        yield
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise LineBroken(f"the connection broke ({type(error).__name__}: {error})") from error


def _raise(refusal: ServerRefusal) -> None:
    what, retry_after_s = refusal.what, refusal.retry_after_s
    if refusal.reason == "stale":
        raise ClockDiffers(what)
    if refusal.reason == "not_signed":
        raise NotSigned(what)
    if refusal.reason == "full":
        raise StorageFull(what, retry_after_s=retry_after_s)
    if refusal.reason == "chunks_lacking":
        raise ChunksLacking(what, retry_after_s=retry_after_s)
    if refusal.reason == "wrong":  # damaged on its way, as we would not have said it
        raise LineBroken(what)
    raise Unavailable(what, retry_after_s=retry_after_s or 1.0)


# What one call over HTTP has brought about so far.


_PROGRESS_S = 0.1


class TransferCounts(TransferCall):
    """One call, whose bytes are counted as they cross the line and not by files."""

    def __init__(self, artifacts: Iterable[Artifact], terms: Terms, runtime: Runtime) -> None:
        super().__init__(artifacts, terms)
        self._runtime = runtime
        self._reported_s = float("-inf")
        self._bytes_done = 0

    def found(self, receipts: Iterable[Receipt]) -> None:
        before, _ = self.settled()
        super().found(receipts)
        self._bytes_done += self.settled()[0] - before

    async def count(self, crossed: int, *, known: int = 0) -> None:
        """Note bytes that crossed the line, and others that the receiver has without them."""
        self.bytes_sent += crossed
        self._bytes_done += crossed + known
        now_s = self._runtime.monotonic_s()
        if now_s - self._reported_s >= _PROGRESS_S:
            self._reported_s = now_s
            await self.tell()

    async def tell(self) -> None:
        # A file that failed is no progress: the line is not the better for it.
        await self._show(self._bytes_done, self.files_there)


# Several connections to one node, each with a worker that takes the next piece of work.
#
# A connection that breaks is replaced and its work goes on; work that breaks again and again without getting
# any further is given up, alone.


A = ParamSpec("A")

TRIES = 4  # without getting any further
STRIDE_MIN = 1 << 14
WATCHED_S = 0.5  # between two looks at how far a request is
PAUSE_S, PAUSE_S_MAX = 0.1, 2.0  # before another try


def pause_s(failures: int) -> float:
    """How long to wait after so many tries that failed."""
    return back_off_s(failures, first_s=PAUSE_S, longest_s=PAUSE_S_MAX)


class PoolPiece(Protocol):
    """Some work that one request does."""

    tries: int


P = TypeVar("P", bound=PoolPiece)


def stride_of(pace: Pace) -> int:
    """How many bytes go between two looks at the pace: all of a chunk, or what may go in a second."""
    return (
        CHUNK_BYTES if pace.bytes_per_s is None else min(CHUNK_BYTES, max(STRIDE_MIN, int(pace.bytes_per_s)))
    )


@dataclass
class WorkerResources:
    """What a worker works with: its connection and the threads for whatever blocks."""

    line: HttpLine
    pool: ThreadPoolExecutor

    _moved = 0  # of the line, when last looked at
    _counted = 0  # of the present payload

    async def watched(
        self, tally: TransferCounts, work: Callable[A, T], *args: A.args, **kwargs: A.kwargs
    ) -> T:
        """Do work that moves bytes, and count those that crossed the line while they do."""
        return await self._watched(tally, self.off_loop(work, *args, **kwargs))

    async def paced(self, tally: TransferCounts, pace: Pace, size: int) -> None:
        """Wait until so many bytes may go. What went before may still be on its way: it is counted."""
        await self._watched(tally, pace.spend(size))

    async def _watched(self, tally: TransferCounts, work: Awaitable[T]) -> T:
        async def look() -> None:
            await self._count(tally, self.line.moved() - self._moved)

        try:
            result = await watched(work, look, every_s=WATCHED_S)
        except RingRiftError:
            await look()  # what crossed the line before it broke crossed it
            raise
        await look()
        return result

    async def all_moved(self, tally: TransferCounts, size: int) -> None:
        """The other side has the whole payload, or we do: count what was not seen on its way."""
        await self._count(tally, size - self._counted)
        self._moved, self._counted = self.line.moved(), 0

    async def _count(self, tally: TransferCounts, moved: int) -> None:
        if moved > 0:
            self._moved += moved
            self._counted += moved
            await tally.count(moved)

    async def off_loop(self, work: Callable[A, T], *args: A.args, **kwargs: A.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.pool, partial(work, *args, **kwargs))


@dataclass(slots=True)
class PiecePool(Generic[P]):
    """Workers that share the pieces of one call."""

    open_line: Callable[[], HttpLine]
    act: Callable[[P, WorkerResources], Awaitable[None]]
    give_up: Callable[[P, RingRiftError], None]
    runtime: Runtime
    size: int
    pieces: deque[P] = field(default_factory=deque)
    _lines: list[HttpLine] = field(default_factory=list)

    async def work(self) -> None:
        """Do all pieces, and those that are added meanwhile."""
        pool = ThreadPoolExecutor(self.size, thread_name_prefix="ringrift-http")
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self.size, len(self.pieces))):
                    group.create_task(self._worker(pool))
        except BaseExceptionGroup as group:
            # What a caller's own pace or watcher raised reaches the caller as it was.
            raise group.exceptions[0] from None
        finally:
            # A thread that still waits for the network wakes when its connection ends.
            for line in self._lines:
                line.abort()
            await asyncio.shield(asyncio.to_thread(self._end, pool))

    def _end(self, pool: ThreadPoolExecutor) -> None:
        pool.shutdown(wait=True, cancel_futures=True)
        for line in self._lines:
            line.close()

    async def _worker(self, pool: ThreadPoolExecutor) -> None:
        resources: WorkerResources | None = None
        loop = asyncio.get_running_loop()
        while self.pieces:
            piece = self.pieces.popleft()
            try:
                if resources is None:
                    line = await loop.run_in_executor(pool, self.open_line)
                    self._lines.append(line)
                    resources = WorkerResources(line, pool)
                await self.act(piece, resources)
            except RingRiftError as error:
                if resources is not None:  # what the server still says belongs to this piece
                    self._lines.remove(resources.line)
                    resources.line.close()
                    resources = None
                await self._broke_off(piece, error)

    async def _broke_off(self, piece: P, error: RingRiftError) -> None:
        piece.tries += 1
        may_pass = isinstance(error, LineBroken | NotSigned)  # a flipped bit spoils a signature, too
        if not may_pass or piece.tries >= TRIES:
            self.give_up(piece, error)
            return
        self.pieces.appendleft(piece)
        await self.runtime.sleep(pause_s(piece.tries + 1))
