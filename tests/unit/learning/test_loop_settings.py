"""Settings that change what is ordered: simulations, what a row earns, games under backpressure."""

from contextlib import asynccontextmanager

import msgspec
import pytest
from feedback_kit import promote, trained_model
from learning_story import RULES, Story

from ringrift.coordination.queue_monitor import QueueMonitor
from ringrift.engine.memory import MemoryStore, memory_engine
from ringrift.engine.ports import Claimant, NewWork
from ringrift.learning.announcements import Silent
from ringrift.learning.controller import Controller
from ringrift.learning.facts.facts import PRICE_TOPIC, SLOTS_TOPIC, Blocked, Noted
from ringrift.learning.facts.records import BucketRules
from ringrift.learning.facts.state import fold
from ringrift.learning.judging.feedback import Feedback, RatingCurves
from ringrift.learning.plan.orders import Snapshot, outlook, rules_in_force
from ringrift.learning.plan.plan import PRICE_S_MIN, Capacity, plan, selfplay_simulations
from ringrift.learning.plan.rules import rules_note
from ringrift.machine import NodeResources
from ringrift.testing.simulation import SimulatedRuntime, simulate
from ringrift.work.admission import AdmissionSources, SpawnGate, TaskAdmission
from ringrift.work.backpressure import BackpressureLevel
from ringrift.work.limits import EmergencyPlaces, EmergencyState, SpawnVerdict
from ringrift.work.worker.records import WorkerRecord, worker_key

HOT = Feedback(steps_per_row=1.25, simulations=1.5, reasons=("promotions in a row",))


def with_rules(**changes):
    return msgspec.structs.replace(RULES, **changes)


def selfplay(story, rules, **more):
    made = plan(Snapshot(story.state, rules, story.now_s, **more))
    return next(each for each in made.wanted if each.kind == "selfplay").order.params


def grown(story, games):
    promote(story, trained_model(story))
    story.play(games=games, rows=100)
    story.check()
    return story


@pytest.mark.parametrize(
    ("games", "rating", "simulations"),
    [(20, None, 150), (400, None, 300), (2000, 1450.0, 800), (2000, 1850.0, 3200)],
)
def test_the_search_grows_with_the_config_if_that_is_set(games, rating, simulations):
    story, rules = grown(Story(), games), with_rules(search_budget="progress")
    assert selfplay(story, rules, rating=rating)["simulations"] == simulations
    assert selfplay(story, RULES, rating=rating)["simulations"] == RULES.simulations


def test_runs_with_different_seeds_play_different_games_and_those_without_play_as_before():
    story = grown(Story(), 2000)
    seeds = [selfplay(story, with_rules(seed=seed))["seed"] for seed in (0, 1, 2)]
    assert seeds[0] == story.state.issued["selfplay"] + 1
    assert len(set(seeds)) == 3


def test_a_plateau_deepens_the_search_in_either_way():
    story = grown(Story(), 2000)
    assert selfplay(story, RULES, feedback=HOT)["simulations"] == round(RULES.simulations * 1.5)
    by_progress = with_rules(search_budget="progress")
    assert selfplay(story, by_progress, feedback=HOT)["simulations"] == 1200


@pytest.mark.parametrize(
    ("slots", "usual", "on_a_plateau"), [(1, 1, 1.5), (2, 1, 1.5), (16, 4, 5), (64, 8, 8), (1000, 8, 8)]
)
def test_a_plateau_and_slots_that_training_cannot_use_deepen_the_search_eight_times_at_most(
    slots, usual, on_a_plateau
):
    """Beyond that a plateau would give games more of the time the more slots there are."""
    story = grown(Story(), 50)
    story.export()
    story.train(samples_per_s=3_000.0)
    story.play(rows=2_000)
    story.check()
    told = {"slots": slots, "configs": 1}
    story.write(Noted(at_s=story.now_s, topic=SLOTS_TOPIC, text="", details=told))
    played_at(story, 1)
    assert selfplay_depth(story) == usual
    assert selfplay_depth(story, feedback=HOT) == on_a_plateau
    for depth in (usual, on_a_plateau):  # what the last games were played with changes neither
        played_at(story, depth)
        assert selfplay_depth(story, feedback=HOT) == on_a_plateau
    assert selfplay_depth(story) == usual


def played_at(story, depth):
    """The newest games: at twice the depth they take twice the time."""
    newest = next(reversed(story.state.shards.values()))
    simulations = round(depth * RULES.simulations)
    story.state.set_shard(newest, simulations=simulations, cpu_s=9.0 * depth, model=story.state.generator)


def selfplay_depth(story, **more):
    return selfplay_simulations(Snapshot(story.state, RULES, story.now_s, **more)) / RULES.simulations


def test_the_rating_that_the_search_follows_is_the_champions():
    story = Story()
    promote(story, trained_model(story))
    story.evaluate(story.state.champion, "random", wins=40, losses=10, purpose="rating")
    found = outlook(story.state, RULES, RatingCurves(), now_s=story.now_s)
    assert found.rating == pytest.approx(RatingCurves().of(story.state)[-1].rating)


# --- what a row earns ---------------------------------------------------------------------------------


def priced(story, rules, found=HOT):
    made = plan(Snapshot(story.state, rules, story.now_s, feedback=found))
    return [fact for fact in made.decided if isinstance(fact, Noted) and fact.topic == PRICE_TOPIC]


def test_feedback_moves_what_rows_earn_only_if_that_is_set():
    story = Story()
    assert priced(story, RULES) == []
    (note,) = priced(story, with_rules(adaptive_steps=True))
    assert "5 sample-steps" in note.text
    assert "promotions in a row" in note.text
    story.write(note)
    story.play(rows=1000)
    story.check()
    assert story.state.bucket.earned == 1000 * 4 * 1.25
    again = fold(story.state.config, story.facts, bucket_rules=RULES.bucket)
    assert again.bucket == story.state.bucket


def test_the_price_follows_slowly_and_goes_back_when_it_is_switched_off():
    story, rules = Story(), with_rules(adaptive_steps=True)
    story.write(priced(story, rules)[0])
    assert priced(story, rules, Feedback()) == [], "not at every wavering"
    story.now_s += PRICE_S_MIN
    (back,) = priced(story, RULES)
    story.write(back)
    assert story.state.price == 1.0


def test_the_next_training_is_announced_at_the_price_of_now():
    story = Story()
    story.write(Noted(at_s=story.now_s, topic=PRICE_TOPIC, text="", details={"factor": 1.25}))
    assert rules_in_force(story.state, RULES).bucket.steps_per_row == 5.0


# --- how many games are ordered -----------------------------------------------------------------------


def test_games_fill_the_slots_and_one_more_waits():
    assert Capacity(4, 4, 0).has_room_for("selfplay")
    assert not Capacity(4, 5, 0).has_room_for("selfplay")
    assert not Capacity(4, 2, 3).has_room_for("selfplay")
    assert not Capacity(0, 0, 0).has_room_for("selfplay")


def test_backpressure_takes_slots_from_games_and_from_nothing_else():
    half = Capacity(4, 3, 0, throttle=0.5)
    assert not half.has_room_for("selfplay")
    assert "50%" in half.supply().reason
    assert half.has_room_for("train")
    assert Capacity(4, 0, 0, throttle=0.0).has_room_for("selfplay"), "a trickle goes on"


class Pressed:
    """Safeguards under pressure; with *why*, they refuse everything."""

    def __init__(self, level, why=""):
        self.level, self.why = level, why

    async def throttle(self, _kind):
        return self.level.throttle_factor

    async def may_order(self, _kind, _node):
        return SpawnVerdict(not self.why, self.why or "ok", 3600.0)


@asynccontextmanager
async def pressed_run(safeguards, rules=RULES, runtime=None):
    runtime = runtime or SimulatedRuntime()
    engine = memory_engine(runtime, MemoryStore())
    worker = WorkerRecord(
        name="w", node="n", pid=1, slots=8, busy=0, kinds=None, capabilities=(), cpus=8, gpus=0,
        memory_mb=1, memory_free_mb=1, load=0.0, started_s=0.0, at_s=runtime.now_s(),
    )  # fmt: skip
    await engine.kv.put(worker_key("w"), msgspec.json.encode(worker))
    controller = Controller(engine, runtime, rules, announcer=Silent(), safeguards=safeguards)
    await controller.open(["square8_2p"])
    yield controller, runtime
    await engine.close()


@pytest.mark.parametrize(("follow", "games"), [(False, 9), (True, 5)])
def test_a_run_orders_fewer_games_while_rows_pile_up_if_that_is_set(follow, games):
    async def main():
        rules = with_rules(follow_backpressure=follow, bucket=BucketRules(rows_first_min=100_000))
        async with pressed_run(Pressed(BackpressureLevel.SOFT), rules) as (controller, _):
            await controller.reconcile()
            assert len(controller.state("square8_2p").open_jobs) == games
            said = {each.stage: each.reason for each in controller.plans["square8_2p"].explanations}
            assert ("backpressure" in said["selfplay"]) is follow

    simulate(main())


def test_what_the_machine_refuses_is_blocked_in_writing_and_asked_for_again():
    async def main():
        safeguards = Pressed(BackpressureLevel.NONE, why="emergency stop: smoke")
        async with pressed_run(safeguards) as (controller, runtime):
            state = controller.state("square8_2p")
            for _ in range(5):
                await controller.reconcile()
                await runtime.sleep(70.0)
            assert "smoke" in state.blocks["selfplay"].reason
            assert sum(isinstance(fact, Blocked) for fact in state.decisions) == 1, "not with every refusal"
            assert not state.open_jobs
            await controller.reconcile()
            assert "smoke" in controller.held("square8_2p")["selfplay"].reason
            safeguards.why = ""
            await runtime.sleep(61.0)
            await controller.reconcile()
            assert state.open_jobs, "it ends by itself"
            assert not controller.held("square8_2p")

    simulate(main())


def gate_of_a_full_machine(folder, runtime):
    """The product's safeguards on a machine with a task of its own and 90 % of its memory used."""
    engine = memory_engine(runtime)

    async def get_engine():
        return engine

    async def get_kv():
        return engine.kv

    async def resources():
        return NodeResources(
            cpu_percent=10, memory_percent=90, disk_percent=40, disk_free_gb=200, load=0.5, cores=8
        )

    sources = AdmissionSources(
        engine=get_engine,
        emergency=EmergencyState(EmergencyPlaces(folder, get_kv), runtime=runtime),
        monitor=QueueMonitor(get_engine, runtime=runtime, resources=resources),
        resources=resources,
        runtime=runtime,
    )
    return engine, sources.emergency, SpawnGate(TaskAdmission(sources))


@pytest.mark.parametrize("error", ["no data", "killed: out of memory"])
def test_the_loop_orders_nothing_beside_other_jobs_where_jobs_ran_out_of_memory(tmp_path, error):
    async def main():
        runtime = SimulatedRuntime()
        engine, emergency, gate = gate_of_a_full_machine(tmp_path, runtime)
        await engine.queue.add([NewWork(kind="selfplay")])
        await engine.queue.claim(Claimant(worker=runtime.hostname), lease_s=1e6)
        for _ in range(19):
            gate.succeeded("train")
        await gate.failed("train", "", error)
        await emergency.clear()
        async with pressed_run(gate, runtime=runtime) as (controller, _):
            await controller.reconcile()
            ran_out = "memory" in error
            assert bool(controller.state("square8_2p").open_jobs) is not ran_out
            said = {each.stage: each.reason for each in controller.plans["square8_2p"].explanations}
            why = "memory 90 % used; 88 % is the limit beside other tasks, as tasks ran out of memory"
            assert (said["selfplay"] == why) is ran_out

    simulate(main())


def test_rules_of_an_older_run_are_read():
    story = Story()
    note = rules_note(story.state, RULES, at_s=1.0)
    for name in ("students", "cascade", "search_budget", "adaptive_steps"):
        del note.details["rules"][name]
    story.write(note)
    assert rules_note(story.state, RULES, at_s=2.0) is not None


def test_a_part_of_the_window_and_a_weight_decay_reach_the_jobs():
    story, rules = Story(), with_rules(window_share=0.5, weight_decay=1e-5)
    for _ in range(4):
        story.play(rows=1000)
    story.check()
    export = next(
        each for each in plan(Snapshot(story.state, rules, story.now_s)).wanted if each.kind == "export"
    )
    assert len(export.order.params["shards"]) == 2
    story.export()
    train = next(
        each for each in plan(Snapshot(story.state, rules, story.now_s)).wanted if each.kind == "train"
    )
    assert train.order.params["weight_decay"] == 1e-5
