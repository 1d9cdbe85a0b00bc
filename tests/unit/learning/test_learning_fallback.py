"""What is used when the newest is missing, and what is said about it."""

from __future__ import annotations

import pytest
from learning_story import RULES, Story, artifact

from ringrift.coordination.stale_fallback import StaleFallbackDaemon
from ringrift.coordination.training_trigger_daemon import TrainingTriggerDaemon
from ringrift.events.event import RouterEvent
from ringrift.learning.announcements import ANNOUNCED
from ringrift.learning.facts.facts import Noted, Promoted, Recalled, RolledBack
from ringrift.learning.judging.feedback import RatingCurves
from ringrift.learning.plan.orders import Snapshot, export_order
from ringrift.learning.plan.plan import plan, training_parent
from ringrift.learning.plan.stages import StopReason, stages_note
from ringrift.learning.plan.training_data import fallback_tier, good_model, good_samples, next_export
from ringrift.learning.situation import Situations


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


def wait_for_games() -> Story:
    story = ready_to_train()
    story.now_s += 30 * 3600.0
    assert not planned(story).will
    return story


async def sync_failed(watch, **payload):
    told = {"node_id": "one", "error": "two: no answer", "targets": ["two"], **payload}
    await watch._on_sync_failed(RouterEvent("DATA_SYNC_FAILED", told))


async def test_syncs_that_fail_shorten_the_wait_for_newer_games():
    story = wait_for_games()
    watch = StaleFallbackDaemon(situations=Situations(OneRun(story)), blobs=SomeBlobs())
    assert "DATA_SYNC_FAILED" in watch._get_event_subscriptions()
    await sync_failed(watch)
    assert not planned(story).will, "the next sync may bring them"
    assert "1 sync for them failed" in planned(story).reason
    await sync_failed(watch, config_key="hex8_2p")
    assert not planned(story).will, "it was about other games"
    await sync_failed(watch, config_key="square8_2p")
    assert planned(story).will


async def test_failed_syncs_count_for_the_wait_in_which_they_failed():
    story = ready_to_train()
    watch = StaleFallbackDaemon(situations=Situations(OneRun(story)), blobs=SomeBlobs())
    await sync_failed(watch)
    await sync_failed(watch)
    assert story.state.newest_note("sync_failed") is None, "nobody waits for what it would have brought"
    story.now_s += 30 * 3600.0
    assert not planned(story).will
    await sync_failed(watch)
    await sync_failed(watch)
    assert planned(story).will
    story.play(games=60)
    story.check()
    story.export()
    assert planned(story).will  # fresh again; the next wait begins anew
    story.now_s += 30 * 3600.0
    assert not planned(story).will


def test_the_loop_announces_when_a_training_begins_to_wait_for_newer_games_and_when_they_are_there():
    story = ready_to_train()
    story.now_s += 30 * 3600.0

    def told():
        names = ("DATA_STALE", "DATA_FRESH")
        return [(name, payload) for name, payload in story.told if name in names]

    assert not planned(story).will
    story.now_s += 60.0
    assert not planned(story).will
    ((name, payload),) = told()
    assert name == "DATA_STALE"
    age_s = story.state.newest_note("freshness").details["age_s"]
    about = {"config_key": "square8_2p", "data_age_hours": age_s / 3600, "threshold_hours": 24.0}
    assert payload == about
    assert payload["data_age_hours"] > 29
    story.play(games=60)
    story.check()
    story.export()
    assert planned(story).will
    _, (name, payload) = told()
    assert name == "DATA_FRESH"
    assert payload["data_age_hours"] < 24
    assert {"DATA_STALE", "DATA_FRESH"} <= set(ANNOUNCED)


def with_three_files() -> Story:
    """A training is due, and its window has three files of samples."""
    story = Story()
    for rows in (2_000, 2_000, 2_000):
        story.play(rows=rows)
        story.check()
        job = story.issue("export", export_order(story.state, RULES, next_export(story.state, RULES)))
        story.end(job, artifact("samples", f"file-{job}", rows=rows, games=50))
        if not story.state.models:
            story.train()
    return story


def train_order_of(story):
    made = plan(Snapshot(story.state, RULES, story.now_s))
    return next((each.order for each in made.wanted if each.kind == "train"), None)


async def test_a_file_that_is_gone_is_in_no_order_of_a_training():
    story, blobs = with_three_files(), SomeBlobs()
    watch = StaleFallbackDaemon(situations=Situations(OneRun(story)), blobs=blobs)
    await watch._run_cycle()
    assert story.state.newest_note("missing_files") is None
    first, *others = story.state.samples
    assert first in train_order_of(story).inputs.values()
    blobs.gone = {first}
    await watch._run_cycle()
    await watch._run_cycle()
    order = train_order_of(story)
    assert first not in order.inputs.values()
    assert set(others) <= set(order.inputs.values())
    assert sum(isinstance(each, Noted) and each.topic == "missing_files" for each in story.facts) == 1, (
        "said once"
    )
    blobs.gone = set()
    await watch._run_cycle()
    assert first in train_order_of(story).inputs.values()


async def test_games_of_a_file_that_is_gone_are_exported_again_if_they_are_there():
    story, blobs = with_three_files(), SomeBlobs()
    watch = StaleFallbackDaemon(situations=Situations(OneRun(story)), blobs=blobs)
    gone = list(story.state.samples.values())[-1]
    blobs.gone = {gone.digest}
    await watch._run_cycle()
    assert {shard.digest for shard in next_export(story.state, RULES)} == set(gone.shards)
    blobs.gone = {gone.digest, *gone.shards}
    await watch._run_cycle()
    assert next_export(story.state, RULES) == []


async def test_a_training_begins_with_no_model_that_is_gone():
    story, blobs = ready_to_train(), SomeBlobs()
    *_, before, newest = story.state.models
    assert training_parent(story.state, RULES).digest == newest
    blobs.gone = {newest}
    watch = StaleFallbackDaemon(situations=Situations(OneRun(story)), blobs=blobs)
    await watch._run_cycle()
    assert training_parent(story.state, RULES).digest == before


async def test_missing_files_are_planned_with_while_nobody_looks_for_them():
    story, blobs = with_three_files(), SomeBlobs()
    watch = StaleFallbackDaemon(situations=Situations(OneRun(story)), blobs=blobs)
    first = next(iter(story.state.samples))
    blobs.gone = {first}
    await watch._run_cycle()
    stop_fallback(story)
    assert first in train_order_of(story).inputs.values()
