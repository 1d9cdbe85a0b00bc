"""Sample files (NPZ) that somebody else wrote: a zip of arrays, measured before anything of it is unpacked.

The directory at the file's end is read first, by its claimed size; then the header of every array, by a
grammar that knows nothing but names, numbers and these types. Whoever reads on gets pieces of bounded size,
never more than the header claims; nothing is ever unpickled. It needs no numpy: the control process asks too.
"""

from __future__ import annotations

import math
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from ringrift.errors import Corrupt
from ringrift.foreign_files.documents import parse_json
from ringrift.foreign_files.paths import open_regular

MEMBERS_MAX = 100
DIRECTORY_BYTES_MAX = 64 << 10
DIMENSION_MAX = 10**9
DIMENSIONS_MAX = 8
ROWS_MAX = 10**8
SCALAR_BYTES_MAX = 1 << 20
HEADER_BYTES_MAX = 10_000
# Sparse planes pack well; beyond this a small file would keep a reader busy for hours.
UNPACKED_FREE, UNPACKED_PER_BYTE = 256 << 20, 400
PIECE_BYTES = 1 << 18

_NAME = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9_]{0,63})\.npy")
_HEADER = re.compile(
    r"\{'descr': '(?P<dtype>[<|](?P<kind>[fiubU])(?P<size>[0-9]{1,6}))', "
    r"'fortran_order': (?P<fortran>True|False), "
    r"'shape': \((?P<shape>(?:[0-9]{1,12}, ?)*(?:[0-9]{1,12})?)\), ?\} *\n"
)
_WIDTHS = {"f": (2, 4, 8), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "b": (1,)}
_END, _END_BYTES = b"PK\x05\x06", 22
_END64, _LOCATOR64 = struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL")
_LOCAL_HEADER_BYTES = 30

# What reading a damaged file can raise. Whoever promises an answer for any file catches these.
UNREADABLE = (
    OSError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    RuntimeError,
    struct.error,
    Corrupt,
)


class NoSamples(ValueError):
    """The file is no sample file, or not one that we read; the message says why."""


@dataclass(frozen=True, slots=True)
class StoredArray:
    """One array of the file, by its header."""

    info: zipfile.ZipInfo
    dtype: str  # as numpy writes it
    kind: str
    item_bytes: int
    shape: tuple[int, ...]
    header_bytes: int

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.item_bytes


class SampleArchive:
    """An open file whose directory is sound. `faults` names the arrays that are not, with the reason."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self.arrays: dict[str, StoredArray] = {}
        self.faults: dict[str, str] = {}
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            try:
                self.arrays[name] = self._array(info)
            except UNREADABLE as fault:
                self.faults[name] = f"unreadable: {fault}"

    def pieces(self, name: str, bytes_max: int = PIECE_BYTES) -> Iterator[bytes]:
        """The content of an array, in pieces of whole items; ends with an error unless all of it is there."""
        array = self.arrays[name]
        step = max(1, bytes_max // max(1, array.item_bytes)) * array.item_bytes
        left = array.bytes
        with self._archive.open(array.info) as member:
            _read_exactly(member, array.header_bytes)
            while left:
                piece = _read_exactly(member, min(step, left))
                left -= len(piece)
                yield piece
            if member.read(1):  # at the end the archive compares its own sum
                raise NoSamples(f"{name} goes on behind its end")

    def whole(self, name: str) -> bytes:
        """The content of a small array."""
        if self.arrays[name].bytes > SCALAR_BYTES_MAX:
            raise NoSamples(f"{name} has {self.arrays[name].bytes} bytes; {SCALAR_BYTES_MAX} are the most")
        return b"".join(self.pieces(name))

    def text(self, name: str) -> str | None:
        """A single text; None if the array is no such thing."""
        array = self.arrays.get(name)
        if array is None or array.shape != () or array.kind != "U":
            return None
        return self.whole(name).decode("utf-32-le").rstrip("\x00")

    def checksums(self) -> Mapping[str, str]:
        """SHA-256 of the arrays, as the export wrote them; empty if there are none."""
        text = self.text("checksums")
        listed = None if text is None else parse_json(text)
        if listed is None:
            return {}
        if not isinstance(listed, dict) or not all(isinstance(each, str) for each in listed.values()):
            raise NoSamples("its checksums are no names and digests")
        return listed

    def _array(self, info: zipfile.ZipInfo) -> StoredArray:
        with self._archive.open(info) as member:
            array = _read_header(member, info)
        if max(array.shape, default=0) > DIMENSION_MAX:
            raise NoSamples(f"a dimension of {max(array.shape)} cannot be")
        if array.header_bytes + array.bytes != info.file_size:
            held = info.file_size - array.header_bytes
            raise NoSamples(f"it holds {held} bytes, its header claims {array.bytes}")
        return array


@contextmanager
def open_samples(path: Path) -> Iterator[SampleArchive]:
    """Open a sample file. Raises one of `UNREADABLE` if it is none, or its directory is not as it must be."""
    with open_regular(path) as file:
        size = file.seek(0, os.SEEK_END)
        _check_end(file, size)
        with zipfile.ZipFile(file) as archive:
            _check_directory(archive, size)
            yield SampleArchive(archive)


def _check_end(file: BinaryIO, size: int) -> None:
    """Bound what the directory claims to be, before anybody reads it. A comment could hide a second one."""
    file.seek(max(0, size - _END_BYTES))
    end = file.read(_END_BYTES)
    if len(end) < _END_BYTES or not end.startswith(_END) or end[-2:] != b"\x00\x00":
        raise NoSamples("it is no zip file, or not whole, or ends in a comment")
    entries, directory = struct.unpack_from("<10xHL", end)
    if entries == 0xFFFF or b"\xff\xff\xff\xff" in end:
        start = size - _END_BYTES - _LOCATOR64.size - _END64.size
        file.seek(max(0, start))
        record = file.read(_END64.size)
        if start < 0 or not record.startswith(b"PK\x06\x06"):
            raise NoSamples("the end of its directory is damaged")
        entries, directory = _END64.unpack(record)[7:9]
    if entries > MEMBERS_MAX or directory > DIRECTORY_BYTES_MAX:
        raise NoSamples(f"its directory claims {entries} entries in {directory} bytes")


def _check_directory(archive: zipfile.ZipFile, size: int) -> None:
    infos = sorted(archive.infolist(), key=lambda info: info.header_offset)
    if len(infos) > MEMBERS_MAX:
        raise NoSamples(f"it holds {len(infos)} entries")
    if len({info.filename for info in infos}) != len(infos):
        raise NoSamples("an array is there twice")
    end = 0
    for info in infos:
        if not _NAME.fullmatch(info.filename):
            raise NoSamples(f"{info.filename[:40]!r} is no name of an array")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & ~0x0806:
            raise NoSamples(f"{info.filename} is packed or locked in a way that samples never are")
        if info.header_offset < end:
            raise NoSamples(f"{info.filename} shares bytes with another array")
        end = info.header_offset + _LOCAL_HEADER_BYTES + len(info.filename) + info.compress_size
    if end > size:
        raise NoSamples("an array ends behind the file")
    unpacked = sum(info.file_size for info in infos)
    if unpacked > UNPACKED_FREE + UNPACKED_PER_BYTE * size:
        raise NoSamples(f"its {size} bytes would unpack to {unpacked}")


def _read_header(member: IO[bytes], info: zipfile.ZipInfo) -> StoredArray:
    start = _read_exactly(member, 8)
    if start[:6] != b"\x93NUMPY" or start[6:] not in (b"\x01\x00", b"\x02\x00"):
        raise NoSamples("it is no array")
    length_bytes = 2 if start[6] == 1 else 4
    length = int.from_bytes(_read_exactly(member, length_bytes), "little")
    if length > HEADER_BYTES_MAX:
        raise NoSamples(f"its header claims {length} bytes")
    text = _read_exactly(member, length).decode("latin1")
    found = _HEADER.fullmatch(text)
    if found is None:
        if "O" in text:
            raise NoSamples("an array of objects, which only unpickling could read")
        raise NoSamples("its header is none that samples have")
    shape = tuple(int(size) for size in re.findall("[0-9]+", found["shape"]))
    kind, size = found["kind"], int(found["size"])
    if kind in _WIDTHS and size not in _WIDTHS[kind]:
        raise NoSamples(f"its header names the type {found['dtype']}, which there is not")
    if len(shape) > DIMENSIONS_MAX or (kind == "U" and shape != ()):
        raise NoSamples("its header names a shape that no sample has")
    if found["fortran"] == "True" and len(shape) > 1:
        raise NoSamples("columns are stored before rows")
    item = 4 * size if kind == "U" else size  # texts are counted in characters of four bytes
    return StoredArray(info, found["dtype"], kind, item, shape, 8 + length_bytes + length)


def _read_exactly(member: IO[bytes], count: int) -> bytes:
    content = member.read(count)
    if len(content) != count:
        raise NoSamples("it ends too soon")
    return content
