"""Trainings beside the line of champions, and networks that begin with another config's, if asked for."""

import msgspec
import pytest
from feedback_kit import promote, trained_model
from learning_story import RULES, Story, artifact

from ringrift.coordination.model_lifecycle_coordinator import in_training
from ringrift.engine.memory import MemoryStore, memory_engine
from ringrift.errors import ConfigError
from ringrift.learning.announcements import Silent
from ringrift.learning.controller import Controller
from ringrift.learning.facts.facts import Blocked, JobIssued, Noted
from ringrift.learning.facts.records import ModelState
from ringrift.learning.judging.feedback import RatingCurves
from ringrift.learning.plan.evaluation import open_candidates
from ringrift.learning.plan.orders import (
    CascadeSource,
    Snapshot,
    decided_by_cascade,
    outlook,
    train_order,
    warm_start,
)
from ringrift.learning.plan.plan import plan
from ringrift.learning.plan.rules import CascadeRules, StudentRules, learning_rules
from ringrift.learning.replay import replay
from ringrift.testing.simulation import SimulatedRuntime, simulate


def with_students(**changes):
    return msgspec.structs.replace(RULES, students=StudentRules(**changes))


def planned(story, rules):
    return plan(Snapshot(story.state, rules, story.now_s))


def wanted(story, rules, stage):
    return next((each for each in planned(story, rules).wanted if each.stage == stage), None)


def a_champion():
    story = Story()
    promote(story, trained_model(story))
    return story


def carried_out(story, order, kind="train"):
    job = story.issue(kind, order)
    digest = f"student{story._number:04d}"
    story.end(job, artifact("model", digest), artifact("card", f"card-{digest}"), steps=10)
    return digest


def test_nobody_is_taught_unless_that_is_set():
    story = a_champion()
    assert {each.stage for each in planned(story, RULES).wanted} <= {
        "selfplay",
        "evaluate",
        "train",
        "export",
    }


def test_every_new_champion_has_one_student():
    story, rules = a_champion(), with_students(distillation="medium")
    first = wanted(story, rules, "distillation")
    assert first.kind == "train"
    assert first.order.params["preset"] == "medium"
    assert "parent" not in first.order.params
    digest = carried_out(story, first.order)
    assert wanted(story, rules, "distillation") is None
    promote(story, trained_model(story))
    second = wanted(story, rules, "distillation")
    assert second.order.inputs["parent.safetensors"] == digest, "a student goes on learning"
    newer = carried_out(story, second.order)
    states = {student.digest: student.state for student in story.state.students.values()}
    assert states == {digest: ModelState.SUPERSEDED, newer: ModelState.PRODUCTION}


def test_a_student_is_no_candidate_costs_no_steps_and_holds_up_no_training():
    story, rules = a_champion(), with_students(distillation="small")
    spent, models = story.state.bucket.spent, dict(story.state.models)
    order = wanted(story, rules, "distillation").order
    job = story.issue("train", order)
    assert not story.state.open_of("train")
    assert story.told[-1][0] == "WORK_QUEUED", "nobody takes it for a training of the line"
    story.fail(job)
    assert story.state.failures["train"].in_a_row == 0
    assert wanted(story, rules, "distillation") is None, "its own stage rests"
    story.now_s += 1_000
    carried_out(story, wanted(story, rules, "distillation").order)
    assert (story.state.bucket.spent, story.state.models) == (spent, models)
    assert open_candidates(story.state) == []


def test_a_student_is_rated_against_the_champion():
    story, rules = a_champion(), with_students(distillation="small")
    digest = carried_out(story, wanted(story, rules, "distillation").order)
    for name in RULES.rating_opponents:
        story.evaluate(story.state.champion, name, wins=30, losses=10, purpose="rating")
    match = wanted(story, rules, "evaluate").order
    assert set(match.inputs.values()) >= {digest, story.state.champion}
    assert match.purpose == "rating"


def test_a_small_network_comes_after_every_so_many_games():
    story, rules = a_champion(), with_students(small_net_games=100)
    while story.state.games < 100:
        assert wanted(story, rules, "small_net") is None
        story.play()
        story.check()
    carried_out(story, wanted(story, rules, "small_net").order)
    assert wanted(story, rules, "small_net") is None
    story.play(games=100)
    story.check()
    assert wanted(story, rules, "small_net") is not None


def test_what_is_in_training_is_a_model_in_training():
    story = a_champion()
    story.issue("train", wanted(story, with_students(distillation="small"), "distillation").order)
    assert [each.state for each in in_training(story.state)] == [ModelState.TRAINING]


# --- beginning with another config's champion ---------------------------------------------------------

CASCADE = CascadeRules(enabled=True, rating=1500.0, wait_s=600.0)
STRONG = CascadeSource(config="square8_2p", champion="c" * 64, card="d" * 64, rating=1600.0)


def fresh(config="square8_3p"):
    story = Story(config)
    story.write(Noted(at_s=story.now_s, topic="begin", text=""))
    return story


def test_a_config_waits_for_its_source_and_no_longer_than_it_may():
    story = fresh()
    weak = msgspec.structs.replace(STRONG, rating=1200.0)
    (block,) = decided_by_cascade(story.state, weak, CASCADE, story.now_s)
    assert isinstance(block, Blocked)
    assert block.until_s == story.state.first_s + 600.0
    assert "square8_2p is at 1200" in block.reason
    story.write(block)
    assert decided_by_cascade(story.state, weak, CASCADE, story.now_s) == []
    assert decided_by_cascade(story.state, weak, CASCADE, block.until_s + 1) == []


def test_a_strong_source_is_what_the_first_training_begins_with():
    story = fresh()
    story.write(decided_by_cascade(story.state, CascadeSource(config="square8_2p"), CASCADE, story.now_s)[0])
    for fact in decided_by_cascade(story.state, STRONG, CASCADE, story.now_s + 1):
        story.write(fact)
    story.now_s += 1
    assert warm_start(story.state).model == STRONG.champion
    story.play()
    story.check()
    story.export()
    train = wanted(story, RULES, "train")
    assert train.order.inputs["warm.safetensors"] == STRONG.champion
    assert "square8_2p" in train.reason


@pytest.mark.parametrize(
    ("config", "rules", "source"),
    [
        ("square8_3p", CascadeRules(), False),
        ("square8_3p", CASCADE, True),
        ("square8_2p", CASCADE, False),
        ("hex8_2p", msgspec.structs.replace(CASCADE, sources={"hex8_2p": "square8_2p"}), True),
    ],
)
def test_who_follows_whom_in_a_run(config, rules, source):
    async def main():
        runtime = SimulatedRuntime()
        engine = memory_engine(runtime, MemoryStore())
        run_rules = msgspec.structs.replace(RULES, cascade=rules)
        controller = Controller(engine, runtime, run_rules, announcer=Silent())
        await controller.open(
            ["square8_2p", "other_2p"] if config == "square8_2p" else ["square8_2p", config]
        )
        await controller.reconcile()
        assert ("train" in controller.state(config).blocks) is source
        await engine.close()

    simulate(main())


def test_decisions_that_follow_another_config_replay_from_their_own_facts():
    story = fresh()
    for fact in decided_by_cascade(story.state, STRONG, CASCADE, story.now_s):
        story.write(fact)
    story.play()
    story.check()
    story.export()
    look = outlook(story.state, RULES, RatingCurves(), now_s=story.now_s)
    train = next(each for each in plan(look).wanted if each.kind == "train")
    told = [*story.facts, JobIssued(
        at_s=story.now_s, job_id="t", kind="train", order=train.order, priority=train.priority, reason="r"
    )]  # fmt: skip
    found = replay(story.state.config, told, RULES)
    assert [each for each in found if each.number == len(told)] == []
    bare = msgspec.structs.replace(told[-1], order=train_order(
        story.state, RULES, [story.state.newest_samples], None, sample_steps=4000
    ))  # fmt: skip
    (odd,) = [
        each for each in replay(story.state.config, [*told[:-1], bare], RULES) if each.number == len(told)
    ]
    assert "warm" in odd.why


def test_the_settings_are_read_and_wrong_ones_are_named():
    table = {"students": {"distillation": "small"}, "cascade": {"enabled": True}}
    assert learning_rules(table).students.distillation == "small"
    with pytest.raises(Exception, match="gigantic"):
        learning_rules({"students": {"distillation": "gigantic"}})


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ({"simulation": 8}, r"\[learning\] has the unknown setting 'simulation'; it may have: .*simulations"),
        ({"students": {"size": "small"}}, r"\[learning.students\] has .* 'size'; it may have: .*small_net"),
        ({"bucket": {"steps": 1}}, r"\[learning.bucket\] has .* 'steps'; it may have: .*steps_per_row"),
        ({"promotion": {"games": 1}}, r"\[learning.promotion\] has .* 'games'; it may have: .*mode"),
    ],
)
def test_an_unknown_setting_is_answered_with_those_there_are(table, complaint):
    with pytest.raises(ConfigError, match=complaint):
        learning_rules(table)


def test_a_rule_may_have_names_of_configs():
    rules = learning_rules({"cascade": {"sources": {"hex8_2p": "square8_2p"}}})
    assert rules.cascade.sources == {"hex8_2p": "square8_2p"}
