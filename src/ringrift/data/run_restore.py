"""Bringing a run back from an archive: its state is chosen, checked and put in place last, all or nothing.

Until the very end the state lies beside the place of the engine's database under another name. Its files are
fetched into the blobs first and every one of them is hashed. A restore that broke off leaves no run behind,
only files that the next one finds; it is simply begun again.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import msgspec

from ringrift.data.archive_format import ArchiveCard
from ringrift.data.backup_index import ArchiveIndex
from ringrift.data.backup_service import ArchiveBackup, BackupReport
from ringrift.data.manifest_index import games_in
from ringrift.data.nodes import DataNode
from ringrift.data.plane import DataPlane, Transfers
from ringrift.data.run_states import (
    RunState,
    SnapshotContents,
    StateArchive,
    check_snapshot,
    read_snapshot,
    states_archived_as_files,
)
from ringrift.data.transfer.archives import is_archive, open_archive
from ringrift.engine.opening import open_engine
from ringrift.engine.ports import Engine
from ringrift.engine.sqlite.faults import told_in_our_words
from ringrift.engine.sqlite.files import SIDECARS
from ringrift.errors import ConfigError, Corrupt, RingRiftError, Unavailable
from ringrift.held_folder import sync_folder
from ringrift.private_files import make_private_folder
from ringrift.runtime import Runtime
from ringrift.settings import Settings

RESTORES = "run/restores/"
_OWNER_ONLY = 0o600
_NAMED = 5


class Restore(msgspec.Struct, frozen=True, kw_only=True):
    """The record, in the restored state itself, that it was put in place, and what it was."""

    run: str
    node: str  # whose state it was
    archive: str
    taken_s: float
    digest: str
    restored_s: float
    restored_by: str


@dataclass(slots=True)
class RestoredRun:
    """What was put in place."""

    state: RunState
    report: BackupReport
    games: int = 0
    missing: list[str] = field(default_factory=list)  # files of the run that are not here, and no node has
    moved_aside: str = ""  # where the database that was there before is now


async def archived_states(index: ArchiveIndex) -> list[RunState]:
    """All states of an archive, the oldest first, those of earlier versions among them."""
    states = await StateArchive(index.objects).all()
    old = states_archived_as_files(await index.cards())
    return sorted([*old, *states], key=lambda state: (state.at_s, state.digest))


def choose_state(
    states: Sequence[RunState], *, run: str = "", node: str = "", until_s: float | None = None
) -> RunState:
    """Return the newest state that fits; `ConfigError` tells what there is if that is not one run's."""
    fitting = [
        state
        for state in states
        if state.run.startswith(run)
        and node in ("", state.node)
        and (until_s is None or state.at_s <= until_s)
    ]
    if not fitting:
        there = f"; there are: {_told(states)}" if states else ""
        asked = "state of a run" if not (run or node or until_s) else "state of a run that fits"
        raise ConfigError(f"the archive has no {asked}{there}")
    if len({(state.run, state.node) for state in fitting}) > 1:
        raise ConfigError(
            f"the archive has the states of several runs or nodes; choose one with --node, --run or --at: "
            f"{_told(fitting)}"
        )
    return fitting[-1]


def _told(states: Sequence[RunState]) -> str:
    newest = {(state.run, state.node): state for state in states}
    return "; ".join(
        f"run {state.run or '(not named)'} of node {state.node}, {sum(state.facts.values())} facts"
        for state in newest.values()
    )


class RunRestore:
    """Puts one archived state into the data folder of *settings*."""

    def __init__(
        self,
        archive: DataNode,
        settings: Settings,
        runtime: Runtime,
        *,
        make_transfers: Callable[[DataPlane], Transfers],
        check: Callable[[Engine], Awaitable[None]],
    ) -> None:
        self.archive, self._settings, self._runtime = archive, settings, runtime
        self._make_transfers, self._check = make_transfers, check
        self.index = ArchiveIndex(open_archive(archive, runtime))
        database = settings.coordinator_db
        self._draft = database.parent / f".restoring-{database.name}" / database.name

    async def restore(self, state: RunState, *, incomplete: bool = False) -> RestoredRun:
        """Fetch, check and put in place; whatever goes wrong before the last step leaves no run here.

        `Corrupt` if the state is damaged, or (unless it may be *incomplete*) names files that are missing.
        """
        try:
            await asyncio.to_thread(self._drop_draft)
            await asyncio.to_thread(make_private_folder, self._draft.parent)
            found = await self._fetch_state(state)
            cards = {card.artifact.digest: card for card in await self.index.cards()}
            firm = found.held.union(found.champions.values()).difference(state.lost)
            if (lacking := sorted(firm - cards.keys())) and not incomplete:
                raise self._lacks_files(lacking)
            restored = await self._fill(state, found, cards)
            if (lacking := sorted(firm.intersection(restored.missing))) and not incomplete:
                raise self._lacks_files(lacking)
            restored.moved_aside = await asyncio.to_thread(self._put_in_place)
        except RingRiftError:
            await asyncio.to_thread(self._drop_draft)
            raise
        return restored

    async def _fetch_state(self, state: RunState) -> SnapshotContents:
        await StateArchive(self.index.objects).fetch(state, self._draft)

        def examine() -> SnapshotContents:
            check_snapshot(self._draft)
            found = read_snapshot(self._draft, state.node)
            with told_in_our_words(self._draft):
                self._draft.chmod(_OWNER_ONLY)
                with closing(sqlite3.connect(self._draft, isolation_level=None)) as db:
                    db.execute("PRAGMA journal_mode = WAL")
            return found

        return await asyncio.to_thread(examine)

    async def _fill(
        self, state: RunState, found: SnapshotContents, cards: dict[str, ArchiveCard]
    ) -> RestoredRun:
        """Bring the files, and have the state say who has them now."""
        settings = replace(self._settings, coordinator_db=self._draft)
        engine = await open_engine(settings, self._runtime)
        plane = DataPlane(engine, settings, self._runtime, make_transfers=self._make_transfers)
        try:
            await self._check(engine)
            others = [node for node in plane.nodes.others() if node.name != state.node]
            asked = found.wanted([node.name for node in others])
            wanted = [card for digest, card in cards.items() if digest in asked]
            report = await ArchiveBackup(plane, self.archive).restore(wanted)
            here = set(await plane.blobs.digests())
            missing = found.without(here, [node.name for node in others if not is_archive(node)])
            for digest in found.held if plane.this.name != state.node else found.held - here:
                await plane.manifest.drop_copy(digest, state.node)
            await self._record(plane, state)
            games = games_in(card.artifact for card in wanted if card.artifact.digest in here)
        finally:
            await plane.close()
            await engine.close()
        return RestoredRun(state=state, report=report, games=games, missing=sorted(missing))

    async def _record(self, plane: DataPlane, state: RunState) -> None:
        record = Restore(
            run=state.run,
            node=state.node,
            archive=self.archive.name,
            taken_s=state.at_s,
            digest=state.digest,
            restored_s=self._runtime.now_s(),
            restored_by=plane.this.name,
        )
        await plane.kv.put(f"{RESTORES}{record.restored_s:017.6f}", msgspec.json.encode(record))

    def _put_in_place(self) -> str:
        """One rename; a database that was there is kept under another name."""
        database, aside = self._settings.coordinator_db, ""
        with told_in_our_words(database):
            with closing(sqlite3.connect(self._draft, isolation_level=None)) as db:
                busy, *_ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if busy:
                raise Unavailable(f"{self._draft} is in use", retry_after_s=5.0)
            with self._draft.open("rb") as file:
                os.fsync(file.fileno())
            if database.exists():
                kept = database.with_name(f"{database.name}.before-restore-{self._runtime.now_s():.0f}")
                for suffix in SIDECARS:
                    if (beside := database.with_name(database.name + suffix)).exists():
                        beside.replace(kept.with_name(kept.name + suffix))
                database.replace(kept)
                aside = str(kept)
            self._draft.replace(database)
            sync_folder(database.parent)
            self._drop_draft()
        return aside

    def _drop_draft(self) -> None:
        shutil.rmtree(self._draft.parent, ignore_errors=True)

    def _lacks_files(self, digests: Sequence[str]) -> Corrupt:
        named = ", ".join(digest[:12] for digest in digests[:_NAMED])
        more = f" and {len(digests) - _NAMED} more" if len(digests) > _NAMED else ""
        return Corrupt(
            self.archive.name,
            found=f"the archive does not have {len(digests)} files that the state names ({named}{more})",
            advice="Nothing was put in place. Take an earlier state (--at), bring them from another node, "
            "or go on without them (--incomplete)",
        )
