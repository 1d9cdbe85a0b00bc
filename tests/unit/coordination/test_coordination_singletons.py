"""Every class of the public API that has one instance per process gives, keeps and drops it the same way."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

from ringrift import coordination, process
from ringrift.coordination.cluster_manifest import (
    ClusterManifest,
    get_cluster_manifest,
    reset_cluster_manifest,
)
from ringrift.coordination.coordinator_base import CoordinatorRegistry
from ringrift.coordination.daemon_manager import DaemonManager, get_daemon_manager, reset_daemon_manager
from ringrift.coordination.duration_scheduler import DurationScheduler, get_duration_scheduler
from ringrift.coordination.queue_monitor import QueueMonitor, get_queue_monitor
from ringrift.coordination.safeguards import Safeguards, get_safeguards
from ringrift.coordination.sync_facade import SyncFacade, get_sync_facade, reset_sync_facade
from ringrift.coordination.task_coordinator import TaskCoordinator, get_task_coordinator
from ringrift.coordination.task_lifecycle_coordinator import (
    TaskLifecycleCoordinator,
    get_task_lifecycle_coordinator,
)
from ringrift.coordination.unified_health_manager import UnifiedHealthManager, get_health_manager
from ringrift.errors import ConfigError
from size_ceilings import process_getters_in

GETTERS = {
    ClusterManifest: get_cluster_manifest,
    CoordinatorRegistry: CoordinatorRegistry.get_instance,
    DaemonManager: get_daemon_manager,
    DurationScheduler: get_duration_scheduler,
    QueueMonitor: get_queue_monitor,
    Safeguards: get_safeguards,
    SyncFacade: get_sync_facade,
    TaskCoordinator: get_task_coordinator,
    TaskLifecycleCoordinator: get_task_lifecycle_coordinator,
    UnifiedHealthManager: get_health_manager,
}
RESETS = {
    ClusterManifest: reset_cluster_manifest,
    DaemonManager: reset_daemon_manager,
    SyncFacade: reset_sync_facade,
}


@pytest.mark.parametrize("kind", GETTERS)
def test_getter_and_class_give_one_instance_until_it_is_dropped(kind):
    assert not kind.has_instance()
    first = GETTERS[kind]()
    assert isinstance(first, kind)
    assert kind.has_instance()
    assert kind.get_instance() is first
    assert kind.reset_instance() is first
    assert not kind.has_instance()
    assert kind.reset_instance() is None
    assert kind.get_instance() is not first
    assert GETTERS[kind]() is kind.get_instance()
    if kind in RESETS:
        RESETS[kind]()
        assert not kind.has_instance()


@pytest.mark.parametrize("kind", sorted(set(GETTERS) - {DaemonManager}, key=lambda kind: kind.__name__))
def test_an_argument_for_an_instance_that_is_there_is_refused(kind):
    GETTERS[kind]()
    with pytest.raises(ConfigError, match=f"{kind.__name__} already"):
        kind.get_instance("another")


# What these give lives as long as the run, the bootstrap or the engine does, which end it; or is no object.
ENDED_WITH_OTHERS = {
    "get_data_plane",
    "get_emergency_stop",  # a reset of it would sound like the end of an emergency
    "get_initializer",
    "get_loop_waker",
    "get_open_run",
    "get_situations",
    "get_stage_members",
    "get_system_health",
    "get_task_admission",
}
# The getters that ask another one for the object.
BY_ANOTHER = {"training_activity_daemon.get_training_activity_daemon"}
OWN_GETTERS = sorted(
    BY_ANOTHER
    | {
        f"{path.stem}.{name}"
        for path in Path(coordination.__file__).parent.glob("*.py")
        for name in process_getters_in(ast.parse(path.read_text()))
        if name not in ENDED_WITH_OTHERS
    }
)


@pytest.mark.parametrize("path", OWN_GETTERS)
def test_every_getter_of_an_object_of_the_process_has_its_reset_beside_it(path):
    module_name, _, name = path.partition(".")
    module = importlib.import_module(f"ringrift.coordination.{module_name}")
    get, reset = getattr(module, name), getattr(module, name.replace("get_", "reset_", 1), None)
    assert reset is not None, f"{path} has no reset_{name.removeprefix('get_')}"
    exported = getattr(module, "__all__", None)
    assert exported is None or (name in exported) == (name.replace("get_", "reset_", 1) in exported)
    first = get()
    assert get() is first
    # As help, logs and tracebacks show those that are not written out.
    for call, called in ((get, name), (reset, name.replace("get_", "reset_", 1))):
        if inspect.isfunction(call) and call.__code__.co_filename == process.__file__:
            assert (call.__name__, call.__qualname__, call.__code__.co_name) == (called,) * 3
            assert call.__doc__
            assert type(first).__name__ in str(inspect.signature(call).return_annotation)
    reset()
    assert get() is not first
    reset()


def test_after_a_reset_other_options_are_taken(tmp_path):
    module = importlib.import_module("ringrift.coordination.sync_durability")
    module.get_sync_wal(tmp_path / "one.db")
    with pytest.raises(ConfigError, match="reset_"):
        module.get_sync_wal(tmp_path / "other.db")
    assert module.reset_sync_wal() is not None
    assert module.get_sync_wal(tmp_path / "other.db") is module.get_sync_wal()
    assert module.reset_sync_wal() is not None
    assert module.reset_sync_wal() is None
