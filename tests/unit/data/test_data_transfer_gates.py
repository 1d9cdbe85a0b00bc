"""Which transfer is let in, and which transport is tried first."""

import asyncio
from collections import Counter

import pytest

from ringrift.data.transfer.contract import TransferPriority, TransferRefused
from ringrift.data.transfer.limits import GateLimits, TransferGates
from ringrift.data.transfer.peers import NODE_LIMIT, TRANSPORT_LIMITS, TransferHealth
from ringrift.testing.simulation import SimulatedRuntime, simulate


def test_never_more_at_once_than_the_limits_allow_whoever_gives_up():
    runtime = SimulatedRuntime(seed=3)
    gates = TransferGates(GateLimits(total=4, per_node=2))
    seen, refused, cut, inside = [], [], [], Counter()

    async def one(number):
        node = f"node{number % 3}"
        try:
            async with asyncio.timeout(runtime.rng.choice([2.0, 20.0, 500.0])):
                async with gates.entered(node, priority=TransferPriority.NORMAL, wait_s=15):
                    inside[node] += 1
                    seen.append((gates.active, inside[node]))
                    try:
                        await runtime.sleep(runtime.rng.uniform(0.1, 5))
                    finally:
                        inside[node] -= 1
        except TransferRefused:
            refused.append(number)
        except TimeoutError:
            cut.append(number)

    async def run():
        async with asyncio.TaskGroup() as group:
            for number in range(120):
                group.create_task(one(number))
        assert gates.active == 0

    simulate(run())
    assert max(active for active, _ in seen) == 4
    assert max(at_node for _, at_node in seen) == 2
    assert refused  # the run met both ways out
    assert cut


def test_the_urgent_go_in_first():
    runtime, order = SimulatedRuntime(), []
    gates = TransferGates(GateLimits(total=1, per_node=1))

    async def one(priority):
        async with gates.entered("a", priority=priority, wait_s=100):
            order.append(priority)
            await runtime.sleep(1)

    async def run():
        async with asyncio.TaskGroup() as group:
            for priority in (TransferPriority.NORMAL, *TransferPriority):
                group.create_task(one(priority))
                await runtime.sleep(0)

    simulate(run())
    assert order == [TransferPriority.NORMAL, *reversed(TransferPriority)]


def test_a_full_node_does_not_keep_others_waiting():
    gates = TransferGates(GateLimits(total=3, per_node=1))

    async def run():
        async with (
            gates.entered("a", priority=TransferPriority.NORMAL, wait_s=1),
            asyncio.TaskGroup() as group,
        ):
            waiting = group.create_task(enter("a"))
            await SimulatedRuntime().sleep(0)
            await enter("b")
            assert not waiting.done()
            waiting.cancel()

    async def enter(node):
        async with gates.entered(node, priority=TransferPriority.NORMAL, wait_s=10):
            pass

    simulate(run())


def test_the_last_resort_is_last_however_well_it_did():
    health = TransferHealth()
    health.succeeded("a", "base64", bytes_moved=1 << 30, seconds=1)
    health.failed("a", "rsync", now_s=0.0)
    assert health.ranked("a", ["base64", "rsync", "http"], now_s=1.0) == ["http", "rsync", "base64"]


def test_a_transport_that_is_twice_as_fast_goes_first():
    health = TransferHealth()
    health.succeeded("a", "http", bytes_moved=100 << 20, seconds=100)
    health.succeeded("a", "rsync", bytes_moved=100 << 20, seconds=10)
    assert health.ranked("a", ["http", "rsync"], now_s=0.0) == ["rsync", "http"]
    assert health.ranked("b", ["http", "rsync"], now_s=0.0) == ["http", "rsync"]


def test_small_transfers_say_nothing_about_speed():
    health = TransferHealth()
    health.succeeded("a", "http", bytes_moved=1_000, seconds=10)
    health.succeeded("a", "rsync", bytes_moved=100 << 20, seconds=1)
    assert health.ranked("a", ["http", "rsync"], now_s=0.0) == ["http", "rsync"]


def test_an_old_failure_is_forgiven():
    health = TransferHealth()
    health.failed("a", "http", now_s=0.0)
    assert health.ranked("a", ["http", "rsync"], now_s=1.0) == ["rsync", "http"]
    assert health.ranked("a", ["http", "rsync"], now_s=601.0) == ["http", "rsync"]


def test_after_its_pause_one_call_at_a_time_finds_out():
    health, limit = TransferHealth(), TRANSPORT_LIMITS["rsync"]
    for _ in range(limit.failures_max):
        health.failed("a", "rsync", now_s=0.0)
    assert health.ranked("a", ["rsync"], now_s=1.0) == []
    later = limit.cooldown_s
    assert health.ranked("a", ["rsync"], now_s=later) == ["rsync"]
    health.begins("a", "rsync", now_s=later, for_s=60)
    assert health.ranked("a", ["rsync"], now_s=later + 1) == []
    health.failed("a", "rsync", now_s=later + 2)
    assert health.ranked("a", ["rsync"], now_s=later + 2 + limit.cooldown_s) == []  # longer this time
    health.begins("a", "rsync", now_s=1e4, for_s=60)
    health.succeeded("a", "rsync")
    assert health.ranked("a", ["rsync"], now_s=1e4 + 1) == ["rsync"]


def test_a_trial_that_was_cancelled_does_not_close_the_way():
    health = TransferHealth()
    for _ in range(NODE_LIMIT.failures_max):
        health.failed("a", now_s=0.0)
    health.begins("a", now_s=NODE_LIMIT.cooldown_s, for_s=1e6)
    health.ended("a")
    assert health.track("a").admits(NODE_LIMIT.cooldown_s + 1)


def test_a_node_that_is_well_again_starts_afresh():
    health = TransferHealth()
    for _ in range(5):
        health.failed("a", now_s=0.0)
        health.failed("a", "http", now_s=0.0)
    health.forgive("a")
    assert health.track("a").admits(1.0)
    assert health.ranked("a", ["http", "rsync"], now_s=1.0) == ["http", "rsync"]


@pytest.mark.parametrize(("total", "per_node"), [(0, 0), (2, 3), (1, 0)])
def test_gates_that_let_nobody_in_are_refused(total, per_node):
    with pytest.raises(Exception, match="at once"):
        GateLimits(total=total, per_node=per_node)
