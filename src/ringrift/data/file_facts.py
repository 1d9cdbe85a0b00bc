"""What a sealed file is and holds, read off the file itself: for files that nobody told us about."""

from __future__ import annotations

import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path

from ringrift.data.artifacts import ArtifactKind
from ringrift.data.dataset_checks import validate_npz_structure
from ringrift.errors import Corrupt
from ringrift.foreign_files.databases import open_foreign_database
from ringrift.foreign_files.paths import name_problem, open_regular
from ringrift.jobs.shards.schema import APPLICATION_ID, COPY_ADVICE, TABLE_RULES

_SQLITE_MAGIC = b"SQLite format 3\x00"
_HEADER_BYTES = 100
_FACTS_MAX, _DIGITS_MAX = 100, 15
_WEIGHTS_HEADER_MAX = 100 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """What was found in a file."""

    kind: ArtifactKind
    config: str = ""
    games: int = 0
    rows: int = 0
    problem: str = ""  # why it is not what it seems to be


def read_facts(path: Path) -> FileFacts:
    """Say what *path* is, `OTHER` if nothing we know. Reads little, but blocks: call it in a thread."""
    with open_regular(path) as file:
        header = file.read(_HEADER_BYTES)
    if header.startswith(_SQLITE_MAGIC):
        return _database(path, header)
    if zipfile.is_zipfile(path):
        found = validate_npz_structure(path)
        kind = ArtifactKind.SAMPLES if found.array_shapes else ArtifactKind.OTHER
        return FileFacts(kind=kind, rows=found.sample_count, problem="" if found.valid else found.errors[0])
    if _is_weights(path, header):
        return FileFacts(kind=ArtifactKind.MODEL)
    return FileFacts(kind=ArtifactKind.OTHER)


def _database(path: Path, header: bytes) -> FileFacts:
    if len(header) < _HEADER_BYTES:
        return FileFacts(kind=ArtifactKind.OTHER, problem="the file ends in its header")
    (application,) = struct.unpack(">68xI28x", header)
    if application != APPLICATION_ID:
        return FileFacts(kind=ArtifactKind.SNAPSHOT)
    try:
        with open_foreign_database(path, TABLE_RULES, advice=COPY_ADVICE, every_value=False) as db:
            told = dict(db.execute("SELECT key, value FROM schema_metadata").fetchmany(_FACTS_MAX))
            (games,) = db.execute("SELECT count(*) FROM games").fetchone()
    except Corrupt as error:
        return FileFacts(kind=ArtifactKind.GAMES, problem=error.found)
    config, rows = str(told.get("config_key", "")), str(told.get("rows", "0"))
    problem = (
        "" if told.get("games") == str(games) else f"{games} of {told.get('games')!s:.20} games are there"
    )
    if not rows.isdecimal() or len(rows) > _DIGITS_MAX or (config and name_problem(config)):
        return FileFacts(kind=ArtifactKind.GAMES, problem="its facts are none that a shard states")
    return FileFacts(kind=ArtifactKind.GAMES, config=config, games=games, rows=int(rows), problem=problem)


def _is_weights(path: Path, header: bytes) -> bool:
    """The safetensors form: the length of a JSON header, then the header."""
    if len(header) < 9:
        return False
    (length,) = struct.unpack_from("<Q", header)
    return bool(2 <= length <= min(_WEIGHTS_HEADER_MAX, path.stat().st_size) and header[8:9] == b"{")
