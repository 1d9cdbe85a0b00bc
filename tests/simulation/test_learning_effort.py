"""How a machine's time is divided: it settles after every change, and no config is left out.

`make effort` does the same for machines of 1 to 1,000 slots and up to twelve configs, and draws it.
"""

import sys

import pytest
from effort_world import EffortWorld, Machine, measured

from ringrift.learning.facts.state import fold
from ringrift.learning.judging.feedback import RatingCurves
from ringrift.learning.plan.orders import ConfigPlan, outlook
from ringrift.learning.plan.plan import plan_next_games
from ringrift.testing.simulation import simulate

CONFIGS = ("square8_2p",)
PHASE_S = 1200.0
MACHINES = (
    Machine(0.0, 1),
    Machine(PHASE_S, 1, 1, "a GPU comes"),
    Machine(2 * PHASE_S, 1, 0, "the GPU goes"),
    Machine(3 * PHASE_S, 4, 0, "slots come"),
)


@pytest.fixture(scope="module")
def world():
    made = EffortWorld(1, configs=CONFIGS, machines=MACHINES)
    simulate(made.run(len(MACHINES) * PHASE_S))
    return made


def test_the_shares_settle_after_every_change_and_nobody_starves(world):
    found = measured(world, until_s=len(MACHINES) * PHASE_S)
    assert found["missed"] == []
    assert [each["what"] for each in found["changes"]] == ["a GPU comes", "the GPU goes", "slots come"]
    assert all(set(each["shares"]) >= {"playing", "training", "judging"} for each in found["changes"])
    assert all(each["shares"]["judging"]["final"] <= 0.17 for each in found["changes"])
    assert found["rows_used"] >= 0.9
    assert found["promotions"] > 10
    assert found["judged_though_worse"] > 0, "it never came to what is to be seen"


def test_the_next_order_of_games_costs_the_same_however_long_the_run_is(world):
    """Counted, not timed; a few calls come with more slots and open jobs, and none with what is past."""
    state, facts = world.controller.state(CONFIGS[0]), world.facts[CONFIGS[0]]
    early = fold(state.config, facts[: len(facts) // 3], bucket_rules=world.rules.bucket)
    assert calls_to_plan(world, state) < 2 * calls_to_plan(world, early)


def calls_to_plan(world, state):
    snapshot = outlook(state, world.rules, RatingCurves(), now_s=state.last_s)
    calls = 0

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        plan_next_games(snapshot, ConfigPlan())
    finally:
        sys.setprofile(None)
    return calls
