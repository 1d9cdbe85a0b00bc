"""The daemons and coordinators of feedback and trends, on a run whose facts the test writes."""

import asyncio

import pytest
from feedback_kit import Ear, Run, checked_shard, promote, reject, roll_back, trained_model
from hypothesis import given
from hypothesis import strategies as st

from ringrift.coordination.event_router import get_router
from ringrift.coordination.feedback_loop_controller import (
    HISTORY_MAX,
    MEANINGS,
    ArchitectureFeedback,
    FeedbackLoopController,
    FeedbackSignal,
    FeedbackSignals,
    GauntletFeedbackController,
    SignalType,
)
from ringrift.coordination.metrics_analysis_orchestrator import (
    METRICS_MAX,
    NUMBERS,
    MetricsAnalysisDaemon,
    MetricsAnalysisOrchestrator,
    ModelPerformanceWatchdog,
    TrendDirection,
    analyze_metrics,
    get_metrics_orchestrator,
    record_metric,
    wire_metrics_events,
)
from ringrift.coordination.quality_monitor_daemon import QualityMonitorDaemon
from ringrift.engine.memory import memory_engine
from ringrift.events.catalog.table import CATALOG
from ringrift.events.event import RouterEvent
from ringrift.learning.facts.facts import PRICE_TOPIC, Noted
from ringrift.learning.plan.training_data import freshness_of
from ringrift.learning.situation import OpenRun, Situations
from ringrift.learning.tuning import TOPIC as TUNED
from ringrift.learning.tuning import tuned_rules
from ringrift.testing.simulation import SimulatedRuntime, simulate
from ringrift.work.coordinator import ConfigSignals, heard_by


def with_daemon(make, scenario, *configs):
    """Run *scenario* beside a daemon on a run of its own, in simulated time."""

    async def whole():
        run, ear, runtime = Run(*configs), Ear(), SimulatedRuntime()
        daemon = make(router=ear.router, runtime=runtime, situations=run.situations)
        await daemon.start()
        try:
            await scenario(run, ear, runtime, daemon)
        finally:
            await daemon.stop()

    simulate(whole())


def on_a_plateau(story, refused=5):
    promote(story, trained_model(story))
    for _ in range(refused):
        reject(story, trained_model(story))


# --- feedback -----------------------------------------------------------------------------------------------


def test_the_feedback_loop_tells_a_change_once_with_its_reason_and_then_its_end():
    async def scenario(run, ear, runtime, daemon):
        on_a_plateau(run.story)
        await runtime.sleep(31.0)
        told = ear.take()
        assert told["ADAPTIVE_PARAMS_CHANGED"]["params"]["exploration"] == 1.2
        assert "refused" in told["EXPLORATION_BOOST"]["reason"]
        assert daemon.get_feedback("square8_2p").plateau.level == 1
        assert "refused" in str(daemon.health_check().details["configs"]["square8_2p"]["reasons"])
        await runtime.sleep(600.0)
        assert ear.take() == {}
        promote(run.story, trained_model(run.story))
        await runtime.sleep(331.0)
        told = ear.take()
        assert told["EXPLORATION_ADJUSTED"]["exploration"] == 1.0
        assert "EXPLORATION_BOOST" not in told

    with_daemon(FeedbackLoopController, scenario)


def test_what_is_told_of_the_price_of_rows_is_the_price_in_force():
    async def scenario(run, ear, runtime, daemon):
        checked_shard(run.story, games=200, quality=0.95)
        assert run.curves.feedback(run.story.state).steps_per_row == 1.25, "what the results ask for"
        await runtime.sleep(31.0)
        told = ear.take()["ADAPTIVE_PARAMS_CHANGED"]["params"]
        assert (told["steps_per_row"], told["learning_rate"]) == (1.0, 1.2)
        text = "a row earns 5 sample-steps from now on"
        run.story.write(Noted(at_s=1.0, topic=PRICE_TOPIC, text=text, details={"factor": 1.25}))
        await runtime.sleep(600.0)
        assert ear.take()["ADAPTIVE_PARAMS_CHANGED"]["params"]["steps_per_row"] == 1.25
        assert daemon.get_feedback("square8_2p").steps_per_row == 1.25

    with_daemon(FeedbackLoopController, scenario)


def test_what_was_told_last_is_in_force_also_when_changes_follow_each_other():
    async def scenario(run, ear, runtime, daemon):
        on_a_plateau(run.story, refused=5)
        await runtime.sleep(31.0)
        ear.take()
        for _ in range(5):
            reject(run.story, trained_model(run.story))
        await runtime.sleep(31.0)
        told = ear.take()
        assert told["HYPERPARAMETER_UPDATED"]["new_value"] == 0.5
        in_force = run.curves.feedback(run.story.state).learning_rate
        assert told["ADAPTIVE_PARAMS_CHANGED"]["params"]["learning_rate"] == in_force

    with_daemon(FeedbackLoopController, scenario)


def test_an_event_becomes_a_signal_and_makes_the_loop_look_at_once():
    async def scenario(run, ear, runtime, daemon):
        checked_shard(run.story, games=200, quality=0.45)
        warning = {"config_key": "square8_2p", "quality_score": 0.45, "threshold": 0.6}
        await ear.router.publish("QUALITY_DEGRADED", warning, "test")
        told = ear.take()  # no time has passed
        in_force = run.curves.feedback(run.story.state)
        adjusted, penalty = told["QUALITY_FEEDBACK_ADJUSTED"], told["QUALITY_PENALTY_APPLIED"]
        assert adjusted["budget_multiplier"] == in_force.quality_budget == in_force.weight == 1.3
        assert (penalty["rate_multiplier"], penalty["penalty"]) == (
            in_force.learning_rate,
            pytest.approx(0.1),
        )
        assert penalty["current_weight"] == in_force.weight
        assert told["QUALITY_CHECK_REQUESTED"]["priority"] == "high"
        assert told["ADAPTIVE_PARAMS_CHANGED"]["params"]["intensity"] == "reduced"
        latest = daemon.signals.latest("square8_2p")
        assert latest[SignalType.QUALITY].value == 0.45

    with_daemon(FeedbackLoopController, scenario)


def test_quality_monitor_and_feedback_loop_do_not_answer_each_other_for_ever():
    async def scenario(run, ear, runtime, daemon):
        monitor = QualityMonitorDaemon(router=ear.router, runtime=runtime, situations=run.situations)
        await monitor.start()
        checked_shard(run.story, games=200, quality=0.4)
        await runtime.sleep(600.0)
        await monitor.stop()
        assert max(ear.counts().values()) <= 3
        assert daemon.get_recent_errors() == monitor.get_recent_errors() == []

    with_daemon(FeedbackLoopController, scenario)


def test_every_event_that_feedback_must_hear_has_a_meaning():
    assert MEANINGS.keys() == set(heard_by("feedback_loop"))
    for event, meaning in MEANINGS.items():
        fields = {field.name for field in CATALOG[event].fields}
        assert not meaning.field or meaning.field in fields, event


@given(st.lists(st.tuples(st.sampled_from(SignalType), st.sampled_from(["a", "b"])), max_size=50))
def test_the_newest_signal_of_each_type_is_kept_per_config(added):
    signals = FeedbackSignals()
    for number, (kind, config) in enumerate(added):
        signals.add(FeedbackSignal(kind, config, float(number), "test", "", 0.0))
    for kind, config in added:
        last = max(n for n, each in enumerate(added) if each == (kind, config))
        assert signals.latest(config)[kind].value == last


def test_history_is_bounded():
    signals = FeedbackSignals()
    for number in range(HISTORY_MAX + 10):
        signals.add(FeedbackSignal(SignalType.QUALITY, "a", float(number), "test", "", 0.0))
    assert len(signals.history(limit=10_000)) == HISTORY_MAX
    assert signals.history(limit=1)[0].value == HISTORY_MAX + 9


def test_the_age_of_games_counts_from_when_they_were_made_and_each_shard_once():
    run = Run()
    story = run.story
    assert freshness_of(story.state, now_s=story.now_s).reason == "no game is checked yet"
    checked_shard(story, games=40)
    assert not freshness_of(story.state, now_s=story.now_s).is_fresh  # too few games
    checked_shard(story, games=40)
    found = freshness_of(story.state, now_s=story.now_s)
    assert (found.games, found.is_fresh) == (80, True)
    later = freshness_of(story.state, now_s=story.now_s + 25 * 3600.0)
    assert (later.games, later.is_fresh) == (0, False)
    assert "25.0 hours old" in later.reason
    assert freshness_of(story.state, now_s=0.0).age_s == 0.0  # a clock that was set back


@pytest.mark.parametrize("make", [FeedbackLoopController, GauntletFeedbackController, ArchitectureFeedback])
def test_what_was_said_before_a_restart_is_not_said_again_and_what_changed_meanwhile_is(make):
    async def scenario():
        runtime, kept = SimulatedRuntime(), OpenRun()
        run, kept.engine = Run(), memory_engine(runtime)

        async def told_by_a_process():
            ear, kept.loop = Ear(), run
            daemon = make(router=ear.router, runtime=runtime, situations=Situations(run=kept))
            await daemon.start()
            await runtime.sleep(601.0)
            await daemon.stop()
            return {(name, payload.get("param_name")): payload for name, payload in ear.events}

        story = run.story
        checked_shard(story, games=200, quality=0.3)
        story.evaluate(trained_model(story), "random", wins=20, losses=20)
        assert await told_by_a_process()
        assert await told_by_a_process() == {}
        checked_shard(story, games=20_000, quality=0.95)
        story.evaluate(trained_model(story), "random", wins=400, losses=0)
        found = {"kind": "nas", "best_params": {"preset": "medium"}, "instead_of": run.rules.preset}
        story.write(Noted(at_s=2.0, topic=TUNED, text="medium is better", details=found))
        changed = await told_by_a_process()
        if make is FeedbackLoopController:
            budget = changed["QUALITY_FEEDBACK_ADJUSTED", None]
            assert (budget["old_multiplier"], budget["budget_multiplier"]) == (1.3, 0.9)
        elif make is GauntletFeedbackController:
            weight = changed["HYPERPARAMETER_UPDATED", "weight"]
            assert (weight["old_value"], weight["new_value"] < 1.3) == (1.3, True)
        else:
            assert changed["ARCHITECTURE_WEIGHTS_UPDATED", None]["weights"] == {"medium": 1.0}

    simulate(scenario())


# --- gauntlet and architectures -----------------------------------------------------------------------------


def test_gauntlet_feedback_tells_weakness_and_strength():
    async def scenario(run, ear, runtime, daemon):
        story = run.story
        model = trained_model(story)
        story.evaluate(model, "random", wins=20, losses=20)
        done = {"config_key": "square8_2p", "model_id": model, "model_path": "", "elo": 0.0, "win_rate": 0.5}
        await ear.router.publish("EVALUATION_COMPLETED", {**done, "games_played": 40}, "test")
        told = ear.take()
        assert set(told) == {"EVALUATION_COMPLETED", "HYPERPARAMETER_UPDATED"}
        changed = told["HYPERPARAMETER_UPDATED"]
        assert (changed["param_name"], changed["new_value"]) == ("weight", 1.3)
        assert run.curves.feedback(story.state).weight == 1.3
        story.evaluate(model, "random", wins=400, losses=0)
        story.evaluate(model, "heuristic", wins=90, losses=10)
        await runtime.sleep(601.0)
        told = [payload for name, payload in ear.events if name == "HYPERPARAMETER_UPDATED"]
        values = {payload["param_name"]: payload["new_value"] for payload in told}
        in_force = run.curves.feedback(story.state)
        assert values == {"exploration": in_force.exploration, "weight": in_force.weight}
        assert in_force.exploration == 0.8
        assert "90% against the heuristic" in told[0]["reason"]

    with_daemon(GauntletFeedbackController, scenario)


def test_what_is_told_of_sizes_is_what_the_next_trainings_go_by():
    def trained_sizes(run):
        return {tuned_rules(run.story.state, run.rules).preset: 1.0}

    async def scenario(run, ear, runtime, daemon):
        await runtime.sleep(1.0)
        assert ear.take()["ARCHITECTURE_WEIGHTS_UPDATED"]["weights"] == trained_sizes(run)
        # A comparison alone changes nothing: only a match on fresh games puts a size in force.
        scores = {"small": 0.5, "medium": 0.62, "large": 0.41}
        run.story.write(Noted(at_s=1.0, topic="architecture", text="searched", details={"scores": scores}))
        await runtime.sleep(61.0)
        assert "ARCHITECTURE_WEIGHTS_UPDATED" not in ear.take()
        found = {"kind": "nas", "best_params": {"preset": "medium"}, "instead_of": run.rules.preset}
        run.story.write(Noted(at_s=2.0, topic=TUNED, text="medium is better", details=found))
        await runtime.sleep(61.0)
        assert ear.take()["ARCHITECTURE_WEIGHTS_UPDATED"]["weights"] == trained_sizes(run) == {"medium": 1.0}
        assert daemon.weights("square8_2p") == {"medium": 1.0}
        dropped = {**found, "best_params": {}, "dropped": {"preset": "medium"}, "reason": "it lost"}
        run.story.write(Noted(at_s=3.0, topic=TUNED, text="medium is dropped", details=dropped))
        await runtime.sleep(61.0)
        assert ear.take()["ARCHITECTURE_WEIGHTS_UPDATED"]["weights"] == trained_sizes(run)
        assert daemon.weights("square8_2p") == {run.rules.preset: 1.0}

    with_daemon(ArchitectureFeedback, scenario)


def test_the_scheduler_shows_the_weights_of_sizes_that_it_heard():
    signals, weights = ConfigSignals(), {"medium": 1.0}
    told = {"config_key": "square8_2p", "weights": weights, "long": list(range(1000))}
    signals.note(RouterEvent("ARCHITECTURE_WEIGHTS_UPDATED", told))
    (heard,) = signals.of("square8_2p").values()
    assert heard["weights"] == weights
    assert "long" not in heard


# --- trends -------------------------------------------------------------------------------------------------


def make_analysis(*, router, runtime, situations):
    orchestrator = MetricsAnalysisOrchestrator(router=router, runtime=runtime, situations=situations)
    return MetricsAnalysisDaemon(router=router, runtime=runtime, orchestrator=orchestrator)


def test_a_plateau_is_told_when_it_begins_and_when_it_grows():
    async def scenario(run, ear, runtime, daemon):
        on_a_plateau(run.story)
        await runtime.sleep(31.0)
        told = ear.take()
        assert told["PLATEAU_DETECTED"]["plateau_type"] == "level 1"
        assert told["METRICS_UPDATED"]["metric_name"] == "model.held_loss"
        await runtime.sleep(600.0)
        assert ear.take() == {}
        for _ in range(5):
            reject(run.story, trained_model(run.story))
        await runtime.sleep(31.0)
        assert ear.take()["PLATEAU_DETECTED"]["plateau_type"] == "level 2"
        assert "refused" in daemon.health_check().details["plateaus"]["square8_2p"]

    with_daemon(make_analysis, scenario)


async def test_metrics_are_recorded_from_events_and_from_calls_and_analyzed():
    orchestrator = wire_metrics_events()
    assert orchestrator is get_metrics_orchestrator()
    for step in range(20):
        record_metric("loss", 2.0 - 0.05 * step, "hex8_2p")
    heard = []
    get_router().subscribe("METRICS_UPDATED", heard.append, "test")
    record_metric("other", 1.0)
    async with asyncio.timeout(60):
        while not heard:  # the points come back as events, in order
            await asyncio.sleep(0.01)
    found = analyze_metrics("loss", "hex8_2p")["loss/hex8_2p"]
    assert found.direction is TrendDirection.IMPROVING
    assert found.points == 20  # its own event is not counted again
    assert analyze_metrics("nothing") == {}


@pytest.mark.parametrize(
    ("name", "higher_is_better"),
    [
        ("age", False),
        ("data.age", False),
        ("games_age", False),
        ("held_loss", False),
        ("coverage", True),
        ("win_average", True),
        ("gpu.usage", True),
    ],
)
def test_which_way_is_better_follows_from_the_last_word_of_the_name(name, higher_is_better):
    metrics = MetricsAnalysisOrchestrator()
    assert metrics.record(name, 1.0).higher_is_better is higher_is_better


def test_numbers_of_events_become_series_and_there_are_not_too_many():
    async def scenario():
        ear, runtime = Ear(), SimulatedRuntime()
        orchestrator = MetricsAnalysisOrchestrator(
            router=ear.router, runtime=runtime, situations=Run().situations
        )
        orchestrator.wire()
        for step in range(12):
            progress = {"config_key": "hex8_2p", "job_id": "j", "epoch": step, "train_loss": 3.0 - step / 10}
            await ear.router.publish("TRAINING_PROGRESS", progress, "trainer")
            await runtime.sleep(10.0)
        assert orchestrator.analyze("training.loss")["training.loss/hex8_2p"].points == 12
        for number in range(METRICS_MAX + 5):
            orchestrator.record(f"series {number}", 1.0)
        assert orchestrator.get_metrics()["series"] == METRICS_MAX

    simulate(scenario())


def test_the_fields_that_become_series_are_in_the_catalog():
    assert NUMBERS.keys() <= set(heard_by("metrics_orchestrator"))
    for event, fields in NUMBERS.items():
        assert fields.keys() <= {field.name for field in CATALOG[event].fields}, event


def test_the_watchdog_tells_a_weaker_champion_and_when_it_is_over():
    async def scenario(run, ear, runtime, daemon):
        story = run.story
        strong, weak = trained_model(story), trained_model(story)
        story.evaluate(strong, "random", wins=380, losses=20)
        promote(story, strong)
        await runtime.sleep(301.0)
        assert ear.take() == {}
        story.evaluate(weak, "random", wins=300, losses=100)
        promote(story, weak)
        await runtime.sleep(301.0)
        told = ear.take()
        assert told["REGRESSION_DETECTED"]["severity"] == "critical"
        assert told["REGRESSION_CRITICAL"]["elo_drop"] > 75
        assert told["TRAINING_ROLLBACK_NEEDED"]["model_id"] == weak
        assert "critical" in str(daemon.health_check().details["regressions"])
        await runtime.sleep(900.0)
        assert ear.take() == {}  # said once
        roll_back(story, weak, strong)
        await runtime.sleep(301.0)
        assert ear.take()["REGRESSION_CLEARED"]["model_id"] == strong
        assert daemon.regressions() == {}

    with_daemon(ModelPerformanceWatchdog, scenario)
