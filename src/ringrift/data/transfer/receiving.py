"""Taking files in.

Whatever way the bytes come, they get in here. A file gets its name only after the whole of it was hashed,
its digest was right and it is on the disk; then, and only then, there is a receipt. All calls block and are
safe from several threads.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import structlog

from ringrift.data.artifacts import Artifact, Receipt, check_words
from ringrift.data.transfer.chunks import PARTS, ChunkIndex, Incoming, hash_of
from ringrift.data.transfer.contract import AT_REST, CHUNK_BYTES, Moved
from ringrift.decoding import decode_as
from ringrift.engine.encoding import UNREADABLE, check_digest, record_hash
from ringrift.engine.sqlite.blobs import BlobFolder, move_damaged
from ringrift.engine.sqlite.faults import from_os, translated_errors
from ringrift.engine.sqlite.files import ARRIVALS
from ringrift.errors import ConfigError, StorageFull, Unavailable
from ringrift.files import create_file, file_sha256, make_folders, remove_file, rename_file, write_file
from ringrift.runtime import Runtime
from ringrift.settings import Settings

# How full a disk is, measured one way by all who ask.


FULL_PERCENT = 95.0  # from here on a node takes no files of others in


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """One look at a disk. *total_bytes* are what ordinary users can have: used and free together."""

    total_bytes: int
    used_bytes: int

    @property
    def percent(self) -> float:
        return self.percent_with(0)

    @property
    def free_bytes(self) -> int:
        return self.total_bytes - self.used_bytes

    def percent_with(self, more_bytes: int) -> float:
        """How full it would be with so many bytes more."""
        return 100.0 * (self.used_bytes + more_bytes) / self.total_bytes if self.total_bytes else 0.0


def disk_usage(folder: Path) -> DiskUsage:
    """Look at the disk under *folder*, which may not be there yet.

    Counted as `df` does: what the system keeps for itself is neither used nor ours to use.
    """
    there = next(each for each in (folder, *folder.resolve().parents) if each.exists())
    found = shutil.disk_usage(there)
    return DiskUsage(total_bytes=found.used + found.free, used_bytes=found.used)


# What senders say of their files, kept until this node's manifest takes it over. A receiver (the data server,
# a command over ssh) has no engine and so no manifest. It lays the cards of files that it verified into a
# folder beside them, with the receipts; the registration takes them from there. A card that is lost or cannot
# be read costs its words only: the file is found as an orphan.


log = structlog.get_logger()

CARD_BYTES_MAX = 4096
LISTS_MAX = 10_000  # one for each request that brought files; the oldest go first


class ArrivedFile(msgspec.Struct, frozen=True):
    """A file that came from another node, what that node said of it, and that it is here."""

    card: Artifact
    receipt: Receipt
    sender: str = ""  # it has the file, too: these were its bytes


def packed_cards(artifacts: Iterable[Artifact]) -> tuple[msgspec.Raw, ...]:
    """Cards as they travel; those that say nothing, or far too much, stay."""
    telling = (card for card in artifacts if card != Artifact(digest=card.digest, size=card.size))
    packed = (msgspec.json.encode(card) for card in telling)
    return tuple(msgspec.Raw(text) for text in packed if len(text) <= CARD_BYTES_MAX)


class MetadataFolder:
    """The folder of one node."""

    def __init__(self, blobs: BlobFolder) -> None:
        self._blobs, self._folder = blobs, blobs.folder / ARRIVALS

    def put(self, packed: Iterable[msgspec.Raw], receipts: Iterable[Receipt], *, sender: str) -> None:
        """Keep the cards of files that have a receipt. What cannot be kept is left out, and logged."""
        known = {receipt.digest: receipt for receipt in receipts}
        cards = [card for card in map(_read_card, packed) if card is not None]
        arrived = [
            ArrivedFile(card, known[card.digest], sender)
            for card in cards
            if card.digest in known and card.size == known[card.digest].size
        ]
        if not arrived:
            return
        try:
            making = self._blobs.private_name()
            content = msgspec.json.encode(arrived)
            write_file(making, record_hash(content).encode() + b"\n" + content)
            make_folders(self._folder)
            rename_file(making, self._folder / making.name)
        except OSError as error:
            log.warning("transfer.cards_not_kept", files=len(arrived), error=str(error))

    def lists(self) -> Iterator[tuple[Path, list[ArrivedFile]]]:
        """What waits, one request after the other. The caller removes a list when it is taken over."""
        for path in self._waiting():
            try:
                yield path, _read_list(path.read_bytes())
            except FileNotFoundError:
                continue  # another process was first
            except UNREADABLE as error:
                log.warning("transfer.cards_unreadable", path=str(path), error=str(error))
                remove_file(path)

    def sweep(self) -> None:
        """Let the oldest go where nobody takes any."""
        waiting = self._waiting()
        if len(waiting) > LISTS_MAX:
            ages = {path: path.stat().st_mtime for path in waiting if path.exists()}
            for path in sorted(ages, key=lambda path: ages[path])[:-LISTS_MAX]:
                remove_file(path)

    def _waiting(self) -> list[Path]:
        return sorted(self._folder.glob("*")) if self._folder.is_dir() else []


def _read_list(stored: bytes) -> list[ArrivedFile]:
    """What was kept of one request; a list without a hash was kept by an earlier version."""
    stored_hash, _, content = stored.rpartition(b"\n")
    if not stored.startswith(b"[") and stored_hash != record_hash(content).encode():
        raise msgspec.DecodeError("it is damaged: this is not what was kept")
    return decode_as(content, list[ArrivedFile])


def _read_card(packed: msgspec.Raw) -> Artifact | None:
    try:
        card = decode_as(packed, Artifact)
        check_words(card)
        return card
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ConfigError) as error:
        log.info("transfer.card_not_understood", error=str(error))  # another version's, perhaps
        return None


# The intake, where all ways end.


RESERVE_BYTES = 256 << 20  # left free for the databases of this node
SMALL_BYTES_MAX = CHUNK_BYTES  # files up to this travel whole, in batches
CHUNK_INDEX = "chunks.db"  # in the blob folder
QUARANTINE = "quarantine"  # beside the blob folder
_UNFINISHED_MAX = 64
_BLOCK_BYTES = 512  # the unit of st_blocks
_CONFIRMED = "read again"
_FULL_S = 60.0


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
        self.cards = MetadataFolder(folder)
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
        with translated_errors(place):
            try:
                found = file_sha256(place)
            except FileNotFoundError:
                return None
        if found == digest:
            return self._receipt(digest, size, _CONFIRMED)
        log.error("transfer.damaged_copy", digest=digest, found=found)
        aside = self.folder.folder.parent / QUARANTINE
        with translated_errors(aside):
            move_damaged(place, digest, aside / f"{digest}.{self.folder.private_name().name}")
        return None

    def look(
        self, sizes: Mapping[str, int], *, read_again: bool = False, begun: Mapping[str, int] | None = None
    ) -> tuple[Receipt, ...]:
        """The receipts of what is here; `StorageFull` if there is no room for the rest, *begun* or not.

        With *read_again* a file is here if it was hashed now and its digest was right.
        """
        held, there = self.read_again if read_again else self.held, begun or {}
        found = {digest: held(digest, size) for digest, size in sizes.items()}
        lacking = [digest for digest, receipt in found.items() if receipt is None]
        if missing_bytes := sum(max(0, sizes[digest] - there.get(digest, 0)) for digest in lacking):
            self.check_room(missing_bytes)
        return tuple(receipt for receipt in found.values() if receipt is not None)

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

    def adopt(self, delivered: Mapping[str, Path], verifier: str) -> Moved:
        """Verify and publish whole files that another program put into the incoming folder.

        A file whose bytes are wrong is removed; one that cannot be read now stays and fails.
        """
        sound: dict[str, Path] = {}
        sizes: dict[str, int] = {}
        failed, corrupted = [], set()
        for digest, path in delivered.items():
            check_digest(digest)
            try:
                with translated_errors(path):
                    found, sizes[digest] = file_sha256(path), path.stat().st_size
            except Unavailable as error:
                failed.append((digest, error.what))
                continue
            if found == digest:
                sound[digest] = path
            else:
                remove_file(path)
                failed.append((digest, f"the whole has the digest {found}"))
                corrupted.add(digest)
        with translated_errors(self.folder.folder):
            self.folder.publish(sound)
        receipts = tuple(self._receipt(digest, sizes[digest], verifier) for digest in sound)
        return Moved(receipts=receipts, failed=tuple(failed), corrupted=frozenset(corrupted))

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
        with translated_errors(self._folder.folder):
            self._written[digest] = self._folder.write_private(digest, payload)
        self._sizes[digest] = len(payload)

    def seal(self) -> Moved:
        with translated_errors(self._folder.folder):
            self._folder.publish(self._written)
        self._written = {}
        receipts = tuple(self._receipt(digest, size) for digest, size in self._sizes.items())
        corrupted = frozenset(digest for digest, _ in self._failed)
        return Moved(receipts=receipts, failed=tuple(self._failed), corrupted=corrupted)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for path in self._written.values():
            remove_file(path)


# Files that other programs bring, and files that come part after part, on their way into a node's store.
#
# Both end at the `Intake`: only what was read whole and has the right digest gets its name, and a receipt.
# Wrong bytes are thrown away, missing ones are waited for. All calls block.


_LEFTOVER_S = 7 * 86_400.0  # a file that nobody went on with for a week
_BUSY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of one file on its way, with the hash of the part."""

    digest: str
    size: int  # of the whole file
    offset: int
    sha256: str  # of this part
    data: bytes


class Landing:
    """Where files wait until they are whole. *verifier* names, in receipts, how they came."""

    def __init__(self, intake: Intake, *, verifier: str, now_s: Callable[[], float]) -> None:
        self.intake, self._verifier, self._now_s = intake, verifier, now_s

    def look(self, sizes: Mapping[str, int], *, read_again: bool = False) -> Moved:
        """What is there, whole or in part; see `Intake.look`."""
        offsets: dict[str, int] = {}
        for digest in sizes:
            check_digest(digest)  # it becomes a path
            with suppress(FileNotFoundError):
                offsets[digest] = self._waiting(digest).stat().st_size
        receipts = self.intake.look(sizes, read_again=read_again, begun=offsets)
        whole = {receipt.digest for receipt in receipts}
        return Moved(receipts=receipts, offsets={d: at for d, at in offsets.items() if d not in whole})

    def take(self, pieces: Iterable[Piece]) -> Moved:
        """Add parts to their files; the last part of a file seals it."""
        return sum(map(self._take, pieces), Moved())

    def _take(self, piece: Piece) -> Moved:
        check_digest(piece.digest)
        if (receipt := self.intake.held(piece.digest, piece.size)) is not None:
            return Moved(receipts=(receipt,))
        try:
            with translated_errors(self.intake.folder.folder):
                return self._append(piece)
        except StorageFull:
            raise
        except Unavailable as error:
            return Moved(failed=((piece.digest, error.what),))

    def _append(self, piece: Piece) -> Moved:
        digest = piece.digest
        opened = self.intake.folder.open_locked(self._waiting(digest))
        if opened is None:
            raise Unavailable("another process receives it now", retry_after_s=_BUSY_S)
        with opened.file:
            offset = opened.file.tell()
            if offset > piece.size:  # it was begun with other bytes
                opened.file.truncate(0)
                offset = 0
            damaged = hashlib.sha256(piece.data).hexdigest() != piece.sha256
            if not damaged and offset == piece.offset:
                opened.file.write(piece.data)
                opened.file.flush()
                offset += len(piece.data)
            moved = Moved(offsets={digest: offset})
            if damaged:
                moved = Moved.wrong(digest, f"the part at byte {piece.offset} was damaged on its way") + moved
            if offset == piece.size:
                moved += self.intake.adopt({digest: opened.path}, self._verifier)
            return moved

    def seal(self, folder: Path, sizes: Mapping[str, int]) -> Moved:
        """Verify files that another program put into *folder* under their digests, and publish them."""
        there, whole = list[Receipt](), dict[str, Path]()
        failed, offsets = dict[str, str](), dict[str, int]()
        for digest, size in sizes.items():
            path = folder / digest
            if (receipt := self.intake.held(digest, size)) is not None:
                there.append(receipt)
                remove_file(path)
                continue
            found = _plain_file(path)
            arrived = 0 if found is None else found.st_size
            if found is None or arrived < size:
                failed[digest], offsets[digest] = f"{arrived} of {size} bytes arrived", arrived
            else:
                whole[digest] = self._out_of_reach(digest, path)
        moved = Moved(receipts=tuple(there), failed=tuple(failed.items()), offsets=offsets)
        return moved + self.intake.adopt(whole, self._verifier)

    def _out_of_reach(self, digest: str, path: Path) -> Path:
        """A writer that outlived its connection must not change the file after it was read."""
        if path.stat().st_nlink == 1 and not _has_writer(path):
            return path
        copy = self.intake.folder.private_name(digest)
        with path.open("rb") as source, create_file(copy) as target:
            shutil.copyfileobj(source, target)
        remove_file(path)
        return copy

    def _waiting(self, digest: str) -> Path:
        return self.intake.folder.incoming / digest

    def rsync_folder(self, other: str) -> Path:
        """Where rsync puts files of another node; made on first use, and swept of what nobody finishes."""
        folder = self.intake.folder.folder / rsync_place(other)
        make_folders(folder)
        for leftover in folder.iterdir():
            with suppress(FileNotFoundError):
                if leftover.stat().st_mtime < self._now_s() - _LEFTOVER_S:
                    remove_file(leftover)
        return folder


def rsync_place(other: str) -> str:
    """The folder for another node's files, relative to the store. Names may hold anything; hashes do not."""
    return f".incoming/rsync-{hashlib.sha256(other.encode()).hexdigest()[:16]}"


def _plain_file(path: Path) -> os.stat_result | None:
    """What is known of a file that another program brought. A link or a pipe is none, and goes."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    if stat.S_ISREG(found.st_mode):
        return found
    with suppress(OSError):
        remove_file(path)
    return None


def _has_writer(path: Path) -> bool:
    """Whether a process may still write the file. Only a kernel that grants leases can deny it."""
    if not hasattr(fcntl, "F_SETLEASE"):
        return True
    with path.open("rb") as file:
        try:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        except OSError:  # there is a writer, or the file system knows no leases
            return True
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False
