"""What happened to roles, newest last: who took, lost, was denied or took over which."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum

import msgspec
import structlog

from ringrift.engine.encoding import decode_entry
from ringrift.engine.ports import KeyValue
from ringrift.errors import AlreadyExists, RevisionMismatch, Unavailable
from ringrift.runtime import Runtime

log = structlog.get_logger()

KEY = "roles/audit"
ROWS_MAX = 200
TRIES_MAX = 5


class RoleAction(StrEnum):
    """One kind of row."""

    ACQUIRED = "ACQUIRED"
    RELEASED = "RELEASED"
    LOST = "LOST"
    TAKEOVER = "TAKEOVER"  # from a process of this machine that is dead
    ACQUIRE_DENIED = "ACQUIRE_DENIED"
    STALE_CLEANUP = "STALE_CLEANUP"  # the former holder let its lease run out


class RoleRow(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened; equal ones in a row are counted."""

    at_s: float
    role: str
    action: RoleAction
    holder: str
    other: str = ""  # who had it, or has it
    times: int = 1


class RoleAudit:
    """The rows of all processes, in one bounded list."""

    def __init__(self, get_kv: Callable[[], Awaitable[KeyValue]], *, runtime: Runtime) -> None:
        self._get_kv, self._runtime = get_kv, runtime

    async def rows(self, limit: int = ROWS_MAX) -> list[RoleRow]:
        """Return the last *limit* rows, oldest first."""
        entry = await (await self._get_kv()).get(KEY)
        rows = [] if entry is None else decode_entry(entry, list[RoleRow])
        return rows[-limit:] if limit > 0 else []

    async def add(self, action: RoleAction, role: str, *, holder: str, other: str = "") -> None:
        """Write a row. One that cannot be written is logged instead: roles go on without it."""
        row = RoleRow(at_s=self._runtime.now_s(), role=role, action=action, holder=holder, other=other)
        try:
            written = await self._write(row)
        except Unavailable:
            written = False
        if not written:
            log.warning("role.audit_row_lost", action=action.value, role=role, holder=holder, other=other)

    async def _write(self, row: RoleRow) -> bool:
        kv = await self._get_kv()
        for _ in range(TRIES_MAX):
            entry = await kv.get(KEY)
            try:
                if entry is None:
                    await kv.create(KEY, msgspec.json.encode([row]))
                else:
                    value = msgspec.json.encode(_appended(decode_entry(entry, list[RoleRow]), row))
                    await kv.update(KEY, value, revision=entry.revision)
            except (AlreadyExists, RevisionMismatch):
                continue
            return True
        return False

    async def left_open(self, role: str) -> str:
        """The last holder of *role* that neither gave it back nor lost it knowingly; empty if none."""
        for row in reversed(await self.rows()):
            if row.role == role and row.action is not RoleAction.ACQUIRE_DENIED:
                ended = row.action in {RoleAction.RELEASED, RoleAction.LOST}
                return "" if ended else row.holder
        return ""


def _appended(rows: list[RoleRow], row: RoleRow) -> list[RoleRow]:
    if rows and msgspec.structs.replace(rows[-1], at_s=row.at_s, times=1) == row:
        return [*rows[:-1], msgspec.structs.replace(row, times=rows[-1].times + 1)]
    return [*rows, row][-ROWS_MAX:]
