"""Roles under simulated time, and the blocking and asynchronous calls on the real engine."""

import asyncio

import pytest

from ringrift.engine.leases import LeaseConfig
from ringrift.engine.opening import memory_engine
from ringrift.errors import LeaseLost
from ringrift.testing.simulation import SimulatedRuntime, simulate
from ringrift.work.roles import (
    OrchestratorRole,
    OrchestratorRoles,
    acquire_orchestrator_role,
    async_acquire_orchestrator_role,
    async_orchestrator_role,
    get_role_holder,
    holds_orchestrator_role,
    is_role_available,
    orchestrator_role,
    release_orchestrator_role,
)

LEASE = LeaseConfig(lease_s=15.0, renew_s=2.0)


def two_processes():
    """Two contenders on one store."""
    runtime = SimulatedRuntime()
    kv = memory_engine(runtime).kv

    async def get_kv():
        return kv

    first, second = (OrchestratorRoles(get_kv, runtime=runtime, config=LEASE) for _ in range(2))
    return runtime, first, second


def test_a_role_has_one_holder_who_keeps_it_by_heartbeats():
    async def scenario():
        runtime, first, second = two_processes()
        assert await first.acquire(OrchestratorRole.TRAINING_LOOP)
        assert await first.acquire(OrchestratorRole.TRAINING_LOOP)
        for _ in range(20):
            await runtime.sleep(10.0)
            assert first.holds(OrchestratorRole.TRAINING_LOOP)
            assert not await second.acquire(OrchestratorRole.TRAINING_LOOP)
        assert (await second.seen_holder(OrchestratorRole.TRAINING_LOOP)).holder == first.holder
        assert await second.acquire(OrchestratorRole.PIPELINE)
        await first.release_all()
        await second.release_all()

    simulate(scenario())


def test_a_released_role_is_free_at_once_and_the_token_grows():
    async def scenario():
        _, first, second = two_processes()
        assert await first.acquire(OrchestratorRole.SYNC)
        old = first.token(OrchestratorRole.SYNC)
        waiting = asyncio.create_task(second.acquire(OrchestratorRole.SYNC, wait_s=5.0))
        await asyncio.sleep(1.0)
        assert await first.release(OrchestratorRole.SYNC)
        assert await waiting
        assert second.token(OrchestratorRole.SYNC) > old
        with pytest.raises(LeaseLost):
            first.token(OrchestratorRole.SYNC)
        assert not await first.release(OrchestratorRole.SYNC)
        await second.release_all()

    simulate(scenario())


def test_a_holder_that_stops_renewing_stops_before_another_can_begin():
    async def scenario():
        runtime, first, second = two_processes()
        assert await first.acquire(OrchestratorRole.CLUSTER)
        began_s = runtime.monotonic_s()
        first._claims[OrchestratorRole.CLUSTER].keeper.cancel()  # as a process that hangs
        while not await second.acquire(OrchestratorRole.CLUSTER, wait_s=0.5):
            assert runtime.monotonic_s() - began_s < 20
        taken_s = runtime.monotonic_s() - began_s
        assert LEASE.lease_s <= taken_s <= LEASE.lease_s + 1
        assert not first.holds(OrchestratorRole.CLUSTER)
        with pytest.raises(LeaseLost):
            first.token(OrchestratorRole.CLUSTER)
        # Giving back what it no longer has must not take the role from the new holder.
        await first.release(OrchestratorRole.CLUSTER)
        assert second.holds(OrchestratorRole.CLUSTER)
        await second.release_all()

    simulate(scenario())


def test_blocking_calls_on_the_real_engine():
    role = OrchestratorRole.TRAINING_LOOP
    assert is_role_available(role)
    assert acquire_orchestrator_role(role)
    assert holds_orchestrator_role(role)
    assert get_role_holder(role).token > 0
    assert release_orchestrator_role(role)
    with orchestrator_role(role) as token:
        assert token > 0
        assert not is_role_available(role)
    assert is_role_available(role)


async def test_asynchronous_calls_on_the_real_engine():
    role = OrchestratorRole.PIPELINE
    async with async_orchestrator_role(role) as token:
        assert token > 0
        assert await async_acquire_orchestrator_role(role)
    assert not holds_orchestrator_role(role)


def test_an_unknown_role_is_refused():
    with pytest.raises(ValueError, match="not a valid OrchestratorRole"):
        acquire_orchestrator_role("emperor")
