"""Every daemon and every coordinator says how it is, and says it truly.

Each has `health_check` with the documented answer. What does not run is not healthy, whether it was never
started or has ended: unknown is not healthy.
"""

import asyncio
import csv
import importlib
import inspect
import os
from pathlib import Path

import pytest

from ringrift.coordination.coordination_bootstrap import (
    bootstrap_coordination,
    get_initializer,
    shutdown_coordination,
)
from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.coordinator_dependencies import COORDINATOR_REGISTRY, InitPattern
from ringrift.coordination.coordinator_persistence import SnapshotStore, get_snapshot_coordinator
from ringrift.coordination.daemon_manager import DaemonManager, get_daemon_manager
from ringrift.coordination.event_router import get_router
from ringrift.coordination.initializer import load_entry_point
from ringrift.coordination.master_loop_guard import MasterLoopGuard
from ringrift.coordination.queue_monitor import get_queue_monitor
from ringrift.coordination.safeguards import get_safeguards, turn_on_emergency_stop
from ringrift.daemons.child_process import ProcessDaemon
from ringrift.daemons.registry import Isolation, product_registry
from ringrift.daemons.running import takes_keyword
from ringrift.daemons.types import DaemonType
from ringrift.engine.opening import close_engine, get_engine
from ringrift.runtime import system_runtime
from ringrift.status import CoordinatorStatus, HealthCheckResult
from ringrift.work.backpressure import QueueType

AVAILABLE = {spec.daemon_type: spec for spec in product_registry() if not spec.unavailable_reason}
DOWN = {CoordinatorStatus.STOPPED, CoordinatorStatus.ERROR, CoordinatorStatus.INITIALIZING}
DOWN |= {CoordinatorStatus.UNKNOWN}  # a process in which it does not run, and no run that tells of it
BUILT = {
    name: spec
    for name, spec in COORDINATOR_REGISTRY.items()
    if not spec.not_built_reason and spec.pattern not in {InitPattern.SKIP, InitPattern.DELEGATE}
}


# What the documents call by one of these names looks after something, and says how that is.
LOOKS_AFTER = (
    "Coordinator",
    "Daemon",
    "Guard",
    "Ledger",
    "Manager",
    "Monitor",
    "Orchestrator",
    "Safeguards",
    "Scheduler",
    "Watchdog",
)
CONTENTS = Path(__file__).parents[1] / "data" / "documents" / "contents.csv"
NAMED = sorted(
    f"{row['module']}.{name}"
    for row in csv.DictReader(CONTENTS.read_text().splitlines())
    for name in row["names"].split()
    if name.endswith(LOOKS_AFTER)
)
OWN_FILE = {
    "bandwidth_manager.BandwidthManager",
    "coordinator_persistence.SnapshotCoordinator",
    "delivery_ledger.DeliveryLedger",
}


def named(path):
    module, name = path.split(".")
    return getattr(importlib.import_module(f"app.coordination.{module}"), name)


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
    instances = dict(get_initializer().instances)
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


@pytest.mark.parametrize("path", NAMED)
async def test_every_class_that_looks_after_something_says_how_it_is(path):
    kind = named(path)
    assert callable(getattr(kind, "health_check", None)), f"{path} has no health_check"
    if ".Base" in path:
        return  # made only by those who finish it
    answer = await answer_of(await asyncio.to_thread(kind))
    assert answer.healthy or answer.message
    await get_router().stop()
    await close_engine()


@pytest.mark.parametrize(
    "path",
    [
        *OWN_FILE,
        "duration_scheduler.DurationScheduler",
        "queue_monitor.QueueMonitor",
        "safeguards.Safeguards",
    ],
)
async def test_what_cannot_ask_its_store_is_not_healthy(path):
    folder = get_settings().coordination_dir
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("in the way")
    answer = await answer_of(named(path)())
    assert (answer.healthy, answer.status) == (False, CoordinatorStatus.UNKNOWN)
    assert answer.message


@pytest.mark.parametrize("path", sorted(OWN_FILE))
async def test_it_says_how_a_file_of_its_own_is(path, tmp_path):
    assert (await answer_of(named(path)(db_path=tmp_path / "own.db"))).healthy
    (tmp_path / "text.db").write_text("no database")
    answer = await answer_of(named(path)(db_path=tmp_path / "text.db"))
    assert not answer.healthy
    assert "not a SQLite database" in answer.message
    await close_engine()


async def test_a_damaged_snapshot_is_told_before_somebody_needs_it():
    keeper, kv = get_snapshot_coordinator(), (await get_engine()).kv
    await SnapshotStore(kv).save("mine", {"count": 1})
    assert (await answer_of(keeper)).healthy
    await kv.put((await kv.entries("snapshots/mine/"))[-1].key, b"garbage")
    answer = await answer_of(keeper)
    assert not answer.healthy
    assert "mine: not a snapshot" in answer.message
    await close_engine()


async def test_the_guard_of_the_master_loop_is_healthy_while_it_holds_the_folder(tmp_path):
    guard, other = (MasterLoopGuard(tmp_path / "data" / "loop.pid") for _ in range(2))
    assert (await answer_of(guard)).message == "not held here; nobody has it"
    guard.acquire()
    assert (await answer_of(guard)).healthy
    assert f"process {os.getpid()} has it" in (await answer_of(other)).message
    (tmp_path / "data").rename(tmp_path / "away")
    (tmp_path / "data").mkdir()
    assert (await answer_of(guard)).status is CoordinatorStatus.ERROR
    guard.release()


async def test_safeguards_and_queues_tell_what_holds_work_back():
    safeguards, monitor = get_safeguards(), get_queue_monitor()
    await asyncio.to_thread(turn_on_emergency_stop, "maintenance")
    answer = await answer_of(safeguards)
    assert (answer.healthy, answer.status) == (True, CoordinatorStatus.DEGRADED)
    assert "maintenance" in answer.message
    assert (await answer_of(monitor)).message == ""
    monitor.note(QueueType.TRAINING_DATA, 1e9)
    assert "producers have to stop" in (await answer_of(monitor)).message
    await close_engine()
