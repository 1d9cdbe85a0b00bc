"""Each stage of the loop is planned while its daemon runs, and not while it is stopped.

A loop runs in simulated time beside the product's own daemons. Each test stops one of them by the manager,
compares what is ordered and decided with and without it, and starts it again.
"""

import asyncio
from functools import partial
from importlib import import_module

import pytest
from learning_world import BASELINES, World

from ringrift.coordination.daemon_manager import DaemonManager
from ringrift.coordination.event_router import get_router
from ringrift.coordination.run_coordinator import get_loop_waker, get_open_run, get_stage_members
from ringrift.coordination.stale_fallback import StaleFallbackDaemon
from ringrift.daemons.registry import product_registry
from ringrift.daemons.types import DaemonManagerConfig, DaemonType
from ringrift.engine.opening import shared_engine
from ringrift.learning.facts.facts import GeneratorMoved, JobIssued, Noted, Promoted
from ringrift.learning.facts.ledger import read_facts
from ringrift.learning.facts.state import stage_of
from ringrift.learning.judging.promotion import ROLLBACK
from ringrift.learning.plan import training_data
from ringrift.learning.plan.orders import outlook
from ringrift.learning.plan.rules import CascadeRules, StudentRules
from ringrift.learning.plan.stages import LEVERS, StageMembers, why_not_planning
from ringrift.learning.replay import replay
from ringrift.learning.tuning import TOPIC as TUNED
from ringrift.process import process_scope
from ringrift.testing.simulation import simulate

CONFIG = "square8_2p"
FOLLOWER = "square8_3p"
METRICS_ANALYSIS = "metrics_analysis"
PERIOD_S = 900.0  # long enough for promotions and tournaments
RULES = {
    "students": StudentRules(distillation="small", small_net_games=4_000),
    "rating_opponents": ("random", "mcts:32", "heuristic"),
    "tournament_every_s": 300.0,
}


class AllFiles:
    """Jobs of this world only say what they made; none of it is missing."""

    async def has(self, _digest):
        return True


class RunWithDaemons(World):
    """A loop that plans what the daemons of a manager stand for."""

    def __init__(self, *, configs=(CONFIG,), rules=None, leave_out=(), beside=()):
        super().__init__(7, configs=configs, faults=False, rules={**RULES, **(rules or {})})
        self.leave_out, self.beside = leave_out, beside

    def _new_controller(self):
        made = super()._new_controller()
        made._stages = get_stage_members()
        get_open_run().loop = made
        return made

    def _validate(self, order):
        """Every fourth file of games scores below what anybody should learn from."""
        reports, told = super()._validate(order)
        for report in reports:
            is_poor = int(report.counts["shard"], 16) % 4 == 0
            report.counts["quality"] = 0.1 if is_poor else 0.7
        return reports, told

    def _train(self, order):
        made, told = super()._train(order)
        # Feedback goes by it, so only those say it who ask for it.
        return made, {**told, **({"best_held": 1.0} if METRICS_ANALYSIS in self.beside else {})}

    async def live(self, body):
        """Run the loop and its daemons for as long as *body* takes."""
        process_scope().put(StageMembers, StageMembers(self.runtime, waker=get_loop_waker()))
        shared_engine().put(self.engine())
        config = DaemonManagerConfig(loop_watchdog=False)
        self.manager = DaemonManager(
            config, runtime=self.runtime, bus=get_router(), offload=at_once, memory_percent=lambda: 30.0
        )
        members = get_stage_members()
        members.reasons = partial(why_not_planning, self.manager)
        self.manager.register_factory(DaemonType.DATA_PIPELINE, self._control_life)
        self.manager.register_factory(DaemonType.STALE_FALLBACK, self._stale_fallback)
        async with asyncio.TaskGroup() as group:
            workers = [group.create_task(self._worker(f"w{n}")) for n in range(self.slots)]
            await self.manager.start_all([*needed({*LEVERS, *self.beside} - set(self.leave_out))])
            members.complete()
            try:
                await body(self)
            finally:
                members.close()
                await self.manager.shutdown()
                for task in workers:
                    task.cancel()

    async def _stale_fallback(self):
        await StaleFallbackDaemon(router=get_router(), runtime=self.runtime, blobs=AllFiles()).run()

    async def periods(self, count):
        await self.runtime.sleep(count * PERIOD_S)

    async def facts(self, kind=object, config=CONFIG):
        return [each for each in await read_facts(self.engine().kv, config) if isinstance(each, kind)]

    async def orders(self, stage, *, since_s):
        return [
            each
            for each in await self.facts(JobIssued)
            if stage_of(each.kind, each.order.purpose) == stage and each.at_s > since_s
        ]

    async def until_ordered(self, stage, *, since_s):
        """Live until it is, for a period at most."""
        until_s = self.runtime.now_s() + PERIOD_S
        while not await self.orders(stage, since_s=since_s):
            assert self.runtime.now_s() < until_s, f"nothing was ordered of {stage}"
            await self.runtime.sleep(60.0)

    def said(self, stage):
        found = [each for each in self.controller.plans[CONFIG].explanations if each.stage == stage]
        return found[-1].reason

    def feedback(self):
        state = self.controller.state(CONFIG)
        return outlook(state, self.rules, self.controller.curves, now_s=self.runtime.now_s()).feedback


async def at_once(work):
    return work()


def needed(names):
    """The daemons of those types, and what they need."""
    registry, wanted = product_registry(), {DaemonType(name) for name in names}
    while more := {need for each in wanted for need in registry[each].depends_on} - wanted:
        wanted |= more
    for each in wanted:  # in this thread: simulated time does not wait for others
        import_module(registry[each].entry_point.partition(":")[0])
    return wanted


def lived(body, **about):
    world = RunWithDaemons(**about)
    simulate(world.live(body))
    return world


ORDERED = {
    "selfplay_coordinator": "selfplay",
    "queue_populator": "selfplay",
    "auto_export": "export",
    "training_trigger": "train",
    "evaluation": "evaluate",
    "tournament_daemon": "tournament",
    "distillation": "distillation",
    "nnue_training": "small_net",
}


@pytest.mark.parametrize(("name", "stage"), ORDERED.items())
def test_what_a_daemon_orders_is_not_ordered_while_it_is_stopped(name, stage):
    async def body(world):
        await world.until_ordered(stage, since_s=0.0)  # with it, the machine does the thing
        await world.manager.stop(DaemonType(name))
        await world.runtime.sleep(20.0)  # the loop's next look
        stopped_s = world.runtime.now_s()
        await world.periods(1.0)
        assert await world.orders(stage, since_s=stopped_s) == []
        assert f"{name.upper()} is stopped: " in world.said(stage)
        assert "since " in world.said(stage)
        await world.manager.start(DaemonType(name))
        await world.until_ordered(stage, since_s=world.runtime.now_s())

    lived(body)


def test_champion_and_generator_stay_while_auto_promotion_is_stopped():
    async def body(world):
        await world.periods(0.5)
        assert await world.facts(Promoted)
        await world.manager.stop(DaemonType.AUTO_PROMOTION)
        await world.runtime.sleep(20.0)
        before = len(await world.facts((Promoted, GeneratorMoved)))
        trained = len(await world.orders("train", since_s=0.0))
        await world.periods(1.0)
        assert len(await world.facts((Promoted, GeneratorMoved))) == before
        assert len(await world.orders("train", since_s=0.0)) > trained
        assert "AUTO_PROMOTION is stopped" in world.said("promote")
        await world.manager.start(DaemonType.AUTO_PROMOTION)
        await world.periods(0.5)
        assert len(await world.facts((Promoted, GeneratorMoved))) > before
        assert replay(CONFIG, await world.facts(), world.rules) == []

    lived(body)


def test_the_other_name_of_auto_promotion_is_refused_beside_it_and_promotes_without_it():
    async def body(world):
        manager = world.manager
        assert not await manager.start(DaemonType.UNIFIED_PROMOTION)
        await manager.stop(DaemonType.AUTO_PROMOTION)
        assert await manager.start(DaemonType.UNIFIED_PROMOTION)
        started_s = world.runtime.now_s()
        await world.periods(0.5)
        assert [each for each in await world.facts(Promoted) if each.at_s > started_s]

    lived(body)


def test_nobody_looks_again_at_a_champion_while_its_watchdog_is_stopped():
    async def second_looks(world, since_s):
        orders = await world.orders("evaluate", since_s=since_s)
        return [each for each in orders if each.order.purpose == ROLLBACK]

    async def body(world):
        await world.periods(1.0)
        assert await second_looks(world, 0.0)
        await world.manager.stop(DaemonType.MODEL_PERFORMANCE_WATCHDOG)
        await world.runtime.sleep(20.0)
        stopped_s = world.runtime.now_s()
        await world.periods(1.0)
        assert [each for each in await world.facts(Promoted) if each.at_s > stopped_s]
        assert await second_looks(world, stopped_s) == []
        await world.manager.start(DaemonType.MODEL_PERFORMANCE_WATCHDOG)
        started_s = world.runtime.now_s()
        await world.periods(1.0)
        assert await second_looks(world, started_s)

    lived(body)


def test_a_training_reads_one_file_while_nobody_combines_them():
    async def files_read(world, since_s):
        return {
            len([name for name in each.order.inputs if name.startswith("samples")])
            for each in await world.orders("train", since_s=since_s)
        }

    async def body(world):
        await world.periods(1.0)
        assert max(await files_read(world, 0.0)) > 1
        await world.manager.stop(DaemonType.NPZ_COMBINATION)
        await world.runtime.sleep(20.0)
        stopped_s = world.runtime.now_s()
        await world.periods(0.5)
        assert await files_read(world, stopped_s) == {1}
        await world.manager.start(DaemonType.NPZ_COMBINATION)
        started_s = world.runtime.now_s()
        await world.periods(0.5)
        assert max(await files_read(world, started_s)) > 1

    lived(body)


def test_rows_are_drawn_by_surprise_only_while_per_orchestrator_runs():
    async def surprises(world, since_s):
        exports = await world.orders("export", since_s=since_s)
        return {each.order.params["surprise"] for each in exports if each.order.params["value_mix"]}

    async def body(world):
        await world.periods(0.5)
        assert await surprises(world, 0.0) == {0.5}
        await world.manager.stop(DaemonType.PER_ORCHESTRATOR)
        await world.runtime.sleep(20.0)
        stopped_s = world.runtime.now_s()
        await world.periods(0.5)
        assert await surprises(world, stopped_s) == {0.0}
        await world.manager.start(DaemonType.PER_ORCHESTRATOR)
        await world.runtime.sleep(20.0)
        started_s = world.runtime.now_s()
        await world.periods(0.5)
        assert await surprises(world, started_s) == {0.5}

    lived(body)


def test_the_size_that_a_search_found_is_used_only_while_architecture_feedback_runs():
    async def sizes(world, since_s):
        return {each.order.params["preset"] for each in await world.orders("train", since_s=since_s)}

    async def body(world):
        await world.periods(0.5)
        found = {"kind": "nas", "best_params": {"preset": "medium"}, "instead_of": "small"}
        note = Noted(at_s=world.runtime.now_s(), topic=TUNED, text="medium is better", details=found)
        await world.manager.stop(DaemonType.ARCHITECTURE_FEEDBACK)
        await world.runtime.sleep(20.0)
        await world.controller.write(CONFIG, note)
        stopped_s = world.runtime.now_s()
        await world.periods(0.5)
        assert await sizes(world, stopped_s) == {"small"}
        await world.manager.start(DaemonType.ARCHITECTURE_FEEDBACK)
        await world.runtime.sleep(20.0)
        started_s = world.runtime.now_s()
        await world.periods(0.5)
        assert "medium" in await sizes(world, started_s)

    lived(body)


@pytest.mark.parametrize("leave_out", [(), ("cascade_training",)], ids=["with it", "without it"])
def test_a_config_follows_another_only_where_cascade_training_runs(leave_out):
    async def body(world):
        await world.periods(1.0)
        topics = {each.topic for each in await world.facts(Noted, FOLLOWER)}
        assert ("warm_start" in topics) is not bool(leave_out)

    rules = {"cascade": CascadeRules(enabled=True, rating=0.0, wait_s=1800.0)}
    lived(body, configs=(CONFIG, FOLLOWER), rules=rules, leave_out=leave_out)


def test_scores_of_games_count_only_while_quality_monitor_runs():
    async def poor_files(world, since_s):
        exports = await world.orders("export", since_s=since_s)
        shards = {digest for each in exports for digest in each.order.inputs.values()}
        known = world.controller.state(CONFIG).shards
        return [each for each in shards if each in known and known[each].quality == 0.1]

    async def body(world):
        await world.periods(1.0)
        assert any(each.quality == 0.1 for each in world.controller.state(CONFIG).shards.values())
        assert await poor_files(world, 0.0) == []
        await world.manager.stop(DaemonType.QUALITY_MONITOR)
        await world.runtime.sleep(20.0)
        stopped_s = world.runtime.now_s()
        await world.periods(1.0)
        assert await poor_files(world, stopped_s)
        await world.manager.start(DaemonType.QUALITY_MONITOR)
        await world.runtime.sleep(60.0)  # an export that was under way may still be ordered before
        started_s = world.runtime.now_s()
        await world.periods(1.0)
        assert await poor_files(world, started_s) == []

    lived(body)


def test_old_games_are_trained_on_only_while_stale_fallback_runs(monkeypatch):
    monkeypatch.setattr(training_data, "FRESH_HOURS_MAX", 0.5)

    async def body(world):
        await world.periods(1.0)
        assert [each for each in await world.facts(Noted) if each.topic == "freshness"] == []
        await world.manager.stop(DaemonType.TRAINING_TRIGGER)
        await world.periods(0.5)  # until rows have earned more than one training
        await world.manager.stop(DaemonType.SELFPLAY_COORDINATOR)
        await world.manager.stop(DaemonType.STALE_FALLBACK)
        await world.periods(3.0)
        await world.manager.start(DaemonType.TRAINING_TRIGGER)
        started_s = world.runtime.now_s()
        await world.periods(1.5)
        assert await world.orders("train", since_s=started_s) == []
        assert "waits for newer games" in world.said("train")
        assert "STALE_FALLBACK is stopped: " in world.said("train")
        assert "since " in world.said("train")
        await world.manager.start(DaemonType.STALE_FALLBACK)
        await world.runtime.sleep(60.0)
        assert await world.orders("train", since_s=started_s)
        await world.periods(0.5)
        assert replay(CONFIG, await world.facts(), world.rules) == []

    lived(body)


def test_games_that_are_played_anew_end_the_wait_of_a_training_for_them(monkeypatch):
    monkeypatch.setattr(training_data, "FRESH_HOURS_MAX", 0.5)

    async def body(world):
        await world.periods(1.0)
        await world.manager.stop(DaemonType.TRAINING_TRIGGER)
        await world.periods(0.5)
        await world.manager.stop(DaemonType.SELFPLAY_COORDINATOR)
        await world.manager.stop(DaemonType.STALE_FALLBACK)
        await world.periods(3.0)
        await world.manager.start(DaemonType.TRAINING_TRIGGER)
        await world.manager.start(DaemonType.SELFPLAY_COORDINATOR)
        started_s = world.runtime.now_s()
        await world.periods(0.5)
        assert await world.orders("selfplay", since_s=started_s), "it waits for them, so they are played"
        assert await world.orders("train", since_s=started_s)
        noted = [each.details["stale"] for each in await world.facts(Noted) if each.topic == "freshness"]
        assert noted == [True, False]
        assert replay(CONFIG, await world.facts(), world.rules) == []

    lived(body)


FEEDBACK = {
    "feedback_loop": lambda told: told.learning_rate != 1.0,
    "curriculum_integration": lambda told: told.weight != 1.0,
    "gauntlet_feedback": lambda told: any("against the heuristic" in each for each in told.reasons),
}


@pytest.mark.parametrize(("name", "counts"), FEEDBACK.items())
def test_feedback_is_neutral_while_who_gives_it_is_stopped(name, counts, monkeypatch):
    monkeypatch.setitem(BASELINES, "heuristic", -900.0)  # far below, so that matches with it say something

    async def until(world, wanted):
        for _ in range(200):
            if bool(counts(world.feedback())) is wanted:
                return True
            await world.runtime.sleep(60.0)
        return False

    async def body(world):
        assert await until(world, True)
        await world.manager.stop(DaemonType(name))
        await world.runtime.sleep(20.0)
        for _ in range(20):
            assert not counts(world.feedback())
            await world.runtime.sleep(60.0)
        assert f"{name.upper()} is stopped: " in world.said(name)
        await world.manager.start(DaemonType(name))
        await world.runtime.sleep(20.0)
        assert await until(world, True)

    lived(body)


def test_nothing_is_decided_or_ordered_while_data_pipeline_is_stopped():
    async def told(world):
        return len([each for each in await world.facts() if not isinstance(each, Noted)])

    async def body(world):
        await world.periods(0.5)
        assert await told(world)
        await world.manager.stop(DaemonType.DATA_PIPELINE)
        before = await told(world)
        await world.periods(0.5)
        assert await told(world) == before
        assert world.manager.why(DaemonType.DATA_PIPELINE)
        await world.manager.start(DaemonType.DATA_PIPELINE)
        await world.periods(0.5)
        assert await told(world) > before

    lived(body)


def test_what_curves_show_is_told_only_while_metrics_analysis_runs():
    heard = []

    async def body(world):
        get_router().subscribe("METRICS_UPDATED", heard.append, "ear")
        await world.periods(0.5)
        assert heard
        await world.manager.stop(DaemonType.METRICS_ANALYSIS)
        before, trained = len(heard), len(await world.orders("train", since_s=0.0))
        await world.periods(0.5)
        assert len(await world.orders("train", since_s=0.0)) > trained
        assert len(heard) == before
        await world.manager.start(DaemonType.METRICS_ANALYSIS)
        await world.periods(0.1)
        assert len(heard) > before

    lived(body, beside=(METRICS_ANALYSIS,))


# Daemon: the test that stops it and sees the machine do without.
SHOWN_BY = {
    **dict.fromkeys(ORDERED, test_what_a_daemon_orders_is_not_ordered_while_it_is_stopped),
    **dict.fromkeys(FEEDBACK, test_feedback_is_neutral_while_who_gives_it_is_stopped),
    "architecture_feedback": test_the_size_that_a_search_found_is_used_only_while_architecture_feedback_runs,
    "auto_promotion": test_champion_and_generator_stay_while_auto_promotion_is_stopped,
    "cascade_training": test_a_config_follows_another_only_where_cascade_training_runs,
    "model_performance_watchdog": test_nobody_looks_again_at_a_champion_while_its_watchdog_is_stopped,
    "npz_combination": test_a_training_reads_one_file_while_nobody_combines_them,
    "per_orchestrator": test_rows_are_drawn_by_surprise_only_while_per_orchestrator_runs,
    "stale_fallback": test_old_games_are_trained_on_only_while_stale_fallback_runs,
    "quality_monitor": test_scores_of_games_count_only_while_quality_monitor_runs,
}
# The same of those that plan nothing themselves, and need the loop for what they do.
LOOP_SHOWN_BY = {
    "data_pipeline": test_nothing_is_decided_or_ordered_while_data_pipeline_is_stopped,
    METRICS_ANALYSIS: test_what_curves_show_is_told_only_while_metrics_analysis_runs,
}


def test_every_daemon_that_plans_has_a_test():
    assert SHOWN_BY.keys() == LEVERS


def test_every_lever_is_started_with_the_loop_in_every_profile():
    registry = product_registry()
    wanted = registry[DaemonType.DATA_PIPELINE].profiles
    lacking = {name: wanted - registry[DaemonType(name)].profiles for name in LEVERS}
    assert {name: profiles for name, profiles in lacking.items() if profiles} == {}


def test_what_comes_up_later_or_ends_with_the_process_is_not_noted():
    async def body(world):
        await world.periods(0.5)
        assert [each for each in await world.facts(Noted) if each.topic == "stages"] == []

    world = lived(body)

    async def after():
        assert [each for each in await world.facts(Noted) if each.topic == "stages"] == []

    simulate(after())
