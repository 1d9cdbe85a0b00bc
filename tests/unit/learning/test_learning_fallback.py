"""What is used when the newest is missing, and what is said about it."""

from __future__ import annotations

import pytest
from learning_story import RULES, Story

from ringrift.coordination.stale_fallback import StaleFallbackDaemon
from ringrift.coordination.training_trigger_daemon import TrainingTriggerDaemon
from ringrift.learning.facts.facts import Promoted, Recalled, RolledBack
from ringrift.learning.judging.feedback import RatingCurves
from ringrift.learning.plan.plan import plan
from ringrift.learning.plan.snapshot import Snapshot
from ringrift.learning.plan.stages import stages_note
from ringrift.learning.plan.training_data import fallback_tier, good_model, good_samples
from ringrift.learning.situation import Situations
from ringrift.work.stages import StopReason


def three_champions() -> tuple[Story, list[str]]:
    story, models = Story(), []
    for _ in range(3):
        story.play()
        story.check()
        story.export()
        model = story.train()
        previous = models[-1] if models else None
        story.write(Promoted(at_s=story.now_s, model=model, previous=previous, reason="stronger"))
        models.append(model)
    return story, models


def test_the_champion_is_used_while_it_is_there():
    story, models = three_champions()
    assert good_model(story.state).use == models[2]
    assert not good_model(story.state).needed


def test_a_missing_champion_is_replaced_by_the_one_before_it():
    story, models = three_champions()
    found = good_model(story.state, {models[2]})
    assert found.use == models[1]
    assert "is missing" in found.reason
    assert good_model(story.state, set(models[1:])).use == models[0]
    nothing = good_model(story.state, set(models))
    assert nothing.use is None
    assert "without a network" in nothing.reason


def test_a_model_that_was_taken_back_or_recalled_is_never_used():
    story, models = three_champions()
    story.write(RolledBack(at_s=story.now_s, model=models[2], restored=models[1], reason="weaker"))
    story.write(Recalled(at_s=story.now_s, recall_id="r", reason="bad data", model=models[1]))
    assert good_model(story.state).use == models[0]


def test_older_samples_are_used_when_the_newest_are_missing_or_hold_recalled_games():
    story, _ = three_champions()
    first, second, third = story.state.samples
    assert good_samples(story.state).use == third
    assert good_samples(story.state, {third}).use == second
    at_s = [shard.made_s for shard in story.state.shards.values()][-1]
    story.write(Recalled(at_s=story.now_s, recall_id="r", reason="bad hour", from_s=at_s - 1))
    assert good_samples(story.state).use == second
    assert good_samples(story.state, {first, second}).use is None


@pytest.mark.parametrize(
    ("failures", "waited_s", "tier"),
    [(0, 0, 0), (1, 899, 0), (2, 0, 1), (0, 900, 1), (4, 0, 2), (6, 0, 3), (0, 1e5, 3)],
)
def test_tiers(failures, waited_s, tier):
    assert fallback_tier(failures=failures, waited_s=waited_s) == tier


def planned(story):
    """What the plan says of training; what it decides on the way is written."""
    while (made := plan(Snapshot(story.state, RULES, story.now_s))).decided:
        for fact in made.decided:
            story.write(fact)
    return [each for each in made.explanations if each.stage == "train"][-1]


def ready_to_train() -> Story:
    story, _ = three_champions()
    story.play(rows=8_000)
    story.check()
    story.export()
    return story


def stop_fallback(story: Story) -> None:
    stopped = {"stale_fallback": StopReason("by anna", by_person=True)}
    story.write(stages_note(story.state, stopped, at_s=story.now_s))


def test_fresh_games_are_trained_on_at_once_however_few_there_are():
    story = ready_to_train()
    assert planned(story).will
    assert story.state.newest_note("freshness") is None
    few = Story()
    few.play(games=3)
    few.check()
    few.export()
    assert planned(few).will


def test_a_training_waits_for_newer_games_and_goes_on_without_them_after_a_while():
    story = ready_to_train()
    story.now_s += 30 * 3600.0
    said = planned(story)
    assert not said.will
    assert said.until_s == story.now_s + 900.0
    assert "waits for newer games, played or brought by a sync: 0 games of the last 24 hours" in said.reason
    assert "after 15 minutes it goes on with what is there" in said.reason
    began_s, story.now_s = story.now_s, story.now_s + 899.0
    assert planned(story).until_s == began_s + 900.0
    story.now_s += 1.0
    assert planned(story).will


def test_while_stale_fallback_is_stopped_it_waits_until_there_are_newer_games():
    story = ready_to_train()
    story.now_s += 30 * 3600.0
    stop_fallback(story)
    assert not planned(story).will
    story.now_s += 20 * 3600.0
    said = planned(story)
    assert (said.will, said.until_s) == (False, None)
    assert "STALE_FALLBACK is stopped: by anna (since " in said.reason
    story.play(games=49)
    story.check()
    story.export()
    assert not planned(story).will  # too few of them
    story.play(games=1)
    story.check()
    story.export()
    assert planned(story).will
    assert story.state.newest_note("freshness").details["stale"] is False


def test_games_are_played_while_a_training_waits_for_them_however_many_rows_wait():
    story = ready_to_train()
    for _ in range(3):
        story.play(rows=8_000)
        story.check()
        story.export()

    def games():
        said = plan(Snapshot(story.state, RULES, story.now_s)).explanations
        return next(each for each in said if each.stage == "selfplay")

    assert "more rows would grow old" in games().reason
    story.now_s += 30 * 3600.0
    assert games().will


class OneRun:
    """A loop with one config, as far as faces look at it."""

    def __init__(self, story: Story) -> None:
        self.story, self.rules, self.curves = story, RULES, RatingCurves()

    def configs(self):
        return [self.story.state.config]

    def state(self, _config):
        return self.story.state

    def shares(self):
        return {self.story.state.config: 1.0}

    async def write(self, _config, fact):
        self.story.write(fact)


class SomeBlobs:
    def __init__(self) -> None:
        self.gone: set[str] = set()

    async def has(self, digest):
        return digest not in self.gone


async def test_the_watch_says_what_is_missing_and_when_it_is_back():
    story, models = three_champions()
    blobs = SomeBlobs()
    watch = StaleFallbackDaemon(situations=Situations(OneRun(story)), blobs=blobs)
    await watch._run_cycle()
    assert watch.needed() == {}
    blobs.gone = {models[2]}
    await watch._run_cycle()
    assert models[1][:12] in watch.needed()["square8_2p model"]
    blobs.gone = set()
    await watch._run_cycle()
    assert watch.needed() == {}
    assert watch.tier("square8_2p") == 0


def test_the_decision_record_has_the_numbers_behind_it():
    story, models = three_champions()
    trigger = TrainingTriggerDaemon(situations=Situations(OneRun(story)))
    record = trigger.decision("square8_2p").to_dict()
    assert set(record) == {"config_key", "can_trigger", "reason", "conditions", "data_info", "elo_info"}
    assert record["data_info"]["games"] == 150
    assert record["elo_info"]["champion"] == models[2]
    assert record["conditions"]["already_training"] is False
    assert "no run of hex8_2p" in trigger.decision("hex8_2p").reason


@pytest.mark.parametrize("mode", ["cascade", "distillation", "small_net"])
def test_a_mode_that_is_off_names_the_setting_that_turns_it_on(mode):
    story, _ = three_champions()
    trigger = TrainingTriggerDaemon(mode, situations=Situations(OneRun(story)))
    record = trigger.decision("square8_2p")
    assert not record.can_trigger
    assert "[learning." in record.reason
