"""The life of models: views, archive rules, and the champion's files."""

import hashlib
from contextlib import asynccontextmanager

import pytest
from feedback_kit import Ear, Run, promote, reject, roll_back, trained_model
from learning_story import RULES

from ringrift.coordination.model_lifecycle_coordinator import (
    ChampionFiles,
    ModelLifecycleCoordinator,
    get_production_model_id,
    too_weak,
    wire_model_events,
)
from ringrift.engine.memory import memory_engine
from ringrift.errors import Corrupt
from ringrift.learning.facts.facts import RolledBack
from ringrift.learning.facts.records import Model, ModelState
from ringrift.learning.facts.state import ConfigState
from ringrift.learning.judging.ratings import Rating
from ringrift.learning.models import not_needed
from ringrift.learning.plan.orders import Snapshot
from ringrift.learning.plan.plan import plan
from ringrift.process import process_scope
from ringrift.runtime import system_runtime

DAY_S = 24 * 3600.0


def promoted_models(run, number):
    """So many champions of the first config, one after the other."""
    models = []
    for _ in range(number):
        models.append(trained_model(run.story))
        promote(run.story, models[-1])
    return models


@pytest.fixture
def run():
    return Run("square8_2p", "hex8_2p")


@pytest.fixture
def coordinator(run):
    ear = Ear()
    coordinator = ModelLifecycleCoordinator(router=ear.router, situations=run.situations)
    coordinator.ear = ear
    coordinator.wire()
    yield coordinator
    coordinator.unwire()


def test_states_follow_the_facts_with_their_reasons(run, coordinator):
    first = trained_model(run.story)
    assert coordinator.get_model_state(first) is ModelState.EVALUATING
    promote(run.story, first)
    second = trained_model(run.story)
    promote(run.story, second)
    assert coordinator.get_model_state(first) is ModelState.SUPERSEDED
    roll_back(run.story, second, first)
    third = trained_model(run.story)
    reject(run.story, third)
    states = {record.model_id: record.state for record in coordinator.get_models("square8_2p")}
    assert states == {
        first: ModelState.PRODUCTION,
        second: ModelState.ROLLED_BACK,
        third: ModelState.REJECTED,
    }
    assert [state for _, state, _ in coordinator.get_state_history(first)] == [
        "training",
        "evaluating",
        "production",
        "superseded",
        "production",
    ]
    assert coordinator.get_stats().to_dict() == {
        "total_models": 3,
        "by_state": {"production": 1, "rolled_back": 1, "rejected": 1},
        "promotions": 2,
        "rollbacks": 1,
        "rejections": 1,
    }
    assert coordinator.get_model(first).children == (second, third), (
        "one taken back is no place to go on from"
    )
    assert coordinator.get_models(state="rejected")[0].stage == "rejected"


def test_a_rating_belongs_to_a_hash_and_an_unplayed_model_has_the_wide_start(run, coordinator):
    model = trained_model(run.story)
    assert (coordinator.get_model(model).elo, coordinator.get_model(model).games_played) == (1500.0, 0)
    run.story.evaluate(model, "random", wins=60, losses=4)
    rated = coordinator.get_model(model)
    assert rated.games_played == 64
    assert 700 < rated.elo < 1000
    assert rated.elo_uncertainty < 350


def test_the_production_model_is_the_champion(run, coordinator):
    assert coordinator.get_production_model_id() is None
    model = trained_model(run.story)
    promote(run.story, model)
    other = trained_model(run.stories["hex8_2p"])
    promote(run.stories["hex8_2p"], other)
    run.stories["hex8_2p"].state.models[other].history[-1] = (1e9, "production", "later")
    process_scope().put(ModelLifecycleCoordinator, coordinator)
    try:
        assert get_production_model_id("square8", 2) == model
        assert get_production_model_id(config_key="hex8_2p") == other
        assert get_production_model_id() == other  # changed last
        assert get_production_model_id("hex8", 4) is None
    finally:
        process_scope().drop(ModelLifecycleCoordinator)


async def test_a_promotion_updates_the_registry_and_asks_for_distribution(run, coordinator):
    model = trained_model(run.story)
    promote(run.story, model)
    promoted = {"config_key": "square8_2p", "model_id": model, "model_path": f"blob:{model}", "elo": 900.0}
    await coordinator.ear.router.publish("MODEL_PROMOTED", promoted, "controller")
    told = coordinator.ear.take()
    assert told["REGISTRY_UPDATED"] == {"action": "promoted", "model_id": model}
    assert told["MODEL_UPDATED"]["changes"] == {"stage": "production"}
    assert told["MODEL_SYNC_REQUESTED"]["model_id"] == model
    assert [(event, words) for _, event, words in coordinator.get_model_story(model)] == [
        ("MODEL_PROMOTED", "elo 900.0")
    ]


async def test_a_model_that_the_run_does_not_have_is_not_registered(run, coordinator):
    trained = {"config_key": "square8_2p", "success": True, "model_path": "/tmp/m.safetensors"}
    await coordinator.ear.router.publish("TRAINING_COMPLETED", trained, "a user")
    assert "REGISTRY_UPDATED" not in coordinator.ear.take()
    model = trained_model(run.story)
    await coordinator.ear.router.publish("TRAINING_COMPLETED", {**trained, "model_id": model}, "controller")
    assert coordinator.ear.take()["REGISTRY_UPDATED"] == {"action": "registered", "model_id": model}


async def test_superseded_champions_are_archived_and_that_is_told(run, coordinator):
    coordinator._archived_reported_s = 0.0  # the story is older than the machine's clock
    for _ in range(8):
        promote(run.story, trained_model(run.story))
    champions = [change.model for change in run.story.state.promotions]
    for fact in plan(Snapshot(run.story.state, RULES, run.story.now_s)).decided:
        run.story.write(fact)
    promoted = {"config_key": "square8_2p", "model_id": champions[-1], "model_path": "p", "elo": 900.0}
    await coordinator.ear.router.publish("MODEL_PROMOTED", promoted, "controller")
    assert {record.model_id for record in coordinator.get_models(state="archived")} == set(champions[:2])
    archived = [payload for name, payload in coordinator.ear.events if payload.get("action") == "archived"]
    assert len(archived) == 2
    assert "superseded" in coordinator.get_state_history(champions[0])[-1][2]


async def test_a_rollback_asks_for_the_restored_model(run, coordinator):
    first, second = promoted_models(run, 2)
    roll_back(run.story, second, first)
    back = {"config_key": "square8_2p", "from_model_id": second, "to_model_id": first, "reason": "weaker"}
    await coordinator.ear.router.publish("PROMOTION_ROLLED_BACK", back, "controller")
    told = coordinator.ear.take()
    assert told["REGISTRY_UPDATED"] == {"action": "rolled_back", "model_id": second}
    assert told["MODEL_UPDATED"]["changes"] == {"stage": "rejected"}
    assert told["MODEL_SYNC_REQUESTED"]["model_id"] == first


async def test_a_rollback_to_no_model_asks_for_none(run, coordinator):
    (model,) = promoted_models(run, 1)
    run.story.write(RolledBack(at_s=run.story.now_s, model=model, restored=None, reason="weaker"))
    back = {"config_key": "square8_2p", "from_model_id": model, "to_model_id": "", "reason": "weaker"}
    await coordinator.ear.router.publish("PROMOTION_ROLLED_BACK", back, "controller")
    told = coordinator.ear.take()
    assert told["REGISTRY_UPDATED"]["action"] == "rolled_back"
    assert "MODEL_SYNC_REQUESTED" not in told


TOLD_ON = ("REGISTRY_UPDATED", "MODEL_UPDATED", "MODEL_SYNC_REQUESTED")


@pytest.mark.parametrize("source", ["a user", "controller"])
@pytest.mark.parametrize(
    ("event", "told"),
    [
        ("MODEL_PROMOTED", {"model_id": "fake"}),
        ("MODEL_PROMOTED", {"model_id": "{first}"}),  # a champion once
        ("MODEL_PROMOTED", {"model_id": "{champion}", "config_key": "hex8_2p"}),  # of another config
        ("MODEL_PROMOTED", {"model_id": "{champion}", "config_key": "hex8_4p"}),
        ("PROMOTION_ROLLED_BACK", {"from_model_id": "fake", "to_model_id": "{first}"}),
        ("PROMOTION_ROLLED_BACK", {"from_model_id": "{champion}", "to_model_id": "{first}"}),
        ("PROMOTION_ROLLED_BACK", {"from_model_id": "{first}", "to_model_id": "fake"}),
        ("MODEL_CORRUPTED", {"model_id": "fake", "model_path": "blob:fake", "corruption_type": "torn"}),
        ("NAS_BEST_ARCHITECTURE", {"config_key": "hex8_4p", "architecture": {}, "score": 1.0}),
    ],
)
async def test_what_the_facts_do_not_say_is_not_told_on(run, coordinator, event, told, source):
    first, champion = promoted_models(run, 2)
    facts = run.story.state.facts
    told = {
        name: value.format(first=first, champion=champion) if isinstance(value, str) else value
        for name, value in told.items()
    }
    payload = {"config_key": "square8_2p", "model_path": "m", "elo": 3000.0, "reason": "weaker", **told}
    await coordinator.ear.router.publish(event, payload, source)
    assert not coordinator.ear.take().keys() & set(TOLD_ON)
    assert run.story.state.facts == facts, "nor is anything archived for it"


async def test_a_damaged_model_of_the_run_is_asked_for_again(run, coordinator):
    (model,) = promoted_models(run, 1)
    damage = {"model_id": model, "model_path": f"blob:{model}", "corruption_type": "torn"}
    await coordinator.ear.router.publish("MODEL_CORRUPTED", damage, "auto_promotion")
    told = coordinator.ear.take()
    assert told["REGISTRY_UPDATED"] == {"action": "corrupted", "model_id": model}
    assert told["MODEL_SYNC_REQUESTED"]["model_id"] == model


async def test_everything_it_hears_is_told_in_the_story_of_the_model(run, coordinator):
    model = trained_model(run.story)
    promote(run.story, model)
    regression = {"config_key": "square8_2p", "severity": "severe", "elo_drop": 60.0}
    await coordinator.ear.router.publish("REGRESSION_DETECTED", regression, "watch")
    saved = {"config_key": "square8_2p", "checkpoint_path": f"blob:{model}", "epoch": 1}
    await coordinator.ear.router.publish("CHECKPOINT_SAVED", saved, "trainer")
    assert [event for _, event, _ in coordinator.get_model_story(model)] == [
        "REGRESSION_DETECTED",  # names no model: it is about the champion
        "CHECKPOINT_SAVED",
    ]
    assert coordinator.get_metrics()["events_heard"] == 2


def test_without_a_run_there_are_no_models():
    ear = Ear()
    coordinator = wire_model_events(router=ear.router)
    assert coordinator.get_models() == []
    assert coordinator.get_production_model_id() is None
    assert coordinator.health_check().healthy
    coordinator.unwire()


# --- archive ------------------------------------------------------------------------------------------


def model(digest, number, state, at_s):
    return Model(
        digest=digest,
        card=f"card-{digest}",
        job_id="j",
        number=number,
        parent=None,
        samples="s",
        sample_files=(),
        rows_seen=1,
        steps_spent=1,
        losses={},
        made_s=at_s,
        state=state,
        history=[(at_s, str(state), "")],
    )


def with_models(run, *models):
    state = run.story.state
    state.models |= {each.digest: each for each in models}
    return state


def test_unused_models_are_archived_after_seven_days(run):
    state = with_models(
        run,
        model("old", 1, ModelState.REJECTED, 0.0),
        model("back", 2, ModelState.ROLLED_BACK, 0.0),
        model("judged", 3, ModelState.EVALUATING, 0.0),
        model("young", 4, ModelState.REJECTED, 6 * DAY_S),
        model("newest", 5, ModelState.REJECTED, 0.0),  # the parent of the next
    )
    assert not_needed(state, 6 * DAY_S) == []
    assert [digest for digest, _ in not_needed(state, 7.5 * DAY_S)] == ["old", "back"]


def test_former_champions_are_kept_as_long_as_a_rollback_may_need_them(run):
    for _ in range(9):
        promote(run.story, trained_model(run.story))
    state = run.story.state
    archived = [digest for digest, _ in not_needed(state, run.story.now_s)]
    champions = [change.model for change in state.promotions]
    assert archived == champions[:3]  # the champion and five before it stay


def test_weak_models_go_once_the_champion_is_above_the_bar(run):
    state = with_models(
        run,
        model("weak", 1, ModelState.REJECTED, 0.0),
        model("champion", 2, ModelState.PRODUCTION, 0.0),
        model("newest", 3, ModelState.EVALUATING, 0.0),
    )
    state.champion = "champion"
    run.story.evaluate("weak", "random", wins=60, losses=60)
    weak = Rating(rating=1300, low=1200, high=1400, games=120)
    good = Rating(rating=1800, low=1700, high=1900, games=120)
    young = Rating(rating=900, low=800, high=1000, games=120)
    assert too_weak(state, ratings={"weak": weak, "champion": good}) == [
        ("weak", "rated 1300 after 120 games")
    ]
    assert too_weak(state, ratings={"weak": weak, "champion": young}) == []
    assert too_weak(state) == []


# --- files --------------------------------------------------------------------------------------------


@asynccontextmanager
async def blobs():
    engine = memory_engine(system_runtime())
    try:
        yield engine.blobs
    finally:
        await engine.close()


async def crowned(store, state, text):
    weights, card = text.encode() * 100, f'{{"of": "{text}"}}'.encode()
    digest = await store.put_bytes(weights)
    state.models[digest] = model(digest, len(state.models) + 1, ModelState.PRODUCTION, 0.0)
    state.models[digest].card = await store.put_bytes(card)
    state.champion = digest
    return weights


async def test_the_champion_is_published_and_the_one_before_kept(tmp_path):
    async with blobs() as store:
        state, files = ConfigState("square8_2p"), ChampionFiles(tmp_path / "models", store)
        assert not await files.publish(state)
        first = await crowned(store, state, "first")
        assert await files.publish(state)
        assert not await files.publish(state)
        second = await crowned(store, state, "second")
        assert await files.publish(state)
        path = tmp_path / "models" / "canonical_square8_2p.safetensors"
        assert path.read_bytes() == second
        assert path.with_suffix(".json").read_text() == '{"of": "second"}'
        assert path.with_name(path.name + ".previous").read_bytes() == first
        best = tmp_path / "models" / "ringrift_best_square8_2p.safetensors"
        assert best.is_symlink()
        assert best.read_bytes() == second
        assert best.with_suffix(".json").read_text() == '{"of": "second"}'
        assert not list(tmp_path.rglob("*.part"))


async def test_a_damaged_or_removed_file_is_written_again(tmp_path):
    async with blobs() as store:
        state, files = ConfigState("open_spiel:hex(board_size=3)_2p"), ChampionFiles(tmp_path, store)
        weights = await crowned(store, state, "net")
        await files.publish(state)
        path = files.path_of(state.config)
        assert path.name == "canonical_open_spiel-hex-board_size-3-_2p.safetensors"
        path.write_bytes(b"damaged")
        files.link_of(state.config).unlink()
        assert await files.publish(state)
        assert path.read_bytes() == weights
        assert files.link_of(state.config).read_bytes() == weights


async def test_a_missing_blob_changes_nothing_and_says_so(tmp_path):
    async with blobs() as store:
        state, files = ConfigState("square8_2p"), ChampionFiles(tmp_path, store)
        before = await crowned(store, state, "net")
        await files.publish(state)
        gone = hashlib.sha256(b"gone").hexdigest()
        state.models[gone] = model(gone, 9, ModelState.PRODUCTION, 0.0)
        state.champion = gone
        with pytest.raises(Corrupt):
            await files.publish(state)
        assert files.path_of(state.config).read_bytes() == before
