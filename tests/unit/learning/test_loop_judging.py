"""Champions are looked at again when there is reason to, and no clock that was put back holds a stage up."""

import random
from dataclasses import replace

import msgspec
import pytest
from learning_story import RULES, Story

from ringrift.jobs.evaluation.evaluate import EvaluateParams
from ringrift.jobs.frame import convert_params
from ringrift.learning.facts.facts import (
    SLOTS_TOPIC,
    Archived,
    Blocked,
    JobEnded,
    Noted,
    Promoted,
    Recalled,
    RolledBack,
)
from ringrift.learning.facts.records import ModelState
from ringrift.learning.facts.results import unasked
from ringrift.learning.judging.promotion import PROMOTION, ROLLBACK, Mode, Pairing
from ringrift.learning.plan.evaluation import (
    RECENT_S,
    open_candidates,
    recent_judging,
    request_details,
    under_judgment,
    waiting_for_verdict,
    wanted_games,
)
from ringrift.learning.plan.orders import Snapshot, evaluate_order, match_batch, selfplay_order
from ringrift.learning.plan.plan import plan
from ringrift.learning.plan.stages import HealthHold, health_gate, health_note, stage_gate
from ringrift.learning.plan.training_data import is_recalled_model
from ringrift.learning.plan.trust import recall_effect
from ringrift.statistics.match_evidence import Evidence, MatchVerdict
from ringrift.statistics.ratings import place_chances

ALWAYS = msgspec.structs.replace(
    RULES, promotion=msgspec.structs.replace(RULES.promotion, mode=Mode.ALWAYS_ACCEPT)
)
DAY_S = 24 * 3600.0
SIMULATIONS = RULES.evaluation_simulations
UNTRAINED = f"untrained:{RULES.preset}@{SIMULATIONS}"
FLOOR = ["random", "mcts:32"]  # the last gate, and the games that rate whoever passes it


def planned(story, rules=RULES, now_s=None):
    return plan(Snapshot(story.state, rules, story.now_s if now_s is None else now_s))


def evaluations(made):
    return [
        (each.order.purpose, [gate["opponent"] for gate in each.order.params["gates"]])
        for each in made.wanted
        if each.kind == "evaluate"
    ]


def new_model(story):
    story.play()
    story.check()
    story.export()
    return story.train()


def promote(story, model, previous=None):
    story.now_s += 1
    story.write(Promoted(at_s=story.now_s, model=model, previous=previous, reason="won", evidence={"llr": 3}))


def two_champions():
    story = Story()
    first = new_model(story)
    promote(story, first)
    second = new_model(story)
    story.evaluate(second, first, wins=60, losses=20)
    promote(story, second, first)
    return story, first, second


def recall(story, **names):
    fact = Recalled(at_s=story.now_s, recall_id="r", reason="bad", **names)
    story.write(fact)
    return fact


# --- recalls ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("also", [{"worker": "w1"}, {"from_s": 0.0}, {"until_s": 1e9}])
def test_a_recall_of_some_games_of_a_model_leaves_the_model_in_its_place(also):
    story, _, champion = two_champions()
    fact = recall(story, model=champion, **also)
    assert not is_recalled_model(story.state, champion)
    assert not any(isinstance(each, RolledBack) for each in planned(story).decided)
    assert recall_effect(story.state, fact).champion_is != "recalled"


def test_a_recall_of_a_model_takes_it_back():
    story, first, champion = two_champions()
    recall(story, model=champion)
    assert planned(story).decided[0].restored == first


def settled(story, first, champion):
    """The second look after the promotion found nothing."""
    story.evaluate(champion, first, wins=120, losses=40, purpose=ROLLBACK)
    assert ROLLBACK not in {purpose for purpose, _ in evaluations(planned(story))}


def test_a_promotion_whose_games_were_recalled_is_looked_at_again():
    story, first, champion = two_champions()
    settled(story, first, champion)
    story.now_s += 10
    fact = recall(story, until_s=story.state.promotions[-1].at_s, worker="w1")
    assert evaluations(planned(story))[0][0] == ROLLBACK
    story.write(msgspec.structs.replace(fact, withdrawn=True))
    assert ROLLBACK not in {purpose for purpose, _ in evaluations(planned(story))}


def test_the_second_look_after_a_recall_comes_to_an_end():
    story, first, champion = two_champions()
    settled(story, first, champion)
    story.now_s += 10
    recall(story, until_s=story.state.promotions[-1].at_s, worker="w1")
    story.evaluate(champion, first, wins=120, losses=40, purpose=ROLLBACK)
    assert ROLLBACK not in {purpose for purpose, _ in evaluations(planned(story))}


# --- candidates that are accepted without a test ---------------------------------------------------------


def test_a_doubt_about_the_champion_is_settled_before_the_next_candidate_is_accepted():
    story, first, champion = two_champions()
    story.evaluate(champion, first, wins=35, losses=45, purpose=ROLLBACK)
    candidate = new_model(story)
    story.evaluate(candidate, "random", wins=128, losses=0)
    made = planned(story, ALWAYS)
    assert not made.decided
    assert evaluations(made)[0][0] == ROLLBACK
    story.evaluate(champion, first, wins=10, losses=190, purpose=ROLLBACK)
    decided = planned(story, ALWAYS).decided
    assert isinstance(decided[0], RolledBack)
    story.write(decided[0])
    assert isinstance(planned(story, ALWAYS).decided[0], Promoted)


def test_without_a_doubt_the_candidate_is_accepted():
    story, first, champion = two_champions()
    story.evaluate(champion, first, wins=45, losses=35, purpose=ROLLBACK)
    candidate = new_model(story)
    story.evaluate(candidate, "random", wins=128, losses=0)
    assert isinstance(planned(story, ALWAYS).decided[0], Promoted)


def test_a_test_of_the_candidate_does_not_wait_for_doubts_where_it_must_beat_the_champion():
    story, first, champion = two_champions()
    story.evaluate(champion, first, wins=35, losses=45, purpose=ROLLBACK)
    new_model(story)
    assert evaluations(planned(story))[0][0] == PROMOTION


# --- several candidates ----------------------------------------------------------------------------------


def judged(made):
    """Which model is to be judged, and against whom."""
    (order,) = [each.order for each in made.wanted if each.kind == "evaluate"]
    assert order.purpose == PROMOTION
    return order.inputs["candidate.safetensors"], [gate["opponent"] for gate in order.params["gates"]]


def carry_out(story, made):
    for fact in made.decided:
        story.write(fact)


def a_champion():
    story = Story()
    champion = new_model(story)
    promote(story, champion)
    story.evaluate(champion, "mcts:32", wins=1, losses=0, purpose="rating")
    story.evaluate(champion, "random", wins=1, losses=0, purpose="rating")
    return story, champion


def test_the_newest_candidate_is_judged_and_those_before_it_are_dropped_with_the_reason():
    story, _ = a_champion()
    older = [new_model(story), new_model(story)]
    newest = new_model(story)
    assert [each.digest for each in open_candidates(story.state)] == [newest, *reversed(older)]
    made = planned(story)
    assert judged(made)[0] == newest
    assert {fact.model for fact in made.decided} == set(older)
    carry_out(story, made)
    assert [each.digest for each in open_candidates(story.state)] == [newest]
    for digest in older:
        model = story.state.models[digest]
        assert (model.state, model.history[-1][2]) == (
            ModelState.ARCHIVED,
            "a newer candidate, model 4, is judged instead",
        )
    assert not planned(story).decided


def test_a_judgment_that_has_begun_goes_on_with_what_it_has_counted():
    story, champion = a_champion()
    candidate = new_model(story)
    story.evaluate(candidate, champion, wins=48, losses=30)
    newer = new_model(story)
    story.state.models[newer].rows_seen = story.state.models[candidate].rows_seen
    made = planned(story)
    assert judged(made) == (candidate, [f"model:{{inputs}}/opponent-0.safetensors@{SIMULATIONS}", "random"])
    gate = made.wanted[0].order.params["gates"][0]
    assert (gate["test"], gate["games"]) == ("sprt", 400)
    assert (gate["prior"]["games"], gate["prior"]["wins"]) == (78, 48)
    assert not made.decided
    assert under_judgment(story.state).digest == candidate

    # No clear gain, it gives way: the newer one has learned more since.
    story.evaluate(candidate, champion, wins=30, losses=36)
    made = planned(story)
    (dropped,) = made.decided
    assert isinstance(dropped, Archived)
    assert dropped.model == candidate
    assert "model 3, is judged instead" in dropped.reason
    carry_out(story, made)
    assert judged(planned(story))[0] == newer


def test_a_judgment_that_has_begun_gives_way_to_who_has_learned_much_more():
    """Its match will be shorter than what is left of this one."""
    story, champion = a_champion()
    candidate = new_model(story)
    story.evaluate(candidate, champion, wins=48, losses=30)
    story.evaluate(candidate, "mcts:32", wins=4, losses=4, purpose="rating")  # with what time was left
    newer = new_model(story)
    story.state.models[newer].rows_seen = int(1.4 * story.state.models[candidate].rows_seen)
    made = planned(story)
    assert [(type(fact), fact.model) for fact in made.decided] == [(Archived, candidate)]
    carry_out(story, made)
    assert judged(planned(story))[0] == newer


def test_a_judgment_of_a_few_games_a_job_does_not_give_way_before_they_could_show_anything():
    """On a large board a job has time for four games, and many trainings end before the next job."""
    story, champion = a_champion()
    candidate = new_model(story)
    for _ in range(6):
        story.evaluate(candidate, champion, wins=4, losses=0)
        story.state.models[new_model(story)].rows_seen = 100 * story.state.models[candidate].rows_seen
        carry_out(story, planned(story))
    assert story.state.models[candidate].state is not ModelState.ARCHIVED
    story.evaluate(candidate, "random", wins=60, losses=0)
    carry_out(story, planned(story))
    assert story.state.champion == candidate

    worse = open_candidates(story.state)[0].digest
    for games in range(4, 68, 4):
        story.evaluate(worse, candidate, wins=2, losses=2)
        story.state.models[new_model(story)].rows_seen = 10_000 * story.state.models[candidate].rows_seen
        carry_out(story, planned(story))
        assert (story.state.models[worse].state is ModelState.ARCHIVED) == (games >= 64)


def test_only_who_has_played_for_its_promotion_waits_for_a_verdict():
    story, champion = a_champion()
    assert waiting_for_verdict(story.state) == 0
    candidate = new_model(story)
    assert waiting_for_verdict(story.state) == 0
    story.evaluate(candidate, champion, wins=48, losses=30)
    new_model(story)
    assert waiting_for_verdict(story.state) == 1
    promote(story, candidate, champion)
    assert waiting_for_verdict(story.state) == 0


def test_a_candidate_behind_is_judged_to_the_end_while_none_is_newer():
    story, champion = a_champion()
    candidate = new_model(story)
    story.evaluate(candidate, champion, wins=30, losses=45)
    made = planned(story)
    assert (judged(made)[0], made.decided) == (candidate, [])


def test_who_has_only_the_floor_before_it_is_judged_first():
    story, champion = a_champion()
    candidate = new_model(story)
    story.evaluate(candidate, champion, wins=80, losses=10)
    carry_out(story, planned(story))
    new_model(story)
    assert judged(planned(story)) == (candidate, ["random"])


def test_what_is_older_than_a_new_champion_is_dropped():
    story, champion = a_champion()
    older = new_model(story)
    candidate = new_model(story)
    story.evaluate(candidate, champion, wins=80, losses=10)
    promote(story, candidate, champion)
    newer = new_model(story)
    (dropped,) = planned(story).decided
    assert (dropped.model, dropped.reason) == (older, "a newer model, number 3, is the champion")
    story.write(dropped)
    assert [each.digest for each in open_candidates(story.state)] == [newer]


def test_the_champion_is_looked_at_again_between_two_candidates():
    story, first = a_champion()
    champion = new_model(story)
    story.evaluate(champion, first, wins=80, losses=10)
    story.evaluate(champion, "random", wins=60, losses=0)
    promote(story, champion, first)
    candidate = new_model(story)
    assert evaluations(planned(story))[0][0] == ROLLBACK
    story.evaluate(champion, first, wins=50, losses=30, purpose=ROLLBACK)
    assert judged(planned(story))[0] == candidate


def test_a_champion_that_proves_weaker_goes_although_a_candidate_waits():
    story, first = a_champion()
    champion = new_model(story)
    promote(story, champion, first)
    story.evaluate(champion, first, wins=10, losses=190, purpose=ROLLBACK)
    new_model(story)
    (fact,) = planned(story).decided
    assert isinstance(fact, RolledBack)


def test_the_games_of_a_second_look_that_had_no_time_are_played_by_the_next_job():
    story, first, champion = two_champions()
    story.evaluate(champion, first, wins=8, losses=4, purpose=ROLLBACK)
    (order,) = [each.order for each in planned(story).wanted if each.kind == "evaluate"]
    (gate,) = order.params["gates"]
    assert (order.purpose, gate["games"], gate["prior"]["games"]) == (
        ROLLBACK,
        RULES.promotion.chunk_games,
        12,
    )


def test_a_champion_that_is_clearly_ahead_is_looked_at_with_few_games():
    story, first, champion = two_champions()
    story.evaluate(champion, first, wins=24, losses=0, purpose=ROLLBACK)
    assert all(order[0] != ROLLBACK for order in evaluations(planned(story)))


def test_a_match_that_few_games_may_decide_begins_with_few_at_a_time():
    """Those that go on beside them would be played in vain; where many are needed, many go on at a time."""
    story, champion = a_champion()
    story.evaluate(champion, "random", wins=2000, losses=0)  # fast enough for as many as there may be
    candidate = new_model(story)

    def ordered():
        (order,) = [each.order for each in planned(story).wanted if each.kind == "evaluate"]
        return order.params["gates"][0]["clear_gains"], order.params["batch"]

    assert ordered() == (True, 40)
    story.evaluate(candidate, champion, wins=60, losses=50)
    assert ordered() == (True, 128)
    story.write(Archived(at_s=story.now_s, model=candidate, reason="for a test"))
    new_model(story)
    assert ordered() == (True, 40)
    details = {"slots": 1, "configs": 1, "gpus": 1}
    story.write(Noted(at_s=story.now_s, topic=SLOTS_TOPIC, text="", details=details))
    assert ordered() == (True, 128), "a GPU plays many games as fast as few"


# --- the share of judging --------------------------------------------------------------------------------


def judged_next(story, rules):
    """Let the story play until a judgment is ordered: its purpose, and the share of judging with it."""
    for _ in range(100):
        made = planned(story, rules)
        carry_out(story, made)
        if ordered := evaluations(made):
            judged_s, total_s = recent_judging(story.state, RECENT_S)
            return ordered[0][0], (judged_s + 9.0) / (total_s + 9.0)
        story.play()
    raise AssertionError("no judgment was ordered")


@pytest.mark.parametrize(("grown", "least", "most"), [(1.5, 0.05, 0.075), (1.6, 0.1, 0.15)])
def test_a_candidate_that_has_hardly_learned_more_than_the_champion_has_half_of_the_share(grown, least, most):
    """A match of two that are nearly equal takes hundreds of games, and gains next to nothing."""
    rules = msgspec.structs.replace(RULES, judging_share=0.15)
    story, champion = a_champion()
    refused = new_model(story)
    for _ in range(6):
        story.evaluate(refused, champion, wins=0, losses=4)
    story.write(Archived(at_s=story.now_s, model=refused, reason="for a test"))
    candidate = new_model(story)
    story.state.models[candidate].parent = refused
    for model, samples in ((champion, 1_000_000), (refused, 1_100_000), (candidate, int(grown * 1_000_000))):
        story.state.models[model].rows_seen = samples
    purpose, share = judged_next(story, rules)
    assert purpose == PROMOTION
    assert least < share <= most


@pytest.mark.parametrize(("grown", "first"), [(1.3, ROLLBACK), (1.5, PROMOTION)])
def test_a_second_look_waits_while_a_candidate_has_learned_much_more(grown, first):
    rules = msgspec.structs.replace(RULES, judging_share=0.15)
    story, _, champion = two_champions()
    story.state.models[champion].rows_seen = 1_000_000
    story.evaluate(champion, "random", wins=60, losses=0)
    for _ in range(4):
        story.evaluate(champion, "random", wins=1, losses=0)
    story.state.models[new_model(story)].rows_seen = int(grown * 1_000_000)
    assert judged_next(story, rules)[0] == first


def test_games_that_somebody_asked_for_do_not_wait_with_a_candidate_that_has_hardly_learned_more():
    rules = msgspec.structs.replace(RULES, judging_share=0.15)
    story, champion = a_champion()
    refused = new_model(story)
    for _ in range(6):
        story.evaluate(refused, champion, wins=0, losses=4)
    story.write(Archived(at_s=story.now_s, model=refused, reason="for a test"))
    candidate = new_model(story)
    story.state.models[candidate].parent = refused
    for model, samples in ((champion, 1_000_000), (refused, 1_000_000), (candidate, 2_000_000)):
        story.state.models[model].rows_seen = samples
    assert judged_next(story, rules)[0] == PROMOTION
    story.state.models[candidate].rows_seen = 1_100_000
    assert evaluations(planned(story, rules)) == []
    ordered = []
    for _ in range(60):  # somebody asks again and again, and the candidate has its turns all the same
        details = request_details(champion, ["heuristic"], games=20)
        story.write(Noted(at_s=story.now_s, topic="wanted_games", text="to see", details=details))
        for purpose, _ in evaluations(planned(story, rules)):
            ordered.append(purpose)
            if purpose == PROMOTION:
                story.evaluate(candidate, champion, wins=5, losses=4)
            else:
                story.evaluate(champion, "heuristic", wins=10, losses=10, purpose="rating")
        story.play()
    assert ordered[:1] == ["rating"]
    assert ordered.count(PROMOTION) >= 3


def test_who_does_not_tell_what_it_learned_from_and_who_follows_a_line_that_was_given_up_count_as_grown():
    rules = msgspec.structs.replace(RULES, judging_share=0.15)
    story, champion = a_champion()
    given_up = new_model(story)
    for _ in range(6):
        story.evaluate(given_up, champion, wins=0, losses=4)
    story.write(Archived(at_s=story.now_s, model=given_up, reason="for a test"))
    candidate = new_model(story)
    line = ((champion, 1_000_000), (given_up, 3_000_000), (candidate, 2_000_000))
    for model, samples in line:
        story.state.models[model].rows_seen = samples
    story.state.models[candidate].parent = champion  # training was set back
    purpose, share = judged_next(story, rules)
    assert (purpose, share > 0.1) == (PROMOTION, True)

    story.state.models[candidate].rows_seen = 0
    assert evaluations(planned(story, rules))


def test_a_first_champion_is_rated_whatever_ratings_took_before():
    story = Story()
    champion = new_model(story)
    promote(story, champion)
    story.evaluate(champion, "random", wins=20, losses=0)
    for _ in range(5):
        story.evaluate(champion, "heuristic", wins=1, losses=9, purpose="rating")
    assert evaluations(planned(story)) == [("rating", ["mcts:32"])]


def test_ratings_take_a_quarter_of_the_matches_at_most_once_a_champion_is_rated():
    story, champion = a_champion()
    candidate = new_model(story)
    for _ in range(5):
        story.evaluate(candidate, champion, wins=5, losses=4)
        assert "mcts:32" not in judged(planned(story))[1]
    story.evaluate(candidate, champion, wins=5, losses=4)
    assert "mcts:32" in judged(planned(story))[1], "two of eight matches were for ratings"


def test_judging_waits_for_its_share_of_processor_time_and_says_so():
    rules = msgspec.structs.replace(RULES, judging_share=0.15)
    story, champion = a_champion()
    candidate = new_model(story)
    for _ in range(9):  # every job of a story takes 9 s: 99 s with the two that made the champion
        story.evaluate(candidate, champion, wins=5, losses=4)
    made = planned(story, rules)
    assert evaluations(made) == []
    (said,) = [each.reason for each in made.explanations if each.stage == "evaluate"]
    assert said.startswith("model 2 waits to be judged: judging took 99 of the recent ")
    assert said.endswith("more would pass its share of 15%")
    waited = 0
    while not evaluations(planned(story, rules)):
        story.play()
        waited += 1
    judged_s, total_s = recent_judging(story.state, RECENT_S)
    assert waited > 5
    assert (judged_s + 9.0) / total_s <= 0.15


def held(story, *, whole):
    """The health of the run holds what *story* tells of, from now on."""
    hold = HealthHold(reason="it lost 80 points", until_s=story.now_s + 600.0, whole=whole)
    story.write(health_note(story.state, hold, at_s=story.now_s))


def test_a_hold_of_a_config_does_not_keep_it_from_being_judged_and_taken_back():
    """It is held because its champion looks worse: what shows whether it is must go on."""
    rules = msgspec.structs.replace(RULES, judging_share=0.15)
    story, champion = a_champion()
    candidate = new_model(story)
    for _ in range(9):
        story.evaluate(candidate, champion, wins=5, losses=4)
    assert evaluations(planned(story, rules)) == []
    held(story, whole=False)
    made = planned(story, rules)
    assert evaluations(made), "nothing else works, so its share of the time would never come"
    assert {each.kind for each in made.wanted} <= {"evaluate", "validate"}


def test_a_champion_is_taken_back_while_everything_is_held():
    story, first = a_champion()
    champion = new_model(story)
    promote(story, champion, first)
    story.evaluate(champion, first, wins=10, losses=190, purpose=ROLLBACK)
    held(story, whole=True)
    made = planned(story)
    assert isinstance(made.decided[0], RolledBack)
    assert made.wanted == []


def test_training_goes_on_once_it_was_set_back():
    story, _ = a_champion()
    held(story, whole=False)
    gates = {stage: health_gate(story.state, stage, now_s=story.now_s) for stage in ("train", "selfplay")}
    assert None not in gates.values()
    story.state.restarts = True
    assert health_gate(story.state, "train", now_s=story.now_s) is None
    assert health_gate(story.state, "selfplay", now_s=story.now_s) is not None


def test_a_young_run_judges_ahead_of_its_share_but_no_further_than_it_makes_good():
    """Its first minutes are when each training improves it most."""
    rules = msgspec.structs.replace(RULES, judging_share=0.15)
    story, champion = a_champion()
    noted = {"slots": 4, "configs": 1}
    story.write(Noted(at_s=story.now_s, topic=SLOTS_TOPIC, text="", details=noted))
    candidate = new_model(story)
    jobs = 0
    while evaluations(planned(story, rules)):
        story.evaluate(candidate, champion, wins=2, losses=2)
        jobs += 1
    judged_s, total_s = recent_judging(story.state, 4 * RECENT_S)
    assert jobs > 5
    assert judged_s / total_s > 0.15
    assert judged_s <= 0.15 * 4 * RECENT_S
    for at in range(60):  # what it took ahead it gives back little by little, and is never without
        story.play()
        if evaluations(planned(story, rules)):
            jobs, last = jobs + 1, at
            story.evaluate(candidate, champion, wins=2, losses=2)
    assert last > 40
    judged_s, total_s = recent_judging(story.state, 4 * RECENT_S)
    assert 0.1 < judged_s / total_s < 0.2


def test_a_first_model_near_the_floor_gives_way_to_a_newer_one():
    story = Story()
    first = new_model(story)
    story.evaluate(first, UNTRAINED, wins=20, losses=4)
    story.evaluate(first, "random", wins=34, losses=5)
    carry_out(story, planned(story))
    assert judged(planned(story)) == (first, FLOOR), "while there is none"
    newer = new_model(story)
    (dropped,) = [fact for fact in planned(story).decided if isinstance(fact, Archived)]
    assert dropped.model == first
    assert "the floor is open: 87% of 39 games" in dropped.reason
    story.write(dropped)
    assert judged(planned(story)) == (newer, [UNTRAINED, *FLOOR])


def test_a_first_model_far_above_the_floor_is_not_given_up_for_one_lost_game():
    """It needs a few more games, and a newer model would need all of them."""
    story = Story()
    first = new_model(story)
    story.evaluate(first, UNTRAINED, wins=20, losses=4)
    story.evaluate(first, "random", wins=37, losses=1)
    carry_out(story, planned(story))
    new_model(story)
    assert judged(planned(story)) == (first, FLOOR)
    story.evaluate(first, "random", wins=16, losses=0)
    carry_out(story, planned(story))
    assert story.state.champion == first


def test_a_first_model_does_not_give_way_before_the_games_that_could_show_the_floor():
    """On a large board a job has time for a few games, and a newer model waits after each of them."""
    story = Story()
    first = new_model(story)
    story.evaluate(first, UNTRAINED, wins=20, losses=4)
    for _ in range(10):
        new_model(story)
        story.evaluate(first, "random", wins=4, losses=0)
        carry_out(story, planned(story))
        assert story.state.models[first].state is not ModelState.ARCHIVED
    assert story.state.champion == first


def test_the_first_judgment_does_not_wait():
    rules = msgspec.structs.replace(RULES, judging_share=0.01)
    story = Story()
    candidate = new_model(story)
    story.evaluate(candidate, UNTRAINED, wins=6, losses=5)
    assert judged(planned(story, rules)) == (candidate, [UNTRAINED, *FLOOR])


def test_without_a_champion_judging_goes_first_for_two_minutes_in_all():
    rules = msgspec.structs.replace(RULES, judging_share=0.15)
    story = Story()
    candidate = new_model(story)
    jobs = 0
    while evaluations(planned(story, rules)):
        story.evaluate(candidate, UNTRAINED, wins=2, losses=2)
        for _ in range(3):
            story.play()
        jobs += 1
    assert jobs == 14  # of 9 s, beside three times as much other work


@pytest.mark.parametrize(("slots", "jobs_max"), [(1, 5), (4, 20), (64, 20)])
def test_a_long_past_without_judging_does_not_pay_for_a_burst(slots, jobs_max):
    """15 % of the last five minutes of all slots, or of the last twenty of one, not of the hour there was."""
    rules = msgspec.structs.replace(RULES, judging_share=0.15)
    story, champion = a_champion()
    noted = {"slots": slots, "configs": 1}
    story.write(Noted(at_s=story.now_s, topic=SLOTS_TOPIC, text="", details=noted))
    for _ in range(400):
        story.play()
    candidate = new_model(story)
    jobs = 0
    while evaluations(planned(story, rules)):
        story.evaluate(candidate, champion, wins=2, losses=2)
        jobs += 1
    assert jobs_max / 2 < jobs <= jobs_max  # of 9 s each


def test_what_judging_took_before_a_gpu_came_does_not_hold_it_up():
    rules = msgspec.structs.replace(RULES, judging_share=0.15)
    story, champion = a_champion()
    candidate = new_model(story)
    details = {"slots": 1, "configs": 1}
    story.write(Noted(at_s=story.now_s, topic=SLOTS_TOPIC, text="", details=details))
    while evaluations(planned(story, rules)):
        story.evaluate(candidate, champion, wins=2, losses=2)
    story.write(Noted(at_s=story.now_s + 1, topic=SLOTS_TOPIC, text="", details={**details, "gpus": 1}))
    story.now_s += 2
    story.play()
    assert evaluations(planned(story, rules))


def test_a_judgment_that_takes_long_keeps_to_its_share():
    rules = msgspec.structs.replace(RULES, judging_share=0.15)
    story, champion = a_champion()
    for _ in range(8):
        candidate = new_model(story)
        while not evaluations(made := planned(story, rules)):
            if made.decided:
                carry_out(story, made)
            else:
                story.play()
        story.evaluate(candidate, champion, wins=2, losses=2)
        story.state.recent_jobs[-1] = replace(story.state.recent_jobs[-1], cpu_s=120.0)
    judged_s = sum(job.cpu_s for job in story.state.recent_jobs if job.kind == "evaluate")
    assert judged_s <= 0.17 * sum(job.cpu_s for job in story.state.recent_jobs)


# --- one judgment, one job ------------------------------------------------------------------------------


def played_by_the_job(order, rng, elo):
    """What the job would report: each gate's own test ends it, until one is not passed."""
    params = convert_params("evaluate", EvaluateParams, order.params)
    matches = []
    for gate in params.gates:
        win = place_chances(elo if gate.opponent.startswith("model:") else 400.0, 2)[0]
        test, found, before = gate.match_test(2), gate.prior.evidence(2), gate.prior.games
        pairs = [0] * 5
        while test.result(found).verdict is MatchVerdict.OPEN and sum(pairs) < 40:  # out of time
            points = 2 * ((rng.random() < win) + (rng.random() < win))
            pairs[points] += 1
            found.add(Evidence(2, 2, points // 2, 0, 2 - points // 2, [int(at == points) for at in range(5)]))
        wins, games = pairs[2] + 2 * pairs[4], found.games - before
        result = {"opponent": gate.opponent, "games": games, "wins": wins, "draws": 0, "losses": games - wins}
        matches.append({**result, "score": wins / games, "players": 2, "pairs": pairs})
        if test.result(found).verdict is not MatchVerdict.PASSED:
            break
    return matches


def verdict_of_one_candidate(rng, elo):
    story, _ = a_champion()
    candidate = new_model(story)
    jobs = 0
    while story.state.models[candidate].state in (ModelState.EVALUATING, ModelState.STAGING):
        made = planned(story)
        if made.decided:
            carry_out(story, made)
            continue
        (order,) = [each.order for each in made.wanted if each.kind == "evaluate"]
        story.end(story.issue("evaluate", order), matches=played_by_the_job(order, rng, elo))
        jobs += 1
    return story.state.champion == candidate, jobs


def test_what_ends_the_job_is_what_the_plan_decides_and_its_errors_are_those_of_the_rules():
    rng = random.Random(4)
    found = {elo: [verdict_of_one_candidate(rng, elo) for _ in range(16)] for elo in (-40, 0, 70)}
    passed = {elo: sum(won for won, _ in runs) for elo, runs in found.items()}
    assert passed[-40] <= 1
    assert passed[0] <= 6
    assert passed[70] >= 13
    # At 80 games a job, the cap of 400 is reached after five of them; a close floor takes one more.
    assert max(jobs for runs in found.values() for _, jobs in runs) <= 6


def test_an_order_of_an_earlier_version_is_read_as_before():
    story, champion = a_champion()
    candidate = new_model(story)
    model = story.state.models[candidate]
    order = evaluate_order(story.state, RULES, model, [Pairing(champion, 80)], purpose=PROMOTION)
    (gate,) = order.params["gates"]
    kept = {name: order.params[name] for name in ("config", "candidate", "out", "seed")}
    params = {**kept, "opponents": [gate["opponent"]], "games": 80, "test": "none"}
    job = story.issue("evaluate", msgspec.structs.replace(order, params=params))
    match = {"opponent": gate["opponent"], "games": 80, "wins": 50, "draws": 0, "losses": 30, "score": 0.625}
    assert not unasked(story.state.open_jobs[job], ())
    story.end(job, matches=[{**match, "players": 2}])
    found = story.state.matches[-1]
    assert (found.first, found.second, found.games, found.purpose) == (candidate, champion, 80, PROMOTION)


def test_as_many_games_go_on_at_a_time_as_one_job_has_time_for():
    rules = msgspec.structs.replace(RULES, evaluation_job_s=20.0)
    assert match_batch(Story("square19_3p").state, rules) == 6
    story = Story("square8_2p")
    assert match_batch(story.state, rules) == 48
    candidate = new_model(story)
    story.evaluate(candidate, "random", wins=9, losses=9)  # in 9 s
    assert match_batch(story.state, rules) == 40
    story.evaluate(candidate, "random", wins=900, losses=900)
    assert match_batch(story.state, rules) == 128


def test_the_floor_of_three_players_is_ordered_before_the_first_game():
    story = Story("square8_3p")
    new_model(story)
    (order,) = [each.order for each in planned(story).wanted if each.kind == "evaluate"]
    assert [gate.get("floor") for gate in order.params["gates"]] == [None, RULES.promotion.floor_3p, None]


# --- clocks ----------------------------------------------------------------------------------------------


def gate(story, now_s):
    return stage_gate(story.state, "selfplay", RULES, now_s=now_s, paused=None)


def test_a_failure_of_the_future_does_not_close_a_stage():
    story = Story()
    job = story.issue("selfplay", selfplay_order(story.state, RULES, simulations=1))
    story.write(JobEnded(at_s=story.now_s, job_id=job, error="broken"))
    assert not gate(story, story.now_s).open
    assert gate(story, story.now_s - 3600).open


def test_a_block_ends_whatever_the_clock_did():
    story = Story()
    now_s = story.now_s
    story.write(Blocked(at_s=now_s, stage="selfplay", reason="full", until_s=now_s + 60))
    assert not gate(story, now_s + 59).open
    assert gate(story, now_s + 61).open
    assert gate(story, now_s - 3600).open
    story.write(Blocked(at_s=now_s, stage="selfplay", reason="full", until_s=now_s + 1e9))
    assert gate(story, now_s + DAY_S + 1).open


def test_a_second_look_asked_for_by_a_clock_that_was_put_back_does_not_go_on_for_ever():
    story, first, champion = two_champions()
    settled(story, first, champion)
    note = {"model": champion}
    story.write(Noted(at_s=story.now_s + DAY_S, topic="rollback_check", text="look", details=note))
    assert ROLLBACK not in {purpose for purpose, _ in evaluations(planned(story))}
    assert evaluations(planned(story, now_s=story.now_s + DAY_S + 1))[0][0] == ROLLBACK


def test_games_wished_for_by_a_clock_that_was_put_back_wait_for_their_time():
    story, _, champion = two_champions()
    request = request_details(champion, ["heuristic"], games=20)
    story.write(Noted(at_s=story.now_s + 3600, topic="wanted_games", text="ladder", details=request))
    assert not wanted_games(story.state, story.now_s)
    assert wanted_games(story.state, story.now_s + 3601)
