"""Three processes on one log under seeded faults: nothing lost, nothing repeated, nothing leaked."""

from collections import defaultdict

import pytest
from events_world import CROSSING, World

from ringrift.testing.simulation import simulate

ROUNDS = 40
FAULTS = {
    *("crash", "crash in a handler", "crash in an append", "clean restart", "clock jumped", "wake-up lost"),
    *("append refused", "read refused", "commit refused", "handler failed", "handler hung"),
}


async def live(seed, folder):
    world = World(seed, folder)
    await world.run(rounds=ROUNDS)
    await world.settle(limit_s=3600)
    left = world.leftovers()
    for process in world.processes.values():
        await process.stop()
    return world, left


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    return {seed: simulate(live(seed, tmp_path_factory.mktemp(f"seed{seed}"))) for seed in range(6)}


def test_the_runs_reached_their_faults(worlds):
    for seed, (world, _) in worlds.items():
        assert len(world.acknowledged) > 100, seed
    reached = sum((world.faults for world, _ in worlds.values()), start=type(worlds[0][0].faults)())
    assert {name for name, count in reached.items() if count >= 3} >= FAULTS, reached


def test_every_acknowledged_event_is_handled_in_every_process(worlds):
    for seed, (world, _) in worlds.items():
        lost = sorted(world.expected() - world.completions.keys())
        assert lost == [], (seed, len(lost), lost[:5])


def test_none_is_handled_twice(worlds):
    """A handler that ends is noted at the same instant, so only a crash inside it may run it again."""
    for seed, (world, _) in worlds.items():
        twice = {key: count for key, count in world.completions.items() if count > 1}
        assert twice == {}, seed


def test_what_is_started_again_is_flagged(worlds):
    for seed, (world, _) in worlds.items():
        first = set()
        for start in world.starts:
            key = (start.life.partition(".")[0], start.subscription, start.publisher, start.number)
            assert key not in first or start.redelivered, (seed, start)
            first.add(key)


def test_each_subscription_hears_others_in_the_order_of_the_log_and_its_own_as_published(worlds):
    for seed, (world, _) in worlds.items():
        foreign, own = defaultdict(list), defaultdict(list)
        for start in world.starts:
            if start.redelivered or start.event_type != CROSSING:
                continue  # a handler may publish before or after the process's publisher
            if start.publisher == start.life:
                own[start.life, start.subscription].append(start.number)
            else:
                foreign[start.life, start.subscription].append(start.seq)
        for heard in (*foreign.values(), *own.values()):
            assert heard == sorted(heard), (seed, heard)


def test_nothing_stays_behind(worlds):
    for seed, (_, left) in worlds.items():
        assert left == [], (seed, left)


def test_the_same_seed_is_the_same_story(worlds, tmp_path):
    again, _ = simulate(live(0, tmp_path))
    assert again.starts == worlds[0][0].starts
    assert again.faults == worlds[0][0].faults
