"""One sync per host, whoever pauses, dies or comes late."""

import asyncio
import os

import pytest
from transfer_kit import in_transfer_world

from ringrift.coordination.sync_mutex import (
    SyncMutex,
    acquire_sync_lock,
    get_sync_mutex,
    release_sync_lock,
    sync_lock,
    sync_lock_required,
)
from ringrift.data.sync.mutex import SyncLock
from ringrift.engine.limits import WAIT_S_MAX
from ringrift.engine.opening import close_engine
from ringrift.errors import ConfigError, LeaseLost


def test_a_host_has_one_holder_and_the_next_gets_a_higher_token():
    async def scenario(world):
        one, two = mutex(world, max_global=5), mutex(world, max_global=5)
        assert await one.acquire_async("there")
        first = one.token("there")
        assert not await two.acquire_async("there")
        assert await one.release_async("there")
        assert await two.acquire_async("there")
        assert two.token("there") > first

    in_transfer_world(scenario)


def test_a_process_does_not_get_its_own_lock_twice():
    async def scenario(world):
        one = mutex(world, max_global=5)
        assert await one.acquire_async("there")
        assert not await one.acquire_async("there")

    in_transfer_world(scenario)


def test_a_late_holder_is_refused_and_cannot_free_the_next_ones_lock():
    async def scenario(world):
        late, next_one, third = (mutex(world, max_global=5) for _ in range(3))
        assert await late.acquire_async("there", timeout=60)
        await world.runtime.sleep(95)
        assert await next_one.acquire_async("there", timeout=60)
        with pytest.raises(LeaseLost):
            late.token("there")
        assert not await late.heartbeat_async("there")
        assert not await late.release_async("there")
        assert (await third.info_async("there")).token == next_one.token("there")
        assert not await third.acquire_async("there")

    in_transfer_world(scenario)


def test_a_lock_is_safe_for_as_long_as_it_was_asked_for_without_a_heartbeat():
    async def scenario(world):
        holder, other = mutex(world, max_global=5), mutex(world, max_global=5)
        assert await holder.acquire_async("there", timeout=120)
        for _ in range(11):
            await world.runtime.sleep(10.5)
            assert not await other.acquire_async("there")
            assert holder.token("there")

    in_transfer_world(scenario)


def test_the_time_begins_when_the_lock_is_had_not_when_it_was_asked_for():
    async def scenario(world):
        holder, waiting = mutex(world, max_global=5), mutex(world, max_global=5)
        assert await holder.acquire_async("there", timeout=40)
        assert await waiting.acquire_async("there", timeout=30, wait=True, wait_timeout=100)
        await world.runtime.sleep(29)
        assert waiting.token("there")

    in_transfer_world(scenario)


def test_heartbeats_hold_a_lock_for_as_long_as_they_come():
    async def scenario(world):
        holder, other = mutex(world), mutex(world)
        assert await holder.acquire_async("there", timeout=60)
        for _ in range(20):
            await world.runtime.sleep(50)
            assert await holder.heartbeat_async("there")
            assert not await other.acquire_async("there")

    in_transfer_world(scenario)


@pytest.mark.parametrize("wait", [False, True])
def test_the_bound_for_the_cluster_holds_for_those_that_wait_too(wait):
    async def scenario(world):
        first, second = mutex(world, max_global=1), mutex(world, max_global=1)
        assert await first.acquire_async("a")
        assert not await second.acquire_async("b", wait=wait, wait_timeout=20)
        await first.release_async("a")
        assert await second.acquire_async("b", wait=wait, wait_timeout=20)

    in_transfer_world(scenario)


def test_a_waiter_gets_the_lock_when_it_comes_free():
    async def scenario(world):
        first, second = mutex(world), mutex(world)
        assert await first.acquire_async("there")

        async def free_it():
            await world.runtime.sleep(12)
            await first.release_async("there")

        async with asyncio.TaskGroup() as group:
            group.create_task(free_it())
            assert await second.acquire_async("there", wait=True)
        assert 12 <= world.runtime.monotonic_s() < 18

    in_transfer_world(scenario)


def test_a_wait_in_vain_is_announced_with_the_holder():
    async def scenario(world):
        first, second = mutex(world), mutex(world)
        assert await first.acquire_async("there", timeout=500)
        assert not await second.acquire_async("there", "backup", wait=True, wait_timeout=30)
        (said,) = world.heard("LOCK_TIMEOUT")
        assert said["wait_seconds"] == 30
        assert said["operation"] == "backup"
        assert said["holder"] == (await first.info_async("there")).holder

    in_transfer_world(scenario)


def test_a_block_that_lost_its_lock_says_so():
    async def scenario(world):
        holder, other = mutex(world, max_global=5), mutex(world, max_global=5)

        async def block():
            async with SyncLock(holder, "there", "rsync", timeout=30, wait_s=0) as had:
                assert had
                assert await other.force_release_async("there")
                assert await other.acquire_async("there")
                await world.runtime.sleep(100)

        with pytest.raises(LeaseLost):
            await block()

    in_transfer_world(scenario)


def test_a_block_longer_than_its_lock_keeps_it():
    async def scenario(world):
        holder, other = mutex(world), mutex(world)
        async with SyncLock(holder, "there", "rsync", timeout=30, wait_s=0) as had:
            assert had
            for _ in range(10):
                await world.runtime.sleep(30)
                assert not await other.acquire_async("there")
        assert await other.acquire_async("there")

    in_transfer_world(scenario)


def test_locks_of_a_process_that_is_gone_can_be_freed_early_and_those_of_others_stay():
    async def scenario(world):
        world.runtime.pid = os.getpid()
        dead, living = mutex(world, max_global=5), mutex(world, max_global=5)
        dead._began_s = 1.0  # no process of this number began then
        assert await dead.acquire_async("a")
        assert await living.acquire_async("b")
        assert await living.cleanup_async() == 1
        assert await living.acquire_async("a")
        assert {info.host for info in await living.locks_async()} == {"a", "b"}

    in_transfer_world(scenario)


def test_the_plain_functions_work_without_a_loop():
    assert acquire_sync_lock("host", wait=False)
    assert not acquire_sync_lock("host", wait=False)
    stats = get_sync_mutex().get_stats()
    assert (stats["active_locks"], stats["max_per_host"], stats["max_global"]) == (1, 1, 8)
    assert get_sync_mutex().is_locked("host")
    with sync_lock("host", wait=False) as had:
        assert not had
    with pytest.raises(TimeoutError), sync_lock_required("host", wait_timeout=0.01):
        raise AssertionError("the block must not run")
    assert release_sync_lock("host")
    assert not release_sync_lock("host")
    for take in (acquire_sync_lock, sync_lock):
        with pytest.raises(ConfigError, match=r"wait_timeout is .* from 0 to 86400"):
            take("host", wait_timeout=WAIT_S_MAX + 1)
    assert acquire_sync_lock("host", wait_timeout=WAIT_S_MAX)
    assert release_sync_lock("host")
    with sync_lock("host", wait_timeout=WAIT_S_MAX) as had:
        assert had
    with sync_lock_required("host"):
        assert get_sync_mutex().get_lock_info("host").operation == "rsync"
    assert get_sync_mutex().get_all_locks() == []
    assert acquire_sync_lock("other", wait=False)
    assert get_sync_mutex().release_all_for_process() == 1
    asyncio.run(close_engine())


def test_a_bound_that_lets_nobody_in_is_refused():
    with pytest.raises(ConfigError):
        SyncMutex(max_global=0)


def mutex(world, *, max_global=1):
    return SyncMutex(kv=world.kv, runtime=world.runtime, max_global=max_global, router=world.router)
