"""The pipeline's handle: stages by the facts of the run, settings as they were asked, one loop a process."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from feedback_kit import Run
from learning_story import RULES

from ringrift.coordination import data_pipeline_orchestrator
from ringrift.coordination.data_pipeline_orchestrator import (
    DataPipelineDaemon,
    DataPipelineOrchestrator,
    OperationMode,
    PipelineConfig,
    PipelineStage,
    get_pipeline_orchestrator,
    get_pipeline_status,
    wire_pipeline_events,
)
from ringrift.coordination.run_coordinator import get_loop_waker, get_open_run
from ringrift.engine.leases import CONTROL_LEASE, NamedLease, end_lease, lease_holder
from ringrift.engine.opening import close_engine, get_engine
from ringrift.engine.run_reports import reported_getters
from ringrift.errors import ConfigError, Conflict, LeaseLost
from ringrift.events.catalog.table import CATALOG
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.health.run_status import CHOICE_KEY, STATUS_KEY
from ringrift.learning.announcements import SOURCE
from ringrift.learning.control_lease import TOKEN_KEY
from ringrift.learning.facts.facts import Promoted, Rejected
from ringrift.learning.loop import configs_of_the_run
from ringrift.learning.plan.orders import train_order
from ringrift.learning.plan.rules import LearningRules, learning_rules
from ringrift.runtime import system_runtime
from ringrift.work.backpressure import Announced, keep_announced

CONFIG = "square8_2p"


@pytest.fixture
def router():
    return UnifiedEventRouter(enable_cross_process_polling=False)


def one_turn(run: Run, *, accepted: bool = True) -> None:
    story = run.story
    story.play(games=50)
    story.check()
    story.export()
    model = story.train()
    story.evaluate(model, "random", wins=60, losses=4)
    story.now_s += 1.0
    if accepted:
        story.write(Promoted(at_s=story.now_s, model=model, previous=story.state.champion, reason="stronger"))
    else:
        story.write(Rejected(at_s=story.now_s, model=model, gate="sprt", reason="not stronger"))


def begin_training(story) -> str:
    samples = story.state.newest_samples
    return story.issue("train", train_order(story.state, RULES, [samples], None, sample_steps=4000))


@pytest.fixture
def run():
    return Run(CONFIG)


@pytest.fixture
def pipeline(run, router):
    return DataPipelineOrchestrator(router=router, situations=run.situations)


def test_a_turn_of_the_loop_is_one_iteration(run, pipeline):
    one_turn(run)
    (turn,) = pipeline.get_iterations()
    assert (turn.iteration, turn.promoted, turn.games_generated) == (1, True, 50)
    assert turn.stages_completed == ("selfplay", "data_sync", "npz_export", "training", "evaluation")
    assert turn.elo_delta is None, "there was nobody to compare it with"
    assert pipeline.get_current_stage(CONFIG) is PipelineStage.COMPLETE
    assert pipeline.get_stats()["promotions"] == 1
    one_turn(run, accepted=False)
    assert [each.promoted for each in pipeline.get_iterations()] == [False, True]
    assert pipeline.get_iterations()[0].iteration == 2
    assert pipeline.get_iterations()[0].elo_delta is not None
    assert pipeline.get_stats()["games_generated"] == 100


def test_games_beside_a_training_do_not_move_it_back(run, pipeline):
    run.story.play(games=50)
    run.story.check()
    run.story.export()
    begin_training(run.story)
    run.story.play(games=7)
    assert pipeline.get_current_stage(CONFIG) is PipelineStage.TRAINING
    assert pipeline.get_stats()["games_generated"] == 57


async def test_what_somebody_merely_says_is_no_state(run, router, pipeline):
    pipeline.wire()
    run.story.play(games=50)
    claim = {"config_key": CONFIG, "games_generated": 1000, "task_id": "t1", "success": True}
    await router.publish("SELFPLAY_COMPLETE", claim, "a user")
    samples = {"samples_exported": 9, "games_exported": 1, "output_path": "/nowhere.npz"}
    await router.publish("NPZ_EXPORT_COMPLETE", {"config_key": CONFIG, **samples}, "a user")
    trained = {"config_key": CONFIG, "success": True, "model_path": "blob:m", "model_id": "m"}
    await router.publish("TRAINING_COMPLETED", trained, SOURCE)
    assert pipeline.get_stats()["games_generated"] == 50
    assert pipeline.get_current_stage(CONFIG) is PipelineStage.SELFPLAY
    assert pipeline.get_stats()["refused_claims"] is None, "there is no store to keep them in"
    assert not get_loop_waker().reasons


async def test_a_claim_from_outside_is_refused_once_with_the_reason(run, router, pipeline):
    await get_engine()
    pipeline.wire()
    claim = {"config_key": CONFIG, "games_generated": 1000, "task_id": "t1", "success": True}
    event = await router.publish("SELFPLAY_COMPLETE", claim, "a user")
    await router.publish_event(event)  # the same again
    samples = {"samples_exported": 9, "games_exported": 1, "output_path": "/nowhere.npz"}
    await router.publish("NPZ_EXPORT_COMPLETE", {"config_key": CONFIG, **samples}, "a user")
    newest, first = pipeline.get_stats()["refused_claims"]
    assert (first["event_type"], first["source"]) == ("SELFPLAY_COMPLETE", "a user")
    assert "names no file (db_path)" in first["reason"]
    assert "/nowhere.npz is not read: RINGRIFT_INTAKE_FOLDERS names no folder" in newest["reason"]
    await close_engine()


def test_a_failure_is_a_transition_that_leads_nowhere(run, pipeline):
    run.story.play(games=50)
    run.story.check()
    run.story.export()
    job = begin_training(run.story)
    run.story.fail(job)
    newest = pipeline.get_transitions()[0]
    assert (newest.success, newest.metadata) == (False, {"error": "out of memory"})
    assert pipeline.get_current_stage(CONFIG) is PipelineStage.TRAINING
    failures = pipeline.get_stats()["stage_failures"]
    assert failures == {f"{CONFIG} train": {"in_a_row": 1, "error": "out of memory"}}


async def test_what_others_tell_wakes_the_loop_and_its_own_words_do_not(router):
    wire_pipeline_events(router=router)
    games = {"config_key": CONFIG, "node_id": "n", "new_games": 3}
    await router.publish("NEW_GAMES_AVAILABLE", games, SOURCE)
    assert not get_loop_waker().reasons
    await router.publish("NEW_GAMES_AVAILABLE", games, "a sync daemon")
    assert get_loop_waker().reasons["NEW_GAMES_AVAILABLE"] == 1


async def test_old_data_and_unregistered_games_are_asked_for(router):
    told = []
    router.subscribe(None, lambda event: told.append((event.event_type, event.payload)), "t")
    wire_pipeline_events(router=router)
    await router.publish(
        "DATA_STALE", {"config_key": CONFIG, "data_age_hours": 30.0, "threshold_hours": 24.0}
    )
    orphans = {"node_id": "n", "orphan_count": 1, "orphan_paths": ["a.db"]}
    await router.publish("ORPHAN_GAMES_DETECTED", orphans)
    asked = [(name, payload) for name, payload in told if name.startswith("SYNC_")]
    assert [name for name, _ in asked] == ["SYNC_TRIGGERED", "SYNC_REQUEST"]
    assert all(not CATALOG[name].problems(payload) for name, payload in asked)


async def measured(reason, *, active=True):
    """What QUEUE_MONITOR keeps in the store of this process."""
    now_s = system_runtime().now_s()
    held = Announced(active=active, changed_s=now_s, reason=reason, measured_s=now_s)
    await keep_announced((await get_engine()).kv, held)


async def test_backpressure_that_was_measured_degrades_the_mode_until_it_is_released(router):
    pipeline = wire_pipeline_events(True, router=router)
    assert (pipeline.mode, pipeline.why_degraded()) == (OperationMode.FULL, None)
    await measured("the disk is full")
    assert (pipeline.mode, pipeline.why_degraded()) == (OperationMode.DEGRADED, "the disk is full")
    again = DataPipelineOrchestrator(PipelineConfig(auto_trigger=True), router=router)
    stats = again.get_stats()
    assert (stats["mode"], stats["degraded"]) == ("degraded", "the disk is full"), "no event told it so"
    assert wire_pipeline_events(False, router=router).mode is OperationMode.LOCAL
    await measured("", active=False)
    assert again.mode is OperationMode.FULL
    await close_engine()


async def test_what_is_asked_of_it_on_the_loop_does_not_wait_for_the_store(pipeline, monkeypatch):
    def no_store(*_):
        pytest.fail("the loop would stand still meanwhile")

    monkeypatch.setattr(data_pipeline_orchestrator, "existing_engine", no_store)
    for getter in reported_getters(pipeline):
        if not getter.waits:
            getter.ask()


async def test_a_strain_that_somebody_claims_is_none(router):
    pipeline = DataPipelineOrchestrator(PipelineConfig(auto_trigger=True), router=router)
    pipeline.wire()
    await router.publish("BACKPRESSURE_ACTIVATED", {"level": "high", "reason": "x"}, "a user")
    full = {"node_id": "a", "resource_type": "memory", "current_value": 99.0, "threshold": 95.0}
    await router.publish("RESOURCE_CONSTRAINT_DETECTED", full, "a user")
    stats = pipeline.get_stats()
    assert (stats["mode"], stats["degraded"]) == ("full", None)
    assert get_loop_waker().reasons["BACKPRESSURE_ACTIVATED"] == 1, "the loop looks at what was measured"
    pipeline.unwire()


def test_what_bootstrap_was_asked_for_reaches_the_rules():
    config = PipelineConfig(training_epochs=6, training_batch_size=128, training_model_version="medium")
    rules = learning_rules(config.learning({"simulations": 16}))
    assert (rules.simulations, rules.batch, rules.preset, rules.bucket.steps_per_row) == (
        16,
        128,
        "medium",
        6.0,
    )
    assert rules.bucket.chunk_steps == LearningRules().bucket.chunk_steps


@pytest.mark.parametrize(
    "wrong",
    [
        {"training_epochs": 0},
        {"training_epochs": 1.5},
        {"training_epochs": True},
        {"training_batch_size": "many"},
        {"training_model_version": "v7"},
        {"training_data_path": "samples.npz"},
    ],
)
def test_what_bootstrap_was_asked_for_and_cannot_be_done_is_refused(wrong):
    name, value = next(iter(wrong.items()))
    with pytest.raises(ConfigError, match=f"{name} is {value!r}"):
        PipelineConfig(**wrong)


def test_wiring_again_keeps_what_was_asked_for_before():
    wire_pipeline_events(True, training_epochs=3)
    wire_pipeline_events(training_batch_size=64)
    config = get_pipeline_orchestrator().config
    assert (config.auto_trigger, config.training_epochs, config.training_batch_size) == (True, 3, 64)


def test_the_documents_functions():
    wire_pipeline_events(True, training_epochs=3)
    assert get_pipeline_orchestrator().config.training_epochs == 3
    status = get_pipeline_status()
    assert status["auto_trigger"] is True
    assert status["subscribed"] is True


# --- the daemon -----------------------------------------------------------------------------------------


async def until(condition, timeout_s=60.0):
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.02)


async def ended(*tasks):
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await close_engine()


async def test_without_auto_trigger_nothing_follows_by_itself(router):
    daemon = DataPipelineDaemon(router=router)
    task = asyncio.create_task(daemon.run())
    await until(lambda: "auto-trigger" in daemon.health_check().message)
    assert get_open_run().loop is None
    await ended(task)


async def test_the_loop_runs_in_no_process_while_another_one_holds_control(router):
    engine = await get_engine()
    await engine.kv.put(CHOICE_KEY, msgspec.json.encode({"configs": ["hex8_2p"], "workers": 2}))
    wire_pipeline_events(True)
    control = NamedLease(engine.kv, system_runtime(), CONTROL_LEASE, holder="another process")
    await control.acquire(wait_s=1.0)
    daemon = DataPipelineDaemon(router=router)
    task = asyncio.create_task(daemon.run())
    await until(lambda: "which another process holds" in daemon.health_check().message)
    assert get_open_run().loop is None
    await control.release()
    await until(lambda: get_open_run().loop is not None)
    with pytest.raises(Conflict, match="is held by"):
        await control.acquire(wait_s=0.1)
    await ended(task)


async def test_the_loop_does_not_begin_beside_who_has_a_role_that_comes_with_control(router):
    engine = await get_engine()
    await engine.kv.put(CHOICE_KEY, msgspec.json.encode({"configs": ["hex8_2p"], "workers": 2}))
    wire_pipeline_events(True)
    role = NamedLease(engine.kv, system_runtime(), "role/training_loop", holder="there:7:id@place")
    await role.acquire(wait_s=1.0)
    daemon = DataPipelineDaemon(router=router)
    task = asyncio.create_task(daemon.run())
    await until(lambda: "there:7:id holds the role training_loop" in daemon.health_check().message)
    assert get_open_run().loop is None
    assert await engine.kv.get(TOKEN_KEY) is None, "it only looks"
    await role.release()
    await until(lambda: get_open_run().loop is not None)
    await ended(task)


@pytest.mark.parametrize("noticed_by", ["a word about leaders", "a refused write"])
async def test_the_loop_stops_when_it_has_lost_its_lease_and_goes_on_when_that_is_free(router, noticed_by):
    engine = await get_engine()
    await engine.kv.put(CHOICE_KEY, msgspec.json.encode({"configs": ["hex8_2p"], "workers": 2}))
    wire_pipeline_events(True)
    daemon = DataPipelineDaemon(router=router)
    task = asyncio.create_task(daemon.run())
    await until(lambda: daemon.health_check().details.get("passes"))
    mine = get_open_run()
    before, token = mine.loop, (await engine.kv.get(TOKEN_KEY)).revision
    await router.publish("SPLIT_BRAIN_DETECTED", {"leaders_seen": ["evil", "here"]}, "evil")
    await asyncio.sleep(0.2)
    assert mine.loop is before, "nobody stops it by a word"
    # Another takes over, as from a process that was held up for longer than its lease.
    held = await lease_holder(engine.kv, CONTROL_LEASE)
    await end_lease(engine.kv, CONTROL_LEASE, holder=held.holder)
    control = NamedLease(engine.kv, system_runtime(), CONTROL_LEASE, holder="another process")
    await control.acquire(wait_s=1.0)
    await engine.kv.put(TOKEN_KEY, b"another process")
    if noticed_by == "a refused write":
        with pytest.raises(LeaseLost):
            await mine.engine.kv.put("a/protected/write", b"")
    else:
        await router.publish("LEADER_ELECTED", {"leader_id": "another", "term": 9}, "another")
    await until(lambda: "which another process holds" in daemon.health_check().message)
    assert (mine.loop, mine.engine) == (None, None)
    assert get_pipeline_status()["controlled_by"]["holder"] == "another process"
    status = await engine.kv.get(STATUS_KEY)
    await asyncio.sleep(0.2)
    assert await engine.kv.get(STATUS_KEY) == status, "it writes nothing more"
    assert not task.done()
    await control.release()
    await until(lambda: mine.loop is not None)
    assert (await engine.kv.get(TOKEN_KEY)).revision > token
    task.cancel()
    await asyncio.wait({task})
    assert await lease_holder(engine.kv, CONTROL_LEASE) is None, "it is given back"
    await ended(task)


async def test_the_daemon_learns_what_the_run_was_asked_for_and_a_second_one_waits(router):
    engine = await get_engine()
    await engine.kv.put(CHOICE_KEY, msgspec.json.encode({"configs": ["hex8_2p"], "workers": 2}))
    assert await configs_of_the_run(engine.kv) == ("hex8_2p",)
    wire_pipeline_events(True)
    first, second = DataPipelineDaemon(router=router), DataPipelineDaemon("again", router=router)
    tasks = [asyncio.create_task(first.run()), asyncio.create_task(second.run())]
    await until(lambda: get_open_run().loop is not None and first.health_check().details.get("passes"))
    assert get_open_run().loop.configs() == ["hex8_2p"]
    assert "another name" in second.health_check().message
    first._loop.status_problem = "the disk is full"
    assert first.health_check().message == "the status of the run is old: the disk is full"
    tasks[0].cancel()
    await until(lambda: second.health_check().details.get("passes"))
    assert await engine.kv.get(STATUS_KEY) is not None
    await ended(*tasks)
    assert get_open_run().loop is None
