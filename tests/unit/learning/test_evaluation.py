"""Evaluation as others see it: requests, results, tournaments, and what is told of ratings."""

import pytest
from feedback_kit import Ear, Run, promote, trained_model

from ringrift.coordination.evaluation_daemon import (
    EloService,
    EvaluationDaemon,
    TournamentDaemon,
    gauntlet_result,
    get_evaluation_daemon,
    look,
    trend_of,
    velocity,
)
from ringrift.coordination.run_coordinator import get_open_run
from ringrift.coordination.stability_heuristic import StabilityLevel, assess_stability, is_promotion_safe
from ringrift.coordination.tournament_daemon import TournamentRules, ladder_baseline, tournament_requests
from ringrift.errors import ConfigError
from ringrift.health.run_status import Curve
from ringrift.learning.facts.facts import Noted, Recalled
from ringrift.learning.judging.ratings import Pool
from ringrift.learning.plan.evaluation import REQUEST_S_MAX, WANTED_TOPIC, request_details, wanted_games
from ringrift.learning.plan.orders import outlook
from ringrift.learning.plan.plan import plan
from ringrift.learning.situation import Situations
from ringrift.testing.simulation import ManualRuntime

HOUR_S = 3600.0


class World:
    """A run, a router that remembers, and a clock that follows the story."""

    def __init__(self, *configs):
        self.run, self.ear, self.runtime = Run(*configs), Ear(), ManualRuntime()
        self.runtime.wall_offset_s = 0.0

    def daemon(self, kind, **given):
        return kind(router=self.ear.router, runtime=self.runtime, situations=self.run.situations, **given)

    def tick(self):
        self.run.story.now_s += 1.0
        self.runtime.clock_s = self.run.story.now_s

    def champion(self, config="square8_2p"):
        story = self.run.stories[config]
        model = trained_model(story)
        story.evaluate(model, "random", wins=60, losses=4)
        promote(story, model)
        self.tick()
        return model


@pytest.fixture
def world():
    return World()


# --- requests -----------------------------------------------------------------------------------------


async def test_a_request_becomes_a_wish_that_games_fulfil(world):
    model, daemon = world.champion(), world.daemon(EvaluationDaemon)
    wishes = await daemon.request_evaluation("square8_2p", opponents=["mcts:32"], games=64)
    assert [(request.model, request.opponent, request.games) for request in wishes] == [
        (model, "mcts:32", 64)
    ]
    assert "64 games of" in daemon.get_queue()["square8_2p"][0]
    again = await daemon.request_evaluation("square8_2p", opponents=["mcts:32"], games=64)
    assert again == wishes
    assert len([note for note in world.run.story.state.notes if note.topic == WANTED_TOPIC]) == 1
    world.tick()
    world.run.story.evaluate(model, "mcts:32", wins=10, losses=30, purpose="rating")
    state = world.run.story.state
    assert [request.games for request in wanted_games(state, state.last_s)] == [24]
    world.run.story.evaluate(model, "mcts:32", wins=10, losses=14, purpose="rating")
    assert wanted_games(state, state.last_s) == []


async def test_requests_that_nobody_could_fulfil_are_refused_with_the_reason(world):
    daemon = world.daemon(EvaluationDaemon)
    with pytest.raises(ConfigError, match="no model"):
        await daemon.request_evaluation("square8_2p")
    world.champion()
    with pytest.raises(ConfigError, match="no model"):
        await daemon.request_evaluation("square8_2p", "unknown")
    with pytest.raises(ConfigError, match="needs games"):
        await daemon.request_evaluation("square8_2p", games=0)
    with pytest.raises(
        ConfigError, match="0 requests of square8_2p are open and 29 more were made; 20 are the limit"
    ):
        await daemon.request_evaluation("square8_2p", opponents=[f"mcts:{n}" for n in range(1, 30)])


def test_wishes_end_after_a_day_and_unknown_models_are_no_wish(world):
    model, state = world.champion(), world.run.story.state
    at_s = state.last_s
    world.run.story.write(
        Noted(
            at_s=at_s,
            topic=WANTED_TOPIC,
            text="t",
            details=request_details(model, ["random", model], games=5),
        )
    )
    world.run.story.write(
        Noted(at_s=at_s, topic=WANTED_TOPIC, text="t", details=request_details("gone", ["random"], games=5))
    )
    assert [request.opponent for request in wanted_games(state, at_s)] == ["random"]
    assert wanted_games(state, at_s + REQUEST_S_MAX + 1) == []


# --- results --------------------------------------------------------------------------------------------


def test_a_gauntlet_without_games_has_not_passed(world):
    model = trained_model(world.run.story)
    result = gauntlet_result(world.run.story.state, model)
    assert not result.passed
    assert not result.passes_baseline_gating
    assert result.to_dict()["failure_reason"] == "no games were played"


def test_a_gauntlet_says_which_baselines_failed(world):
    model, story = trained_model(world.run.story), world.run.story
    story.evaluate(model, "random", wins=62, losses=2)
    story.evaluate(model, "heuristic", wins=10, losses=30)
    story.evaluate(model, "mcts:32", wins=22, losses=18)
    result = gauntlet_result(story.state, model)
    assert result.total_games == 144
    assert result.thresholds_met == {"random": True, "heuristic": False, "mcts:32": True}
    assert result.failed_baselines == ("heuristic",)
    assert not result.passed
    assert result.elo_interval[0] < result.estimated_elo < result.elo_interval[1]


def test_a_candidate_does_not_inherit_the_results_of_its_predecessor(world):
    story = world.run.story
    first = trained_model(story)
    story.evaluate(first, "random", wins=0, losses=64)
    second = trained_model(story)
    assert gauntlet_result(story.state, second).total_games == 0
    assert world.daemon(EvaluationDaemon).get_result("square8_2p", first).total_games == 64
    assert world.daemon(EvaluationDaemon).get_result("unknown", first) is None


# --- ratings ----------------------------------------------------------------------------------------------


def test_the_service_ranks_and_expects(world):
    story, service = world.run.story, EloService(situations=world.run.situations)
    first = world.champion()
    second = trained_model(story)
    story.evaluate(second, first, wins=48, losses=16)
    board = service.get_leaderboard("square8_2p")
    assert [entry.participant_id for entry in board] == [second, first, "random"]
    assert [e.participant_id for e in service.get_leaderboard("square8_2p", 1, baselines=False)] == [second]
    assert 0.65 < service.get_expected_score(second, first, "square8_2p") < 0.8
    unknown = service.get_rating("nobody", "square8_2p")
    assert (unknown.rating, unknown.is_provisional) == (1500.0, True)
    assert not service.get_rating(first, "square8_2p").is_provisional
    assert service.get_pools("square8_2p") == [Pool(2, 32)]
    assert service.get_rating_history("square8_2p")[-1].model == first


def test_without_a_run_there_are_no_ratings():
    with pytest.raises(ConfigError, match="no run"):
        EloService(situations=Situations()).get_leaderboard("square8_2p")


async def test_new_ratings_are_told_once(world):
    daemon, story = world.daemon(EvaluationDaemon), world.run.story
    first = world.champion()
    await daemon.start()  # what was before is no news
    assert world.ear.take() == {}
    second = trained_model(story)
    story.evaluate(second, first, wins=50, losses=14)
    promote(story, second)
    completed = {"config_key": "square8_2p", "success": True, "model_path": f"blob:{second}"}
    await world.ear.router.publish("TRAINING_COMPLETED", completed, "controller")
    told = world.ear.take()
    assert told["ELO_UPDATED"]["model_id"] in (first, second)
    assert told["ELO_SIGNIFICANT_CHANGE"]["model_id"] == second
    assert told["ELO_SIGNIFICANT_CHANGE"]["elo_delta"] > 100
    await world.ear.router.publish("TRAINING_COMPLETED", {**completed, "epochs": 2}, "controller")
    assert set(world.ear.take()) == {"TRAINING_COMPLETED"}
    await daemon.stop()


def test_a_recall_beside_a_new_match_is_no_standstill(world):
    """As many matches count as before, but they are others."""
    story, champion = world.run.story, world.champion()
    before, _ = look(None, story.state, [])
    assert look(before, story.state, []) == (before, [])
    world.tick()
    story.write(Recalled(at_s=story.now_s, recall_id="r", reason="bad memory", until_s=story.now_s))
    story.evaluate(champion, "random", wins=33, losses=31)
    now, told = look(before, story.state, [])
    assert now.ratings[champion] < before.ratings[champion] - 100
    assert [name for name, _ in told] == ["ELO_UPDATED", "ELO_SIGNIFICANT_CHANGE"]


def curve(*points):
    return [
        Curve(model=str(at), at_s=1.7e9 + at, rows=0, rating=rating, low=rating, high=rating)
        for at, rating in points
    ]


def test_velocity_is_right_on_real_clocks():
    """A slope from raw epoch seconds loses its digits within a minute."""
    assert velocity(curve((0, 1000), (30, 1009), (60, 1018))) == pytest.approx(1080, rel=1e-6)
    assert velocity(curve((0, 1000), (60, 1018))) is None
    assert [trend_of(each) for each in (0.5, 30.0, -30.0)] == ["plateau", "improving", "declining"]


async def test_a_model_on_too_few_nodes_is_shown_and_told_until_it_arrives(world):
    daemon = world.daemon(EvaluationDaemon)
    await daemon.start()
    missing = {"model_path": "blob:abc", "required_nodes": 3, "actual_nodes": 1}
    await world.ear.router.publish("DISTRIBUTION_INCOMPLETE", missing, "distribution")
    assert world.ear.take()["MODEL_EVALUATION_BLOCKED"]["reason"] == "on 1 of 3 nodes"
    assert daemon.get_waiting_for_distribution() == {"blob:abc": "on 1 of 3 nodes"}
    arrived = {"models_distributed": 1, "target_nodes": ["a"], "duration_seconds": 1.0}
    await world.ear.router.publish("MODEL_DISTRIBUTION_COMPLETE", arrived, "somebody who names no model")
    assert daemon.get_waiting_for_distribution() == {"blob:abc": "on 1 of 3 nodes"}
    arrived["model_id"] = "abc"
    await world.ear.router.publish("MODEL_DISTRIBUTION_COMPLETE", arrived, "distribution")
    assert daemon.get_waiting_for_distribution() == {}
    await daemon.stop()


async def test_a_failing_evaluation_makes_the_daemon_degraded(world):
    daemon, story = world.daemon(EvaluationDaemon), world.run.story
    model = trained_model(story)
    await daemon.start()
    assert daemon.health_check().healthy
    job = [job.job_id for job in story.state.open_jobs.values()]
    assert job == []
    story.evaluate(model, "random", wins=5, losses=5)
    story.state.failures["evaluate"].in_a_row, story.state.failures["evaluate"].error = 2, "no opponent"
    assert "no opponent" in daemon.health_check().message
    await daemon.stop()


# --- tournaments --------------------------------------------------------------------------------------------


def test_a_ladder_match_is_due_by_time_and_with_the_nearest_baseline(world):
    champion, story = world.champion(), world.run.story
    rules, state = TournamentRules(), story.state
    assert tournament_requests(state, story.now_s, rules) == []
    later = story.now_s + HOUR_S
    (request,) = tournament_requests(state, later, rules)
    assert request.details == request_details(champion, ["random"], games=40)
    story.evaluate(champion, "mcts:32", wins=30, losses=34, purpose="rating")
    assert ladder_baseline(state, champion) == "mcts:32"
    assert tournament_requests(state, story.now_s + 60, rules) == []


SWINGING, STEADY = (30, 60, 31, 62, 32, 63), (56,) * 6


def champions_with(world, *wins):
    """Champions one after the other, each with so many of 64 games won against random."""
    story, model = world.run.story, ""
    for won in wins:
        before, model = model, trained_model(story)
        story.evaluate(model, "random", wins=won, losses=64 - won)
        promote(story, model)
    if wins == SWINGING:  # nothing else is to be played then
        story.evaluate(model, before, wins=60, losses=20, purpose="rollback")
    story.evaluate(model, "random", wins=wins[-1], losses=64 - wins[-1], purpose="rating")
    world.tick()


@pytest.mark.parametrize(("wins", "due_min"), [(SWINGING, 30), (STEADY, 60)], ids=["swinging", "steady"])
async def test_ratings_that_swing_are_placed_twice_as_often_while_the_daemon_runs(world, wins, due_min):
    champions_with(world, *wins)
    story, daemon = world.run.story, world.daemon(TournamentDaemon)
    promoted = {"config_key": "square8_2p", "model_id": "m", "model_path": "p"}

    async def requests_after(minutes, number):
        world.runtime.clock_s = story.now_s + 60.0 * minutes
        await world.ear.router.publish("MODEL_PROMOTED", {**promoted, "elo": float(number)}, "controller")
        return daemon.requests

    assert await requests_after(61, 0) == 0, "without it, nobody asks"
    world.runtime.clock_s = story.now_s
    await daemon.start()
    assert await requests_after(due_min - 1, 1) == 0
    assert await requests_after(due_min + 1, 2) == 1
    (request,) = [note for note in story.state.notes if note.topic == WANTED_TOPIC]
    swings = "as ratings are volatile: volatility 1.00"
    assert (swings in request.text) is (wins == SWINGING)
    # The plan orders it and says why, with the number; its own facts say it again in a replay.
    now_s = world.runtime.now_s()
    made = plan(outlook(story.state, world.run.rules, world.run.curves, now_s=now_s))
    (said,) = [each.reason for each in made.explanations if each.stage == "evaluate"]
    assert (swings in said) is (wins == SWINGING)
    told = daemon.health_check().details["stability"]["square8_2p"]
    assert told.startswith("volatile: volatility 1.00" if wins == SWINGING else "stable: volatility 0.")
    await daemon.stop()


def test_how_steady_the_ratings_of_a_config_are_is_asked_by_its_name(world):
    assert is_promotion_safe("square8_2p"), "nothing is known of it"
    champions_with(world, *SWINGING)
    state = world.run.story.state
    get_open_run().loop = world.run
    found = assess_stability("square8_2p")
    assert found == assess_stability(world.run.curves.of(state), now_s=state.last_s)
    assert (found.samples, found.level) == (6, StabilityLevel.VOLATILE)
    assert not is_promotion_safe("square8_2p")


async def test_the_daemon_asks_once_and_not_before_the_wish_is_fulfilled(world):
    world.champion()
    daemon = world.daemon(TournamentDaemon)
    await daemon.start()
    world.runtime.clock_s += 2 * HOUR_S
    promoted = {"config_key": "square8_2p", "model_id": "m", "model_path": "p", "elo": 1.0}
    await world.ear.router.publish("MODEL_PROMOTED", promoted, "controller")
    await world.ear.router.publish("MODEL_PROMOTED", {**promoted, "elo": 2.0}, "controller")
    assert daemon.requests == 1
    await daemon.stop()


async def test_the_daemon_that_runs_is_the_one_that_is_asked(world):
    daemon = world.daemon(EvaluationDaemon)
    await daemon.start()
    assert get_evaluation_daemon() is daemon
    await daemon.stop()
    assert not EvaluationDaemon.has_instance()
