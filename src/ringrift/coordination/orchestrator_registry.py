"""Roles that only one process at a time may have, such as running the training loop.

What the control process does comes with the control lease: while somebody controls, those roles are his, and
nobody else can take one; nobody can take control while another process holds one. Every other role, and each
of those while nobody controls, is a lease in the engine of its own. Its holder renews it in the background
and has a fencing token, which every write made in that role must carry; when the holder dies, the role is
free after the lease, or at once for a process of the same machine that sees that it is dead. A holder that
cannot renew stops being one by its own clock before anybody else can become one. What happens to roles is
written down (`get_role_audit`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from enum import StrEnum

import msgspec
import structlog

from ringrift.engine.arguments import refuse
from ringrift.engine.blocking import blocking, take_in_thread
from ringrift.engine.leases import (
    CONTROL_LEASE,
    ControlSeen,
    LeaseConfig,
    LeaseHolder,
    NamedLease,
    control_seen,
    end_lease,
    lease_changed,
    lease_holder,
)
from ringrift.engine.opening import shared_kv
from ringrift.engine.ports import KeyValue
from ringrift.engine.records import change_record, read_record
from ringrift.errors import Conflict, LeaseLost, Unavailable
from ringrift.learning.control_lease import ControlLease
from ringrift.process import SingletonMixin, getter_of, process_scope
from ringrift.process_identity import is_alive
from ringrift.runtime import Runtime, system_runtime
from ringrift.status import HealthCheckResult
from ringrift.task_owner import TaskOwner

__all__ = [
    "OrchestratorRole",
    "OrchestratorRoles",
    "RoleAction",
    "RoleAudit",
    "RoleRow",
    "acquire_orchestrator_role",
    "async_acquire_orchestrator_role",
    "async_orchestrator_role",
    "async_release_orchestrator_role",
    "get_orchestrator_roles",
    "get_role_audit",
    "get_role_holder",
    "holds_orchestrator_role",
    "is_role_available",
    "orchestrator_role",
    "orchestrator_role_token",
    "release_orchestrator_role",
    "reset_orchestrator_roles",
]


# What happened to roles, newest last: who took, lost, was denied or took over which.


log = structlog.get_logger()

KEY = "roles/audit"
ROWS_MAX = 200
# Other processes write the same list; after so many collisions the row is logged instead.
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
        rows = await read_record(await self._get_kv(), KEY, list[RoleRow]) or []
        return rows[-limit:] if limit > 0 else []

    async def add(self, action: RoleAction, role: str, *, holder: str, other: str = "") -> None:
        """Write a row. One that cannot be written is logged instead: roles go on without it."""
        row = RoleRow(at_s=self._runtime.now_s(), role=role, action=action, holder=holder, other=other)
        try:
            await change_record(
                await self._get_kv(), KEY, list[RoleRow], lambda rows: _appended(rows or [], row)
            )
        except Unavailable:
            log.warning("role.audit_row_lost", action=action.value, role=role, holder=holder, other=other)

    async def left_open(self, role: str) -> str:
        """The last holder of *role* that neither gave it back nor lost it knowingly; empty if none."""
        for row in reversed(await self.rows()):
            if row.role == role and row.action is not RoleAction.ACQUIRE_DENIED:
                ended = row.action in {RoleAction.RELEASED, RoleAction.LOST}
                return "" if ended else row.holder
        return ""


def _appended(rows: list[RoleRow], row: RoleRow) -> list[RoleRow]:
    # A process that asks again and again would otherwise push all other rows out of the list.
    if rows and msgspec.structs.replace(rows[-1], at_s=row.at_s, times=1) == row:
        return [*rows[:-1], msgspec.structs.replace(row, times=rows[-1].times + 1)]
    return [*rows, row][-ROWS_MAX:]


# Who holds a role, in one text; and whether that process is known to be dead.
#
# Only a process that shares its process ids with the holder can know that: same host, same namespace.


_NAMESPACE = "/proc/self/ns/pid"


@dataclass(frozen=True, slots=True)
class ProcessPlace:
    """Where process ids mean the same."""

    hostname: str
    namespace: str = ""

    @classmethod
    def here(cls, runtime: Runtime) -> ProcessPlace:
        try:
            return cls(runtime.hostname, os.readlink(_NAMESPACE))
        except OSError:  # a system without namespaces
            return cls(runtime.hostname)

    def holder(self, runtime: Runtime) -> str:
        """The name under which this process holds roles."""
        # Process ids are given out again; with a new id each process is another holder.
        return f"{self.hostname}:{runtime.pid}:{runtime.new_id()}@{self.namespace}"

    def knows_dead(self, holder: str) -> bool:
        """Whether *holder* is a process of this place that no longer runs."""
        host, _, rest = holder.partition(":")
        pid, _, rest = rest.partition(":")
        namespace = rest.partition("@")[2]
        if host != self.hostname or namespace != self.namespace or not pid.isdigit():
            return False
        return not is_alive(int(pid), None)


RELEASE_TIMEOUT_S = 5.0
ANSWER_S = 10.0  # what a blocking call gives the engine beside its own waiting


class OrchestratorRole(StrEnum):
    """What can be led by one process only."""

    CLUSTER = "cluster_orchestrator"
    IMPROVEMENT = "improvement_daemon"
    TRAINING_LOOP = "training_loop"
    PIPELINE = "pipeline_orchestrator"
    SELFPLAY = "selfplay_orchestrator"
    EVALUATION = "evaluation_orchestrator"
    SYNC = "sync_orchestrator"
    MAINTENANCE = "maintenance"


# Nobody is in charge of a cluster yet; of the others, whoever holds the control lease.
CONTROL_ROLES = frozenset(OrchestratorRole) - {OrchestratorRole.CLUSTER}


@dataclass(slots=True)
class _Claim:
    lease: NamedLease
    renewal: asyncio.Task[None]


class OrchestratorRoles(SingletonMixin):
    """The roles that this process holds. Lives on one event loop, which renews them."""

    def __init__(
        self,
        get_kv: Callable[[], Awaitable[KeyValue]] | None = None,
        *,
        runtime: Runtime | None = None,
        config: LeaseConfig | None = None,
        place: ProcessPlace | None = None,
    ) -> None:
        get_kv, runtime = get_kv or shared_kv, runtime or system_runtime()
        self._get_kv, self._runtime, self._config = get_kv, runtime, config or LeaseConfig()
        self._place = place or ProcessPlace.here(runtime)
        self.holder = self._place.holder(runtime)
        self.audit = RoleAudit(get_kv, runtime=runtime)
        self._claims: dict[str, _Claim] = {}
        self._renewals = TaskOwner("orchestrator roles")

    def holds(self, role: OrchestratorRole) -> bool:
        """Whether it is safe to act in *role* now. May be asked from any thread."""
        if (control := _own_control(role)) is not None:
            return control.held
        claim = self._claims.get(role)
        return claim is not None and claim.lease.held

    def token(self, role: OrchestratorRole) -> int:
        """Return the fencing token; `LeaseLost` when the role is not held. May be asked from any thread."""
        if (control := _own_control(role)) is not None:
            return control.token
        claim = self._claims.get(role)
        if claim is None:
            raise LeaseLost(_lease_name(role), token=0, reason="this process does not hold it")
        return claim.lease.token

    async def acquire(self, role: OrchestratorRole, *, wait_s: float = 0.0) -> bool:
        """Take *role*, waiting up to *wait_s* for it; True if it is held, also if it was before."""
        role = _known(role)
        if self.holds(role):
            return True
        await self._drop(role)
        deadline_s = self._runtime.monotonic_s() + wait_s
        if not await self._wait_for_control_to_end(role, deadline_s):
            await self._note_denied(role)
            return False
        # A fresh lease: the object of a lost one has the old token.
        lease = NamedLease(
            await self._get_kv(), self._runtime, _lease_name(role), holder=self.holder, config=self._config
        )
        await self._take_over_if_dead(role)
        try:
            token = await lease.acquire(wait_s=max(0.0, deadline_s - self._runtime.monotonic_s()))
        except Conflict:
            await self._note_denied(role)
            return False
        # Once more: whoever took control meanwhile looks at the roles after that, so one of both gives way.
        if await self._controlled(role) is not None:
            await lease.release()
            await self._note_denied(role)
            return False
        renewal = self._renewals.create_task(self._keep(role, lease), name=f"role {role.value}")
        self._claims[role] = _Claim(lease, renewal)
        log.info("role.acquired", role=role.value, token=token, holder=self.holder)
        await self._note_acquired(role)
        return True

    async def release(self, role: OrchestratorRole) -> bool:
        """Give *role* back; False if it was not held, or comes with control, which has an end of its own."""
        role = _known(role)
        held = _own_control(role) is None and self.holds(role)
        await self._drop(role)
        if held:
            await self.audit.add(RoleAction.RELEASED, role.value, holder=self.holder)
        return held

    async def release_all(self) -> None:
        for role in tuple(self._claims):
            await self.release(OrchestratorRole(role))

    async def seen_holder(self, role: OrchestratorRole) -> LeaseHolder | None:
        """Return who holds *role*, in whichever process."""
        role = _known(role)
        if (control := await self._controlled(role)) is not None:
            return LeaseHolder(str(control), control.token, control.expires_s)
        return await lease_holder(await self._get_kv(), _lease_name(role))

    async def check_control_is_free(self) -> None:
        """For a process that has just taken control: `Conflict` if another has a role that comes with it."""
        kv = await self._get_kv()
        for role in sorted(CONTROL_ROLES):
            seen = await lease_holder(kv, _lease_name(role))
            if seen is None or seen.holder == self.holder:
                continue
            if not await asyncio.to_thread(self._place.knows_dead, seen.holder):
                raise Conflict(
                    f"{seen.holder.partition('@')[0]} holds the role {role.value}, which a run needs itself; "
                    "have it give the role back (release_orchestrator_role), or stop it, first"
                )

    async def _controlled(self, role: OrchestratorRole) -> ControlSeen | None:
        """Who has *role* because he controls; None if it is free for leases of its own."""
        return None if role not in CONTROL_ROLES else await control_seen(await self._get_kv(), self._runtime)

    async def _wait_for_control_to_end(self, role: OrchestratorRole, deadline_s: float) -> bool:
        while await self._controlled(role) is not None:
            left_s = deadline_s - self._runtime.monotonic_s()
            if left_s <= 0:
                return False
            await lease_changed(await self._get_kv(), CONTROL_LEASE, timeout_s=left_s)
        return True

    def health_check(self) -> HealthCheckResult:
        """Degraded while a role has not been renewed for half of the time that it may be held without."""
        held = {role: round(claim.lease.left_s, 1) for role, claim in tuple(self._claims.items())}
        safe_s = self._config.lease_s - self._config.margin_s
        late = sorted(role for role, left_s in held.items() if left_s < safe_s / 2)
        if late:
            return HealthCheckResult.degraded(f"not renewed for long: {', '.join(late)}", held=held)
        return HealthCheckResult.ok("", held=held)

    async def _take_over_if_dead(self, role: OrchestratorRole) -> None:
        seen = await self.seen_holder(role)
        if seen is None or not await asyncio.to_thread(self._place.knows_dead, seen.holder):
            return
        if await end_lease(await self._get_kv(), _lease_name(role), holder=seen.holder):
            log.warning("role.taken_over", role=role.value, dead=seen.holder, holder=self.holder)
            await self.audit.add(RoleAction.TAKEOVER, role.value, holder=self.holder, other=seen.holder)

    async def _note_denied(self, role: OrchestratorRole) -> None:
        seen = await self.seen_holder(role)
        other = "" if seen is None else seen.holder
        await self.audit.add(RoleAction.ACQUIRE_DENIED, role.value, holder=self.holder, other=other)

    async def _note_acquired(self, role: OrchestratorRole) -> None:
        former = await self.audit.left_open(role.value)
        if former and former != self.holder:
            await self.audit.add(RoleAction.STALE_CLEANUP, role.value, holder=self.holder, other=former)
        await self.audit.add(RoleAction.ACQUIRED, role.value, holder=self.holder)

    async def _drop(self, role: str) -> None:
        claim = self._claims.pop(role, None)
        if claim is None:
            return
        claim.renewal.cancel()
        # The keeper first: a renewal under way would write the lease again after its release.
        await asyncio.wait({claim.renewal}, timeout=RELEASE_TIMEOUT_S)
        async with asyncio.timeout(RELEASE_TIMEOUT_S):
            await claim.lease.release()

    async def _keep(self, role: OrchestratorRole, lease: NamedLease) -> None:
        try:
            await lease.keep()
        except LeaseLost as lost:
            log.error("role.lost", role=role.value, token=lost.token, reason=lost.reason)
            await self.audit.add(RoleAction.LOST, role.value, holder=self.holder)


def _lease_name(role: OrchestratorRole) -> str:
    return f"role/{role.value}"


def _known(role: OrchestratorRole | str) -> OrchestratorRole:
    if role not in tuple(OrchestratorRole):
        refuse("role", role, f"one of {', '.join(OrchestratorRole)}")
    return OrchestratorRole(role)


def _own_control(role: OrchestratorRole) -> ControlLease | None:
    """The control lease of this process, if it has one and *role* comes with it."""
    return process_scope().peek(ControlLease) if role in CONTROL_ROLES else None


# The roles of this process; the functions below run them on the background loop.
get_orchestrator_roles = getter_of("get_orchestrator_roles", OrchestratorRoles)
reset_orchestrator_roles = OrchestratorRoles.reset_instance


# --- for code that is not async -----------------------------------------------------------------------


@blocking(timeout_s=ANSWER_S, plus="wait_seconds")
async def acquire_orchestrator_role(role: OrchestratorRole, *, wait_seconds: float = 0.0) -> bool:
    """Take *role* for this process; False if another process has it."""
    return await get_orchestrator_roles().acquire(role, wait_s=wait_seconds)


@blocking(timeout_s=2 * RELEASE_TIMEOUT_S + ANSWER_S)
async def release_orchestrator_role(role: OrchestratorRole) -> bool:
    """Give *role* back; False if this process does not have it."""
    return await get_orchestrator_roles().release(role)


def holds_orchestrator_role(role: OrchestratorRole) -> bool:
    return get_orchestrator_roles().holds(role)


def orchestrator_role_token(role: OrchestratorRole) -> int:
    """Return the fencing token; `LeaseLost` when this process does not hold *role*."""
    return get_orchestrator_roles().token(role)


@blocking(timeout_s=ANSWER_S)
async def get_role_holder(role: OrchestratorRole) -> LeaseHolder | None:
    """Return who holds *role*, in whichever process."""
    return await get_orchestrator_roles().seen_holder(role)


@blocking(timeout_s=ANSWER_S)
async def get_role_audit(limit: int = 50) -> list[RoleRow]:
    """Return what last happened to roles, oldest first."""
    return await get_orchestrator_roles().audit.rows(limit)


def is_role_available(role: OrchestratorRole) -> bool:
    return get_role_holder(role) is None


@contextmanager
def orchestrator_role(role: OrchestratorRole, *, wait_seconds: float = 0.0) -> Iterator[int]:
    """Hold *role* for a block and give its token; `Conflict` if another process has it."""
    if not acquire_orchestrator_role(role, wait_seconds=wait_seconds):
        raise _held_elsewhere(role, get_role_holder(role))
    try:
        yield orchestrator_role_token(role)
    finally:
        release_orchestrator_role(role)


# --- for code on an event loop ------------------------------------------------------------------------


async def async_acquire_orchestrator_role(role: OrchestratorRole, *, wait_seconds: float = 0.0) -> bool:
    held_before = holds_orchestrator_role(role)

    def give_back(_: object) -> None:
        # What this process held anyway is not this caller's to give back.
        if not held_before:
            release_orchestrator_role(role)

    # In a thread: roles live on the background loop, whichever loop the caller is on.
    return await take_in_thread(lambda: acquire_orchestrator_role(role, wait_seconds=wait_seconds), give_back)


async def async_release_orchestrator_role(role: OrchestratorRole) -> bool:
    return await asyncio.to_thread(release_orchestrator_role, role)


@asynccontextmanager
async def async_orchestrator_role(role: OrchestratorRole, *, wait_seconds: float = 0.0) -> AsyncIterator[int]:
    """`orchestrator_role` for a block of asynchronous code."""
    if not await async_acquire_orchestrator_role(role, wait_seconds=wait_seconds):
        raise _held_elsewhere(role, await asyncio.to_thread(get_role_holder, role))
    try:
        yield orchestrator_role_token(role)
    finally:
        await async_release_orchestrator_role(role)


def _held_elsewhere(role: OrchestratorRole, holder: LeaseHolder | None) -> Conflict:
    return Conflict(f"the role {role.value} is held by {holder.holder if holder else 'another process'}")
