"""What is on this node's disk against what the manifest says: orphans, damage, and poor data.

ORPHAN_DETECTION registers sealed files that the manifest does not know. INTEGRITY_CHECK reads every file
again in turn; one that changed is set aside, and replication brings a good copy. DATA_CLEANUP marks games
that nobody should learn from, and asks `deletion` to let go of the worst, which it does with enough copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import structlog

from ringrift.data.arrivals import take_over_arrivals
from ringrift.data.artifacts import Artifact, ArtifactKind
from ringrift.data.decisions import DecisionLog
from ringrift.data.deletion import Deleter
from ringrift.data.inventory import look_here
from ringrift.data.orphans import Orphans, register_orphans, take_in_strays
from ringrift.data.plane import DataPlane
from ringrift.data.quarantine import PART, Quarantine
from ringrift.data.retention import read_held
from ringrift.data.scrubbing import Scrubbed, bring_back_champions, examine_damaged_inputs, scrub
from ringrift.data.waking import WakingDaemon
from ringrift.errors import ConfigError
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.runtime import Runtime
from ringrift.status import HealthCheckResult

__all__ = [
    "CleanupRules",
    "DataCleanupDaemon",
    "IntegrityCheckDaemon",
    "OrphanDetectionDaemon",
    "Orphans",
    "Scrubbed",
    "create_integrity_daemon",
    "poor_quality",
    "register_orphans",
    "scrub",
]

log = structlog.get_logger()

ORPHANS_S, SCRUB_S, CLEANUP_S = 300.0, 300.0, 3_600.0
STRAYS = "import"  # folder of the data folder whose sealed files are taken in
PATHS_TOLD_MAX = 20


class OrphanDetectionDaemon(WakingDaemon):
    """ORPHAN_DETECTION."""

    capability: ClassVar[str] = "data_integrity"
    emits: ClassVar[tuple[str, ...]] = ("ORPHAN_GAMES_DETECTED", "ORPHAN_GAMES_REGISTERED")

    def __init__(
        self,
        *,
        plane: DataPlane | None = None,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        super().__init__(
            "orphan_detection", interval_s=ORPHANS_S, plane=plane, router=router, runtime=runtime
        )
        self.registered = 0

    def _get_event_subscriptions(self) -> Mapping[Any, Callback]:
        return {"DATABASE_CREATED": self.wake}

    async def _run_cycle(self) -> None:
        plane = await self._opened()
        await take_in_strays(plane, plane.settings.data_dir / STRAYS)
        await take_over_arrivals(plane)  # files that come with a card are no orphans
        found = await register_orphans(plane)
        if found.found:
            await self._tell(plane, found)

    async def _tell(self, plane: DataPlane, found: Orphans) -> None:
        node = {"node_id": plane.this.name}
        paths = [f"blob:{digest}" for digest in found.found[:PATHS_TOLD_MAX]]
        detected = {
            **node,
            "orphan_count": len(found.found),
            "orphan_paths": paths,
            "total_games": found.games,
        }
        await self.router.publish("ORPHAN_GAMES_DETECTED", detected, self.name)
        decisions = DecisionLog(plane.kv, plane.runtime, node=plane.this.name)
        for digest, why in found.refused:
            await decisions.record(PART, "not_registered", why, digest=digest)
        if not found.registered:
            return
        self.registered += len(found.registered)
        paths = [f"blob:{each.digest}" for each in found.registered[:PATHS_TOLD_MAX]]
        registered = {"registered_count": len(found.registered), "registered_paths": paths}
        told = {**node, **registered, "games_recovered": found.games}
        await self.router.publish("ORPHAN_GAMES_REGISTERED", told, self.name)

    def get_status(self) -> dict[str, Any]:
        return {**super().get_status(), "registered": self.registered}


class IntegrityCheckDaemon(WakingDaemon):
    """INTEGRITY_CHECK."""

    capability: ClassVar[str] = "data_integrity"

    def __init__(
        self,
        *,
        plane: DataPlane | None = None,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        super().__init__("integrity_check", interval_s=SCRUB_S, plane=plane, router=router, runtime=runtime)
        self.verified = self.bytes_read = 0
        self.damaged: list[str] = []
        self.missing: list[str] = []
        self.disk_lost = ""  # in the last cycle; what to tell

    def _get_event_subscriptions(self) -> Mapping[Any, Callback]:
        return {"WORK_FAILED": self.wake}  # a worker may have found an input damaged

    async def _run_cycle(self) -> None:
        plane = await self._opened()
        self.damaged = [*self.damaged, *await examine_damaged_inputs(plane)][-PATHS_TOLD_MAX:]
        here = await look_here(plane)  # every cycle: what is gone must not count for a week
        self.missing = [*self.missing, *here.missing][-PATHS_TOLD_MAX:]
        self.damaged = [*self.damaged, *here.damaged][-PATHS_TOLD_MAX:]
        self.disk_lost = here.told if here.disk_lost else ""
        found = await scrub(plane)
        self.verified += found.verified
        self.bytes_read += found.bytes
        self.damaged = [*self.damaged, *found.damaged][-PATHS_TOLD_MAX:]
        self.missing = [*self.missing, *found.missing][-PATHS_TOLD_MAX:]
        await bring_back_champions(plane)

    def health_check(self) -> HealthCheckResult:
        health = super().health_check()
        if health.healthy and self.disk_lost:
            return HealthCheckResult.unhealthy(self.disk_lost, **health.details)
        if not health.healthy or not (self.damaged or self.missing):
            return health
        told = f"{len(self.damaged)} files were damaged and {len(self.missing)} missing"
        return HealthCheckResult.degraded(told, **health.details)

    def get_status(self) -> dict[str, Any]:
        read = {"verified": self.verified, "bytes_read": self.bytes_read}
        return {**super().get_status(), **read, "damaged": self.damaged, "missing": self.missing}


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupRules:
    """From which quality on games are set aside, and from which they may go."""

    quarantine_below: float = 0.3
    delete_below: float = 0.1
    delete_games_min: int = 100  # fewer games say too little

    def __post_init__(self) -> None:
        if not 0 <= self.delete_below <= self.quarantine_below <= 1:
            raise ConfigError("cleanup needs 0 <= delete_below <= quarantine_below <= 1")


def poor_quality(artifact: Artifact, rules: CleanupRules) -> tuple[str, bool]:
    """Why nobody should learn from these games (empty: they may), and whether they may go altogether."""
    if artifact.kind is not ArtifactKind.GAMES or artifact.quality is None:
        return "", False  # not scored is not poor
    if artifact.quality >= rules.quarantine_below:
        return "", False
    worst = artifact.quality < rules.delete_below and artifact.games >= rules.delete_games_min
    return f"its {artifact.games} games score {artifact.quality:.2f}", worst


class DataCleanupDaemon(WakingDaemon):
    """DATA_CLEANUP."""

    capability: ClassVar[str] = "data_integrity"

    def __init__(
        self,
        *,
        plane: DataPlane | None = None,
        rules: CleanupRules | None = None,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        super().__init__("data_cleanup", interval_s=CLEANUP_S, plane=plane, router=router, runtime=runtime)
        self.rules = rules or CleanupRules()
        self.marked = self.deleted = 0

    def _get_event_subscriptions(self) -> Mapping[Any, Callback]:
        return {"DATA_QUALITY_ALERT": self.wake}

    async def _run_cycle(self) -> None:
        plane = await self._opened()
        quarantine, deleter = Quarantine(plane), Deleter(plane)
        artifacts = (await plane.view()).cards
        marked, held = await quarantine.marked(), await read_held(plane, artifacts)
        for artifact in artifacts:
            why, worst = poor_quality(artifact, self.rules)
            if why and artifact.digest not in marked:
                await quarantine.mark(artifact.digest, why)
                await deleter.decisions.record(PART, "quarantined", why, digest=artifact.digest)
                self.marked += 1
            if worst and await plane.blobs.has(artifact.digest):
                await self._let_go(deleter, artifact, why, held.get(artifact.digest, ""))

    async def _let_go(self, deleter: Deleter, artifact: Artifact, why: str, held_for: str) -> None:
        if (await deleter.examine(artifact, held_for=held_for)).allowed:
            done = await deleter.delete(artifact, why=why, by="data_cleanup", held_for=held_for)
            self.deleted += done.verdict.allowed

    def get_status(self) -> dict[str, Any]:
        return {**super().get_status(), "marked": self.marked, "deleted": self.deleted}


_DAEMONS: dict[str, type[OrphanDetectionDaemon | IntegrityCheckDaemon | DataCleanupDaemon]] = {
    "orphans": OrphanDetectionDaemon,
    "integrity": IntegrityCheckDaemon,
    "quality": DataCleanupDaemon,
}


def create_integrity_daemon(
    settings: Mapping[str, str] | None = None,
    router: UnifiedEventRouter | None = None,
    runtime: Runtime | None = None,
) -> WakingDaemon:
    """The daemon of the check that its row of the daemon table names."""
    return _DAEMONS[(settings or {}).get("check", "orphans")](router=router, runtime=runtime)
