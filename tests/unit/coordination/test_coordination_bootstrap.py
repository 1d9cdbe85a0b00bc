"""The documents' calls on the real system, with and without a running loop."""

import asyncio
import contextlib
from datetime import UTC, datetime

import msgspec
import pytest

from ringrift.coordination.contracts import get_coordinator
from ringrift.coordination.coordination_bootstrap import (
    COORDINATOR_REGISTRY,
    bootstrap_coordination,
    get_bootstrap_status,
    get_initializer,
    get_system_health,
    initialize_all_coordinators,
    is_coordination_ready,
    run_bootstrap_smoke_test,
    score_status,
    shutdown_all_coordinators,
    shutdown_coordination,
    start_coordination,
)
from ringrift.coordination.coordinator_dependencies import InitPattern, get_initialization_order
from ringrift.coordination.data_pipeline_orchestrator import (
    PipelineConfig,
    get_pipeline_orchestrator,
    get_pipeline_status,
)
from ringrift.coordination.event_router import get_router
from ringrift.coordination.event_subscription_registry import (
    DELEGATION_REGISTRY,
    INIT_CALL_REGISTRY,
    get_registry_stats,
    process_delegation_registry,
    process_init_call_registry,
)
from ringrift.coordination.handler_resilience import resilient_handler
from ringrift.coordination.initializer import Initializer
from ringrift.coordination.run_coordinator import get_open_run
from ringrift.coordination.task_lifecycle_coordinator import get_task_lifecycle_coordinator
from ringrift.coordination.unified_health_manager import get_health_manager
from ringrift.engine.leases import CONTROL_LEASE, ControlHolder, LeaseConfig, NamedLease
from ringrift.engine.opening import close_engine, get_engine
from ringrift.errors import ConfigError
from ringrift.process import process_scope
from ringrift.runtime import system_runtime

RETIRED = {name for name, spec in COORDINATOR_REGISTRY.items() if spec.pattern is InitPattern.SKIP}
BUILT = {name for name, spec in COORDINATOR_REGISTRY.items() if not spec.not_built_reason} - RETIRED


def one_of_all_down(health):
    count = len(health["coordinators"])
    return round((count - 1) / count, 3)


def check_status(status):
    assert status["initialized"] is True
    assert isinstance(status["started_at"], datetime)
    assert status["started_at"].tzinfo is UTC
    assert status["started_at"] <= status["completed_at"]
    assert set(status["coordinators"]) == set(COORDINATOR_REGISTRY)
    for item in status["coordinators"].values():
        assert set(item) == {"initialized", "subscribed", "error"}
    up = {name for name, item in status["coordinators"].items() if item["initialized"]}
    assert up == BUILT
    assert status["errors"] == []
    assert status["initialized_count"] == len(BUILT)
    assert set(status["not_built"]) == set(COORDINATOR_REGISTRY) - BUILT - RETIRED
    assert status["skipped"] == ["recovery_manager"]
    assert status["coordinators"]["recovery_manager"] == {
        "initialized": False,
        "subscribed": False,
        "error": None,
    }
    reason = status["coordinators"]["leadership_coordinator"]["error"]
    assert reason == "capability not built yet: leadership (comes with the cluster)"
    assert {"pipeline_orchestrator", "training_coordinator", "health_manager"} <= BUILT


def test_bootstrap_twice_down_and_up_again_without_a_loop():
    first = bootstrap_coordination()
    check_status(first)
    assert bootstrap_coordination() == first
    assert is_coordination_ready()
    assert shutdown_coordination()["failed"] == 0
    status = get_bootstrap_status()
    assert status["initialized"] is False
    assert status["shutdown_requested"] is True
    assert not get_router().has_subscribers("RECOVERY_COMPLETED")
    assert shutdown_coordination() == {"shutdown": False, "reason": "not initialized"}
    check_status(bootstrap_coordination())
    assert get_router().has_subscribers("RECOVERY_COMPLETED")


async def test_bootstrap_twice_down_and_up_again_inside_a_loop():
    check_status(bootstrap_coordination())
    assert shutdown_coordination()["failed"] == 0
    check_status(await start_coordination())
    ended = await shutdown_all_coordinators(timeout_seconds=5)
    assert ended["success_count"] == ended["total_count"] == len(BUILT)
    backwards = [COORDINATOR_REGISTRY[n] for n in reversed(get_initialization_order()) if n in BUILT]
    assert list(ended["status"]) == [spec.short_name or spec.name for spec in backwards]
    assert all(item == {"success": True, "error": None} for item in ended["status"].values())
    check_status(await start_coordination())
    await shutdown_all_coordinators()


def test_row_9_10_what_was_brought_up_without_a_loop_works_on_every_later_one():
    """Bootstrap starts nothing that would die with a loop of its own."""
    bootstrap_coordination()
    manager = get_coordinator("health_manager")

    async def trouble(component):
        await get_router().publish("ERROR", {"component": component, "error": "full"})
        await get_router().stop()

    asyncio.run(trouble("disk"))
    asyncio.run(trouble("net"))
    assert {issue.subject for issue in manager.issues()} == {"disk", "net"}
    shutdown_coordination()


def test_row_9_10_every_quick_start_name_answers_truly():
    status = initialize_all_coordinators(auto_trigger_pipeline=True)
    assert status["event_coordinator"] is True
    assert status["dead_letter_queue"] is True
    assert {"event_coordinator", "dead_letter_queue", "pipeline"} <= set(status["_instances"])
    names = set(status) - {"_errors", "_instances"}
    assert names == {
        "dead_letter_queue",
        "task_lifecycle",
        "resources",
        "cache",
        "selfplay",
        "pipeline",
        "optimization",
        "metrics",
        "event_coordinator",
    }
    for name in names:
        assert status[name] is (name not in status["_errors"])
    assert "capability not built yet" in status["_errors"]["cache"]
    assert get_bootstrap_status()["initialized"]


def test_row_9_9_shutdown_covers_every_coordinator_and_lets_bootstrap_run_again():
    bootstrap_coordination()
    ended = shutdown_coordination()
    assert set(ended["results"]) == BUILT
    assert ended["successful"] == len(BUILT)
    assert get_bootstrap_status()["initialized"] is False
    assert bootstrap_coordination()["initialized"] is True


def test_row_9_9_a_misnamed_entry_point_is_reported_by_name_and_stops_nobody():
    broken = dict(COORDINATOR_REGISTRY)
    spec = broken["dead_letter_queue"]
    broken["dead_letter_queue"] = type(spec)(
        name=spec.name,
        layer=0,
        pattern=spec.pattern,
        capability=spec.capability,
        entry_point="ringrift.coordination.dead_letter_queue:get_misnamed",
    )
    process_scope().put(Initializer, Initializer(broken, publish=lambda *_: None))
    status = bootstrap_coordination()
    assert "get_misnamed" in status["coordinators"]["dead_letter_queue"]["error"]
    assert status["coordinators"]["health_manager"]["initialized"]
    health = get_system_health()
    assert health["coordinators"]["dead_letter_queue"] == 0.0
    assert health["overall_health"] == one_of_all_down(health)
    assert shutdown_coordination()["failed"] == 0


def test_switches_leave_coordinators_out_and_unknown_ones_are_refused():
    status = bootstrap_coordination(enable_health=False, enable_leadership=False)
    assert status["disabled"] == ["health_manager", "leadership_coordinator"]
    assert status["coordinators"]["health_manager"]["error"] is None
    assert status["skipped"] == ["error_coordinator", "recovery_manager"]
    assert not is_coordination_ready()
    shutdown_coordination()
    with pytest.raises(ConfigError, match="knows no option 'enable_helth'"):
        bootstrap_coordination(enable_helth=False)


async def test_every_coordinator_that_was_wired_can_be_brought_back_and_only_one_that_is_down_is():
    await start_coordination()
    initializer, manager = process_scope().peek(Initializer), get_health_manager()
    wired = [
        (name, coordinator)
        for name, coordinator in initializer.instances.items()
        if initializer.registry[name].pattern is InitPattern.WIRE and coordinator is not manager
    ]
    assert {name for name, _ in wired} == set(manager._recoveries)
    for name, coordinator in wired:
        before = list(coordinator._subscriptions)
        await manager._recoveries[name]()
        assert coordinator._subscriptions == before, f"{name} was well"
        coordinator.unwire()
        await manager._recoveries[name]()
        assert initializer.instances[name] is get_coordinator(name)
        assert initializer.instances[name].is_subscribed, name
    await shutdown_all_coordinators()
    with pytest.raises(ConfigError, match="not up"):
        await initializer.restart("sync_coordinator")
    await get_router().stop()
    await close_engine()


def test_options_of_a_second_call_are_honored():
    first = bootstrap_coordination(enable_health=False, enable_metrics=False)
    assert not first["coordinators"]["health_manager"]["initialized"]
    status = bootstrap_coordination(enable_health=True, pipeline_auto_trigger=True, training_epochs=3)
    up = {name for name, item in status["coordinators"].items() if item["initialized"]}
    assert {
        "health_manager",
        "error_coordinator",
    } <= up  # the second needs the first
    assert status["disabled"] == ["metrics_orchestrator"]  # of which the second call said nothing
    assert get_coordinator("health_manager").is_subscribed
    pipeline = get_pipeline_orchestrator()
    assert pipeline.auto_trigger
    assert pipeline.config.training_epochs == 3
    assert initialize_all_coordinators(heartbeat_threshold=45, enable_metrics=True)["metrics"]
    assert get_task_lifecycle_coordinator().heartbeat_threshold_s == 45
    assert pipeline.config.training_epochs == 3
    initialize_all_coordinators()
    assert get_task_lifecycle_coordinator().heartbeat_threshold_s == 45
    assert shutdown_coordination()["failed"] == 0


def test_a_wrong_answer_to_whether_they_are_listed_is_refused_before_anything_starts():
    with pytest.raises(ConfigError, match="register_with_registry"):
        bootstrap_coordination(register_with_registry="no")
    with pytest.raises(ConfigError, match="register_with_registry"):
        asyncio.run(start_coordination(register_with_registry=0))
    with pytest.raises(ConfigError, match="require_master_loop"):
        bootstrap_coordination(require_master_loop="no")
    assert not get_bootstrap_status()["initialized"]


def test_coordinators_are_listed_for_others_as_the_last_call_that_says_so_asks():
    bootstrap_coordination(register_with_registry=False)
    assert get_coordinator("health_manager") is None
    bootstrap_coordination()
    assert get_coordinator("health_manager") is None
    bootstrap_coordination(register_with_registry=True)
    assert get_coordinator("health_manager") is get_health_manager()
    bootstrap_coordination(register_with_registry=False)
    assert get_coordinator("health_manager") is None
    shutdown_coordination()
    initialize_all_coordinators()
    assert get_coordinator("health_manager") is get_health_manager()


def test_a_bootstrap_after_a_shutdown_begins_with_the_defaults():
    began = bootstrap_coordination()
    defaults = get_pipeline_orchestrator().config
    threshold_s = get_task_lifecycle_coordinator().heartbeat_threshold_s
    shutdown_coordination()
    asked = {"pipeline_auto_trigger": True, "training_epochs": 9, "training_model_version": "large"}
    bootstrap_coordination(**asked, heartbeat_threshold=77.0)
    assert get_pipeline_status()["auto_trigger"] is True
    shutdown_coordination()
    assert set(bootstrap_coordination()) == set(began)
    assert get_pipeline_orchestrator().config == defaults
    assert get_pipeline_status()["auto_trigger"] is False
    assert get_task_lifecycle_coordinator().heartbeat_threshold_s == threshold_s
    shutdown_coordination()


@contextlib.asynccontextmanager
async def control_of_another_process(*, has_daemons):
    runtime = system_runtime()
    holder = ControlHolder(
        host="another",
        boot="b",
        numbers="n",
        pid=1,
        began_s=0.0,
        folder="f",
        since_s=runtime.now_s(),
        has_daemons=has_daemons,
    )
    config = LeaseConfig(lease_s=60.0, renew_s=5.0)
    said = msgspec.json.encode(holder).decode()
    lease = NamedLease((await get_engine()).kv, runtime, CONTROL_LEASE, holder=said, config=config)
    assert await lease.try_acquire()
    yield
    await lease.release()
    await shutdown_all_coordinators()
    await get_router().stop()
    await close_engine()


@pytest.mark.parametrize(
    "option",
    [
        {"training_batch_size": 32},
        {"training_epochs": 9},
        {"training_model_version": "large"},
        {"pipeline_auto_trigger": False},
    ],
)
async def test_options_that_the_run_of_another_process_does_not_have_are_refused_with_who_leads(option):
    async with control_of_another_process(has_daemons=True):
        (name,) = option
        with pytest.raises(ConfigError, match=f"process 1 on another .* runs the loop; .*{name[9:]}"):
            await start_coordination(**option)
        assert not get_bootstrap_status()["initialized"], "nothing was begun"
        assert (await start_coordination(pipeline_auto_trigger=True))["errors"] == [], "which a run does"
        with pytest.raises(ConfigError, match="process 1 on another"):
            bootstrap_coordination(**option)
        assert get_pipeline_orchestrator().config == PipelineConfig(auto_trigger=True)


async def test_beside_a_run_the_status_says_that_it_goes_on_by_itself():
    async with control_of_another_process(has_daemons=True):
        assert (await start_coordination())["errors"] == []
        status = get_pipeline_status()
        assert (status["auto_trigger"], status["mode"]) == (True, "full")


async def test_a_program_that_may_follow_another_one_has_options_of_its_own():
    async with control_of_another_process(has_daemons=False):
        assert (await start_coordination(training_epochs=9, pipeline_auto_trigger=True))["errors"] == []
        assert get_pipeline_orchestrator().config.training_epochs == 9


async def test_options_of_a_second_call_inside_a_loop_are_honored():
    await start_coordination(enable_health=False)
    status = await start_coordination(enable_health=True)
    assert status["coordinators"]["health_manager"]["initialized"]
    await shutdown_all_coordinators()
    await get_router().stop()
    await close_engine()


def test_options_of_a_second_call_that_come_too_late_are_refused_and_change_nothing():
    status = bootstrap_coordination()
    with pytest.raises(ConfigError, match="health_manager is up; shut the system down"):
        bootstrap_coordination(enable_health=False, training_epochs=3)
    assert get_bootstrap_status() == status
    assert get_pipeline_orchestrator().config.training_epochs is None
    get_open_run().loop = object()
    with pytest.raises(ConfigError, match="the loop runs; stop it before you change training_epochs"):
        bootstrap_coordination(training_epochs=3)
    get_open_run().loop = None
    assert bootstrap_coordination(enable_leadership=False, enable_health=True)["initialized"]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"enable_pipeline": False, "training_epochs": 3}, "training_epochs is for pipeline_orchestrator"),
        ({"enable_health": "no"}, "enable_health is 'no'"),
        ({"max_retries": 0}, "at least one try"),
        ({"retry_delay": "soon"}, "delay of 0 or more"),
        ({"wrap_handlers": False}, "wrap_handlers"),
        ({"auto_trigger_pipeline": "yes"}, "auto_trigger is 'yes'"),
        ({"heartbeat_threshold": 0}, "heartbeat_threshold"),
        ({"heartbeat_threshold": "long"}, "heartbeat_threshold"),
    ],
)
def test_an_option_without_effect_is_refused_before_anything_is_up(wrong, text):
    with pytest.raises(ConfigError, match=text):
        initialize_all_coordinators(**wrong)
    assert not get_bootstrap_status()["initialized"]
    assert initialize_all_coordinators(wrap_handlers=True)["pipeline"]


@pytest.mark.parametrize("wrong", [{"training_data_path": "x.npz"}, {"training_model_version": "v7"}])
def test_a_value_that_the_pipeline_cannot_honor_is_refused_before_anything_is_up(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        bootstrap_coordination(**wrong)
    assert not get_bootstrap_status()["initialized"]


def test_a_required_master_loop_and_required_coordinators_are_errors(monkeypatch):
    with pytest.raises(RuntimeError, match="no master loop is running"):
        bootstrap_coordination(require_master_loop=True)
    assert not get_bootstrap_status()["initialized"]
    process_scope().clear()
    monkeypatch.setenv("RINGRIFT_SKIP_MASTER_LOOP_CHECK", "1")
    monkeypatch.setenv("RINGRIFT_REQUIRE_CRITICAL_IMPORTS", "1")
    assert bootstrap_coordination(require_master_loop=True)["initialized"]
    shutdown_coordination()
    broken = {
        name: spec if name != "health_manager" else _misnamed(spec)
        for name, spec in COORDINATOR_REGISTRY.items()
    }
    process_scope().put(Initializer, Initializer(broken, publish=lambda *_: None))
    with pytest.raises(RuntimeError, match="health_manager"):
        bootstrap_coordination()


def _misnamed(spec):
    return type(spec)(
        name=spec.name, layer=2, pattern=spec.pattern, capability=spec.capability, entry_point="ringrift:gone"
    )


# --- health of the whole -------------------------------------------------------------------------------


def test_health_before_bootstrap_is_unknown():
    health = get_system_health()
    assert health["status"] == "unknown"
    assert health["overall_health"] is None
    assert health["issues"] == ["system: not bootstrapped, and no run tells how it is"]


def test_health_after_bootstrap_has_the_printed_shape_and_counts_no_planned_part():
    bootstrap_coordination()
    health = get_system_health()
    assert health["overall_health"] == 1.0
    assert health["status"] == "healthy"
    assert {"event_coordinator", "health_manager", "pipeline"} <= set(health["coordinators"])
    assert "cache" not in health["coordinators"]
    assert set(health["coordinators"].values()) == {1.0}
    assert set(health["handler_health"]) == {
        "total_handlers",
        "total_invocations",
        "total_failures",
        "total_timeouts",
        "success_rate",
        "unhealthy_handlers",
    }
    get_router().publish_sync("DAEMON_PERMANENTLY_FAILED", {"daemon_name": "x", "node_id": "n"})
    health = get_system_health()
    assert health["overall_health"] == 0.8
    assert health["status"] == "degraded"
    assert health["issues"] == ["x: daemon"]


def test_a_coordinator_that_cannot_say_how_it_is_counts_as_down():
    bootstrap_coordination()

    class Mute:
        def get_status(self):
            raise KeyError("status")

    get_initializer().instances["health_manager"] = Mute()
    health = get_system_health()
    assert health["coordinators"]["health_manager"] == 0.0
    assert health["overall_health"] == one_of_all_down(health)
    assert any("status unknown" in issue for issue in health["issues"])


@pytest.mark.parametrize(
    ("status", "score"),
    [
        ({}, 1.0),
        ({"subscribed": False}, 0.7),
        ({"paused": True}, 0.8),
        ({"critical_constraints": 2}, 0.6),
        ({"backpressure_active": True}, 0.9),
        ({"plateaus": ["a", "b", "c", "d"]}, 0.7),
        ({"regressions": 5}, 0.6),
        ({"orphaned_tasks": 9}, 0.5),
        ({"failed_tasks": 10}, 1.0),
        ({"failed_tasks": 11}, 0.9),
        ({"critical_constraints": 9}, 0.0),
    ],
)
def test_deductions(status, score):
    assert score_status(status)[0] == pytest.approx(score)


async def test_handlers_that_fail_show_in_the_health():
    async def broken(event):
        raise ValueError("broken on purpose")

    router = get_router()
    router.subscribe("HOST_ONLINE", broken)
    router.subscribe("HOST_OFFLINE", resilient_handler(broken, "probe"))
    for _ in range(3):
        await router.publish("HOST_ONLINE", {"node_id": "a"})
        await router.publish("HOST_OFFLINE", {"node_id": "a", "reason": "gone"})
    health = get_system_health()["handler_health"]
    assert health["total_failures"] == 6
    assert health["unhealthy_handlers"] == ["probe.broken"]
    assert health["success_rate"] < 1.0
    await router.stop()
    await close_engine()


def test_smoke_test_tells_before_and_after():
    before = run_bootstrap_smoke_test()
    assert not before["passed"]
    assert {check["name"] for check in before["checks"] if not check["passed"]} >= {"bootstrapped", "ready"}
    bootstrap_coordination()
    after = run_bootstrap_smoke_test()
    assert after["passed"], after["checks"]
    assert after["failed_count"] == 0


def test_event_registries_are_views_of_the_tables():
    stats = get_registry_stats()
    assert stats["init_call_count"] == len(INIT_CALL_REGISTRY) > 15
    assert stats["delegation_count"] == len(DELEGATION_REGISTRY)
    calls = process_init_call_registry({})
    assert calls["health_manager"] is True
    assert calls["leadership_coordinator"] is False
    heard = process_delegation_registry({})
    built = {spec.name for spec in DELEGATION_REGISTRY if spec.coordinator in BUILT}
    assert {name for name, live in heard.items() if live} == built


async def test_what_is_told_inside_a_loop_is_delivered_when_the_call_returns():
    heard = []
    router = get_router()
    for event in ("COORDINATOR_HEALTHY", "COORDINATOR_SHUTDOWN"):
        router.subscribe(event, lambda e: heard.append((e.event_type, e.payload["coordinator_name"])))
    await start_coordination()
    assert {name for event, name in heard if event == "COORDINATOR_HEALTHY"} == BUILT
    await shutdown_all_coordinators()
    assert {name for event, name in heard if event == "COORDINATOR_SHUTDOWN"} == BUILT
    await router.stop()
    await close_engine()
