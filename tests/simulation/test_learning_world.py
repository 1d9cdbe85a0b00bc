"""Days of a run in seconds: what must hold whatever crashes, is lost, late or repeated."""

import pytest
from learning_world import World

from ringrift.learning.facts.records import ShardState
from ringrift.learning.plan.rules import CascadeRules, StudentRules
from ringrift.testing.simulation import simulate

CONFIGS = ("square8_2p", "hex8_2p", "connect_four_2p")
# The longest a config may be without an end of work: a few leases, a controller's absence and some jobs.
IDLE_S_MAX = 1800.0


def lived(seed, hours, *, faults=True, configs=CONFIGS, rules=None, **more):
    world = World(seed, configs=configs, faults=faults, rules=rules, **more)

    async def main():
        await world.run(hours)

    simulate(main())
    return world


@pytest.fixture(scope="module", params=[1, 2, 3])
def world(request):
    return lived(request.param, hours=2.5)


def test_the_world_was_as_bad_as_intended(world):
    assert {"controller killed", "worker killed", "job failed", "late completion refused"} <= set(
        world.truth.faults
    )


def test_every_config_learns(world):
    for config in CONFIGS:
        state = world.controller.state(config)
        strengths = [world.truth.strength[each.model] for each in state.promotions]
        assert len(state.promotions) >= 5
        assert strengths[-1] > strengths[0] + 200


def test_champions_are_examined_and_meet_each_other(world):
    for config in CONFIGS:
        done = world.controller.state(config).last_done
        assert {"diagnose", "tournament"} <= done.keys()


def test_with_all_that_can_be_switched_on_it_learns_as_well():
    rules = {
        "search_budget": "progress",
        "adaptive_steps": True,
        "students": StudentRules(distillation="small", small_net_games=5_000),
        "cascade": CascadeRules(enabled=True, rating=0.0, wait_s=900.0),
    }
    world = lived(4, hours=2.0, configs=("square8_2p", "square8_3p"), rules=rules)
    for config in ("square8_2p", "square8_3p"):
        state = world.controller.state(config)
        strengths = [world.truth.strength[each.model] for each in state.promotions]
        assert strengths[-1] > strengths[0] + 100
        assert {"distillation", "small_net"} == {each.purpose for each in state.students.values()}
        assert len(state.students) < len(state.promotions) + state.games / 5_000 + 1
        assert state.bucket.spent <= state.bucket.earned
        assert world.truth.longest_idle_s[config] <= IDLE_S_MAX
    follower = world.controller.state("square8_3p")
    first = next(iter(follower.models.values()))
    assert follower.newest_note("warm_start").details["model"] in world.truth.strength
    assert first.parent is None


def test_no_config_is_idle_beyond_its_bound(world):
    assert {config: idle for config, idle in world.truth.longest_idle_s.items() if idle > IDLE_S_MAX} == {}
    assert set(world.truth.longest_idle_s) == set(CONFIGS)


def test_rows_are_conserved(world):
    """Every row of an acknowledged game is unchecked, accepted or refused, once."""
    for config in CONFIGS:
        state = world.controller.state(config)
        kept = state.totals[f"rows {ShardState.CHECKED}"] + state.totals[f"rows {ShardState.UNCHECKED}"]
        refused = sum(world.truth.shard_rows[shard.digest] - shard.rows for shard in state.shards.values())
        assert kept + refused == world.truth.rows[config]


def test_steps_are_earned_by_rows_and_spent_once(world):
    for config in CONFIGS:
        state = world.controller.state(config)
        assert state.bucket.earned == 4 * state.rows
        assert state.bucket.spent == sum(model.steps_spent for model in state.models.values())
        assert state.bucket.available >= 0


def test_no_work_is_completed_twice_and_none_is_forgotten(world):
    assert set(world.truth.ends.values()) == {1}
    for config in CONFIGS:
        state = world.controller.state(config)
        ended = {job for job in world.truth.ends if job.startswith(config)}
        assert not ended & set(state.open_jobs)
        assert sum(state.issued.values()) >= len(ended) + len(state.open_jobs)


def test_games_in_progress_are_played_on_once(world):
    truth = world.truth
    assert set(truth.resumed.values()) == {1}
    assert truth.resumed.keys() <= truth.unfinished
    for config in CONFIGS:
        state = world.controller.state(config)
        had = {digest for digest, each in state.unfinished.items() if each.taken_by in truth.ends}
        assert had == truth.resumed.keys() & state.unfinished.keys()
        waiting = len(state.available_unfinished()) + len(state.open_of("selfplay"))
        assert waiting < len(state.unfinished) / 10  # few are left lying


def test_champions_regress_no_more_often_than_the_test_allows(world):
    """Each promotion is a test with a false alarm rate of 5 %, and 15 % for an equal model at the cap."""
    worse = total = 0
    for config in CONFIGS:
        for change in world.controller.state(config).promotions:
            if change.previous is not None:
                total += 1
                worse += world.truth.strength[change.model] < world.truth.strength[change.previous] - 10
    assert total > 20
    assert worse / total < 0.15


def test_a_lost_champion_is_never_far_below_the_best(world):
    for config in CONFIGS:
        state = world.controller.state(config)
        best = max(world.truth.strength[each.model] for each in state.promotions)
        assert world.truth.strength[state.champion] > best - 75


def test_the_same_seed_gives_the_same_run():
    first, second = (lived(7, hours=1) for _ in range(2))
    for config in CONFIGS:
        assert first.controller.state(config) == second.controller.state(config)


def test_without_faults_no_worker_waits_for_the_controller():
    world = lived(4, hours=2, faults=False, configs=CONFIGS[:1])
    state = world.controller.state(CONFIGS[0])
    assert sum(state.served_s.values()) > 0.9 * 2 * 3600 * world.slots


def test_games_that_teach_nonsense_set_training_back_and_learning_goes_on():
    world = lived(3, hours=2, faults=False, configs=CONFIGS[:1], poison_at=40)
    state = world.controller.state(CONFIGS[0])
    assert state.reset is not None
    assert "worse than the champion" in state.reset.reason
    strengths = [world.truth.strength[each.model] for each in state.promotions]
    before = [s for s, each in zip(strengths, state.promotions, strict=True) if each.at_s < state.reset.at_s]
    assert strengths[-1] > before[-1] + 100, "it is stronger than before"
