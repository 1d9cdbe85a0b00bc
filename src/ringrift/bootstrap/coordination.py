"""The documents' calls that start, describe and end the whole system. All are views of one initialiser."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from ringrift.bootstrap.initialiser import BootstrapOptions, Initialiser
from ringrift.bootstrap.master_loop import require_running_master_loop
from ringrift.bootstrap.plan import InitOutcome
from ringrift.bootstrap.registry import COORDINATOR_REGISTRY
from ringrift.bootstrap.shutdown import Ending, shut_down, shut_down_async
from ringrift.bootstrap.snapshots import get_snapshot_coordinator
from ringrift.engine.arguments import check_seconds
from ringrift.engine.limits import LEASE_S_MIN, WAIT_S_MAX
from ringrift.errors import ConfigError
from ringrift.events.router import get_router
from ringrift.health.contracts import coordinator_directory
from ringrift.learning.pipeline_orchestrator import PipelineConfig
from ringrift.process import process_scope
from ringrift.runtime import system_runtime
from ringrift.settings import get_settings

SHUTDOWN_TIMEOUT_S = 30.0
HEARTBEAT_THRESHOLD_S = 60.0


def get_initialiser() -> Initialiser:
    """Return the one of this process."""
    return process_scope().get(Initialiser, lambda: Initialiser(publish=_publish))


def bootstrap_coordination(
    *,
    pipeline_auto_trigger: bool | None = None,
    register_with_registry: bool | None = None,
    require_master_loop: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Bring all coordinators up and return `get_bootstrap_status()`.

    A second call without options changes nothing; one with options changes what is up accordingly, or is a
    `ConfigError` if that is not possible any more. *options* are `enable_<coordinator>=False` to leave one
    out, and `training_epochs`, `training_batch_size`, `training_model_version` for the pipeline. An unknown
    name or a value that cannot have an effect is a `ConfigError`. Coordinators stand in the directory of
    `get_coordinator` unless *register_with_registry* says no. Raises `RuntimeError` without a running master
    loop if one is required, and if a coordinator fails while RINGRIFT_REQUIRE_CRITICAL_IMPORTS is set.
    """
    if require_master_loop:
        require_running_master_loop()
    initialiser = get_initialiser()
    initialiser.initialise(_options(initialiser, options, auto_trigger=pipeline_auto_trigger))
    return _after_start(initialiser, register=register_with_registry)


async def start_coordination(
    *, pipeline_auto_trigger: bool | None = None, register_with_registry: bool | None = None, **options: Any
) -> dict[str, Any]:
    """`bootstrap_coordination` for code on a loop; also takes over the state that the last run saved."""
    initialiser = get_initialiser()
    await initialiser.initialise_async(_options(initialiser, options, auto_trigger=pipeline_auto_trigger))
    status = _after_start(initialiser, register=register_with_registry)
    await get_snapshot_coordinator().restore_all(initialiser.instances)
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
    initialiser = get_initialiser()
    if heartbeat_threshold is None and not initialiser.initialized:
        heartbeat_threshold = HEARTBEAT_THRESHOLD_S
    arguments = {**options, "heartbeat_threshold": heartbeat_threshold}
    if not arguments.pop("wrap_handlers", True):
        raise ConfigError("wrap_handlers is False; the router isolates every handler, there is no other way")
    wanted = _options(
        initialiser,
        arguments,
        auto_trigger=auto_trigger_pipeline,
        tries_max=max_retries,
        retry_delay_s=retry_delay,
    )
    initialiser.initialise(wanted)
    _after_start(initialiser, register=None)
    results = {
        spec.short_name: initialiser.results[spec.name]
        for spec in initialiser.registry.values()
        if spec.short_name
    }
    return {
        **{name: result.initialized for name, result in results.items()},
        "_errors": {name: result.error for name, result in results.items() if result.error},
        "_instances": [name for name, result in results.items() if result.initialized],
    }


def get_bootstrap_status() -> dict[str, Any]:
    """Return what is up, what is not, and why."""
    initialiser = get_initialiser()
    results = initialiser.results

    def named(outcome: InitOutcome) -> list[str]:
        return [name for name, result in results.items() if result.outcome is outcome]

    return {
        "initialized": initialiser.initialized,
        "started_at": _moment(initialiser.started_s),
        "completed_at": _moment(initialiser.completed_s),
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
        "errors": list(initialiser.errors),
        "skipped": [*named(InitOutcome.SKIPPED), *named(InitOutcome.RETIRED)],
        "disabled": named(InitOutcome.DISABLED),
        "not_built": named(InitOutcome.NOT_BUILT),
        "shutdown_requested": initialiser.shutdown_requested,
    }


def is_coordination_ready() -> bool:
    """Whether everything that the rest stands on is up, as far as this version contains it."""
    initialiser = get_initialiser()
    needed = [name for name, spec in initialiser.registry.items() if spec.needed_for_ready]
    return initialiser.initialized and all(
        initialiser.results[name].initialized or initialiser.results[name].outcome is InitOutcome.NOT_BUILT
        for name in needed
    )


def shutdown_coordination() -> dict[str, Any]:
    """End all coordinators in reverse order; afterwards the system can be brought up again."""
    initialiser = get_initialiser()
    if not initialiser.initialized:
        return {"shutdown": False, "reason": "not initialized"}
    runtime = system_runtime()
    endings = shut_down(initialiser, timeout_s=SHUTDOWN_TIMEOUT_S, runtime=runtime)
    _leave_directory(endings)
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
    runtime, initialiser = system_runtime(), get_initialiser()
    began_s = runtime.monotonic_s()
    if initialiser.instances:
        await get_snapshot_coordinator().save_all(initialiser.instances, timeout_s=timeout_seconds / 2)
    left_s = timeout_seconds - (runtime.monotonic_s() - began_s)
    endings = await shut_down_async(
        initialiser, timeout_s=max(0.0, left_s), runtime=runtime, emit_events=emit_events
    )
    _leave_directory(endings)
    return {
        "status": {
            _shown_name(initialiser, ending.name): {
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


def _options(
    initialiser: Initialiser, named: Mapping[str, Any], *, auto_trigger: bool | None, **retries: Any
) -> BootstrapOptions:
    switches = {spec.switch for spec in initialiser.registry.values() if spec.switch}
    switches |= {f"enable_{name}" for name in initialiser.registry}
    taken = {name for spec in initialiser.registry.values() for name in spec.arguments}
    if unknown := sorted(set(named) - switches - taken):
        raise ConfigError(
            f"bootstrap knows no option {unknown[0]!r}; it has: {', '.join(sorted(switches | taken))}"
        )
    # Its own coordinator would refuse a wrong value, too, but as one failure among many results.
    training = {name: value for name, value in named.items() if name.startswith("training_")}
    PipelineConfig(auto_trigger=auto_trigger, **training)
    if (silence_s := named.get("heartbeat_threshold")) is not None:
        check_seconds("heartbeat_threshold", silence_s, low=LEASE_S_MIN, high=WAIT_S_MAX)
    asked = {**named, "pipeline_auto_trigger": auto_trigger}
    return BootstrapOptions(
        enable={name: value for name, value in named.items() if name in switches},
        arguments={name: value for name, value in asked.items() if name in taken and value is not None},
        **retries,
    )


def _after_start(initialiser: Initialiser, *, register: bool | None) -> dict[str, Any]:
    """List the coordinators for others, unless a call said no to that."""
    if register is not None:
        initialiser.listed = register
    for name, instance in initialiser.instances.items():
        if not initialiser.listed:
            coordinator_directory().unregister(name)
        elif not is_idle_daemon(instance):
            coordinator_directory().register(instance, name)
    failed = [name for name, result in initialiser.results.items() if result.outcome is InitOutcome.FAILED]
    if failed and get_settings().require_critical_imports:
        raise RuntimeError(f"these coordinators failed: {'; '.join(initialiser.errors)}")
    return get_bootstrap_status()


def _leave_directory(endings: Iterable[Ending]) -> None:
    for ending in endings:
        coordinator_directory().unregister(ending.name)


def _shown_name(initialiser: Initialiser, name: str) -> str:
    return initialiser.registry[name].short_name or name


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


__all__ = [
    "COORDINATOR_REGISTRY",
    "bootstrap_coordination",
    "get_bootstrap_status",
    "initialize_all_coordinators",
    "is_coordination_ready",
    "shutdown_all_coordinators",
    "shutdown_coordination",
    "start_coordination",
]
