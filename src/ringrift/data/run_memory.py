"""The memory of a run, the database of its engine: out as a sealed snapshot, and into an empty folder.

Files alone do not say which games were counted and which model leads. With its memory a run goes on elsewhere
as it would after a crash at the moment of the snapshot.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from ringrift.data.artifacts import Artifact, ArtifactKind, Receipt
from ringrift.data.database_copies import seal_database
from ringrift.data.file_checks import SIDECARS
from ringrift.data.plane import DataPlane
from ringrift.engine.sqlite.faults import told_in_our_words
from ringrift.engine.sqlite.files import sync_folder

MEMORY = "run-memory.db"
_SCRATCH = "transfer/memory"
_OWNER_ONLY = 0o600


async def seal_memory(plane: DataPlane) -> Artifact:
    """Take a snapshot of the engine's database, which may be in use, and register it as a file here."""
    now_s, settings = plane.runtime.now_s(), plane.settings
    card = await seal_database(
        plane.blobs,
        settings.coordinator_db,
        scratch=settings.data_dir / _SCRATCH,
        name=MEMORY,
        node=plane.this.name,
        now_s=now_s,
    )
    receipt = Receipt(
        digest=card.digest, node=plane.this.name, size=card.size, verified_s=now_s, verifier="snapshot"
    )
    await plane.manifest.register([card])
    await plane.manifest.add_receipts([receipt])
    return card


def newest_memory(cards: Iterable[Artifact]) -> Artifact | None:
    memories = [card for card in cards if card.kind is ArtifactKind.SNAPSHOT and card.name == MEMORY]
    return max(memories, key=lambda card: card.created_s, default=None)


def put_memory(sealed: Path, database: Path) -> None:
    """Make *sealed* the database of an engine that is closed; what was in it is gone."""
    with told_in_our_words(database):
        draft = database.with_name(f".{database.name}.restored")
        shutil.copyfile(sealed, draft)
        draft.chmod(_OWNER_ONLY)
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        drop_memory(database)
        draft.replace(database)
        sync_folder(database.parent)


def drop_memory(database: Path) -> None:
    """Remove a database whose engine is closed, and what SQLite keeps beside it."""
    for suffix in (*SIDECARS, ""):
        database.with_name(database.name + suffix).unlink(missing_ok=True)
