"""What results ask for: one rule, bounded, the same for the same facts."""

import pytest
from feedback_kit import checked_shard, promote, reject, trained_model
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_story import RULES, Story

from ringrift.health.run_status import Curve
from ringrift.learning.facts.state import ConfigState
from ringrift.learning.judging.feedback import (
    NEUTRAL,
    Momentum,
    TrainingIntensity,
    anomalies,
    feedback,
    gauntlet_of,
    held_loss,
    momentum_of,
    promoted_in_a_row,
    refused_in_a_row,
)
from ringrift.learning.plan.orders import Snapshot
from ringrift.learning.plan.plan import plan

NOW_S = 1_790_000_000.0
BOUNDS = {
    "exploration": (0.8, 2.0),
    "simulations": (1.0, 1.5),
    "learning_rate": (0.25, 1.2),
    "steps_per_row": (0.8, 1.25),
    "weight": (0.7, 1.3),
}


def curve(ratings, error=5.0):
    return [
        Curve(
            model=f"m{n}",
            at_s=NOW_S + 3600 * n,
            rows=1000 * (n + 1),
            rating=r,
            low=r - 2 * error,
            high=r + 2 * error,
        )
        for n, r in enumerate(ratings)
    ]


def test_a_config_of_which_nothing_is_known_is_left_alone():
    found = feedback(ConfigState("square8_2p"))
    assert found.numbers() == NEUTRAL.numbers()
    assert found.intensity is TrainingIntensity.NORMAL
    assert found.reasons == ()


def test_unscored_games_do_not_reduce_training():
    story = Story()
    checked_shard(story, games=500, quality=None)
    assert feedback(story.state).numbers() == NEUTRAL.numbers()


def test_quality_moves_intensity_and_very_poor_games_ask_for_variety():
    good, poor = Story(), Story()
    checked_shard(good, games=200, quality=0.93)
    checked_shard(poor, games=200, quality=0.45)
    assert feedback(good.state).intensity is TrainingIntensity.HOT_PATH
    low = feedback(poor.state)
    assert low.intensity is TrainingIntensity.REDUCED
    assert low.exploration == 1.3
    assert any("quality of games is 0.45" in reason for reason in low.reasons)


def test_momentum():
    assert momentum_of([1500, 1510]) is Momentum.UNKNOWN
    assert momentum_of([1500, 1510, 1530]) is Momentum.ACCELERATING
    assert momentum_of([1500, 1505, 1514]) is Momentum.IMPROVING
    assert momentum_of([1500, 1505, 1508]) is Momentum.STABLE
    assert momentum_of([1500, 1501, 1502]) is Momentum.PLATEAU
    assert momentum_of([1500, 1490, 1480]) is Momentum.REGRESSING
    assert momentum_of([2000, 1500, 1501, 1502, 1503, 1504]) is Momentum.PLATEAU  # the last five count


def test_refused_candidates_are_a_plateau_that_changes_the_numbers_and_says_why():
    story = Story()
    promote(story, trained_model(story))
    for _ in range(4):
        reject(story, trained_model(story))
    assert refused_in_a_row(story.state) == 4
    assert feedback(story.state).plateau is None
    reject(story, trained_model(story))
    found = feedback(story.state)
    assert found.plateau.level == 1
    assert found.exploration == 1.2
    assert "5 candidates in a row were refused" in found.reasons[0]
    for _ in range(5):
        reject(story, trained_model(story))
    assert feedback(story.state).learning_rate == 0.5
    promote(story, trained_model(story))  # and it is over
    assert feedback(story.state).plateau is None
    assert promoted_in_a_row(story.state) == 1


def test_a_plateau_changes_the_work_that_the_plan_orders():
    def orders(story):
        snapshot = Snapshot(story.state, RULES, story.now_s, feedback=feedback(story.state))
        return {wanted.kind: wanted.order.params for wanted in plan(snapshot).wanted}

    story = Story()
    promote(story, trained_model(story))
    before = orders(story)["selfplay"]
    for _ in range(15):
        reject(story, trained_model(story))
    after = orders(story)["selfplay"]
    assert after["temperature"] > before["temperature"]
    assert after["simulations"] > before["simulations"]
    told = feedback(story.state).remark("exploration", "simulations")
    assert told.startswith(
        "exploration x 1.5, simulations x 1.5 (plateau: 15 candidates in a row were refused"
    )
    assert NEUTRAL.remark("exploration", "simulations") == ""


def test_a_plateau_lowers_the_learning_rate_even_after_a_row_of_promotions_and_excellent_games():
    story = Story()
    checked_shard(story, games=500, quality=0.95)
    flat = feedback(story.state, curve([1000.0] * 30))
    assert flat.intensity is TrainingIntensity.HOT_PATH
    assert flat.learning_rate == 0.25
    assert flat.steps_per_row == 1.0
    assert flat.weight >= 1.0


def test_the_gauntlet_counts_the_newest_model_only_and_needs_games():
    story = Story()
    first = trained_model(story)
    story.evaluate(first, "random", wins=10, losses=30)
    promote(story, first)
    assert gauntlet_of(story.state).vs_random == 0.25
    assert feedback(story.state).weight == 1.3
    second = trained_model(story)
    story.evaluate(second, "random", wins=19, losses=1)
    assert (
        gauntlet_of(story.state).vs_random is None
    )  # 20 games are too few, and the old model's do not count
    story.evaluate(second, "random", wins=19, losses=1)
    story.evaluate(second, "heuristic", wins=36, losses=4)
    found = gauntlet_of(story.state)
    assert (found.vs_random, found.vs_heuristic) == (0.95, 0.9)
    assert feedback(story.state).exploration == 0.8


def test_losses_that_are_far_off_ask_for_variety():
    story = Story()
    for number in range(12):
        trained_model(story, loss=1.0 + 0.01 * (number % 3))
    assert anomalies(story.state) == 0
    trained_model(story, loss=9.0)
    assert anomalies(story.state) == 1
    assert feedback(story.state).exploration == 1.15


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ({}, None),
        ({"held": {"policy": 1.0, "value": 0.5}}, 1.5),
        ({"best_held": 2.0}, 2.0),
        ({"held": "x"}, None),
    ],
)
def test_the_held_out_loss_is_found_however_it_was_written(losses, expected):
    assert held_loss(losses) == expected


# --- for all stories ----------------------------------------------------------------------------------------

_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("shard"), st.integers(0, 200), st.one_of(st.none(), st.floats(0, 1))),
        st.tuples(st.just("promote"), st.floats(0, 100), st.integers(0, 64)),
        st.tuples(st.just("reject"), st.floats(0, 100), st.integers(0, 64)),
    ),
    max_size=15,
)


def life(steps) -> Story:
    story = Story()
    for kind, first, second in steps:
        if kind == "shard":
            checked_shard(story, games=first + 1, quality=second)
            continue
        model = trained_model(story, loss=first)
        story.evaluate(model, "random", wins=second, losses=64 - second)
        (promote if kind == "promote" else reject)(story, model)
    return story


@settings(max_examples=60, deadline=None)
@given(_STEPS, st.lists(st.floats(0, 3000), max_size=40))
def test_whatever_happens_every_number_stays_in_its_bounds_and_repeats(steps, ratings):
    story = life(steps)
    found = feedback(story.state, curve(ratings))
    for name, (low, high) in BOUNDS.items():
        assert low <= getattr(found, name) <= high, name
    assert feedback(life(steps).state, curve(ratings)) == found


@settings(max_examples=40, deadline=None)
@given(st.floats(0, 1), st.floats(0, 1))
def test_better_games_never_ask_for_less_training_or_more_variety(one, other):
    worse, better = Story(), Story()
    checked_shard(worse, games=200, quality=min(one, other))
    checked_shard(better, games=200, quality=max(one, other))
    low, high = feedback(worse.state), feedback(better.state)
    assert low.intensity <= high.intensity
    assert low.exploration >= high.exploration
