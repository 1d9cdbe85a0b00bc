"""Champions are looked at again when there is reason to, and no clock that was put back holds a stage up."""

import msgspec
import pytest
from learning_story import RULES, Story

from ringrift.learning.facts import Blocked, JobEnded, Noted, Promoted, Recalled, RolledBack
from ringrift.learning.gates import stage_gate
from ringrift.learning.orders import selfplay_order
from ringrift.learning.plan import plan
from ringrift.learning.promotion import PROMOTION, ROLLBACK, Mode
from ringrift.learning.recall import is_recalled_model, recall_effect
from ringrift.learning.snapshot import Snapshot
from ringrift.learning.wanted import wanted_games, wish_details

ALWAYS = msgspec.structs.replace(
    RULES, promotion=msgspec.structs.replace(RULES.promotion, mode=Mode.ALWAYS_ACCEPT)
)
DAY_S = 24 * 3600.0


def planned(story, rules=RULES, now_s=None):
    return plan(Snapshot(story.state, rules, story.now_s if now_s is None else now_s))


def evaluations(made):
    return [
        (each.order.purpose, each.order.params["opponents"])
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
    wish = wish_details(champion, ["heuristic"], games=20)
    story.write(Noted(at_s=story.now_s + 3600, topic="wanted_games", text="ladder", details=wish))
    assert not wanted_games(story.state, story.now_s)
    assert wanted_games(story.state, story.now_s + 3601)
