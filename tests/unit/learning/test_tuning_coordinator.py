"""Searches as runs: one at a time, with pauses, told as events, and their findings in the facts."""

import dataclasses

import msgspec
import pytest
from feedback_kit import Ear, checked_shard, promote, reject, trained_model
from hypothesis import given
from hypothesis import strategies as st
from learning_story import RULES, Story, artifact
from tuning_kit import in_world, next_order

from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.metrics_analysis_orchestrator import MetricsAnalysisOrchestrator
from ringrift.coordination.optimization_coordinator import (
    OptimizationCoordinator,
    OptimizationRun,
    OptimizationStatus,
    OptimizationType,
    trigger_cmaes,
    tune_order,
    tuned_rules,
    why_not,
    wire_optimization_events,
)
from ringrift.errors import ConfigError, Conflict
from ringrift.events.catalog.table import CATALOG
from ringrift.jobs.tuning.trials import TuneParams
from ringrift.learning.facts.facts import Noted
from ringrift.learning.tuning import Search, SearchChoices, TuningStore, order_search, tuned_search
from ringrift.process import process_scope
from ringrift.runtime import SystemRuntime
from ringrift.settings import JobSettings
from ringrift.work.job.protocol import read_order
from ringrift.work.worker.records import RunningRecord, running_key

FOUND = {
    "kind": "halving",
    "best_params": {"lr": 0.004, "batch": 64, "weight_decay": 1e-5, "window": 0.8, "samples_per_row": 6.0},
    "best_score": -1.5,
    "evaluations": 16,
    "generations": [{"generation": 4, "best_score": -1.5}],
    "scores": {"0": -1.7, "3": -1.5},
    "improved": True,
}


def test_a_search_is_ordered_run_and_its_shown_improvement_changes_the_rules():
    async def scenario(world):
        world.samples()
        run = await world.coordinator.begin("halving", "square8_2p", "to see")
        claim = await world.claim()
        order = read_order(claim.payload)
        assert (claim.kind, claim.id) == ("tune", run.run_id)
        assert order.params["samples"] == ["{inputs}/samples.npz"]
        assert order.inputs["samples.npz"] == world.run.story.state.newest_samples.digest
        assert (order.params["lr"], order.params["out"]) == (RULES.learning_rate, "{out}")
        assert tuned_rules(world.run.story.state, RULES) == RULES
        await world.complete(claim, **FOUND)
        (kept,) = await world.coordinator.runs()
        assert (kept.status, kept.improved, kept.best_score) == (OptimizationStatus.COMPLETED, True, -1.5)
        changed = [p for name, p in world.ear.events if name == "HYPERPARAMETER_UPDATED"]
        assert {p["param_name"]: p["new_value"] for p in changed}["lr"] == 0.004
        rules = tuned_rules(world.run.story.state, RULES)
        assert (rules.learning_rate, rules.batch) == (0.004, 64)
        assert (rules.weight_decay, rules.window_share) == (1e-5, 0.8)
        assert rules.bucket == RULES.bucket

    in_world(scenario)


def test_what_was_not_shown_to_be_better_changes_nothing():
    async def scenario(world):
        world.samples()
        await world.coordinator.begin("halving", "square8_2p")
        await world.whole(**{**FOUND, "improved": False})
        (kept,) = await world.coordinator.runs()
        assert kept.status is OptimizationStatus.COMPLETED
        assert tuned_rules(world.run.story.state, RULES) == RULES
        assert "HYPERPARAMETER_UPDATED" not in world.ear.take()

    in_world(scenario)


TRAINED = {"lr": 0.004, "batch": 64, "weight_decay": 1e-5}  # as a search of training parameters finds them


@pytest.mark.parametrize(
    ("kind", "found"), [("pbt", TRAINED), ("halving", TRAINED), ("nas", {"preset": "medium"})]
)
@pytest.mark.parametrize("improved", [True, False])
def test_the_next_training_follows_a_search_that_was_shown_to_be_better_and_no_other(kind, found, improved):
    """The match on fresh games at the end of a search keeps what it found, or drops it."""

    async def scenario(world):
        story = world.run.story
        promote(story, trained_model(story))
        used = trained_after(story).params
        assert {name: used.get(name) for name in found} != found
        await world.coordinator.begin(kind, "square8_2p")
        await world.whole(**{**FOUND, "kind": kind, "best_params": found, "improved": improved})
        now = trained_after(story).params
        kept = found if improved else {name: used.get(name) for name in found}
        assert {name: now.get(name) for name in found} == kept

    in_world(scenario)


def trained_after(story):
    """What the next training is ordered to do, once there is something new to train on."""
    story.play(rows=4000)
    story.check()
    story.export()
    return next_order(story, "train", RULES)


def test_cmaes_tunes_the_search_of_the_champion_and_what_it_found_is_told():
    found = {"c_scale": 0.05, "c_visit": 80.0, "considered": 16}

    async def scenario(world):
        story = world.run.story
        promote(story, trained_model(story))
        run = await world.coordinator.begin("cmaes", "square8_2p")
        told = world.ear.take()["CMAES_TRIGGERED"]
        assert told["current_params"] == {"c_scale": 0.1, "c_visit": 50.0, "considered": 16}
        assert (told["generations"], told["population_size"]) == (5, 6)
        await world.whole(best_params=found, best_score=0.57, improved=True)
        assert world.ear.counts()["CMAES_COMPLETED"] == 1
        changed = [payload for name, payload in world.ear.events if name == "HYPERPARAMETER_UPDATED"]
        new = {each["param_name"]: (each["old_value"], each["new_value"]) for each in changed}
        assert new == {"c_scale": (0.1, 0.05), "c_visit": (50.0, 80.0)}, "what stays is no change"
        assert {each["reason"] for each in changed} == {run.run_id}
        assert tuned_search(story.state) == found

    in_world(scenario)


def test_weights_of_the_heuristic_change_nothing_in_the_run():
    async def scenario(world):
        story = world.run.story
        promote(story, trained_model(story))
        await world.coordinator.begin("cmaes", "square8_2p", subject="heuristic")
        before = story.state.facts
        await world.whole(best_params={"territory": 3.0}, best_score=0.6, improved=True)
        assert story.state.facts == before
        assert "HYPERPARAMETER_UPDATED" not in world.ear.take()

    in_world(scenario)


def test_a_search_of_a_search_needs_a_champion_and_says_so():
    async def scenario(world):
        with pytest.raises(Conflict, match="connect_four_2p has no champion"):
            await world.coordinator.begin("cmaes", "connect_four_2p")
        with pytest.raises(Conflict, match="connect_four_2p has no heuristic"):
            await world.coordinator.begin("cmaes", "connect_four_2p", subject="heuristic")

    in_world(scenario, "connect_four_2p")


def test_one_at_a_time_and_a_pause_between_two():
    async def scenario(world):
        begin = world.coordinator.begin
        first = await begin("cmaes", "square8_2p")
        with pytest.raises(Conflict, match=f"{first.run_id} is under way"):
            await begin("cmaes", "square8_2p")
        await world.whole(best_params={"territory": 3.0}, best_score=0.6, improved=True)
        with pytest.raises(Conflict, match="300 s lie between two"):
            await begin("cmaes", "square8_2p")
        await world.runtime.sleep(301.0)
        assert (await begin("cmaes", "square8_2p")).run_id != first.run_id

    in_world(scenario)


@pytest.mark.parametrize("kind", ["cmaes", "nas", "pbt", "halving"])
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"generations": -1}, "generations"),
        ({"population": "many"}, "population"),
        ({"bogus": 1}, "bogus"),
        ({"out": "/tmp/x"}, "out"),
        ({"samples": ["/etc/passwd"]}, "samples"),
        ({"reason": 5}, "reason"),
        ({"config": 5}, "config_key"),
        ({"run_id": 5}, "run_id"),
    ],
)
def test_what_no_search_can_do_is_refused_before_it_is_ordered(kind, wrong, told):
    async def scenario(world):
        world.samples()
        with pytest.raises(ConfigError, match=told):
            await world.coordinator.begin(kind, **{"config": "square8_2p", **wrong})
        assert await world.coordinator.runs() == []

    in_world(scenario)


def test_a_kind_that_there_is_not_is_refused_with_those_that_there_are():
    async def scenario(world):
        with pytest.raises(ConfigError, match="cmaes, halving, pbt, nas"):
            await world.coordinator.begin("grid", "square8_2p")

    in_world(scenario)


def test_an_event_that_asks_for_what_no_search_can_do_is_refused_with_the_reason():
    async def scenario(world):
        asked = {"config_key": "square8_2p", "run_id": "r", "reason": "", "generations": -1}
        await world.ear.router.publish("CMAES_TRIGGERED", asked, "somebody")
        assert await world.coordinator.runs() == []
        assert "generations" in world.coordinator.last_refusal

    in_world(scenario)


def test_a_program_of_the_users_own_searches_with_what_it_likes(monkeypatch):
    job = JobSettings(kind="tune", command=("mine",))
    settings = dataclasses.replace(get_settings(), jobs=(job,))
    process_scope().put(type(settings), settings)

    async def scenario(world):
        run = await world.coordinator.begin("cmaes", "square8_2p", depth=3)
        assert run.params["depth"] == 3
        await world.whole(best_params={}, best_score=0.5, improved=False)
        await world.runtime.sleep(400.0)
        with pytest.raises(ConfigError, match="out"):
            await world.coordinator.begin("cmaes", "square8_2p", out="/tmp/x")

    in_world(scenario)


def test_what_a_caller_may_choose_is_what_the_job_takes_within_the_same_limits():
    def types(struct):
        fields = msgspec.inspect.type_info(struct).fields
        return {field.name: field.type for field in fields}

    def bare(kind):
        return kind.type if isinstance(kind, msgspec.inspect.Metadata) else kind

    chosen, taken = types(SearchChoices), types(TuneParams)
    set_by_the_order = {"config", "kind", "out", "samples", "model"}
    assert chosen.keys() == taken.keys() - set_by_the_order
    assert {name: bare(kind) for name, kind in chosen.items()} == {name: bare(taken[name]) for name in chosen}


def test_a_search_needs_something_to_train_on():
    async def scenario(world):
        with pytest.raises(Conflict, match="no samples"):
            await world.coordinator.begin("pbt", "square8_2p")
        assert await world.coordinator.runs() == []

    in_world(scenario)


def test_a_search_that_dies_or_is_cancelled_lets_the_next_begin():
    async def scenario(world):
        first = await world.coordinator.begin("cmaes", "square8_2p")
        claim = await world.claim()
        await world.engine.queue.fail(claim.id, token=claim.token, error="no memory", final=True)
        failed = {"work_id": claim.id, "work_type": "tune", "error": "no memory", "attempts": 3}
        await world.ear.router.publish("WORK_FAILED", failed, "worker")
        await world.runtime.sleep(301.0)
        second = await world.coordinator.begin("cmaes", "square8_2p")
        assert await world.coordinator.cancel(second.run_id)
        runs = {run.run_id: run for run in await world.coordinator.runs()}
        assert (runs[first.run_id].status, runs[first.run_id].error) == ("failed", "no memory")
        assert runs[second.run_id].status is OptimizationStatus.CANCELLED
        await world.runtime.sleep(301.0)
        await world.coordinator.begin("cmaes", "square8_2p")

    in_world(scenario)


class CrashingQueue:
    """The process dies before anything gets in."""

    async def add(self, _items):
        raise RuntimeError("killed")


def test_a_crash_between_record_and_item_does_not_close_the_door():
    async def scenario(world):
        whole, world.engine = world.engine, dataclasses.replace(world.engine, queue=CrashingQueue())
        with pytest.raises(RuntimeError):
            await world.coordinator.begin("cmaes", "square8_2p")
        world.engine = whole
        assert (await world.coordinator.refresh()).error == "it was never queued"
        await world.runtime.sleep(301.0)
        await world.coordinator.begin("cmaes", "square8_2p")

    in_world(scenario)


def test_events_of_an_architecture_search_come_in_order_and_its_scores_become_a_fact():
    async def scenario(world):
        world.samples()
        run = await world.coordinator.begin("nas", "square8_2p", presets=["small", "medium"])
        claim = await world.claim()
        record = RunningRecord(
            job_id=claim.id, kind="tune", config="square8_2p", worker="w", node="n", pid=1, attempt=1,
            stage="searching", done=1, total=2, rate=0, eta_s=None, started_s=0, at_s=0, elapsed_s=0,
            cpu_s=0, memory_mb=0, line="", extra={"generation": 1, "best_score": 0.5},
        )  # fmt: skip
        await world.engine.kv.put(running_key(claim.id), msgspec.json.encode(record))
        beat = {"task_id": claim.id, "node_id": "n"}
        await world.ear.router.publish("TASK_HEARTBEAT", beat, "worker")
        await world.ear.router.publish("TASK_HEARTBEAT", beat, "worker")
        scores = {"small": 0.5, "medium": 0.6}
        generations = [{"generation": 1, "best_score": 0.5}, {"generation": 2, "best_score": 0.6}]
        await world.complete(
            claim, best_params={"preset": "medium"}, best_score=0.6, scores=scores, generations=generations
        )
        told = [name for name, _ in world.ear.events if name.startswith("NAS")]
        assert told == [
            "NAS_TRIGGERED",
            "NAS_STARTED",
            "NAS_GENERATION_COMPLETE",
            "NAS_GENERATION_COMPLETE",
            "NAS_BEST_ARCHITECTURE",
            "NAS_COMPLETED",
        ]
        assert world.ear.take()["NAS_COMPLETED"]["run_id"] == run.run_id
        note = world.run.story.state.notes[-1]
        assert (note.topic, note.details["scores"]) == ("architecture", scores)
        assert tuned_rules(world.run.story.state, RULES).preset == "small", "no match has shown that"

    in_world(scenario)


def nas_found(preset="medium", **more):
    scores = {"small": 0.5, "medium": 0.6}
    return {"best_params": {"preset": preset}, "best_score": 0.6, "scores": scores, "improved": True, **more}


def test_a_size_that_won_its_match_is_what_the_next_networks_have():
    async def scenario(world):
        story = world.run.story
        promote(story, trained_model(story))
        await world.coordinator.begin("nas", "square8_2p")
        claim = await world.claim()
        assert read_order(claim.payload).params["presets"] == ["small", "medium"]
        await world.complete(claim, **nas_found())
        decided = story.state.newest_note("tuned", "nas")
        assert "medium" in decided.text
        checked_shard(story)
        story.export()
        order = next_order(story, "train", RULES)
        assert order.params["preset"] == "medium"
        assert "parent" not in order.params, "a small network is no beginning for a medium one"
        assert order.params["steps"] * order.params["batch"] >= 4 * story.state.newest_samples.rows * 0.95

    in_world(scenario)


def test_a_new_size_goes_on_from_its_own_line_and_pays_one_chunk_for_its_beginning():
    async def scenario(world):
        story = world.run.story
        promote(story, trained_model(story))
        await world.coordinator.begin("nas", "square8_2p")
        await world.whole(**nas_found())
        checked_shard(story)
        story.export()
        order = next_order(story, "train", RULES)
        before = story.state.bucket.spent
        job = story.issue("train", order)
        parts = (artifact("model", "medium1"), artifact("card", "card-medium1"))
        story.end(job, *parts, steps=order.params["steps"])
        assert story.state.bucket.spent - before == RULES.bucket.chunk_steps
        reject(story, "medium1")
        story.play(rows=4000)
        story.check()
        story.export()
        again = next_order(story, "train", RULES)
        assert again.inputs["parent.safetensors"] == "medium1"

    in_world(scenario)


def test_a_changed_setting_overrules_an_older_finding():
    story = Story()
    found = {"kind": "nas", "best_params": {"preset": "medium"}, "instead_of": "small"}
    story.write(Noted(at_s=1.0, topic="tuned", text="", details=found))
    assert tuned_rules(story.state, RULES).preset == "medium"
    large = msgspec.structs.replace(RULES, preset="large")
    assert tuned_rules(story.state, large).preset == "large"


def test_a_population_and_the_weights_of_the_heuristic_are_told_from_begin_to_end():
    async def scenario(world):
        world.samples()
        await world.coordinator.begin("pbt", "square8_2p", population=4)
        generations = [{"generation": 1, "best_score": -2.0}, {"generation": 2, "best_score": -1.8}]
        await world.whole(best_params={"lr": 0.01}, best_score=-1.8, generations=generations)
        counts = world.ear.counts()
        assert (counts["PBT_STARTED"], counts["PBT_GENERATION_COMPLETE"], counts["PBT_COMPLETED"]) == (
            1,
            2,
            1,
        )
        await world.runtime.sleep(301.0)
        await world.coordinator.begin("cmaes", "square8_2p", generations=3, population=8)
        assert world.ear.take()["CMAES_TRIGGERED"]["population_size"] == 8
        await world.whole(best_params={"territory": 3.2}, best_score=0.55, generations=generations)
        assert world.ear.take()["CMAES_COMPLETED"]["best_params"] == {"territory": 3.2}

    in_world(scenario)


def test_a_published_wish_for_a_search_begins_one_and_what_others_began_is_not_begun_again():
    async def scenario(world):
        request = {"config_key": "square8_2p", "run_id": "by-hand", "reason": "a person", "generations": 2}
        await world.ear.router.publish("CMAES_TRIGGERED", request, "somebody")
        (run,) = await world.coordinator.runs()
        assert (run.run_id, run.params["generations"]) == ("tune.by-hand", 2)
        again = {**request, "run_id": run.run_id}
        await world.ear.router.publish("CMAES_TRIGGERED", again, "somebody")
        assert len(await world.coordinator.runs()) == 1
        assert world.coordinator.last_refusal == ""

    in_world(scenario)


def test_a_long_plateau_begins_searches_by_itself_but_not_more_than_three_an_hour():
    async def scenario(world):
        world.samples()
        plateau = {
            "config_key": "square8_2p",
            "metric_name": "rating",
            "current_value": 1000.0,
            "epochs_since_improvement": 9,
        }
        await world.ear.router.publish("PLATEAU_DETECTED", plateau, "test")
        assert await world.coordinator.runs() == []  # too short to be worth a search
        for _ in range(8):
            long = {**plateau, "epochs_since_improvement": 10}
            await world.ear.router.publish("PLATEAU_DETECTED", long, "test")
            claim = await world.claim()
            if claim is not None:
                await world.complete(claim, **FOUND)
            await world.runtime.sleep(301.0)
        runs = await world.coordinator.runs()
        assert [run.optimization_type for run in runs] == [OptimizationType.HALVING] * 3
        assert "3 searches began by themselves" in world.coordinator.last_refusal
        await world.runtime.sleep(3600.0)
        await world.ear.router.publish("PLATEAU_DETECTED", long, "test")
        assert len(await world.coordinator.runs()) == 4

    in_world(scenario)


def test_the_plateau_that_the_metrics_find_reaches_the_search():
    async def scenario(world):
        story = world.run.story
        promote(story, trained_model(story))
        for _ in range(10):
            reject(story, trained_model(story))
        metrics = MetricsAnalysisOrchestrator(
            router=world.ear.router, runtime=world.runtime, situations=world.run.situations
        )
        await metrics.judge()
        (run,) = await world.coordinator.runs()
        assert run.automatic
        assert "10 candidates in a row were refused" in run.reason

    in_world(scenario)


def test_a_loss_that_stands_still_begins_a_search_too():
    async def scenario(world):
        world.samples()
        for step in range(17):
            progress = {"config_key": "square8_2p", "job_id": "j", "epoch": step, "train_loss": 1.5}
            await world.ear.router.publish("TRAINING_PROGRESS", progress, "trainer")
        (run,) = await world.coordinator.runs()
        assert "no better loss for 15 looks" in run.reason

    in_world(scenario)


# --- pure ---------------------------------------------------------------------------------------------------


def a_run(**fields):
    given = {"run_id": "r", "optimization_type": "cmaes", "config_key": "c", "reason": "", "started_s": 0.0}
    return msgspec.convert({**given, **fields}, OptimizationRun)


def test_a_history_of_ended_runs_is_no_reason_to_refuse():
    ended = a_run(status="completed", ended_s=100.0)
    assert why_not([], 1000.0, automatic=True) == ""
    assert why_not([ended], 1000.0, automatic=True) == ""


@given(st.lists(st.tuples(st.floats(0, 10_000), st.booleans()), max_size=20), st.floats(0, 20_000))
def test_never_more_than_three_by_themselves_in_an_hour(starts, now_s):
    runs = [a_run(started_s=at, ended_s=at, status="completed", automatic=auto) for at, auto in starts]
    recent = [run for run in runs if run.automatic and now_s - run.started_s < 3600.0]
    if not why_not(runs, now_s, automatic=True):
        assert len(recent) < 3


@given(
    st.dictionaries(st.sampled_from(["lr", "batch", "samples_per_row", "window"]), st.floats() | st.text())
)
def test_rules_survive_any_finding(found):
    story = Story()
    story.write(Noted(at_s=1.0, topic="tuned", text="", details={"kind": "halving", "best_params": found}))
    rules = tuned_rules(story.state, RULES)
    assert rules.learning_rate > 0
    assert rules.batch >= 1
    assert rules.bucket == RULES.bucket


def test_every_search_has_an_order_that_its_job_takes():
    assert tune_order(OptimizationType.NAS, "square8_2p", None, RULES) is None
    order = tune_order(OptimizationType.CMAES, "square8_2p", None, RULES, generations=3)
    assert order.params == {"config": "square8_2p", "kind": "cmaes", "out": "{out}", "generations": 3}


def test_what_it_emits_and_hears_is_in_the_catalog():
    assert set(OptimizationCoordinator.emits) <= CATALOG.keys()
    wired = wire_optimization_events(router=Ear().router)
    assert {"PLATEAU_DETECTED", "NAS_STARTED", "WORK_COMPLETED"} <= set(wired.hears()) <= CATALOG.keys()
    assert wired.is_subscribed


def test_the_documented_call_orders_a_search_in_the_engine_of_this_process():
    run = trigger_cmaes("square8_2p", "as documented")
    assert run.status is OptimizationStatus.PENDING
    assert trigger_cmaes("square8_2p") is None  # one is under way


async def test_the_documented_call_works_inside_a_loop_too():
    assert trigger_cmaes("square8_2p").optimization_type is OptimizationType.CMAES


def test_searches_of_two_processes_have_different_names():
    """A name that comes again after a restart would be taken for a search that ended long ago."""

    async def scenario(world):
        world.samples()
        names = []
        for _ in range(2):
            search = Search(kind=OptimizationType.CMAES, config="square8_2p")
            run = await order_search(world.engine, SystemRuntime(), search, None, RULES)
            names.append(run.run_id)
            await world.whole(best_params={}, best_score=0.0)
            await world.coordinator.refresh()
            ended = msgspec.structs.replace(run, status=OptimizationStatus.COMPLETED, ended_s=0.0)
            await TuningStore(world.engine.kv).end(ended)
        assert names[0] != names[1]

    in_world(scenario)
