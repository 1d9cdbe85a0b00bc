"""Where an archive's objects lie: the little that a bucket and a mounted drive have in common."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Protocol, TypeVar

from ringrift.data.archive_format import MARKER, STATES, ArchiveMarker, bytes_max_of, check_marker, encode
from ringrift.data.transfer.contract import TransferFailed
from ringrift.engine.sqlite.faults import told_in_our_words
from ringrift.errors import ConfigError, Corrupt
from ringrift.foreign_files.paths import open_regular
from ringrift.held_folder import sync_folder
from ringrift.private_files import close_to_others, is_shared, make_private_folder

T = TypeVar("T")

_UNFINISHED = ".unfinished-"


class ArchiveObjects(Protocol):
    """Objects under keys. Files only grow: nothing but states, of which there are many, can be removed.

    Errors of the store are `TransferFailed`; a full drive is `StorageFull`.
    """

    @property
    def place(self) -> str:
        """For people: where it is."""
        ...

    async def ready(self, *, to_write: bool) -> None:
        """Check that an archive of ours is there; an empty bucket becomes one when it is written to."""
        ...

    async def size(self, key: str) -> int | None: ...

    async def read(self, key: str, *, offset: int = 0) -> bytes | None:
        """Return the whole object, which is never larger than a part or a manifest; None if absent."""
        ...

    async def create(self, key: str, content: bytes) -> bool:
        """Store a new object; False, and nothing changes, if the key is there."""
        ...

    async def replace(self, key: str, content: bytes) -> None:
        """Store whatever was there before, in one step."""
        ...

    async def keys(self, prefix: str) -> list[str]: ...

    async def remove(self, key: str) -> None:
        """Remove an object of a state; `ConfigError` for any other."""
        ...


def check_removable(key: str) -> None:
    if not key.startswith(STATES):
        raise ConfigError(f"{key} is no object of a state; nothing else is ever removed from an archive")


def check_size(place: str, key: str, size: int) -> None:
    """Refuse an object that is larger than any of its kind, before it is read."""
    if size > bytes_max_of(key):
        told = f"it has {size} bytes, and {bytes_max_of(key)} are the most of such an object"
        raise Corrupt(f"{place}/{key}", found=told, advice="Look who put it there")


class DriveObjects:
    """Objects as files of a mounted drive. See `ArchiveObjects`."""

    def __init__(self, folder: Path, new_id: Callable[[], str]) -> None:
        self._folder, self._new_id = folder, new_id

    @property
    def place(self) -> str:
        return str(self._folder)

    async def ready(self, *, to_write: bool) -> None:
        marker = await self.read(MARKER)
        if marker is None:
            raise TransferFailed(
                f"there is no archive at {self.place}; is the drive mounted? A new drive is prepared with "
                f"`ringrift data backup --prepare`",
                retry_after_s=60.0,
            )
        check_marker(self.place, marker)
        if to_write:
            await asyncio.to_thread(self._close_to_others)

    async def prepare(self) -> bool:
        """Make the folder an archive; False if it is one. An empty mount point is for its owner to tell."""
        if not await asyncio.to_thread(self._folder.is_dir):
            raise ConfigError(f"{self._folder} is not a folder; mount the drive there, or make the folder")
        return await self.create(MARKER, encode(ArchiveMarker()))

    async def size(self, key: str) -> int | None:
        def work() -> int | None:
            try:
                return self._at(key).stat().st_size
            except FileNotFoundError:
                return None

        return await self._run(work)

    async def read(self, key: str, *, offset: int = 0) -> bytes | None:
        def work() -> bytes | None:
            try:
                with open_regular(self._at(key), follow=False) as file:
                    check_size(self.place, key, os.fstat(file.fileno()).st_size)
                    file.seek(offset)
                    return file.read(bytes_max_of(key))
            except FileNotFoundError:
                return None

        return await self._run(work)

    async def create(self, key: str, content: bytes) -> bool:
        def work() -> bool:
            place = self._at(key)
            if place.exists():
                return False
            unfinished = self._written(place, content)
            try:
                os.link(unfinished, place)
            except FileExistsError:
                return False
            except OSError:
                # The drive knows no links. Whoever else creates this key writes the same: the last may win.
                os.replace(unfinished, place)
            finally:
                unfinished.unlink(missing_ok=True)
            sync_folder(place.parent)
            return True

        return await self._run(work)

    async def replace(self, key: str, content: bytes) -> None:
        def work() -> None:
            place = self._at(key)
            os.replace(self._written(place, content), place)
            sync_folder(place.parent)

        await self._run(work)

    async def keys(self, prefix: str) -> list[str]:
        def work() -> list[str]:
            files = self._at(prefix).rglob("*")
            plain = (file for file in files if file.is_file() and not file.is_symlink())
            names = (file.relative_to(self._folder).as_posix() for file in plain)
            return sorted(name for name in names if _UNFINISHED not in name)

        return await self._run(work)

    async def remove(self, key: str) -> None:
        check_removable(key)

        def work() -> None:
            place = self._at(key)
            place.unlink(missing_ok=True)
            with suppress(OSError):  # other objects are in it
                place.parent.rmdir()

        await self._run(work)

    def _at(self, key: str) -> Path:
        """The place of an object. Whoever wrote on the drive may have left links; none is followed."""
        place = self._folder
        for part in PurePosixPath(key).parts:
            place /= part
            if part in ("..", "/") or place.is_symlink():
                told = "a link, or a way out of the archive"
                raise Corrupt(place, found=told, advice="Look who put it there")
        return place

    def _close_to_others(self) -> None:
        """Close what an older version wrote. The folder itself is its owner's; FAT has no modes."""
        for path in self._folder.iterdir():
            with suppress(OSError, ConfigError):
                close_to_others((path,))

    def _written(self, place: Path, content: bytes) -> Path:
        """For its owner alone: an archive holds the state of the engine, too."""
        make_private_folder(place.parent)
        unfinished = place.parent / f"{_UNFINISHED}{self._new_id()}"
        try:
            with os.fdopen(_open_new(unfinished), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise
        return unfinished

    async def _run(self, work: Callable[[], T]) -> T:
        def guarded() -> T:
            with told_in_our_words(self._folder):
                return work()

        return await asyncio.to_thread(guarded)


def _open_new(path: Path) -> int:
    """Without a change of modes afterwards, which a file system that has none refuses."""
    return os.open(
        path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o660 if is_shared(path.parent) else 0o600
    )
