"""What the data server does for each request, without a word about HTTP.

Requests name files by digest and chunks by position; nothing a peer says becomes part of a path unchecked.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from ringrift.data.protection.promises import Holder, KeepRequest, ReleaseRequest
from ringrift.data.transfer.chunks import ChunkedFile, Incoming, chunk_count, chunk_length
from ringrift.data.transfer.contract import CHUNK_BYTES
from ringrift.data.transfer.http.wire import (
    ASKED_AT_ONCE,
    CHUNKS_AT_ONCE,
    FILES_AT_ONCE,
    ChunkRange,
    Chunks,
    File,
    Files,
    FileToSeal,
    Hello,
    Positions,
    decode,
    encode,
    split_hashes,
)
from ringrift.data.transfer.receiving import SMALL_BYTES_MAX, Intake, Taken
from ringrift.errors import ConfigError, DigestMismatch, Unavailable

# Room for chunks, bounded for all connections together.


_COUNT = 12
_WAIT_S = 30.0


class Buffers:
    """As many buffers of one chunk as there may be requests with a payload at the same time."""

    def __init__(self, count: int = _COUNT, *, wait_s: float = _WAIT_S) -> None:
        self._free: queue.LifoQueue[memoryview | None] = queue.LifoQueue()
        self._wait_s = wait_s
        for _ in range(count):
            self._free.put(None)  # made on first use

    @contextmanager
    def borrow(self) -> Iterator[memoryview]:
        """Use a buffer; `Unavailable` if none gets free in time."""
        try:
            buffer = self._free.get(timeout=self._wait_s)
        except queue.Empty:
            raise Unavailable("all buffers are in use", retry_after_s=5.0) from None
        buffer = buffer or memoryview(bytearray(CHUNK_BYTES))
        try:
            yield buffer
        finally:
            self._free.put(buffer)


# The answers.


VERIFIER = "http"


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


class Answers:
    """The verbs. Safe from several threads."""

    def __init__(self, intake: Intake, buffers: Buffers, holder: Holder) -> None:
        self._intake, self._buffers, self._holder = intake, buffers, holder
        self._verbs: Mapping[str, Callable[[bytes, Payload], ServerAnswer]] = {
            "hello": self._hello,
            "held": self._held,
            "batch": self._batch,
            "missing": self._missing,
            "chunks": self._chunks,
            "seal": self._seal,
            "fetch_batch": self._fetch_batch,
            "fetch_hashes": self._fetch_hashes,
            "fetch_chunks": self._fetch_chunks,
            "keep": self._keep,
            "release": self._release,
        }

    def answer(self, verb: str, head: bytes, payload: Payload) -> ServerAnswer:
        """Do what is asked; `ConfigError` for an unknown verb or a wrong head."""
        known = self._verbs.get(verb)
        if known is None:
            raise ConfigError(f"no verb is called {verb[:40]!r}")
        return known(head, payload)

    def _hello(self, _head: bytes, _payload: Payload) -> ServerAnswer:
        return ServerAnswer(encode(Hello(self._intake.node)))

    # --- files that are here --------------------------------------------------------------------------

    def _keep(self, head: bytes, _payload: Payload) -> ServerAnswer:
        return ServerAnswer(encode(self._holder.keep(decode(head, KeepRequest))))

    def _release(self, head: bytes, _payload: Payload) -> ServerAnswer:
        return ServerAnswer(encode(self._holder.release(decode(head, ReleaseRequest))))

    # --- files that come ------------------------------------------------------------------------------

    def _held(self, head: bytes, _payload: Payload) -> ServerAnswer:
        asked = decode(head, Files)
        files = asked.files
        _check_count(len(files), ASKED_AT_ONCE)
        look = self._intake.read_again if asked.read_again else self._intake.held
        receipts = {file.digest: look(file.digest, file.size) for file in files}
        self._intake.check_room(sum(file.size for file in files if receipts[file.digest] is None))
        return ServerAnswer(encode(Taken(receipts=tuple(r for r in receipts.values() if r is not None))))

    def _batch(self, head: bytes, payload: Payload) -> ServerAnswer:
        asked = decode(head, Files)
        files = asked.files
        _check_small(files)
        with self._intake.batch(VERIFIER) as batch, self._buffers.borrow() as buffer:
            self._intake.check_room(payload.left)
            for file in files:
                piece = buffer[: file.size]
                payload.read_into(piece)
                batch.add(file.digest, piece)
            taken = batch.seal()
        self._intake.cards.put(asked.cards, taken.receipts, sender=payload.peer)
        return ServerAnswer(encode(taken))

    def _missing(self, head: bytes, _payload: Payload) -> ServerAnswer:
        asked = decode(head, ChunkRange)
        hashes = split_hashes(asked.hashes)
        _check_positions(asked.file, (asked.first, asked.first + max(0, len(hashes) - 1)))
        incoming = self._intake.incoming(asked.file.digest, asked.file.size)
        missing = tuple(incoming.missing(asked.first, hashes))
        begun = incoming.begun(missing)
        return ServerAnswer(encode(Positions(asked.file, missing, begun if any(begun) else ())))

    def _chunks(self, head: bytes, payload: Payload) -> ServerAnswer:
        sent = decode(head, Chunks)
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
        return ServerAnswer(encode(Positions(sent.file, tuple(wrong))))

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

    def _seal(self, head: bytes, payload: Payload) -> ServerAnswer:
        file = decode(head, FileToSeal)
        if (held := self._intake.held(file.digest, file.size)) is not None:
            self._intake.cards.put(file.cards, (held,), sender=payload.peer)
            return ServerAnswer(encode(Taken(receipts=(held,))))
        incoming = self._intake.incoming(file.digest, file.size)
        try:
            receipt = self._intake.seal(incoming, VERIFIER)
        except DigestMismatch as error:
            wrong = frozenset({file.digest})
            return ServerAnswer(encode(Taken(failed=((file.digest, error.found),), corrupted=wrong)))
        self._intake.cards.put(file.cards, (receipt,), sender=payload.peer)
        return ServerAnswer(encode(Taken(receipts=(receipt,))))

    # --- files that go --------------------------------------------------------------------------------

    def _fetch_batch(self, head: bytes, _payload: Payload) -> ServerAnswer:
        files = decode(head, Files).files
        _check_small(files)
        there = [file for file in files if self._size(file.digest) == file.size]
        parts = tuple(FilePart(self._intake.folder.place(file.digest), 0, file.size) for file in there)
        return ServerAnswer(encode(Files(tuple(there))), parts)

    def _fetch_hashes(self, head: bytes, _payload: Payload) -> ServerAnswer:
        asked = decode(head, Positions)
        return ServerAnswer(encode(self._hashed(asked)))

    def _fetch_chunks(self, head: bytes, _payload: Payload) -> ServerAnswer:
        asked = decode(head, Positions)
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
