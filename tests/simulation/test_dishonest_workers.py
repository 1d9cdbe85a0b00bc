"""A worker whose games are wrong is set aside soon, whoever else lies; an honest one never is."""

import random

import pytest
from learning_world import World

from ringrift.learning.facts.facts import WorkerSetAside
from ringrift.learning.facts.ledger import read_facts
from ringrift.learning.facts.records import SUSPICION_MAX, ShardState, WorkerStanding, makers_of
from ringrift.learning.replay import replay
from ringrift.testing.simulation import simulate

CONFIG = "square8_2p"
FILES_MAX = 8  # of games that a worker brings that alters all of them


def lived(seed, hours=0.4, *, configs=(CONFIG,), **options):
    """The world after so many hours, and the facts of its configs."""
    world, facts = World(seed, configs=configs, **options), {}

    async def main():
        await world.run(hours)
        for config in configs:
            facts[config] = await read_facts(world.engine().kv, config)

    simulate(main())
    return world, facts


def set_aside(facts):
    return {fact.worker for fact in facts if isinstance(fact, WorkerSetAside)}


@pytest.mark.parametrize(
    ("options", "files_max"),
    [
        ({"cheats": {"w1": 1.0}}, FILES_MAX),  # alters every game
        ({"broken": {"w1": 0.5}, "faults": False}, 16),  # bit errors, in what it plays and what it compares
        ({"cheats": {"w1": 1.0}, "liars": ("w1",)}, FILES_MAX),  # and says that the others are wrong
    ],
)
def test_a_worker_whose_games_are_wrong_is_set_aside_and_its_games_are_recalled(options, files_max):
    world, facts = lived(6, **options)
    assert set_aside(facts[CONFIG]) == {"w1"}
    assert world.truth.files_by["w1"] <= files_max
    state = world.controller.state(CONFIG)
    good_s = state.workers["w1"].good_until_s or 0.0
    brought = [shard for shard in state.shards.values() if shard.worker == "w1" and shard.made_s > good_s]
    assert brought
    assert {shard.state for shard in brought} == {ShardState.RECALLED}
    # Games that it began and others went on with are gone too, and no others.
    makers = {s.digest: {m.worker for m in makers_of(s, state.unfinished)} for s in state.shards.values()}
    assert {s.state for s in state.shards.values() if "w1" not in makers[s.digest]} <= {
        ShardState.CHECKED,
        ShardState.UNCHECKED,
    }
    assert replay(CONFIG, facts[CONFIG], world.rules) == []


def test_what_a_worker_brings_after_it_was_set_aside_does_not_count():
    world, facts = lived(11, cheats={"w1": 1.0}, defiant=("w1",), faults=False)
    (aside,) = [fact for fact in facts[CONFIG] if isinstance(fact, WorkerSetAside)]
    state = world.controller.state(CONFIG)
    kept = [shard for shard in state.shards.values() if shard.worker == "w1"]
    assert world.truth.files_by["w1"] > len(kept)
    assert all(shard.made_s <= aside.at_s for shard in kept)
    assert {shard.state for shard in kept} == {ShardState.RECALLED}
    assert not [match for match in state.matches if match.worker == "w1" and match.at_s > aside.at_s]


def test_one_that_only_says_that_others_are_wrong_is_the_one_that_goes():
    world, facts = lived(6, liars=("w2",), faults=False, rules={"recompute_share": 0.5})
    assert set_aside(facts[CONFIG]) == {"w2"}
    assert replay(CONFIG, facts[CONFIG], world.rules) == []


def test_of_two_workers_that_disagree_nobody_is_set_aside():
    world, facts = lived(7, slots=2, cheats={"w1": 1.0}, liars=("w1",), faults=False)
    assert set_aside(facts[CONFIG]) == set()
    workers = world.controller.state(CONFIG).workers
    assert workers["w0"].disputed == workers["w1"].disputed >= 1


def test_what_one_config_finds_out_counts_for_all():
    configs = (CONFIG, "hex8_2p")
    world, facts = lived(8, configs=configs, cheats={"w1": 1.0}, faults=False)
    for config in configs:
        assert set_aside(facts[config]) == {"w1"}
        states = {s.state for s in world.controller.state(config).shards.values() if s.worker == "w1"}
        assert states <= {ShardState.RECALLED}
        assert replay(config, facts[config], world.rules) == []


def test_a_worker_is_tried_again_when_its_time_is_over():
    world, facts = lived(9, 0.7, cheats={"w1": 1.0}, faults=False, rules={"set_aside_s": 900.0})
    times = [fact for fact in facts[CONFIG] if isinstance(fact, WorkerSetAside)]
    assert len(times) >= 2
    assert {fact.worker for fact in times} == {"w1"}
    assert world.truth.files_by["w1"] <= (len(times) + 1) * FILES_MAX


def test_honest_workers_are_compared_and_never_set_aside():
    world, facts = lived(10, 0.5, rules={"recompute_share": 1.0})
    state = world.controller.state(CONFIG)
    assert set_aside(facts[CONFIG]) == set()
    assert sum(each.compared for each in state.workers.values()) > 20
    assert all(each.compared and not each.faults for each in state.workers.values())


def test_the_rule_itself_almost_never_accuses_an_honest_worker():
    """One comparison of a thousand fails by chance: about one accusation in 70,000."""
    lots, standing, accused = random.Random(1), WorkerStanding("w"), 0
    for _ in range(200_000):
        if lots.random() < 0.001:
            standing.failed("by chance")
        else:
            standing.agreed(0.0)
        if standing.suspicion >= SUSPICION_MAX:
            accused += 1
            standing.start_again()
    assert accused <= 8
