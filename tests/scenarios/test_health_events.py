"""Coordinators, handlers and dead letters: what is sent when they start, fail, recover and end."""

import asyncio

from machine import Listeners
from recording import scenario

from ringrift.control.process import run_control_process
from ringrift.coordination.contracts import coordinator_directory, register_coordinator
from ringrift.coordination.coordination_bootstrap import shutdown_all_coordinators, start_coordination
from ringrift.coordination.dead_letter_queue import DeadLetterQueue, DLQRetryDaemon, enable_dead_letter_queue
from ringrift.coordination.event_router import get_router
from ringrift.coordination.system_health_monitor import (
    CoordinatorHealthMonitor,
    SystemHealthMonitor,
)
from ringrift.coordination.unified_health_manager import get_health_manager
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.status import HealthCheckResult
from ringrift.testing.simulation import ManualRuntime

DAY_S = 86_400.0


def issues_of(manager, kind):
    return [issue.subject for issue in manager.issues() if issue.kind == kind]


@scenario("COORDINATOR_HEALTHY", "COORDINATOR_INIT_FAILED", "COORDINATOR_UNHEALTHY", "COORDINATOR_SHUTDOWN")
async def test_the_system_comes_up_without_one_of_its_coordinators_and_goes_down(monkeypatch):
    def broken(**_options):
        raise RuntimeError("its settings cannot be read")

    monkeypatch.setattr("ringrift.coordination.optimization_coordinator.wire_optimization_events", broken)
    await start_coordination()
    manager = get_health_manager()
    assert issues_of(manager, "coordinator") == ["optimization_coordinator"]
    assert "sync_coordinator" in manager.heartbeat_ages(), "it heard of those that came up"
    await shutdown_all_coordinators(timeout_seconds=30.0)
    assert "sync_coordinator" not in manager.heartbeat_ages(), "and of those that ended"
    await get_router().stop()


class Coordinator:
    """One of a user's own, as well as it is told to be."""

    def __init__(self):
        self.answer = HealthCheckResult.ok("")

    def health_check(self):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@scenario(
    "COORDINATOR_HEARTBEAT",
    "COORDINATOR_HEALTH_DEGRADED",
    "ERROR",
    "RECOVERY_INITIATED",
    "RECOVERY_FAILED",
    "RECOVERY_COMPLETED",
    "HEALTH_ALERT",
)
async def test_of_two_coordinators_that_get_worse_one_is_brought_back():
    router = get_router()
    listeners, mine, other = Listeners(router), Coordinator(), Coordinator()
    manager = listeners["health_manager"]
    register_coordinator(mine, "mine")
    register_coordinator(other, "other")
    monitor = CoordinatorHealthMonitor(router=router)
    whole = SystemHealthMonitor(router=router, health_manager=manager)

    async def restart():
        mine.answer = HealthCheckResult.ok("")

    async def restart_other():
        raise OSError("its file is locked")

    manager.register_recovery("mine", restart)
    manager.register_recovery("other", restart_other)
    await monitor._run_cycle()
    await whole._run_cycle()
    assert {"mine", "other"} <= manager.heartbeat_ages().keys()
    mine.answer = other.answer = HealthCheckResult.degraded("slow")
    await monitor._run_cycle()
    assert sorted(issues_of(manager, "coordinator")) == ["mine", "other"]
    for _ in range(5):  # a check that raises, five times after one that did not
        mine.answer = other.answer = RuntimeError("broken")
        await monitor._run_cycle()
        mine.answer = other.answer = HealthCheckResult.degraded("slow")
        await monitor._run_cycle()
    while manager.get_metrics()["recoveries_running"]:
        await asyncio.sleep(0)
    assert mine.answer.healthy
    assert issues_of(manager, "recovery") == ["other"]
    assert listeners.alerted("RECOVERY_FAILED") == ["OSError: its file is locked"]
    await whole._run_cycle()
    assert "system health went from healthy" in listeners.alerted("HEALTH_ALERT")[-1]
    await router.stop()


@scenario("RECOVERY_INITIATED", "RECOVERY_COMPLETED", "RECOVERY_FAILED")
async def test_coordinators_of_a_default_run_that_hear_no_more_are_brought_back(monkeypatch):
    """As a run brings them up; nobody but the product says how they are brought back."""
    started, stop = asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(
        run_control_process(profile="standard", stop=stop, on_started=lambda _: started.set())
    )
    await started.wait()
    manager, router, directory = get_health_manager(), get_router(), coordinator_directory()
    told = []
    for event in manager.emits:
        router.subscribe(event, lambda heard: told.append((heard.event_type, heard.payload)), "told")
    mended, hopeless = directory.get("sync_coordinator"), directory.get("metrics_orchestrator")
    monitor = CoordinatorHealthMonitor(router=router)
    await monitor._run_cycle()
    assert [each for each in told if each[0] == "ERROR"] == []
    mended.unwire()
    hopeless.unwire()
    monkeypatch.setattr(type(hopeless), "wire", lambda self: None)  # it does not come back
    for _ in range(5):
        assert not mended.is_subscribed, "one bad look proves nothing"
        await monitor._run_cycle()
    while manager.get_metrics()["recoveries_running"]:
        await asyncio.sleep(0.01)
    assert directory.get("sync_coordinator").is_subscribed
    await router.publish("HEALTH_ALERT", {"alert_type": "all told", "severity": "info", "message": ""})
    ends = {(name, payload["component"], payload.get("action")) for name, payload in told}
    assert ends == {
        ("RECOVERY_INITIATED", "sync_coordinator", None),
        ("RECOVERY_COMPLETED", "sync_coordinator", "restart"),
        ("RECOVERY_INITIATED", "metrics_orchestrator", None),
        ("RECOVERY_FAILED", "metrics_orchestrator", "restart"),
    }
    assert issues_of(manager, "recovery") == ["metrics_orchestrator"]
    await monitor._run_cycle()
    assert issues_of(manager, "coordinator") == ["metrics_orchestrator"]
    stop.set()
    await running


@scenario("HANDLER_FAILED", "HANDLER_TIMEOUT", "DLQ_EVENTS_REPLAYED", "DLQ_STALE_EVENTS", "DLQ_EVENTS_PURGED")
async def test_events_that_a_handler_cannot_take_are_kept_tried_again_and_given_up(tmp_path):
    runtime = ManualRuntime()
    letters = DeadLetterQueue(tmp_path / "letters.db", runtime=runtime)
    router = UnifiedEventRouter(enable_cross_process_polling=False)
    enable_dead_letter_queue(letters, router)
    manager = Listeners(router)["health_manager"]
    works = []

    async def shaky(event):
        if not works:
            raise OSError("the disk is away")

    async def slow(event):
        await asyncio.Event().wait()

    router.subscribe("MY_EVENT", shaky, "shaky")
    router.subscribe("MY_OTHER_EVENT", slow, "slow", timeout=0.01)
    await router.publish("MY_EVENT", {})
    await router.publish("MY_OTHER_EVENT", {})
    assert sorted(issues_of(manager, "handler")) == ["shaky", "slow"]
    works.append(1)
    daemon = DLQRetryDaemon(letters, router=router, runtime=runtime)
    await daemon._run_cycle()
    assert letters.get_stats()["recovered"] == 1
    runtime.advance(8 * DAY_S)
    await daemon._run_cycle()
    assert letters.get_stats()["recovered"] == 0, "settled for a week"
    assert issues_of(manager, "dead_letters") == ["system"], "and one that nobody could take"
    await router.stop()
    letters.close()
