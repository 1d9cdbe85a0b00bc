"""Backups to buckets and drives, and the way back. See `backup_service` for what they promise."""

from __future__ import annotations

from collections.abc import Mapping

from ringrift.data.backup_daemons import (
    ArchiveDaemon,
    ArchiveImportDaemon,
    ConsolidationOfArchives,
    DriveBackupDaemon,
    NodeBackupDaemon,
    S3BackupDaemon,
)
from ringrift.data.backup_plan import BackupRules
from ringrift.data.backup_service import ArchiveBackup, BackupReport, archives, the_archive
from ringrift.errors import ConfigError
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.runtime import Runtime

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

_BY_TARGET_AND_SCOPE: dict[tuple[str, str], type[ArchiveDaemon]] = {
    ("s3", "models"): S3BackupDaemon,
    ("s3", "node"): NodeBackupDaemon,
    ("s3", "consolidated"): ConsolidationOfArchives,
    ("drive", ""): DriveBackupDaemon,
}


def create_archive_backup(
    settings: Mapping[str, str] | None = None,
    router: UnifiedEventRouter | None = None,
    runtime: Runtime | None = None,
) -> ArchiveDaemon:
    """The daemon for the target and scope that its row of the daemon table names."""
    given = settings or {}
    wanted = (given.get("target", "s3"), given.get("scope", ""))
    kind = _BY_TARGET_AND_SCOPE.get(wanted)
    if kind is None:
        raise ConfigError(f"no backup daemon has target {wanted[0]!r} and scope {wanted[1]!r}")
    return kind(router=router, runtime=runtime)


def create_archive_import(
    router: UnifiedEventRouter | None = None, runtime: Runtime | None = None
) -> ArchiveImportDaemon:
    return ArchiveImportDaemon(router=router, runtime=runtime)
