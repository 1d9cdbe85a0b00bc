"""The parts of the machine that scenarios put together: who listens, and small clusters of nodes."""

from dataclasses import replace

from ringrift.coordination.coordinator_dependencies import COORDINATOR_REGISTRY, InitPattern
from ringrift.coordination.initializer import BootstrapOptions, Initializer
from ringrift.coordination.sync_coordinator import SyncCoordinator, SyncFacade, SyncRouter, SyncScheduler
from ringrift.coordination.system_health_monitor import SystemHealthMonitor
from ringrift.data.config import AutoSyncConfig
from ringrift.data.sync.cluster_view import NodeReportCollector

# How full the disk of the machine under the test is must not matter.
SYNC = AutoSyncConfig(games_min=1, disk_percent_max=100.0)


class Listeners:
    """The coordinators of the product on one router, by the names they have at bootstrap."""

    def __init__(self, router, *, but=()):
        self.router, self.wired = router, {}
        for name, spec in COORDINATOR_REGISTRY.items():
            if spec.pattern is InitPattern.WIRE and not spec.not_built_reason and name not in but:
                alone = {name: replace(spec, depends_on=())}
                walk = Initializer(alone, publish=lambda _event, _payload: None)
                walk.initialize(BootstrapOptions(arguments={"router": router}))
                assert walk.errors == []
                self.wired |= walk.instances
        alerts = SystemHealthMonitor(router=router, health_manager=self["health_manager"])
        self.alerts = alerts.alerts
        for event, callback in alerts._get_event_subscriptions().items():
            router.subscribe(event, callback, f"alerting.{event}")

    def __getitem__(self, name):
        return self.wired[name]

    def alerted(self, event):
        """The texts of the alerts that an event has raised."""
        return [alert.text for alert in self.alerts if alert.event_type == event]


class DataListeners(Listeners):
    """The same with a sync coordinator that works on the files of one node of a world."""

    def __init__(self, router, plane):
        super().__init__(router, but=("sync_coordinator", "ephemeral_guard"))
        reports = NodeReportCollector()
        self.facade = SyncFacade(plane, router=router, config=SYNC, reports=reports)
        self.sync = SyncCoordinator(
            router=router,
            facade=self.facade,
            sync_router=SyncRouter(plane, config=SYNC, reports=reports),
            scheduler=SyncScheduler(plane, config=SYNC, facade=self.facade, reports=reports),
            plane=plane,
        )
        self.sync.wire()


def listen(router, daemon):
    """Have a daemon hear what it hears while it runs; its cycles are the scenario's."""
    for event, callback in daemon._get_event_subscriptions().items():
        router.subscribe(event, callback, f"{daemon.name}.{event}")
    return daemon
