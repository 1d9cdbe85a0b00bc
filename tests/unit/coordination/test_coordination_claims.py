"""What somebody says was done, without a file of it, is nowhere shown as if it had been done."""

import pytest

from ringrift.coordination.feedback_loop_controller import FeedbackLoopController, FeedbackSignals
from ringrift.coordination.selfplay_scheduler import SelfplayScheduler
from ringrift.coordination.training_coordinator import TrainingCoordinator
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.announcements import SOURCE as LOOP

CONFIG = "square8_2p"
CLAIMS = {
    "SELFPLAY_COMPLETE": {"games_generated": 987_654},
    "NPZ_EXPORT_COMPLETE": {"samples_exported": 987_654, "games_exported": 987_654},
    "TRAINING_COMPLETED": {"success": True, "job_id": "j1", "model_path": "987654.pth", "val_loss": 987654.0},
    "EVALUATION_COMPLETED": {
        "model_id": "m1",
        "win_rate": 987654.0,
        "elo": 987654.0,
        "games_played": 987_654,
    },
}


async def heard(router, source):
    for name, payload in CLAIMS.items():
        await router.publish(name, {"config_key": CONFIG, **payload}, source)


def shown_by(thing):
    named = [
        name for name in ("get_stats", "get_status", "get_metrics", "get_history") if hasattr(thing, name)
    ]
    return repr([getattr(thing, name)() for name in named]).replace("_", "")


@pytest.fixture
def router():
    return UnifiedEventRouter(enable_cross_process_polling=False)


@pytest.mark.parametrize("source", ["a user", "worker", LOOP])
async def test_no_event_is_a_training(router, source):
    """What is running and what was done is in the store; an event is no more than a word of it."""
    coordinator = TrainingCoordinator(router=router)
    coordinator.wire()
    for number in range(3):
        about = {"config_key": CONFIG, "job_id": f"j{number}", "node_id": "n"}
        await router.publish("TRAINING_STARTED", about, source)
        await router.publish("TRAINING_PROGRESS", {**about, "epoch": 7, "train_loss": 987654.0}, source)
    for number in range(2):
        failed = {"config_key": CONFIG, "job_id": f"j{number}", "error": "987654"}
        await router.publish("TRAINING_FAILED", failed, source)
    await heard(router, source)
    await router.publish("P2P_CLUSTER_UNHEALTHY", {"healthy_nodes": 0, "node_count": 987_654}, source)
    assert coordinator.get_running() == coordinator.get_history() == []
    assert "987654" not in shown_by(coordinator)


async def test_a_training_under_a_slot_ends_by_the_word_of_who_held_it(router):
    coordinator = TrainingCoordinator(router=router)
    job = await coordinator.request(CONFIG)
    assert coordinator.get_stats()["running"] == 1
    await heard(router, "a user")
    await router.publish("TRAINING_FAILED", {"config_key": CONFIG, "job_id": job.job_id, "error": "x"}, "y")
    assert (coordinator.get_stats()["running"], coordinator.get_stats()["completed"]) == (1, 0)
    await coordinator.finish(job.job_id, model_path="a.pth")
    assert (coordinator.get_stats()["running"], coordinator.get_stats()["completed"]) == (0, 1)


@pytest.mark.parametrize(("source", "is_shown"), [("a user", False), (LOOP, True)])
async def test_numbers_of_a_claim_are_no_signal(router, source, is_shown):
    signals = FeedbackSignals()
    feedback = FeedbackLoopController(router=router, signals=signals)
    scheduler = SelfplayScheduler(router=router)
    for daemon in (feedback, scheduler):
        for name, handler in daemon._get_event_subscriptions().items():
            router.subscribe(name, handler)
    await heard(router, source)
    values = {signal.source: signal.value for signal in signals.history()}
    assert (values.get("EVALUATION_COMPLETED") == values.get("TRAINING_COMPLETED") == 987654.0) is is_shown
    assert ("987654" in shown_by(scheduler)) is is_shown
