"""The daemons of backup and import. They look at the manifest and the archives; events make them look soon.

S3_BACKUP sends champions, S3_NODE_SYNC everything this node has (and brings back what it lost),
S3_CONSOLIDATION joins what the nodes put there, EXTERNAL_DRIVE_SYNC fills drives, OWC_IMPORT reads them.
S3_NODE_SYNC and EXTERNAL_DRIVE_SYNC also send the state of the run: at every promotion, and every ten
minutes in which anything happened.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Unpack

import structlog

from ringrift.data.artifacts import Artifact
from ringrift.data.backup.run_states import leading_models
from ringrift.data.backup.service import (
    ArchiveBackup,
    BackupReport,
    BackupRules,
    LastState,
    archives,
    plan_import,
    state_due,
    the_archive,
)
from ringrift.data.config import DataNode
from ringrift.data.manifest.store import CopyView, games_in
from ringrift.data.plane import DaemonParts, DataPlane, Failures, WakingDaemon, copy_artifacts, daemon_factory
from ringrift.data.protection.distribution import digest_in
from ringrift.data.protection.retention import read_champions
from ringrift.errors import ConfigError, Unavailable
from ringrift.events.event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.health.run_status import name_run
from ringrift.runtime import first_of
from ringrift.status import HealthCheckResult

__all__ = [
    "ArchiveBackup",
    "ArchiveImportDaemon",
    "BackupReport",
    "BackupRules",
    "ConsolidationOfArchives",
    "DriveBackupDaemon",
    "NodeBackupDaemon",
    "S3BackupDaemon",
    "archives",
    "create_archive_backup",
    "create_archive_import",
    "the_archive",
]

log = structlog.get_logger()

COPY_S = 3_600.0
_PROMOTIONS_MAX = 100


class ArchiveDaemon(WakingDaemon):
    """Looks after the archives of one sort. What it does with one of them is `_serve`."""

    capability: ClassVar[str] = "archive_backup"
    daemon: ClassVar[str]
    interval_s: ClassVar[float]
    target: ClassVar[str] = "s3"
    keeps_state: ClassVar[bool] = False  # also sends the state of the run

    def __init__(self, *, rules: BackupRules | None = None, **parts: Unpack[DaemonParts]) -> None:
        super().__init__(self.daemon, interval_s=self.interval_s, **parts)
        self.rules = rules or BackupRules()
        self.failures: dict[str, Failures[str]] = {}  # by archive
        self.waiting: dict[str, str] = {}  # archives that do not answer, and why
        self.lacking: dict[str, int] = {}  # files that an archive still lacks
        self.damaged: dict[str, dict[str, str]] = {}  # by archive: files that lack parts there
        self.restored = 0  # files that this node had lost
        self._promoted: dict[str, None] = {}  # digests heard of, in order
        self._first_promotion_s = 0.0
        self._backups: dict[str, ArchiveBackup] = {}
        self._last_states: dict[str, LastState] = {}  # by archive
        self._files_too = True  # else a cycle only looks whether a state is due

    @abstractmethod
    async def _serve(self, backup: ArchiveBackup) -> None: ...

    async def _run_cycle(self) -> None:
        plane = await self._opened()
        for archive in archives(plane.nodes):
            if not _is_target(archive, self.target):
                continue
            backup = self._backup(plane, archive)
            try:
                if self._files_too:
                    await self._serve(backup)
                if self.keeps_state:
                    await self._keep_state(backup)
            except Unavailable as error:
                # An archive that is away is waited for; what it lacks is found again next time.
                self.waiting[archive.name] = error.what
                log.warning("backup.archive_away", archive=archive.name, error=error.what)
            else:
                self.waiting.pop(archive.name, None)

    async def _rest(self) -> None:
        """Wait for the next round over the files, and look meanwhile whether a state is due."""
        begun_s, look_s = self._runtime.monotonic_s(), self.rules.state_look_s
        while self.keeps_state and self._runtime.monotonic_s() - begun_s + look_s < self._cycle_interval:
            await first_of(self._runtime.sleep(look_s), self._woken.wait())
            if self._woken.is_set():
                break
            self._files_too = False
            try:
                await self._cycle()
            finally:
                self._files_too = True
        await super()._rest()

    async def _keep_state(self, backup: ArchiveBackup) -> None:
        """Send the state if one is due. Which one the archive has is asked once, then remembered."""
        plane, name = backup.plane, backup.archive.name
        if (last := self._last_states.get(name)) is None:
            run = await name_run(plane.kv, plane.runtime.new_id())
            states = await backup.states.all(run=run, node=plane.this.name)
            if states:
                last = LastState(at_s=states[-1].at_s, champions=states[-1].champions)
        champions, now_s = await leading_models(plane.kv), self._runtime.now_s()
        if reason := state_due(last, champions, now_s=now_s, rules=self.rules):
            state = await backup.back_up_state(reason)
            at_s, champions = (now_s, champions) if state is None else (state.at_s, state.champions)
            last = LastState(at_s=at_s, champions=champions)
        if last is not None:
            self._last_states[name] = last

    def _backup(self, plane: DataPlane, archive: DataNode) -> ArchiveBackup:
        known = self._backups.get(archive.name)
        if known is None or known.archive != archive or known.plane is not plane:
            known = self._backups[archive.name] = ArchiveBackup(plane, archive, rules=self.rules)
            self.failures[archive.name] = Failures(self.rules)
        return known

    async def _send_lacking(
        self, backup: ArchiveBackup, *, only: Collection[str] | None = None
    ) -> BackupReport:
        """Send what the archive lacks and this node has; remember what failed until it succeeded."""
        failures, now_s = self.failures[backup.archive.name], self._runtime.monotonic_s()
        every = await backup.lacking(only=only)
        resting = failures.resting(now_s)
        due = [card for card in every if card.digest not in resting]
        failures.keep_only({card.digest for card in every})
        report = await self._sent(backup, due, failures)
        failures.succeeded(card.digest for card in due if card.digest not in report.failed)
        for digest, why in report.failed.items():
            failures.failed(digest, why, now_s=self._runtime.monotonic_s())
        self.lacking[backup.archive.name] = len(every) - len(due) + len(report.failed)
        return report

    async def _sent(
        self, backup: ArchiveBackup, due: list[Artifact], failures: Failures[str]
    ) -> BackupReport:
        if not due:
            return BackupReport(archive=backup.archive.name)
        try:
            return await backup.send(due)
        except Unavailable as error:
            for card in due:
                failures.failed(card.digest, error.what, now_s=self._runtime.monotonic_s())
            self.lacking[backup.archive.name] = len(due)
            raise

    def health_check(self) -> HealthCheckResult:
        alarming = {name: found for name, each in self.failures.items() if (found := each.alarming())}
        details = {
            "lacking": dict(self.lacking),
            "away": dict(self.waiting),
            "failing": alarming,
            "damaged": dict(self.damaged),
            "restored": self.restored,
            "states": {name: last.at_s for name, last in self._last_states.items()},
        }
        own = super().health_check().with_details(**details)
        if own.healthy and (count := sum(map(len, (*alarming.values(), *self.damaged.values())))):
            return HealthCheckResult.degraded(f"{count} files fail at an archive", **own.details)
        return own


class S3BackupDaemon(ArchiveDaemon):
    """S3_BACKUP: champions, soon after their promotion."""

    daemon, interval_s = "s3_backup", 30.0
    emits: ClassVar[tuple[str, ...]] = ("S3_BACKUP_COMPLETED",)

    def _get_event_subscriptions(self) -> Mapping[Any, Callback]:
        return {"MODEL_PROMOTED": self._on_promoted}

    async def _on_promoted(self, event: RouterEvent) -> None:
        if not self._promoted:
            self._first_promotion_s = self._runtime.monotonic_s()
        if (digest := digest_in(event.payload)) is not None and len(self._promoted) < _PROMOTIONS_MAX:
            self._promoted[digest] = None
        if len(self._promoted) >= self.rules.gather_max:
            self.wake()

    async def _serve(self, backup: ArchiveBackup) -> None:
        waited_s = self._runtime.monotonic_s() - self._first_promotion_s
        if 0 < len(self._promoted) < self.rules.gather_max and waited_s < self.rules.gather_s:
            return
        promoted, begun_s = list(self._promoted), self._runtime.monotonic_s()
        champions = await read_champions(backup.plane.kv)
        report = await self._send_lacking(backup, only={*champions, *promoted})
        for digest in promoted:
            if digest not in report.failed:
                self._promoted.pop(digest, None)
        if report.files:
            await self.router.publish(
                "S3_BACKUP_COMPLETED",
                {
                    "bucket": backup.index.objects.place,
                    "uploaded_count": report.files,
                    "deleted_count": 0,
                    "duration_seconds": self._runtime.monotonic_s() - begun_s,
                    "promotions": promoted,
                },
                self.name,
            )


class NodeBackupDaemon(ArchiveDaemon):
    """S3_NODE_SYNC: all that this node has, and back what it lost."""

    daemon, interval_s, keeps_state = "s3_node_sync", 3_600.0, True
    woken_by: ClassVar[tuple[str, ...]] = ("SELFPLAY_COMPLETE", "TRAINING_COMPLETED", "MODEL_PROMOTED")

    async def _serve(self, backup: ArchiveBackup) -> None:
        await self._send_lacking(backup)
        await backup.push_inventory()
        inventory = await backup.index.inventory(backup.plane.this.name)
        if inventory is not None and (lost := await backup.missing_here(inventory.digests)):
            report = await backup.restore(lost)
            self.restored += report.files
        await backup.reverify()


class ConsolidationOfArchives(ArchiveDaemon):
    """S3_CONSOLIDATION: one manifest of what all nodes put into a bucket."""

    daemon, interval_s = "s3_consolidation", 3_600.0

    async def _serve(self, backup: ArchiveBackup) -> None:
        self.damaged[backup.archive.name] = dict((await backup.consolidate()).failed)


class DriveBackupDaemon(ArchiveDaemon):
    """EXTERNAL_DRIVE_SYNC: everything the cluster has, on every drive that is plugged in."""

    daemon, interval_s, target, keeps_state = "external_drive_sync", 1_800.0, "drive", True
    emits: ClassVar[tuple[str, ...]] = ("DATA_BACKUP_COMPLETED",)
    woken_by: ClassVar[tuple[str, ...]] = ("MODEL_PROMOTED",)

    async def _serve(self, backup: ArchiveBackup) -> None:
        await backup.index.objects.ready(to_write=True)
        own = await self._send_lacking(backup)
        files, size = await self._from_others(backup)
        await backup.push_inventory()
        await backup.reverify()
        if own.files + files:
            await self.router.publish(
                "DATA_BACKUP_COMPLETED",
                {
                    "data_type": "all",
                    "storage_path": backup.index.objects.place,
                    "total_files": own.files + files,
                    "total_bytes": own.bytes + size,
                    "drives_succeeded": 1,
                },
                self.name,
            )

    async def _from_others(self, backup: ArchiveBackup) -> tuple[int, int]:
        """Bring what only other nodes have through this one, a batch per node and round."""
        plane = backup.plane
        others = {node.name for node in plane.nodes.others()} - {backup.archive.name}
        lacking = await backup.lacking(holders=others)
        copies = (await plane.view()).receipts
        view = CopyView(nodes=plane.nodes, now_s=self._runtime.now_s())
        by_source: dict[str, list[Artifact]] = {}
        for card in lacking:
            held = copies.get(card.digest, ())  # the last copy may have gone meanwhile
            sources = [name for name in view.of(held).sources if name in others]
            if sources:
                by_source.setdefault(sources[0], []).append(card)
        files = size = 0
        for source, cards in by_source.items():
            batch = cards[: self.rules.batch_files]
            try:
                moved = await copy_artifacts(
                    plane, batch, source=source, target=backup.archive.name, priority="low", timeout_s=COPY_S
                )
            except Unavailable as error:
                log.warning("backup.source_away", node=source, error=error.what)
                continue
            here = moved.arrived
            files += len(here)
            size += sum(card.size for card in batch if card.digest in here)
        return files, size


class ArchiveImportDaemon(ArchiveDaemon):
    """OWC_IMPORT: archived games for configs that have too few here."""

    capability: ClassVar[str] = "archive_import"
    daemon, interval_s, target = "owc_import", 3_600.0, "drive"
    emits: ClassVar[tuple[str, ...]] = ("NEW_GAMES_AVAILABLE", "DATA_SYNC_COMPLETED")

    async def _serve(self, backup: ArchiveBackup) -> None:
        plane, this = backup.plane, backup.plane.this.name
        archived = {card.artifact.digest: card for card in await backup.archived()}
        held = {card.digest: card for card in (await plane.view()).held_by(this)}
        tombstones = await plane.tombstones()
        chosen = plan_import(
            [card.artifact for card in archived.values()],
            held,
            games_wanted=self.rules.games_wanted,
            given_up=[digest for digest, each in tombstones.items() if this in each.nodes],
        )
        for config, cards in chosen.items():
            begun_s = self._runtime.monotonic_s()
            report = await backup.restore([archived[card.digest] for card in cards])
            games_before = games_in(card for card in held.values() if card.config == config)
            if report.files:
                await self._tell(plane, config, report, games_before, self._runtime.monotonic_s() - begun_s)

    async def _tell(
        self, plane: DataPlane, config: str, report: BackupReport, games_before: int, seconds: float
    ) -> None:
        about = {"config_key": config, "node_id": plane.this.name}
        new = {**about, "new_games": report.games, "total_games": games_before + report.games}
        await self.router.publish("NEW_GAMES_AVAILABLE", new, self.name)
        synced = {
            **about,
            "sync_type": "archive_import",
            "games_synced": report.games,
            "files_synced": report.files,
            "bytes_transferred": report.bytes,
            "duration_seconds": seconds,
        }
        await self.router.publish("DATA_SYNC_COMPLETED", synced, self.name)


def _is_target(archive: DataNode, target: str) -> bool:
    return bool(archive.s3_url) if target == "s3" else bool(archive.drive_path)


# The daemon that each row of the daemon table names.


_BY_TARGET_AND_SCOPE: dict[tuple[str, str], type[ArchiveDaemon]] = {
    ("s3", "models"): S3BackupDaemon,
    ("s3", "node"): NodeBackupDaemon,
    ("s3", "consolidated"): ConsolidationOfArchives,
    ("drive", ""): DriveBackupDaemon,
}


def _daemon_for(settings: Mapping[str, str]) -> type[ArchiveDaemon]:
    """The daemon for the target and scope that its row of the daemon table names."""
    wanted = (settings.get("target", "s3"), settings.get("scope", ""))
    if (kind := _BY_TARGET_AND_SCOPE.get(wanted)) is None:
        raise ConfigError(f"no backup daemon has target {wanted[0]!r} and scope {wanted[1]!r}")
    return kind


create_archive_backup = daemon_factory(_daemon_for)
create_archive_import = daemon_factory(lambda _: ArchiveImportDaemon)
