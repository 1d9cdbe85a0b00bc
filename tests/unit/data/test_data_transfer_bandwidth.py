"""Who gets how much of the line."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transfer_kit import in_transfer_world

from ringrift.coordination.sync_bandwidth import (
    get_bandwidth_manager,
    get_host_bandwidth_status,
    release_bandwidth,
    request_bandwidth,
)
from ringrift.data.config import DataNode, DataNodes
from ringrift.data.transfer.contract import TransferPriority, priority_of
from ringrift.data.transfer.limits import (
    Ask,
    BandwidthAllocation,
    BandwidthLimits,
    BandwidthManager,
    RatePace,
    answer,
    host_limit_kbps,
)
from ringrift.engine.opening import close_engine
from ringrift.errors import ConfigError
from ringrift.testing.simulation import SimulatedRuntime, simulate

LIMITS = BandwidthLimits()


def ask(host="a", *, host_kbps=50_000, priority="normal", number=0, limit_kbps=None):
    return Ask(
        id=str(number),
        host=host,
        host_kbps=host_kbps,
        priority=priority_of(priority),
        limit_kbps=limit_kbps,
    )


@pytest.mark.parametrize(
    ("priority", "kbps"),
    [("background", 12_500), ("low", 25_000), ("normal", 50_000), ("high", 50_000), ("critical", 50_000)],
)
def test_priority_sets_the_share_and_the_host_its_end(priority, kbps):
    assert answer(ask(priority=priority), [], LIMITS, 0.0).allocated_kbps == kbps


def test_no_transfer_gets_more_than_the_most():
    assert answer(ask(host_kbps=312_500, priority="critical"), [], LIMITS, 0.0).allocated_kbps == 150_000


@pytest.mark.parametrize("priority", list(TransferPriority))
def test_no_priority_is_too_low_for_the_slowest_line(priority):
    slowest = LIMITS.min_kbps
    got = answer(ask(host_kbps=slowest, priority=priority.value), [], LIMITS, 0.0)
    assert got.allocated_kbps == slowest


def test_what_is_left_of_a_host_goes_to_the_next_until_too_little_is_left():
    given_out = []
    for number in range(3):
        got = answer(ask(priority="low", number=number), given_out, LIMITS, 0.0)
        if got.granted:
            given_out.append(got)
    assert [item.allocated_kbps for item in given_out] == [25_000, 25_000]
    assert not got.granted
    assert got.reason == "Insufficient bandwidth available"


def test_the_least_share_never_exceeds_what_the_host_has_left():
    present = [taken("a", 49_500)]
    assert not answer(ask(), present, LIMITS, 0.0).granted


def test_a_share_that_ran_out_is_free_again():
    present = [taken("a", 50_000, expires_at=10.0)]
    assert not answer(ask(), present, LIMITS, 9.0).granted
    assert answer(ask(), present, LIMITS, 10.0).granted


def test_reasons_name_the_limit():
    per_host = [taken("a", 1_000) for _ in range(5)]
    assert answer(ask(), per_host, LIMITS, 0.0).reason == "Max concurrent transfers per host (5)"
    total = [taken(str(number), 1_000) for number in range(12)]
    assert answer(ask(), total, LIMITS, 0.0).reason == "Max concurrent transfers total (12)"


def test_the_callers_own_limit_may_be_below_the_least_share():
    assert answer(ask(limit_kbps=20.0), [], LIMITS, 0.0).allocated_kbps == 20


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"), st.sampled_from(list(TransferPriority)), st.booleans(), st.integers(0, 20)
        ),
        max_size=60,
    )
)
def test_neither_a_host_nor_the_line_is_ever_promised_more_than_it_has(steps):
    live = []
    for number, (host, priority, give_back, which) in enumerate(steps):
        if give_back and live:
            live.pop(which % len(live))
            continue
        got = answer(ask(host, priority=priority.value, number=number), live, LIMITS, 0.0)
        if got.granted:
            assert got.allocated_kbps >= LIMITS.min_kbps
            live.append(got)
        assert sum(item.allocated_kbps for item in live) <= LIMITS.total_kbps
        assert len(live) <= LIMITS.concurrent_total
        for each in "abc":
            there = [item for item in live if item.host == each]
            assert sum(item.allocated_kbps for item in there) <= 50_000
            assert len(there) <= LIMITS.concurrent_per_host


def test_a_megabit_is_an_eighth_of_a_megabyte():
    node = DataNode(name="a", bandwidth_mbps=20)
    assert host_limit_kbps(node, "a", LIMITS) == 2_500
    got = answer(ask(host_kbps=2_500), [], LIMITS, 0.0)
    assert (got.allocated_mbps, got.bytes_per_s) == (20.0, 2_500_000.0)


@pytest.mark.parametrize(
    ("node", "name", "kbps"),
    [
        (None, "gh200-3", 312_500),
        (None, "lambda-gh200-a", 312_500),
        (DataNode(name="a", provider="vast"), "a", 50_000),
        (DataNode(name="a", provider="hetzner"), "a", 100_000),
        (DataNode(name="gh200-1", bandwidth_mbps=8), "gh200-1", 1_000),
        (None, "unknown", 50_000),
    ],
)
def test_what_a_host_can_take(node, name, kbps):
    assert host_limit_kbps(node, name, LIMITS) == kbps


def test_limits_that_cannot_hold_are_refused():
    with pytest.raises(ConfigError):
        BandwidthLimits(min_kbps=10, per_host_kbps=5)


def test_two_processes_share_one_line():
    async def scenario(world):
        one, two = manager(world), manager(world)
        first = await one.request_async("there", 1.0)
        assert first.allocated_kbps == 50_000
        second = await two.request_async("there", 1.0)
        assert not second.granted
        assert await one.release_async(first.allocation_id, 10, 1.0)
        assert (await two.request_async("there", 1.0)).granted

    in_transfer_world(scenario)


def test_the_plain_request_honors_the_total_limit():
    async def scenario(world):
        line = manager(world)
        got = [await line.request_async(f"host{number}") for number in range(7)]
        assert sum(item.allocated_kbps for item in got) <= line.limits.total_kbps
        assert not got[-1].granted

    in_transfer_world(scenario)


def test_a_share_is_given_back_once():
    async def scenario(world):
        line = manager(world)
        got = await line.request_async("there")
        assert await line.release_async(got.allocation_id) is True
        assert await line.release_async(got.allocation_id) is False

    in_transfer_world(scenario)


def test_who_waits_gets_the_share_as_soon_as_it_comes_back():
    async def scenario(world):
        line = manager(world)
        first = await line.request_async("there")

        async def give_back():
            await world.runtime.sleep(7)
            await line.release_async(first.allocation_id)

        async with asyncio.TaskGroup() as group:
            group.create_task(give_back())
            waiting = [group.create_task(line.request_async("there", wait_s=60)) for _ in range(2)]
        granted = sorted(task.result().granted for task in waiting)
        assert granted == [False, True]
        assert world.runtime.monotonic_s() == pytest.approx(60, abs=1)  # the other waited to its end

    in_transfer_world(scenario)


class GivenBackBefore:
    """A store where a share comes back just before somebody looks for the second time."""

    def __init__(self, kv, give_back):
        self._kv, self._give_back, self._looks = kv, give_back, 0

    def __getattr__(self, name):
        return getattr(self._kv, name)

    async def get(self, key):
        self._looks += 1
        if self._looks == 2:
            await self._give_back()
        return await self._kv.get(key)


def test_a_share_that_comes_back_just_after_a_refusal_is_seen_at_once():
    async def scenario(world):
        line = manager(world)
        first = await line.request_async("there")
        kv = GivenBackBefore(world.kv, lambda: line.release_async(first.allocation_id))
        late = BandwidthManager(kv=kv, runtime=world.runtime, nodes=DataNodes("here"))
        assert (await late.request_async("there", wait_s=60)).granted
        assert world.runtime.monotonic_s() < 1.0

    in_transfer_world(scenario)


def test_who_waits_looks_again_only_when_the_shares_of_its_own_node_change():
    async def scenario(world):
        line, looks = manager(world), []
        await line.request_async("there")
        other = BandwidthManager(kv=world.kv, runtime=world.runtime, nodes=DataNodes("here-2"))
        await other.request_async("there")

        class Counted(GivenBackBefore):
            async def get(self, key):
                looks.append(key)
                await world.runtime.sleep(0.001)
                return await world.kv.get(key)

        late = BandwidthManager(kv=Counted(world.kv, None), runtime=world.runtime, nodes=DataNodes("here"))
        assert not (await late.request_async("there", wait_s=5)).granted
        assert len(looks) < 10

    in_transfer_world(scenario)


def test_what_was_moved_is_counted_as_it_was():
    async def scenario(world):
        line = manager(world)
        for number in range(3):
            got = await line.request_async(f"host{number}")
            await line.release_async(got.allocation_id, 1_000_000, 2.0)
        ended = (await line.use()).ended
        assert [(item.bytes_moved, item.seconds) for item in ended] == [(1_000_000, 2.0)] * 3

    in_transfer_world(scenario)


@given(st.lists(st.integers(1, 4 << 20), min_size=5, max_size=40), st.floats(1e5, 1e8))
def test_a_pace_holds_its_rate_beyond_the_first_burst(sizes, rate):
    async def run():
        runtime = SimulatedRuntime()
        pace = RatePace(rate, runtime)
        for size in sizes:
            await pace.spend(size)
        burst = max(0.25 * rate, 2 << 20)
        assert runtime.monotonic_s() * rate >= sum(sizes) - burst - 1
        assert runtime.monotonic_s() * rate <= max(0, sum(sizes) - burst) + 1 + len(sizes)

    simulate(run())


def test_the_plain_functions_work_without_a_loop():
    got = request_bandwidth("somewhere", 10.0, priority="high")
    status = get_host_bandwidth_status("somewhere")
    assert (status["active_transfers"], status["used_kbps"]) == (1, got.allocated_kbps)
    assert status["available_kbps"] == status["limit_kbps"] - status["used_kbps"]
    assert release_bandwidth(got.allocation_id, 5_000_000, 1.0) is True
    assert release_bandwidth(got.allocation_id) is False
    assert get_bandwidth_manager().get_stats()["mean_kbps"] == pytest.approx(5_000)
    asyncio.run(close_engine())


def taken(host, kbps, *, expires_at=100.0):
    return BandwidthAllocation(host=host, granted=True, allocated_kbps=kbps, expires_at=expires_at)


def manager(world):
    return BandwidthManager(kv=world.kv, runtime=world.runtime, nodes=DataNodes("here"))
