"""What the bus is told follows from the facts, fits the catalog, and tells the loop's story in order."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from learning_story import RULES, Story

from ringrift.events.catalog.table import CATALOG
from ringrift.learning.announcements import ANNOUNCED
from ringrift.learning.facts.facts import (
    Archived,
    Blocked,
    JobEnded,
    Noted,
    Promoted,
    Recalled,
    Rejected,
    RolledBack,
    TrainingReset,
    WorkerSetAside,
)
from ringrift.learning.judging.promotion import Pairing
from ringrift.learning.plan.orders import (
    evaluate_order,
    export_order,
    selfplay_order,
    train_order,
    validate_order,
)


def whole_life() -> Story:
    """Every kind of fact and every kind of end at least once."""
    story = Story()
    story.play()
    story.check()
    story.play()
    story.check()
    story.export()
    first = story.train(loss=2.0)
    story.evaluate(first, "random", wins=60, losses=4)
    story.write(Promoted(at_s=story.now_s, model=first, previous=None, reason="beats random"))
    for number in range(6):
        story.play()
        story.check()
        story.export()
        weak = story.train(loss=1.9 - 0.1 * number)
        story.evaluate(weak, first, wins=20, losses=44)
        story.write(Rejected(at_s=story.now_s, model=weak, gate="sprt", reason="not stronger"))
    odd = story.train(loss=9.0, ended="no gain on held-out games", best_step=3)
    story.evaluate(odd, first, wins=50, losses=14)
    story.write(Promoted(at_s=story.now_s, model=odd, previous=first, reason="stronger"))
    story.evaluate(odd, first, wins=10, losses=54, purpose="rollback")
    story.write(RolledBack(at_s=story.now_s, model=odd, restored=first, reason="later evidence"))
    story.write(TrainingReset(at_s=story.now_s, model=first, reason="its last model was taken back"))
    story.train(loss=1.8)
    story.write(TrainingReset(at_s=story.now_s, model=first, reason="the loss jumped"))
    story.write(Archived(at_s=story.now_s, model=odd, reason="old"))
    story.write(WorkerSetAside(at_s=story.now_s, worker="w1", reason="games differ", until_s=1e9, by="plan"))
    story.write(Recalled(at_s=story.now_s, recall_id="r", reason="bad node", worker="w1"))
    assert story.write(Blocked(at_s=story.now_s, stage="train", reason="failures", until_s=2e9)) == []
    assert story.write(Noted(at_s=story.now_s, topic="a finding", text="of somebody")) == []
    for stale in (True, False):
        details = {"stale": stale, "age_s": 1e5 if stale else None, "games": 0}
        story.write(Noted(at_s=story.now_s, topic="freshness", text="how old the games are", details=details))
    fail_everything(story, first)
    return story


def fail_everything(story: Story, model: str) -> None:
    state = story.state
    shards = list(state.shards.values())
    candidate, samples = state.models[model], state.newest_samples
    assert samples is not None
    orders = {
        "selfplay": selfplay_order(state, RULES, simulations=8),
        "validate": validate_order(state, shards),
        "export": export_order(state, RULES, shards),
        "train": train_order(state, RULES, [samples], candidate, sample_steps=10),
        "evaluate": evaluate_order(state, RULES, candidate, [Pairing("random", 2)], purpose="promotion"),
    }
    for kind, order in orders.items():
        story.fail(story.issue(kind, order))
        story.fail(story.issue(kind, order), "the lease ran out")
    job = story.issue("selfplay", orders["selfplay"])
    story.write(JobEnded(at_s=story.now_s, job_id=job, cancelled=True))


def test_every_payload_fits_the_catalog() -> None:
    for name, payload in whole_life().told:
        spec = CATALOG[name]
        assert not spec.problems(payload), name
        assert set(payload) <= {field.name for field in spec.fields}, name


def test_what_is_declared_is_told_and_nothing_else() -> None:
    assert {name for name, _ in whole_life().told} == set(ANNOUNCED)


def test_the_stages_follow_each_other() -> None:
    story = Story()
    story.play()
    story.check()
    story.export()
    model = story.train()
    story.evaluate(model, "random", wins=60, losses=4)
    story.write(Promoted(at_s=story.now_s, model=model, previous=None, reason="beats random"))
    names = [name for name, _ in story.told]
    chain = (
        "SELFPLAY_COMPLETE",
        "NEW_GAMES_AVAILABLE",
        "NPZ_EXPORT_COMPLETE",
        "TRAINING_COMPLETED",
        "EVALUATION_COMPLETED",
        "MODEL_PROMOTED",
        "ITERATION_COMPLETED",
    )
    assert all(names.index(a) < names.index(b) for a, b in pairwise(chain))


def test_a_training_that_is_set_back_recovers_with_the_first_that_goes_through() -> None:
    story = Story()
    story.play()
    story.check()
    story.export()
    first = story.train(loss=1.0)
    story.train(loss=9.0)

    def recovery(told: list[tuple[str, dict[str, object]]]) -> list[tuple[str, dict[str, object]]]:
        return [(name, payload) for name, payload in told if name.startswith("RECOVERY_")]

    began_s = story.now_s
    [(name, payload)] = recovery(
        story.write(TrainingReset(at_s=began_s, model=first, reason="the loss jumped"))
    )
    assert (name, payload["component"], payload["reason"]) == (
        "RECOVERY_INITIATED",
        "square8_2p",
        "the loss jumped",
    )
    samples, parent = story.state.newest_samples, story.state.models[first]
    assert samples is not None
    order = train_order(story.state, RULES, [samples], parent, sample_steps=10)
    [(name, payload)] = recovery(story.fail(story.issue("train", order)))
    assert (name, payload["error"], payload["attempt"]) == ("RECOVERY_FAILED", "out of memory", 1)
    story.told.clear()
    story.train(loss=1.1)
    [(name, payload)] = recovery(story.told)
    assert (name, payload["component"]) == ("RECOVERY_COMPLETED", "square8_2p")
    assert payload["duration_seconds"] == story.now_s - began_s
    story.told.clear()
    story.train(loss=1.0)
    assert recovery(story.told) == []


def test_an_end_that_was_noted_before_is_not_told_again() -> None:
    story = Story()
    job = story.issue("selfplay", selfplay_order(story.state, RULES, simulations=8))
    assert story.end(job)
    assert story.end(job) == []


def test_a_failure_that_its_worker_told_is_not_told_again() -> None:
    story = Story()
    order = selfplay_order(story.state, RULES, simulations=8)
    told = story.fail(story.issue("selfplay", order), "exit code 1")
    assert [name for name, _ in told] == ["SELFPLAY_COMPLETE"]
    told = story.fail(story.issue("selfplay", order), "the lease ran out (3 attempts)")
    assert [name for name, _ in told] == ["WORK_FAILED", "SELFPLAY_COMPLETE"]


def test_a_verdict_without_games_is_not_told() -> None:
    story = Story()
    story.play()
    story.check()
    story.export()
    model = story.train()
    told = story.write(Promoted(at_s=story.now_s, model=model, previous=None, reason="always accept"))
    assert "EVALUATION_COMPLETED" not in [name for name, _ in told]
    assert "MODEL_PROMOTED" in [name for name, _ in told]


def test_rating_games_are_no_verdict() -> None:
    story = Story()
    story.play()
    story.check()
    story.export()
    model = story.train()
    story.told.clear()
    story.evaluate(model, "mcts:32", wins=3, losses=3, purpose="rating")
    names = [name for name, _ in story.told]
    assert "TOURNAMENT_COMPLETED" in names
    assert not {"EVALUATION_STARTED", "EVALUATION_PROGRESS", "EVALUATION_COMPLETED"} & set(names)


def test_the_training_threshold_is_told_once_when_it_is_crossed() -> None:
    story = Story()
    counts = []
    for _ in range(3):
        story.told.clear()
        story.play(games=2, rows=60)
        story.check()
        counts.append([name for name, _ in story.told].count("TRAINING_THRESHOLD_REACHED"))
    assert counts == [0, 1, 0]


def test_the_loss_trend_is_told_when_it_flips() -> None:
    story = Story()
    story.play()
    story.check()
    story.export()
    flips = []
    for loss in (2.0, 1.8, 1.6, 1.7, 1.5):
        story.told.clear()
        story.train(loss=loss)
        flips += [payload["trend"] for name, payload in story.told if name == "TRAINING_LOSS_TREND"]
    assert flips == ["improving", "degrading", "improving"]


@pytest.mark.parametrize(("loss", "told"), [(1.0, False), (5.0, True)])
def test_a_loss_far_off_the_others_is_an_anomaly(loss: float, told: bool) -> None:
    story = Story()
    story.play()
    story.check()
    story.export()
    for earlier in (1.2, 1.1, 1.15, 1.05, 1.1):
        story.train(loss=earlier)
    story.told.clear()
    story.train(loss=loss)
    assert ("TRAINING_LOSS_ANOMALY" in [name for name, _ in story.told]) is told


def finished_training(**fields) -> dict[str, dict]:
    """What a training told at its end."""
    story = Story()
    story.play(games=50, rows=2000)
    story.check()
    story.export()
    story.told.clear()
    story.train(**fields)
    return dict(story.told)


def test_a_finished_training_tells_its_own_epochs_and_both_losses() -> None:
    told = finished_training(
        epochs=2.5,
        train={"policy": 1.0, "value": 0.25, "entropy": 9.0},
        held={"policy": 1.75, "value": 0.5, "entropy": 9.0},
        best_held=1.5,
        ended="no better hold-out loss for 3 looks",
        best_step=4,
    )
    completed = told["TRAINING_COMPLETED"]
    assert (completed["epochs"], completed["train_loss"], completed["val_loss"]) == (2.5, 1.25, 1.5)
    stopped = told["TRAINING_EARLY_STOPPED"]
    assert (stopped["best_loss"], stopped["final_loss"], stopped["epoch"]) == (1.5, 2.25, 3)
    assert stopped["epochs_without_improvement"] == round(2.5 * 6 / 10)
    assert (told["CHECKPOINT_SAVED"]["epoch"], told["CHECKPOINT_SAVED"]["step"]) == (3, 10)


def test_a_trainer_of_the_users_own_is_counted_by_the_rows_it_was_given() -> None:
    told = finished_training(train=0.75)["TRAINING_COMPLETED"]
    assert told["epochs"] == pytest.approx(10 * RULES.batch / 2000, abs=1e-3)
    assert (told["train_loss"], "val_loss" in told) == (0.75, False)


def test_a_recall_tells_how_often_each_shard_is_drawn_from_now_on() -> None:
    story = Story()
    recalled, kept = story.play(games=5, rows=100), story.play(games=7, rows=300)
    story.check()
    story.state.shards[kept].worker = "another"
    recall = Recalled(at_s=story.now_s, recall_id="r", reason="bad node", worker="w1")
    (told,) = story.write(recall)
    assert told[1] == {"config_key": "square8_2p", "samples_updated": 100, "priorities": {recalled: 0.0}}
    (told,) = story.write(msgspec.structs.replace(recall, withdrawn=True))
    assert told[1]["priorities"] == {recalled: 1.0}
    nobody = Recalled(at_s=story.now_s, recall_id="s", reason="bad node", worker="nobody")
    assert story.write(nobody) == [], "it changed nothing"
