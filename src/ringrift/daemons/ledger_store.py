"""Where the restart ledger lives between two lives of the manager."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from ringrift.daemons.restarts import FORGIVEN_AFTER_S, RestartRecord

log = structlog.get_logger()


class LedgerStore(Protocol):
    """Keeps the records by daemon name."""

    def load(self, *, now_s: float) -> dict[str, RestartRecord]:
        """Return what was kept, if it is at most a day old."""
        ...

    async def save(self, records: Mapping[str, RestartRecord], *, now_s: float) -> None: ...


class MemoryLedger:
    """Forgets with the process; may be handed from one manager to the next."""

    def __init__(self) -> None:
        self._records: dict[str, RestartRecord] = {}
        self._saved_s = 0.0

    def load(self, *, now_s: float) -> dict[str, RestartRecord]:
        return dict(self._records) if now_s - self._saved_s < FORGIVEN_AFTER_S else {}

    async def save(self, records: Mapping[str, RestartRecord], *, now_s: float) -> None:
        self._records, self._saved_s = dict(records), now_s


class _Document(msgspec.Struct):
    timestamp: float
    counts: dict[str, int] = {}
    restart_timestamps: dict[str, list[float]] = {}
    permanently_failed: dict[str, float] = {}
    totals: dict[str, int] = {}
    errors: dict[str, str] = {}


class JsonLedger:
    """One small JSON file, replaced atomically. An unreadable file counts as empty, and says so."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self, *, now_s: float) -> dict[str, RestartRecord]:
        try:
            document = msgspec.json.decode(self._path.read_bytes(), type=_Document)
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            log.warning("daemons.ledger_unreadable", path=str(self._path), error=str(error))
            return {}
        if not 0 <= now_s - document.timestamp < FORGIVEN_AFTER_S:
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

    async def save(self, records: Mapping[str, RestartRecord], *, now_s: float) -> None:
        document = _Document(
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
        await asyncio.to_thread(self._replace, msgspec.json.encode(document))

    def _replace(self, content: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_suffix(".draft")
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._path)
