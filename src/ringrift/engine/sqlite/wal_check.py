"""Whether the write-ahead log holds commits that SQLite will not read.

SQLite takes the first frame that fails its checksum for the end of the log: right for a write that a power
cut tore, but a damaged frame in the middle silently takes every later commit with it, and the next write
destroys them.

A process that is killed in the middle of a commit leaves frames behind, too, that SQLite does not read. The
next writer begins at the same place and may leave the end of them standing; so leftovers of several killed
processes can lie behind each other. But each of them holds one commit, and the checksums, which run on from
frame to frame, break where it begins. Two commits in one unbroken run were both acknowledged: the log is
damaged before them.
"""

from __future__ import annotations

import os
import struct
import sys
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from ringrift.engine.sqlite.faults import RESTORE_ADVICE
from ringrift.engine.sqlite.files import PAGE_BYTES
from ringrift.errors import Corrupt

_HEADER_BYTES = 32
_FRAME_HEADER_BYTES = 24
_INDEX_BYTES = 40
_LEFT_BY_ONE_MAX = 1
_LOOKS = 2
_WORD_MASK = 0xFFFFFFFF


def check_wal(database: Path) -> None:
    """Raise `Corrupt` if commits lie behind a damaged frame. To be called while a connection has read."""
    log, index = (database.with_name(database.name + suffix) for suffix in ("-wal", "-shm"))
    try:
        with log.open("rb") as file, index.open("rb") as shared:
            # Others write meanwhile; damage is there at every look.
            unread = min(_unread_commits(file, shared) for _ in range(_LOOKS))
    except FileNotFoundError:
        return  # everything is in the database itself
    if unread > _LEFT_BY_ONE_MAX:
        found = f"a frame of the write-ahead log is damaged, and {unread} commits follow it"
        raise Corrupt(log, found=found, advice=RESTORE_ADVICE)


def _unread_commits(log: BinaryIO, index: BinaryIO) -> int:
    """Count the commits of the longest run behind what SQLite reads; others may write meanwhile."""
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
    again = _pread(index, _INDEX_BYTES, 0)
    if again[32:40] != known[32:40] or _pread(log, _HEADER_BYTES, 0) != header:
        return 0  # the log began anew: what we saw of the old one was in the index before that
    return _longest_run(log, [number for number in commits if number > _last_read(again)])


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


def _longest_run(log: BinaryIO, commits: list[int]) -> int:
    """Return how many of *commits* lie at most in one unbroken run of checksums."""
    longest = run = min(1, len(commits))
    for before, after in pairwise(commits):
        unbroken = all(_follows(log, number) for number in range(before + 1, after + 1))
        run = run + 1 if unbroken else 1
        longest = max(longest, run)
    return longest


def _follows(log: BinaryIO, number: int) -> bool:
    """Whether the checksum of a frame goes on from that of the frame before it."""
    size = _FRAME_HEADER_BYTES + PAGE_BYTES
    place = _HEADER_BYTES + (number - 2) * size
    before, frame = _pread(log, _FRAME_HEADER_BYTES, place), _pread(log, size, place + size)
    if len(frame) < size:
        return False
    covered = frame[:8] + frame[_FRAME_HEADER_BYTES:]
    words = struct.unpack(f"={len(covered) // 4}I", covered)  # SQLite sums in the order of the machine
    first, second = struct.unpack(">II", before[16:24])
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & _WORD_MASK
        second = (second + odd + first) & _WORD_MASK
    return (first, second) == struct.unpack(">II", frame[16:24])


def _pread(file: BinaryIO, size: int, place: int) -> bytes:
    return os.pread(file.fileno(), size, place)
