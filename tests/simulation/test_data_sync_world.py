"""Hours of sync with broken lines, flipped bits, hanging transfers and killed nodes, in seconds."""

import pytest
from sync_world import SyncWorld

from ringrift.data.config import DataNode
from ringrift.testing.simulation import simulate

HOUR_S = 3600.0


def cluster(*, spot=1):
    staying = [DataNode(name=f"n{number}") for number in range(4)]
    return [*staying, *(DataNode(name=f"spot{number}", ephemeral=True) for number in range(spot))]


@pytest.mark.parametrize("seed", range(2))
def test_everything_that_is_made_gets_to_other_nodes_whatever_breaks(seed):
    async def run():
        world = SyncWorld(cluster(), seed=seed, faults=0.3, interval_s=120, ephemeral_interval_s=30)
        for node in world.nodes:
            await world.start(node.name)
        made = []
        for number in range(16):
            name = world.rng.choice([node.name for node in world.nodes if node.name not in world.gone])
            made.append(await world.make(name, f"file {number}".encode()))
            await world.runtime.sleep(world.rng.uniform(1, 120))
            if number % 5 == 3:
                await world.kill(victim := world.rng.choice(sorted(world.daemons)))
                world.met.add("kill")
                await world.runtime.sleep(world.rng.uniform(1, 900))
                await world.start(victim)
            if number == 8:
                world.runtime.wall_offset_s += world.rng.choice([-7200, 7200])
                world.met.add("clock")
        await world.runtime.sleep(2 * HOUR_S)
        await world.check()
        for card in made:
            holders = await world.holders(card)
            assert len(holders - {"spot0"}) >= 2, (card.node, holders)
        games = sum(each["games_synced"] for name, each in world.heard if name == "DATA_SYNC_COMPLETED")
        copies = 0
        for card in made:
            copies += len(await world.holders(card)) - 1
        assert len(made) <= games <= copies, "each copy is counted once, and only if it is there"
        for name in list(world.daemons):
            await world.daemons.pop(name).stop()
        return world.met

    assert simulate(run()) >= {"reset", "flip", "hang", "kill", "clock"}, "the run met its faults"


@pytest.mark.parametrize("seed", range(2))
def test_what_was_made_on_a_spot_node_outlives_it(seed):
    async def run():
        world = SyncWorld(cluster(), seed=seed, faults=0.0)
        for node in world.nodes:
            await world.start(node.name)
        card = await world.make("spot0", b"the only one")
        await world.runtime.sleep(15.0)
        await world.kill("spot0")
        assert (await world.holders(card)) - {"spot0"}, "written through within two short cycles"
        for name in list(world.daemons):
            await world.daemons.pop(name).stop()

    simulate(run())


def test_nodes_that_pull_all_end_up_with_all_of_it():
    async def run():
        world = SyncWorld(cluster(spot=0), seed=1, faults=0.1)
        for node in world.nodes:
            await world.start(node.name, "pull")
        made = [await world.make(f"n{number % 4}", f"file {number}".encode()) for number in range(20)]
        await world.runtime.sleep(HOUR_S)
        for card in made:
            assert await world.holders(card) == {"n0", "n1", "n2", "n3"}
        await world.check()
        for name in list(world.daemons):
            await world.daemons.pop(name).stop()

    simulate(run())
