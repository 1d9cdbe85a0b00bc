"""Records of ratings and models between nodes: each node seals a snapshot of its own, and merges the others'.

A live database never leaves a node. What travels is a snapshot, taken by the database's backup API, sealed
and named by its hash like any other file; the receiver takes its records over one by one. Records that all
nodes keep in one engine (those of a run) are the same for all of them and need none of this.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import structlog

from ringrift.coordination.handler_base import HandlerBase
from ringrift.coordination.sync_base import get_data_plane, open_data_plane
from ringrift.data.artifacts import Artifact, ArtifactKind
from ringrift.data.files import seal_database
from ringrift.data.files import snapshot_database as take_snapshot
from ringrift.data.manifest.store import ManifestView
from ringrift.data.plane import DataPlane
from ringrift.data.protection.records import DeletionRecords, Successor
from ringrift.data.table_merge import Merged, RecordTable, count_records, merge_database
from ringrift.data.transactions import OperationType, TransactionLog
from ringrift.data.transfer.contract import TransferFailed, TransferRefused
from ringrift.engine.records import KvRecords
from ringrift.errors import ConfigError, RingRiftError
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.files import create_file
from ringrift.runtime import Runtime
from ringrift.status import HealthCheckResult

__all__ = [
    "DatabaseSyncManager",
    "EloSyncManager",
    "RatingRecordSync",
    "RatingSyncDaemon",
    "RecordSync",
    "RecordTable",
    "RegistryRecordSync",
    "RegistrySyncManager",
    "create_rating_sync",
    "merge_database",
    "take_snapshot",
]

log = structlog.get_logger()

INTERVAL_S = 300.0
_MERGED = "data/records/merged/"


class _MergedSnapshot(msgspec.Struct, frozen=True):
    """The last snapshot of a node whose records were taken over."""

    digest: str


@dataclass(slots=True)
class RecordSyncCounts:
    """What was done since the start."""

    rounds: int = 0
    failures: int = 0
    published: int = 0
    merged: int = 0  # snapshots
    records_added: int = 0
    records_replaced: int = 0
    last_success_s: float | None = None
    last_error: str = ""

    @property
    def success_rate(self) -> float:
        return 1.0 - self.failures / self.rounds if self.rounds else 1.0


class RecordSync:
    """Keeps one database of records the same on all nodes. Subclasses name its tables."""

    name: ClassVar[str] = ""
    tables: ClassVar[tuple[RecordTable, ...]] = ()

    def __init__(
        self,
        plane: DataPlane | None = None,
        *,
        db_path: Path | str | None = None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        """Of this process's data plane unless another is given, which opens its engine."""
        plane = plane or get_data_plane()
        self._plane, self.interval_s = plane, interval_s
        default = plane.settings.data_dir / "records" / f"{self.name}.db"
        self.db_path = default if db_path is None else Path(db_path)
        self._transactions = TransactionLog(kv=plane.kv, runtime=plane.runtime)
        self._merged = KvRecords(plane.kv, f"{_MERGED}{plane.this.name}/{self.name}/", _MergedSnapshot)
        self.counts = RecordSyncCounts()

    # --- for subclasses -------------------------------------------------------------------------------

    def _merge_databases(self, remote: Path) -> Merged:
        """Take over the records of a snapshot; runs off the event loop, when the transaction is committed."""
        return merge_database(self.db_path, remote, self.tables)

    def _update_local_stats(self, merged: Merged) -> None:
        self.counts.records_added += merged.added
        self.counts.records_replaced += merged.replaced

    # --- one round ------------------------------------------------------------------------------------

    async def sync(self) -> Merged:
        """Merge what others published, then publish what is known here. A node that fails stops no other."""
        plane, total, errors = self._plane, Merged(), []
        self.counts.rounds += 1
        await self._transactions.recover_async()  # a merge that was decided on is finished, whoever began it
        # Merged before publishing, so that the snapshot of this node holds what the others know too.
        view = await plane.view()
        for snapshot in self.newest(view):
            try:
                total += await self._take_over(view, snapshot)
            except RingRiftError as error:
                log.warning("records.merge_failed", name=self.name, node=snapshot.node, error=str(error))
                errors.append(f"{snapshot.node}: {error}")
        await self.publish()
        if errors:
            self.counts.failures += 1
            self.counts.last_error = "; ".join(errors)
        else:
            self.counts.last_success_s = plane.runtime.now_s()
        return total

    def newest(self, view: ManifestView) -> list[Artifact]:
        """The newest snapshot of each other node."""
        newest: dict[str, Artifact] = {}
        for artifact in view.of_kinds({ArtifactKind.SNAPSHOT}):
            if artifact.name == self._card_name and artifact.node != self._plane.this.name:
                # The view lists the oldest first, so the last one of a node stays.
                newest[artifact.node] = artifact
        return list(newest.values())

    async def publish(self) -> Artifact | None:
        """Seal a snapshot of the local database; nothing if there is none, or nothing new in it."""
        plane = self._plane
        if not await asyncio.to_thread(self.db_path.exists):
            return None
        now_s = plane.runtime.now_s()
        with tempfile.TemporaryDirectory(prefix="ringrift-records-") as folder:
            card = await seal_database(
                plane.blobs,
                self.db_path,
                scratch=Path(folder),
                name=self._card_name,
                node=plane.this.name,
                now_s=now_s,
            )
        digest = card.digest
        former = [
            each
            for each in (await plane.view()).held_by(plane.this.name)
            if each.name == self._card_name and each.node == plane.this.name and each.digest != digest
        ]
        # An unchanged database has the digest of the last round, and then nothing is new here.
        self.counts.published += await plane.manifest.register([card])
        await plane.note_copy(digest, "records", verified_s=now_s)
        for old in former:  # merging only adds: what an older snapshot held is in this one
            successor = Successor(
                digest=old.digest, successor=digest, reason="a newer snapshot of the same records", at_s=now_s
            )
            await DeletionRecords(plane.kv).name_successor(successor)
        return card

    async def _take_over(self, view: ManifestView, snapshot: Artifact) -> Merged:
        plane = self._plane
        before = await self._merged.get(snapshot.node)
        if before is not None and before.digest == snapshot.digest:
            return Merged()
        if not await plane.blobs.has(snapshot.digest):
            await self._fetch(view, snapshot)
        with tempfile.TemporaryDirectory(prefix="ringrift-records-") as folder:
            copy = Path(folder) / f"{self.name}.db"
            await self._lay_out(snapshot.digest, copy)
            merged = await self._merge(snapshot, copy)
        self._update_local_stats(merged)
        self.counts.merged += 1
        # Last: after a crash before this the snapshot is merged again, which changes nothing.
        await self._merged.put(snapshot.node, _MergedSnapshot(snapshot.digest))
        return merged

    async def _merge(self, snapshot: Artifact, copy: Path) -> Merged:
        """Take the records over in a transaction: all of them, also if this process dies on the way."""
        log, kind = self._transactions, f"records.{self.name}"
        metadata = {"snapshot": snapshot.digest}
        async with log.transaction(snapshot.node, self._plane.this.name, kind, metadata) as name:
            operation = await log.add_operation_async(
                name, OperationType.MERGE, self.db_path, copy, self.tables
            )
            await log.complete_operation_async(name, operation.operation_id)
        # Outside of the block, which undoes what fails in it: a commit that has begun is only ever finished.
        return await log.commit_async(name, self._merge_databases)

    async def _fetch(self, view: ManifestView, snapshot: Artifact) -> None:
        """From its own node, else from the others that hold it; `TransferFailed` if none of them sends it."""
        plane, problems = self._plane, list[str]()
        holders = dict.fromkeys((snapshot.node, *view.holders(snapshot.digest)))
        known = [name for name in holders if name in plane.nodes and name != plane.this.name]
        for source in known or [snapshot.node]:
            try:
                moved = await plane.transfers.fetch(plane.nodes[source], [snapshot], priority="low")
            except (TransferFailed, TransferRefused, ConfigError) as error:  # not StorageFull: that is here
                problems.append(str(error))
                continue
            if not (missing := moved.missing([snapshot.digest])):
                return
            problems += [f"{source}: {why}" for why in missing.values()]
        raise TransferFailed(f"the snapshot {snapshot.digest[:12]} did not come: {'; '.join(problems)}")

    async def _lay_out(self, digest: str, target: Path) -> None:
        """Copy out of the store, which is read-only and must stay so."""
        with await self._plane.blobs.open(digest) as source, create_file(target) as copy:
            while chunk := await asyncio.to_thread(source.read, 1 << 20):
                await asyncio.to_thread(copy.write, chunk)

    @property
    def _card_name(self) -> str:
        return f"records/{self.name}"

    # --- how it is ------------------------------------------------------------------------------------

    async def get_status(self) -> dict[str, Any]:
        records = await asyncio.to_thread(count_records, self.db_path, self.tables)
        return {**asdict(self.counts), "records": records, "db_path": str(self.db_path)}

    def health_check(self) -> HealthCheckResult:
        counts, now_s = self.counts, self._plane.runtime.now_s()
        details = {**asdict(counts), "success_rate": counts.success_rate}
        if counts.success_rate < 0.5:
            return HealthCheckResult.unhealthy(f"half of the rounds fail: {counts.last_error}", **details)
        if counts.last_success_s is not None and now_s - counts.last_success_s > 2 * self.interval_s:
            return HealthCheckResult.degraded("no round was complete for long", **details)
        return HealthCheckResult.ok("", **details)


class RatingRecordSync(RecordSync):
    """Matches that were played; ratings follow from them and are never copied themselves."""

    name = "ratings"
    # Without an age: a match never changes, so a known one is never replaced.
    tables = (RecordTable(table="matches", key=("match_id",)),)


class RegistryRecordSync(RecordSync):
    """What is known of models."""

    name = "registry"
    tables = (RecordTable(table="models", key=("model_id",), age="updated_at"),)


# Their names in the documents.
DatabaseSyncManager = RecordSync
EloSyncManager = RatingRecordSync
RegistrySyncManager = RegistryRecordSync


class RatingSyncDaemon(HandlerBase):
    """ELO_SYNC: merges ratings and registry now and then."""

    capability: ClassVar[str] = "rating_sync"

    def __init__(
        self,
        *,
        plane: DataPlane | None = None,
        managers: Sequence[RecordSync] | None = None,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        super().__init__("rating_sync", cycle_interval=INTERVAL_S, router=router, runtime=runtime)
        self._plane = plane
        self._managers = None if managers is None else tuple(managers)

    async def _on_start(self) -> None:
        await self._all()

    async def _run_cycle(self) -> None:
        for manager in await self._all():
            await manager.sync()

    async def _all(self) -> tuple[RecordSync, ...]:
        if self._managers is None:
            plane = self._plane or await open_data_plane()
            self._managers = (RatingRecordSync(plane), RegistryRecordSync(plane))
        return self._managers

    def health_check(self) -> HealthCheckResult:
        found = super().health_check()
        for manager in self._managers or ():
            theirs = manager.health_check()
            if not theirs.healthy or theirs.health_score < found.health_score:
                return theirs
        return found


def create_rating_sync(
    settings: Mapping[str, str] | None = None,  # noqa: ARG001 - every daemon factory is offered its row
    router: UnifiedEventRouter | None = None,
    runtime: Runtime | None = None,
) -> RatingSyncDaemon:
    return RatingSyncDaemon(router=router, runtime=runtime)
