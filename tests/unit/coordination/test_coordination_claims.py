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


@pytest.mark.parametrize(("source", "is_shown"), [("a user", False), (LOOP, True)])
async def test_a_training_that_somebody_claims_is_no_training_that_was_done(router, source, is_shown):
    coordinator = TrainingCoordinator(router=router)
    coordinator.wire()
    await heard(router, source)
    assert coordinator.get_stats()["completed"] == int(is_shown)
    assert ("987654" in shown_by(coordinator)) is is_shown


async def test_a_training_under_a_slot_ends_by_the_word_of_who_held_it(router):
    coordinator = TrainingCoordinator(router=router)
    coordinator.wire()
    started = {"config_key": CONFIG, "job_id": "j1"}
    await router.publish("TRAINING_STARTED", started, "a user")
    assert coordinator.get_stats()["running"] == 1
    await heard(router, "a user")
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
