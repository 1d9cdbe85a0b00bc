"""Promises to keep a file: what a node says, and writes down, before another one may delete its copy.

Whoever wants to delete first notes that here (`begin`), then asks the other holders. A holder looks at its
own disk, writes the promise down and only then answers. A node that has promised does not begin; one that
has begun does not promise. So of two nodes that want to delete the same file at least one is refused by the
other, and whoever began last among those that deleted was promised copies of nodes that had not begun: these
stay. The order alone brings that about, however late an answer is used; the time of a promise also holds
those to it who would be content with fewer copies.

What is written down, and where: `promise_store`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec
import structlog
from msgspec.structs import replace

from ringrift.data.config import DataNode
from ringrift.data.protection.promise_store import KEEP_S_MAX, FileLook, FileRead, NotedRead, PromiseStore
from ringrift.data.transfer.contract import ASKED_AT_ONCE
from ringrift.data.transfer.http.wire import FILES_AT_ONCE, File
from ringrift.engine.sqlite.blobs import BlobFolder
from ringrift.engine.sqlite.direct_reads import read_committed
from ringrift.engine.sqlite.faults import translated_errors
from ringrift.engine.sqlite.files import SqliteConfig
from ringrift.errors import ConfigError, Corrupt, RingRiftError, Unavailable
from ringrift.files import file_sha256
from ringrift.runtime import Runtime
from ringrift.settings import Settings

log = structlog.get_logger()

PINS = "data/pins/"  # in the key-value store of the node
KEEP_S = 900.0  # asked for; a deletion takes far less
READ_AGE_S_MAX = 86_400.0  # a file that was read longer ago is hashed before it is promised
LOOK_READ_BYTES = 256 << 20  # read for one answer to a look, of files that were never read
READERS = 2  # hash at the same time
READER_WAIT_S = 60.0
_NAME_CHARS_MAX = 255


# --- what nodes say to each other -------------------------------------------------------------------------


class KeepRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`keep`: which of these files do you have, and will you keep them for so long? 0: only look."""

    asker: str
    promise: str = ""  # names the promise, to release it
    keep_s: float = 0.0
    files: tuple[File, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < len(self.asker) <= _NAME_CHARS_MAX or len(self.promise) > _NAME_CHARS_MAX:
            raise ConfigError("a request to keep files names who asks, in at most 255 characters")
        if not (math.isfinite(self.keep_s) and 0 <= self.keep_s <= KEEP_S_MAX):
            raise ConfigError(f"files are kept for 0 to {KEEP_S_MAX:g} s, not {self.keep_s!r}")
        if self.keep_s > 0 and not self.promise:
            raise ConfigError("a promise has a name")
        most = FILES_AT_ONCE if self.keep_s > 0 else ASKED_AT_ONCE
        if len(self.files) > most:
            raise ConfigError(f"{len(self.files)} files are too many at once; at most {most}")


class KeptFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a holder found of one file. An empty *refusal* means that it is there, and is kept if asked."""

    digest: str
    size: int = 0
    refusal: str = ""
    missing: bool = False  # it looked, and there is no such file
    damaged: bool = False  # it looked, or read, and the file is not what its name says
    read_age_s: float | None = None  # since all of it was read and had the right hash; None: not known
    pinned: str = ""  # why a person keeps it on every node; told of a promise, and of one file alone


class KeepAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to `keep`."""

    node: str
    store: str  # names the folder: two nodes that give the same name have one copy between them
    keep_s: float = 0.0  # from before this was sent
    counts: bool = True  # by its own config: a node that stays
    files: tuple[KeptFile, ...] = ()


class ReleaseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`release`: the promise of that name is no longer needed."""

    promise: str


class Released(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `release`."""

    files: int


# --- the holder's side ------------------------------------------------------------------------------------


class StoredFiles(Protocol):
    """This node's files, without an event loop."""

    def look(self, digest: str) -> FileLook | None:
        """None: there is no such file."""
        ...

    def hash(self, digest: str) -> str:
        """Read all of it; `FileNotFoundError` if it went meanwhile."""
        ...


class FolderFiles:
    """See `StoredFiles`: the files of a blob folder."""

    def __init__(self, folder: BlobFolder) -> None:
        self._folder = folder

    def look(self, digest: str) -> FileLook | None:
        with translated_errors(self._folder.folder):
            try:
                found = self._folder.place(digest).lstat()
            except FileNotFoundError:
                return None
        return FileLook(found.st_size, found.st_mtime_ns)

    def hash(self, digest: str) -> str:
        return file_sha256(self._folder.place(digest))


class _ReadFile(NamedTuple):
    noted: NotedRead
    wrong: str  # with the file; empty if nothing is


class Holder:
    """Answers for the files of this node. Blocks; safe from several threads."""

    def __init__(
        self,
        files: StoredFiles,
        promises: PromiseStore,
        *,
        node: DataNode,
        runtime: Runtime,
        pinned: Callable[[str], str],
    ) -> None:
        self._files, self.promises, self._node = files, promises, node
        self._runtime, self._pinned = runtime, pinned
        self._readers = threading.BoundedSemaphore(READERS)

    def keep(self, request: KeepRequest) -> KeepAnswer:
        """Look at each file, write down that it is kept if that is asked, then answer."""
        if request.keep_s > 0:
            files = tuple(self._keep(file, request) for file in request.files)
        else:
            files = self._look(request.files)
            if len(files) == 1:  # whoever asks about one file wants to know whether it may go
                files = (self._with_pin(files[0]),)
        node = self._node
        return KeepAnswer(
            node=node.name,
            store=self.promises.id,
            keep_s=request.keep_s,
            counts=node.active and not node.ephemeral,
            files=files,
        )

    def release(self, request: ReleaseRequest) -> Released:
        return Released(files=self.promises.release(request.promise))

    def look(self, digest: str) -> FileLook | None:
        return self._files.look(digest)

    def read(self, digest: str) -> str:
        """Read all of a file and note it; return what is wrong with it. `FileNotFoundError` if it is gone."""
        read = self._read(digest)
        self.promises.note_reads([read.noted])
        return read.wrong

    def _read(self, digest: str) -> _ReadFile:
        look = self._files.look(digest)
        if look is None:
            raise FileNotFoundError(digest)
        found = self._files.hash(digest)
        wrong = "" if found == digest else f"its content has the digest {found}"
        return _ReadFile(NotedRead(digest, look, not wrong), wrong)

    def _look(self, files: Sequence[File]) -> tuple[KeptFile, ...]:
        """Look at files. Those that were never read are read, as many as one answer has time for."""
        reads = self.promises.last_reads([file.digest for file in files])
        left, found, noted = LOOK_READ_BYTES, list[KeptFile](), list[NotedRead]()
        for file in files:
            seen = self._found(file, reads.get(file.digest))
            if not seen.refusal and seen.read_age_s is None and file.size <= left:
                left -= file.size
                try:
                    seen = self._read_now(file, seen, noted.append)
                except (RingRiftError, OSError) as error:
                    seen = _cannot_look(file.digest, error)
            found.append(seen)
        try:
            if noted:
                self.promises.note_reads(noted)
        except (RingRiftError, OSError) as error:
            unknown = {read.digest for read in noted}
            return tuple(
                _cannot_look(each.digest, error) if each.digest in unknown else each for each in found
            )
        return tuple(found)

    def _with_pin(self, found: KeptFile) -> KeptFile:
        try:
            return replace(found, pinned=self._pinned(found.digest))
        except RingRiftError as error:
            return _cannot_look(found.digest, error)

    def _found(self, file: File, read: FileRead | None) -> KeptFile:
        """What the disk shows, and what is known from reading it before."""
        look = self._files.look(file.digest)
        if look is None:
            return _missing(file)
        if look.size != file.size:
            return KeptFile(
                digest=file.digest,
                size=look.size,
                refusal=f"its file has {look.size} bytes instead of {file.size}",
                damaged=True,
            )
        known = read if read is not None and read.look == look else None
        if known is not None and not known.sound:
            return KeptFile(digest=file.digest, size=look.size, refusal="its file is damaged", damaged=True)
        age_s = None if known is None else max(0.0, self._runtime.wall_s() - known.read_s)
        return KeptFile(digest=file.digest, size=look.size, read_age_s=age_s)

    def _keep(self, file: File, request: KeepRequest) -> KeptFile:
        """Pins are told without a copy, too: a person may pin on any node, also while the file is read."""
        try:
            self._pinned(file.digest)  # nothing is promised, or read, while they cannot be read
            found = self._promised(file, request)
        except FileNotFoundError:
            found = _missing(file)
        except (RingRiftError, OSError) as error:
            found = _cannot_look(file.digest, error)
        return self._with_pin(found)

    def _promised(self, file: File, request: KeepRequest) -> KeptFile:
        """Read the file if need be, write the promise down, and look once more."""
        found = self._examined(file)
        if found.refusal:
            return found
        refusal = self.promises.promise(
            file.digest, asker=request.asker, promise=request.promise, keep_s=request.keep_s
        )
        # A deletion may have begun and ended since the first look; after the promise none begins.
        if not refusal and self._files.look(file.digest) is None:
            return _missing(file)
        return replace(found, refusal=refusal)

    def _examined(self, file: File) -> KeptFile:
        """Look at a file, and read it if that was long ago, or a clock says that it will be."""
        read = self.promises.last_reads([file.digest]).get(file.digest)
        found = self._found(file, read)
        if found.refusal:
            return found
        now_s = self._runtime.wall_s()
        if found.read_age_s is not None and read is not None and 0 <= now_s - read.read_s <= READ_AGE_S_MAX:
            return found
        return self._read_now(file, found, lambda read: self.promises.note_reads([read]))

    def _read_now(self, file: File, found: KeptFile, note: Callable[[NotedRead], None]) -> KeptFile:
        """What reading all of a file shows, which is handed to *note*."""
        if not self._readers.acquire(timeout=READER_WAIT_S):
            return KeptFile(digest=file.digest, refusal="it reads other files now")
        try:
            read = self._read(file.digest)
            note(read.noted)
        finally:
            self._readers.release()
        if read.wrong:
            log.error("promises.file_damaged", digest=file.digest, found=read.wrong)
            refusal = f"its file is damaged: {read.wrong}"
            return KeptFile(digest=file.digest, size=found.size, refusal=refusal, damaged=True)
        return replace(found, read_age_s=0.0)


def _cannot_look(digest: str, error: Exception) -> KeptFile:
    return KeptFile(digest=digest, refusal=f"it cannot look: {error}")


def _missing(file: File) -> KeptFile:
    return KeptFile(digest=file.digest, refusal="it does not have it", missing=True)


def open_holder(settings: Settings, runtime: Runtime, *, node: DataNode) -> Holder:
    """The holder of a data folder, for whoever answers other nodes without an engine."""
    files = FolderFiles(BlobFolder(settings.blob_dir, runtime.new_id))
    promises = PromiseStore(settings.blob_dir, runtime)
    return Holder(
        files,
        promises,
        node=node,
        runtime=runtime,
        pinned=lambda digest: pinned_in(settings, digest),
    )


def pinned_in(settings: Settings, digest: str) -> str:
    """Why a person keeps the file on every node, as the engine's database has it."""
    config = SqliteConfig.from_settings(settings)
    if not config.database.exists():
        return ""  # no engine ever ran here, so nobody pinned anything
    try:
        value = read_committed(config, PINS + digest).value
    except Corrupt as error:
        raise Unavailable(f"its pins cannot be read ({error.found})") from error
    return "" if value is None else value.decode(errors="replace") or "no reason given"
