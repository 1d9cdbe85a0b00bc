"""Every sync with every host, for a week: when it last went well, and how often it failed of late.

A failed sync is no sync: it leaves the time of the last good one as it was. Failures count for a day.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from ringrift.data.kv_records import KvRecords
from ringrift.data.sync.constants import FAILURES_S, HISTORY_MAX, HISTORY_S
from ringrift.engine.ports import KeyValue
from ringrift.runtime import Runtime

_PREFIX = "data/sync/history/"
_TRIM_EVERY = 200
_RATES = 10


class SyncRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sync with one host, to or from it."""

    host: str
    started_s: float
    completed_s: float
    success: bool
    by: str = ""  # the node that did it
    data_type: str = "all"
    files: int = 0
    games: int = 0
    bytes_transferred: int = 0
    error: str = ""

    @property
    def duration_s(self) -> float:
        return max(0.0, self.completed_s - self.started_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostHistory:
    """What the records say of one host."""

    last_success_s: float | None = None
    failures_24h: int = 0
    games_per_s: float | None = None  # mean of the last good ones that brought games
    last_error: str = ""


def judge_hosts(records: Iterable[SyncRecord], *, now_s: float) -> Mapping[str, HostHistory]:
    """Sum up records, in whatever order they come."""
    by_host: dict[str, list[SyncRecord]] = {}
    for record in sorted(records, key=lambda each: each.completed_s):
        by_host.setdefault(record.host, []).append(record)
    return {host: _judge(found, now_s) for host, found in by_host.items()}


def _judge(records: list[SyncRecord], now_s: float) -> HostHistory:
    good = [each for each in records if each.success]
    bad = [each for each in records if not each.success]
    measured = [each for each in good if each.games and each.duration_s > 0][-_RATES:]
    seconds = sum(each.duration_s for each in measured)
    return HostHistory(
        last_success_s=good[-1].completed_s if good else None,
        failures_24h=sum(now_s - each.completed_s < FAILURES_S for each in bad),
        games_per_s=sum(each.games for each in measured) / seconds if seconds else None,
        last_error=bad[-1].error if bad else "",
    )


class SyncHistory:
    """Records in the key-value port; they leave after a week, or sooner when there are very many."""

    def __init__(self, kv: KeyValue, runtime: Runtime) -> None:
        self._kv, self._runtime = kv, runtime
        self._records = KvRecords(kv, _PREFIX, SyncRecord)
        self._written = 0

    async def add(self, record: SyncRecord) -> None:
        name = f"{round(record.completed_s * 1e6):017d}-{self._runtime.new_id()}"
        await self._records.put(name, record, ttl_s=HISTORY_S)
        self._written += 1
        if self._written % _TRIM_EVERY == 0:
            entries = await self._kv.entries(_PREFIX)
            for entry in entries[: max(0, len(entries) - HISTORY_MAX)]:
                await self._kv.delete(entry.key)

    async def records(self) -> list[SyncRecord]:
        return await self._records.all()

    async def hosts(self) -> Mapping[str, HostHistory]:
        return judge_hosts(await self.records(), now_s=self._runtime.now_s())
