"""What people are shown of a run: cost by what it bought, losses of any job, first places of many seats."""

import msgspec
from learning_story import RULES, Story

from ringrift.health.run_status import Curve
from ringrift.learning.facts.facts import Blocked, Promoted
from ringrift.learning.judging.feedback import feedback, gauntlet_of
from ringrift.learning.judging.promotion import Pairing
from ringrift.learning.plan.evaluation import who_plays
from ringrift.learning.plan.orders import Snapshot, evaluate_order
from ringrift.learning.plan.plan import plan
from ringrift.learning.plan.stages import LEVERS, StopReason, stages_note
from ringrift.learning.status_view import AroundConfig, config_status, cost
from ringrift.testing.sample_run import SampleRun
from ringrift.web.endpoints import run_metrics
from ringrift.work.limits import Pause


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


# --- pauses ------------------------------------------------------------------------------------------------


def around_of(story, **changes):
    fields = {
        "plan": None,
        "rules": RULES,
        "curve": (),
        "running": (),
        "share": 1.0,
        "paused": None,
        "prices": {},
        "now_s": story.now_s,
    }
    return AroundConfig(**{**fields, **changes})


def test_a_pause_is_a_state_of_its_own_and_no_block_after_failures():
    story, _ = a_champion()
    pause = Pause(reason="the board is needed", by="anna", at_s=7.0)
    told = config_status(story.state, around_of(story, paused=pause))
    assert (told.stage, told.blocked) == ("paused", {})
    assert told.paused == {"reason": "the board is needed", "by": "anna", "at_s": 7.0}
    assert config_status(story.state, around_of(story)).paused is None


def test_what_failed_is_told_as_blocked_also_while_its_config_is_paused():
    story, _ = a_champion()
    story.write(Blocked(at_s=story.now_s, stage="train", reason="out of memory", until_s=story.now_s + 60))
    told = config_status(story.state, around_of(story, paused=Pause(by="anna")))
    assert (told.stage, list(told.blocked)) == ("paused", ["train"])


def test_what_waits_because_its_config_is_paused_is_no_backlog():
    story = Story()
    story.play()
    told = config_status(story.state, around_of(story, plan=plan(snapshot_of(story))))
    assert told.games_unchecked > 0
    later = config_status(story.state, around_of(story, plan=plan(snapshot_of(story, later_s=3600.0))))
    assert later.games_collected < told.games_unchecked, "their check has been due for an hour"
    paused = config_status(story.state, around_of(story, paused=Pause(by="anna")))
    assert paused.games_collected == paused.games_unchecked


def snapshot_of(story, *, later_s=0.0):
    return Snapshot(story.state, RULES, story.now_s + later_s)


def metrics_of(status):
    samples = [sample for family in run_metrics(status) for sample in family.samples]
    return {(each.name, each.labels.get("config")): each.value for each in samples}


def test_the_metric_of_blocked_stages_does_not_count_a_pause():
    config = SampleRun().configs[0]
    paused, running = metrics_of(SampleRun(paused=True).status()), metrics_of(SampleRun().status())
    assert (paused["ringrift_paused", config], paused["ringrift_stages_blocked", config]) == (1, 0)
    assert (running["ringrift_paused", config], running["ringrift_stages_blocked", config]) == (0, 0)


def test_a_metric_says_which_stages_are_stopped():
    story, _ = a_champion()
    stopped = {"training_trigger": StopReason("to look at the data", by_person=True)}
    story.write(stages_note(story.state, stopped, at_s=story.now_s))
    around = AroundConfig(
        plan=None, rules=RULES, curve=(), running=(), share=1.0, paused=None, prices={}, now_s=story.now_s
    )
    status = msgspec.structs.replace(
        SampleRun().status(), configs={"square8_2p": config_status(story.state, around)}
    )
    (family,) = [each for each in run_metrics(status) if each.name == "ringrift_stage_stopped"]
    found = {each.labels["daemon"]: each.value for each in family.samples}
    assert {name for name, value in found.items() if value} == {"training_trigger"}
    assert found.keys() == LEVERS
