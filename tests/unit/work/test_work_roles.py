"""Roles under simulated time, and the blocking and asynchronous calls on the real engine."""

import asyncio
import threading

import pytest

from ringrift.coordination import orchestrator_registry
from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.master_loop_guard import MasterLoopGuard
from ringrift.coordination.orchestrator_registry import (
    CONTROL_ROLES,
    OrchestratorRole,
    OrchestratorRoles,
    ProcessPlace,
    acquire_orchestrator_role,
    async_acquire_orchestrator_role,
    async_orchestrator_role,
    get_role_audit,
    get_role_holder,
    holds_orchestrator_role,
    is_role_available,
    orchestrator_role,
    release_orchestrator_role,
)
from ringrift.engine.leases import LeaseConfig
from ringrift.engine.limits import WAIT_S_MAX
from ringrift.engine.opening import close_engine, get_engine, memory_engine
from ringrift.errors import ConfigError, Conflict, LeaseLost
from ringrift.learning.control_lease import ControlLease
from ringrift.process import process_scope
from ringrift.runtime import SystemRuntime
from ringrift.testing.simulation import SimulatedRuntime, simulate

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


def test_whoever_controls_has_the_roles_of_a_run_and_the_answer_names_it():
    async def scenario():
        runtime, first, second = two_processes()
        engine = memory_engine(runtime)
        first._get_kv = second._get_kv = lambda: given(engine.kv)
        control = ControlLease(engine, SystemRuntime(), MasterLoopGuard(), get_settings())
        await control.take()
        process_scope().drop(ControlLease)  # as a process that is not the one in control sees it
        for role in CONTROL_ROLES:
            assert not await second.acquire(role)
            seen = await second.seen_holder(role)
            assert (seen.holder, seen.token) == (str(control.me), control.token)
            assert seen.expires_s is not None
        assert (await second.audit.rows())[-1].other == str(control.me)
        assert await second.acquire(OrchestratorRole.CLUSTER), "nothing is in charge of a cluster yet"
        waiting = asyncio.create_task(second.acquire(OrchestratorRole.PIPELINE, wait_s=60.0))
        await asyncio.sleep(1.0)
        await control.release()
        assert await waiting, "and it is free as soon as nobody controls"
        assert (await first.seen_holder(OrchestratorRole.PIPELINE)).holder == second.holder
        assert await first.seen_holder(OrchestratorRole.TRAINING_LOOP) is None
        with pytest.raises(Conflict, match=r"sim:.* holds the role pipeline_orchestrator, which a run needs"):
            await first.check_control_is_free()
        await second.check_control_is_free()
        await second.release_all()
        await first.check_control_is_free()

    simulate(scenario())


async def given(value):
    return value


async def test_the_process_in_control_has_its_roles_by_its_lease_alone():
    engine = await get_engine()
    control = ControlLease(engine, SystemRuntime(), MasterLoopGuard(), get_settings())
    await control.take()
    role = OrchestratorRole.TRAINING_LOOP
    assert await async_acquire_orchestrator_role(role)
    assert holds_orchestrator_role(role)
    async with async_orchestrator_role(role) as token:
        assert token == control.token == (await asyncio.to_thread(get_role_holder, role)).token
    assert holds_orchestrator_role(role), "it ends with control"
    await control.release()
    assert not holds_orchestrator_role(role)
    assert await asyncio.to_thread(is_role_available, role)
    await close_engine()


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
        first._claims[OrchestratorRole.CLUSTER].renewal.cancel()  # as a process that hangs
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


def rivals(*, same_place):
    """A holder whose process id belongs to nobody, and a rival that may or may not be able to know."""
    dead = SimulatedRuntime(pid=2**22 + 1)
    kv = memory_engine(dead).kv

    async def get_kv():
        return kv

    here = ProcessPlace("sim", "ns")
    there = here if same_place else ProcessPlace("sim", "another namespace")
    first = OrchestratorRoles(get_kv, runtime=dead, config=LEASE, place=here)
    second = OrchestratorRoles(get_kv, runtime=SimulatedRuntime(pid=1), config=LEASE, place=there)
    return dead, first, second


def test_the_role_of_a_dead_process_of_this_machine_is_taken_over_at_once():
    async def scenario():
        _, first, second = rivals(same_place=True)
        assert await first.acquire(OrchestratorRole.CLUSTER)
        old = first.token(OrchestratorRole.CLUSTER)
        first._claims[OrchestratorRole.CLUSTER].renewal.cancel()  # as a process that was killed
        assert await second.acquire(OrchestratorRole.CLUSTER)
        assert second.token(OrchestratorRole.CLUSTER) > old
        actions = [(row.action.value, row.other) for row in await second.audit.rows()]
        assert actions == [("ACQUIRED", ""), ("TAKEOVER", first.holder), ("ACQUIRED", "")]
        await second.release_all()
        assert (await second.audit.rows(1))[0].action.value == "RELEASED"

    simulate(scenario())


def test_a_process_that_cannot_know_waits_for_the_lease_and_finds_it_stale():
    async def scenario():
        runtime, first, second = rivals(same_place=False)
        assert await first.acquire(OrchestratorRole.CLUSTER)
        first._claims[OrchestratorRole.CLUSTER].renewal.cancel()
        for _ in range(3):
            assert not await second.acquire(OrchestratorRole.CLUSTER)
        (denied,) = [row for row in await second.audit.rows() if row.action.value == "ACQUIRE_DENIED"]
        assert (denied.other, denied.times) == (first.holder, 3)
        await runtime.sleep(LEASE.lease_s)
        assert await second.acquire(OrchestratorRole.CLUSTER)
        actions = [row.action.value for row in await second.audit.rows()]
        assert actions == ["ACQUIRED", "ACQUIRE_DENIED", "STALE_CLEANUP", "ACQUIRED"]
        await second.release_all()

    simulate(scenario())


def test_a_role_that_is_not_renewed_warns_before_it_is_lost():
    async def scenario():
        runtime, first, _ = two_processes()
        assert await first.acquire(OrchestratorRole.SYNC)
        await runtime.sleep(60)
        assert first.health_check().status.value == "running"
        first._claims[OrchestratorRole.SYNC].renewal.cancel()
        await runtime.sleep(6)
        assert first.holds(OrchestratorRole.SYNC)
        assert first.health_check().message == "not renewed for long: sync_orchestrator"
        await first.release_all()

    simulate(scenario())


def test_the_audit_is_bounded():
    async def scenario():
        _, first, _ = two_processes()
        for _ in range(130):
            assert await first.acquire(OrchestratorRole.SYNC)
            assert await first.release(OrchestratorRole.SYNC)
        assert len(await first.audit.rows()) == 200

    simulate(scenario())


def test_blocking_calls_on_the_real_engine():
    role = OrchestratorRole.TRAINING_LOOP
    assert is_role_available(role)
    with pytest.raises(ConfigError, match=r"wait_seconds is 86401\.0; it must be .* from 0 to 86400"):
        acquire_orchestrator_role(role, wait_seconds=WAIT_S_MAX + 1)
    assert acquire_orchestrator_role(role, wait_seconds=WAIT_S_MAX)
    assert holds_orchestrator_role(role)
    assert get_role_holder(role).token > 0
    assert release_orchestrator_role(role)
    with orchestrator_role(role) as token:
        assert token > 0
        assert not is_role_available(role)
    assert is_role_available(role)
    assert [row.action.value for row in get_role_audit()] == ["ACQUIRED", "RELEASED"] * 2


async def test_asynchronous_calls_on_the_real_engine():
    role = OrchestratorRole.PIPELINE
    async with async_orchestrator_role(role) as token:
        assert token > 0
        assert await async_acquire_orchestrator_role(role)
    assert not holds_orchestrator_role(role)


@pytest.mark.parametrize("is_taken_first", [False, True])
async def test_a_role_that_is_taken_for_a_cancelled_caller_is_given_back(monkeypatch, is_taken_first):
    role, may_go, is_taken = OrchestratorRole.PIPELINE, threading.Event(), threading.Event()

    def take(role, *, wait_seconds):
        may_go.wait()
        taken = acquire_orchestrator_role(role, wait_seconds=wait_seconds)
        is_taken.set()
        return taken

    monkeypatch.setattr(orchestrator_registry, "acquire_orchestrator_role", take)
    asking = asyncio.create_task(async_acquire_orchestrator_role(role))
    await asyncio.sleep(0)
    if is_taken_first:
        # On the loop, so that the caller has not heard of it when it is cancelled.
        may_go.set()
        is_taken.wait()
    asking.cancel()
    may_go.set()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await asyncio.to_thread(is_taken.wait)
    async with asyncio.timeout(10.0):
        while holds_orchestrator_role(role):
            await asyncio.sleep(0.02)


async def test_a_role_that_was_held_before_stays_with_the_process(monkeypatch):
    role, asked = OrchestratorRole.PIPELINE, threading.Event()
    assert await async_acquire_orchestrator_role(role)

    def take(role, *, wait_seconds):
        asked.set()
        return acquire_orchestrator_role(role, wait_seconds=wait_seconds)

    monkeypatch.setattr(orchestrator_registry, "acquire_orchestrator_role", take)
    asking = asyncio.create_task(async_acquire_orchestrator_role(role))
    await asyncio.sleep(0)
    asked.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert holds_orchestrator_role(role)


def test_an_unknown_role_is_refused():
    with pytest.raises(ConfigError, match="it must be one of cluster_orchestrator, improvement_daemon"):
        acquire_orchestrator_role("emperor")
