"""What people are shown of a run: cost by what it bought, losses of any job, first places of many seats."""

from learning_story import RULES, Story

from ringrift.learning.facts import Promoted
from ringrift.learning.feedback_rules import feedback, gauntlet_of
from ringrift.learning.generator import who_plays
from ringrift.learning.orders import evaluate_order
from ringrift.learning.promotion import Pairing
from ringrift.learning.run_status import Curve
from ringrift.learning.status_view import AroundConfig, config_status, cost


def a_champion(config="square8_2p", **fields):
    story = Story(config)
    story.play()
    story.check()
    story.export()
    model = story.train(**fields)
    story.write(Promoted(at_s=story.now_s, model=model, previous=None, reason="won"))
    return story, model


def points(*ratings):
    return [
        Curve(model="m", at_s=float(at), rows=1, rating=rating, low=rating, high=rating)
        for at, rating in enumerate(ratings)
    ]


def test_cost_says_what_a_game_a_promotion_and_a_rating_point_took():
    story, _ = a_champion()
    state = story.state
    state.gpu_s = 40.0
    found = cost(state, points(1000.0, 1100.0), {"n1": 36.0})
    money = sum(state.node_s.values()) / 100
    assert (found.money, found.money_per_promotion) == (money, money)
    assert (found.money_per_game, found.money_per_rating_point) == (money / 50, money / 100)
    assert (found.gpu_s_per_game, found.gpu_s_per_promotion) == (40.0 / 50, 40.0)
    assert (found.gpu_s_per_rating_point, found.cpu_s_per_game) == (0.4, state.cpu_s / 50)


def test_cost_in_money_needs_every_price():
    story, _ = a_champion()
    found = cost(story.state, (), {})
    assert (found.money, found.money_per_game, found.gpu_s_per_rating_point) == (None, None, None)


def test_losses_in_another_shape_are_shown_as_unknown():
    story, _ = a_champion(train=3.5)
    around = AroundConfig(
        plan=None, rules=RULES, curve=(), running=(), share=1.0, paused=None, prices={}, now_s=story.now_s
    )
    assert config_status(story.state, around).losses[0].policy is None


# --- more than two seats ---------------------------------------------------------------------------------


def rated_for_four(first_places):
    story, model = a_champion("square8_4p")
    candidate, games = story.state.models[model], 100
    order = evaluate_order(story.state, RULES, candidate, [Pairing("random", games)], purpose="rating")
    places = [first_places, games - first_places, 0, 0]
    match = {"opponent": "random", "games": games, "wins": 95, "draws": 0, "losses": 5, "score": 0.9}
    story.end(story.issue("evaluate", order), matches=[{**match, "players": 4, "places": places}])
    return story.state


def test_with_four_seats_first_places_count_and_need_not_reach_what_two_seats_ask_for():
    strong, weak = rated_for_four(60), rated_for_four(40)
    assert gauntlet_of(strong).vs_random == 0.6
    assert not any("against random" in reason for reason in feedback(strong).reasons)
    assert any("against random" in reason for reason in feedback(weak).reasons)
    assert (feedback(strong).by_gauntlet, feedback(weak).by_gauntlet) == ({}, {"weight": 1.3})


# --- what plays and what is published ----------------------------------------------------------------------


def test_what_plays_and_what_is_published_are_named_apart():
    story, first = a_champion()
    state = story.state
    assert who_plays(state) == "model 1 is published and plays"
    state.generator = None
    assert who_plays(state) == "model 1 is published, games are played without a network"
    for newer in ("1 training newer", "2 trainings newer"):
        story.play()
        story.check()
        story.export()
        state.generator = story.train()
        number = state.models[state.generator].number
        assert who_plays(state) == f"model 1 is published, model {number} plays: {newer}"
    around = AroundConfig(
        plan=None, rules=RULES, curve=(), running=(), share=1.0, paused=None, prices={}, now_s=story.now_s
    )
    told = config_status(state, around)
    assert (told.champion, told.generator) == (first, state.generator)
    assert told.who_plays == who_plays(state)
