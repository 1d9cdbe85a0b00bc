"""Every daemon and every coordinator says how it is, and says it truly.

Each has `health_check` with the documented answer. What does not run is not healthy, whether it was never
started or has ended: unknown is not healthy.
"""

import inspect

import pytest

from ringrift.coordination.coordination_bootstrap import (
    bootstrap_coordination,
    get_initialiser,
    shutdown_coordination,
)
from ringrift.coordination.coordinator_dependencies import COORDINATOR_REGISTRY, InitPattern
from ringrift.coordination.daemon_manager import DaemonManager, get_daemon_manager
from ringrift.coordination.event_router import get_router
from ringrift.coordination.initializer import load_entry_point
from ringrift.daemons.child_process import ProcessDaemon
from ringrift.daemons.registry import Isolation, product_registry
from ringrift.daemons.running import takes_keyword
from ringrift.daemons.types import DaemonType
from ringrift.engine.opening import close_engine
from ringrift.runtime import system_runtime
from ringrift.status import CoordinatorStatus, HealthCheckResult

AVAILABLE = {spec.daemon_type: spec for spec in product_registry() if not spec.unavailable_reason}
DOWN = {CoordinatorStatus.STOPPED, CoordinatorStatus.ERROR, CoordinatorStatus.INITIALIZING}
DOWN |= {CoordinatorStatus.UNKNOWN}  # a process in which it does not run, and no run that tells of it
BUILT = {
    name: spec
    for name, spec in COORDINATOR_REGISTRY.items()
    if not spec.not_built_reason and spec.pattern not in {InitPattern.SKIP, InitPattern.DELEGATE}
}


async def answer_of(component):
    answer = component.health_check()
    answer = await answer if inspect.isawaitable(answer) else answer
    assert isinstance(answer, HealthCheckResult), component
    assert isinstance(answer.status, CoordinatorStatus)
    assert isinstance(answer.details, dict)
    return answer


def make(spec, manager):
    """As the manager makes it."""
    if spec.isolation is Isolation.PROCESS:
        return ProcessDaemon.for_entry_point(spec.entry_point, spec.settings, runtime=system_runtime())
    factory = load_entry_point(spec.entry_point)
    offered = {
        "router": get_router(),
        "manager": manager,
        "runtime": system_runtime(),
        "settings": dict(spec.settings),
    }
    return factory(**{name: value for name, value in offered.items() if takes_keyword(factory, name)})


@pytest.mark.parametrize("daemon_type", AVAILABLE)
async def test_a_daemon_that_was_never_started_is_not_healthy(daemon_type):
    daemon = make(AVAILABLE[daemon_type], DaemonManager(bus=get_router()))
    answer = await answer_of(daemon)
    assert not answer.healthy
    assert answer.status in DOWN
    assert answer.message
    await get_router().stop()
    await close_engine()


async def test_every_daemon_answers_while_it_runs_and_is_not_healthy_when_it_has_ended():
    manager = get_daemon_manager()
    started = await manager.start_all(profile="full")
    units = manager.supervisor.units
    running = {t: units[t].info.instance for t in DaemonType if manager.is_running(t)}
    replaced = {t for t in AVAILABLE if AVAILABLE[t].deprecated_for is not None}
    done = {t for t in AVAILABLE if units[t].info.completed}
    assert set(running) | replaced | done == set(AVAILABLE), started.reasons
    for daemon_type, instance in running.items():
        answer = await answer_of(instance)
        assert answer.healthy, (daemon_type, answer)
        assert answer.status in {CoordinatorStatus.RUNNING, CoordinatorStatus.DEGRADED}, daemon_type
        assert answer.status is CoordinatorStatus.RUNNING or answer.message, daemon_type
    await manager.shutdown()
    for daemon_type, instance in running.items():
        answer = await answer_of(instance)
        assert not answer.healthy, daemon_type
        assert answer.status in DOWN, daemon_type
    await get_router().stop()
    await close_engine()


async def test_every_coordinator_answers_while_it_is_up_and_is_not_healthy_when_it_has_ended():
    bootstrap_coordination()
    instances = dict(get_initialiser().instances)
    assert set(instances) == set(BUILT)
    for name, instance in instances.items():
        if BUILT[name].pattern is InitPattern.IMPORT:
            assert callable(instance.health_check), name
            continue
        answer = await answer_of(instance)
        if getattr(instance, "is_running", True) is False:
            assert not answer.healthy, name  # a daemon, which its manager starts
        else:
            assert answer.healthy, (name, answer)
    shutdown_coordination()
    for name, instance in instances.items():
        if BUILT[name].pattern is InitPattern.WIRE:
            answer = await answer_of(instance)
            assert not answer.healthy, name
            assert answer.status in DOWN, name
    await get_router().stop()
    await close_engine()
