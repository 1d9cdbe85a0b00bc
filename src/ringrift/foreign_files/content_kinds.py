"""What a file is by its content, whatever its name and whoever told of it."""

from __future__ import annotations

import struct
import zipfile
from enum import StrEnum
from pathlib import Path

from ringrift.foreign_files.paths import open_regular
from ringrift.foreign_files.sample_archives import UNREADABLE, open_samples

GAMES_ID = 0x52524753  # "RRGS", in the header of every game shard
VALUES = "values"  # the array that every file of samples has

_SQLITE_MAGIC = b"SQLite format 3\x00"
HEADER_BYTES = 100  # of a SQLite file
_WEIGHTS_HEADER_MAX = 100 << 20


class ContentKind(StrEnum):
    """Each says what a person is told."""

    GAMES = "a game shard"
    DATABASE = "a SQLite file that is no game shard"
    SAMPLES = "a file of samples"
    ARCHIVE = "a zip file without the arrays of samples"
    WEIGHTS = "a file of weights"
    OTHER = "nothing that a run knows"


def content_kind(path: Path) -> ContentKind:
    """Say what *path* is. Whether it is sound, whoever reads it finds out. Blocks: call it in a thread."""
    with open_regular(path) as file:
        header = file.read(HEADER_BYTES)
    if header.startswith(_SQLITE_MAGIC):
        whole = len(header) == HEADER_BYTES
        is_shard = whole and struct.unpack(">68xI28x", header) == (GAMES_ID,)
        return ContentKind.GAMES if is_shard else ContentKind.DATABASE
    if zipfile.is_zipfile(path):
        return ContentKind.SAMPLES if _has_values(path) else ContentKind.ARCHIVE
    return ContentKind.WEIGHTS if _is_weights(path, header) else ContentKind.OTHER


def _has_values(path: Path) -> bool:
    try:
        with open_samples(path) as archive:
            return VALUES in archive.arrays
    except UNREADABLE:
        return False


def _is_weights(path: Path, header: bytes) -> bool:
    """The safetensors form: the length of a JSON header, then the header."""
    if len(header) < 9:
        return False
    (length,) = struct.unpack_from("<Q", header)
    return bool(2 <= length <= min(_WEIGHTS_HEADER_MAX, path.stat().st_size) and header[8:9] == b"{")
