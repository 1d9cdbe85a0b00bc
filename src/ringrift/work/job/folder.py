"""A folder per work item: what the job reads, what it writes, what it said on stderr.

    <data>/jobs/<item>/inputs        the input files under the names of the order, linked from the blobs
                       out           the job's own; survives retries and restarts, so that it goes on there
                       log           stderr of all attempts, bounded
                       params.json   what the job read on stdin
                       record.json   whose it is, and under which token it runs now

A folder goes when its item is completed, cancelled or dead. The job can write anywhere in it, so nothing that
is read from it is taken on trust: no links are followed, only plain files are opened, and what the record
says counts for the item of this folder alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, BinaryIO
from urllib.parse import quote, unquote

import msgspec

from ringrift.decoding import decode_as
from ringrift.engine.limits import VALUE_BYTES_MAX
from ringrift.engine.ports import Blobs, KeyValue
from ringrift.engine.records import KvRecords
from ringrift.errors import ConfigError, Corrupt, DigestMismatch, Unavailable
from ringrift.files import (
    change_mode,
    create_file,
    link_file,
    make_folders,
    open_file,
    remove_file,
    remove_folder,
    rename_file,
    stat_file,
    write_file,
)
from ringrift.foreign_files.paths import is_plain_file, read_regular
from ringrift.work.job.protocol import INPUTS, OUT, JobArtifact, JobOrder, JobOutput

FOLDER_CHARS_MAX = 200
RECORD_BYTES_MAX = 100_000
NAME_BYTES_MAX = 1000

Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
WorkerName = Annotated[str, msgspec.Meta(pattern=r"^[\w.-]{1,200}$")]


class JobRecord(msgspec.Struct, kw_only=True):
    """Whose folder it is, and who works in it."""

    item_id: str
    kind: str
    config: str
    worker: WorkerName | None = None  # None: nobody works on it now
    token: int = 0
    abandoned: int = 0  # how many workers died over it
    wall_s: Seconds = 0.0  # what earlier attempts took; this one goes on from what they made
    cpu_s: Seconds = 0.0
    gpu_s: Seconds = 0.0


class JobFolder:
    """The folder of one item. All of this is blocking."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.inputs, self.out, self.log = path / "inputs", path / "out", path / "log" / "stderr.log"
        self.params = path / "params.json"
        self._record = path / "record.json"

    def prepare(self) -> None:
        """Make it, or find it as an earlier attempt left it."""
        for folder in (self.path, self.inputs, self.out, self.log.parent):
            if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
                _remove(folder)
            make_folders(folder)
        if not is_plain_file(self.log):
            _remove(self.log)

    def read_record(self) -> JobRecord | None:
        """None if there is none, or none that can be read: then nobody can say whose the folder is."""
        try:
            content = read_regular(self._record, bytes_max=RECORD_BYTES_MAX, follow=False)
            return decode_as(content, JobRecord)
        except (OSError, Corrupt, msgspec.DecodeError, RecursionError):
            return None

    def write_record(self, record: JobRecord) -> None:
        _replace(self._record, msgspec.json.encode(record))

    def write_params(self, order: JobOrder) -> None:
        filled = _filled(order.params, {INPUTS: str(self.inputs.absolute()), OUT: str(self.out.absolute())})
        _replace(self.params, msgspec.json.encode(filled))

    def link_input(self, name: str, source: Path) -> None:
        """Lay a file in under its name: a link, or a copy where links cannot be."""
        target = self._input(name)
        remove_file(target)
        try:
            link_file(source, target)
        except OSError:
            with source.open("rb") as original:
                self.copy_input(name, original)

    def copy_input(self, name: str, source: BinaryIO) -> None:
        with create_file(self._input(name)) as target:
            shutil.copyfileobj(source, target)

    def drop_other_inputs(self, names: Mapping[str, str]) -> None:
        """Leave nothing of an earlier order among the inputs."""
        for found in self.inputs.iterdir():
            if found.name not in {PurePosixPath(name).parts[0] for name in names}:
                _remove(found)

    def artifact(self, said: str) -> tuple[str, Path]:
        """The name and the file of an artifact; `Corrupt` if it is not in this folder, or no file."""
        for root in (self.out, self.inputs):
            name = _name_under(root, said)
            if name is not None:
                return name, root / name
        raise Corrupt(
            said[:NAME_BYTES_MAX],
            found="the job announced it, but it is no file of its folder",
            advice="Look at its log",
        )

    def remove(self) -> None:
        """Safe to call twice, and while another process does the same."""
        _remove(self.path)

    def _input(self, name: str) -> Path:
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts:
            raise ConfigError(f"an input cannot be called {name!r}")
        target = self.inputs.joinpath(*parts)
        make_folders(target.parent)
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

    def item_of(self, folder: JobFolder) -> str:
        """The item that a folder is named after; one with a very long id is not found again."""
        return unquote(folder.path.name)

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
    write_file(part, content)
    rename_file(part, path)


def _name_under(root: Path, said: str) -> str | None:
    """The name of a plain file in *root* that no link leads to; None if it is none."""
    try:
        # Only the folders above are ours: what the job can write to must not be a link.
        place = Path(os.path.normpath(root.absolute() / said))
        name = place.relative_to(root.absolute()).as_posix()
        is_inside = place.resolve().is_relative_to(root.parent.resolve() / root.name)
    except (ValueError, OSError, RuntimeError):  # elsewhere, a NUL, too long, a circle of links
        return None
    is_sound = name.isprintable() and len(name.encode()) <= NAME_BYTES_MAX
    return name if is_inside and is_sound and is_plain_file(root / name) else None


def _remove(path: Path) -> None:
    """Remove whatever it is. Folders are emptied one by one in their root: a job may nest them endlessly."""
    try:
        if not stat.S_ISDIR(stat_file(path, follow=False).st_mode):
            remove_file(path)
            return
        change_mode(path, 0o700)
        root = open_file(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        _empty(root)
    finally:
        os.close(root)
    with suppress(OSError):  # another process puts something in, or removes it too
        remove_folder(path)


def _empty(root: int) -> None:
    moved = 0
    while inner := _folders_after_unlinking(root):
        for name in inner:
            with suppress(OSError):
                os.chmod(name, 0o700, dir_fd=root)
                handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=root)
                try:
                    for deeper in _folders_after_unlinking(handle):
                        moved += 1
                        os.rename(deeper, f".{moved}.gone", src_dir_fd=handle, dst_dir_fd=root)
                finally:
                    os.close(handle)
                os.rmdir(name, dir_fd=root)
        if set(inner) <= set(_folders_after_unlinking(root)):
            return  # none of them can be removed


def _folders_after_unlinking(folder: int) -> list[str]:
    """Remove the files of *folder*; return the names of the folders in it."""
    found = []
    with os.scandir(folder) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                found.append(entry.name)
                continue
            with suppress(OSError):
                os.unlink(entry.name, dir_fd=folder)
    return found


# The inputs of a job: read whole before the job may see them, so that what is damaged is named as that.
#
# Whoever finds one damaged writes that down. The node's integrity check sets the file aside and brings
# another copy; until one is there the job's error says what became of its input.


DAMAGED = "data/damaged/"
MISSING_S = 30.0  # an input may still be on its way
_ROLES = {
    "champion": "the champion's file",
    "candidate": "the candidate's file",
    "parent": "the parent's file",
    "opponent": "the opponent's file",
    "samples": "the file of samples",
}


class DamagedInput(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a node that a worker found damaged."""

    digest: str
    node: str
    name: str
    item_id: str
    config: str
    at_s: float


async def lay_out(folder: JobFolder, order: JobOrder, blobs: Blobs) -> None:
    """Fill the folder as *order* says.

    `Unavailable` if an input is not here, `DigestMismatch` if one does not have the content of its name.
    """
    await asyncio.to_thread(folder.prepare)
    await asyncio.to_thread(folder.drop_other_inputs, order.inputs)
    for name, digest in order.inputs.items():
        try:
            await blobs.verify(digest)
        except KeyError:
            raise Unavailable(f"{role_of(name)} ({digest}) is not here", retry_after_s=MISSING_S) from None
        except Corrupt as error:
            raise DigestMismatch(
                error.path,
                found=f"{role_of(name)} ({digest}) does not have the content of its name: it is damaged",
                advice="It is set aside, and brought again if there is another copy",
            ) from None
        source = await blobs.path(digest)
        if source is not None:
            await asyncio.to_thread(folder.link_input, name, source)
            continue
        with await blobs.open(digest) as file:
            await asyncio.to_thread(folder.copy_input, name, file)
    await asyncio.to_thread(folder.write_params, order)


def role_of(name: str) -> str:
    """What an input is, as a person would say it."""
    stem = name.partition(".")[0].partition("-")[0]
    return _ROLES.get(stem, f"the input {name}")


async def damaged_inputs(kv: KeyValue) -> list[DamagedInput]:
    """The files that are known to be damaged and have not come back, of all nodes."""
    return await _damaged(kv).all()


async def note_damaged(kv: KeyValue, found: DamagedInput) -> None:
    await _damaged(kv).put(_name(found.digest, found.node), found)


async def forget_damaged(kv: KeyValue, found: DamagedInput) -> None:
    """There is a good copy again."""
    await _damaged(kv).delete(_name(found.digest, found.node))


async def was_damaged(kv: KeyValue, digest: str, node: str) -> bool:
    return await _damaged(kv).has(_name(digest, node))


def _damaged(kv: KeyValue) -> KvRecords[DamagedInput]:
    what = "no record of a damaged file"
    return KvRecords(kv, DAMAGED, DamagedInput, advice="Delete the key", what=what)


def _name(digest: str, node: str) -> str:
    return f"{digest}/{node}"


# Files out of a job's folder into the blobs when it ended well.


RESULT_BYTES_MAX = VALUE_BYTES_MAX // 2
ARTIFACTS_BYTES_MAX = VALUE_BYTES_MAX // 4  # of what is said about them, all together
KIND_CHARS_MAX = 40
WORDS_MAX = 300
# Said elsewhere.
REPEATED = ("event", "kind", "elapsed_s", "cpu_s", "gpu_s", "status", "exit_code", "artifacts")


async def take_in(
    folder: JobFolder, job_output: JobOutput, blobs: Blobs, *, asked: tuple[str, JobOrder]
) -> tuple[tuple[JobArtifact, ...], dict[str, Any]]:
    """Put every announced artifact into the blobs; return them and the fields of the result.

    *asked* is the kind and the order of the item. `Corrupt` if the job speaks of something else, or announced
    what is no file of its folder; `DigestMismatch` if a file changed since it was announced. A result that
    the queue cannot hold becomes an artifact itself; its plain values stay where they are.
    """
    _check_claims(job_output, *asked)
    taken = []
    for said in job_output.artifacts.values():
        name, path = await asyncio.to_thread(folder.artifact, said.path)
        digest = await blobs.put(path)
        if said.sha256 is not None and said.sha256 != digest:
            raise DigestMismatch(
                path,
                found=f"it has the digest {digest}, the job announced {said.sha256}",
                advice="Nothing may write to a sealed file",
            )
        size_bytes = await blobs.size(digest)
        assert size_bytes is not None, "it was put just now"
        taken.append(
            JobArtifact(
                name=name, kind=said.artifact, digest=digest, size_bytes=size_bytes, counts=said.counts
            )
        )
    fields = {key: value for key, value in (job_output.result or {}).items() if key not in REPEATED}
    whole = msgspec.json.encode(fields)
    if len(whole) > RESULT_BYTES_MAX:
        digest = await blobs.put_bytes(whole)
        taken.append(JobArtifact(name="result.json", kind="result", digest=digest, size_bytes=len(whole)))
        fields = {k: v for k, v in fields.items() if v is None or isinstance(v, bool | int | float)}
    return tuple(taken), fields


def _check_claims(job_output: JobOutput, kind: str, order: JobOrder) -> None:
    """A job answers its own order: what it says of another kind or config is not taken in."""
    result = job_output.result or {}
    for name, ordered in (("kind", kind), ("config", order.config)):
        if ordered and result.get(name, ordered) != ordered:
            raise _refused("the result", f"it names the {name} {result[name]!r}; {ordered!r} was ordered")
    for said in job_output.artifacts.values():
        if not said.artifact.isidentifier() or len(said.artifact) > KIND_CHARS_MAX:
            raise _refused(said.path, f"{said.artifact!r} is no kind of artifact")
    size_bytes = len(msgspec.json.encode([*job_output.artifacts.values()]))
    if size_bytes > ARTIFACTS_BYTES_MAX:
        raise _refused(
            "the list of artifacts", f"it has {size_bytes} bytes; {ARTIFACTS_BYTES_MAX} are allowed"
        )


def _refused(what: str, found: str) -> Corrupt:
    return Corrupt(what[:WORDS_MAX], found=found[:WORDS_MAX], advice="Look at the log of the job")
