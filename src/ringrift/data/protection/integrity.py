"""What is on this node's disk against what the manifest says: orphans, damage, and poor data.

ORPHAN_DETECTION registers sealed files that the manifest does not know. INTEGRITY_CHECK reads every file
again in turn; one that changed is set aside, and replication brings a good copy. DATA_CLEANUP marks games
that nobody should learn from, and asks `deletion` to let go of the worst, which it does with enough copies.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Unpack

import structlog

from ringrift.data.artifacts import Artifact, ArtifactKind
from ringrift.data.manifest.catalog import take_over_arrivals
from ringrift.data.manifest.file_facts import FileFacts, read_facts
from ringrift.data.manifest.store import games_in
from ringrift.data.plane import DaemonParts, DataPlane, WakingDaemon, daemon_factory
from ringrift.data.protection.deletion import Deleter
from ringrift.data.protection.inventory import (
    Scrubbed,
    bring_back_champions,
    examine_damaged_inputs,
    look_here,
    scrub,
)
from ringrift.data.protection.records import PART, Quarantine
from ringrift.data.protection.retention import read_held
from ringrift.errors import ConfigError, Corrupt
from ringrift.files import make_folders, rename_file
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


# Sealed files of this node that the manifest does not know: they are read, and registered.


YOUNG_S = 600.0  # a file this new may still be on its way into the manifest
KNOWN_KINDS = frozenset({ArtifactKind.GAMES, ArtifactKind.SAMPLES, ArtifactKind.MODEL})
VERIFIER = "orphans"
TAKEN = "taken"
TAKEN_DIGEST_CHARS = 12  # of the digest, before the name


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphans:
    """What one look found."""

    found: tuple[str, ...] = ()
    registered: tuple[Artifact, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()  # (digest, why)

    @property
    def games(self) -> int:
        return games_in(self.registered)


async def register_orphans(plane: DataPlane, *, young_s: float = YOUNG_S) -> Orphans:
    """Register sealed files of this node that have no card or no receipt, after reading all of each."""
    await Deleter(plane).finish()  # what was being deleted is no orphan
    stones = await plane.tombstones()
    manifest = await plane.view()
    known, here = manifest.artifacts, manifest.receipts_at(plane.this.name)
    found, registered, refused = [], [], []
    for digest in await plane.blobs.digests():
        if digest in known and digest in here:
            continue
        going = digest in stones and stones[digest].is_deciding(plane.this.name)
        if going or not await _is_settled(plane, digest, young_s):
            continue
        facts = await _facts(plane, digest)
        if facts.kind not in KNOWN_KINDS and digest not in known:
            continue  # notes and results that nobody asked to keep
        found.append(digest)
        try:
            registered.append(await _register(plane, digest, facts))
        except (Corrupt, KeyError) as error:
            refused.append((digest, str(error)))
    return Orphans(found=tuple(found), registered=tuple(registered), refused=tuple(refused))


async def _is_settled(plane: DataPlane, digest: str, young_s: float) -> bool:
    path = await plane.blobs.path(digest)
    if path is None:
        return True
    try:
        changed_s = (await asyncio.to_thread(path.stat)).st_mtime
    except FileNotFoundError:
        return False
    return plane.runtime.wall_s() - changed_s >= young_s


async def _facts(plane: DataPlane, digest: str) -> FileFacts:
    path = await plane.blobs.path(digest)
    if path is None:
        return FileFacts(kind=ArtifactKind.OTHER)
    return await asyncio.to_thread(read_facts, path)


async def _register(plane: DataPlane, digest: str, facts: FileFacts) -> Artifact:
    """Raises `Corrupt` if the file is not what it seems to be."""
    now_s, path = plane.runtime.now_s(), await plane.blobs.path(digest)
    await plane.blobs.verify(digest)
    if facts.problem:
        raise Corrupt(digest, found=facts.problem, advice="Look at it with `ringrift data show`")
    made_s = now_s if path is None else (await asyncio.to_thread(path.stat)).st_mtime
    artifact = Artifact(
        digest=digest,
        size=await plane.blobs.size(digest) or 0,
        kind=facts.kind,
        name=f"orphan-{digest[:12]}",
        config=facts.config,
        node=plane.this.name,
        games=facts.games,
        rows=facts.rows,
        created_s=made_s,
    )
    await plane.manifest.register([artifact])
    await plane.note_copy(digest, VERIFIER, verified_s=now_s)
    return artifact


async def take_in_strays(plane: DataPlane, folder: Path) -> list[Path]:
    """Put sealed files that lie in *folder* into the blobs; they are registered as orphans then.

    What was taken in is moved into a folder of its own there, so that it is read once.
    """
    taken = []
    for path in await asyncio.to_thread(_sealed_files, folder):
        facts = await asyncio.to_thread(read_facts, path)
        if facts.kind in KNOWN_KINDS and not facts.problem:
            digest = await plane.blobs.put(path)
            name = f"{digest[:TAKEN_DIGEST_CHARS]}-{path.name}"
            taken.append(await asyncio.to_thread(_move, path, folder / TAKEN / name))
    return taken


def _sealed_files(folder: Path) -> list[Path]:
    """By their endings; databases that are being written have others. A link may lead anywhere: it stays."""
    endings = ("*.shard.db", "*.npz", "*.safetensors")
    found = (path for ending in endings for path in folder.rglob(ending))
    plain = (path for path in found if path.is_file() and not path.is_symlink())
    return sorted(path for path in plain if folder / TAKEN not in path.parents)


def _move(path: Path, target: Path) -> Path:
    make_folders(target.parent)
    rename_file(path, target)
    return target


log = structlog.get_logger()

ORPHANS_S, SCRUB_S, CLEANUP_S = 300.0, 300.0, 3_600.0
STRAYS = "import"  # folder of the data folder whose sealed files are taken in
PATHS_REPORTED_MAX = 20


class OrphanDetectionDaemon(WakingDaemon):
    """ORPHAN_DETECTION."""

    capability: ClassVar[str] = "data_integrity"
    emits: ClassVar[tuple[str, ...]] = ("ORPHAN_GAMES_DETECTED", "ORPHAN_GAMES_REGISTERED")
    woken_every_s: ClassVar[float] = 60.0  # it lists every file that the node has
    woken_by: ClassVar[tuple[str, ...]] = ("DATABASE_CREATED",)

    def __init__(self, **parts: Unpack[DaemonParts]) -> None:
        super().__init__("orphan_detection", interval_s=ORPHANS_S, **parts)
        self.registered = 0

    async def _run_cycle(self) -> None:
        plane = await self._opened()
        await take_in_strays(plane, plane.settings.data_dir / STRAYS)
        await take_over_arrivals(plane)  # files that come with a card are no orphans
        found = await register_orphans(plane)
        if found.found:
            await self._tell(plane, found)

    async def _tell(self, plane: DataPlane, found: Orphans) -> None:
        node = {"node_id": plane.this.name}
        paths = [f"blob:{digest}" for digest in found.found[:PATHS_REPORTED_MAX]]
        detected = {
            **node,
            "orphan_count": len(found.found),
            "orphan_paths": paths,
            "total_games": found.games,
        }
        await self.router.publish("ORPHAN_GAMES_DETECTED", detected, self.name)
        for digest, why in found.refused:
            await plane.decisions.record(PART, "not_registered", why, digest=digest)
        if not found.registered:
            return
        self.registered += len(found.registered)
        paths = [f"blob:{each.digest}" for each in found.registered[:PATHS_REPORTED_MAX]]
        registered = {"registered_count": len(found.registered), "registered_paths": paths}
        payload = {**node, **registered, "games_recovered": found.games}
        await self.router.publish("ORPHAN_GAMES_REGISTERED", payload, self.name)

    def get_status(self) -> dict[str, Any]:
        return {**super().get_status(), "registered": self.registered}


class IntegrityCheckDaemon(WakingDaemon):
    """INTEGRITY_CHECK."""

    capability: ClassVar[str] = "data_integrity"
    woken_by: ClassVar[tuple[str, ...]] = ("WORK_FAILED",)  # a worker may have found an input damaged

    def __init__(self, **parts: Unpack[DaemonParts]) -> None:
        super().__init__("integrity_check", interval_s=SCRUB_S, **parts)
        self.verified = self.bytes_read = 0
        self.damaged: list[str] = []
        self.missing: list[str] = []
        self.disk_lost = ""  # in the last cycle; what to tell

    async def _run_cycle(self) -> None:
        plane = await self._opened()
        self.damaged = [*self.damaged, *await examine_damaged_inputs(plane)][-PATHS_REPORTED_MAX:]
        here = await look_here(plane)  # every cycle: what is gone must not count for a week
        self.missing = [*self.missing, *here.missing][-PATHS_REPORTED_MAX:]
        self.damaged = [*self.damaged, *here.damaged][-PATHS_REPORTED_MAX:]
        self.disk_lost = here.message if here.disk_lost else ""
        found = await scrub(plane)
        self.verified += found.verified
        self.bytes_read += found.bytes
        self.damaged = [*self.damaged, *found.damaged][-PATHS_REPORTED_MAX:]
        self.missing = [*self.missing, *found.missing][-PATHS_REPORTED_MAX:]
        await bring_back_champions(plane)

    def health_check(self) -> HealthCheckResult:
        health = super().health_check()
        if health.healthy and self.disk_lost:
            return HealthCheckResult.unhealthy(self.disk_lost, **health.details)
        if not health.healthy or not (self.damaged or self.missing):
            return health
        message = f"{len(self.damaged)} files were damaged and {len(self.missing)} missing"
        return HealthCheckResult.degraded(message, **health.details)

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
    woken_by: ClassVar[tuple[str, ...]] = ("DATA_QUALITY_ALERT",)

    def __init__(self, *, rules: CleanupRules | None = None, **parts: Unpack[DaemonParts]) -> None:
        super().__init__("data_cleanup", interval_s=CLEANUP_S, **parts)
        self.rules = rules or CleanupRules()
        self.marked = self.deleted = 0

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


create_integrity_daemon = daemon_factory(lambda settings: _DAEMONS[settings.get("check", "orphans")])
