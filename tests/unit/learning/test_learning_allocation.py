"""What is ordered next: nothing that can be done waits for work that nobody wants."""

import pytest

from ringrift.learning.allocation import Capacity, choose
from ringrift.learning.snapshot import ConfigPlan
from ringrift.work.job_orders import JobOrder
from ringrift.work.shares import KIND_SHARES, FairClock

CONFIG = "connect_four_2p"


def wanting(*kinds):
    made = ConfigPlan()
    for kind in kinds:
        made.want(kind, JobOrder(config=CONFIG, params={}), "because")
    return made


def chosen(*kinds, clock, open_selfplay=0, held=()):
    choice = choose(
        {CONFIG: wanting(*kinds)},
        Capacity(2, open_selfplay, 0),
        clock,
        kind_shares=KIND_SHARES,
        config_served={},
        config_shares={CONFIG: 1.0},
        held=held,
    )
    return None if choice is None else choice.wanted.kind


EVALUATED = FairClock().started("evaluate", KIND_SHARES, expected_s=60.0)


@pytest.mark.parametrize("clock", [FairClock(), EVALUATED])
def test_where_no_games_are_wanted_nothing_waits_for_their_share(clock):
    """As when the first model is judged, and right after a start, when nobody was served yet."""
    assert chosen("evaluate", clock=clock) == "evaluate"


def test_where_games_are_held_nothing_waits_for_their_share():
    assert chosen("evaluate", "selfplay", clock=EVALUATED, held=("selfplay",)) == "evaluate"


def test_games_that_are_behind_go_first_also_while_their_queue_is_full():
    assert chosen("evaluate", "selfplay", clock=EVALUATED) == "selfplay"
    assert chosen("evaluate", "selfplay", clock=EVALUATED, open_selfplay=3) is None
