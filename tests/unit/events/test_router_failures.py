"""A failing, slow or cancelled handler harms nobody else, and its event is not lost."""

import asyncio

import pytest

from ringrift.events import unified_router
from ringrift.events.router_reports import FailureKind
from ringrift.events.unified_router import Surroundings, UnifiedEventRouter
from ringrift.settings import load_settings


class Letters:
    """Keeps failures in memory."""

    def __init__(self):
        self.failures = []

    def capture_failure(self, failure, *, instance):
        self.failures.append(failure)
        return f"letter-{len(self.failures)}"

    @property
    def kinds(self):
        return [failure.kind for failure in self.failures]


@pytest.fixture
def letters():
    return Letters()


@pytest.fixture
def router(letters):
    settings = load_settings({"RINGRIFT_EVENT_HANDLER_TIMEOUT": "5"}).settings
    return UnifiedEventRouter(surroundings=Surroundings(settings=settings, dead_letters=letters))


@pytest.fixture
def seen(router):
    events = []
    router.subscribe("HANDLER_FAILED", events.append)
    router.subscribe("HANDLER_TIMEOUT", events.append)
    return events


async def settled():
    """Every task has gone as far as it can, however long that takes."""
    for _ in range(100):
        await asyncio.sleep(0)


async def test_the_next_handler_runs_after_a_failure(router, letters, seen):
    called = []

    async def broken(event):
        raise ValueError("no such board")

    router.subscribe("MY_EVENT", broken, "broken")
    router.subscribe("MY_EVENT", lambda e: called.append(e["n"]))
    event = await router.publish("MY_EVENT", {"n": 1})
    assert called == [1]
    [failure] = letters.failures
    assert (failure.event, failure.subscription.name) == (event, "broken")
    assert failure.error == "ValueError: no such board"
    assert [(e.event_type, e["handler_name"], e["dlq_id"]) for e in seen] == [
        ("HANDLER_FAILED", "broken", "letter-1")
    ]
    assert router.get_stats()["handler_failures"] == 1


@pytest.mark.parametrize("error", [NameError("x"), AttributeError("x"), TypeError("x")], ids=repr)
@pytest.mark.parametrize("waits", [False, True])
async def test_programming_errors_are_marked_as_bugs(router, letters, error, waits):
    async def broken(event):
        if waits:
            await asyncio.sleep(0)
        raise error

    router.subscribe("MY_EVENT", broken)
    await router.publish("MY_EVENT")
    assert letters.kinds == [FailureKind.BUG]
    assert letters.failures[0].error.startswith("BUG: ")


async def test_a_plain_callback_that_raises_stop_iteration_has_failed(router, letters):
    router.subscribe("MY_EVENT", lambda event: next(iter([])))
    await router.publish("MY_EVENT")
    assert letters.kinds == [FailureKind.RAISED_AT_ONCE]


async def test_a_handler_over_its_time_is_cancelled_and_reported(router, letters, seen):
    ended, called = [], []

    async def slow(event):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    router.subscribe("MY_EVENT", slow, "slow", timeout=0.01)
    router.subscribe("MY_EVENT", called.append)
    await router.publish("MY_EVENT")
    assert ended == ["cancelled"]
    assert len(called) == 1
    assert letters.kinds == [FailureKind.TIMEOUT]
    assert [(e.event_type, e["timeout_seconds"]) for e in seen] == [("HANDLER_TIMEOUT", 0.01)]
    assert router.get_stats()["handler_timeouts"] == 1
    assert asyncio.current_task().cancelling() == 0


async def test_a_time_out_inside_the_handler_is_not_ours(router, letters):
    async def handle(event):
        async with asyncio.timeout(0.001):
            await asyncio.sleep(60)

    router.subscribe("MY_EVENT", handle)
    await router.publish("MY_EVENT")
    assert letters.kinds == [FailureKind.RAISED]


async def test_a_handler_that_cancels_itself_does_not_cancel_its_publisher(router, letters):
    async def handle(event):
        other = asyncio.create_task(asyncio.sleep(60))
        other.cancel()
        await other

    router.subscribe("MY_EVENT", handle)
    await router.publish("MY_EVENT")
    assert letters.kinds == [FailureKind.RAISED]


async def test_failures_of_failure_reports_do_not_go_round(router, letters):
    def broken(event):
        raise ValueError("again")

    router.subscribe("HANDLER_FAILED", broken)
    router.subscribe("MY_EVENT", broken)
    await router.publish("MY_EVENT")
    assert [failure.event.event_type for failure in letters.failures] == ["MY_EVENT", "HANDLER_FAILED"]


async def test_the_rest_is_delivered_when_the_publisher_is_cancelled(router, letters):
    called, started = [], asyncio.Event()

    async def slow(event):
        started.set()
        await asyncio.sleep(60)

    router.subscribe("MY_EVENT", slow, "slow")
    router.subscribe("MY_EVENT", lambda e: called.append(1))
    router.subscribe("MY_EVENT", lambda e: called.append(2))
    task = asyncio.create_task(router.publish("MY_EVENT"))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await router.stop()
    assert called == [1, 2]
    assert letters.kinds == [FailureKind.CANCELLED]
    # The cancelled subscription goes on with the next event.
    started.clear()
    task = asyncio.create_task(router.publish("MY_EVENT"))
    async with asyncio.timeout(30):
        await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await router.stop()


async def test_cancelling_a_publisher_that_waits_for_its_turn_keeps_the_order(router):
    order, gate = [], asyncio.Event()

    async def slow(event):
        if event["n"] == 0:
            await gate.wait()
        order.append(event["n"])

    router.subscribe("MY_EVENT", slow)
    tasks = [asyncio.create_task(router.publish("MY_EVENT", {"n": n})) for n in range(4)]
    await settled()
    tasks[1].cancel()
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    await router.stop()
    assert order == [0, 1, 2, 3]


async def test_a_full_mailbox_is_a_dead_letter_with_its_reason(router, letters):
    gate = asyncio.Event()
    router._dispatcher._mailbox_max = 3

    async def slow(event):
        await gate.wait()

    router.subscribe("MY_EVENT", slow)
    tasks = [asyncio.create_task(router.publish("MY_EVENT", {"n": n})) for n in range(6)]
    await settled()
    gate.set()
    await asyncio.gather(*tasks)
    assert letters.kinds == [FailureKind.OVERFLOW] * 2
    assert "mailbox full" in letters.failures[0].error


async def test_a_payload_that_is_not_json_is_no_problem_inside_the_process(router, letters):
    def broken(event):
        raise ValueError("x")

    router.subscribe("CHECKPOINT_SAVED", broken)
    await router.publish("CHECKPOINT_SAVED", {"metrics": {"model": object()}})
    assert len(letters.failures) == 1


async def test_handlers_see_the_exit_of_the_program(router):
    def leave(event):
        raise SystemExit(3)

    router.subscribe("MY_EVENT", leave)
    with pytest.raises(SystemExit):
        await router.publish("MY_EVENT")
    with pytest.raises(SystemExit):  # and nothing stays marked as busy
        await router.publish("MY_EVENT")


# --- what the router says about itself --------------------------------------------------------------------


async def test_reports_work_with_history(router):
    router.subscribe("TRAINING_COMPLETED", print, "printer")
    for _ in range(6):
        await router.publish("CHECKPOINT_SAVED", {})
    flow = router.validate_event_flow()
    assert not flow["healthy"]
    assert "CHECKPOINT_SAVED was published 6 times" in flow["issues"][0]
    assert flow["recent_event_types"] == ["CHECKPOINT_SAVED"]
    assert router.health_check().healthy is False
    status = router.get_status()
    assert status["orphan_events"] == ["CHECKPOINT_SAVED"]
    assert status["health"]["healthy"] is False
    assert router.list_subscribers("training_completed")[0]["name"] == "printer"


async def test_statistics_have_both_spellings(router):
    for _ in range(3):
        await router.publish("CHECKPOINT_SAVED", {})
    stats = router.get_stats()
    assert sum(stats["events_routed"].values()) == 3
    assert stats["events_routed_by_type"] == stats["events_routed"]
    assert stats["events_by_source"] == {"router": 3}
    documented = (
        "total_events_routed subscriber_count global_subscriber_count history_size has_data_events "
        "has_stage_events has_cross_process cross_process_polling duplicates_prevented "
        "content_duplicates_prevented total_duplicates_prevented seen_events_count "
        "seen_content_hashes_count max_seen_events dedup_ttl_seconds handler_timeouts "
        "cross_process_failures cross_process_degraded last_cp_failure_time"
    )
    assert set(documented.split()) <= set(stats)


async def test_wiring_names_the_critical_events_nobody_hears(router):
    router.subscribe("TRAINING_COMPLETED", print)
    found = router.validate_event_wiring(log_warnings=False)
    assert not found["valid"]
    assert "TRAINING_COMPLETED" not in found["missing_critical"]
    assert "MODEL_PROMOTED" in found["missing_critical"]


async def test_the_router_can_be_started_stopped_and_used_again(router):
    seen = []
    router.subscribe("MY_EVENT", seen.append)
    await router.start()
    await router.stop()
    await router.publish("MY_EVENT")
    assert len(seen) == 1
    assert router.is_running


async def test_after_a_stop_nothing_runs_that_waited_behind_a_stuck_handler(router, letters, monkeypatch):
    monkeypatch.setattr(unified_router, "STOP_S", 0.02)
    begun = []

    async def stuck(event):
        begun.append(event["n"])
        await asyncio.sleep(60)

    async def forward(event):
        await router.publish("MY_EVENT", {"n": event["n"]})

    router.subscribe("MY_EVENT", stuck, "stuck")
    router.subscribe("CAUSE", forward)
    publishers = [asyncio.create_task(router.publish("MY_EVENT", {"n": 0}))]
    await asyncio.sleep(0)
    publishers += [asyncio.create_task(router.publish("CAUSE", {"n": n})) for n in (1, 2, 3)]
    await asyncio.sleep(0)
    publishers[0].cancel()  # the next in the mailbox is run by the router, and is stuck as well
    await settled()
    await router.stop()
    await settled()
    assert begun == [0, 1]
    assert letters.kinds == [FailureKind.CANCELLED] * 4
    assert not router._dispatcher._tasks
    await asyncio.wait_for(asyncio.gather(*publishers[1:]), 60)
