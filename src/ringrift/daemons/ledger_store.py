"""Where the restart ledger lives between two lives of the manager."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from ringrift.daemons.restarts import FORGIVEN_AFTER_S, RestartRecord
from ringrift.decoding import decode_as
from ringrift.engine.encoding import UNREADABLE
from ringrift.engine.lock_files import LockFile
from ringrift.held_folder import make_folders
from ringrift.private_files import replace_file
from ringrift.runtime import Runtime, system_runtime

log = structlog.get_logger()

_LOCK_STEP_S, _LOCK_STEPS = 0.01, 500
_JUST_WRITTEN_S = 60.0  # by another manager, while we waited; later than that, the clock was set back


class LedgerStore(Protocol):
    """Keeps the records by daemon name."""

    def load(self, *, now_s: float) -> dict[str, RestartRecord]:
        """Return what was kept, if it is at most a day old."""
        ...

    async def save(self, changed: Mapping[str, RestartRecord], *, now_s: float) -> None:
        """Replace these records and leave the others, which may be another manager's; `OSError` if not."""
        ...


class MemoryLedger:
    """Forgets with the process; may be handed from one manager to the next."""

    def __init__(self) -> None:
        self._records: dict[str, RestartRecord] = {}
        self._saved_s = 0.0

    def load(self, *, now_s: float) -> dict[str, RestartRecord]:
        return dict(self._records) if now_s - self._saved_s < FORGIVEN_AFTER_S else {}

    async def save(self, changed: Mapping[str, RestartRecord], *, now_s: float) -> None:
        self._records.update(changed)
        self._saved_s = now_s


class _Document(msgspec.Struct):
    timestamp: float
    counts: dict[str, int] = {}
    restart_timestamps: dict[str, list[float]] = {}
    permanently_failed: dict[str, float] = {}
    totals: dict[str, int] = {}
    errors: dict[str, str] = {}


class JsonLedger:
    """One small JSON file, replaced atomically. An unreadable file counts as empty, and says so.

    Several managers may write to it, in one process or in many: each changes only its own records.
    """

    def __init__(self, path: Path, runtime: Runtime | None = None) -> None:
        self._path, self._runtime = path, runtime or system_runtime()
        self._lock_file: LockFile | None = None
        self._turn = threading.Lock()

    def load(self, *, now_s: float) -> dict[str, RestartRecord]:
        try:
            document = decode_as(self._path.read_bytes(), _Document)
        except FileNotFoundError:
            return {}
        except (OSError, *UNREADABLE) as error:
            log.warning("daemons.ledger_unreadable", path=str(self._path), error=str(error))
            return {}
        if not -_JUST_WRITTEN_S <= now_s - document.timestamp < FORGIVEN_AFTER_S:
            return {}
        names = {*document.counts, *document.restart_timestamps, *document.permanently_failed}
        return {
            name: RestartRecord(
                in_a_row=document.counts.get(name, 0),
                recent_s=tuple(document.restart_timestamps.get(name, ())),
                failed_for_good_s=document.permanently_failed.get(name),
                total=document.totals.get(name, 0),
                last_error=document.errors.get(name, ""),
            )
            for name in names
        }

    async def save(self, changed: Mapping[str, RestartRecord], *, now_s: float) -> None:
        for _ in range(_LOCK_STEPS):
            if await asyncio.to_thread(self._merge, changed, now_s):
                return
            await self._runtime.sleep(_LOCK_STEP_S)
        raise TimeoutError(f"{self._path} is being written by another process that does not end")

    def _merge(self, changed: Mapping[str, RestartRecord], now_s: float) -> bool:
        """Read, change and write the file with others kept out; False if another has it just now."""
        with self._turn:
            if self._lock_file is None:
                make_folders(self._path.parent)
                self._lock_file = LockFile(self._path.with_suffix(".lock"))
            if not self._lock_file.try_lock():
                return False
            try:
                document = _document({**self.load(now_s=now_s), **changed}, now_s)
                replace_file(self._path, msgspec.json.encode(document))
            finally:
                self._lock_file.unlock()
        return True


def _document(records: Mapping[str, RestartRecord], now_s: float) -> _Document:
    return _Document(
        timestamp=now_s,
        counts={name: record.in_a_row for name, record in records.items()},
        restart_timestamps={name: list(record.recent_s) for name, record in records.items()},
        permanently_failed={
            name: record.failed_for_good_s
            for name, record in records.items()
            if record.failed_for_good_s is not None
        },
        totals={name: record.total for name, record in records.items()},
        errors={name: record.last_error for name, record in records.items()},
    )
