"""Coordinators in layers: start, status, health, stop."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from ringrift.coordination.contracts import coordinator_directory, invoke_health_check
from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.coordinator_dependencies import (
    COORDINATOR_REGISTRY,
    CoordinatorSpec,
    InitOutcome,
    InitPattern,
    order,
)
from ringrift.coordination.coordinator_persistence import get_snapshot_coordinator
from ringrift.coordination.data_pipeline_orchestrator import (
    PipelineConfig,
    get_pipeline_orchestrator,
    refuse_beside_run,
)
from ringrift.coordination.event_router import get_router
from ringrift.coordination.handler_resilience import get_handler_metrics
from ringrift.coordination.initializer import (
    BootstrapOptions,
    Ending,
    Initializer,
    discard,
    shut_down,
    shut_down_async,
)
from ringrift.coordination.master_loop_guard import require_running_master_loop
from ringrift.coordination.system_health_monitor import is_down
from ringrift.coordination.task_lifecycle_coordinator import get_task_lifecycle_coordinator
from ringrift.coordination.unified_health_manager import NAME as HEALTH_MANAGER
from ringrift.coordination.unified_health_manager import Recovery, UnifiedHealthManager
from ringrift.daemons.running import attempt
from ringrift.engine.arguments import check_flag, check_seconds
from ringrift.engine.limits import LEASE_S_MIN, WAIT_S_MAX
from ringrift.engine.run_reports import ControlHere, read_report, unknown
from ringrift.errors import ConfigError, Unavailable
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.process import process_scope
from ringrift.runtime import system_runtime
from ringrift.status import as_result
from ringrift.work.tasks import ORPHAN_AFTER_S

__all__ = [
    "COORDINATOR_REGISTRY",
    "CoordinatorSpec",
    "InitPattern",
    "bootstrap_coordination",
    "get_bootstrap_status",
    "get_system_health",
    "initialize_all_coordinators",
    "is_coordination_ready",
    "run_bootstrap_smoke_test",
    "shutdown_all_coordinators",
    "shutdown_coordination",
    "start_coordination",
]

# The documents' calls that start, describe and end the whole system. All are views of one initializer.


SHUTDOWN_TIMEOUT_S = 30.0
HEARTBEAT_THRESHOLD_S = 60.0


def get_initializer() -> Initializer:
    """Return the one of this process."""
    return process_scope().get(Initializer, lambda: Initializer(publish=_publish))


def bootstrap_coordination(
    *,
    pipeline_auto_trigger: bool | None = None,
    register_with_registry: bool | None = None,
    require_master_loop: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Bring all coordinators up and return `get_bootstrap_status()`.

    A second call without options changes nothing; one with options changes what is up accordingly, or is a
    `ConfigError` if that is not possible any more, or the loop runs in another process with its own.
    *options* are `enable_<coordinator>=False` to leave one out, and `training_epochs`, `training_batch_size`,
    `training_model_version` for the pipeline. An unknown name or a value that cannot have an effect is a
    `ConfigError`. Coordinators stand in the directory of `get_coordinator` unless *register_with_registry*
    says no. Raises `RuntimeError` without a running master loop if one is required, and if a coordinator
    fails while RINGRIFT_REQUIRE_CRITICAL_IMPORTS is set.
    """
    # Checked before anything starts, so that a refusal leaves no half of a system behind.
    _check_flags(require_master_loop=require_master_loop, register_with_registry=register_with_registry)
    if require_master_loop:
        require_running_master_loop()
    initializer = get_initializer()
    initializer.initialize(_options(initializer, options, auto_trigger=pipeline_auto_trigger))
    return _after_start(initializer, register=register_with_registry)


async def start_coordination(
    *, pipeline_auto_trigger: bool | None = None, register_with_registry: bool | None = None, **options: Any
) -> dict[str, Any]:
    """`bootstrap_coordination` for code on a loop; also takes over the state that the last run saved."""
    _check_flags(register_with_registry=register_with_registry)
    initializer = get_initializer()
    await initializer.initialize_async(_options(initializer, options, auto_trigger=pipeline_auto_trigger))
    status = _after_start(initializer, register=register_with_registry)
    # Last: a start that is refused above leaves the saved states alone.
    await get_snapshot_coordinator().restore_all(initializer.instances)
    return status


def initialize_all_coordinators(
    auto_trigger_pipeline: bool | None = None,  # noqa: FBT001 - the documents' signature
    *,
    heartbeat_threshold: float | None = None,
    max_retries: int = 3,
    retry_delay: float = 0.5,
    **options: Any,
) -> dict[str, Any]:
    """Bring all coordinators up; return whether each of the quick start's names is up.

    `_errors` says why one is not, `_instances` lists those that are. A task is orphaned after
    *heartbeat_threshold* seconds of silence, 60 unless a call said otherwise. A second call is as one of
    `bootstrap_coordination`.
    """
    initializer = get_initializer()
    # Only the first call has a default: later ones would otherwise change back what a call had chosen.
    if heartbeat_threshold is None and not initializer.initialized:
        heartbeat_threshold = HEARTBEAT_THRESHOLD_S
    arguments = {**options, "heartbeat_threshold": heartbeat_threshold}
    # An option of the documents. False cannot be had here, and ignoring it would hide that.
    if not arguments.pop("wrap_handlers", True):
        raise ConfigError("wrap_handlers is False; the router isolates every handler, there is no other way")
    wanted = _options(
        initializer,
        arguments,
        auto_trigger=auto_trigger_pipeline,
        tries_max=max_retries,
        retry_delay_s=retry_delay,
    )
    initializer.initialize(wanted)
    _after_start(initializer, register=None)
    results = {
        spec.short_name: initializer.results[spec.name]
        for spec in initializer.registry.values()
        if spec.short_name
    }
    return {
        **{name: result.initialized for name, result in results.items()},
        "_errors": {name: result.error for name, result in results.items() if result.error},
        "_instances": [name for name, result in results.items() if result.initialized],
    }


def get_bootstrap_status() -> dict[str, Any]:
    """Return what is up, what is not, and why."""
    initializer = get_initializer()
    results = initializer.results

    def named(outcome: InitOutcome) -> list[str]:
        return [name for name, result in results.items() if result.outcome is outcome]

    return {
        "initialized": initializer.initialized,
        "started_at": _moment(initializer.started_s),
        "completed_at": _moment(initializer.completed_s),
        "initialized_count": len(named(InitOutcome.INITIALIZED)),
        "subscribed_count": sum(result.subscribed for result in results.values()),
        "total_count": len(results),
        "coordinators": {
            name: {
                "initialized": result.initialized,
                "subscribed": result.subscribed,
                "error": result.error,
            }
            for name, result in results.items()
        },
        "errors": list(initializer.errors),
        "skipped": [*named(InitOutcome.SKIPPED), *named(InitOutcome.RETIRED)],
        "disabled": named(InitOutcome.DISABLED),
        "not_built": named(InitOutcome.NOT_BUILT),
        "shutdown_requested": initializer.shutdown_requested,
    }


def is_coordination_ready() -> bool:
    """Whether everything that the rest stands on is up, as far as this version contains it."""
    initializer = get_initializer()
    needed = [name for name, spec in initializer.registry.items() if spec.needed_for_ready]
    return initializer.initialized and all(
        initializer.results[name].initialized or initializer.results[name].outcome is InitOutcome.NOT_BUILT
        for name in needed
    )


def shutdown_coordination() -> dict[str, Any]:
    """End all coordinators in reverse order; afterwards the system can be brought up again."""
    initializer = get_initializer()
    if not initializer.initialized:
        return {"shutdown": False, "reason": "not initialized"}
    runtime = system_runtime()
    endings = shut_down(initializer, timeout_s=SHUTDOWN_TIMEOUT_S, runtime=runtime)
    _forget_ended(endings)
    return {
        "shutdown": True,
        "results": {ending.name: not ending.error for ending in endings},
        "errors": {ending.name: ending.error for ending in endings if ending.error},
        "successful": sum(not ending.error for ending in endings),
        "failed": sum(bool(ending.error) for ending in endings),
    }


async def shutdown_all_coordinators(
    timeout_seconds: float = SHUTDOWN_TIMEOUT_S, *, emit_events: bool = True
) -> dict[str, Any]:
    """Save coordinator state, then end all in reverse order, all within *timeout_seconds*."""
    runtime, initializer = system_runtime(), get_initializer()
    began_s = runtime.monotonic_s()
    if initializer.instances:
        # Saved before anything ends, while states are whole; half of the time stays for the endings.
        await get_snapshot_coordinator().save_all(initializer.instances, timeout_s=timeout_seconds / 2)
    left_s = timeout_seconds - (runtime.monotonic_s() - began_s)
    endings = await shut_down_async(
        initializer, timeout_s=max(0.0, left_s), runtime=runtime, emit_events=emit_events
    )
    _forget_ended(endings)
    return {
        "status": {
            _shown_name(initializer, ending.name): {
                "success": not ending.error,
                "error": ending.error or None,
            }
            for ending in endings
        },
        "total_time_seconds": runtime.monotonic_s() - began_s,
        "success_count": sum(not ending.error for ending in endings),
        "total_count": len(endings),
    }


def _publish(event: str, payload: Mapping[str, Any]) -> object:
    """Publish; inside a loop, return what can be waited for until it is delivered."""
    router = get_router()
    return router.delivery(router.publish_sync(event, payload, "bootstrap"))


def is_idle_daemon(instance: Any) -> bool:
    """A daemon's class, or a daemon that nobody started yet: the daemon manager looks after those."""
    return isinstance(instance, type) or getattr(instance, "is_running", True) is False


def _check_flags(**flags: bool | None) -> None:
    for name, value in flags.items():
        if value is not None:
            check_flag(name, value)


def _options(
    initializer: Initializer, named: Mapping[str, Any], *, auto_trigger: bool | None, **retries: Any
) -> BootstrapOptions:
    switches = {spec.switch for spec in initializer.registry.values() if spec.switch}
    # Documents spell some switches shorter than the names of their coordinators; both spellings work.
    switches |= {f"enable_{name}" for name in initializer.registry}
    taken = {name for spec in initializer.registry.values() for name in spec.arguments}
    if unknown := sorted(set(named) - switches - taken):
        raise ConfigError(
            f"bootstrap knows no option {unknown[0]!r}; it has: {', '.join(sorted(switches | taken))}"
        )
    # Its own coordinator would refuse a wrong value, too, but as one failure among many results.
    training = {name: value for name, value in named.items() if name.startswith("training_")}
    config = PipelineConfig(auto_trigger=auto_trigger, **training)
    if config != get_pipeline_orchestrator().config:
        wanted = msgspec.structs.asdict(config)
        refuse_beside_run({name: value for name, value in wanted.items() if value is not None})
    if (silence_s := named.get("heartbeat_threshold")) is not None:
        check_seconds("heartbeat_threshold", silence_s, low=LEASE_S_MIN, high=WAIT_S_MAX)
    asked = {**named, "pipeline_auto_trigger": auto_trigger}
    return BootstrapOptions(
        enable={name: value for name, value in named.items() if name in switches},
        arguments={name: value for name, value in asked.items() if name in taken and value is not None},
        **retries,
    )


def _after_start(initializer: Initializer, *, register: bool | None) -> dict[str, Any]:
    """List the coordinators for others, unless a call said no to that."""
    if register is not None:
        initializer.listed = register
    # All of them at each call: a second call may bring up one that was left out, or take all off the list.
    for name, instance in initializer.instances.items():
        if not initializer.listed:
            coordinator_directory().unregister(name)
        elif not is_idle_daemon(instance):
            coordinator_directory().register(instance, name)
    _register_recoveries(initializer)
    failed = [name for name, result in initializer.results.items() if result.outcome is InitOutcome.FAILED]
    # Last, with the rest up and listed: whoever catches the error can still look at the status.
    if failed and get_settings().require_critical_imports:
        raise RuntimeError(f"these coordinators failed: {'; '.join(initializer.errors)}")
    return get_bootstrap_status()


def _register_recoveries(initializer: Initializer) -> None:
    """Tell the health manager how each coordinator that was wired is brought back, all but itself."""
    manager = initializer.instances.get(HEALTH_MANAGER)
    if not isinstance(manager, UnifiedHealthManager):
        return
    for name in initializer.instances.keys() - {HEALTH_MANAGER}:
        # What was merely got or imported has an owner that looks after it, such as the daemon manager.
        if initializer.registry[name].pattern is InitPattern.WIRE:
            manager.register_recovery(name, _restart_of(initializer, name), of_this_process=True)


def _restart_of(initializer: Initializer, name: str) -> Recovery:
    async def restart() -> None:
        # Anybody may have said that it failed, also of one in another process: what is well is left alone.
        if not is_down(await invoke_health_check(initializer.instances.get(name))):
            return
        coordinator = await initializer.restart(name)
        if initializer.listed:
            coordinator_directory().register(coordinator, name)
        result = await invoke_health_check(coordinator)
        if is_down(result):
            raise Unavailable(f"{name} is no better after a restart: {result.message}")

    return restart


def _forget_ended(endings: Iterable[Ending]) -> None:
    for ending in endings:
        coordinator_directory().unregister(ending.name)
    # What one bootstrap was asked for ends with it: the next begins with the defaults.
    get_pipeline_orchestrator().config = PipelineConfig()
    get_task_lifecycle_coordinator().heartbeat_threshold_s = ORPHAN_AFTER_S


def _shown_name(initializer: Initializer, name: str) -> str:
    return initializer.registry[name].short_name or name


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


# How the whole is: the score of every coordinator, what lowers it, and how the handlers do.
#
# A coordinator loses points for what its status tells. One that failed to come up, or cannot say how it is,
# scores nothing and counts: unknown is not healthy. One that is not built, was left out, or is a daemon that
# nobody started, does not count.
#
# A process without coordinators of its own gives what the control process last said; where none did, the
# health is unknown, and the number None.


ISSUES_MAX = 20
SYSTEM_HEALTH = "get_system_health"  # in the report of the run
FAILED_TASKS_TOLERATED = 10
# A handler that failed this often in a row fails by itself and not because of one event.
IN_A_ROW_MAX = 3
_INSTANCES = frozenset({InitPattern.WIRE, InitPattern.GET})
_LEVELS = ((0.9, "healthy"), (0.7, "degraded"))


@dataclass(frozen=True, slots=True)
class Deduction:
    """What one fact of a status costs, times its number up to *count_max*."""

    weight: float
    text: str
    count_max: int = 1_000


DEDUCTIONS: Mapping[str, Deduction] = {
    "paused": Deduction(0.2, "paused", 1),
    "critical_constraints": Deduction(0.2, "critical resource constraints"),
    "backpressure_active": Deduction(0.1, "backpressure active", 1),
    "plateaus": Deduction(0.1, "plateaus", 3),
    "regressions": Deduction(0.2, "regressions", 2),
    "orphaned_tasks": Deduction(0.1, "orphaned tasks", 5),
}
NOT_SUBSCRIBED = Deduction(0.3, "not subscribed")
MANY_FAILED = Deduction(0.1, "failed tasks")


def score_status(status: Mapping[str, Any]) -> tuple[float, list[str]]:
    """Return the score of one coordinator by its own status, and what lowered it."""
    score, issues = 1.0, []
    if status.get("subscribed") is False:
        score -= NOT_SUBSCRIBED.weight
        issues.append(NOT_SUBSCRIBED.text)
    for name, deduction in DEDUCTIONS.items():
        value = status.get(name) or 0
        # Statuses give these facts as lists, numbers or flags; all of them have a count.
        count = len(value) if isinstance(value, list | tuple | set | dict) else int(value)
        if count > 0:
            score -= deduction.weight * min(count, deduction.count_max)
            issues.append(deduction.text if deduction.count_max == 1 else f"{count} {deduction.text}")
    failed = int(status.get("failed_tasks") or 0)
    if failed > FAILED_TASKS_TOLERATED:
        score -= MANY_FAILED.weight
        issues.append(f"{failed} {MANY_FAILED.text}")
    return max(0.0, score), issues


def get_system_health() -> dict[str, Any]:
    """Return the health of the whole in the shape of the quick start."""
    initializer = get_initializer()
    if not initializer.results:
        return _reported_health()
    scores, issues = _coordinator_scores(initializer)
    overall = sum(scores.values()) / len(scores) if scores else 0.0
    if not scores:
        issues.append("system: no coordinator is up")
    manager = process_scope().peek(UnifiedHealthManager)
    if manager is not None and manager.is_subscribed:
        # The lower of both: the mean over coordinators hides one broken part, the manager's score does not.
        overall = min(overall, manager.get_system_health_score())
        issues += [str(issue) for issue in manager.issues()]
    return {
        "overall_health": round(overall, 3),
        "status": next((word for least, word in _LEVELS if overall >= least), "unhealthy"),
        "coordinators": scores,
        "issues": issues[:ISSUES_MAX],
        "handler_health": handler_health(get_router()),
        "timestamp": system_runtime().now_s(),
    }


def _reported_health() -> dict[str, Any]:
    """Of a process without coordinators: what the run says, or that nobody does."""
    # The report is the control process's own: asked there, it would answer with what it said before.
    report = None if process_scope().peek(ControlHere) else read_report()
    if report is not None and not report.ended and SYSTEM_HEALTH in report.answers:
        return dict(report.answers[SYSTEM_HEALTH])
    status, issue = ("unknown", "system: not bootstrapped, and no run tells how it is")
    if report is not None and report.ended:
        status, issue = "stopped", "system: the run has stopped"
    handlers = handler_health(get_router())  # those of this process, if it has any
    return {
        "overall_health": None,
        "status": status,
        "coordinators": {},
        "issues": [issue],
        "handler_health": handlers if handlers["total_handlers"] else unknown(handlers),
        "timestamp": system_runtime().now_s(),
    }


def handler_health(router: UnifiedEventRouter) -> dict[str, Any]:
    """Return how handlers did so far.

    The router counts what failed; handlers made resilient count their calls, and hide failures from it.
    The success rate is the share of routed events and counted calls without a failure.
    """
    stats, wrapped = router.get_stats(), list(get_handler_metrics().values())
    failures = stats["handler_failures"] + sum(metrics.failure_count for metrics in wrapped)
    timeouts = stats["handler_timeouts"] + sum(metrics.timeout_count for metrics in wrapped)
    invocations = sum(metrics.invocation_count for metrics in wrapped)
    tried = stats["total_events_routed"] + invocations
    # Time-outs of wrapped handlers are among their failures already. One event can fail at several handlers.
    bad = min(tried, failures + stats["handler_timeouts"])
    return {
        "total_handlers": stats["subscriber_count"],
        "total_invocations": tried,
        "total_failures": failures,
        "total_timeouts": timeouts,
        "success_rate": 1.0 - bad / tried if tried else 1.0,
        "unhealthy_handlers": [m.handler_name for m in wrapped if m.consecutive_failures >= IN_A_ROW_MAX],
    }


def _coordinator_scores(initializer: Initializer) -> tuple[dict[str, float], list[str]]:
    scores: dict[str, float] = {}
    issues: list[str] = []
    for name, result in initializer.results.items():
        spec = initializer.registry[name]
        shown = spec.short_name or name
        # A skipped one counts, unlike these: it should be up, and something that failed keeps it down.
        if result.outcome in {InitOutcome.NOT_BUILT, InitOutcome.DISABLED, InitOutcome.RETIRED}:
            continue
        if not result.initialized:
            scores[shown] = 0.0
            issues.append(f"{shown}: {result.error}")
        elif spec.pattern in _INSTANCES and not is_idle_daemon(initializer.instances[name]):
            score, found = _score_instance(name, initializer.instances[name])
            scores[shown] = round(score, 3)
            issues += [f"{shown}: {issue}" for issue in found]
    return scores, issues


def _score_instance(name: str, instance: Any) -> tuple[float, list[str]]:
    score = 1.0
    issues: list[str] = []
    if hasattr(instance, "get_status"):
        status = attempt(f"status of {name}", lambda: score_status(instance.get_status()))
        if status.value is None:
            return 0.0, [f"status unknown ({status.problem})"]
        score, issues = status.value
    if hasattr(instance, "health_check"):
        answer = attempt(f"health check of {name}", instance.health_check)
        if inspect.isawaitable(answer.value):
            discard(answer.value)  # an asynchronous check is asked by the coordinator health monitor
            return score, issues
        if answer.error is not None:
            return 0.0, [*issues, f"health unknown ({answer.problem})"]
        result = as_result(answer.value)
        if not result.healthy:
            return min(score, result.health_score), [*issues, result.message or "unhealthy"]
    return score, issues


# A quick look at a bootstrapped system: is it up, and does an event get through?


Check = Callable[[], tuple[bool, str]]


def _registry_is_sound() -> tuple[bool, str]:
    return True, f"{len(order(COORDINATOR_REGISTRY))} coordinators in order"


def _is_up() -> tuple[bool, str]:
    status = get_bootstrap_status()
    return status["initialized"], f"{status['initialized_count']} of {status['total_count']} coordinators"


def _none_failed() -> tuple[bool, str]:
    errors = get_bootstrap_status()["errors"]
    return not errors, "; ".join(errors) or "no coordinator failed"


def _is_ready() -> tuple[bool, str]:
    return is_coordination_ready(), "everything that the rest stands on"


def _events_have_hearers() -> tuple[bool, str]:
    router = get_router()
    return router.has_subscribers("ERROR"), f"{router.get_stats()['subscriber_count']} subscriptions"


def _router_is_healthy() -> tuple[bool, str]:
    result = get_router().health_check()
    return result.healthy, result.message


CHECKS: dict[str, Check] = {
    "registry": _registry_is_sound,
    "bootstrapped": _is_up,
    "coordinators": _none_failed,
    "ready": _is_ready,
    "subscriptions": _events_have_hearers,
    "event_router": _router_is_healthy,
}


def run_bootstrap_smoke_test() -> dict[str, Any]:
    """Run all checks; one that raises has failed. Changes nothing."""
    checks = []
    for name, check in CHECKS.items():
        ran = attempt(f"smoke test {name}", check)
        passed, details = ran.value or (False, "")
        checks.append({"name": name, "passed": passed, "error": ran.problem or None, "details": details})
    passed_count = sum(bool(check["passed"]) for check in checks)
    status = get_bootstrap_status()
    return {
        "passed": passed_count == len(checks),
        "checks": checks,
        "passed_count": passed_count,
        "failed_count": len(checks) - passed_count,
        "warnings": [*get_system_health()["issues"], *(f"{name}: not built" for name in status["not_built"])],
    }
