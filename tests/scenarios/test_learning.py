"""Configs learn, and everything that goes well, badly or nowhere is told and heard."""

import psutil
from guards_world import World as Nodes
from guards_world import nodes
from learning_run import CONFIG, FOLLOWER, lived
from learning_world import BASELINES
from recording import scenario
from test_data_distribution import champion

from ringrift.coordination.evaluation_daemon import EvaluationDaemon
from ringrift.data.protection.distribution import DistributionDaemon, DistributionRules
from ringrift.learning.judging.promotion import PromotionRules

# Moderate, severe, critical, and between them minor ones: their band is narrow beside the error of a rating.
DROPS = (30.0, 48.0, 34.0, 70.0, 38.0, 130.0)


def losses(policy):
    return {"train": {"policy": policy, "value": 0.5}, "held": {"policy": policy + 0.1, "value": 0.6}}


@scenario(
    "ADAPTIVE_PARAMS_CHANGED",
    "ARCHITECTURE_WEIGHTS_UPDATED",
    "BATCH_DISPATCHED",
    "BATCH_SCHEDULED",
    "CHECKPOINT_LOADED",
    "CHECKPOINT_SAVED",
    "CPU_PIPELINE_JOB_COMPLETED",
    "CROSSBOARD_PROMOTION",
    "CURRICULUM_ADVANCED",
    "CURRICULUM_REBALANCED",
    "CURRICULUM_UPDATED",
    "DATA_QUALITY_ALERT",
    "ELO_SIGNIFICANT_CHANGE",
    "ELO_UPDATED",
    "ELO_VELOCITY_CHANGED",
    "EVALUATION_COMPLETED",
    "EVALUATION_PROGRESS",
    "EVALUATION_STARTED",
    "EXPLORATION_ADJUSTED",
    "EXPORT_TRIGGERED",
    "HYPERPARAMETER_UPDATED",
    "ITERATION_COMPLETED",
    "MODEL_PROMOTED",
    "MODEL_UPDATED",
    "NPZ_COMBINATION_COMPLETE",
    "NPZ_COMBINATION_STARTED",
    "NPZ_EXPORT_COMPLETE",
    "NPZ_EXPORT_STARTED",
    "OPPONENT_MASTERED",
    "PROMOTION_CANDIDATE",
    "PROMOTION_REJECTED",
    "PROMOTION_STARTED",
    "QUALITY_CHECK_REQUESTED",
    "QUALITY_DISTRIBUTION_CHANGED",
    "QUALITY_SCORE_UPDATED",
    "REGISTRY_UPDATED",
    "SCHEDULER_REGISTERED",
    "SELFPLAY_ALLOCATION_UPDATED",
    "SELFPLAY_COMPLETE",
    "SELFPLAY_RATE_CHANGED",
    "SELFPLAY_TARGET_UPDATED",
    "TIER_PROMOTION",
    "TOURNAMENT_COMPLETED",
    "TRAINING_COMPLETED",
    "TRAINING_THRESHOLD_REACHED",
    "TRAINING_TRIGGERED",
    "WEIGHT_UPDATED",
    "WORK_QUEUED",
)
def test_two_configs_play_train_and_promote(recording, events):
    async def body(world):
        await world.until_proven(recording, *events)

    lived(body, configs=(CONFIG, FOLLOWER))


def test_how_busy_the_real_machine_is_changes_nothing_in_it(monkeypatch):
    looked = []

    async def body(world):
        for name in ("cpu_times", "disk_usage", "getloadavg", "virtual_memory"):
            monkeypatch.setattr(psutil, name, lambda *_, name=name, **__: looked.append(name))
        await world.periods(0.2)
        assert len(await world.facts()) > 10

    lived(body)
    assert looked == []


@scenario(
    "EVALUATION_FAILED",
    "NPZ_COMBINATION_FAILED",
    "QUALITY_CHECK_FAILED",
    "TRAINING_FAILED",
    "WORK_CANCELLED",
)
def test_jobs_fail_for_good(recording):
    async def body(world):
        await world.periods(0.5)
        for kind, event in {
            "evaluate": "EVALUATION_FAILED",
            "train": "TRAINING_FAILED",
            "export": "NPZ_COMBINATION_FAILED",
            "validate": "QUALITY_CHECK_FAILED",
        }.items():
            world.failing = {kind}
            await world.until_proven(recording, event)
        world.failing = set()

        async def cancelled():
            # One that ended in the same moment cannot be cancelled any more: then the next one is.
            for games in world.controller.state(CONFIG).open_of("selfplay"):
                await world.engine().queue.cancel(games.job_id, reason="not wanted")
            return not recording.lacking(("WORK_CANCELLED",))

        await world.until(cancelled, what="games are cancelled")

    lived(body)


@scenario("MODEL_CORRUPTED", "PROMOTION_FAILED")
def test_the_file_of_a_new_champion_is_lost(recording):
    async def body(world):
        world.keeps_files = False
        await world.until_proven(recording, "MODEL_CORRUPTED", "PROMOTION_FAILED")

    lived(body)


@scenario(
    "METRICS_UPDATED",
    "RECOVERY_COMPLETED",
    "RECOVERY_FAILED",
    "RECOVERY_INITIATED",
    "TRAINING_EARLY_STOPPED",
    "TRAINING_LOSS_ANOMALY",
    "TRAINING_LOSS_TREND",
    "TRAINING_ROLLBACK_COMPLETED",
)
def test_the_loss_of_a_training_jumps_and_training_goes_back_to_the_champion(recording):
    async def body(world):
        world.loss = losses(2.0)
        await world.until(lambda: len(world.controller.state(CONFIG).models) > 8, what="eight trainings")
        world.loss = {**losses(9.0), "ended": "no better loss for 5 looks", "best_step": 10}
        world.after_training = lambda: world.failing.add("train")
        await world.until_proven(recording, "RECOVERY_INITIATED", "TRAINING_ROLLBACK_COMPLETED")
        await world.until_proven(recording, "RECOVERY_FAILED")
        world.loss, world.after_training = losses(2.0), lambda: None
        world.failing.clear()
        await world.until_proven(recording, "RECOVERY_COMPLETED")

    lived(body)


@scenario("CURRICULUM_ADVANCEMENT_NEEDED", "EXPLORATION_BOOST", "PLATEAU_DETECTED")
def test_trainings_bring_nothing_any_more(recording):
    async def body(world):
        await world.until(lambda: world.controller.state(CONFIG).champion, what="a champion")
        world.gain = -30.0
        await world.until_proven(recording, "CURRICULUM_ADVANCEMENT_NEEDED", "PLATEAU_DETECTED")
        await world.until_proven(recording, "EXPLORATION_BOOST")

    lived(body, quality=0.7)


@scenario("HIGH_QUALITY_DATA_AVAILABLE")
def test_games_are_good(recording, events):
    async def body(world):
        await world.until_proven(recording, *events)

    lived(body, quality=0.95)


@scenario(
    "LOW_QUALITY_DATA_WARNING",
    "QUALITY_DEGRADED",
    "QUALITY_FEEDBACK_ADJUSTED",
    "QUALITY_PENALTY_APPLIED",
    "TRAINING_BLOCKED_BY_QUALITY",
)
def test_games_are_too_poor_to_learn_from(recording, events):
    async def body(world):
        await world.until_proven(recording, *events)

    lived(body, quality=0.1)


def up_and_down(champions):
    """Every second champion is weaker than the one before it, by more each time.

    One that is better lies between two of them, as the second in a row counts one level higher.
    """
    turn, is_weaker = divmod(champions, 2)
    return 150.0 + 25.0 * turn - (DROPS[turn % len(DROPS)] if is_weaker else 0.0)


@scenario(
    "REGRESSION_CLEARED",
    "REGRESSION_CRITICAL",
    "REGRESSION_DETECTED",
    "REGRESSION_MINOR",
    "REGRESSION_MODERATE",
    "REGRESSION_SEVERE",
    "TRAINING_ROLLBACK_NEEDED",
)
def test_champions_are_rated_below_one_before_them_and_then_above_it(recording, events, monkeypatch):
    async def body(world):
        world.rated = up_and_down
        await world.until_proven(recording, *events)

    monkeypatch.setitem(BASELINES, "random", 0.0)  # near enough that games with it tell champions apart
    known_well = PromotionRules(chunk_games=80, floor_2p=0.5, floor_games_min=4000, floor_games_max=4000)
    lived(body, rules={"rating_opponents": ("random",), "promotion": known_well})


@scenario("PROMOTION_ROLLED_BACK")
def test_a_champion_loses_to_the_one_before_it(recording, events):
    async def body(world):
        state = world.controller.state(CONFIG)
        for number in range(1, 10):
            # Noticed at once, for its games with the one before it begin at once.
            while len(state.promotions) <= number:
                await world.runtime.sleep(1.0)
            world.truth.strength[state.champion] -= 400.0
            world.gain = -400.0  # a better candidate would take its place before these games are over
            await world.runtime.sleep(300.0)
            if not recording.lacking(events):
                break
            world.gain = None

    lived(body)


@scenario("MODEL_EVALUATION_BLOCKED")
async def test_a_champion_cannot_be_evaluated_on_nodes_that_it_does_not_reach():
    world = Nodes(*nodes("a", "b", "c"))
    world.down.add("c")
    await champion(world, "a")
    parts = {"router": world.router, "runtime": world.runtime}
    evaluation = EvaluationDaemon(**parts)
    distribution = DistributionDaemon(plane=world.planes["a"], rules=DistributionRules(tries=1), **parts)
    for each in (evaluation, distribution):
        await each.start()
    try:
        await distribution._run_cycle()
        world.runtime.advance(3600.0)
        await distribution._run_cycle()
    finally:
        for each in (distribution, evaluation):
            await each.stop()
