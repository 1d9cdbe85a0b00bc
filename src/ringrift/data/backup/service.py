"""Backing up to an archive, restoring from it, and reading it again now and then.

A backup sends what the archive lacks and never removes anything there. A restore ends with receipts of this
node: every byte was hashed on its way in, and what was here before is hashed, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from msgspec.structs import replace

from ringrift.data.artifacts import Artifact, ArtifactKind, Receipt, in_batches
from ringrift.data.backup.archive import ArchivedFile, ArchiveIndex, DriveObjects, merged, same_content
from ringrift.data.backup.run_states import (
    LOST_NAMED_MAX,
    RunState,
    SnapshotContents,
    StateArchive,
    read_snapshot,
    take_snapshot,
)
from ringrift.data.config import DataNode, DataNodes
from ringrift.data.manifest.catalog import Cataloger
from ringrift.data.manifest.store import games_in
from ringrift.data.plane import DataPlane
from ringrift.data.protection.records import set_damaged_aside
from ringrift.data.transfer.archive import open_archive
from ringrift.data.transfer.contract import Moved, OnProgress, Terms, nobody_looks
from ringrift.errors import ConfigError, Corrupt, Unavailable
from ringrift.files import file_sha256
from ringrift.health.run_status import name_run
from ringrift.runtime import back_off_s

# Which files an archive still lacks, and which of them go now. Nothing here deletes: an archive only grows.
#
# What is missing follows from the manifest each time anew, so a batch that failed, or an event that was lost,
# is found again at the next look.


_FIRST = (ArtifactKind.MODEL, ArtifactKind.CARD, ArtifactKind.SNAPSHOT, ArtifactKind.SAMPLES)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupRules:
    """When to begin and how to go on after a failure."""

    gather_s: float = 60.0  # promotions that follow each other go together
    gather_max: int = 5  # but so many do not wait
    retry_s: float = 30.0
    retry_s_max: float = 900.0
    alarm_after: int = 3  # failures in a row of one file
    batch_files: int = 1_000
    reverify_s: float = 21 * 86_400.0  # receipts count for 30 days
    reverify_files: int = 50  # in one round
    games_wanted: int = 500  # a config with fewer games here gets archived ones
    state_s: float = 600.0  # a state goes at least so often while anything happens, and at every promotion
    state_look_s: float = 30.0  # between two looks whether one is due

    def __post_init__(self) -> None:
        if self.gather_s < 0 or not 0 < self.retry_s <= self.retry_s_max:
            raise ConfigError("backup rules: gather_s must not be negative, and 0 < retry_s <= retry_s_max")
        if not 0 < self.state_look_s <= self.state_s:
            raise ConfigError("backup rules: 0 < state_look_s <= state_s")
        if min(self.gather_max, self.alarm_after, self.batch_files) < 1:
            raise ConfigError("backup rules: gather_max, alarm_after and batch_files must be at least 1")

    def wait_s(self, failures: int) -> float:
        return back_off_s(failures, first_s=self.retry_s, longest_s=self.retry_s_max)


def plan_backup(
    artifacts: Iterable[Artifact],
    copies: Mapping[str, Collection[Receipt]],
    *,
    archive: str,
    holders: Collection[str],
    only: Collection[str] | None = None,
    kinds: Collection[ArtifactKind] | None = None,
    resting: Collection[str] = (),
) -> list[Artifact]:
    """Return what one of *holders* has and the archive has not, models first, then by age."""
    lacking = []
    for artifact in artifacts:
        nodes = {receipt.node for receipt in copies.get(artifact.digest, ())}
        if archive in nodes or nodes.isdisjoint(holders) or artifact.digest in resting:
            continue
        if (only is None or artifact.digest in only) and (kinds is None or artifact.kind in kinds):
            lacking.append(artifact)
    return sorted(lacking, key=lambda each: (_rank(each.kind), each.created_s, each.digest))


def plan_reverification(
    copies: Mapping[str, Collection[Receipt]], *, archive: str, now_s: float, rules: BackupRules
) -> list[str]:
    """Return files of the archive that were not read for long, the longest first."""
    old = [
        (receipt.verified_s, digest)
        for digest, receipts in copies.items()
        for receipt in receipts
        if receipt.node == archive and receipt.verified_s < now_s - rules.reverify_s
    ]
    return [digest for _, digest in sorted(old)[: rules.reverify_files]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LastState:
    """The last state of this run that an archive has, or that was found to hold nothing new."""

    at_s: float
    champions: Mapping[str, str]


def state_due(
    last: LastState | None, champions: Mapping[str, str], *, now_s: float, rules: BackupRules
) -> str:
    """Return why a state is due now, from what is and not from what was heard; empty if none is."""
    if last is None:
        return "the first"
    if dict(last.champions) != dict(champions):
        return "promotion"
    if not last.at_s <= now_s < last.at_s + rules.state_s:  # a clock that was set back proves nothing
        return "time"
    return ""


def plan_import(
    archived: Iterable[Artifact],
    held: Mapping[str, Artifact],
    *,
    games_wanted: int,
    given_up: Collection[str] = (),
) -> dict[str, list[Artifact]]:
    """Return, for configs with too few games here, the newest archived games up to the wanted number."""
    games: dict[str, int] = {}
    for artifact in held.values():
        if artifact.kind is ArtifactKind.GAMES:
            games[artifact.config] = games.get(artifact.config, 0) + artifact.games
    chosen: dict[str, list[Artifact]] = {}
    for artifact in sorted(archived, key=lambda each: (-each.created_s, each.digest)):
        if artifact.kind is not ArtifactKind.GAMES or artifact.digest in held or artifact.digest in given_up:
            continue
        if games.get(artifact.config, 0) >= games_wanted:
            continue
        games[artifact.config] = games.get(artifact.config, 0) + artifact.games
        chosen.setdefault(artifact.config, []).append(artifact)
    return chosen


def _rank(kind: ArtifactKind) -> int:
    return _FIRST.index(kind) if kind in _FIRST else len(_FIRST)


# Carrying it out.


log = structlog.get_logger()

PART = "backup"
_REREAD = "read again"
_SCRATCH = "transfer/states"


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What one round brought about, from receipts."""

    archive: str
    files: int = 0  # that are new there, or here after a restore
    bytes: int = 0  # of those files
    already: int = 0
    failed: Mapping[str, str] = field(default_factory=dict)  # digest: why
    games: int = 0  # in shards; those that samples and reports were made of are the same ones

    @classmethod
    def of(cls, archive: str, moved: Moved, cards: Iterable[Artifact]) -> BackupReport:
        now = {receipt.digest for receipt in moved.receipts}
        return cls(
            archive=archive,
            files=len(moved.receipts),
            bytes=sum(receipt.size for receipt in moved.receipts),
            already=len(moved.already_there),
            failed=dict(moved.failed),
            games=games_in(card for card in cards if card.digest in now),
        )

    def __add__(self, other: BackupReport) -> BackupReport:
        return BackupReport(
            archive=self.archive,
            files=self.files + other.files,
            bytes=self.bytes + other.bytes,
            already=self.already + other.already,
            failed={**self.failed, **other.failed},
            games=self.games + other.games,
        )


def archives(nodes: DataNodes) -> tuple[DataNode, ...]:
    """The archive nodes of the config file."""
    return tuple(node for node in nodes.all() if node.is_archive and node.active)


def the_archive(nodes: DataNodes, name: str = "") -> DataNode:
    """Return the archive of that name, or the only one; `ConfigError` otherwise."""
    known = archives(nodes)
    if not known:
        raise ConfigError("no archive is configured: give a node of ringrift.toml an s3_url or a drive_path")
    found = [node for node in known if node.name == name] if name else list(known)
    if len(found) != 1:
        names = ", ".join(node.name for node in known)
        raise ConfigError(
            f"no archive is called {name!r}; there are: {names}" if name else f"which archive? {names}"
        )
    return found[0]


class ArchiveBackup:
    """One archive and this node."""

    def __init__(self, plane: DataPlane, archive: DataNode, *, rules: BackupRules | None = None) -> None:
        self.plane, self.archive, self.rules = plane, archive, rules or BackupRules()
        self.index = ArchiveIndex(open_archive(archive, plane.runtime))
        self.states = StateArchive(self.index.objects)

    async def prepare(self) -> bool:
        """Make an empty drive an archive; False if it is one, or needs no preparation."""
        objects = self.index.objects
        return await objects.prepare() if isinstance(objects, DriveObjects) else False

    async def lacking(
        self,
        *,
        only: Collection[str] | None = None,
        kinds: Collection[ArtifactKind] | None = None,
        holders: Collection[str] | None = None,
        resting: Collection[str] = (),
    ) -> list[Artifact]:
        """What the archive lacks of this node's files, or of those of *holders*."""
        manifest = await self.plane.view()
        return plan_backup(
            manifest.cards,
            manifest.receipts,
            archive=self.archive.name,
            holders=(self.plane.this.name,) if holders is None else holders,
            only=only,
            kinds=kinds,
            resting=resting,
        )

    async def send(
        self, artifacts: Sequence[Artifact], *, priority: str = "low", on_progress: OnProgress = nobody_looks
    ) -> BackupReport:
        """Send files of this node; what failed is named, and lacking again next time."""
        moved, terms = Moved(), Terms(on_progress=on_progress)
        for batch in in_batches(artifacts, files_max=self.rules.batch_files):
            moved += await self.plane.transfers.send(self.archive, batch, priority=priority, terms=terms)
        report = BackupReport.of(self.archive.name, moved, artifacts)
        for digest, why in report.failed.items():
            log.error("backup.file_failed", archive=self.archive.name, digest=digest, error=why)
        if report.files or report.failed:
            await self._note("backed up", report)
        return report

    # --- the state of the run -------------------------------------------------------------------------

    async def back_up_state(
        self, reason: str, *, even_if_same: bool = False, sent: list[BackupReport] | None = None
    ) -> RunState | None:
        """Put the engine's state into the archive, after every file that it names; None if nothing changed.

        What went there before it is appended to *sent*.
        `Unavailable` if a file that is here did not get there: the state waits for it.
        """
        plane, settings = self.plane, self.plane.settings
        await self.index.objects.ready(to_write=True)
        await Cataloger(plane).catalog()
        await Cataloger(plane).catalog_job_records()
        identity = await name_run(plane.kv, plane.runtime.new_id())
        scratch, at_s = settings.data_dir / _SCRATCH, plane.runtime.now_s()
        snapshot = await asyncio.to_thread(take_snapshot, settings.coordinator_db, scratch)
        try:
            found = await asyncio.to_thread(read_snapshot, snapshot, plane.this.name)
            before = await self.states.all(run=identity, node=plane.this.name)
            if before and before[-1].content == found.content and not even_if_same:
                return None
            lost, report = await self._send_named(found)
            if sent is not None:
                sent.append(report)
            digest, size = await asyncio.to_thread(file_sha256, snapshot), snapshot.stat().st_size
            here = found.named.intersection(await plane.blobs.digests())
            state = RunState(
                run=identity,
                node=plane.this.name,
                at_s=at_s,
                digest=digest,
                size=size,
                parts=(),
                reason=reason,
                schema=found.schema,
                champions=found.champions,
                facts=found.facts,
                files=len(here),
                games=games_in(card for card in (await plane.view()).cards if card.digest in here),
                content=found.content,
                lost=tuple(lost[:LOST_NAMED_MAX]),
            )
            state = await self.states.put(snapshot, state, scratch=scratch)
        finally:
            await asyncio.to_thread(snapshot.unlink, missing_ok=True)
        thinned = await self.states.thin(identity, plane.this.name, now_s=plane.runtime.now_s())
        log.info("backup.state", archive=self.archive.name, run=state.run, reason=reason, thinned=thinned)
        return state

    async def _send_named(self, found: SnapshotContents) -> tuple[list[str], BackupReport]:
        """Send what the state names and the archive lacks; return what neither of us has, and what went.

        The archive itself is asked, not what the manifest believes of it.
        """
        plane, there = self.plane, set(await self.index.digests())
        here = sorted((found.named - there).intersection(await plane.blobs.digests()))
        others = [node.name for node in plane.nodes.others() if not node.is_archive]
        lost = sorted(found.without(there.union(here), others))
        cards = []
        for digest in here:
            await plane.manifest.drop_copy(digest, self.archive.name)
            card = await plane.manifest.artifact(digest)
            size = await plane.blobs.size(digest) or 0
            cards.append(card or Artifact(digest=digest, size=size, node=plane.this.name))
        report = await self.send(cards)
        for digest, why in report.failed.items():
            try:
                await plane.blobs.verify(digest)
            except (Corrupt, KeyError):
                lost.append(digest)  # the file here is damaged or gone: no state can wait for it
            else:
                raise Unavailable(
                    f"the state waits for {digest[:12]}, which {self.archive.name} lacks: {why}",
                    retry_after_s=self.rules.retry_s,
                )
        if lost:
            log.error("backup.files_lost", archive=self.archive.name, files=len(lost), first=lost[0])
        return lost, report

    # --- back -----------------------------------------------------------------------------------------

    async def archived(self) -> list[ArchivedFile]:
        await self.index.objects.ready(to_write=False)
        return await self.index.cards()

    async def restore(self, cards: Sequence[ArchivedFile] | None = None) -> BackupReport:
        """Bring files of the archive here (by default all) and verify every byte, also of those here."""
        cards = await self.archived() if cards is None else cards
        absent = [card.artifact for card in cards if not await self._sound_here(card)]
        report = BackupReport(archive=self.archive.name, already=len(cards) - len(absent))
        await self._tell_cluster(cards)
        if absent:
            moved = await self.plane.transfers.fetch(self.archive, absent, priority="high")
            report += BackupReport.of(self.archive.name, moved, absent)
        await self._note("restored", report)
        return report

    async def _sound_here(self, card: ArchivedFile) -> bool:
        """Whether this node has the file with the right bytes; a damaged one is set aside."""
        digest = card.artifact.digest
        try:
            await self.plane.blobs.verify(digest)
        except KeyError:
            return False
        except Corrupt as error:
            await set_damaged_aside(self.plane, digest, f"found damaged by a restore: {error.found}")
            return False
        await self.plane.note_copy(digest, "restore")
        return True

    async def missing_here(self, digests: Collection[str]) -> list[ArchivedFile]:
        """Archived files that this node lost, not those that it gave up by decision."""
        tombstones = await self.plane.tombstones()
        this = self.plane.this.name
        lost = []
        for digest in digests:
            given_up = digest in tombstones and this in tombstones[digest].nodes
            if given_up or await self.plane.blobs.has(digest):
                continue
            if (card := await self.index.card(digest)) is not None:
                lost.append(card)
        return lost

    # --- upkeep ---------------------------------------------------------------------------------------

    async def push_inventory(self) -> int:
        """Tell the archive which of its files this node put there or has; return how many it lists."""
        receipts = (await self.plane.view()).receipts
        both = {self.archive.name, self.plane.this.name}
        held = [digest for digest, found in receipts.items() if both <= {each.node for each in found}]
        inventory = await self.index.grow_inventory(
            self.plane.this.name, held, now_s=self.plane.runtime.now_s()
        )
        return len(inventory.digests)

    async def consolidate(self) -> BackupReport:
        """Merge what all nodes put there into one manifest, and tell the cluster of it."""
        before = await self.index.manifest()
        known = set() if before is None else {card.artifact.digest for card in before.cards}
        sound, failed = [], dict[str, str]()
        for card in await self.archived():
            if card.artifact.digest not in known and (lacks := await self.index.lacks_parts(card)):
                failed[card.artifact.digest] = f"the archive lacks {lacks[0]}"
                log.error("backup.archive_lacks_parts", archive=self.archive.name, parts=lacks)
                continue
            sound.append(card)
        after = merged(before, sound, await self.index.inventories(), now_s=self.plane.runtime.now_s())
        if not same_content(before, after):
            await self.index.write_manifest(after)
        await self._tell_cluster(sound)
        new = len(sound) - len(known)
        return BackupReport(archive=self.archive.name, files=new, already=len(known), failed=failed)

    async def _tell_cluster(self, cards: Sequence[ArchivedFile]) -> None:
        manifest = self.plane.manifest
        received = (await self.plane.view()).receipts_at(self.archive.name)
        new = [card for card in cards if card.artifact.digest not in received]
        await manifest.register([card.artifact for card in new])
        await manifest.add_receipts([card.receipt(self.archive.name, card.verified_by) for card in new])

    async def reverify(self, digests: Collection[str] | None = None) -> BackupReport:
        """Read archived files again, by default those not read for long; mend them from our copies."""
        manifest, now_s = self.plane.manifest, self.plane.runtime.now_s()
        if digests is None:
            copies = (await self.plane.view()).receipts
            digests = plan_reverification(copies, archive=self.archive.name, now_s=now_s, rules=self.rules)
        sound = mended = 0
        failed: dict[str, str] = {}
        for digest in digests:
            card = await self.index.card(digest)
            read = None if card is None else await self.index.read_back(card, await self._source(digest))
            if card is not None and read is not None and read.sound:
                receipt = card.receipt(self.archive.name, _REREAD)
                verified_s = self.plane.runtime.now_s()
                await manifest.add_receipts([replace(receipt, verified_s=verified_s)])
                sound += 1
                mended += bool(read.mended_bytes)
            else:
                why = failed[digest] = "its card is gone" if read is None else read.why
                await manifest.drop_copy(digest, self.archive.name)
                log.error("backup.archive_damaged", archive=self.archive.name, digest=digest, error=why)
        return BackupReport(archive=self.archive.name, files=mended, already=sound, failed=failed)

    async def _source(self, digest: str) -> Path | None:
        return await self.plane.blobs.path(digest)

    async def _note(self, action: str, report: BackupReport) -> None:
        await self.plane.decisions.record(
            PART,
            action,
            f"{report.files} files, {report.already} were there, {len(report.failed)} failed",
            archive=report.archive,
            bytes=report.bytes,
        )
