"""What a run left in its folder, moved out of the way: nothing is deleted, and moving it back undoes it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import structlog

from ringrift.engine.sqlite.faults import told_in_our_words
from ringrift.engine.sqlite.files import SIDECARS
from ringrift.events.dead_letter_store import STORED
from ringrift.held_folder import make_folder, make_folders, rename_file, sync_folder
from ringrift.learning.high_water import mark_path
from ringrift.settings import Settings

FOLDER = "set_aside"
_WITH_SIDECARS = ("", *SIDECARS)
# What a run makes in its data folder. Logs, secrets and whatever else is there stay.
_MADE = ("blobs", "models", "jobs", "quarantine", "transfer", "tuning", "records", "curriculum_weights.json")

log = structlog.get_logger()


def set_state_aside(settings: Settings, now_s: float) -> Path | None:
    """Move the database and the mark into a folder of their own; return it, None if there was nothing."""
    databases = [
        settings.coordinator_db.with_name(settings.coordinator_db.name + each) for each in _WITH_SIDECARS
    ]
    return _move(settings.data_dir, [*databases, mark_path(settings.data_dir)], now_s)


def set_run_aside(settings: Settings, now_s: float) -> Path | None:
    """Move everything that a run made, so that the next one begins; the caller keeps other processes out."""
    databases = [
        database.with_name(database.name + each)
        for database in (settings.coordinator_db, settings.dlq_path)
        for each in _WITH_SIDECARS
    ]
    databases.append(settings.dlq_path.with_name(settings.dlq_path.name + STORED))
    made = [settings.data_dir / name for name in _MADE]
    return _move(settings.data_dir, [*databases, mark_path(settings.data_dir), *made], now_s)


def _move(data_dir: Path, paths: Iterable[Path], now_s: float) -> Path | None:
    there = [path for path in paths if path.exists()]
    if not there:
        return None
    with told_in_our_words(data_dir):
        target = _fresh_folder(data_dir / FOLDER, now_s)
        for path in there:
            inside = path.relative_to(data_dir) if path.is_relative_to(data_dir) else Path(path.name)
            make_folders((target / inside).parent)
            rename_file(path, target / inside)
        sync_folder(target)
        sync_folder(data_dir)
    log.warning("run.set_aside", folder=str(target), entries=len(there))
    return target


def _fresh_folder(parent: Path, now_s: float) -> Path:
    with suppress(FileExistsError):
        make_folder(parent, 0o700)
    stamp, number = f"{datetime.fromtimestamp(now_s, tz=UTC):%Y%m%dT%H%M%SZ}", 1
    while True:
        folder = parent / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            make_folder(folder, 0o700)
        except FileExistsError:
            number += 1
        else:
            return folder
