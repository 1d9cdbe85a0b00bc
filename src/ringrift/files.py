"""The files and folders that processes of ours work in: held while their paths may change, private to their
owner, and what is said when the disk is full. Files of others are in `ringrift.foreign_files`.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import re
import secrets
import stat
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Self

from ringrift import clock
from ringrift.errors import ConfigError, Corrupt, StorageFull
from ringrift.process import process_scope
from ringrift.redaction import loaded_secret

# Telling a file or folder from another one that was put in its place.
#
# A path that is kept for long may lead elsewhere by now: somebody moved the folder, or copied another file
# over it. What is open goes on to be written where nobody looks, and what goes by path lands among the things
# of somebody else.


class HeldPath:
    """A path and the very file or folder that it led to."""

    def __init__(self, path: Path, found: os.stat_result) -> None:
        self.path = path
        self._identity = found.st_dev, found.st_ino

    @property
    def identity(self) -> str:
        """What tells it from any other of this machine."""
        return ":".join(map(str, self._identity))

    @classmethod
    def of(cls, path: Path) -> Self:
        return cls(path, path.stat())

    def problem(self) -> str:
        """What became of it; "" while the path leads to it. Costs one look at the file system."""
        try:
            found = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return f"{self.path} was moved or removed while it was in use"
        except OSError:
            return ""  # it cannot be looked at now, which says nothing about what is there
        if self.is_same(found):
            return ""
        return f"{self.path} was exchanged for another one while it was in use"

    def is_same(self, found: os.stat_result) -> bool:
        return (found.st_dev, found.st_ino) == self._identity


# Writing into the folder that this process holds, wherever its path leads by now.
#
# A data folder can be moved away, and another one put in its place, while a process works in it. To look
# before each write is not enough, as the folder can be exchanged after the look. So a process that holds its
# data folder opens, makes, renames and removes what is in it through the open folder itself: it lands there,
# or nowhere. Paths elsewhere, and those of a process that holds nothing, are used as they are.


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


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hex. Blocks while it reads all of it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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


def sync_file(path: Path) -> None:
    """Make the content of *path* durable; of a folder, the names in it."""
    descriptor = open_file(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the names in *folder* durable."""
    sync_file(folder)


def publish_file(draft: Path, path: Path) -> None:
    """Give the finished file *draft* the name *path*, in the place of what has it, durably."""
    sync_file(draft)
    rename_file(draft, path)
    sync_folder(path.parent)


# Folders and files that nobody but their owner may enter, read or lock.
#
# Whoever can open a file can lock it, and a lock that somebody holds stops all writers; so what coordinates
# processes is as private as a secret. A folder with the set-group-ID bit (`chmod g+s`) is one that its owner
# shares with its group: there the group keeps its rights, and everybody else has none.
#
# What lies in the folder that this process holds is reached through that folder.


_OTHERS, _GROUP_AND_OTHERS = 0o007, 0o077
_SECRET_BYTES = 32
_SECRET_LETTERS_MIN = 16
_ROOT = 0


def is_shared(folder: Path) -> bool:
    """Whether the owner of *folder* shares it with its group."""
    try:
        return bool(stat_file(folder).st_mode & stat.S_ISGID)
    except FileNotFoundError:
        return False


def private_umask(folder: Path) -> int:
    """The umask of processes that write into *folder*."""
    return _OTHERS if is_shared(folder) else _GROUP_AND_OTHERS


def make_private_folder(folder: Path) -> None:
    """Make *folder*, and what is missing above it, for its owner alone; one that is there stays as it is."""
    for each in missing_folders(folder):
        mode = 0o2770 if is_shared(each.parent) else 0o700
        try:
            make_folder(each, mode)
        except FileExistsError:
            continue  # another process was first
        if mode != 0o700:  # the process's umask took the group's rights away
            change_mode(each, mode)
    require_folder(folder)


def open_private(path: Path, flags: int) -> int:
    """Open *path* so that nobody else can; one that was open to others is closed to them."""
    descriptor = open_file(path, flags | os.O_NOFOLLOW, 0o600)
    found = os.fstat(descriptor)
    wanted = 0o660 if is_shared(path.parent) else found.st_mode & 0o700
    if stat.S_IMODE(found.st_mode) != wanted and found.st_uid == os.geteuid():
        os.fchmod(descriptor, wanted)
    return descriptor


def replace_file(path: Path, content: bytes, *, private: bool = True, durable: bool = True) -> None:
    """Write the file *path* whole or not at all, as `replacing` does. Blocks."""
    with replacing(path, private=private, durable=durable) as file:
        file.write(content)


@contextmanager
def replacing(path: Path, *, private: bool = True, durable: bool = True) -> Iterator[BinaryIO]:
    """A file to write, which is *path* after the block, whole, or gone if that raises. Blocks.

    It is for its owner alone if it is *private*; if it is not *durable* it need not survive the machine. What
    a writer left that was killed meanwhile is removed by the next one.
    """
    _remove_drafts_of_the_dead(path)
    # A call that nobody waits for any more may still be under way, and another may be of the same thread.
    draft = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with os.fdopen(_open_draft(draft, private=private), "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
            rename_file(draft, path)
    except BaseException:
        remove_file(draft)
        raise
    if durable:
        sync_folder(path.parent)


def _open_draft(draft: Path, *, private: bool) -> int:
    """Open it locked: that tells a draft that is being written from one of a writer that is dead."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    while True:
        descriptor = open_private(draft, flags) if private else open_file(draft, flags)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if _has_name(descriptor, draft):
            return descriptor
        os.close(descriptor)  # it was taken for that of a dead one before it was locked


def _remove_drafts_of_the_dead(path: Path) -> None:
    is_draft = re.compile(re.escape(f".{path.name}.") + r"\d+-[0-9a-f]+").fullmatch
    for name in filter(is_draft, names_in(path.parent)):
        with suppress(OSError):  # gone meanwhile, or being written
            descriptor = open_file(path.with_name(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _has_name(descriptor, path.with_name(name)):  # not the next draft of the same writer
                    remove_file(path.with_name(name))
            finally:
                os.close(descriptor)


def _has_name(descriptor: int, path: Path) -> bool:
    """Whether *path* is the name of the open file still."""
    try:
        return os.path.samestat(os.fstat(descriptor), stat_file(path, follow=False))
    except FileNotFoundError:
        return False


def close_to_others(paths: Iterable[Path]) -> list[Path]:
    """Take the rights of everybody but the owner from *paths*; returns those that were open to others.

    Raises `ConfigError` for one that belongs to another user: whoever owns it could change it at any time.
    Links are left alone, and so is a folder that is everybody's by intention, such as /tmp. What is missing,
    or goes away meanwhile, is nobody's.
    """
    opened = []
    for path in paths:
        try:
            found = stat_file(path, follow=False)
        except FileNotFoundError:
            continue
        if stat.S_ISLNK(found.st_mode) or (stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX):
            continue
        if found.st_uid != os.geteuid():
            _check_owner(path, found)
            continue
        shared = bool(found.st_mode & stat.S_ISGID) if stat.S_ISDIR(found.st_mode) else is_shared(path.parent)
        too_much = stat.S_IMODE(found.st_mode) & (_OTHERS if shared else _GROUP_AND_OTHERS)
        if too_much:
            change_mode(path, stat.S_IMODE(found.st_mode) & ~too_much)
            opened.append(path)
    return opened


def _check_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid != _ROOT and not is_shared(path if stat.S_ISDIR(found.st_mode) else path.parent):
        raise ConfigError(
            f"{path} belongs to user {found.st_uid}, not to this one ({os.geteuid()}); "
            "name another data folder, or run as its owner"
        )


def secret_in(path: Path) -> str:
    """The secret in the file *path*, made fresh for its owner alone if there is none."""
    try:
        stat_file(path)
    except FileNotFoundError:
        _make_secret(path)
    close_to_others((path,))  # and refuse one that another user laid there
    with os.fdopen(open_file(path, os.O_RDONLY), encoding="utf-8", errors="replace") as file:
        text = file.read().strip()
    if len(text) < _SECRET_LETTERS_MIN:
        found = f"it has fewer than {_SECRET_LETTERS_MIN} letters"
        raise Corrupt(path, found=found, advice="Remove it to get a fresh one")
    return loaded_secret(text)


def _make_secret(path: Path) -> None:
    make_private_folder(path.parent)
    making = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    descriptor = open_private(making, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(secrets.token_hex(_SECRET_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        link_file(making, path)
    except FileExistsError:
        return  # another process was first, and its secret is as good
    finally:
        remove_file(making)


# A full disk, said once: when it is met first, and when it is over.
#
# It stops everything that writes at the same time; what everybody else says of it meanwhile is left out and
# counted. Loads no logging library: commands that answer at once read the engine's files too.


FULL, ROOM_AGAIN = "disk.full", "disk.has_room_again"
# Small writes still find a place on a disk that is too full for others.
OVER_AFTER_S = 10.0
_FULL_SIGNS = ("no space left for", os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))


class FullDisk:
    """Whether this process found no space to write; used from any thread."""

    def __init__(self) -> None:
        self.say: Callable[..., None] | None = None  # set where lines are logged; takes a level first
        self._lock = threading.Lock()
        self._since_s: float | None = None
        self._last_s = 0.0
        self.lines_left_out = 0

    @property
    def is_met(self) -> bool:
        """Whether something could not be written, and it is not known to be over."""
        return self._since_s is not None

    def met(self, what: str) -> None:
        """There was no space for a write."""
        with self._lock:
            self._last_s, first = clock.monotonic_s(), self._since_s is None
            if first:
                self._since_s, self.lines_left_out = self._last_s, 0
        if first:
            advice = "free some space: what could not be written is tried again"
            self._tell(logging.ERROR, FULL, error=what, advice=advice)

    def wrote(self) -> None:
        """Something was written durably."""
        if self._since_s is None:
            return
        with self._lock:
            since_s, now_s = self._since_s, clock.monotonic_s()
            if since_s is None or now_s - self._last_s < OVER_AFTER_S:
                return
            self._since_s = None
        lasted_s, left_out = round(now_s - since_s), self.lines_left_out
        self._tell(logging.WARNING, ROOM_AGAIN, lasted_s=lasted_s, lines_left_out=left_out)

    def _tell(self, level: int, event: str, **fields: Any) -> None:
        if self.say is not None:
            self.say(level, event, **fields)

    def leaves_out(self, line: MutableMapping[str, Any]) -> bool:
        """Whether *line* only says again that the disk is full."""
        if self._since_s is None or line.get("event") in (FULL, ROOM_AGAIN):
            return False
        texts = [value for name, value in line.items() if name != "event" and isinstance(value, str)]
        again = isinstance(line.get("exc_info"), StorageFull)
        if again or any(sign in text for text in texts for sign in _FULL_SIGNS):
            self.lines_left_out += 1
            return True
        return False


def full_disk() -> FullDisk:
    """What this process knows of its disk."""
    return process_scope().get(FullDisk, FullDisk)
