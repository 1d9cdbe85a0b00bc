"""DISK_SPACE_MANAGER and COORDINATOR_DISK_MANAGER: room before the disk is full.

Old checkpoints that nothing needs go while there is room, too. When there is little, first go files that hold
nothing, then local copies of artifacts that enough other nodes have verified. Artifacts go through
`data.deletion` and nothing else. On a coordinator, copies are made elsewhere first where there are too few.
From the critical level on this node takes no new files. MAINTENANCE keeps small what grows by itself: logs,
dead letters, databases.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import shutil
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar, Unpack

import structlog

from ringrift.daemons.child_process import keep_log_small
from ringrift.data.artifacts import Artifact, ArtifactKind
from ringrift.data.manifest.store import CopyView, DiskState, DiskStates
from ringrift.data.plane import DaemonParts, DataPlane, WakingDaemon, try_to_copy
from ringrift.data.protection.deletion import Deleter, DeletionRules
from ringrift.data.protection.integrity import TAKEN, TAKEN_DIGEST_CHARS
from ringrift.data.protection.records import Quarantine
from ringrift.data.protection.replication import ReplicationRules, plan, take_snapshot
from ringrift.data.protection.retention import read_held
from ringrift.data.transfer.receiving import FULL_PERCENT, DiskUsage, disk_usage
from ringrift.errors import ConfigError
from ringrift.events.event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.files import check_leads_there, open_file, remove_file, rename_file
from ringrift.runtime import Runtime
from ringrift.settings import Settings
from ringrift.status import HealthCheckResult

# Files that may simply go: rotated logs, caches, leftovers of dead jobs, imports that were taken in.
#
# They hold nothing that is not elsewhere. Databases, the registry of models, the work queue, sealed files and
# the quarantine are never among them.


DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spare:
    """A file that may go, and what it is."""

    path: Path
    bytes: int
    what: str


def spare_files(settings: Settings, *, now_s: float, known: Collection[str]) -> list[Spare]:
    """What may go, in the order in which it should. Blocks: call it in a thread.

    *known* are the digests of which somebody has a verified copy; an import of another one is all there is.
    """
    data = settings.data_dir
    imports = _found(data / "import" / TAKEN, ("*",), "an import that was taken in", now_s=now_s, age_s=DAY_S)
    short = {digest[:TAKEN_DIGEST_CHARS] for digest in known}
    return [
        *_found(data / "logs", ("*.log.*", "*.gz"), "an old log", now_s=now_s, age_s=DAY_S),
        *_found(data / "cache", ("*",), "a cache", now_s=now_s, age_s=3_600.0),
        *_found(data / "jobs", ("*.part",), "a leftover of a job", now_s=now_s, age_s=2 * DAY_S),
        *(spare for spare in imports if spare.path.name[:TAKEN_DIGEST_CHARS] in short),
    ]


def remove(spare: Spare) -> int:
    """Remove one; return the bytes that this freed."""
    return spare.bytes if remove_file(spare.path) else 0


def _found(
    folder: Path, patterns: tuple[str, ...], what: str, *, now_s: float, age_s: float
) -> Iterator[Spare]:
    """Oldest first."""
    files = []
    for pattern in patterns:
        for path in folder.rglob(pattern):
            try:
                seen = path.lstat()
            except FileNotFoundError:
                continue
            if path.is_file() and not path.is_symlink() and now_s - seen.st_mtime >= age_s:
                files.append((seen.st_mtime, Spare(path=path, bytes=seen.st_size, what=what)))
    yield from (spare for _, spare in sorted(files, key=lambda each: each[0]))


# How full is too full, and what may go at which level: pure rules.


class DiskLevel(IntEnum):
    """Ordered: each level includes what the ones below it do."""

    FINE = 0
    PROACTIVE = 1  # free what costs nothing, before it is urgent
    WARNING = 2  # tell everybody
    CRITICAL = 3  # no new files are taken in
    EMERGENCY = 4  # free whatever is safe to free


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskRules:
    """Levels in percent of the disk. They must rise: an emergency below critical would never be one."""

    target: float = 50.0
    proactive: float = 70.0
    warning: float = 88.0
    critical: float = FULL_PERCENT
    emergency: float = 96.0

    def __post_init__(self) -> None:
        levels = (self.target, self.proactive, self.warning, self.critical, self.emergency)
        if not all(low < high for low, high in zip((0.0, *levels), (*levels, 100.0), strict=True)):
            text = ", ".join(f"{level:g}" for level in levels)
            raise ConfigError(
                f"disk levels are {text}; they must rise from target to proactive, warning, critical and "
                "emergency, between 0 and 100"
            )

    def level(self, percent: float) -> DiskLevel:
        bars = (self.proactive, self.warning, self.critical, self.emergency)
        return DiskLevel(sum(percent >= bar for bar in bars))

    def to_free(self, usage: DiskUsage) -> int:
        """How many bytes to free: once it begins it goes down to the target, to have peace for a while."""
        if self.level(usage.percent) is DiskLevel.FINE:
            return 0
        return max(0, usage.used_bytes - int(usage.total_bytes * self.target / 100.0))


# How old a file must be before its local copy may go, if enough others exist. More fullness, less patience.
AGE_S_MIN = {
    DiskLevel.PROACTIVE: 7 * DAY_S,
    DiskLevel.WARNING: DAY_S,
    DiskLevel.CRITICAL: 3_600.0,
    DiskLevel.EMERGENCY: 600.0,
}


def worth_freeing(artifact: Artifact, *, copies: int, now_s: float, inherited: bool, poor: bool) -> float:
    """Higher goes first: unfinished games, what lives on elsewhere, poor games, old ones, many copies."""
    age_days = max(0.0, now_s - artifact.created_s) / DAY_S
    quality = 0.5 if artifact.quality is None else artifact.quality
    score = min(age_days / 30.0, 5.0) * 10.0 + (1.0 - quality) * 30.0 + 5.0 * min(copies, 5)
    spare = artifact.kind is ArtifactKind.UNFINISHED
    return score + (400.0 if spare else 0.0) + (200.0 if inherited else 0.0) + (100.0 if poor else 0.0)


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
        rules: DiskRules | None = None,
        measure: Callable[[Path], DiskUsage] = disk_usage,
        **parts: Unpack[DaemonParts],
    ) -> None:
        super().__init__(COORDINATOR_NAME if copy_out else NAME, interval_s=INTERVAL_S, **parts)
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
        manifest = await plane.view()
        receipts = manifest.receipts
        successors, poor = await plane.successors(), await Quarantine(plane).marked()
        view, now_s = CopyView(nodes=plane.nodes, now_s=plane.runtime.now_s()), plane.runtime.now_s()

        def worth(artifact: Artifact) -> float:
            return worth_freeing(
                artifact,
                copies=len(view.of(receipts.get(artifact.digest, ())).counted),
                now_s=now_s,
                inherited=artifact.digest in successors,
                poor=artifact.digest in poor,
            )

        here = [each for each in artifacts if manifest.is_at(each.digest, plane.this.name)]
        return sorted(here, key=lambda each: (-worth(each), each.digest))

    async def _copy_out(self, plane: DataPlane) -> None:
        """Make copies elsewhere of what only too few have, so that ours may go."""
        enough = DeletionRules().copies_min + 1
        found = plan(await take_snapshot(plane), ReplicationRules(copies_min=enough, copies_target=enough))
        ours = [repair for repair in found.repairs if repair.source == plane.this.name]
        for repair in ours[:COPIES_OUT_MAX]:
            errors = await try_to_copy(
                plane, [repair.artifact], source=repair.source, target=repair.target, priority="high"
            )
            for error in errors.values():
                log.warning("disk.copy_out_failed", target=repair.target, error=error)

    def _why(self) -> str:
        percent = self.usage.percent if self.usage else 0.0
        return f"the disk is {percent:.0f} % full"

    # --- how it is ------------------------------------------------------------------------------------

    def health_check(self) -> HealthCheckResult:
        health = super().health_check()
        if not health.healthy or self.usage is None:
            return health
        text = f"the disk is {self.usage.percent:.0f} % full"
        if self.level >= DiskLevel.CRITICAL:
            return HealthCheckResult.unhealthy(f"{text}: no new files are taken in", **health.details)
        if self.level >= DiskLevel.WARNING:
            return HealthCheckResult.degraded(text, **health.details)
        return health

    def get_status(self) -> dict[str, Any]:
        report = {"level": self.level.name.lower(), "bytes_freed": self.bytes_freed}
        percent = None if self.usage is None else self.usage.percent
        return {**super().get_status(), **report, "used_percent": percent}


# MAINTENANCE: logs stay small, dead letters do not pile up, databases give back what they no longer need.


HOUR_S = 3_600.0
LOG_BYTES_MAX = 50 << 20
DEAD_LETTER_DAYS = 30.0
VACUUM_BYTES_MAX = 500 << 20  # a larger database is not rewritten: that costs its size in writes
VACUUM_WAIT_S = 5.0


class UpkeepDaemon(WakingDaemon):
    """Does each kind of upkeep when its time has come."""

    capability: ClassVar[str] = "housekeeping"
    emits: ClassVar[tuple[str, ...]] = ("DISK_CLEANUP_TRIGGERED",)
    woken_by: ClassVar[tuple[str, ...]] = ("DISK_SPACE_LOW",)

    def __init__(
        self,
        *,
        settings: Settings,
        purge_dead_letters: Callable[[], int],
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        super().__init__("maintenance", interval_s=HOUR_S, router=router, runtime=runtime)
        self._settings, self._purge = settings, purge_dead_letters
        self._done_s: dict[str, float] = {}
        self.last: dict[str, str] = {}

    async def _run_cycle(self) -> None:
        logs = self._settings.data_dir / "logs"
        freed = [await asyncio.to_thread(rotate_logs, logs)]
        if self._is_due("archive", DAY_S):
            freed.append(await asyncio.to_thread(archive_logs, logs))
        if self._is_due("dead letters", 7 * DAY_S):
            self.last["dead letters"] = f"{await asyncio.to_thread(self._purge)} went"
        if self._is_due("vacuum", 7 * DAY_S):
            self.last["vacuum"] = await asyncio.to_thread(vacuum, self._settings.dlq_path)
        if done := [size for size in freed if size]:
            payload = {"bytes_freed": sum(done), "cleanups_performed": len(done)}
            where = {"node_id": self._runtime.hostname}
            await self.router.publish("DISK_CLEANUP_TRIGGERED", {**where, **payload}, self.name)

    def _is_due(self, what: str, every_s: float) -> bool:
        now_s = self._runtime.monotonic_s()
        if now_s - self._done_s.get(what, float("-inf")) < every_s:
            return False
        self._done_s[what] = now_s
        return True

    def get_status(self) -> dict[str, Any]:
        return {**super().get_status(), "last": dict(self.last)}


def rotate_logs(folder: Path, *, bytes_max: int = LOG_BYTES_MAX) -> int:
    """Cut logs that grew too long to their end; return the bytes that this freed."""
    freed = 0
    for path in folder.glob("*.log"):
        before = path.stat().st_size
        if before > bytes_max:
            keep_log_small(path, bytes_max=bytes_max)
            freed += before - bytes_max
    return freed


def archive_logs(folder: Path) -> int:
    """Compress what was cut off; return the bytes that this freed."""
    freed = 0
    for path in folder.glob("*.log.1"):
        packed = path.with_suffix(".1.gz.part")
        descriptor = open_file(packed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with path.open("rb") as source, os.fdopen(descriptor, "wb") as file:
            with gzip.GzipFile(path.name, "wb", fileobj=file) as target:
                shutil.copyfileobj(source, target)
            freed += path.stat().st_size - file.tell()
        rename_file(packed, path.with_suffix(".1.gz"))
        remove_file(path)
    return freed


def vacuum(path: Path, *, bytes_max: int = VACUUM_BYTES_MAX) -> str:
    """Have a database give back free pages; say what came of it. One that is busy is left alone."""
    if not path.exists():
        return "there is none"
    before = path.stat().st_size
    if before > bytes_max:
        return f"left as it is: {before} bytes would be written anew"
    try:
        place = f"{path.absolute().as_uri()}?mode=rw"
        with closing(sqlite3.connect(place, uri=True, timeout=VACUUM_WAIT_S, isolation_level=None)) as db:
            check_leads_there(path)
            db.execute("VACUUM")
    except sqlite3.OperationalError as error:
        return f"left for later: {error}"
    return f"from {before} to {path.stat().st_size} bytes"
