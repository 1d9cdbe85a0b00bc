"""Quality of games: scores from the reports, refusals, and what the monitor tells."""

import pytest
from feedback_kit import Ear, Run, checked_shard
from hypothesis import given
from hypothesis import strategies as st
from learning_story import Story, artifact

from ringrift.coordination.quality_monitor_daemon import (
    QualityMonitorDaemon,
    QualityState,
    passes_gate,
    quality_gate,
    quality_of,
    quality_view,
    refuse_shard,
)
from ringrift.learning.facts.records import Shard, ShardState
from ringrift.learning.plan.orders import validate_order
from ringrift.testing.simulation import SimulatedRuntime, simulate


def shard(*, games=100, refused=0, quality=0.75, state=ShardState.CHECKED):
    return Shard(
        digest="d", job_id="j", name="s.db", state=state, games=games, rows=games * 20, refused=refused,
        model=None, simulations=32, worker="w", made_s=0.0, cpu_s=1.0, quality=quality,
    )  # fmt: skip


def test_the_view_weighs_shards_by_their_games():
    view = quality_view([shard(games=300, quality=0.9), shard(games=100, quality=0.5, refused=4)])
    assert view.score == 0.8
    assert view.state is QualityState.GOOD
    assert (view.high_quality_games, view.low_quality_games, view.refused) == (300, 100, 4)


def test_nothing_scored_is_unknown_and_unknown_passes_every_gate():
    for view in (quality_view([]), quality_view([shard(quality=None)])):
        assert view.score is None
        assert view.state is QualityState.UNKNOWN
        assert passes_gate("hexagonal_4p", view)


@pytest.mark.parametrize("hours", [0, 3, 30, 3000])
def test_a_score_does_not_decay_below_the_gates_with_time(hours):
    story = Story("hexagonal_4p")
    checked_shard(story, games=500, quality=0.95)
    story.now_s += hours * 3600.0
    view = quality_of(story.state)
    assert view.score == 0.95 > quality_gate("hexagonal_4p")
    assert passes_gate("hexagonal_4p", view)


def test_a_shard_is_refused_for_a_reason_and_only_when_it_is_known():
    assert refuse_shard(shard()) is None
    assert refuse_shard(shard(quality=None)) is None
    assert refuse_shard(shard(games=5, quality=0.0)) is None  # too few games to condemn it
    assert "60 of its 100 games" in refuse_shard(shard(games=40, refused=60))
    assert "below 0.30" in refuse_shard(shard(quality=0.2))
    assert refuse_shard(shard(quality=0.2, state=ShardState.UNCHECKED)) is None


@given(st.floats(0.3, 1), st.integers(0, 10_000), st.integers(0, 10_000))
def test_a_shard_that_mostly_agrees_with_the_rules_is_never_refused(quality, games, refused):
    found = refuse_shard(shard(games=games, refused=min(refused, games), quality=quality))
    assert found is None


def monitored(scenario, *configs):
    """Run *scenario* with a monitor on a run of its own, in simulated time."""

    async def whole():
        run, ear, runtime = Run(*configs), Ear(), SimulatedRuntime()
        monitor = QualityMonitorDaemon(router=ear.router, runtime=runtime, situations=run.situations)
        await monitor.start()
        try:
            await scenario(run, ear, runtime, monitor)
        finally:
            await monitor.stop()

    simulate(whole())


def test_the_monitor_tells_a_score_a_fall_and_the_way_back():
    async def scenario(run, ear, runtime, monitor):
        checked_shard(run.story, games=200, quality=0.85)
        await runtime.sleep(16.0)
        told = ear.take()
        assert told["QUALITY_SCORE_UPDATED"]["quality_score"] == 0.85
        assert "previous_score" not in told["QUALITY_SCORE_UPDATED"]
        assert told["HIGH_QUALITY_DATA_AVAILABLE"]["high_quality_count"] == 200
        assert "LOW_QUALITY_DATA_WARNING" not in told

        await runtime.sleep(600.0)
        assert ear.take() == {}  # nothing changed, nothing is said

        checked_shard(run.story, games=2000, quality=0.42)
        await runtime.sleep(61.0)
        told = ear.take()
        assert told["QUALITY_DEGRADED"]["threshold"] == 0.6
        assert told["LOW_QUALITY_DATA_WARNING"]["low_quality_count"] == 2000
        assert "QUALITY_PENALTY_APPLIED" not in told, "whoever applies one tells it"
        assert monitor.get_quality("square8_2p").state is QualityState.POOR
        assert "square8_2p" in monitor.health_check().message

        checked_shard(run.story, games=100_000, quality=0.8)
        await runtime.sleep(61.0)
        assert ear.take()["QUALITY_SCORE_UPDATED"]["quality_score"] > 0.7
        assert monitor.health_check().message != "games of square8_2p are poor"

    monitored(scenario)


def test_a_check_by_the_rules_is_told_from_begin_to_end_with_what_it_refused():
    async def scenario(run, ear, runtime, monitor):
        story = run.story
        story.play(games=50, rows=1000)
        job = story.issue("validate", validate_order(story.state, story.state.unchecked()))
        await runtime.sleep(16.0)
        assert ear.take()["PARITY_VALIDATION_STARTED"]["games_planned"] == 50
        story.fail(job, "the disk is full")
        await runtime.sleep(16.0)
        assert ear.take()["QUALITY_CHECK_FAILED"]["reason"] == "the disk is full"

        job = story.issue("validate", validate_order(story.state, story.state.unchecked()))
        await runtime.sleep(16.0)
        digest = story.state.unchecked()[0].digest
        counts = {"shard": digest, "games": 50, "refused": 10, "rows": 800, "quality": 0.7}
        story.end(job, artifact("report", "r", **counts, reasons={"illegal_move": 10}))
        await runtime.sleep(16.0)
        told = ear.take()
        assert told["PARITY_VALIDATION_COMPLETED"]["games_failed"] == 10
        assert told["PARITY_FAILURE_RATE_CHANGED"]["new_rate"] == pytest.approx(0.2)
        assert "10 illegal_move" in told["DATA_QUALITY_ALERT"]["message"]

    monitored(scenario)


def test_a_training_that_waits_because_all_new_games_are_poor_is_told_once_until_good_ones_come():
    async def scenario(run, ear, runtime, monitor):
        story = run.story
        rows = story.state.bucket_rules.rows_first_min
        while story.state.bucket.available < story.state.bucket_rules.chunk_steps or story.state.rows < rows:
            checked_shard(story, games=1000, quality=0.1)
        await runtime.sleep(16.0)
        blocked = ear.take()["TRAINING_BLOCKED_BY_QUALITY"]
        assert (blocked["quality_score"], blocked["threshold"]) == (pytest.approx(0.1), 0.3)
        assert "below 0.30" in blocked["reason"]
        await runtime.sleep(600.0)
        assert "TRAINING_BLOCKED_BY_QUALITY" not in ear.take()
        checked_shard(story, games=1000, quality=0.8)
        await runtime.sleep(60.0)
        assert "TRAINING_BLOCKED_BY_QUALITY" not in ear.take()

    monitored(scenario)


def test_a_refused_shard_is_named_once_with_its_worker():
    async def scenario(run, ear, runtime, monitor):
        digest = checked_shard(run.story, games=100, quality=0.1, worker="gpu-7")
        await runtime.sleep(16.0)
        told = ear.take()
        assert "gpu-7" in told["DATA_QUALITY_ALERT"]["message"]
        assert "SELFPLAY_TARGET_UPDATED" not in told, "the plan wants what it wants, and tells it"
        assert monitor.refused_shards("square8_2p").keys() == {digest}
        await runtime.sleep(600.0)
        assert "DATA_QUALITY_ALERT" not in ear.take()

    monitored(scenario)


def test_a_question_is_answered_at_once_even_if_there_is_nothing_to_say():
    async def scenario(run, ear, runtime, monitor):
        ask = {"config_key": "square8_2p", "reason": "a person wants to know"}
        await ear.router.publish("QUALITY_CHECK_REQUESTED", ask, "test")
        assert "no game of this config was scored" in ear.take()["QUALITY_CHECK_FAILED"]["reason"]
        checked_shard(run.story, quality=0.7)
        await ear.router.publish("QUALITY_CHECK_REQUESTED", ask, "test")
        assert ear.take()["QUALITY_SCORE_UPDATED"]["quality_score"] == 0.7
        await ear.router.publish("QUALITY_CHECK_REQUESTED", {**ask, "config_key": "hex8_2p"}, "test")
        assert set(ear.take()) == {"QUALITY_CHECK_REQUESTED"}  # no such config here

    monitored(scenario)
