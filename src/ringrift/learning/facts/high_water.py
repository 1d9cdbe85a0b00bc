"""How far a run had come, kept in a file beside its database: what a database alone cannot know of itself.

A database that was lost, exchanged for an older one, or has lost its write-ahead log looks like one that was
never written to. The mark names the database, its newest revision, and for every config the number of facts,
the hash that stands for them and the games. It is written after what it speaks of is durable, so a sound
database is never behind it, and before anything is done because of a fact, so the mark is behind only by
what was stored when the process died.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from ringrift.decoding import decode_as
from ringrift.engine.encoding import UNREADABLE, record_hash
from ringrift.engine.sqlite.faults import LOST_ADVICE, translated_errors
from ringrift.engine.sqlite.files import check_not_lost as check_no_files_without
from ringrift.errors import Corrupt
from ringrift.files import remove_file, replace_file
from ringrift.foreign_files.paths import read_regular
from ringrift.settings import Settings

NAME = "high_water.json"
MARKED_KEY = "run/marked"  # changed with each mark: the mark has its revision
_BYTES_MAX = 1 << 24


class ConfigMark(msgspec.Struct, frozen=True, kw_only=True):
    """How far one config had come."""

    facts: int
    last_hash: str  # after so many facts
    games: int


class HighWaterMark(msgspec.Struct, frozen=True, kw_only=True):
    """How far the run had come."""

    identity: str  # of the database
    revision: int  # of `MARKED_KEY`
    written_s: float
    configs: dict[str, ConfigMark]
    beside: tuple[str, ...] = ()  # other databases that were there, from the data folder


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    mark: msgspec.Raw
    hash: str


def mark_path(data_dir: Path) -> Path:
    return data_dir / NAME


def read_mark(data_dir: Path) -> HighWaterMark | None:
    """The mark of a folder, None if there is none; `Corrupt` if it is not as it was written. Blocks."""
    path = mark_path(data_dir)
    if not path.exists():
        return None
    with translated_errors(path):
        content = read_regular(path, bytes_max=_BYTES_MAX)
    try:
        stored = decode_as(content, _Stored)
        if stored.hash == record_hash(bytes(stored.mark)):
            return decode_as(stored.mark, HighWaterMark)
    except UNREADABLE:
        pass  # said below
    raise Corrupt(
        path,
        found="this is not what was written of how far the run had come",
        advice="Nothing else depends on it: the next start of the run writes it anew",
    )


def write_mark(data_dir: Path, mark: HighWaterMark) -> None:
    """Replace the mark of a folder, durably. Blocks."""
    path = mark_path(data_dir)
    content = msgspec.json.encode(mark)
    stored = msgspec.json.encode(_Stored(mark=msgspec.Raw(content), hash=record_hash(content)))
    with translated_errors(path):
        replace_file(path, stored)


def forget_mark(data_dir: Path) -> None:
    """The database is exchanged on purpose, as by a restore; the next start writes a new mark."""
    remove_file(mark_path(data_dir))


def check_not_lost(settings: Settings) -> None:
    """Raise `Corrupt` if a run was in the folder and its database is missing. Blocks."""
    database = settings.coordinator_db
    if not database.exists() and mark_path(settings.data_dir).exists():
        found = f"the database is missing, and {mark_path(settings.data_dir)} says that a run was here"
        raise Corrupt(database, found=found, advice=LOST_ADVICE)
    check_no_files_without(database, settings.blob_dir)


def behind(mark: HighWaterMark, identity: str, hash_of: Callable[[str, int], str | None]) -> list[str]:
    """What *mark* knows and the database with *identity* does not; empty if it has all of it.

    *hash_of* says which hash stands for so many facts of a config, None if there are fewer.
    """
    if identity and identity != mark.identity:
        return ["the database is another one than that of the run in this folder"]
    lost = []
    for config, marked in sorted(mark.configs.items()):
        found = hash_of(config, marked.facts)
        if found is None:
            lost.append(
                f"{config} had {marked.facts} facts and {marked.games} games, and the database has fewer"
            )
        elif found != marked.last_hash:
            lost.append(f"the first {marked.facts} facts of {config} are others than those that were written")
    return lost
