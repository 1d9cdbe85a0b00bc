"""Curriculum weights: one table, a file others can read, and what is told when effort moves."""

import json

import pytest
from feedback_kit import Ear, Run, promote, reject, trained_model
from hypothesis import given
from hypothesis import strategies as st

from ringrift.coordination.curriculum_integration import (
    CurriculumIntegration,
    CurriculumIntegrationDaemon,
    curriculum_file,
    export_curriculum_weights,
    get_curriculum_weight,
    load_curriculum_weights,
    tier_of,
)
from ringrift.coordination.feedback_loop_controller import wire_curriculum_events
from ringrift.errors import ConfigError
from ringrift.testing.simulation import ManualRuntime, SimulatedRuntime, simulate

CONFIGS = ("square8_2p", "hex8_2p", "connect_four_2p")


# --- the file ---------------------------------------------------------------------------------------------


def test_what_is_written_is_read_and_an_unknown_config_counts_1():
    export_curriculum_weights({"hex8_2p": 1.4, "square8_2p": 0.6})
    assert load_curriculum_weights() == {"hex8_2p": 1.4, "square8_2p": 0.6}
    assert get_curriculum_weight("hex8_2p") == 1.4
    assert get_curriculum_weight("square19_4p") == 1.0
    content = json.loads(curriculum_file().read_text())
    assert set(content) == {"weights", "updated_at", "updated_at_iso"}
    assert [path.name for path in curriculum_file().parent.glob("*.part")] == []


def test_a_file_of_more_than_two_hours_is_ignored(tmp_path):
    async def scenario():
        runtime, path = SimulatedRuntime(), tmp_path / "w.json"
        export_curriculum_weights({"hex8_2p": 1.4}, path, runtime=runtime)
        await runtime.sleep(7_190.0)
        assert load_curriculum_weights(path, runtime=runtime) == {"hex8_2p": 1.4}
        await runtime.sleep(20.0)
        assert load_curriculum_weights(path, runtime=runtime) == {}

    simulate(scenario())


def test_a_file_from_the_future_is_ignored(tmp_path):
    """Its age is not known: it would be believed until that time and two hours more."""
    path, ahead, runtime = tmp_path / "w.json", ManualRuntime(), ManualRuntime()
    ahead.advance(3_600.0)
    export_curriculum_weights({"hex8_2p": 1.4}, path, runtime=ahead)
    assert load_curriculum_weights(path, runtime=runtime) == {}
    runtime.advance(3_599.0)  # no two clocks are the same to the second
    assert load_curriculum_weights(path, runtime=runtime) == {"hex8_2p": 1.4}


def test_a_reader_takes_nothing_from_a_missing_file_and_a_writer_no_nonsense(tmp_path):
    assert load_curriculum_weights(tmp_path / "nothing.json") == {}
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="above 0"):
            export_curriculum_weights({"hex8_2p": wrong}, tmp_path / "w.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=10,
)


@given(st.one_of(st.binary(max_size=60), JSON.map(lambda value: json.dumps(value).encode())))
def test_a_reader_survives_any_content(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("any") / "w.json"
    path.write_bytes(content)
    assert load_curriculum_weights(path) == {}


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=4), JSON)
def test_only_weights_that_are_numbers_above_0_are_believed(tmp_path_factory, weights, updated):
    path = tmp_path_factory.mktemp("odd") / "w.json"
    path.write_text(json.dumps({"weights": weights, "updated_at": updated}))
    assert all(value > 0 for value in load_curriculum_weights(path).values())


# --- the coordinator --------------------------------------------------------------------------------------


def test_tiers():
    assert tier_of(None) == "unrated"
    assert [tier_of(r) for r in (400, 800, 1200, 1500, 1650, 1800, 2000)] == [
        *("beginner", "novice", "intermediate", "advanced", "production", "expert", "master")
    ]


def integrated(scenario, tmp_path):
    async def whole():
        run, ear, runtime = Run(*CONFIGS), Ear(), SimulatedRuntime()
        path = tmp_path / "w.json"
        parts = {"router": ear.router, "runtime": runtime, "situations": run.situations}
        integration = CurriculumIntegration(path=path, **parts)
        integration.wire()
        daemon = CurriculumIntegrationDaemon(router=ear.router, runtime=runtime, integration=integration)
        await daemon.start()
        try:
            await scenario(run, ear, runtime, path)
        finally:
            await daemon.stop()
            integration.unwire()

    simulate(whole())


def test_the_weights_are_a_view_of_the_shares_and_the_file_says_the_same(tmp_path):
    async def scenario(run, ear, runtime, path):
        await runtime.sleep(1.0)
        assert "CURRICULUM_REBALANCED" not in ear.take()  # equal shares: nothing moved
        first = load_curriculum_weights(path, runtime=runtime)
        assert first == dict.fromkeys(CONFIGS, 1.0)

        run.fixed_shares = {"square8_2p": 0.6, "hex8_2p": 0.3, "connect_four_2p": 0.1}
        change = {"config_key": "square8_2p", "velocity": 9.0, "previous_velocity": 1.0, "trend": "improving"}
        await ear.router.publish("ELO_VELOCITY_CHANGED", change, "test")
        told = ear.take()["CURRICULUM_REBALANCED"]
        assert told["weights"] == {"square8_2p": 1.8, "hex8_2p": 0.9, "connect_four_2p": 0.5}
        assert told["previous_weights"] == first
        assert told["trigger"] == "elo_velocity_changed"
        assert load_curriculum_weights(path, runtime=runtime) == told["weights"]

        await runtime.sleep(4 * 3600.0)
        assert "CURRICULUM_REBALANCED" not in ear.take()
        assert load_curriculum_weights(path, runtime=runtime) == told["weights"]  # kept fresh without news

    integrated(scenario, tmp_path)


def test_a_restart_moves_no_weights(tmp_path):
    async def scenario(run, ear, runtime, path):
        run.fixed_shares = {"square8_2p": 0.6, "hex8_2p": 0.3, "connect_four_2p": 0.1}
        await runtime.sleep(130.0)  # one look
        assert "CURRICULUM_REBALANCED" in ear.take()
        parts = {"router": ear.router, "runtime": runtime, "situations": run.situations}
        await CurriculumIntegration(path=path, **parts).judge()
        assert not {"CURRICULUM_REBALANCED", "CURRICULUM_UPDATED", "WEIGHT_UPDATED"} & ear.take().keys()

    integrated(scenario, tmp_path)


def test_a_baseline_that_is_beaten_and_a_higher_tier_are_told_once(tmp_path):
    async def scenario(run, ear, runtime, path):
        story = run.story
        first = trained_model(story)
        story.evaluate(first, "random", wins=40, losses=24)
        promote(story, first)
        await runtime.sleep(121.0)
        assert "OPPONENT_MASTERED" not in ear.take()
        second = trained_model(story)
        story.evaluate(second, "random", wins=63, losses=1)
        promote(story, second)
        await runtime.sleep(121.0)
        told = ear.take()
        assert told["OPPONENT_MASTERED"]["opponent"] == "random"
        assert told["OPPONENT_MASTERED"]["win_rate"] > 0.95
        assert told["CURRICULUM_ADVANCED"]["old_tier"] == "beginner"
        assert told["CURRICULUM_ADVANCED"]["new_tier"] in ("novice", "intermediate")
        await runtime.sleep(600.0)
        assert not {"OPPONENT_MASTERED", "CURRICULUM_ADVANCED"} & ear.take().keys()

    integrated(scenario, tmp_path)


def test_what_a_plateau_changes_is_told_by_the_feedback_loop_alone(tmp_path):
    async def scenario(run, ear, runtime, path):
        story = run.story
        promote(story, trained_model(story))
        for _ in range(5):
            reject(story, trained_model(story))
        await runtime.sleep(121.0)
        assert "EXPLORATION_BOOST" not in ear.take()

    integrated(scenario, tmp_path)


def test_without_a_run_nothing_is_told_and_wiring_twice_subscribes_once():
    ear = Ear()
    first = wire_curriculum_events(router=ear.router)
    count = len(ear.router.list_subscribers())
    first.wire()
    assert len(ear.router.list_subscribers()) == count
    assert first.is_subscribed
    assert first.health_check().healthy
    assert first.weights() == {}
