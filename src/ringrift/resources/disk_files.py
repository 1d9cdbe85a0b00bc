"""Files that may simply go: rotated logs, caches, leftovers of dead jobs, imports that were taken in.

They hold nothing that is not elsewhere. Databases, the registry of models, the work queue, sealed files and
the quarantine are never among them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from ringrift.data.orphans import TAKEN, TAKEN_DIGEST_CHARS
from ringrift.held_folder import remove_file
from ringrift.settings import Settings

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spare:
    """A file that may go, and what it is."""

    path: Path
    bytes: int
    what: str


def spare_files(settings: Settings, *, now_s: float, known: Collection[str]) -> list[Spare]:
    """What may go, in the order in which it should. Blocks: call it in a thread.

    *known* are the digests of which somebody has a verified copy; an import of another one is all there is.
    """
    data = settings.data_dir
    imports = _found(data / "import" / TAKEN, ("*",), "an import that was taken in", now_s=now_s, age_s=DAY_S)
    short = {digest[:TAKEN_DIGEST_CHARS] for digest in known}
    return [
        *_found(data / "logs", ("*.log.*", "*.gz"), "an old log", now_s=now_s, age_s=DAY_S),
        *_found(data / "cache", ("*",), "a cache", now_s=now_s, age_s=3_600.0),
        *_found(data / "jobs", ("*.part",), "a leftover of a job", now_s=now_s, age_s=2 * DAY_S),
        *(spare for spare in imports if spare.path.name[:TAKEN_DIGEST_CHARS] in short),
    ]


def remove(spare: Spare) -> int:
    """Remove one; return the bytes that this freed."""
    return spare.bytes if remove_file(spare.path) else 0


def _found(
    folder: Path, patterns: tuple[str, ...], what: str, *, now_s: float, age_s: float
) -> Iterator[Spare]:
    """Oldest first."""
    files = []
    for pattern in patterns:
        for path in folder.rglob(pattern):
            try:
                seen = path.lstat()
            except FileNotFoundError:
                continue
            if path.is_file() and not path.is_symlink() and now_s - seen.st_mtime >= age_s:
                files.append((seen.st_mtime, Spare(path=path, bytes=seen.st_size, what=what)))
    yield from (spare for _, spare in sorted(files, key=lambda each: each[0]))
