"""What events mean for the health of the whole."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringrift.control.process import evidence_of_parts
from ringrift.coordination.contracts import coordinator_directory, register_coordinator
from ringrift.coordination.coordinator_persistence import SnapshotStore
from ringrift.coordination.system_health_monitor import (
    CoordinatorHealthMonitor,
    CoordinatorWatch,
    SystemHealthMonitor,
)
from ringrift.coordination.unified_health_manager import (
    KINDS,
    RULES,
    HealthLedger,
    HealthLevel,
    RecoveryAction,
    UnifiedHealthManager,
    get_health_manager,
    level_of,
    should_pause_pipeline,
)
from ringrift.daemons.manager import DaemonService
from ringrift.daemons.types import DaemonManagerConfig, DaemonType
from ringrift.engine.opening import memory_engine
from ringrift.errors import Unavailable
from ringrift.events.catalog.table import CATALOG
from ringrift.events.event import EventSource, RouterEvent
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.health.run_status import Curve
from ringrift.learning.facts.state import ConfigState
from ringrift.learning.situation import Situations
from ringrift.status import HealthCheckResult
from ringrift.testing.simulation import ManualRuntime, SimulatedRuntime, simulate

AUDITED = (
    "ERROR RECOVERY_INITIATED RECOVERY_COMPLETED RECOVERY_FAILED TRAINING_FAILED TASK_FAILED "
    "REGRESSION_DETECTED REGRESSION_CRITICAL HOST_OFFLINE HOST_ONLINE NODE_RECOVERED "
    "PARITY_FAILURE_RATE_CHANGED COORDINATOR_HEALTH_DEGRADED COORDINATOR_SHUTDOWN COORDINATOR_HEARTBEAT "
    "DAEMON_PERMANENTLY_FAILED"
)


def test_every_event_that_the_health_manager_is_to_hear_has_a_rule():
    wanted = {name for name, spec in CATALOG.items() if "health_manager" in spec.consumed_by}
    assert wanted <= set(RULES)
    assert set(AUDITED.split()) <= set(RULES)
    assert set(RULES) <= set(CATALOG)
    assert {rule.raises for rule in RULES.values() if rule.raises} <= set(KINDS)


def test_rules_read_fields_that_the_catalog_has():
    for name, rule in RULES.items():
        fields = {item.name for item in CATALOG[name].fields}
        assert set(rule.subject) <= fields | {"node_id", "config_key"}, name


events = st.tuples(st.sampled_from(sorted(RULES)), st.sampled_from(["a", "b", "c"]), st.floats(0, 100_000))


@given(history=st.lists(events, max_size=60))
def test_the_score_stays_in_bounds_falls_only_by_trouble_and_heals_with_time(history):
    ledger, now = HealthLedger(), 0.0
    for event, subject, wait in history:
        now += wait
        before = ledger.score(now)
        payload = dict.fromkeys(RULES[event].subject, subject)
        ledger.observe(event, payload, now)
        assert 0.0 <= ledger.score(now) <= 1.0
        if not RULES[event].raises:
            assert ledger.score(now) >= before
    assert ledger.score(now + 2 * 24 * 3600) == 1.0
    assert ledger.pause_reasons(now + 2 * 24 * 3600) == []


def test_trouble_is_settled_by_its_counterpart_only():
    ledger = HealthLedger()
    ledger.observe("HOST_OFFLINE", {"node_id": "gpu-1", "reason": "no heartbeat"}, 0.0)
    ledger.observe("HOST_ONLINE", {"node_id": "gpu-2"}, 1.0)
    assert str(ledger.issues(2.0)[0]) == "gpu-1: node (no heartbeat)"
    ledger.observe("HOST_ONLINE", {"node_id": "gpu-1"}, 3.0)
    assert ledger.issues(4.0) == []
    ledger.observe("DAEMON_STATUS_CHANGED", {"daemon_name": "d", "new_status": "failed"}, 5.0)
    assert len(ledger.issues(5.0)) == 1
    ledger.observe("DAEMON_STATUS_CHANGED", {"daemon_name": "d", "new_status": "running"}, 6.0)
    assert ledger.issues(6.0) == []
    ledger.observe("PARITY_FAILURE_RATE_CHANGED", {"config_key": "hex8_2p", "new_rate": 0.2}, 7.0)
    assert ledger.pause_reasons(7.0) == ["hex8_2p: parity (0.2)"]
    ledger.observe("PARITY_FAILURE_RATE_CHANGED", {"config_key": "hex8_2p", "new_rate": 0.0}, 8.0)
    assert ledger.pause_reasons(8.0) == []


def test_what_pauses_the_pipeline():
    ledger = HealthLedger()
    ledger.observe("REGRESSION_CRITICAL", {"config_key": "hex8_2p", "reason": "lost 80 Elo"}, 0.0)
    assert ledger.pause_reasons(1.0) == ["hex8_2p: critical_regression (lost 80 Elo)"]
    assert ledger.pause_reasons(6 * 3600 + 1.0) == []
    for name in "abcdef":
        ledger.observe("DAEMON_PERMANENTLY_FAILED", {"daemon_name": name}, 10_000.0)
        ledger.observe("HOST_OFFLINE", {"node_id": name}, 10_000.0)
    assert level_of(ledger.score(10_000.0)) is HealthLevel.CRITICAL
    assert any("critical" in reason for reason in ledger.pause_reasons(10_000.0))


def test_one_kind_cannot_hide_the_others():
    ledger = HealthLedger()
    for number in range(1000):
        ledger.observe("TASK_FAILED", {"task_type": f"t{number}"}, 0.0)
    assert ledger.score(0.0) == pytest.approx(1.0 - KINDS["task"].weight_max)


def test_a_breaker_opens_once_for_failures_in_a_row():
    ledger = HealthLedger()
    error = {"component": "uploader", "error": "refused"}
    actions = [ledger.observe("ERROR", error, float(t)).action for t in range(8)]
    assert actions.count(RecoveryAction.RECOVER) == 1
    assert actions.index(RecoveryAction.RECOVER) == 4
    assert "uploader" in ledger.open_breakers(10.0)
    ledger.observe("RECOVERY_COMPLETED", {"component": "uploader", "action": "x"}, 11.0)
    assert ledger.open_breakers(12.0) == {}


def test_row_9_17_cooldowns_and_issues_survive_a_restart():
    before, after = HealthLedger(), HealthLedger()
    for t in range(5):
        before.observe("ERROR", {"component": "uploader", "error": "refused"}, float(t))
    after.restore_state(before.get_state())
    assert after.open_breakers(5.0) == before.open_breakers(5.0)
    assert after.issues(5.0) == before.issues(5.0)
    assert after.observe("ERROR", {"component": "uploader"}, 6.0).action is RecoveryAction.NONE
    assert HealthLedger().get_state() == {}


# --- the manager on a real router ----------------------------------------------------------------------


@pytest.fixture
def router():
    return UnifiedEventRouter(enable_cross_process_polling=False)


async def test_unknown_is_not_healthy(router):
    manager = UnifiedHealthManager(router=router)
    assert manager.get_system_health_level() is HealthLevel.UNKNOWN
    assert manager.get_system_health_score() == 0.0
    assert manager.should_pause_pipeline()
    assert should_pause_pipeline()
    assert not manager.health_check().healthy
    manager.wire()
    assert manager.get_system_health_level() is HealthLevel.HEALTHY
    assert not manager.should_pause_pipeline()
    await manager.stop()
    assert not router.has_subscribers("ERROR")
    assert get_health_manager().status.value == "stopped"


FORGED = (
    *(("REGRESSION_CRITICAL", {"config_key": config, "reason": "hearsay"}) for config in ("a_2p", "b_2p")),
    *(("DAEMON_PERMANENTLY_FAILED", {"daemon_name": name, "reason": "hearsay"}) for name in "abc"),
    ("COORDINATOR_UNHEALTHY", {"coordinator_name": "d", "reason": "hearsay"}),
)


async def test_the_pipeline_rests_for_what_is_measured_and_not_for_what_somebody_says(router):
    runtime = ManualRuntime()
    manager = UnifiedHealthManager(router=router, runtime=runtime)
    manager.wire()
    true = {"critical_regression": set(), "daemon": set(), "coordinator": set()}
    manager.go_by({kind: lambda kind=kind: true[kind] for kind in true})
    for event, payload in FORGED:
        await router.publish(event, payload)
    assert manager.get_system_health_level() is HealthLevel.CRITICAL, "it is shown"
    assert not manager.should_pause_pipeline()
    assert manager.pipeline_holds() == []
    true["critical_regression"] = {"a_2p", "c_2p"}
    runtime.advance(2)
    (hold,) = manager.pipeline_holds()
    assert (hold.config, hold.reason) == ("a_2p", "a_2p: critical_regression (hearsay)")
    true.update(critical_regression=set(), daemon=set("abc"), coordinator=set("d"))
    runtime.advance(2)
    (hold,) = manager.pipeline_holds()
    assert (hold.config, hold.reason) == ("", "system health is critical (0.25)")
    assert manager.should_pause_pipeline()
    true["daemon"] = set("a")
    runtime.advance(2)
    assert manager.pipeline_holds() == [], "it is over as soon as the parts are well"
    await manager.stop()


async def test_that_this_very_node_is_offline_is_no_issue(router):
    runtime = ManualRuntime()
    manager = UnifiedHealthManager(router=router, runtime=runtime)
    manager.wire()
    await router.publish("HOST_OFFLINE", {"node_id": runtime.hostname, "reason": "hearsay"})
    assert manager.issues() == []
    await router.publish("HOST_OFFLINE", {"node_id": "another", "reason": "hearsay"})
    assert [issue.subject for issue in manager.issues()] == ["another"]
    await manager.stop()


async def test_what_cannot_be_measured_holds_nothing(router):
    manager = UnifiedHealthManager(router=router)
    manager.wire()
    assert manager.pipeline_holds() == []
    await router.publish("REGRESSION_CRITICAL", {"config_key": "a_2p"})
    assert manager.pipeline_holds() == [], "nobody has said how to measure"

    def broken():
        raise Unavailable("the run")

    manager.go_by({"critical_regression": broken})
    assert manager.pipeline_holds() == []
    await manager.stop()


async def test_a_regression_holds_its_config_for_an_hour_at_most(router):
    runtime = ManualRuntime()
    manager = UnifiedHealthManager(router=router, runtime=runtime)
    manager.wire()
    manager.go_by({"critical_regression": lambda: {"a_2p"}})
    for _ in range(12):
        await router.publish("REGRESSION_CRITICAL", {"config_key": "a_2p", "reason": "again"})
        assert [hold.config for hold in manager.pipeline_holds()] == ["a_2p"]
        runtime.advance(300)
    await router.publish("REGRESSION_CRITICAL", {"config_key": "a_2p", "reason": "again"})
    assert manager.pipeline_holds() == []
    await manager.stop()


class Unwell:
    """A coordinator that can be asked how it is."""

    def __init__(self):
        self.result = HealthCheckResult.unhealthy("its queue hangs")

    def health_check(self):
        return self.result


def test_daemons_and_coordinators_are_asked_themselves():
    async def crash():
        raise OSError("no route")

    async def go_on():
        await asyncio.sleep(3600)

    async def main():
        runtime = SimulatedRuntime()
        manager = DaemonService(DaemonManagerConfig(loop_watchdog=False), runtime=runtime)
        down, up = DaemonType.register("DOWN"), DaemonType.register("UP")
        manager.register_factory(down, crash, auto_restart=False)
        manager.register_factory(up, go_on)
        await manager.start_all([down, up])
        await runtime.sleep(1)
        evidence, coordinator = evidence_of_parts(manager, Situations()), Unwell()
        assert evidence["daemon"]() == {"down"}
        register_coordinator(coordinator, "mixer")
        assert evidence["coordinator"]() == {"mixer"}
        coordinator.result = HealthCheckResult.ok()
        assert evidence["coordinator"]() == set()
        assert evidence["critical_regression"]() == set(), "no run is open"
        await manager.shutdown()

    simulate(main())


class CurvesOnly:
    """A loop of which only the ratings are asked."""

    def __init__(self, **curves):
        self._curves, self.curves = curves, self

    def configs(self):
        return list(self._curves)

    def state(self, config):
        return ConfigState(config)

    def of(self, state):
        return self._curves[state.config]


def point(rating):
    return Curve(at_s=0.0, rows=1, rating=rating, low=rating - 5, high=rating + 5, model=f"m{rating}")


def test_a_regression_is_measured_by_the_ratings_of_the_run():
    loop = CurvesOnly(
        fell=(point(1500), point(1400)), wavers=(point(1500), point(1490)), rose=(point(1400), point(1500))
    )
    evidence = evidence_of_parts(DaemonService(runtime=ManualRuntime()), Situations(loop))
    assert evidence["regression"]() == {"fell"}
    assert evidence["critical_regression"]() == {"fell"}


async def test_a_known_recovery_runs_once_and_its_end_is_told(router):
    manager = UnifiedHealthManager(router=router)
    manager.wire()
    told, calls = [], []
    for event in manager.emits:
        router.subscribe(event, lambda e: told.append((e.event_type, e.payload["component"])))
    released = asyncio.Event()

    async def reconnect():
        calls.append("reconnect")
        await released.wait()

    manager.register_recovery("uploader", reconnect)
    for _ in range(9):
        await router.publish("ERROR", {"component": "uploader", "error": "refused"})
    while not calls:
        await asyncio.sleep(0)
    assert calls == ["reconnect"]
    released.set()
    await asyncio.wait(manager._running.values(), timeout=5)
    assert told == [("RECOVERY_INITIATED", "uploader"), ("RECOVERY_COMPLETED", "uploader")]
    assert manager.issues() == []
    await manager.stop()


async def test_a_failing_recovery_and_an_unknown_one_call_for_a_person(router):
    manager = UnifiedHealthManager(router=router)
    manager.wire()

    async def hopeless():
        raise OSError("no route")

    manager.register_recovery("uploader", hopeless)
    for component in ("uploader", "mixer"):
        for _ in range(5):
            await router.publish("ERROR", {"component": component, "error": "refused"})
    await asyncio.sleep(0)
    while manager._running:
        await asyncio.wait(tuple(manager._running.values()), timeout=5)
    assert sorted(manager.escalations) == ["mixer: ERROR", "uploader: recovery failed"]
    assert {issue.kind for issue in manager.issues()} == {"error", "recovery"}
    await manager.stop()


async def test_what_fails_in_another_process_is_brought_back_there(router):
    manager, calls = UnifiedHealthManager(router=router), []
    manager.wire()

    async def restart():
        calls.append("restart")

    manager.register_recovery("mine", restart, of_this_process=True)
    for number in range(9):
        failed = {"component": "mine", "error": "refused"}
        event = RouterEvent("ERROR", failed, source=f"p{number}", origin=EventSource.CROSS_PROCESS)
        await manager._on_event(event)
    assert not manager._running
    for _ in range(9):
        await router.publish("ERROR", {"component": "mine", "error": "refused"})
    while not calls:
        await asyncio.sleep(0)
    await manager.stop()


async def test_stop_ends_a_recovery_under_way(router):
    manager = UnifiedHealthManager(router=router)
    manager.wire()
    manager.register_recovery("uploader", asyncio.Event().wait)
    for _ in range(5):
        await router.publish("ERROR", {"component": "uploader", "error": "refused"})
    (task,) = manager._running.values()
    await manager.stop()
    assert task.cancelled()


# --- the monitors --------------------------------------------------------------------------------------


class Patient:
    def __init__(self):
        self.answer = HealthCheckResult.ok()

    def health_check(self):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def test_every_change_of_a_coordinator_is_told_once(router):
    told, patient = [], Patient()
    monitor = CoordinatorHealthMonitor(router=router, runtime=ManualRuntime())
    register_coordinator(patient, "patient")
    for event in set(monitor.emits) - {"COORDINATOR_HEARTBEAT"}:
        router.subscribe(event, lambda e: told.append(e.event_type))
    answers = [
        HealthCheckResult.ok(),
        HealthCheckResult.ok(),
        HealthCheckResult.degraded("slow"),
        HealthCheckResult.unhealthy("stuck"),
        HealthCheckResult.unhealthy("stuck"),
        KeyError("gone"),
        HealthCheckResult.ok(),
        KeyError("gone"),
    ]
    for patient.answer in answers:
        await monitor._run_cycle()
    assert told == [
        "COORDINATOR_HEALTHY",
        "COORDINATOR_HEALTH_DEGRADED",
        "COORDINATOR_UNHEALTHY",
        "ERROR",  # a check that raises is a fault each time
        "COORDINATOR_HEALTHY",
        "COORDINATOR_UNHEALTHY",
        "ERROR",
    ]
    assert monitor.coordinators()["patient"]["state"] == "unhealthy"
    assert monitor.health_check().details["coordinators"]["patient"]["health_score"] == 0.0


def test_a_coordinator_of_another_process_that_falls_silent_is_told_once():
    watch = CoordinatorWatch(silent_after_s=90.0)
    watch.heard("COORDINATOR_HEALTHY", {"coordinator_name": "far", "health_score": 1.0}, 0.0)
    watch.heard("COORDINATOR_HEARTBEAT", {"coordinator_name": "far", "health_score": 1.0}, 30.0)
    watch.heard("COORDINATOR_HEARTBEAT", {"coordinator_name": "ended", "health_score": 1.0}, 0.0)
    watch.heard("COORDINATOR_SHUTDOWN", {"coordinator_name": "ended"}, 1.0)
    assert watch.silent(120.0) == []
    ((event, payload),) = watch.silent(121.0)
    assert (event, payload["coordinator_name"]) == ("COORDINATOR_UNHEALTHY", "far")
    assert watch.silent(500.0) == []
    assert watch.report(500.0)["far"]["state"] == "silent"
    watch.heard("COORDINATOR_HEARTBEAT", {"coordinator_name": "far", "health_score": 1.0}, 501.0)
    assert watch.report(501.0)["far"]["state"] == "healthy"


async def test_a_coordinator_that_went_to_another_process_is_heard_of_from_there(router):
    class Leading:
        def health_check(self):
            return HealthCheckResult.ok("")

    monitor = CoordinatorHealthMonitor(router=router, runtime=ManualRuntime())
    monitor._subscribe()
    register_coordinator(Leading(), "leading")
    await monitor._run_cycle()
    assert monitor.coordinators()["leading"]["state"] == "healthy"
    coordinator_directory().unregister("leading")
    await monitor._run_cycle()
    assert "leading" not in monitor.coordinators()
    told = {"coordinator_name": "leading", "reason": "stuck", "health_score": 0.0}
    await router.publish("COORDINATOR_UNHEALTHY", told, "another")
    assert monitor.coordinators()["leading"]["state"] == "unhealthy"
    monitor._unsubscribe()


def test_a_heartbeat_says_that_it_lives_and_not_that_it_is_well():
    watch = CoordinatorWatch(silent_after_s=90.0)
    watch.heard("COORDINATOR_UNHEALTHY", {"coordinator_name": "far", "reason": "stuck"}, 0.0)
    watch.heard("COORDINATOR_HEARTBEAT", {"coordinator_name": "far", "health_score": 0.1}, 1.0)
    assert watch.report(1.0)["far"]["state"] == "unhealthy"


async def test_the_system_monitor_alerts_on_a_change_and_remembers_over_a_restart(router):
    runtime = ManualRuntime()
    store = SnapshotStore(memory_engine(runtime).kv, runtime=runtime)

    def make():
        manager = UnifiedHealthManager(router=router, runtime=runtime)
        manager.wire()
        return manager, SystemHealthMonitor(
            router=router, runtime=runtime, health_manager=manager, store=store
        )

    manager, monitor = make()
    monitor._subscribe()
    await monitor._run_cycle()
    await router.publish("SPLIT_BRAIN_DETECTED", {"leaders_seen": ["a", "b"]})
    await monitor._run_cycle()
    texts = [alert.text for alert in monitor.alerts]
    assert texts == [
        "system health went from unknown to healthy",
        "split brain detected",
        "system health went from healthy to unhealthy",
    ]
    monitor._unsubscribe()
    await manager.stop()

    manager, monitor = make()
    ready = asyncio.Event()
    running = asyncio.create_task(monitor.run(on_ready=ready.set))
    await ready.wait()
    assert [str(issue) for issue in manager.issues()] == ["system: split_brain (['a', 'b'])"]
    running.cancel()
    await asyncio.wait({running})
    assert not router.has_subscribers("HEALTH_ALERT")
    await manager.stop()


async def test_a_daemon_that_comes_up_is_no_alert_and_one_that_fails_is(router):
    runtime = ManualRuntime()
    manager = UnifiedHealthManager(router=router, runtime=runtime)
    store = SnapshotStore(memory_engine(runtime).kv, runtime=runtime)
    monitor = SystemHealthMonitor(router=router, runtime=runtime, health_manager=manager, store=store)
    monitor._subscribe()
    change = {"daemon_name": "auto_sync", "node_id": "a", "old_status": "starting"}
    await router.publish("DAEMON_STATUS_CHANGED", {**change, "new_status": "running", "reason": "ready"})
    assert list(monitor.alerts) == []
    await router.publish("DAEMON_STATUS_CHANGED", {**change, "new_status": "failed", "reason": "gave up"})
    assert [alert.text for alert in monitor.alerts] == ["gave up"]
    monitor._unsubscribe()


@pytest.mark.parametrize(
    ("failed", "done", "about"),
    [
        ("TASK_FAILED", "TASK_COMPLETED", {"task_type": "selfplay"}),
        ("TRAINING_FAILED", "TRAINING_COMPLETED", {"config_key": "hex8_2p", "success": True}),
    ],
)
def test_what_succeeds_again_has_not_failed_in_a_row(failed, done, about):
    ledger = HealthLedger()
    for number in range(20):
        assert ledger.observe(failed, about, float(number)).action is RecoveryAction.NONE
        assert ledger.score(float(number)) < 1.0
        ledger.observe(done, {**about, "task_type": "other", "config_key": "hex8_3p"}, float(number))
        assert ledger.issues(float(number)), "of another one"
        ledger.observe(done, {**about, "success": False}, float(number))
        assert ledger.issues(float(number)), "it ended, and not well"
        ledger.observe(done, about, float(number))
        assert ledger.score(float(number)) == 1.0
    assert ledger.open_breakers(20.0) == {}
    told = [ledger.observe(failed, about, 30.0 + number).action for number in range(5)]
    assert told[-1] is RecoveryAction.RECOVER
