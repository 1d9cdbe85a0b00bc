"""What is written down of a transaction, and which steps it may take."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from ringrift.data.records_merge import RecordTable
from ringrift.errors import ConfigError

OPERATIONS_MAX = 1_000


class TransactionState(StrEnum):
    """The life of a transaction. From COMMITTING on it will be done, whoever finishes it."""

    PENDING = "pending"
    PREPARING = "preparing"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ROLLING_BACK = "rolling_back"
    ROLLED_BACK = "rolled_back"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        return self in _FINAL


_FINAL = frozenset({TransactionState.COMMITTED, TransactionState.ROLLED_BACK, TransactionState.FAILED})
NEXT = {
    TransactionState.PENDING: {TransactionState.PREPARING, TransactionState.ROLLING_BACK},
    TransactionState.PREPARING: {TransactionState.COMMITTING, TransactionState.ROLLING_BACK},
    TransactionState.COMMITTING: {TransactionState.COMMITTED, TransactionState.FAILED},
    TransactionState.ROLLING_BACK: {TransactionState.ROLLED_BACK, TransactionState.FAILED},
}


class OperationType(StrEnum):
    """What becomes of a file."""

    ADD = "add"  # it must not exist
    UPDATE = "update"  # it must exist
    DELETE = "delete"
    APPEND = "append"  # the new content goes behind what is there
    MERGE = "merge"  # the records of the staged database go into it, whoever writes to it meanwhile
    KEEP = "keep"  # an artifact ("blob:DIGEST"): no node of this store deletes it before the end


class MergeOperation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file's part of a transaction."""

    operation_id: str
    kind: OperationType
    dest_path: str
    staged_path: str = ""  # where the new content waits; nothing reads it before the commit
    base_checksum: str = ""  # of the file as it was when the operation was added; empty: absent
    new_checksum: str = ""  # of the staged content
    complete: bool = False
    tables: tuple[RecordTable, ...] = ()  # of a merge


class TransactionRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One transaction, as it is kept. Times are wall clock."""

    transaction_id: str
    source_host: str
    dest_host: str
    merge_type: str
    state: TransactionState = TransactionState.PENDING
    operations: tuple[MergeOperation, ...] = ()
    metadata: dict[str, str] = {}
    created_at: float = 0.0
    updated_at: float = 0.0
    error: str = ""

    def operation(self, operation_id: str) -> MergeOperation:
        for item in self.operations:
            if item.operation_id == operation_id:
                return item
        raise ConfigError(f"transaction {self.transaction_id} has no operation {operation_id!r}")

    def moved_to(self, state: TransactionState, *, now_s: float, error: str = "") -> TransactionRecord:
        """The record in its next state; ValueError for a step that it may not take."""
        if state not in NEXT.get(self.state, ()):
            raise ValueError(
                f"transaction {self.transaction_id} is {self.state.value}; it cannot become {state.value}"
            )
        return msgspec.structs.replace(self, state=state, updated_at=now_s, error=error or self.error)

    def with_operation(self, operation: MergeOperation, *, now_s: float) -> TransactionRecord:
        """The record with an operation added or replaced; only before it is prepared."""
        if self.state is not TransactionState.PENDING:
            raise ValueError(f"transaction {self.transaction_id} is {self.state.value}: it takes no more")
        if len(self.operations) >= OPERATIONS_MAX:
            raise ConfigError(f"a transaction has at most {OPERATIONS_MAX} operations")
        others = tuple(item for item in self.operations if item.operation_id != operation.operation_id)
        return msgspec.structs.replace(self, operations=(*others, operation), updated_at=now_s)
