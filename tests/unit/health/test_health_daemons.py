"""The health daemons as the daemon manager runs them, and checks that never answer."""

import asyncio

from ringrift.coordination.contracts import register_coordinator
from ringrift.coordination.coordination_bootstrap import shutdown_all_coordinators, start_coordination
from ringrift.coordination.daemon_manager import get_daemon_manager
from ringrift.coordination.event_router import get_router
from ringrift.coordination.system_health_monitor import CoordinatorHealthMonitor
from ringrift.coordination.unified_health_manager import UnifiedHealthManager, get_health_manager
from ringrift.daemons.types import DaemonType
from ringrift.engine.opening import close_engine
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.process import process_scope
from ringrift.testing.simulation import SimulatedRuntime, simulate

MONITORS = (DaemonType.COORDINATOR_HEALTH_MONITOR, DaemonType.SYSTEM_HEALTH_MONITOR)


async def test_both_monitors_run_under_the_manager_and_see_the_system():
    await start_coordination()
    manager = get_daemon_manager()
    assert await manager.start(DaemonType.EVENT_ROUTER)
    for daemon in MONITORS:
        assert await manager.start(daemon), manager.why(daemon)
    # Trouble is seen through the real router, and remembered by the real engine.
    await get_router().publish("DEADLOCK_DETECTED", {"resources": ["a"], "holders": ["x"]})
    assert "deadlock" in str(get_health_manager().issues()[0])
    for daemon in MONITORS:
        assert manager.get_all_daemon_health()[daemon]["healthy"]
    await manager.shutdown(timeout=5.0)
    await shutdown_all_coordinators(timeout_seconds=5)
    await get_router().stop()
    await close_engine()

    # Another life of the process finds the trouble again.
    process_scope().drop(UnifiedHealthManager)
    await start_coordination()
    assert "deadlock" in str(get_health_manager().issues()[0])
    await shutdown_all_coordinators(timeout_seconds=5)
    await get_router().stop()
    await close_engine()


def test_a_check_that_never_answers_is_unhealthy_after_its_limit():
    class Hanging:
        async def health_check(self):
            await asyncio.Event().wait()

    async def scenario():
        runtime = SimulatedRuntime()
        router = UnifiedEventRouter(enable_cross_process_polling=False)
        monitor = CoordinatorHealthMonitor(router=router, runtime=runtime)
        register_coordinator(Hanging(), "hanging")
        running = asyncio.create_task(monitor.run())
        await runtime.sleep(25.0)
        assert monitor.coordinators()["hanging"]["state"] == "unhealthy"
        assert "took more than 10 s" in monitor.coordinators()["hanging"]["message"]
        running.cancel()
        await asyncio.wait({running})

    simulate(scenario())
