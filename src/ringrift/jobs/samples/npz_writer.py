"""Writing NPZ files piece by piece: memory holds one piece, whatever the size of the file.

A zip takes one member at a time, so the largest array goes straight into it and the others wait in files
of their own. The number of samples is known before the first is made, because headers come first.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from ringrift.errors import ConfigError
from ringrift.games.contract import Game
from ringrift.jobs.samples.layout import FEATURES, Columns, flat_columns, row_columns
from ringrift.jobs.sealing import scratch_folder

_COPY_BYTES = 2**18


class SampleWriter:
    """Writes *rows* samples into *path*; a context manager, so that waiting files are removed."""

    def __init__(
        self, path: Path, game: Game, *, rows: int, compress: bool, with_features: bool = True
    ) -> None:
        self._rows, self._written, self._flat = rows, 0, 0
        self._columns, self._flat_columns = row_columns(game), flat_columns()
        if not with_features:
            del self._columns[FEATURES]
        self._streamed = next(iter(self._columns))  # the largest comes first
        self._digests = {name: hashlib.sha256() for name in (*self._columns, *self._flat_columns)}
        self._waiting_folder = scratch_folder(path.parent, f"{path.name}-")
        self._waiting: dict[str, IO[bytes]] = {
            name: (Path(self._waiting_folder.name) / name).open("w+b")
            for name in self._digests
            if name != self._streamed
        }
        how = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
        self._zip = zipfile.ZipFile(path, "w", compression=how, compresslevel=1 if compress else None)
        dtype, shape = self._columns[self._streamed]
        self._stream = self._open_member(self._streamed, dtype, (rows, *shape))

    def __enter__(self) -> SampleWriter:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._waiting.values():
            file.close()
        self._stream.close()
        self._zip.close()
        self._waiting_folder.cleanup()

    def add(self, columns: Columns) -> None:
        """Append samples: all row columns, and the flat ones of the same samples."""
        count = len(columns["values"])
        for name, (dtype, shape) in self._columns.items():
            if columns[name].shape != (count, *shape):
                raise ConfigError(f"{name}: {columns[name].shape} for {count} samples of shape {shape}")
            self._append(name, columns[name], dtype)
        for name, dtype in self._flat_columns.items():
            self._append(name, columns[name], dtype)
        self._written += count
        self._flat += len(columns["policy_indices"])

    def finish(self, scalars: Mapping[str, Any]) -> None:
        """Write what waits, the scalars and the checksums."""
        assert self._written == self._rows, f"{self._written} of {self._rows} samples were written"
        self._stream.close()
        self._write_offsets()
        for name, waiting in self._waiting.items():
            dtype, shape = self._columns.get(name, (self._flat_columns.get(name), ()))
            assert dtype is not None
            count = self._rows if name in self._columns else self._flat
            waiting.seek(0)
            with self._open_member(name, dtype, (count, *shape)) as member:
                shutil.copyfileobj(waiting, member, _COPY_BYTES)
        checksums = {name: digest.hexdigest() for name, digest in sorted(self._digests.items())}
        for name, value in {**scalars, "checksums": json.dumps(checksums)}.items():
            self._write_scalar(name, np.asarray(value))
        self._zip.close()

    def _append(self, name: str, array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> None:
        content = np.ascontiguousarray(array, dtype=dtype).tobytes()
        self._digests[name].update(content)
        (self._stream if name == self._streamed else self._waiting[name]).write(content)

    def _write_offsets(self) -> None:
        """Sum the counts up, a piece at a time."""
        waiting, digest, end = self._waiting["policy_counts"], hashlib.sha256(), np.int64(0)
        waiting.seek(0)
        with self._open_member("policy_offsets", np.dtype("<i8"), (self._rows + 1,)) as member:
            content = end.astype("<i8").tobytes()
            while content:
                member.write(content)
                digest.update(content)
                counts = np.frombuffer(waiting.read(_COPY_BYTES), dtype="<i4")
                offsets = end + np.cumsum(counts, dtype="<i8")
                end = offsets[-1] if len(offsets) else end
                content = offsets.tobytes()
        self._digests["policy_offsets"] = digest

    def _open_member(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> IO[bytes]:
        # A member without a time of its own makes the same samples the same bytes.
        info = zipfile.ZipInfo(f"{name}.npy")
        info.compress_type = self._zip.compression
        member = self._zip.open(info, "w", force_zip64=True)
        header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(member, header)
        return member

    def _write_scalar(self, name: str, value: np.ndarray[Any, Any]) -> None:
        assert not value.dtype.hasobject
        with self._open_member(name, value.dtype, value.shape) as member:
            member.write(value.tobytes())
