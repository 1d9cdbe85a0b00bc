"""DISK_SPACE_MANAGER and COORDINATOR_DISK_MANAGER: room before the disk is full.

Old checkpoints that nothing needs go while there is room, too. When there is little, first go files that hold
nothing, then local copies of artifacts that enough other nodes have verified. Artifacts go through
`data.deletion` and nothing else. On a coordinator, copies are made elsewhere first where there are too few.
From the critical level on this node takes no new files. MAINTENANCE is `resources.maintenance`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import structlog

from ringrift.data.artifacts import Artifact, ArtifactKind
from ringrift.data.capacity import DiskState, DiskStates
from ringrift.data.copies import CopyView
from ringrift.data.deletion import Deleter, DeletionRules
from ringrift.data.disk_usage import DiskUsage, disk_usage
from ringrift.data.moves import copy_artifacts
from ringrift.data.plane import DataPlane
from ringrift.data.quarantine import Quarantine
from ringrift.data.replication import ReplicationRules, plan, take_snapshot
from ringrift.data.retention import read_held
from ringrift.data.waking import WakingDaemon
from ringrift.errors import RingRiftError
from ringrift.events.routed_event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.resources.disk_files import remove, spare_files
from ringrift.resources.disk_rules import AGE_S_MIN, DiskLevel, DiskRules, worth_freeing
from ringrift.resources.maintenance import MaintenanceDaemon
from ringrift.runtime import Runtime
from ringrift.status import HealthCheckResult

__all__ = [
    "DiskLevel",
    "DiskRules",
    "DiskSpaceManagerDaemon",
    "DiskUsage",
    "Freed",
    "MaintenanceDaemon",
    "create_housekeeping_daemon",
    "disk_usage",
]

log = structlog.get_logger()

INTERVAL_S = 300.0
CHECKPOINT_S = 3_600.0  # before one goes that nothing needs
COPIES_OUT_MAX = 50  # files a cycle
NAME, COORDINATOR_NAME = "disk_space_manager", "coordinator_disk_manager"


@dataclass(frozen=True, slots=True, kw_only=True)
class Freed:
    """What one round freed."""

    files: int = 0
    bytes: int = 0


class DiskSpaceManagerDaemon(WakingDaemon):
    """Watches the disk under the data folder."""

    capability: ClassVar[str] = "housekeeping"
    emits: ClassVar[tuple[str, ...]] = ("DISK_SPACE_LOW", "DISK_CLEANUP_TRIGGERED")

    def __init__(
        self,
        *,
        copy_out: bool = False,
        plane: DataPlane | None = None,
        rules: DiskRules | None = None,
        measure: Callable[[Path], DiskUsage] = disk_usage,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        super().__init__(
            COORDINATOR_NAME if copy_out else NAME,
            interval_s=INTERVAL_S,
            plane=plane,
            router=router,
            runtime=runtime,
        )
        self.rules, self.copy_out, self._measure = rules or DiskRules(), copy_out, measure
        self.usage: DiskUsage | None = None
        self.level = DiskLevel.FINE
        self.bytes_freed = 0

    def _get_event_subscriptions(self) -> Mapping[Any, Callback]:
        return {"DISK_SPACE_LOW": self._on_low}

    def _on_low(self, event: RouterEvent) -> None:
        """Somebody else on this machine found the disk full; one manager must not wake the other for ever."""
        here = (self._plane.this.name if self._plane else "", self._runtime.hostname)
        if event.source not in (NAME, COORDINATOR_NAME) and event.payload.get("node_id") in here:
            self.wake()

    async def _run_cycle(self) -> None:
        plane = await self._opened()
        usage = await self._look(plane)
        if self.level is DiskLevel.FINE:
            await self._remove_checkpoints(plane)
            return
        begun_s = self._runtime.monotonic_s()
        await self._tell_low(plane, usage)
        freed = await self._free(plane, self.rules.to_free(usage))
        self.bytes_freed += freed.bytes
        if freed.files:
            payload = {
                "node_id": plane.this.name,
                "bytes_freed": freed.bytes,
                "cleanups_performed": freed.files,
                "duration_seconds": self._runtime.monotonic_s() - begun_s,
            }
            await self.router.publish("DISK_CLEANUP_TRIGGERED", payload, self.name)
            await self._look(plane)

    async def _look(self, plane: DataPlane) -> DiskUsage:
        usage = await asyncio.to_thread(self._measure, plane.settings.data_dir)
        self.usage, self.level = usage, self.rules.level(usage.percent)
        state = DiskState(
            node=plane.this.name,
            used_percent=usage.percent,
            free_bytes=usage.free_bytes,
            total_bytes=usage.total_bytes,
            level=self.level.name.lower(),
            writes_blocked=self.level >= DiskLevel.CRITICAL,
            at_s=plane.runtime.now_s(),
        )
        await DiskStates(plane.kv).tell(state)
        return usage

    async def _tell_low(self, plane: DataPlane, usage: DiskUsage) -> None:
        if self.level >= DiskLevel.WARNING:
            log.warning("disk.low", level=self.level.name, percent=round(usage.percent, 1))
        payload = {
            "node_id": plane.this.name,
            "usage_percent": usage.percent,
            "free_gb": usage.free_bytes / 1e9,
            "threshold": self.rules.proactive,
        }
        await self.router.publish("DISK_SPACE_LOW", payload, self.name)

    async def _remove_checkpoints(self, plane: DataPlane) -> None:
        """Remove old ones that nothing needs: each training leaves one."""
        cards = (await plane.view()).cards
        old_s = plane.runtime.now_s() - CHECKPOINT_S
        old = [each for each in cards if each.kind is ArtifactKind.CHECKPOINT and each.created_s < old_s]
        if not old:
            return
        deleter = Deleter(plane, rules=replace(DeletionRules(), age_s_min=CHECKPOINT_S))
        held = await read_held(plane, cards)
        for artifact in await self._in_order(plane, old):
            if artifact.digest not in held and (await deleter.examine(artifact)).allowed:
                await deleter.delete(artifact, why="nothing needs it any more", by=self.name)

    # --- freeing --------------------------------------------------------------------------------------

    async def _free(self, plane: DataPlane, wanted: int) -> Freed:
        freed = await self._free_spare(plane, wanted)
        if freed.bytes < wanted:
            more = await self._free_copies(plane, wanted - freed.bytes)
            freed = Freed(files=freed.files + more.files, bytes=freed.bytes + more.bytes)
        if freed.bytes < wanted and self.copy_out:
            await self._copy_out(plane)  # they may go in the next round, when their receipts are there
        return freed

    async def _free_spare(self, plane: DataPlane, wanted: int) -> Freed:
        freed, copies = Freed(), (await plane.view()).copies
        known = frozenset(digest for digest, places in copies.items() if places)
        spares = await asyncio.to_thread(
            spare_files, plane.settings, now_s=plane.runtime.wall_s(), known=known
        )
        for spare in spares:
            if freed.bytes >= wanted:
                break
            size = await asyncio.to_thread(remove, spare)
            log.info("disk.removed", path=str(spare.path), what=spare.what, bytes=size)
            freed = Freed(files=freed.files + 1, bytes=freed.bytes + size)
        return freed

    async def _free_copies(self, plane: DataPlane, wanted: int) -> Freed:
        rules = replace(DeletionRules(), age_s_min=AGE_S_MIN[self.level])
        deleter = Deleter(plane, rules=rules)
        await deleter.finish()
        freed = Freed()
        artifacts = (await plane.view()).cards
        held = await read_held(plane, artifacts)
        for artifact in await self._in_order(plane, artifacts):
            if freed.bytes >= wanted:
                break
            held_for = held.get(artifact.digest, "")
            if not (await deleter.examine(artifact, held_for=held_for)).allowed:
                continue
            done = await deleter.delete(artifact, why=self._why(), by=self.name, held_for=held_for)
            freed = Freed(files=freed.files + done.verdict.allowed, bytes=freed.bytes + done.bytes_freed)
        return freed

    async def _in_order(self, plane: DataPlane, artifacts: list[Artifact]) -> list[Artifact]:
        """What this node has, the least needed first."""
        receipts = (await plane.view()).receipts
        heirs, poor = await plane.heirs(), await Quarantine(plane).marked()
        view, now_s = CopyView(nodes=plane.nodes, now_s=plane.runtime.now_s()), plane.runtime.now_s()

        def worth(artifact: Artifact) -> float:
            return worth_freeing(
                artifact,
                copies=len(view.of(receipts.get(artifact.digest, ())).counted),
                now_s=now_s,
                inherited=artifact.digest in heirs,
                poor=artifact.digest in poor,
            )

        here = [
            each
            for each in artifacts
            if any(receipt.node == plane.this.name for receipt in receipts.get(each.digest, ()))
        ]
        return sorted(here, key=lambda each: (-worth(each), each.digest))

    async def _copy_out(self, plane: DataPlane) -> None:
        """Make copies elsewhere of what only too few have, so that ours may go."""
        enough = DeletionRules().copies_min + 1
        found = plan(await take_snapshot(plane), ReplicationRules(copies_min=enough, copies_target=enough))
        ours = [repair for repair in found.repairs if repair.source == plane.this.name]
        for repair in ours[:COPIES_OUT_MAX]:
            try:
                await copy_artifacts(
                    plane, [repair.artifact], source=repair.source, target=repair.target, priority="high"
                )
            except RingRiftError as error:
                log.warning("disk.copy_out_failed", target=repair.target, error=str(error))

    def _why(self) -> str:
        percent = self.usage.percent if self.usage else 0.0
        return f"the disk is {percent:.0f} % full"

    # --- how it is ------------------------------------------------------------------------------------

    def health_check(self) -> HealthCheckResult:
        health = super().health_check()
        if not health.healthy or self.usage is None:
            return health
        told = f"the disk is {self.usage.percent:.0f} % full"
        if self.level >= DiskLevel.CRITICAL:
            return HealthCheckResult.unhealthy(f"{told}: no new files are taken in", **health.details)
        if self.level >= DiskLevel.WARNING:
            return HealthCheckResult.degraded(told, **health.details)
        return health

    def get_status(self) -> dict[str, Any]:
        told = {"level": self.level.name.lower(), "bytes_freed": self.bytes_freed}
        percent = None if self.usage is None else self.usage.percent
        return {**super().get_status(), **told, "used_percent": percent}


def create_housekeeping_daemon(
    settings: Mapping[str, str] | None = None,
    router: UnifiedEventRouter | None = None,
    runtime: Runtime | None = None,
) -> WakingDaemon:
    """The daemon of the scope that its row of the daemon table names."""
    given = settings or {}
    if given.get("scope", "disk") != "disk":
        return MaintenanceDaemon(router=router, runtime=runtime)
    return DiskSpaceManagerDaemon(copy_out=given.get("copy_out") == "yes", router=router, runtime=runtime)
