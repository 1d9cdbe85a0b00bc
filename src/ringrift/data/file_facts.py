"""What a sealed file is and holds, read off the file itself: for files that nobody told us about."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ringrift.data.artifacts import ArtifactKind
from ringrift.data.dataset_checks import validate_npz_structure
from ringrift.errors import Corrupt
from ringrift.foreign_files.content_kinds import HEADER_BYTES, ContentKind, content_kind
from ringrift.foreign_files.databases import open_foreign_database
from ringrift.foreign_files.paths import name_problem
from ringrift.jobs.shards.schema import COPY_ADVICE, TABLE_RULES

_FACTS_MAX, _DIGITS_MAX = 100, 15


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
    kind = content_kind(path)
    if kind is ContentKind.GAMES:
        return _games(path)
    if kind is ContentKind.DATABASE:
        if path.stat().st_size < HEADER_BYTES:
            return FileFacts(kind=ArtifactKind.OTHER, problem="the file ends in its header")
        return FileFacts(kind=ArtifactKind.SNAPSHOT)
    if kind in (ContentKind.SAMPLES, ContentKind.ARCHIVE):
        found = validate_npz_structure(path)
        held = ArtifactKind.SAMPLES if found.array_shapes else ArtifactKind.OTHER
        return FileFacts(kind=held, rows=found.sample_count, problem="" if found.valid else found.errors[0])
    return FileFacts(kind=ArtifactKind.MODEL if kind is ContentKind.WEIGHTS else ArtifactKind.OTHER)


def _games(path: Path) -> FileFacts:
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
