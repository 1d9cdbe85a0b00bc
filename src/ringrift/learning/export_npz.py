"""Is a sample file whole? Read off its headers alone, without loading an array.

A file that was stitched together wrongly may claim billions of rows; whoever loads it would run out of
memory. Headers are small and say shape and type of every array.
"""

from __future__ import annotations

import ast
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

DIMENSION_MAX = 1_000_000_000
ROWS_MAX = 100_000_000
HEADER_BYTES_MAX = 65_536
NEEDED = ("features", "values")
_MAGIC = b"\x93NUMPY"
_SUFFIX = ".npy"
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
