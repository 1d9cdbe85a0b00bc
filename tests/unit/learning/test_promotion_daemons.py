"""Promotion as others see it: judgments, second looks, and installed champions."""

from dataclasses import replace

import pytest
from feedback_kit import Ear, Run, promote, trained_model

from ringrift.coordination.auto_promotion_daemon import (
    LOOKS_MAX,
    AutoPromotionDaemon,
    bad_outcome,
)
from ringrift.coordination.model_lifecycle_coordinator import ChampionFiles
from ringrift.engine.memory import memory_engine
from ringrift.learning.judging.promotion import PromotionVerdict
from ringrift.learning.plan.evaluation import RECHECK_TOPIC, rechecked_since
from ringrift.runtime import system_runtime
from ringrift.testing.simulation import ManualRuntime

REGRESSION = {"config_key": "square8_2p", "severity": "severe", "elo_drop": 60.0}


class World:
    def __init__(self, folder, *configs):
        self.run, self.ear, self.runtime = Run(*configs), Ear(), ManualRuntime()
        self.engine = memory_engine(system_runtime())
        self.files = ChampionFiles(folder, self.engine.blobs)
        self.runtime.wall_offset_s = 0.0

    def daemon(self, kind, **given):
        return kind(router=self.ear.router, runtime=self.runtime, situations=self.run.situations, **given)

    def notes(self):
        return [note.text for note in self.run.story.state.notes if note.topic == RECHECK_TOPIC]

    def champions(self, count, config="square8_2p"):
        story = self.run.stories[config]
        for _ in range(count):
            promote(story, trained_model(story))
        self.runtime.clock_s = story.now_s
        return [change.model for change in story.state.promotions]

    def keep(self, champion, previous):
        """Settle the look at the champion in its favor."""
        self.run.story.evaluate(champion, previous, wins=110, losses=50, purpose="rollback")
        self.runtime.clock_s = self.run.story.now_s + 1000.0

    async def say(self, event, payload):
        await self.ear.router.publish(event, payload, "test")


@pytest.fixture
async def world(tmp_path):
    world = World(tmp_path, "square8_2p", "hex8_2p")
    yield world
    await world.engine.close()


async def test_the_judgment_of_a_candidate_can_be_asked_for(world):
    daemon = world.daemon(AutoPromotionDaemon)
    assert daemon.get_judgment("square8_2p") is None
    model = trained_model(world.run.story)
    assert daemon.get_judgment("square8_2p").verdict is PromotionVerdict.MORE_GAMES
    world.run.story.evaluate(model, "random", wins=64, losses=0)
    assert daemon.get_judgment("square8_2p").verdict is PromotionVerdict.PROMOTE
    assert "100% of 64 games" in daemon.health_check().details["judgements"]["square8_2p"]


async def test_a_regression_makes_a_settled_champion_be_looked_at_again(world):
    first, second = world.champions(2)
    daemon = world.daemon(AutoPromotionDaemon, files=world.files)
    await daemon.start()
    await world.say("REGRESSION_DETECTED", REGRESSION)
    assert world.notes() == []  # its games with the predecessor are not over yet
    world.keep(second, first)
    await world.say("REGRESSION_DETECTED", {**REGRESSION, "elo_drop": 61.0})
    assert world.notes() == ["a regression of 61 points was found"]
    assert rechecked_since(world.run.story.state, second) == world.runtime.now_s()
    await world.say("REGRESSION_DETECTED", {**REGRESSION, "elo_drop": 62.0})
    assert len(world.notes()) == 1  # this look is open
    assert daemon.health_check().details["bad_outcome"]["square8_2p"] == "a regression of 62 points was found"
    await daemon.stop()


async def test_a_rating_that_fell_is_no_reason_to_look_again_while_it_is_above_the_predecessors(world):
    """Every match moves the joint fit: the first good results of a champion are nearly always too good."""
    first, second = world.champions(2)
    world.run.story.evaluate(first, "random", wins=60, losses=4, purpose="rating")
    world.keep(second, first)
    daemon = world.daemon(AutoPromotionDaemon, files=world.files)
    await daemon.start()
    fell = {
        "config_key": "square8_2p",
        "model_id": second,
        "elo_delta": -70.0,
        "new_elo": 1600.0,
        "threshold": 25.0,
    }
    await world.say("ELO_SIGNIFICANT_CHANGE", fell)
    assert world.notes() == []
    assert daemon.health_check().details["bad_outcome"]["square8_2p"] == "its rating fell by 70 points"
    world.run.story.evaluate(second, "random", wins=2, losses=200, purpose="rating")
    await world.say("ELO_SIGNIFICANT_CHANGE", {**fell, "elo_delta": -300.0})
    assert world.notes() == ["its rating fell by 300 points"]
    await daemon.stop()


async def test_bad_news_cannot_make_it_look_again_for_ever(world):
    first, second = world.champions(2)
    daemon = world.daemon(AutoPromotionDaemon, settings={"cooldown_s": "10"})
    await daemon.start()
    for number in range(8):
        world.run.story.now_s = world.runtime.clock_s
        world.keep(second, first)
        await world.say("REGRESSION_SEVERE", {**REGRESSION, "elo_drop": 60.0 + number})
    assert len(world.notes()) == LOOKS_MAX
    await daemon.stop()


async def test_a_first_champion_has_nothing_to_go_back_to(world):
    world.champions(1)
    daemon = world.daemon(AutoPromotionDaemon)
    await daemon.start()
    await world.say("REGRESSION_DETECTED", REGRESSION)
    assert world.notes() == []
    await daemon.stop()


def test_what_counts_as_bad_news():
    assert bad_outcome("ELO_SIGNIFICANT_CHANGE", {"elo_delta": 40.0}) == ""
    assert bad_outcome("ELO_SIGNIFICANT_CHANGE", {"elo_delta": -40.0}) == "its rating fell by 40 points"
    assert bad_outcome("REGRESSION_DETECTED", {"severity": "minor", "elo_drop": 22.0}) == ""
    assert bad_outcome("REGRESSION_DETECTED", {"severity": "moderate", "elo_drop": 40.0})
    assert bad_outcome("TRAINING_ROLLBACK_NEEDED", {"reason": "loss exploded"}) == "loss exploded"


async def install(world, text, config="square8_2p"):
    """Make a champion whose files exist."""
    story = world.run.stories[config]
    model = trained_model(story)
    promote(story, model)
    state = story.state
    digest, card = [await world.engine.blobs.put_bytes(each) for each in (text, b"card of " + text)]
    state.models[digest] = state.models.pop(model)
    state.models[digest].digest, state.models[digest].card = digest, card
    state.champion = digest
    state.promotions[-1] = replace(state.promotions[-1], model=digest)
    return digest


async def test_a_new_champion_is_installed_when_it_is_announced(world):
    daemon = world.daemon(AutoPromotionDaemon, files=world.files)
    await daemon.start()
    model = await install(world, b"weights")
    promoted = {"config_key": "square8_2p", "model_id": model, "model_path": "p", "elo": 1.0}
    await world.say("MODEL_PROMOTED", promoted)
    assert world.files.path_of("square8_2p").read_bytes() == b"weights"
    await daemon.stop()


async def test_a_damaged_champion_is_told_once_and_seen_in_the_health(world):
    model = await install(world, b"weights")
    await world.engine.blobs.delete(model)
    daemon = world.daemon(AutoPromotionDaemon, files=world.files)
    await daemon.start()
    await world.say("PROMOTION_CANDIDATE", {"config_key": "square8_2p", "model_id": "m"})
    told = world.ear.take()
    assert told["MODEL_CORRUPTED"]["corruption_type"] == "it is not there"
    assert told["PROMOTION_FAILED"]["model_id"] == model
    await world.say("PROMOTION_CANDIDATE", {"config_key": "square8_2p", "model_id": "n"})
    assert not {"MODEL_CORRUPTED", "PROMOTION_FAILED"} & world.ear.take().keys()
    assert "damaged" in daemon.health_check().message
    await daemon.stop()


async def test_a_champion_whose_files_cannot_be_written_is_a_promotion_that_failed(world):
    model = await install(world, b"weights")
    world.files.folder.parent.joinpath("taken").write_text("a file is where the folder should be")
    files = ChampionFiles(world.files.folder.parent / "taken", world.engine.blobs)
    daemon = world.daemon(AutoPromotionDaemon, files=files)
    await daemon.start()
    await world.say("PROMOTION_CANDIDATE", {"config_key": "square8_2p", "model_id": "m"})
    told = world.ear.take()
    assert (told["PROMOTION_FAILED"]["model_id"], "MODEL_CORRUPTED" in told) == (model, False)
    files.folder.unlink()
    await world.say("PROMOTION_CANDIDATE", {"config_key": "square8_2p", "model_id": "n"})
    assert files.path_of("square8_2p").read_bytes() == b"weights"
    assert daemon.health_check().healthy
    assert not daemon.health_check().details["not_installed"]
    await daemon.stop()


async def test_a_champion_that_could_not_be_installed_is_forgotten_when_another_takes_its_place(world):
    await world.engine.blobs.delete(await install(world, b"lost"))
    daemon = world.daemon(AutoPromotionDaemon, files=world.files)
    await daemon.start()
    await world.say("PROMOTION_CANDIDATE", {"config_key": "square8_2p", "model_id": "m"})
    assert "damaged" in daemon.health_check().message
    second = await install(world, b"damaged too")
    await world.engine.blobs.delete(second)
    await world.say("PROMOTION_CANDIDATE", {"config_key": "square8_2p", "model_id": "m"})
    assert world.ear.take()["PROMOTION_FAILED"]["model_id"] == second
    await install(world, b"weights")
    await world.say("PROMOTION_CANDIDATE", {"config_key": "square8_2p", "model_id": "m"})
    assert "damaged" not in daemon.health_check().message
    assert daemon.health_check().details["not_installed"] == {}
    await daemon.stop()


async def test_it_is_told_when_every_config_has_a_new_champion(world):
    daemon = world.daemon(AutoPromotionDaemon, files=world.files)
    await daemon.start()

    async def announce(config):
        model = await install(world, f"{config} {world.run.story.now_s}".encode(), config)
        promoted = {"config_key": config, "model_id": model, "model_path": "p", "elo": world.run.story.now_s}
        await world.say("MODEL_PROMOTED", promoted)
        return world.ear.take().get("CROSSBOARD_PROMOTION")

    await world.say("PROMOTION_CANDIDATE", {"config_key": "square8_2p", "model_id": "m"})
    assert await announce("square8_2p") is None
    told = await announce("hex8_2p")
    assert told["config_keys"] == ["hex8_2p", "square8_2p"]
    assert await announce("square8_2p") is None
    await daemon.stop()
