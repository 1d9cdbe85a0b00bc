"""Whether the write-ahead log holds commits that SQLite will not read.

SQLite takes the first frame that fails its checksum for the end of the log: right for a write that a power
cut tore, but a damaged frame in the middle silently takes every later commit with it, and the next write
destroys them. Each commit is synced before the next begins, so only the last one can be torn; if more
follow, the log is damaged.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import BinaryIO

from ringrift.engine.sqlite.faults import RESTORE_ADVICE
from ringrift.engine.sqlite.files import PAGE_BYTES
from ringrift.errors import Corrupt

_HEADER_BYTES = 32
_FRAME_HEADER_BYTES = 24
_INDEX_BYTES = 40
_TORN_COMMITS_MAX = 1


def check_wal(database: Path) -> None:
    """Raise `Corrupt` if commits lie behind a damaged frame. To be called while a connection has read."""
    log, index = (database.with_name(database.name + suffix) for suffix in ("-wal", "-shm"))
    try:
        with log.open("rb") as file, index.open("rb") as shared:
            unread = _unread_commits(file, shared)
    except FileNotFoundError:
        return  # everything is in the database itself
    if unread > _TORN_COMMITS_MAX:
        found = f"a frame of the write-ahead log is damaged, and {unread} commits follow it"
        raise Corrupt(log, found=found, advice=RESTORE_ADVICE)


def _unread_commits(log: BinaryIO, index: BinaryIO) -> int:
    """Count the commits behind the last frame that SQLite reads; others may write meanwhile."""
    header = _pread(log, _HEADER_BYTES, 0)
    known = _pread(index, _INDEX_BYTES, 0)
    if len(header) < _HEADER_BYTES or len(known) < _INDEX_BYTES:
        return 0
    salt = header[16:24]
    if known[32:40] == bytes(8):  # SQLite could not even read the header; the frames tell whose they are
        salt = _pread(log, _FRAME_HEADER_BYTES, _HEADER_BYTES)[8:16]
    elif known[32:40] != salt:
        return 0  # another process is just beginning the log anew
    commits = _commits_after(log, _last_read(known), salt)
    # Looked at again: what another process has committed since is not damaged.
    known = _pread(index, _INDEX_BYTES, 0)
    if _pread(log, _HEADER_BYTES, 0) != header:
        return 0
    return sum(number > _last_read(known) for number in commits)


def _last_read(index: bytes) -> int:
    """Return the number of the last frame that SQLite reads, from the index it keeps of the log."""
    return int.from_bytes(index[16:20], sys.byteorder)


def _commits_after(log: BinaryIO, last: int, salt: bytes) -> list[int]:
    """Return the numbers of the frames after *last* that end a commit of this log."""
    found: list[int] = []
    number = last + 1
    while True:
        place = _HEADER_BYTES + (number - 1) * (_FRAME_HEADER_BYTES + PAGE_BYTES)
        frame = _pread(log, _FRAME_HEADER_BYTES, place)
        if len(frame) < _FRAME_HEADER_BYTES:
            return found
        if frame[8:16] == salt and frame[4:8] != bytes(4):
            found.append(number)
        number += 1


def _pread(file: BinaryIO, size: int, place: int) -> bytes:
    return os.pread(file.fileno(), size, place)
