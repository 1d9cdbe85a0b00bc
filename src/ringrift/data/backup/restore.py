"""Reading an archive again: whether all of it is sound, and bringing a run back from it."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from ringrift.data.artifacts import Artifact
from ringrift.data.backup.archive import (
    CARDS,
    MANIFEST,
    NODES,
    STATES,
    ArchivedFile,
    ArchiveIndex,
    decode,
    digest_of_key,
    read_back,
)
from ringrift.data.backup.run_states import (
    RunState,
    SnapshotContents,
    StateArchive,
    check_snapshot,
    read_snapshot,
    states_archived_as_files,
)
from ringrift.data.backup.service import ArchiveBackup, BackupReport
from ringrift.data.config import DataNode
from ringrift.data.manifest.store import games_in
from ringrift.data.plane import DataPlane, Transfers
from ringrift.data.transfer.archive import open_archive
from ringrift.engine.opening import open_engine
from ringrift.engine.ports import Engine
from ringrift.engine.records import write_record
from ringrift.engine.sqlite.faults import translated_errors
from ringrift.engine.sqlite.files import SIDECARS
from ringrift.errors import ConfigError, Corrupt, RingRiftError, Unavailable
from ringrift.files import make_private_folder, sync_folder
from ringrift.runtime import Runtime
from ringrift.settings import Settings

# Every byte of every file and state, and every list. What is damaged is told with what depends on it and what
# helps. Nothing is changed unless it is to be mended.


FILES_AT_ONCE = 4
OnRead = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveDamage:
    """One thing of the archive that is damaged or missing."""

    what: str  # file, state or list
    key: str  # its object, or that of its card
    why: str
    digest: str = ""
    kind: str = ""
    config: str = ""
    games: int = 0
    put_there_by: tuple[str, ...] = ()
    needed_by: tuple[str, ...] = ()
    advice: str = ""
    mended: bool = False


@dataclass(slots=True)
class ArchiveFindings:
    """What reading all of it brought to light."""

    archive: str
    files: int = 0  # that are sound
    games: int = 0  # in those that are shards
    states: int = 0  # that are sound
    bytes: int = 0  # that were read
    sound: list[ArchivedFile] = field(default_factory=list)
    damaged: list[ArchiveDamage] = field(default_factory=list)

    @property
    def left_damaged(self) -> list[ArchiveDamage]:
        return [each for each in self.damaged if not each.mended]


class ArchiveCheck:
    """One archive, read from outside: no engine is needed. With *source* wrong parts are written anew."""

    def __init__(
        self, name: str, index: ArchiveIndex, *, source: Callable[[str], Path | None] | None = None
    ) -> None:
        self._name, self._index, self._source = name, index, source
        self._needs: dict[str, list[str]] = {}  # digest: whose newest state names it

    async def sizes(self) -> int:
        """How many bytes there are to read, as far as cards and states tell."""
        cards, _ = await self._cards()
        states = await StateArchive(self._index.objects).all()
        return sum(card.artifact.size for card in cards.values()) + sum(
            part.size for state in states for part in state.parts
        )

    async def read_all(self, on_read: OnRead) -> ArchiveFindings:
        """Read everything once."""
        await self._index.objects.ready(to_write=False)
        findings = ArchiveFindings(archive=self._name)
        await self._read_states(findings, on_read)
        cards, unreadable = await self._cards()
        findings.damaged += unreadable
        put_by = await self._inventories(findings)
        await self._read_manifest(findings, cards)
        waiting = iter(sorted(cards))

        async def lane() -> None:
            for digest in waiting:
                await self._read_file(cards[digest], put_by.get(digest, ()), findings, on_read)

        async with asyncio.TaskGroup() as lanes:
            for _ in range(FILES_AT_ONCE):
                lanes.create_task(lane())
        reported = {each.digest for each in findings.damaged}
        for digest in sorted((self._needs.keys() | put_by.keys()) - cards.keys() - reported):
            findings.damaged.append(self._missing(digest, put_by.get(digest, ())))
        findings.games = games_in(card.artifact for card in findings.sound)
        findings.damaged.sort(key=lambda each: (not each.needed_by, each.what, each.key))
        return findings

    async def _cards(self) -> tuple[dict[str, ArchivedFile], list[ArchiveDamage]]:
        cards: dict[str, ArchivedFile] = {}
        damaged = []
        for key in await self._index.objects.keys(CARDS):
            digest, content = digest_of_key(key), await self._index.objects.read(key)
            try:
                card = None if content is None else decode(key, content, ArchivedFile)
            except Corrupt as error:
                damaged.append(self._damage(key, error.found, digest=digest))
                continue
            if card is not None and card.artifact.digest != digest:
                damaged.append(self._damage(key, "it is the card of another file", digest=digest))
            elif card is not None:
                cards[digest] = card
        return cards, damaged

    async def _read_file(
        self, card: ArchivedFile, put_by: tuple[str, ...], findings: ArchiveFindings, on_read: OnRead
    ) -> None:
        artifact, last = card.artifact, 0

        async def on_progress(done: int) -> None:
            nonlocal last
            on_read(done - last)
            findings.bytes += done - last
            last = done

        source = None if self._source is None else self._source(artifact.digest)
        read = await read_back(self._index.objects, artifact.digest, card.parts, source, on_progress)
        if read.sound:
            findings.files += 1
            findings.sound.append(card)
            if not read.mended_bytes:
                return
        why = read.why or f"{read.mended_bytes} bytes were wrong"
        damage = self._damage(
            card.key, why, digest=artifact.digest, artifact=artifact, put_by=put_by, mended=read.sound
        )
        findings.damaged.append(damage)

    async def _read_states(self, findings: ArchiveFindings, on_read: OnRead) -> None:
        archive = StateArchive(self._index.objects)
        states = await archive.all()
        newest = {(state.run, state.node): state for state in states}
        listed = {state.key for state in states}
        for key in await self._index.objects.keys(STATES):
            if key.endswith("/state.json") and key not in listed:
                findings.damaged.append(self._damage(key, "it cannot be read", what="state"))
        with tempfile.TemporaryDirectory(prefix="ringrift-check-") as folder:
            for state in states:
                place = Path(folder) / "state.db"
                try:
                    await archive.fetch(state, place, on_read=on_read)
                    await asyncio.to_thread(check_snapshot, place)
                    if newest[state.run, state.node] is state:
                        await asyncio.to_thread(self._note_needs, state, place)
                except Corrupt as error:
                    findings.damaged.append(self._damage(state.key, error.found, what="state"))
                    continue
                findings.states += 1
                findings.bytes += sum(part.size for part in state.parts)

    def _note_needs(self, state: RunState, place: Path) -> None:
        found, run = read_snapshot(place, state.node), f"run {state.run} of node {state.node}"
        leading = {model: config for config, model in found.champions.items()}
        for digest in found.without((), ()) - set(state.lost):
            role = f", the champion of {leading[digest]}" if digest in leading else ""
            self._needs.setdefault(digest, []).append(run + role)

    async def _inventories(self, findings: ArchiveFindings) -> dict[str, tuple[str, ...]]:
        put_by: dict[str, tuple[str, ...]] = {}
        for key in await self._index.objects.keys(NODES):
            try:
                found = await self._index.inventory(key.removeprefix(NODES).removesuffix(".json"))
            except Corrupt as error:
                findings.damaged.append(self._damage(key, error.found, what="list"))
                continue
            for digest in () if found is None else found.digests:
                put_by[digest] = (*put_by.get(digest, ()), found.node if found else "")
        return put_by

    async def _read_manifest(self, findings: ArchiveFindings, cards: dict[str, ArchivedFile]) -> None:
        try:
            manifest = await self._index.manifest()
        except Corrupt as error:
            findings.damaged.append(self._damage(MANIFEST, error.found, what="list"))
            return
        for card in () if manifest is None else manifest.cards:
            if card.artifact.digest not in cards:
                why = "its card is missing; the manifest of the archive knows the file"
                findings.damaged.append(self._damage(card.key, why, digest=card.artifact.digest))

    def _missing(self, digest: str, put_by: tuple[str, ...]) -> ArchiveDamage:
        return self._damage(f"{CARDS}{digest}.json", "the file is missing", digest=digest, put_by=put_by)

    def _damage(
        self,
        key: str,
        why: str,
        *,
        what: str = "file",
        digest: str = "",
        artifact: Artifact | None = None,
        put_by: tuple[str, ...] = (),
        mended: bool = False,
    ) -> ArchiveDamage:
        backup = f"`ringrift data backup {self._name}`"
        by_hand = f"remove {key} by hand if it is there, then run {backup} on a node that has the file"
        mend = f"`ringrift data check {self._name} --mend` on a node that has the file writes it anew"
        advice = {
            "file": by_hand if artifact is None else mend,
            "state": f"{backup} puts a new state there; remove this one by hand",
            "list": "remove it by hand; the next backup writes it anew",
        }[what]
        return ArchiveDamage(
            what=what,
            key=key,
            why=why,
            digest=digest,
            kind="" if artifact is None else artifact.kind.value,
            config="" if artifact is None else artifact.config,
            games=0 if artifact is None else artifact.games,
            put_there_by=put_by,
            needed_by=tuple(self._needs.get(digest, ())),
            advice="" if mended else advice,
            mended=mended,
        )


# Bringing a run back from an archive: its state is chosen, checked and put in place last, all or nothing.
#
# Until the very end the state lies beside the place of the engine's database under another name. Its files
# are fetched into the blobs first and every one of them is hashed. A restore that broke off leaves no run
# behind, only files that the next one finds; it is simply begun again.


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
        there = f"; there are: {_listed(states)}" if states else ""
        asked = "state of a run" if not (run or node or until_s) else "state of a run that fits"
        raise ConfigError(f"the archive has no {asked}{there}")
    if len({(state.run, state.node) for state in fitting}) > 1:
        raise ConfigError(
            f"the archive has the states of several runs or nodes; choose one with --node, --run or --at: "
            f"{_listed(fitting)}"
        )
    return fitting[-1]


def _listed(states: Sequence[RunState]) -> str:
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
            with translated_errors(self._draft):
                self._draft.chmod(_OWNER_ONLY)
                with closing(sqlite3.connect(self._draft, isolation_level=None)) as db:
                    db.execute("PRAGMA journal_mode = WAL")
            return found

        return await asyncio.to_thread(examine)

    async def _fill(
        self, state: RunState, found: SnapshotContents, cards: dict[str, ArchivedFile]
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
            missing = found.without(here, [node.name for node in others if not node.is_archive])
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
        await write_record(plane.kv, f"{RESTORES}{record.restored_s:017.6f}", record)

    def _put_in_place(self) -> str:
        """One rename; a database that was there is kept under another name."""
        database, aside = self._settings.coordinator_db, ""
        with translated_errors(database):
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
