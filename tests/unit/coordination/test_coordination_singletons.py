"""Every class of the public API that has one instance per process gives, keeps and drops it the same way."""

import pytest

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
