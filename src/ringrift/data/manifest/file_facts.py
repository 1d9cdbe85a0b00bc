"""What a sealed file is and holds, read off the file itself: for files that nobody told us about."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ringrift.data.artifacts import ArtifactKind
from ringrift.errors import Corrupt
from ringrift.foreign_files.content_kinds import HEADER_BYTES, ContentKind, content_kind
from ringrift.foreign_files.databases import open_foreign_database
from ringrift.foreign_files.paths import name_problem
from ringrift.foreign_files.sample_archives import ROWS_MAX, UNREADABLE, SampleArchive, open_samples
from ringrift.jobs.shards.schema import COPY_ADVICE, TABLE_RULES

__all__ = ["NPZValidationResult", "check_dataset", "quick_npz_check", "validate_npz_structure"]


# Is a sample file whole? By its headers alone, or by reading all of it once; never by loading an array.
#
# A file that was stitched together wrongly may claim billions of rows; whoever loads it would run out of
# memory. Headers are small and say shape and type of every array. The whole check streams every array in
# small pieces against the archive's own sums, its claimed size, and the checksums that the export wrote.


POSITIONS = ("features", "states")  # one of them is needed
VALUES = "values"
COUNTED = (*POSITIONS, VALUES)
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
    file, size = Path(path), 0
    try:
        if not file.is_file():
            return NPZValidationResult(valid=False, errors=(f"{file} is no file",))
        size = file.stat().st_size
        with open_samples(file) as archive:
            return _judge(archive, size)
    except UNREADABLE as error:
        return NPZValidationResult(valid=False, errors=(f"it cannot be read: {error}",), file_size=size)


def quick_npz_check(path: str | Path) -> tuple[bool, str | None]:
    """Return whether the file is whole, and the first thing that is wrong with it: None if nothing is."""
    result = validate_npz_structure(path)
    return result.valid, None if result.valid else result.errors[0]


def check_dataset(path: str | Path) -> NPZValidationResult:
    """Read the whole file once, in memory that does not grow with it. Slow: call it off the event loop."""
    result = validate_npz_structure(path)
    if not result.valid:
        return result
    try:
        with open_samples(Path(path)) as archive:
            promised = archive.checksums()
            digests = {name: _digest(archive, name) for name in archive.arrays}
    except UNREADABLE as error:
        return replace(result, valid=False, errors=(f"it cannot be read to its end: {error}",))
    errors = [
        f"the content of {name} is not what was exported"
        for name, digest in promised.items()
        if digests.get(name) != digest
    ]
    warnings = result.warnings if promised else (*result.warnings, "it states no checksums")
    return replace(result, valid=not errors, errors=tuple(errors), warnings=warnings)


def _digest(archive: SampleArchive, name: str) -> str:
    digest = hashlib.sha256()
    for piece in archive.pieces(name):
        digest.update(piece)
    return digest.hexdigest()


def _judge(archive: SampleArchive, size: int) -> NPZValidationResult:
    shapes = {name: array.shape for name, array in archive.arrays.items()}
    dtypes = {name: array.dtype for name, array in archive.arrays.items()}
    errors = [f"the array {name} is {fault}" for name, fault in archive.faults.items()]
    errors += _shape_errors(shapes)
    counts = [shape[0] for name, shape in shapes.items() if name in COUNTED and shape]
    return NPZValidationResult(
        valid=not errors,
        sample_count=counts[0] if counts else 0,
        errors=tuple(errors),
        warnings=tuple(_warnings(shapes, dtypes)),
        array_shapes=shapes,
        array_dtypes=dtypes,
        file_size=size,
    )


def _shape_errors(shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    if not shapes:
        return ["it holds no arrays"]
    errors = [] if VALUES in shapes else [f"the array {VALUES} is missing"]
    if not shapes.keys() & set(POSITIONS):
        errors.insert(0, f"the array {' or '.join(POSITIONS)} is missing")
    counts = {name: shapes[name][0] for name in COUNTED if shapes.get(name)}
    if len(set(counts.values())) > 1:
        errors.append(f"arrays differ in their number of rows: {counts}")
    if any(count > ROWS_MAX for count in counts.values()):
        errors.append(f"it claims {max(counts.values())} rows, and {ROWS_MAX} are the most there can be")
    return errors


def _warnings(shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, str]) -> list[str]:
    found = [
        f"{name} has the odd type {dtypes[name]}"
        for name in ("features", VALUES)
        if name in dtypes and _odd(dtypes[name])
    ]
    if not any(name.startswith("policy") for name in shapes):
        found.append("it holds no policy")
    return found


def _odd(dtype: str) -> bool:
    return dtype.lstrip("<>|=")[:1] not in _PLAIN_KINDS


# What kind of file it is, and what its card would say.


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
            facts = dict(db.execute("SELECT key, value FROM schema_metadata").fetchmany(_FACTS_MAX))
            (games,) = db.execute("SELECT count(*) FROM games").fetchone()
    except Corrupt as error:
        return FileFacts(kind=ArtifactKind.GAMES, problem=error.found)
    config, rows = str(facts.get("config_key", "")), str(facts.get("rows", "0"))
    problem = (
        "" if facts.get("games") == str(games) else f"{games} of {facts.get('games')!s:.20} games are there"
    )
    if not rows.isdecimal() or len(rows) > _DIGITS_MAX or (config and name_problem(config)):
        return FileFacts(kind=ArtifactKind.GAMES, problem="its facts are none that a shard states")
    return FileFacts(kind=ArtifactKind.GAMES, config=config, games=games, rows=int(rows), problem=problem)
