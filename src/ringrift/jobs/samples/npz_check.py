"""Checking sample files before anybody trains on them, without loading them.

Headers are read first and must make sense: a file stitched together by a resumed copy may claim billions
of elements. The deep check then streams every array once: checksums, finite numbers, ranges, policy sums.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from ringrift.games.contract import Game
from ringrift.jobs.samples.layout import row_columns

DIMENSION_MAX = 10**9
SAMPLES_MAX = 10**8
POLICY_SUM_TOLERANCE = 1e-3
FLAT = {"policy_indices", "policy_values", "policy_offsets"}
MISDIVIDED = "policy_offsets do not divide the policies among the samples"
_PIECE_BYTES = 2**18
_PIECE_VALUES = 2**15
_HEADER_CHARS_MAX = 10_000

UNREADABLE = (OSError, ValueError, zipfile.BadZipFile, zlib.error, EOFError, SyntaxError, RuntimeError)


@dataclass(slots=True)
class SampleCheck:
    """What was found in one file."""

    sample_count: int = 0
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    array_shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    array_dtypes: dict[str, str] = field(default_factory=dict)
    file_size: int = 0

    @property
    def valid(self) -> bool:
        return not self.errors


@dataclass(frozen=True, slots=True)
class ArrayHeader:
    """Type and shape of a stored array."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def quick_check(path: Path) -> tuple[bool, str]:
    """Headers only; returns whether the file may be used, and why not."""
    found = check_samples(path, deep=False)
    return found.valid, "; ".join(found.errors) or f"{found.sample_count} samples"


def check_samples(path: Path, *, game: Game | None = None, deep: bool = True) -> SampleCheck:
    """Check a file, also against *game* if given; never raises for what is wrong with the file."""
    found = SampleCheck()
    try:
        found.file_size = path.stat().st_size
        if not found.file_size:
            found.errors.append("the file is empty")
            return found
        with zipfile.ZipFile(path) as archive:
            headers = _headers(archive, found)
            _check_shapes(headers, found)
            if game is not None:
                _check_game(headers, game, found)
            if deep and found.valid:
                _check_contents(archive, headers, found)
    except UNREADABLE as fault:
        found.errors.append(f"unreadable: {fault}")
    return found


def read_header(member: IO[bytes]) -> ArrayHeader:
    """Read the header of an array, leaving the member at its data; raises ValueError for object arrays."""
    version = np.lib.format.read_magic(member)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(member, max_header_size=_HEADER_CHARS_MAX)
    if dtype.hasobject:
        raise ValueError("an array of objects, which only unpickling could read")
    if fortran and len(shape) > 1:
        raise ValueError("columns are stored before rows")
    return ArrayHeader(dtype, shape)


def _headers(archive: zipfile.ZipFile, found: SampleCheck) -> dict[str, ArrayHeader]:
    headers = {}
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        try:
            with archive.open(info) as member:
                header = read_header(member)
        except UNREADABLE as fault:
            found.errors.append(f"{name}: unreadable: {fault}")
            continue
        headers[name] = header
        found.array_shapes[name], found.array_dtypes[name] = header.shape, header.dtype.str
        expected = int(np.prod(header.shape, dtype=object)) * header.dtype.itemsize
        if any(size > DIMENSION_MAX for size in header.shape):
            found.errors.append(f"{name}: a dimension of {max(header.shape)} cannot be")
        elif not expected < info.file_size <= expected + 2 * _HEADER_CHARS_MAX:
            found.errors.append(f"{name}: {info.file_size} bytes cannot hold an array of {expected}")
    if not headers:
        found.errors.append("no arrays")
    return headers


def _check_shapes(headers: dict[str, ArrayHeader], found: SampleCheck) -> None:
    for name in ("features", "values"):
        if name not in headers:
            found.errors.append(f"{name} is missing")
    if "values" not in headers:
        return
    found.sample_count = (headers["values"].shape or (0,))[0]
    if not found.sample_count:
        found.errors.append("no samples")
    if found.sample_count > SAMPLES_MAX:
        found.errors.append(f"{found.sample_count} samples cannot be")
    for name, header in headers.items():
        if header.shape and name not in FLAT and header.shape[0] != found.sample_count:
            found.errors.append(f"{name}: {header.shape[0]} entries for {found.sample_count} samples")
    if "features" in headers and headers["features"].dtype.kind != "f":
        found.warnings.append(f"features are {headers['features'].dtype}")
    _check_policy_shapes(headers, found)


def _check_policy_shapes(headers: dict[str, ArrayHeader], found: SampleCheck) -> None:
    missing = sorted(FLAT - headers.keys())
    if missing:
        found.warnings.append(f"no {', '.join(missing)}: nothing to learn a policy from")
        return
    offsets = headers["policy_offsets"].shape
    if offsets != (found.sample_count + 1,):
        found.errors.append(f"policy_offsets: {offsets} for {found.sample_count} samples")
    if headers["policy_indices"].shape != headers["policy_values"].shape:
        found.errors.append("policy_indices and policy_values differ in length")


def _check_game(headers: dict[str, ArrayHeader], game: Game, found: SampleCheck) -> None:
    for name, (dtype, shape) in row_columns(game).items():
        if name not in headers:
            found.warnings.append(f"{name} is missing")
        elif headers[name].shape[1:] != shape:
            found.errors.append(f"{name}: entries of {headers[name].shape[1:]}; {game.key} has {shape}")
        elif headers[name].dtype != dtype:
            found.warnings.append(f"{name}: {headers[name].dtype}, expected {dtype}")


def _check_contents(archive: zipfile.ZipFile, headers: dict[str, ArrayHeader], found: SampleCheck) -> None:
    checksums = _scalar_json(archive, headers, "checksums")
    if not checksums:
        found.warnings.append("no checksums")
    for name, header in headers.items():
        digest = hashlib.sha256()
        low, high = np.inf, -np.inf
        for piece in _pieces(archive, name, header):
            digest.update(piece.tobytes())
            if piece.dtype.kind in "fi" and piece.size:
                low, high = min(low, float(piece.min())), max(high, float(piece.max()))
        if name in checksums and digest.hexdigest() != checksums[name]:
            found.errors.append(f"{name}: the content is not what was written (checksum)")
        _check_range(name, header, low, high, found)
    _check_policies(archive, headers, found)


def _check_range(name: str, header: ArrayHeader, low: float, high: float, found: SampleCheck) -> None:
    if header.dtype.kind == "f" and not name.endswith("_elo") and not np.isfinite([low, high]).all():
        found.errors.append(f"{name}: not all numbers are finite")
    elif name in ("values", "values_mp") and not -1.001 <= low <= high <= 1.001:
        found.errors.append(f"{name}: from {low:g} to {high:g}, expected -1 to 1")
    elif name in ("policy_values", "sample_weights", "policy_indices") and low < 0:
        found.errors.append(f"{name}: {low:g} is negative")


def _check_policies(archive: zipfile.ZipFile, headers: dict[str, ArrayHeader], found: SampleCheck) -> None:
    if not headers.keys() >= FLAT:
        return
    wrong = _policy_fault(archive, headers)
    if wrong:
        found.errors.append(wrong)
    if "policy_size" in headers:
        size = int(_whole(archive, "policy_size", headers))
        if int(_whole(archive, "max_policy_index", headers)) >= size:
            found.errors.append(f"a policy names an action beyond the {size} there are")


def _policy_fault(archive: zipfile.ZipFile, headers: dict[str, ArrayHeader]) -> str:
    """The first thing that is wrong with offsets and sums, read side by side."""
    header = headers["policy_values"]
    values, total = _Stream(archive, "policy_values", header), header.shape[0]
    sample, start = 0, None
    for ends in _pieces(archive, "policy_offsets", headers["policy_offsets"]):
        offsets = ends if start is None else np.concatenate(([start], ends))
        counts = np.diff(offsets)
        if (start is None and offsets[0] != 0) or (counts <= 0).any() or offsets[-1] > total:
            return MISDIVIDED
        for some in np.array_split(counts, 1 + int(counts.sum()) // _PIECE_VALUES):
            taken = values.take(int(some.sum()))
            if len(some):
                sums = np.add.reduceat(taken.astype(np.float64), np.cumsum(some) - some)
                off = np.flatnonzero(np.abs(sums - 1) > POLICY_SUM_TOLERANCE)
                if off.size:
                    return f"the policy of sample {sample + off[0]} sums to {sums[off[0]]:.4f}"
            sample += len(some)
        start = offsets[-1]
    return MISDIVIDED if start != total else ""


class _Stream:
    """A flat array, read on and on in parts of any size."""

    def __init__(self, archive: zipfile.ZipFile, name: str, header: ArrayHeader) -> None:
        self._pieces = _pieces(archive, name, header)
        self._left: np.ndarray[Any, Any] = np.empty(0, header.dtype)

    def take(self, count: int) -> np.ndarray[Any, Any]:
        """The next *count* entries, fewer at the end."""
        parts, missing = [self._left], count - len(self._left)
        while missing > 0 and (piece := next(self._pieces, None)) is not None:
            parts.append(piece)
            missing -= len(piece)
        joined = np.concatenate(parts)
        self._left = joined[count:]
        return joined[:count]


def _pieces(archive: zipfile.ZipFile, name: str, header: ArrayHeader) -> Iterator[np.ndarray[Any, Any]]:
    step = max(1, _PIECE_BYTES // header.dtype.itemsize) * header.dtype.itemsize
    with archive.open(f"{name}.npy") as member:
        read_header(member)
        while content := member.read(step):
            yield np.frombuffer(content, dtype=header.dtype)


def _whole(archive: zipfile.ZipFile, name: str, headers: dict[str, ArrayHeader]) -> np.ndarray[Any, Any]:
    pieces = list(_pieces(archive, name, headers[name]))
    return np.concatenate(pieces).reshape(headers[name].shape)


def _scalar_json(archive: zipfile.ZipFile, headers: dict[str, ArrayHeader], name: str) -> dict[str, Any]:
    if name not in headers or headers[name].shape != () or headers[name].dtype.kind != "U":
        return {}
    value = json.loads(str(_whole(archive, name, headers)))
    return value if isinstance(value, dict) else {}
