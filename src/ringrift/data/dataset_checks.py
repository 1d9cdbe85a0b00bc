"""Is a sample file whole? By its headers alone, or by reading all of it once; never by loading an array.

A file that was stitched together wrongly may claim billions of rows; whoever loads it would run out of
memory. Headers are small and say shape and type of every array. The whole check streams every array in small
pieces against the archive's own sums, its claimed size, and the checksums that the export wrote.
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

DIMENSION_MAX = 1_000_000_000
ROWS_MAX = 100_000_000
HEADER_BYTES_MAX = 65_536
NEEDED = ("features", "values")
_MAGIC = b"\x93NUMPY"
_SUFFIX = ".npy"
_PIECE_BYTES = 1 << 18
_WIDTH = re.compile(r"[<>|=]?(?P<kind>[fiubcSU])(?P<bytes>\d+)")
CHECKSUMS = "checksums"
# What reading a damaged entry or header can raise: not a zip, not a literal, not of that shape.
_UNREADABLE = (
    ValueError,
    SyntaxError,
    KeyError,
    TypeError,
    RuntimeError,
    EOFError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
)
_PLAIN_KINDS = frozenset("fiub")  # float, int, unsigned, bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NPZValidationResult:
    """What the headers say, and what is wrong with it."""

    valid: bool
    sample_count: int = 0
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    array_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    array_dtypes: Mapping[str, str] = field(default_factory=dict)
    file_size: int = 0

    def __bool__(self) -> bool:
        return self.valid


def validate_npz_structure(path: str | Path) -> NPZValidationResult:
    """Check the headers of a sample file. Never raises for what a file may hold."""
    file = Path(path)
    if not file.is_file():
        return NPZValidationResult(valid=False, errors=(f"{file} is no file",))
    size = file.stat().st_size
    try:
        shapes, dtypes, errors = _headers(file)
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        return NPZValidationResult(valid=False, errors=(f"it cannot be read: {error}",), file_size=size)
    errors += _shape_errors(shapes)
    counts = [shape[0] for name, shape in shapes.items() if name in NEEDED and shape]
    return NPZValidationResult(
        valid=not errors,
        sample_count=counts[0] if counts else 0,
        errors=tuple(errors),
        warnings=tuple(_warnings(shapes, dtypes)),
        array_shapes=shapes,
        array_dtypes=dtypes,
        file_size=size,
    )


def quick_npz_check(path: str | Path) -> tuple[bool, str]:
    """Return whether the file is whole, and the first thing that is wrong with it."""
    result = validate_npz_structure(path)
    return result.valid, f"{result.sample_count} samples" if result.valid else result.errors[0]


def check_dataset(path: str | Path) -> NPZValidationResult:
    """Read the whole file once, in memory that does not grow with it. Slow: call it off the event loop."""
    result = validate_npz_structure(path)
    if not result.valid:
        return result
    errors: list[str] = []
    digests: dict[str, str] = {}
    promised: dict[str, str] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for item in archive.infolist():
                name = item.filename.removesuffix(_SUFFIX)
                with archive.open(item) as stream:
                    shape, dtype = _read_header(stream)
                    if name == CHECKSUMS:
                        promised = _promised(stream.read(HEADER_BYTES_MAX), dtype)
                    else:
                        digests[name], size = _digest(stream)
                        errors += _size_errors(name, shape, dtype, size)
    except (*_UNREADABLE, OSError) as error:
        return replace(result, valid=False, errors=(f"it cannot be read to its end: {error}",))
    for name, digest in promised.items():
        if digests.get(name) != digest:
            errors.append(f"the content of {name} is not what was exported")
    return replace(result, valid=not errors, errors=tuple(errors))


def _digest(stream: IO[bytes]) -> tuple[str, int]:
    """Read to the end, where the archive compares its own sum."""
    digest, size = hashlib.sha256(), 0
    while piece := stream.read(_PIECE_BYTES):
        digest.update(piece)
        size += len(piece)
    return digest.hexdigest(), size


def _size_errors(name: str, shape: tuple[int, ...], dtype: str, size: int) -> list[str]:
    width = _WIDTH.fullmatch(dtype)
    if width is None:
        return [f"{name} has the type {dtype}, which only unpickling could read"]
    units = 4 if width["kind"] == "U" else 1  # texts are counted in characters of four bytes
    expected = math.prod(shape) * int(width["bytes"]) * units
    return [] if size == expected else [f"{name} holds {size} bytes, its header claims {expected}"]


def _promised(content: bytes, dtype: str) -> dict[str, str]:
    """The checksums that the export wrote: JSON in one array of text."""
    if not dtype.startswith("<U"):
        return {}
    told = json.loads(content.decode("utf-32-le").rstrip("\x00"))
    return told if isinstance(told, dict) else {}


def _headers(file: Path) -> tuple[dict[str, tuple[int, ...]], dict[str, str], list[str]]:
    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: dict[str, str] = {}
    errors: list[str] = []
    with zipfile.ZipFile(file) as archive:
        for item in archive.infolist():
            name = item.filename.removesuffix(_SUFFIX)
            try:
                with archive.open(item) as stream:
                    shapes[name], dtypes[name] = _read_header(stream)
            except _UNREADABLE as error:
                errors.append(f"the array {name} cannot be read: {error}")
    return shapes, dtypes, errors


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], str]:
    """Read the header of an array as the NPY format defines it."""
    start = stream.read(8)
    if len(start) < 8 or start[:6] != _MAGIC:
        raise ValueError("it is no array")
    length_bytes = 2 if start[6] == 1 else 4
    (length,) = struct.unpack("<H" if length_bytes == 2 else "<I", stream.read(length_bytes))
    if length > HEADER_BYTES_MAX:
        raise ValueError(f"its header claims {length} bytes")
    header = ast.literal_eval(stream.read(length).decode("latin1").strip())
    shape = tuple(int(size) for size in header["shape"])
    return shape, str(header["descr"])


def _shape_errors(shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    if not shapes:
        return ["it holds no arrays"]
    errors = [f"the array {name} is missing" for name in NEEDED if name not in shapes]
    for name, shape in shapes.items():
        if any(size > DIMENSION_MAX for size in shape):
            errors.append(f"{name} claims the shape {shape}, which no sample file has")
    counts = {name: shapes[name][0] for name in NEEDED if shapes.get(name)}
    if len(set(counts.values())) > 1:
        errors.append(f"arrays differ in their number of rows: {counts}")
    if any(count > ROWS_MAX for count in counts.values()):
        errors.append(f"it claims {max(counts.values())} rows, and {ROWS_MAX} are the most there can be")
    return errors


def _warnings(shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, str]) -> list[str]:
    found = [
        f"{name} has the odd type {dtypes[name]}" for name in NEEDED if name in dtypes and _odd(dtypes[name])
    ]
    if not any(name.startswith("policy") for name in shapes):
        found.append("it holds no policy")
    return found


def _odd(dtype: str) -> bool:
    return dtype.lstrip("<>|=")[:1] not in _PLAIN_KINDS
