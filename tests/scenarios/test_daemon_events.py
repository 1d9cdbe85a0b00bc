"""Daemons: what is sent when they start, stop, crash and are given up, and when the machine is short."""

import asyncio

from daemons_kit import HOUR_S, Crasher, Steady, make_manager, own_type
from machine import Listeners, listen
from recording import scenario

from ringrift.coordination.backpressure import WorkQueueMonitorDaemon
from ringrift.coordination.selfplay_scheduler import SelfplayScheduler
from ringrift.engine.memory import memory_engine
from ringrift.events.unified_router import Surroundings, UnifiedEventRouter
from ringrift.machine import NodeResources
from ringrift.testing.simulation import ManualRuntime, SimulatedRuntime, simulate

MINE, OTHER = own_type("SCENARIO_MINE"), own_type("SCENARIO_OTHER")


def run_with(story, **options):
    """Run *story* with a manager on a router that the coordinators listen to, in simulated time."""

    async def run():
        runtime = SimulatedRuntime()
        router = UnifiedEventRouter(
            enable_cross_process_polling=False, surroundings=Surroundings(runtime=runtime)
        )
        listeners = Listeners(router)
        manager = make_manager(runtime=runtime, bus=router, **options)
        await story(manager, listeners)
        await manager.shutdown()
        await router.stop()

    simulate(run())


def daemons_in_trouble(listeners):
    return [issue.subject for issue in listeners["health_manager"].issues() if issue.kind == "daemon"]


@scenario(
    "DAEMON_STARTED",
    "DAEMON_STOPPED",
    "DAEMON_STATUS_CHANGED",
    "DAEMON_CRASH_LOOP_DETECTED",
    "DAEMON_PERMANENTLY_FAILED",
)
def test_a_daemon_that_crashes_again_and_again_is_given_up_and_comes_back_mended():
    async def story(manager, listeners):
        manager.register_factory(MINE, Crasher())
        await manager.start(MINE)
        await asyncio.sleep(10 * HOUR_S)
        assert daemons_in_trouble(listeners) == [MINE.value]
        assert listeners.alerted("DAEMON_CRASH_LOOP_DETECTED")
        assert listeners.alerted("DAEMON_PERMANENTLY_FAILED")
        manager.register_factory(OTHER, Steady())
        assert await manager.start(OTHER)
        assert await manager.stop(OTHER)
        await asyncio.sleep(1.0)

    run_with(story)


@scenario("RESOURCE_CONSTRAINT")
def test_a_daemon_is_not_started_while_memory_is_short():
    async def story(manager, listeners):
        manager.register_factory(MINE, Steady())
        assert not await manager.start(MINE)
        await asyncio.sleep(1.0)
        (note,) = listeners["selfplay_orchestrator"].nodes.current(0.0).values()
        assert (note.event, note.reason) == ("RESOURCE_CONSTRAINT", "memory")

    run_with(story, memory_percent=97.0)


@scenario("NODE_OVERLOADED")
async def test_a_machine_that_others_keep_busy_gets_less_work():
    runtime = ManualRuntime(hostname="busy")
    router = UnifiedEventRouter(enable_cross_process_polling=False)
    listeners = Listeners(router)
    scheduler = listen(router, SelfplayScheduler(router=router, runtime=runtime))
    engine = memory_engine(runtime)

    async def the_engine():
        return engine

    async def seen():
        return NodeResources(
            cpu_percent=99.0, memory_percent=30.0, disk_percent=10.0, disk_free_gb=90.0, load=64.0, cores=4
        )

    monitor = WorkQueueMonitorDaemon(
        engine=the_engine,
        lifecycle=listeners["task_coordinator"],
        resources=seen,
        router=router,
        runtime=runtime,
    )
    await monitor._run_cycle()
    assert scheduler.nodes.factor("busy", runtime.now_s()) == 0.5
    await router.stop()
