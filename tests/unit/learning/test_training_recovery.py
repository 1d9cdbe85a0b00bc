"""Training that goes astray goes back to a checkpoint by itself: a fact, with the reason."""

import pytest
from learning_story import RULES, Story

from ringrift.learning.facts import Promoted, Rejected
from ringrift.learning.recovery import decided_reset
from ringrift.learning.snapshot import Snapshot


class Trained(Story):
    """A champion, and trainings with the losses that they had."""

    def __init__(self):
        super().__init__()
        self.first = self.grow()
        self.write(Promoted(at_s=self.now_s, model=self.first, previous=None, reason="the first"))

    def grow(self, policy=1.5, value=0.4):
        self.play()
        self.check()
        self.export()
        return self.train(train={"policy": policy, "value": value, "entropy": 1.2})

    def lose(self, model, *, wins=20):
        self.evaluate(model, self.first, wins=wins, losses=80 - wins)
        self.write(Rejected(at_s=self.now_s, model=model, gate="head_to_head", reason="not stronger"))

    def reset(self):
        fact = decided_reset(Snapshot(self.state, RULES, self.now_s))
        if fact is not None:
            self.write(fact)
        return fact


def test_candidates_that_lose_in_a_row_set_training_back_to_the_champion():
    story = Trained()
    for number in range(RULES.recover_after):
        assert story.reset() is None, number
        story.lose(story.grow())
    found = story.reset()
    assert found.model == story.first
    assert "3 candidates in a row" in found.reason
    assert story.reset() is None, "once"
    story.now_s += 1
    again = story.grow()
    assert story.state.models[again].parent == story.first
    assert story.reset() is None, "what was lost before does not count again"


def test_candidates_that_lose_narrowly_set_nothing_back():
    story = Trained()
    for _ in range(4):
        story.lose(story.grow(), wins=39)
    assert story.reset() is None


def test_a_win_in_between_ends_the_row():
    story = Trained()
    for wins in (20, 20, 41, 20, 20):
        story.lose(story.grow(), wins=wins)
    assert story.reset() is None


def test_a_loss_far_above_those_before_sets_training_back():
    story = Trained()
    for number in range(6):
        story.grow(policy=1.5 - 0.01 * number)
        assert story.reset() is None
    story.grow(policy=3.4)
    found = story.reset()
    assert found.model == story.first
    assert "3.800" in found.reason
    assert len(found.evidence["losses"]) > 4


@pytest.mark.parametrize("policy", [1.0, 1.6, 1.9])
def test_a_loss_that_drifts_sets_nothing_back(policy):
    story = Trained()
    for _ in range(6):
        story.grow()
    story.grow(policy=policy)
    assert story.reset() is None


def test_a_training_that_could_not_go_on_begins_again():
    story = Trained()
    story.grow()
    job = story.issue("train", story.state.last_done["train"].order)
    story.fail(job, "the loss: step 12 gave [nan, nan, 1.2]. Lower the learning rate")
    assert story.reset().model == story.first
    assert story.reset() is None


def test_a_failure_of_the_machine_sets_nothing_back():
    story = Trained()
    story.grow()
    story.fail(story.issue("train", story.state.last_done["train"].order), "out of memory")
    assert story.reset() is None
