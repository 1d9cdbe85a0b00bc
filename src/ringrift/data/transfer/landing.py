"""Files that other programs bring, and files that come part after part, on their way into a node's store.

Both end at the `Intake`: only what was read whole and has the right digest gets its name, and a receipt.
Wrong bytes are thrown away, missing ones are waited for. All calls block.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ringrift.data.artifacts import Receipt
from ringrift.data.transfer.receiving import Intake
from ringrift.engine.digests import check_digest
from ringrift.engine.sqlite.faults import told_in_our_words
from ringrift.errors import StorageFull, Unavailable
from ringrift.held_folder import create_file, make_folders, remove_file

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


@dataclass(slots=True)
class Landed:
    """What became of some files. Offsets say how far unfinished ones have come."""

    receipts: list[Receipt] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # digest: why
    corrupted: set[str] = field(default_factory=set)  # of the failed: their bytes came, and were wrong
    offsets: dict[str, int] = field(default_factory=dict)


class Landing:
    """Where files wait until they are whole. *verifier* names, in receipts, how they came."""

    def __init__(self, intake: Intake, *, verifier: str, now_s: Callable[[], float]) -> None:
        self.intake, self._verifier, self._now_s = intake, verifier, now_s

    def look(self, sizes: Mapping[str, int], *, read_again: bool = False) -> Landed:
        """What is there, whole or in part; `StorageFull` if there is no room for the rest.

        With *read_again* a file is there if it was hashed now and its digest was right.
        """
        landed, held = Landed(), self.intake.read_again if read_again else self.intake.held
        missing_bytes = 0
        for digest, size in sizes.items():
            if (receipt := held(digest, size)) is not None:
                landed.receipts.append(receipt)
                continue
            with suppress(FileNotFoundError):
                landed.offsets[digest] = self._waiting(digest).stat().st_size
            missing_bytes += size - min(size, landed.offsets.get(digest, 0))
        if missing_bytes:
            self.intake.check_room(missing_bytes)
        return landed

    def take(self, piece: Piece, into: Landed) -> None:
        """Add one part to its file; the last one seals it. Note in *into* what came of it."""
        check_digest(piece.digest)
        if (receipt := self.intake.held(piece.digest, piece.size)) is not None:
            into.receipts.append(receipt)
            return
        try:
            with told_in_our_words(self.intake.folder.folder):
                self._append(piece, into)
        except StorageFull:
            raise
        except Unavailable as error:
            into.failed[piece.digest] = error.what

    def _append(self, piece: Piece, into: Landed) -> None:
        opened = self.intake.folder.open_locked(self._waiting(piece.digest))
        if opened is None:
            raise Unavailable("another process receives it now", retry_after_s=_BUSY_S)
        with opened.file:
            offset = opened.file.tell()
            if offset > piece.size:  # it was begun with other bytes
                opened.file.truncate(0)
                offset = 0
            if hashlib.sha256(piece.data).hexdigest() != piece.sha256:
                into.failed[piece.digest] = f"the part at byte {piece.offset} was damaged on its way"
                into.corrupted.add(piece.digest)
            elif offset == piece.offset:
                opened.file.write(piece.data)
                opened.file.flush()
                offset += len(piece.data)
            into.offsets[piece.digest] = offset
            if offset == piece.size:
                self._adopt({piece.digest: opened.path}, into)

    def seal(self, folder: Path, sizes: Mapping[str, int]) -> Landed:
        """Verify files that another program put into *folder* under their digests, and publish them."""
        landed = Landed()
        whole: dict[str, Path] = {}
        for digest, size in sizes.items():
            path = folder / digest
            if (receipt := self.intake.held(digest, size)) is not None:
                landed.receipts.append(receipt)
                remove_file(path)
                continue
            found = _plain_file(path)
            arrived = 0 if found is None else found.st_size
            if found is None or arrived < size:
                landed.failed[digest] = f"{arrived} of {size} bytes arrived"
                landed.offsets[digest] = arrived
            else:
                whole[digest] = self._out_of_reach(digest, path)
        self._adopt(whole, landed)
        return landed

    def _adopt(self, delivered: Mapping[str, Path], into: Landed) -> None:
        taken = self.intake.adopt(delivered, self._verifier)
        into.receipts += taken.receipts
        into.failed |= dict(taken.failed)
        into.corrupted |= taken.corrupted
        for digest in delivered:
            into.offsets.pop(digest, None)

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
