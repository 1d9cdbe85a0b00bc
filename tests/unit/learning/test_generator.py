"""Who plays: the newest network that nothing speaks against, whoever is published."""

import msgspec
import pytest
from learning_story import RULES, Story

from ringrift.learning.facts.facts import Promoted, Rejected, RolledBack, TrainingReset
from ringrift.learning.plan.evaluation import decided_generator
from ringrift.learning.plan.orders import Snapshot
from ringrift.learning.plan.plan import plan, training_parent

CHECKED = msgspec.structs.replace(RULES, generator="checked")
BY_CHAMPION = msgspec.structs.replace(RULES, generator="champion")


def trained(story, rows=2000):
    story.play(rows=rows)
    story.check()
    story.export()
    return story.train()


def promote(story, model):
    story.write(Promoted(at_s=story.now_s, model=model, previous=story.state.champion, reason="stronger"))


def moved(story, rules=RULES):
    """Who plays after the plan was asked."""
    fact = decided_generator(Snapshot(story.state, rules, story.now_s))
    if fact is not None:
        story.write(fact)
    return story.state.generator


def test_the_first_network_plays_before_anybody_judged_it():
    story = Story()
    story.play()
    story.check()
    story.export()
    first = story.train()
    assert moved(story) == first
    assert story.state.champion is None
    order = next(
        each for each in plan(Snapshot(story.state, RULES, story.now_s)).wanted if each.kind == "evaluate"
    )
    assert order.order.inputs["candidate.safetensors"] == first


def test_a_newer_network_plays_while_the_champion_stays_published():
    story = Story()
    first = trained(story)
    promote(story, first)
    second = trained(story)
    assert (moved(story), story.state.champion) == (second, first)


def test_training_goes_on_from_the_newest_while_its_candidates_are_judged():
    story = Story()
    first = trained(story)
    story.play()
    story.check()
    story.export()
    made = plan(Snapshot(story.state, RULES, story.now_s))
    train = next(each for each in made.wanted if each.kind == "train")
    assert {"train", "evaluate"} <= {each.kind for each in made.wanted}
    assert train.order.inputs["parent.safetensors"] == first
    assert train.order.inputs["checkpoint.safetensors"] == f"checkpoint-{first}"


def refused(story, *, wins, losses):
    """A champion, and a newer network that played it so and was refused."""
    first = trained(story)
    promote(story, first)
    second = trained(story)
    story.evaluate(second, first, wins=wins, losses=losses)
    story.write(Rejected(at_s=story.now_s, model=second, gate="head_to_head", reason="not stronger"))
    return first, second


def test_a_network_that_lost_clearly_does_not_play():
    story = Story()
    first, second = refused(story, wins=20, losses=60)
    assert moved(story) == first
    assert training_parent(story.state, RULES).digest == second, "one lost match is no reason to begin again"
    assert moved(story) == first


def test_one_that_was_refused_narrowly_goes_on_playing():
    story = Story()
    _, second = refused(story, wins=39, losses=41)
    assert moved(story) == second


def test_one_that_was_taken_back_does_not_play():
    story = Story()
    first = trained(story)
    promote(story, first)
    second = trained(story)
    promote(story, second)
    story.write(RolledBack(at_s=story.now_s, model=second, restored=first, reason="weaker"))
    assert moved(story) == first


def test_what_training_gave_up_does_not_play():
    story = Story()
    first = trained(story)
    promote(story, first)
    trained(story)
    story.write(TrainingReset(at_s=story.now_s, model=first, reason="the loss jumped"))
    assert moved(story) == first
    story.now_s += 1
    third = trained(story)
    assert story.state.models[third].parent == first
    assert moved(story) == third


def test_the_champion_plays_if_that_is_set():
    story = Story()
    first = trained(story)
    assert moved(story, BY_CHAMPION) is None
    promote(story, first)
    trained(story)
    assert moved(story, BY_CHAMPION) == first


@pytest.mark.parametrize(("wins", "plays"), [(40, True), (20, False)])
def test_a_quick_match_decides_who_plays_if_that_is_set(wins, plays):
    story = Story()
    first = trained(story)
    promote(story, first)
    assert moved(story, CHECKED) == first
    second = trained(story)
    story.state.generator = first  # the story lets the newest play; here it has to show itself first
    assert moved(story, CHECKED) == first
    for _ in range(2):
        story.evaluate(second, first, wins=wins, losses=80 - wins, purpose="generator")
    assert (moved(story, CHECKED) == second) is plays
