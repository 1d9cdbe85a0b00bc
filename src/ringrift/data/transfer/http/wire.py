"""What nodes say to each other over HTTP, how files are cut into requests, and how each proves who speaks."""

from __future__ import annotations

import hashlib
import hmac
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from ringrift.data.artifacts import Artifact, in_batches
from ringrift.data.transfer.chunks import HASH_BYTES, chunk_count, chunk_length
from ringrift.data.transfer.contract import CHUNK_BYTES
from ringrift.data.transfer.receiving import SMALL_BYTES_MAX
from ringrift.decoding import decode_as
from ringrift.engine.encoding import check_digest
from ringrift.engine.sqlite.faults import translated_errors
from ringrift.errors import ConfigError, Conflict, Unavailable
from ringrift.files import secret_in
from ringrift.runtime import Runtime
from ringrift.settings import Settings

# What nodes say to each other over HTTP.
#
# A request is `POST /v1/VERB`; its body, like that of the answer, is a head (one of these values, as JSON)
# and then a payload: the pieces that the head names, one after the other, nothing between them. `held`,
# `batch` and `seal` are answered by a `Moved`. Every number that a node could get wrong has a bound here.


T = TypeVar("T")

PREFIX = "/v1/"
HEAD_BYTES_MAX = 4 << 20
CHUNKS_AT_ONCE = 16  # of a large file in one request
BATCH_BYTES_MAX = 16 << 20  # of small files in one request
FILES_AT_ONCE = 256
PAYLOAD_BYTES_MAX = max(CHUNKS_AT_ONCE * CHUNK_BYTES, BATCH_BYTES_MAX + CHUNK_BYTES)


class File(msgspec.Struct, frozen=True, array_like=True):
    """A file by its digest and size."""

    digest: str
    size: int

    def __post_init__(self) -> None:
        check_digest(self.digest)
        if self.size < 0:
            raise ConfigError(f"{self.digest[:12]} cannot have the size {self.size}")


class FileToSeal(File, frozen=True, array_like=True):
    """`seal`: a file whose chunks are there, and its card."""

    cards: tuple[msgspec.Raw, ...] = ()


class Files(msgspec.Struct, frozen=True, omit_defaults=True):
    """`held`, `batch`, `fetch_batch`: files that are asked for, or whose bytes follow, with their cards."""

    files: tuple[File, ...]
    cards: tuple[msgspec.Raw, ...] = ()
    read_again: bool = False  # `held`: hash them now


class ChunkRange(msgspec.Struct, frozen=True):
    """`missing`: the hashes of some chunks of a large file, from position *first* on."""

    file: File
    first: int
    hashes: bytes


class Chunks(msgspec.Struct, frozen=True, omit_defaults=True):
    """`chunks`: chunks of a large file, whose bytes follow. `fetch_chunks` answers with the same.

    The receiver has the first bytes of some from an attempt that broke off; *begun* says how many of each.
    """

    file: File
    positions: tuple[int, ...]
    hashes: bytes
    begun: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_begun(self.file, self.positions, self.begun)


class Positions(msgspec.Struct, frozen=True, omit_defaults=True):
    """`fetch_hashes`, `fetch_chunks`: chunks that are asked for.

    In the answer to `missing`: those to send. In the answer to `chunks`: those whose bytes came wrong.
    *begun* as in `Chunks`; a node that does not know it gets, and sends, whole chunks.
    """

    file: File
    positions: tuple[int, ...]
    begun: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_begun(self.file, self.positions, self.begun)


def check_begun(file: File, positions: tuple[int, ...], begun: tuple[int, ...]) -> None:
    if begun and len(begun) != len(positions):
        raise ConfigError(f"{len(begun)} beginnings for {len(positions)} chunks")
    for position, done in zip(positions, begun, strict=False):
        if not 0 <= done < max(1, chunk_length(file.size, position)):
            raise ConfigError(f"{file.digest[:12]} has no {done} bytes at chunk {position}")


class Hello(msgspec.Struct, frozen=True):
    """The answer to `hello`: who answers."""

    node: str


class ServerRefusal(msgspec.Struct, frozen=True):
    """Why a request was not done. *server_s* is the server's time."""

    reason: str
    what: str
    retry_after_s: float
    server_s: float


def encode(message: msgspec.Struct) -> bytes:
    return msgspec.json.encode(message)


def decode(head: bytes, kind: type[T]) -> T:
    """Read a head; `ConfigError` if it is not one, or breaks a bound."""
    try:
        message = decode_as(head, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ConfigError) as error:
        raise ConfigError(f"the head is no {kind.__name__}: {error}") from None
    return message


def split_hashes(hashes: bytes) -> list[bytes]:
    """The hashes that stand in a row; `ConfigError` if one is cut or there are too many."""
    if len(hashes) % HASH_BYTES or len(hashes) > CHUNKS_AT_ONCE * HASH_BYTES:
        raise ConfigError(f"{len(hashes)} bytes are no list of at most {CHUNKS_AT_ONCE} hashes")
    return [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]


# How files are cut into requests: small ones many at a time, large ones some chunks at a time.


REQUEST_S = 20.0  # that a request with small files should take at most
UNKNOWN_BYTES = 1 << 18  # in a request to a node whose line was not measured yet
AT_ONCE_MIN, MEASURED_MIN = 1 << 14, 1 << 15


class LineSpeed:
    """How fast requests to one node were, and so how much of small files one of them should carry."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._bytes_per_s: float | None = None

    @property
    def bytes_at_once(self) -> int:
        if self._bytes_per_s is None:
            return UNKNOWN_BYTES
        return max(AT_ONCE_MIN, int(self._bytes_per_s * REQUEST_S))

    @contextmanager
    def measured(self, size: int) -> Iterator[None]:
        """Time a request; one with few bytes measures the way and not the line."""
        begun_s = self._runtime.monotonic_s()
        yield
        if size >= MEASURED_MIN:
            self._bytes_per_s = size / max(1e-3, self._runtime.monotonic_s() - begun_s)


@dataclass(slots=True)
class SmallFiles:
    """Files that one request carries whole."""

    artifacts: Sequence[Artifact]
    tries: int = 0

    @property
    def files(self) -> tuple[File, ...]:
        return tuple(File(artifact.digest, artifact.size) for artifact in self.artifacts)

    @property
    def size(self) -> int:
        return sum(artifact.size for artifact in self.artifacts)

    def cut_down(self, bytes_max: int) -> list[SmallFiles | ChunkSegment]:
        """Keep so much as one request should carry; return the rest, a single large file in chunks.

        A request that breaks off leaves nothing of its files at the receiver; of a chunk, what came stays.
        """
        if self.size <= bytes_max:
            return []
        kept, size = 0, 0
        for artifact in self.artifacts:
            size += artifact.size
            if size > bytes_max:
                break
            kept += 1
        rest = self.artifacts[max(1, kept) :]
        others: list[SmallFiles | ChunkSegment] = [SmallFiles(rest)] if rest else []
        if not kept:
            others = [*LargeFile(self.artifacts[0]).segments(), *others]
        self.artifacts = self.artifacts[:kept]
        return others

    def halves(self) -> tuple[SmallFiles, SmallFiles]:
        """Two smaller requests, for a line that breaks before one of this size is through."""
        middle = len(self.artifacts) // 2
        return SmallFiles(self.artifacts[:middle]), SmallFiles(self.artifacts[middle:])


@dataclass(slots=True)
class LargeFile:
    """A file that takes many requests; the last one to end seals it."""

    artifact: Artifact
    segments_left: int = 0
    rounds: int = 0  # how often the receiver had forgotten what it has
    lost: bool = False

    @property
    def file(self) -> File:
        return File(self.artifact.digest, self.artifact.size)

    def segments(self) -> list[ChunkSegment]:
        count = chunk_count(self.artifact.size)
        firsts = range(0, count, CHUNKS_AT_ONCE)
        self.segments_left = len(firsts)
        return [ChunkSegment(self, range(first, min(first + CHUNKS_AT_ONCE, count))) for first in firsts]


@dataclass(slots=True)
class ChunkSegment:
    """Some neighboring chunks of a large file."""

    of: LargeFile
    positions: range
    tries: int = 0
    missing: int | None = field(default=None)  # bytes, at the last look
    moved: bool = False

    def found_missing(self, count: int) -> None:
        """Note how much the receiver lacks; less than before means that the line gets us further."""
        if self.missing is not None and count < self.missing:
            self.tries = 0
        self.missing = count


def cut(artifacts: Iterable[Artifact]) -> list[SmallFiles | ChunkSegment]:
    """All requests for these files: large files first, as they take longest."""
    small: list[Artifact] = []
    pieces: list[SmallFiles | ChunkSegment] = []
    for artifact in artifacts:
        if artifact.size > SMALL_BYTES_MAX:
            pieces += LargeFile(artifact).segments()
        else:
            small.append(artifact)
    batches = in_batches(small, files_max=FILES_AT_ONCE, bytes_max=BATCH_BYTES_MAX)
    return [*pieces, *map(SmallFiles, batches)]


# Who may speak, and whether what was said is what arrives.
#
# Each request carries a signature (HMAC-SHA256 under the shared secret) over its method, path, sender, time,
# nonce and the digest of its head. The head names the digest of every piece of the payload, so the signature
# holds for all bytes although no byte is read twice. Length and digest of the head stand in the headers, so a
# server knows who speaks before it takes any of it. Responses are signed over the nonce of their request.
#
# A request counts once: its time must be near the server's and after the server's start, and its nonce
# unseen. The server's time is its wall clock at the start plus what passed since, so that no jump of the
# clock opens the window again; a sender whose clock differs is told the server's time, signed, and follows
# it.


NODE, TIME, NONCE, SIGNATURE, HEAD, DIGEST = (
    "Ringrift-Node",
    "Ringrift-Time",
    "Ringrift-Nonce",
    "Ringrift-Signature",
    "Ringrift-Head",
    "Ringrift-Digest",
)
WINDOW_S = 300.0
_NONCES_MAX = 200_000
_NONCE_LETTERS_MAX = 64


class NotSigned(ConfigError):
    """The signature is missing or wrong: the sender does not know the secret, or its words were changed."""


class StaleRequest(Conflict):
    """The time of the request is too far from the server's."""

    def __init__(self, server_s: float) -> None:
        super().__init__(f"the request's time is too far from the server's, which is {server_s:.3f}")
        self.server_s = server_s


class ReplayedRequest(Conflict):
    """The same request came before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedText:
    """What of a request is signed."""

    method: str
    path: str
    node: str
    time: str
    nonce: str
    head_length: int
    head_digest: str
    content_length: int


class Signer:
    """Signs and checks under one secret."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def request_headers(self, words: SignedText) -> dict[str, str]:
        return {
            NODE: words.node,
            TIME: words.time,
            NONCE: words.nonce,
            HEAD: str(words.head_length),
            DIGEST: words.head_digest,
            SIGNATURE: self._of_request(words),
        }

    def check_request(self, words: SignedText, signature: str | None) -> None:
        """Raise `NotSigned` unless the sender knows the secret."""
        self._check(self._of_request(words), signature)

    def response_signature(self, *, nonce: str, status: int, head: bytes, content_length: int) -> str:
        return self._sign("response", nonce, str(status), str(content_length), digest_of(head))

    def check_response(
        self, signature: str | None, *, nonce: str, status: int, head: bytes, content_length: int
    ) -> None:
        expected = self.response_signature(
            nonce=nonce, status=status, head=head, content_length=content_length
        )
        self._check(expected, signature)

    def _of_request(self, words: SignedText) -> str:
        return self._sign(
            "request",
            words.method,
            words.path,
            words.node,
            words.time,
            words.nonce,
            str(words.head_length),
            str(words.content_length),
            words.head_digest,
        )

    def _sign(self, *parts: str) -> str:
        # No part may contain the separator: headers and request lines cannot hold a line feed.
        return hmac.new(self._secret, "\n".join(parts).encode(), hashlib.sha256).hexdigest()

    def _check(self, expected: str, given: str | None) -> None:
        if given is None or not hmac.compare_digest(expected.encode(), given.encode()):
            raise NotSigned("the signature is wrong; do both nodes have the same secret?")


class OnceOnly:
    """Lets each request pass once. Safe from several threads; its memory is bounded."""

    def __init__(self, *, now_s: Callable[[], float], monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._started_s, self._started_monotonic_s = now_s(), monotonic_s()
        self._lock = threading.Lock()
        self._seen: OrderedDict[str, float] = OrderedDict()

    def server_s(self) -> float:
        return self._started_s + self._monotonic_s() - self._started_monotonic_s

    def admit(self, time: str, nonce: str) -> None:
        """Raise `StaleRequest`, or `ReplayedRequest` for one that came before."""
        server_s = self.server_s()
        try:
            sent_s = float(time)
        except ValueError:
            raise StaleRequest(server_s) from None
        in_window = abs(sent_s - server_s) <= WINDOW_S and sent_s >= self._started_s
        if not in_window or not 0 < len(nonce) <= _NONCE_LETTERS_MAX:
            raise StaleRequest(server_s)
        with self._lock:
            while self._seen and next(iter(self._seen.values())) < server_s - 2 * WINDOW_S:
                self._seen.popitem(last=False)
            if nonce in self._seen:
                raise ReplayedRequest("this request came before")
            if len(self._seen) >= _NONCES_MAX:
                raise Unavailable("too many requests in the last minutes", retry_after_s=10.0)
            self._seen[nonce] = server_s  # by the time it came, so that the oldest stand first


def digest_of(head: bytes) -> str:
    """What is signed of a head."""
    return hashlib.sha256(head).hexdigest()


# The secret that the nodes of a cluster share, and that each must prove to know.


SECRET_FILE = "data_secret"


def data_secret(settings: Settings) -> bytes:
    """Return the secret of the settings, or that of the data folder, made fresh if there is none."""
    if settings.data_secret is not None:
        return settings.data_secret.text.encode()
    path = settings.data_dir / SECRET_FILE
    with translated_errors(path):
        return secret_in(path).encode()
