"""Folders and files that nobody but their owner may enter, read or lock.

Whoever can open a file can lock it, and a lock that somebody holds stops all writers; so what coordinates
processes is as private as a secret. A folder with the set-group-ID bit (`chmod g+s`) is one that its owner
shares with its group: there the group keeps its rights, and everybody else has none.

What lies in the folder that this process holds is reached through that folder (`ringrift.held_folder`).
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ringrift.errors import ConfigError, Corrupt
from ringrift.held_folder import (
    change_mode,
    link_file,
    make_folder,
    missing_folders,
    names_in,
    open_file,
    remove_file,
    rename_file,
    require_folder,
    stat_file,
    sync_folder,
)
from ringrift.redaction import loaded_secret

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
    """Write the file *path* whole or not at all, for its owner alone if it is *private*. Blocks.

    If it is not *durable* it need not survive the machine. What a writer left that was killed meanwhile is
    removed by the next one.
    """
    _remove_drafts_of_the_dead(path)
    # A call that nobody waits for any more may still be under way in another thread.
    draft = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        with os.fdopen(_open_draft(draft, private=private), "wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
            rename_file(draft, path)
    except OSError:
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
    is_draft = re.compile(re.escape(f".{path.name}.") + r"\d+-\d+").fullmatch
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
