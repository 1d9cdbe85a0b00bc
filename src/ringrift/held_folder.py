"""Writing into the folder that this process holds, wherever its path leads by now.

A data folder can be moved away, and another one put in its place, while a process works in it. To look before
each write is not enough, as the folder can be exchanged after the look. So a process that holds its data
folder opens, makes, renames and removes what is in it through the open folder itself: it lands there, or
nowhere. Paths elsewhere, and those of a process that holds nothing, are used as they are.
"""

from __future__ import annotations

import errno
import os
import stat
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from ringrift.process import process_scope


class HeldFolder:
    """An open folder under the names that lead to it; closed when nobody uses it any more."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.names = {os.path.abspath(path), os.path.realpath(path)}
        # Opened anew: a copy of *descriptor* would keep its lock alive in a child that was forked.
        self.descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=descriptor)
        weakref.finalize(self, os.close, self.descriptor)

    def let_go(self) -> None:
        """Use its path as it is again. Safe to call twice."""
        held = process_scope().get(_HeldFolders, _HeldFolders)
        held.folders = [each for each in held.folders if each is not self]


@dataclass(slots=True)
class _HeldFolders:
    folders: list[HeldFolder] = field(default_factory=list)  # replaced, never changed: threads read it


def hold_folder(path: Path, descriptor: int) -> HeldFolder:
    """Reach what is under *path* through the open folder *descriptor* from now on."""
    held, fresh = process_scope().get(_HeldFolders, _HeldFolders), HeldFolder(path, descriptor)
    held.folders = [fresh, *held.folders]
    return fresh


def forget_exchanged(path: Path) -> None:
    """Let go of every folder that was held under *path* and to which it does not lead any more.

    For who is about to take what the path leads to now: what an earlier run in this process left under way
    must not draw the new one into the folder of the old one.
    """
    held, names = (
        process_scope().get(_HeldFolders, _HeldFolders),
        {os.path.abspath(path), os.path.realpath(path)},
    )
    for folder in held.folders:
        if folder.names & names and not _leads_to(path, folder.descriptor):
            folder.let_go()


def _leads_to(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except (FileNotFoundError, NotADirectoryError):
        return False


@contextmanager
def _place(path: Path) -> Iterator[tuple[str, int | None]]:
    """How the system is to be asked for *path*: a name, and the folder from which it counts (None: none).

    The folder stays open until the end of the block, also if another thread lets go of it.
    """
    held, whole = process_scope().peek(_HeldFolders), os.path.abspath(path)
    for folder in () if held is None else held.folders:
        for name in folder.names:
            if whole == name:
                yield ".", folder.descriptor
                return
            if whole.startswith(name + os.sep):
                yield whole[len(name) + 1 :], folder.descriptor
                return
    yield os.fspath(path), None


def open_file(path: Path, flags: int, mode: int = 0o666) -> int:
    """As `os.open`; what was opened is not passed on to programs that are started."""
    with _place(path) as (name, folder):
        return os.open(name, flags | os.O_CLOEXEC, mode, dir_fd=folder)


def create_file(path: Path) -> BinaryIO:
    """Open a file to write, empty whether or not it was there."""
    return os.fdopen(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb")


def write_file(path: Path, content: bytes) -> None:
    with create_file(path) as file:
        file.write(content)


def stat_file(path: Path, *, follow: bool = True) -> os.stat_result:
    with _place(path) as (name, folder):
        return os.stat(name, dir_fd=folder, follow_symlinks=follow)


def check_leads_there(path: Path) -> None:
    """For those who can only go by path, after they opened it: raise `OSError` if it led elsewhere."""
    if not os.path.samestat(os.stat(path), stat_file(path)):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))


def is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(stat_file(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def make_folders(path: Path) -> None:
    """Make the folder *path* and what is missing above it; one that is there is as good."""
    for each in missing_folders(path):
        with suppress(FileExistsError):  # another process was first
            make_folder(each)
    require_folder(path)


def require_folder(path: Path) -> None:
    """Raise `FileExistsError` if something else than a folder has the name *path*."""
    if not is_folder(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))


def missing_folders(path: Path) -> list[Path]:
    """What has to be made for *path* to be a folder, in that order."""
    missing: list[Path] = []
    for each in (path, *path.parents):
        with suppress(FileNotFoundError):
            stat_file(each)
            break
        missing.insert(0, each)
    return missing


def make_folder(path: Path, mode: int = 0o777) -> None:
    with _place(path) as (name, folder):
        os.mkdir(name, mode, dir_fd=folder)


def change_mode(path: Path, mode: int) -> None:
    with _place(path) as (name, folder):
        os.chmod(name, mode, dir_fd=folder)


def rename_file(source: Path, target: Path) -> None:
    """Give *source* the name *target*, in the place of what has it."""
    with _place(source) as (old, old_folder), _place(target) as (new, new_folder):
        os.replace(old, new, src_dir_fd=old_folder, dst_dir_fd=new_folder)


def link_file(source: Path, target: Path) -> None:
    """Give *source* a second name; `FileExistsError` if it is taken."""
    with _place(source) as (old, old_folder), _place(target) as (new, new_folder):
        os.link(old, new, src_dir_fd=old_folder, dst_dir_fd=new_folder, follow_symlinks=False)


def link_symbolically(link: Path, target: str) -> None:
    with _place(link) as (name, folder):
        os.symlink(target, name, dir_fd=folder)


def remove_file(path: Path) -> bool:
    """Remove a file; return whether it was there."""
    with _place(path) as (name, folder):
        try:
            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            return False
    return True


def remove_folder(path: Path) -> None:
    """Remove an empty folder."""
    with _place(path) as (name, folder):
        os.rmdir(name, dir_fd=folder)


def names_in(folder: Path) -> list[str]:
    """The names in *folder*; none if it is not there."""
    try:
        descriptor = open_file(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return []
    try:
        return os.listdir(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the names in *folder* durable."""
    descriptor = open_file(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
