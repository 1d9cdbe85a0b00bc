"""A folder per work item: what the job reads, what it writes, what it said on stderr.

    <data>/jobs/<item>/inputs        the input files under the names of the order, linked from the blobs
                       out           the job's own; survives retries and restarts, so that it goes on there
                       log           stderr of all attempts, bounded
                       params.json   what the job read on stdin
                       record.json   whose it is, and under which token it runs now

A folder goes when its item is completed, cancelled or dead.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO
from urllib.parse import quote

import msgspec

from ringrift.errors import ConfigError, Corrupt
from ringrift.work.job_orders import INPUTS, OUT, JobOrder

FOLDER_CHARS_MAX = 200


class JobRecord(msgspec.Struct, kw_only=True):
    """Whose folder it is, and who works in it."""

    item_id: str
    kind: str
    config: str
    worker: str | None = None  # None: nobody works on it now
    token: int = 0
    abandoned: int = 0  # how many workers died over it
    wall_s: float = 0.0  # what earlier attempts took; this one goes on from what they made
    cpu_s: float = 0.0
    gpu_s: float = 0.0


class JobFolder:
    """The folder of one item. All of this is blocking."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.inputs, self.out, self.log = path / "inputs", path / "out", path / "log" / "stderr.log"
        self.params = path / "params.json"
        self._record = path / "record.json"

    def prepare(self) -> None:
        """Make it, or find it as an earlier attempt left it."""
        for folder in (self.inputs, self.out, self.log.parent):
            folder.mkdir(parents=True, exist_ok=True)

    def read_record(self) -> JobRecord | None:
        """None if there is none, or none that can be read: then nobody can say whose the folder is."""
        try:
            return msgspec.json.decode(self._record.read_bytes(), type=JobRecord)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def write_record(self, record: JobRecord) -> None:
        _replace(self._record, msgspec.json.encode(record))

    def write_params(self, order: JobOrder) -> None:
        filled = _filled(order.params, {INPUTS: str(self.inputs.absolute()), OUT: str(self.out.absolute())})
        _replace(self.params, msgspec.json.encode(filled))

    def link_input(self, name: str, source: Path) -> None:
        """Lay a file in under its name: a link, or a copy where links cannot be."""
        target = self._input(name)
        target.unlink(missing_ok=True)
        try:
            os.link(source, target)
        except OSError:
            shutil.copyfile(source, target)

    def copy_input(self, name: str, source: BinaryIO) -> None:
        with self._input(name).open("wb") as target:
            shutil.copyfileobj(source, target)

    def drop_other_inputs(self, names: Mapping[str, str]) -> None:
        """Leave nothing of an earlier order among the inputs."""
        for found in self.inputs.iterdir():
            if found.name not in {PurePosixPath(name).parts[0] for name in names}:
                _remove(found)

    def artifact(self, said: str) -> tuple[str, Path]:
        """The name and the file of an artifact; `Corrupt` if it is not in this folder, or no file."""
        path = Path(said) if Path(said).is_absolute() else self.out / said
        for root in (self.out, self.inputs):
            try:
                name = path.resolve().relative_to(root.resolve()).as_posix()
            except ValueError:
                continue
            if path.is_file() and not path.is_symlink():
                return name, path
        raise Corrupt(
            path, found="the job announced it, but it is no file of its folder", advice="Look at its log"
        )

    def remove(self) -> None:
        """Safe to call twice, and while another process does the same."""
        _remove(self.path)

    def _input(self, name: str) -> Path:
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts:
            raise ConfigError(f"an input cannot be called {name!r}")
        target = self.inputs.joinpath(*parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        return target


class JobFolders:
    """The folders of all items on this node."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def of(self, item_id: str) -> JobFolder:
        name = quote(item_id, safe=" +,=@")
        if len(name) > FOLDER_CHARS_MAX:
            name = hashlib.sha256(item_id.encode()).hexdigest()
        return JobFolder(self.root / ("%2E" + name[1:] if name.startswith(".") else name))

    def all(self) -> list[JobFolder]:
        """Every folder, whoever's it is."""
        if not self.root.is_dir():
            return []
        return [
            JobFolder(each) for each in sorted(self.root.iterdir()) if each.is_dir() and each.name[0] != "."
        ]


def _filled(value: Any, words: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for word, meaning in words.items():
            value = value.replace(word, meaning)
        return value
    if isinstance(value, Mapping):
        return {key: _filled(each, words) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_filled(each, words) for each in value]
    return value


def _replace(path: Path, content: bytes) -> None:
    """Write whole or not at all, as far as processes go; a folder need not survive the machine."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_bytes(content)
    part.replace(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
