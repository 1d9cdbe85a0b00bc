"""Taking files in.

Whatever way the bytes come, they get in here. A file gets its name only after the whole of it was hashed,
its digest was right and it is on the disk; then, and only then, there is a receipt. All calls block and are
safe from several threads.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import structlog

from ringrift.data.artifacts import Receipt
from ringrift.data.disk_usage import FULL_PERCENT, disk_usage
from ringrift.data.transfer.card_box import CardBox
from ringrift.data.transfer.chunks import ChunkIndex, hash_of
from ringrift.data.transfer.contract import AT_REST, CHUNK_BYTES
from ringrift.data.transfer.incoming import PARTS, Incoming
from ringrift.engine.digests import check_digest
from ringrift.engine.sqlite.blob_folder import BlobFolder, digest_of, move_damaged
from ringrift.engine.sqlite.faults import from_os, told_in_our_words
from ringrift.errors import StorageFull, Unavailable
from ringrift.held_folder import remove_file
from ringrift.runtime import Runtime
from ringrift.settings import Settings

log = structlog.get_logger()

RESERVE_BYTES = 256 << 20  # left free for the databases of this node
SMALL_BYTES_MAX = CHUNK_BYTES  # files up to this travel whole, in batches
CHUNK_INDEX = "chunks.db"  # in the blob folder
QUARANTINE = "quarantine"  # beside the blob folder
_UNFINISHED_MAX = 64
_BLOCK_BYTES = 512  # the unit of st_blocks
_CONFIRMED = "read again"
_FULL_S = 60.0


class Taken(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a group of files."""

    receipts: tuple[Receipt, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()  # (digest, why)
    corrupted: frozenset[str] = frozenset()  # of the failed: those whose bytes came, and were wrong


class Intake:
    """The one way into a node's blob folder for the bytes of other nodes."""

    def __init__(
        self,
        folder: BlobFolder,
        index: ChunkIndex,
        *,
        node: str,
        now_s: Callable[[], float],
        reserve_bytes: int = RESERVE_BYTES,
        full_percent: float = FULL_PERCENT,
    ) -> None:
        self.folder, self.index, self.node = folder, index, node
        self.cards = CardBox(folder)
        self._now_s, self._reserve_bytes, self._full_percent = now_s, reserve_bytes, full_percent
        self._lock = threading.Lock()
        self._unfinished: OrderedDict[str, Incoming] = OrderedDict()

    def held(self, digest: str, size: int) -> Receipt | None:
        """The receipt of a file that is here already, dated when it was finished."""
        check_digest(digest)
        try:
            found = self.folder.place(digest).stat()
        except FileNotFoundError:
            return None
        except OSError as error:  # the folder is closed to us, or none: that is not a line that broke
            raise from_os(error, self.folder.folder) from error
        if found.st_size != size:
            log.warning("transfer.damaged_copy", digest=digest, size=found.st_size, wanted=size)
            return None
        return Receipt(digest=digest, node=self.node, size=size, verified_s=found.st_mtime, verifier=AT_REST)

    def read_again(self, digest: str, size: int) -> Receipt | None:
        """The receipt of a file that is here and was hashed just now; a damaged one is set aside."""
        if self.held(digest, size) is None:
            return None
        place = self.folder.place(digest)
        with told_in_our_words(place):
            try:
                found = digest_of(place)
            except FileNotFoundError:
                return None
        if found == digest:
            return self._receipt(digest, size, _CONFIRMED)
        log.error("transfer.damaged_copy", digest=digest, found=found)
        aside = self.folder.folder.parent / QUARANTINE
        with told_in_our_words(aside):
            move_damaged(place, digest, aside / f"{digest}.{self.folder.private_name().name}")
        return None

    def check_room(self, size: int) -> None:
        """Refuse before the first byte what would fill the disk: `StorageFull`."""
        if (free := self.folder.free_bytes()) < size + self._reserve_bytes:
            raise StorageFull(
                f"{free >> 20} MB are free in {self.folder.folder}, too little for {size >> 20} MB more "
                f"and a reserve of {self._reserve_bytes >> 20} MB",
                retry_after_s=_FULL_S,
            )
        if size > 0 and (full := disk_usage(self.folder.folder).percent_with(size)) >= self._full_percent:
            raise StorageFull(
                f"{self.node} takes nothing in: its disk would be {full:.1f} % full, "
                f"the limit is {self._full_percent:g} %",
                retry_after_s=_FULL_S,
            )

    def incoming(self, digest: str, size: int) -> Incoming:
        """Begin or continue a large file; callers in this process share it.

        `Unavailable` if another process receives it now, `StorageFull` if there is no room.
        """
        check_digest(digest)
        with self._lock:
            incoming = self._unfinished.get(digest)
            if incoming is None or incoming.size != size or not incoming.is_open:
                self.check_room(size - self._room_taken(digest))
                incoming = self._unfinished[digest] = Incoming(self.folder, self.index, digest, size)
            self._unfinished.move_to_end(digest)
            crowded_out = len(self._unfinished) > _UNFINISHED_MAX
            oldest = self._unfinished.popitem(last=False)[1] if crowded_out else None
        if oldest is not None:
            oldest.let_go()
        return incoming

    def seal(self, incoming: Incoming, verifier: str) -> Receipt:
        """Verify the whole and publish it; `DigestMismatch` if it is not what its name says."""
        try:
            incoming.seal()
        finally:
            self._forget(incoming)
        return self._receipt(incoming.digest, incoming.size, verifier)

    def batch(self, verifier: str) -> Batch:
        """Begin to take small files, which become durable together."""
        return Batch(self.folder, lambda digest, size: self._receipt(digest, size, verifier))

    def adopt(self, delivered: Mapping[str, Path], verifier: str) -> Taken:
        """Verify and publish whole files that another program put into the incoming folder.

        A file whose bytes are wrong is removed; one that cannot be read now stays and fails.
        """
        sound: dict[str, Path] = {}
        sizes: dict[str, int] = {}
        failed, corrupted = [], set()
        for digest, path in delivered.items():
            check_digest(digest)
            try:
                with told_in_our_words(path):
                    found, sizes[digest] = digest_of(path), path.stat().st_size
            except Unavailable as error:
                failed.append((digest, error.what))
                continue
            if found == digest:
                sound[digest] = path
            else:
                remove_file(path)
                failed.append((digest, f"the whole has the digest {found}"))
                corrupted.add(digest)
        with told_in_our_words(self.folder.folder):
            self.folder.publish(sound)
        receipts = tuple(self._receipt(digest, sizes[digest], verifier) for digest in sound)
        return Taken(receipts=receipts, failed=tuple(failed), corrupted=frozenset(corrupted))

    def let_go(self, incoming: Incoming) -> None:
        """Leave an unfinished file to whoever continues it, in this process or another."""
        self._forget(incoming)
        incoming.let_go()

    def let_go_of_idle(self) -> None:
        """Let go of the files that nobody touched since the last call."""
        with self._lock:
            idle = [incoming for incoming in self._unfinished.values() if not incoming.was_touched()]
        for incoming in idle:
            self.let_go(incoming)

    def close(self) -> None:
        """Let go of unfinished files; their bytes stay."""
        with self._lock:
            unfinished, self._unfinished = list(self._unfinished.values()), OrderedDict()
        for incoming in unfinished:
            incoming.let_go()

    def _forget(self, incoming: Incoming) -> None:
        with self._lock:
            if self._unfinished.get(incoming.digest) is incoming:
                del self._unfinished[incoming.digest]

    def _room_taken(self, digest: str) -> int:
        """What an earlier attempt occupies already."""
        try:
            return (self.folder.incoming / (digest + PARTS)).stat().st_blocks * _BLOCK_BYTES
        except FileNotFoundError:
            return 0

    def _receipt(self, digest: str, size: int, verifier: str) -> Receipt:
        return Receipt(digest=digest, node=self.node, size=size, verified_s=self._now_s(), verifier=verifier)


def open_intake(settings: Settings, runtime: Runtime, *, node: str) -> Intake:
    """Open the way into the blob folder of the settings."""
    folder = BlobFolder(settings.blob_dir, runtime.new_id)
    return Intake(folder, ChunkIndex(settings.blob_dir / CHUNK_INDEX), node=node, now_s=runtime.now_s)


class Batch:
    """Small files, hashed as they come and made durable together. Leaving it unsealed drops them."""

    def __init__(self, folder: BlobFolder, receipt: Callable[[str, int], Receipt]) -> None:
        self._folder, self._receipt = folder, receipt
        self._written: dict[str, Path] = {}
        self._sizes: dict[str, int] = {}
        self._failed: list[tuple[str, str]] = []

    def add(self, digest: str, payload: memoryview) -> None:
        """Take one file; one with wrong bytes is noted as failed. `StorageFull` ends the batch."""
        check_digest(digest)
        if digest in self._written:
            return
        if (found := hash_of(payload).hex()) != digest:
            self._failed.append((digest, f"the bytes that came have the digest {found}"))
            return
        with told_in_our_words(self._folder.folder):
            self._written[digest] = self._folder.write_private(digest, payload)
        self._sizes[digest] = len(payload)

    def seal(self) -> Taken:
        with told_in_our_words(self._folder.folder):
            self._folder.publish(self._written)
        self._written = {}
        receipts = tuple(self._receipt(digest, size) for digest, size in self._sizes.items())
        corrupted = frozenset(digest for digest, _ in self._failed)
        return Taken(receipts=receipts, failed=tuple(self._failed), corrupted=corrupted)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for path in self._written.values():
            remove_file(path)
