"""Training that goes astray goes back to a checkpoint by itself: a fact, with the reason."""

import numpy as np
import pytest
from learning_story import RULES, Story, artifact

from ringrift.games.registry import load_game
from ringrift.jobs.training.learner import LOSSES, Learner, LearnerConfig
from ringrift.jobs.training.rows import TrainingRows, make_batch
from ringrift.learning.doctor.examination import examine
from ringrift.learning.doctor.findings import ExaminationContext
from ringrift.learning.facts.facts import Promoted, Rejected
from ringrift.learning.models import CHECKPOINTS_COUNTED_ON, kept_checkpoint
from ringrift.learning.plan.orders import Snapshot
from ringrift.learning.plan.plan import plan
from ringrift.learning.plan.training_data import decided_reset
from ringrift.network.evaluator import sample_positions
from ringrift.network.model import build


class Trained(Story):
    """A champion, and trainings with the losses that they had."""

    def __init__(self):
        super().__init__()
        self.first = self.grow()
        self.write(Promoted(at_s=self.now_s, model=self.first, previous=None, reason="the first"))

    def grow(self, policy=1.5, value=0.4, entropy=1.2):
        self.play()
        self.check()
        self.export()
        return self.train(train={"policy": policy, "value": value, "entropy": entropy})

    def lose(self, model, *, wins=20):
        self.evaluate(model, self.first, wins=wins, losses=80 - wins)
        self.write(Rejected(at_s=self.now_s, model=model, gate="head_to_head", reason="not stronger"))

    def reset(self):
        fact = decided_reset(self.state, RULES, now_s=self.now_s)
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


def next_training(story):
    story.play()
    story.check()
    story.export()
    made = plan(Snapshot(story.state, RULES, story.now_s))
    return next(each for each in made.wanted if each.kind == "train")


def test_a_checkpoint_that_is_gone_costs_the_optimizer_and_no_training():
    story = Trained()
    newest = story.grow()
    before = next_training(story)
    assert before.order.inputs["checkpoint.safetensors"] == f"checkpoint-{newest}"
    assert "fresh optimizer" not in before.reason
    lost = f"the input checkpoint.safetensors (checkpoint-{newest}) is not here"
    story.fail(story.issue("train", before.order), lost)
    story.now_s += 3600.0
    again = next_training(story)
    assert again.order.inputs["parent.safetensors"] == newest
    assert "checkpoint.safetensors" not in again.order.inputs
    assert "checkpoint" not in again.order.params
    assert again.order.params["warmup_steps"] > 0
    assert "by its weights with a fresh optimizer as its checkpoint is gone" in again.reason


def test_samples_that_a_training_refuses_are_not_tried_for_ever():
    story = Trained()
    story.play()
    story.check()
    bad = story.export()
    first = next(each for each in planned(story) if each.kind == "train")
    name = next(name for name, digest in first.order.inputs.items() if digest == bad)
    refused = f"/jobs/1/inputs/{name}: seats: from 0 to 100, expected 0 to 3. Export the samples again"
    story.fail(story.issue("train", first.order), refused)
    assert not any(each.kind == "train" for each in planned(story)), "it waits after a failure"
    story.now_s += 3600.0
    (again,) = (each for each in planned(story) if each.kind == "export")
    games = set(story.state.samples[bad].shards)
    assert games & set(again.order.inputs.values()), "its games are exported once more"
    second = "samples-again"  # by the same program, which makes the same mistake
    story.end(story.issue("export", again.order), artifact("samples", second, rows=2000, games=50))
    trained = next(each for each in planned(story) if each.kind == "train")
    assert bad not in trained.order.inputs.values()
    assert second in trained.order.inputs.values()
    name = next(name for name, digest in trained.order.inputs.items() if digest == second)
    story.fail(story.issue("train", trained.order), refused.replace("samples-000.npz", name))
    story.now_s += 36000.0
    assert not any(each.kind == "export" for each in planned(story)), "and then they are left alone"
    for each in planned(story):
        assert {bad, second}.isdisjoint(each.order.inputs.values())
    story.play()
    story.check()
    (fresh,) = (each for each in planned(story) if each.kind == "export")
    assert games.isdisjoint(fresh.order.inputs.values())
    assert "seats: from 0 to 100" in story.state.failures["train"].error


def planned(story):
    return plan(Snapshot(story.state, RULES, story.now_s)).wanted


def test_checkpoints_of_long_ago_are_not_counted_on_unless_they_are_of_champions():
    story = Trained()
    models = [story.grow() for _ in range(CHECKPOINTS_COUNTED_ON + 1)]
    kept = [
        model for model in (story.first, *models) if kept_checkpoint(story.state, story.state.models[model])
    ]
    assert kept == [story.first, *models[1:]]


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
    story.grow(policy=2.4)
    found = story.reset()
    assert found.model == story.first
    assert "1.600" in found.reason
    assert len(found.evidence["losses"]) > 4


@pytest.mark.parametrize("policy", [1.3, 1.6, 1.9])
def test_a_loss_that_drifts_sets_nothing_back(policy):
    story = Trained()
    for _ in range(6):
        story.grow()
    story.grow(policy=policy)
    assert story.reset() is None


def test_a_learning_rate_a_hundred_times_too_high_is_seen_in_the_loss(tmp_path):
    """With real trainings: what they report of their losses is what is looked at."""
    game, results = load_game("connect_four_2p"), np.random.default_rng(1)
    net = Learner(build(game, "small", seed=1), LearnerConfig())
    states = sample_positions(game, 256)
    legal = game.legal(states)
    policy = np.repeat(1 / legal.counts, legal.counts).astype(np.float32)
    values = results.choice([-1.0, 1.0], len(states)).astype(np.float32)
    rows = TrainingRows(
        states, legal, policy, game.to_move(states), np.stack([values, -values], 1), np.ones(256, np.float32)
    )
    story = Trained()

    def piece(rate):
        losses = np.mean([net.step(make_batch(game, rows), rate).numpy() for _ in range(20)], axis=0)
        story.grow(**dict(zip(LOSSES, losses.tolist(), strict=True)))
        return story.reset()

    assert [piece(1e-3) for _ in range(8)] == [None] * 8
    found = next(each for each in (piece(0.1) for _ in range(3)) if each is not None)
    assert found.model == story.first


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


@pytest.mark.parametrize(
    "said", [{"loss": 0.3}, {"policy": "low", "value": 1.0}, {"policy": None}, [1.0], "low"]
)
def test_losses_that_another_trainer_tells_in_its_own_way_stop_nothing(said):
    story = Trained()
    for _ in range(8):
        story.play()
        story.check()
        story.export()
        story.train(train=said, held=said, best_held=said, calibration={"bins": [said]})
    assert story.reset() is None
    assert not any(
        "loss" in each.text
        for each in examine([story.state], ExaminationContext(now_s=story.now_s, rules=RULES))
    )


@pytest.mark.parametrize(
    "error",
    [
        "inputs/checkpoint.safetensors: found another network's (size mismatch). Train on without it",
        "no copy of checkpoint-model0008 is here",
        "the loss: step 1 gave [nan, nan, 1.2]. Lower the learning rate",
    ],
)
def test_a_checkpoint_that_cannot_be_read_is_left_out_of_the_next_training(error):
    story = Trained()
    newest = story.grow()
    story.write(Promoted(at_s=story.now_s, model=newest, previous=story.first, reason="stronger"))
    story.play(rows=9000)
    story.check()
    story.export()
    assert wanted_training(story).inputs["checkpoint.safetensors"] == f"checkpoint-{newest}"
    story.fail(story.issue("train", wanted_training(story)), error.replace("model0008", newest))
    story.now_s += 3600
    without = wanted_training(story)
    assert without.inputs["parent.safetensors"] == newest
    assert not {"checkpoint", "checkpoint.safetensors"} & {*without.params, *without.inputs}
    assert without.params["warmup_steps"] > 0
    story.fail(story.issue("train", without), "out of memory")
    story.now_s += 3600
    assert "checkpoint" not in wanted_training(story).params, "what failed since has nothing to do with it"
    after = story.grow()
    story.play(rows=9000)
    story.check()
    story.export()
    assert wanted_training(story).inputs["checkpoint.safetensors"] == f"checkpoint-{after}"


def test_a_training_that_could_not_write_its_own_checkpoint_goes_on_from_the_same_one():
    story = Trained()
    newest = story.grow()
    story.play(rows=9000)
    story.check()
    story.export()
    error = "out/model.checkpoint.safetensors cannot be written: no space is left"
    story.fail(story.issue("train", wanted_training(story)), error)
    story.now_s += 3600
    assert wanted_training(story).inputs["checkpoint.safetensors"] == f"checkpoint-{newest}"


def wanted_training(story):
    made = plan(Snapshot(story.state, RULES, story.now_s))
    return next(each.order for each in made.wanted if each.kind == "train")
