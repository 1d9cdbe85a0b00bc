"""Named leases: one holder at a time, tokens that grow, and a holder that stops before its time is up."""

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringrift.engine.blocking import run_blocking
from ringrift.engine.leases import (
    Holding,
    LeaseConfig,
    NamedLease,
    Renew,
    Stop,
    Wait,
    decide,
    granted,
    lease_changed,
    lease_holder,
)
from ringrift.engine.memory import MemoryStore, memory_engine
from ringrift.errors import ConfigError, Conflict, Corrupt, LeaseLost, Unavailable
from ringrift.testing.simulation import ManualRuntime, SimulatedRuntime, simulate

CONFIG = LeaseConfig(lease_s=15.0, renew_s=2.0)


class CuttableStore:
    """A key-value store whose link can be cut: it then fails at once, or never answers."""

    def __init__(self, kv, *, hangs=False):
        self.kv, self.hangs, self.cut = kv, hangs, False

    def __getattr__(self, name):
        async def call(*arguments, **options):
            if self.cut and self.hangs:
                await asyncio.Event().wait()
            if self.cut:
                raise Unavailable("the store is out of reach")
            return await getattr(self.kv, name)(*arguments, **options)

        return call

    def watch(self, *arguments, **options):
        return self.kv.watch(*arguments, **options)


def lease(kv, runtime, holder="a", config=CONFIG):
    return NamedLease(kv, runtime, "leader", holder=holder, config=config)


@pytest.mark.parametrize(("lease_s", "renew_s"), [(15, 2.5), (6, 1), (1, 0), (-1, 1), (10, 30)])
def test_a_config_that_cannot_be_safe_is_refused(lease_s, renew_s):
    with pytest.raises(ConfigError, match=r"twice the renewal|number of seconds"):
        LeaseConfig(lease_s=lease_s, renew_s=renew_s)


def test_a_holder_waits_renews_and_stops_at_two_thirds():
    holding = granted(CONFIG, revision=7, asked_s=100.0)
    assert holding == Holding(token=7, revision=7, renew_at_s=102.0, stop_at_s=110.0)
    assert decide(holding, CONFIG, 100.5) == Wait(1.5)
    assert decide(holding, CONFIG, 102.0) == Renew(answer_within_s=2.0)
    assert decide(holding, CONFIG, 109.5) == Renew(answer_within_s=0.5)
    assert decide(holding, CONFIG, 110.0) == Stop()
    renewed = granted(CONFIG, revision=9, asked_s=102.0, token=7)
    assert (renewed.token, renewed.revision) == (7, 9)


@given(
    lease_s=st.floats(0.1, 1e4),
    share=st.floats(0.01, 0.16),
    late_s=st.floats(0, 1e4),
)
def test_no_decision_lets_a_holder_act_past_its_stop(lease_s, share, late_s):
    config = LeaseConfig(lease_s=lease_s, renew_s=lease_s * share)
    holding = granted(config, revision=1, asked_s=0.0)
    decision = decide(holding, config, late_s)
    if late_s >= holding.stop_at_s:
        assert decision == Stop()
    elif isinstance(decision, Wait):
        assert late_s + decision.seconds <= holding.stop_at_s + 1e-6
    else:
        assert late_s + decision.answer_within_s <= holding.stop_at_s + 1e-6
    assert holding.stop_at_s <= lease_s * 2 / 3 + 1e-6


def test_one_holder_at_a_time_and_tokens_grow():
    async def main():
        runtime, store = SimulatedRuntime(), MemoryStore()
        kv = memory_engine(runtime, store).kv
        first, second = lease(kv, runtime, "a"), lease(kv, runtime, "b")
        assert await first.try_acquire()
        assert not await second.try_acquire()
        seen = await lease_holder(kv, "leader")
        assert (seen.holder, seen.token) == ("a", first.token)
        token = first.token
        await runtime.sleep(2)
        await first.renew()
        assert first.token == token
        seen = await lease_holder(kv, "leader")
        assert (seen.holder, seen.token) == ("a", token)
        await first.release()
        await first.release()
        assert await lease_holder(kv, "leader") is None
        assert await second.try_acquire()
        assert second.token > token
        with pytest.raises(LeaseLost):
            _ = first.token

    simulate(main())


def test_a_waiting_contender_gets_it_the_moment_it_is_free():
    async def main():
        runtime, store = SimulatedRuntime(), MemoryStore()
        kv = memory_engine(runtime, store).kv
        first, second, third = (lease(kv, runtime, name) for name in "abc")
        await first.try_acquire()
        waiting = asyncio.create_task(second.acquire(wait_s=100))
        await runtime.sleep(5)
        freed_s = runtime.monotonic_s()
        await first.release()
        await waiting
        assert runtime.monotonic_s() == freed_s
        # A holder that vanished is replaced when its lease has run out, and not before.
        await third.acquire(wait_s=100)
        assert runtime.monotonic_s() - freed_s == pytest.approx(15, abs=0.1)

    simulate(main())


def test_a_contender_gives_up_in_time_and_says_who_holds_it():
    async def main():
        runtime, store = SimulatedRuntime(), MemoryStore()
        kv = memory_engine(runtime, store).kv
        async with lease(kv, runtime, "a").hold():
            with pytest.raises(Conflict, match="held by a"):
                await lease(kv, runtime, "b").acquire(wait_s=60)
            assert runtime.monotonic_s() == pytest.approx(60, abs=0.1)

    simulate(main())


def test_a_block_holds_for_hours_and_gives_back_at_its_end():
    async def main():
        runtime, store = SimulatedRuntime(), MemoryStore()
        kv = memory_engine(runtime, store).kv
        mine = lease(kv, runtime)
        async with mine.hold() as token:
            await runtime.sleep(3 * 3600)
            assert mine.token == token
        assert await lease_holder(kv, "leader") is None

    simulate(main())


def test_an_error_in_the_block_comes_out_as_it_is():
    async def main():
        runtime, store = SimulatedRuntime(), MemoryStore()
        kv = memory_engine(runtime, store).kv
        with pytest.raises(ZeroDivisionError):
            async with lease(kv, runtime).hold():
                _ = 1 / 0
        assert await lease_holder(kv, "leader") is None

    simulate(main())


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("cut_after_s", [0.5, 1.9, 2.1, 7.3, 100.0])
def test_a_holder_cut_off_from_the_store_stops_before_another_begins(hangs, cut_after_s):
    async def main():
        runtime, store = SimulatedRuntime(), MemoryStore()
        kv = memory_engine(runtime, store).kv
        link = CuttableStore(kv, hangs=hangs)
        at_s = {}

        async def first():
            async with lease(link, runtime, "a").hold():
                try:
                    await asyncio.Event().wait()
                finally:
                    at_s["first ended"] = runtime.monotonic_s()

        async def second():
            await lease(kv, runtime, "b").acquire(wait_s=1000)
            at_s["second began"] = runtime.monotonic_s()

        async def cut():
            await runtime.sleep(cut_after_s)
            link.cut = True

        outcomes = await asyncio.gather(first(), second(), cut(), return_exceptions=True)
        assert isinstance(outcomes[0], LeaseLost)
        assert outcomes[1:] == [None, None]
        return at_s["first ended"], at_s["second began"]

    ended_s, began_s = simulate(main(), limit_s=10_000)
    assert ended_s < began_s
    assert began_s - cut_after_s < 20


class ForgetfulStore:
    """Stores, and now and then never says so."""

    def __init__(self, kv, *, silent_calls):
        self._kv, self._silent = kv, set(silent_calls)
        self.calls = 0

    def __getattr__(self, name):
        return getattr(self._kv, name)

    async def update(self, *args, **kwargs):
        revision = await self._kv.update(*args, **kwargs)
        self.calls += 1
        if self.calls in self._silent:
            await asyncio.Event().wait()
        return revision


def test_a_renewal_that_was_stored_but_not_answered_does_not_cost_the_lease():
    async def main():
        runtime = SimulatedRuntime()
        kv = memory_engine(runtime).kv
        store = ForgetfulStore(kv, silent_calls=(2, 5, 6))
        mine = lease(store, runtime, "a")
        async with mine.hold() as token:
            await runtime.sleep(60)
            assert mine.token == token
            assert store.calls > 10
            seen = await lease_holder(kv, "leader")
            assert (seen.holder, seen.token) == ("a", token)
        assert await lease_holder(kv, "leader") is None

    simulate(main())


def test_a_lease_whose_last_renewal_was_not_answered_is_given_back_all_the_same():
    async def main():
        runtime = SimulatedRuntime()
        kv = memory_engine(runtime).kv
        mine = lease(ForgetfulStore(kv, silent_calls=(1,)), runtime, "a")
        await mine.try_acquire()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await mine.renew()
        await mine.release()
        assert await lease_holder(kv, "leader") is None

    simulate(main())


def test_a_holder_that_slept_too_long_finds_itself_replaced():
    async def main():
        runtime, store = SimulatedRuntime(), MemoryStore()
        kv = memory_engine(runtime, store).kv
        sleeper, other = lease(kv, runtime, "a"), lease(kv, runtime, "b")
        await sleeper.try_acquire()
        stale_token = sleeper.token
        await runtime.sleep(10)
        assert not sleeper.held
        await runtime.sleep(6)
        await other.acquire(wait_s=0)
        assert other.token > stale_token
        with pytest.raises(LeaseLost):
            await sleeper.renew()
        await sleeper.release()
        assert (await lease_holder(kv, "leader")).holder == "b"

    simulate(main())


def test_a_key_that_is_no_lease_is_told_as_such():
    async def main():
        runtime = SimulatedRuntime()
        kv = memory_engine(runtime).kv
        await kv.put("lease/leader", b"not json")
        with pytest.raises(Corrupt, match="no lease"):
            await lease_holder(kv, "leader")

    simulate(main())


@pytest.mark.parametrize("wrong", [math.inf, math.nan, -1.0, 0.0, 1e9, True, "15"])
def test_a_lease_has_an_end(wrong):
    with pytest.raises(ConfigError):
        LeaseConfig(lease_s=wrong)
    with pytest.raises(ConfigError):
        LeaseConfig(lease_s=15.0, renew_s=wrong)


@pytest.mark.parametrize("wrong", [math.inf, math.nan, -1.0, 1e9, None, "1"])
async def test_a_wait_for_a_lease_has_an_end(wrong):
    runtime = ManualRuntime()
    kv = memory_engine(runtime).kv
    lease = NamedLease(kv, runtime, "leader", holder="a")
    with pytest.raises(ConfigError):
        await lease.acquire(wait_s=wrong)
    with pytest.raises(ConfigError):
        await lease_changed(kv, "leader", timeout_s=wrong)
    for name, holder in (
        ("", "a"),
        ("x\udcff", "a"),
        ("leader", ""),
        ("leader", "b\udcff"),
        ("n" * 600, "a"),
    ):
        if name:
            with pytest.raises(ConfigError):
                NamedLease(kv, runtime, name, holder=holder)
    assert await lease.acquire(wait_s=0) > 0


def test_a_blocking_call_has_an_end():
    async def work():
        return 1

    for wrong in (math.inf, math.nan, -1.0):
        with pytest.raises(ConfigError):
            run_blocking(work(), timeout_s=wrong)


class FreedMeanwhile:
    """A store that begins to watch with the first question, where the lease is freed before that."""

    def __init__(self, kv):
        self._kv = kv

    async def get(self, key):
        entry = await self._kv.get(key)
        await self._kv.delete(key)
        return entry

    async def watch(self, prefix, *, after=None):
        async for change in self._kv.watch(prefix, after=after):
            yield change


def test_a_lease_that_is_freed_just_before_the_watch_begins_is_not_waited_for():
    async def main():
        runtime = SimulatedRuntime(hostname="a")
        kv = memory_engine(runtime).kv
        lease = NamedLease(kv, runtime, "leader", holder="a", config=LeaseConfig(lease_s=500.0, renew_s=10.0))
        assert await lease.try_acquire()
        await lease_changed(FreedMeanwhile(kv), "leader", timeout_s=100.0)
        assert runtime.monotonic_s() < 1.0

    simulate(main(), limit_s=1000)


def test_a_lease_whose_name_begins_alike_wakes_nobody():
    async def main():
        runtime = SimulatedRuntime(hostname="a")
        kv = memory_engine(runtime).kv
        config = LeaseConfig(lease_s=500.0, renew_s=10.0)
        for name in ("node1", "node10"):
            assert await NamedLease(kv, runtime, name, holder="a", config=config).try_acquire()
        await lease_changed(kv, "node1", timeout_s=100.0)
        assert runtime.monotonic_s() >= 100.0

    simulate(main(), limit_s=1000)
