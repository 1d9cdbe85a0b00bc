"""How a machine's time is divided: it settles after every change, and no config is left out.

`make effort` does the same for machines of 1 to 1,000 slots, and draws it.
"""

import pytest
from effort_world import EffortWorld, settling, shares_over_time

from ringrift.testing.simulation import simulate

CONFIGS = ("square8_2p", "connect_four_2p")
CHANGE_H, WINDOW_S = 0.45, 600.0
SETTLED_S_MAX = 600.0
BAND = 0.13  # two judgements of half a minute more or less are a tenth of the window of a single slot
IDLE_S_MAX = 300.0


@pytest.fixture(scope="module")
def world():
    """Workers come, and go again."""
    made = EffortWorld(1, configs=CONFIGS, slots=1, changes=((CHANGE_H, 3), (2 * CHANGE_H, 1)))
    simulate(made.run(3 * CHANGE_H))
    return made


def test_the_shares_settle_after_every_change_without_swinging(world):
    shares = shares_over_time(world.served, window_s=WINDOW_S, step_s=30.0)
    assert set(shares) == {"playing", "training", "judging", "preparing"}
    for number in (1, 2):
        change_s = 3600 * CHANGE_H * number
        until_s = change_s + 3600 * CHANGE_H - WINDOW_S
        for group, points in shares.items():
            found = settling(points, change_s=change_s, until_s=until_s, band=BAND)
            assert found.settled_s <= SETTLED_S_MAX, (number, group, found)
            assert found.crossings <= 2, (number, group, found)


def test_rows_are_trained_on_and_judging_keeps_to_its_share(world):
    for config in CONFIGS:
        state = world.controller.state(config)
        assert state.bucket.spent >= 0.7 * 4 * state.rows
        assert state.promotions
        assert world.truth.longest_idle_s[config] <= IDLE_S_MAX
    settled = shares_over_time(world.served, window_s=3600.0, step_s=300.0)
    assert max(share for _, share in settled["judging"]) < 0.2
    assert max(share for _, share in settled["preparing"]) < 0.1
