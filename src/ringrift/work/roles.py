"""Roles that only one process at a time may have, such as running the training loop.

A role is a lease in the engine. Its holder renews it in the background and has a fencing token, which every
write made in that role must carry; when the holder dies, the role is free after the lease. A holder that
cannot renew stops being one by its own clock before anybody else can become one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from enum import StrEnum

import structlog

from ringrift.engine.blocking import run_blocking
from ringrift.engine.leases import LeaseConfig, LeaseHolder, NamedLease, lease_holder
from ringrift.engine.opening import get_engine
from ringrift.engine.ports import KeyValue
from ringrift.errors import Conflict, LeaseLost
from ringrift.process import process_scope
from ringrift.runtime import Runtime, system_runtime

log = structlog.get_logger()

RELEASE_TIMEOUT_S = 5.0
ANSWER_S = 10.0  # what a blocking call gives the engine beside its own waiting


class OrchestratorRole(StrEnum):
    """What can be led by one process only."""

    CLUSTER = "cluster_orchestrator"
    TRAINING_LOOP = "training_loop"
    PIPELINE = "pipeline_orchestrator"
    SELFPLAY = "selfplay_orchestrator"
    EVALUATION = "evaluation_orchestrator"
    SYNC = "sync_orchestrator"
    MAINTENANCE = "maintenance"


@dataclass(slots=True)
class _Claim:
    lease: NamedLease
    keeper: asyncio.Task[None]


class OrchestratorRoles:
    """The roles that this process holds. Lives on one event loop, which renews them."""

    def __init__(
        self,
        get_kv: Callable[[], Awaitable[KeyValue]],
        *,
        runtime: Runtime,
        config: LeaseConfig | None = None,
    ) -> None:
        self._get_kv, self._runtime, self._config = get_kv, runtime, config or LeaseConfig()
        self.holder = f"{runtime.hostname}:{runtime.pid}:{runtime.new_id()}"
        self._claims: dict[str, _Claim] = {}

    def holds(self, role: OrchestratorRole) -> bool:
        """Whether it is safe to act in *role* now. May be asked from any thread."""
        claim = self._claims.get(role)
        return claim is not None and claim.lease.held

    def token(self, role: OrchestratorRole) -> int:
        """Return the fencing token; `LeaseLost` when the role is not held. May be asked from any thread."""
        claim = self._claims.get(role)
        if claim is None:
            raise LeaseLost(_lease_name(role), token=0, reason="this process does not hold it")
        return claim.lease.token

    async def acquire(self, role: OrchestratorRole, *, wait_s: float = 0.0) -> bool:
        """Take *role*, waiting up to *wait_s* for it; True if it is held, also if it was before."""
        role = OrchestratorRole(role)
        if self.holds(role):
            return True
        await self._drop(role)
        lease = NamedLease(
            await self._get_kv(), self._runtime, _lease_name(role), holder=self.holder, config=self._config
        )
        try:
            token = await lease.acquire(wait_s=wait_s)
        except Conflict:
            return False
        keeper = asyncio.create_task(self._keep(role, lease), name=f"role {role.value}")
        self._claims[role] = _Claim(lease, keeper)
        log.info("role.acquired", role=role.value, token=token, holder=self.holder)
        return True

    async def release(self, role: OrchestratorRole) -> bool:
        """Give *role* back; False if it was not held."""
        held = self.holds(role)
        await self._drop(role)
        return held

    async def release_all(self) -> None:
        for role in tuple(self._claims):
            await self._drop(role)

    async def seen_holder(self, role: OrchestratorRole) -> LeaseHolder | None:
        """Return who holds *role*, in whichever process."""
        return await lease_holder(await self._get_kv(), _lease_name(OrchestratorRole(role)))

    async def _drop(self, role: str) -> None:
        claim = self._claims.pop(role, None)
        if claim is None:
            return
        claim.keeper.cancel()
        await asyncio.wait({claim.keeper}, timeout=RELEASE_TIMEOUT_S)
        async with asyncio.timeout(RELEASE_TIMEOUT_S):
            await claim.lease.release()

    async def _keep(self, role: OrchestratorRole, lease: NamedLease) -> None:
        try:
            await lease.keep()
        except LeaseLost as lost:
            log.error("role.lost", role=role.value, token=lost.token, reason=lost.reason)


def _lease_name(role: OrchestratorRole) -> str:
    return f"role/{role.value}"


async def _shared_kv() -> KeyValue:
    return (await get_engine()).kv


def get_orchestrator_roles() -> OrchestratorRoles:
    """Return the roles of this process; the functions below run them on the background loop."""
    return process_scope().get(
        OrchestratorRoles, lambda: OrchestratorRoles(_shared_kv, runtime=system_runtime())
    )


# --- for code that is not async -----------------------------------------------------------------------


def acquire_orchestrator_role(role: OrchestratorRole, *, wait_seconds: float = 0.0) -> bool:
    """Take *role* for this process; False if another process has it."""
    taking = get_orchestrator_roles().acquire(role, wait_s=wait_seconds)
    return run_blocking(taking, timeout_s=wait_seconds + ANSWER_S)


def release_orchestrator_role(role: OrchestratorRole) -> bool:
    """Give *role* back; False if this process does not have it."""
    return run_blocking(get_orchestrator_roles().release(role), timeout_s=2 * RELEASE_TIMEOUT_S + ANSWER_S)


def holds_orchestrator_role(role: OrchestratorRole) -> bool:
    return get_orchestrator_roles().holds(role)


def orchestrator_role_token(role: OrchestratorRole) -> int:
    """Return the fencing token; `LeaseLost` when this process does not hold *role*."""
    return get_orchestrator_roles().token(role)


def get_role_holder(role: OrchestratorRole) -> LeaseHolder | None:
    """Return who holds *role*, in whichever process."""
    return run_blocking(get_orchestrator_roles().seen_holder(role), timeout_s=ANSWER_S)


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
    return await asyncio.to_thread(acquire_orchestrator_role, role, wait_seconds=wait_seconds)


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
