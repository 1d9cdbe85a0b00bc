"""Tasks on an engine in memory under simulated time, with a machine that is as it is told."""

from ringrift.coordination.queue_monitor import QueueMonitor
from ringrift.coordination.safeguards import EmergencyStop, Safeguards
from ringrift.coordination.task_coordinator import TaskCoordinator
from ringrift.coordination.task_lifecycle_coordinator import TaskLifecycleCoordinator
from ringrift.engine.opening import memory_engine
from ringrift.engine.ports import Claimant, NewWork
from ringrift.events.unified_router import Surroundings, UnifiedEventRouter
from ringrift.machine import NodeResources
from ringrift.testing.simulation import SimulatedRuntime, simulate
from ringrift.work.admission import AdmissionSources, TaskAdmission
from ringrift.work.limits import EmergencyPlaces, TaskLimits

ROOMY = NodeResources(cpu_percent=10, memory_percent=30, disk_percent=40, disk_free_gb=200, load=0.5, cores=8)


class TasksWorld:
    """One process; `another_process` shares its engine and nothing else."""

    def __init__(self, folder, *, limits=None, runtime=None, engine=None):
        self.folder, self.limits = folder, limits or TaskLimits()
        self.runtime = runtime or SimulatedRuntime()
        self.engine = engine or memory_engine(self.runtime)
        self.machine = ROOMY
        self.said = []
        self.router = UnifiedEventRouter(
            enable_cross_process_polling=False, surroundings=Surroundings(runtime=self.runtime)
        )
        self.emergency = EmergencyStop(EmergencyPlaces(folder, self.get_kv), runtime=self.runtime)
        self.monitor = QueueMonitor(self.get_engine, runtime=self.runtime, resources=self.resources)
        around = AdmissionSources(
            engine=self.get_engine,
            emergency=self.emergency,
            monitor=self.monitor,
            resources=self.resources,
            runtime=self.runtime,
        )
        self.admission = TaskAdmission(around, limits=self.limits)
        parts = {"router": self.router, "runtime": self.runtime}
        self.coordinator = TaskCoordinator(self.admission, emergency=self.emergency, **parts)
        self.lifecycle = TaskLifecycleCoordinator(self.admission, **parts)
        self.safeguards = Safeguards(self.admission)
        self.coordinator.wire()
        self.lifecycle.wire()
        for event in ("TASK_SPAWNED", "TASK_ORPHANED", "TASK_ABANDONED"):
            self.router.subscribe(event, self._note)

    def another_process(self):
        return TasksWorld(self.folder, limits=self.limits, runtime=self.runtime, engine=self.engine)

    async def get_engine(self):
        return self.engine

    async def get_kv(self):
        return self.engine.kv

    async def resources(self):
        return self.machine

    async def say(self, event, **payload):
        await self.router.publish(event, payload, "test")

    async def claim(self, kind, *, worker="sim", number=1):
        await self.engine.queue.add([NewWork(kind=kind) for _ in range(number)])
        claimant = Claimant(worker=worker, kinds=frozenset({kind}))
        return await self.engine.queue.claim(claimant, lease_s=1e6, limit=number)

    def heard(self, event):
        return [payload for name, payload in self.said if name == event]

    def _note(self, event):
        self.said.append((event.event_type, event.payload))


def in_tasks_world(scenario, folder, **fields):
    async def run():
        await scenario(TasksWorld(folder, **fields))

    simulate(run())
