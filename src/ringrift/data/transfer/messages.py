"""What nodes say to each other over HTTP.

A request is `POST /v1/VERB`; its body, like that of the answer, is a head (one of these values, as JSON)
and then a payload: the pieces that the head names, one after the other, nothing between them. `held`,
`batch` and `seal` are answered by a `Taken`. Every number that a node could get wrong has a bound here.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from ringrift.data.transfer.chunks import HASH_BYTES, chunk_length
from ringrift.data.transfer.contract import CHUNK_BYTES
from ringrift.decoding import decode_as
from ringrift.engine.digests import check_digest
from ringrift.errors import ConfigError

T = TypeVar("T")

PREFIX = "/v1/"
HEAD_BYTES_MAX = 4 << 20
CHUNKS_AT_ONCE = 16  # of a large file in one request
BATCH_BYTES_MAX = 16 << 20  # of small files in one request
FILES_AT_ONCE = 256
ASKED_AT_ONCE = 10_000
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
