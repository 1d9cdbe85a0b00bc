"""Bloom filters and stalled sources: hints that cost at most time."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringrift.data.transfer.peers import (
    BloomFilter,
    Holdings,
    SyncStallHandler,
)
from ringrift.engine.opening import close_engine, memory_engine
from ringrift.errors import ConfigError, Corrupt
from ringrift.testing.simulation import ManualRuntime, SimulatedRuntime, simulate


@given(st.sets(st.text(max_size=20), max_size=200))
def test_a_member_is_never_missed_also_after_a_journey(members):
    summary = BloomFilter.for_items(max(1, len(members)))
    summary.add_many(members)
    read = BloomFilter.from_bytes(summary.to_bytes())
    assert all(member in summary and member in read for member in members)
    assert read.stats == summary.stats


def test_it_errs_about_as_often_as_it_was_made_for():
    summary = BloomFilter.for_items(5_000, 0.01)
    summary.add_many(f"member {number}" for number in range(5_000))
    wrong = sum(f"stranger {number}" in summary for number in range(20_000))
    assert wrong / 20_000 < 0.02
    assert summary.estimated_items == pytest.approx(5_000, rel=0.05)


@given(st.sets(st.integers(0, 999)), st.sets(st.integers(0, 999)))
def test_the_merged_filter_has_the_members_of_both(left, right):
    one, two = BloomFilter.for_items(10_000, 0.01), BloomFilter.for_items(10_000, 0.01)
    one.add_many(map(str, left))
    two.add_many(map(str, right))
    both = one.merge(two)
    assert all(str(member) in both for member in left | right)
    assert one.intersection_ratio(both) == (1.0 if left else 0.0)


def test_filters_of_different_shape_do_not_mix():
    one, other = BloomFilter.for_items(10_000, 0.01), BloomFilter.for_items(100, 0.001)
    with pytest.raises(ValueError, match="different size"):
        one.merge(other)
    with pytest.raises(ValueError, match="different size"):
        one.intersection_ratio(other)


@pytest.mark.parametrize("content", [b"", b"nonsense", BloomFilter(64, 1).to_bytes()[:-2]])
def test_what_is_no_filter_is_refused(content):
    with pytest.raises(Corrupt):
        BloomFilter.from_bytes(content)


@pytest.mark.parametrize(("expected", "rate"), [(0, 0.01), (10, 0.0), (10, 1.0)])
def test_a_filter_for_nothing_is_refused(expected, rate):
    with pytest.raises(ConfigError):
        BloomFilter.for_items(expected, rate)


def test_a_node_publishes_what_it_holds():
    async def run():
        engine = memory_engine(SimulatedRuntime())
        digests = [await engine.blobs.put_bytes(str(number).encode()) for number in range(50)]
        holdings = Holdings(engine.kv, engine.blobs)
        await holdings.publish("here")
        hint = await holdings.of("here")
        assert all(digest in hint for digest in digests)
        assert await holdings.of("there") is None
        await engine.kv.put("data/holdings/there", b"nonsense")
        assert await holdings.of("there") is None

    simulate(run())


def in_stalls(scenario):
    runtime = ManualRuntime()
    runtime.advance(10_000.0)
    scenario(SyncStallHandler(runtime=runtime), runtime)
    asyncio.run(close_engine())


def test_a_source_that_stood_still_is_left_alone_for_a_while():
    def scenario(stalls, runtime):
        stalls.record_stall("a")
        assert stalls.get_alternative_source("b", ["a", "b", "c"]) == "c"
        assert stalls.get_alternative_source({"b", "c"}, ["a", "b", "c"]) is None
        runtime.advance(301)
        assert stalls.get_alternative_source("b", ["a", "b", "c"]) == "a"

    in_stalls(scenario)


def test_stalls_without_a_way_out_are_reported():
    def scenario(stalls, runtime):
        assert stalls.check_stall(runtime.now_s() - 601)
        assert not stalls.check_stall(runtime.now_s() - 599)
        for number in range(6):
            assert stalls.health_check().status == "running"
            stalls.record_failed_recovery(f"source {number}")
        assert stalls.health_check().status == "degraded"

    in_stalls(scenario)
