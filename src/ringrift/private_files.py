"""Folders and files that nobody but their owner may enter, read or lock.

Whoever can open a file can lock it, and a lock that somebody holds stops all writers; so what coordinates
processes is as private as a secret. A folder with the set-group-ID bit (`chmod g+s`) is one that its owner
shares with its group: there the group keeps its rights, and everybody else has none.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

from ringrift.errors import ConfigError
from ringrift.redaction import loaded_secret

_OTHERS, _GROUP_AND_OTHERS = 0o007, 0o077
_SECRET_BYTES = 32
_SECRET_LETTERS_MIN = 16
_ROOT = 0


def is_shared(folder: Path) -> bool:
    """Whether the owner of *folder* shares it with its group."""
    try:
        return bool(folder.stat().st_mode & stat.S_ISGID)
    except FileNotFoundError:
        return False


def private_umask(folder: Path) -> int:
    """The umask of processes that write into *folder*."""
    return _OTHERS if is_shared(folder) else _GROUP_AND_OTHERS


def make_private_folder(folder: Path) -> None:
    """Make *folder*, and what is missing above it, for its owner alone; one that is there stays as it is."""
    missing = []
    for each in (folder, *folder.parents):
        if each.exists():
            break
        missing.append(each)
    for each in reversed(missing):
        mode = 0o2770 if is_shared(each.parent) else 0o700
        try:
            each.mkdir(mode)
        except FileExistsError:
            continue  # another process was first
        if mode != 0o700:  # the process's umask took the group's rights away
            each.chmod(mode)
    if not folder.is_dir():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))


def open_private(path: Path, flags: int) -> int:
    """Open *path* so that nobody else can; one that was open to others is closed to them."""
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    found = os.fstat(descriptor)
    wanted = 0o660 if is_shared(path.parent) else found.st_mode & 0o700
    if stat.S_IMODE(found.st_mode) != wanted and found.st_uid == os.geteuid():
        os.fchmod(descriptor, wanted)
    return descriptor


def close_to_others(paths: Iterable[Path]) -> list[Path]:
    """Take the rights of everybody but the owner from *paths*; returns those that were open to others.

    Raises `ConfigError` for one that belongs to another user: whoever owns it could change it at any time.
    Links are left alone, and so is a folder that is everybody's by intention, such as /tmp. What is missing,
    or goes away meanwhile, is nobody's.
    """
    opened = []
    for path in paths:
        try:
            found = path.lstat()
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
            path.chmod(stat.S_IMODE(found.st_mode) & ~too_much)
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
    if not path.exists():
        _make_secret(path)
    close_to_others((path,))  # and refuse one that another user laid there
    text = path.read_text(encoding="utf-8", errors="replace").strip()
    if len(text) < _SECRET_LETTERS_MIN:
        raise ConfigError(
            f"{path} has fewer than {_SECRET_LETTERS_MIN} letters; remove it to get a fresh one"
        )
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
        os.link(making, path)
    except FileExistsError:
        return  # another process was first, and its secret is as good
    finally:
        making.unlink(missing_ok=True)
