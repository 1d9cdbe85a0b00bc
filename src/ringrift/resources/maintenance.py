"""MAINTENANCE: logs stay small, dead letters do not pile up, databases give back what they no longer need."""

from __future__ import annotations

import asyncio
import gzip
import os
import shutil
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import structlog

from ringrift.daemons.child_process import keep_log_small
from ringrift.data.plane import WakingDaemon
from ringrift.events.dead_letter_queue import DeadLetterQueue
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.files import check_leads_there, open_file, remove_file, rename_file
from ringrift.runtime import Runtime
from ringrift.settings import Settings, get_settings

log = structlog.get_logger()

HOUR_S, DAY_S = 3_600.0, 86_400.0
LOG_BYTES_MAX = 50 << 20
DEAD_LETTER_DAYS = 30.0
VACUUM_BYTES_MAX = 500 << 20  # a larger database is not rewritten: that costs its size in writes
VACUUM_WAIT_S = 5.0


class MaintenanceDaemon(WakingDaemon):
    """Does each kind of upkeep when its time has come."""

    capability: ClassVar[str] = "housekeeping"
    emits: ClassVar[tuple[str, ...]] = ("DISK_CLEANUP_TRIGGERED",)

    def __init__(
        self,
        *,
        settings: Settings | None = None,
        purge_dead_letters: Callable[[], int] | None = None,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        super().__init__("maintenance", interval_s=HOUR_S, router=router, runtime=runtime)
        self._settings = settings or get_settings()
        self._purge = purge_dead_letters or _purge_dead_letters
        self._done_s: dict[str, float] = {}
        self.last: dict[str, str] = {}

    def _get_event_subscriptions(self) -> Mapping[Any, Callback]:
        return {"DISK_SPACE_LOW": self.wake}

    async def _run_cycle(self) -> None:
        logs = self._settings.data_dir / "logs"
        freed = await asyncio.to_thread(rotate_logs, logs)
        if self._is_due("archive", DAY_S):
            freed += await asyncio.to_thread(archive_logs, logs)
        if self._is_due("dead letters", 7 * DAY_S):
            self.last["dead letters"] = f"{await asyncio.to_thread(self._purge)} went"
        if self._is_due("vacuum", 7 * DAY_S):
            self.last["vacuum"] = await asyncio.to_thread(vacuum, self._settings.dlq_path)
        if freed:
            payload = {"node_id": self._runtime.hostname, "bytes_freed": freed, "cleanups_performed": 1}
            await self.router.publish("DISK_CLEANUP_TRIGGERED", payload, self.name)

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


def _purge_dead_letters() -> int:
    return DeadLetterQueue.get_instance().purge_old_events(DEAD_LETTER_DAYS)
