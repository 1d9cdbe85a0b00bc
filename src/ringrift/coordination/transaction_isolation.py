"""Merges of several files, all or nothing: a crash at any step leaves the old ones or the new ones.

Records of other nodes are merged, and consolidated games taken in, by such transactions. Here they stand for
code without a loop, and as a block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ringrift.data.kv_records import one_per_process
from ringrift.data.transactions import (
    MergeOperation,
    OperationType,
    TransactionLog,
    TransactionRecord,
    TransactionState,
)
from ringrift.engine.blocking import blocking
from ringrift.errors import Conflict
from ringrift.process import reset_of
from ringrift.status import HealthCheckResult

__all__ = [
    "MergeOperation",
    "OperationType",
    "TransactionIsolation",
    "TransactionRecord",
    "TransactionState",
    "begin_merge_transaction",
    "get_transaction_isolation",
    "merge_transaction",
    "reset_transaction_isolation",
]

DAY_S = 86_400.0
# Longer than any one step may take (`WORK_S`): nobody works on such a transaction any more.
STUCK_S = 3_600.0
FAILURES_MAX = 10
WORK_S = 600.0


class TransactionIsolation(TransactionLog):
    """The transactions of one process. The plain calls block; inside a loop use those on `_async`."""

    begin_transaction = blocking(TransactionLog.begin_async)
    add_operation = blocking(TransactionLog.add_operation_async, timeout_s=WORK_S)
    complete_operation = blocking(TransactionLog.complete_operation_async, timeout_s=WORK_S)
    prepare_commit = blocking(TransactionLog.prepare_async, timeout_s=WORK_S)
    commit = blocking(TransactionLog.commit_async, timeout_s=WORK_S)
    rollback = blocking(TransactionLog.rollback_async, timeout_s=WORK_S)
    recover = blocking(TransactionLog.recover_async, timeout_s=WORK_S)
    get_transaction = blocking(TransactionLog.record_async)
    _all_records = blocking(TransactionLog.records_async)

    def get_stats(self) -> dict[str, Any]:
        records, now_s = self._all_records(), self._runtime.now_s()
        lately = [item for item in records if now_s - item.updated_at < DAY_S]
        undone = (TransactionState.FAILED, TransactionState.ROLLED_BACK)
        return {
            "active_transactions": sum(not item.state.is_final for item in records),
            "by_state": dict(Counter(item.state.value for item in records)),
            "by_type": dict(Counter(item.merge_type for item in records)),
            "recent_failures": sum(item.state in undone for item in lately),
            "stuck": sum(not item.state.is_final and now_s - item.updated_at > STUCK_S for item in records),
        }

    def health_check(self) -> HealthCheckResult:
        stats = self.get_stats()
        if stats["stuck"]:
            return HealthCheckResult.unhealthy(f"{stats['stuck']} transactions are stuck", **stats)
        if stats["recent_failures"] > FAILURES_MAX:
            return HealthCheckResult.degraded(f"{stats['recent_failures']} failed in a day", **stats)
        return HealthCheckResult.ok("", **stats)


# --- of this process ----------------------------------------------------------------------------------


def get_transaction_isolation(db_path: Path | str | None = None) -> TransactionIsolation:
    """Return the transactions of this process; the first call opens the engine and ends what died."""
    return one_per_process(TransactionIsolation, _open, db_path=db_path)


reset_transaction_isolation = reset_of("reset_transaction_isolation", TransactionIsolation)


def _open(db_path: Path | str | None = None) -> TransactionIsolation:
    found = TransactionIsolation(db_path)
    # What a killed process left half done is ended before anybody begins another merge.
    found.recover()
    return found


def begin_merge_transaction(
    source_host: str,
    dest_host: str = "",
    merge_type: str = "merge",
    metadata: Mapping[str, str] | None = None,
) -> str:
    return get_transaction_isolation().begin_transaction(source_host, dest_host, merge_type, metadata)


@contextmanager
def merge_transaction(
    source_host: str, dest_host: str = "", merge_type: str = "merge"
) -> Iterator[tuple[TransactionIsolation, str]]:
    """A transaction for a block: committed at its end, undone if the block or the preparation fails."""
    isolation = get_transaction_isolation()
    name = isolation.begin_transaction(source_host, dest_host, merge_type)
    try:
        yield isolation, name
        prepared = isolation.prepare_commit(name)
    except BaseException as error:
        isolation.rollback(name, f"{type(error).__name__}: {error}")
        raise
    if not prepared:
        isolation.rollback(name, "it could not be prepared")
        raise Conflict(f"transaction {name} could not be prepared; nothing was changed")
    isolation.commit(name)
