"""What the daemons that watch over the others and the run do, and that without one nobody does it."""

import asyncio
import urllib.error
import urllib.request

import msgspec
from lever_world import lived

from ringrift.coordination.contracts import register_coordinator
from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.daemon_manager import DaemonManager
from ringrift.coordination.event_router import get_router
from ringrift.coordination.system_health_monitor import wire_health_events
from ringrift.daemons.types import DaemonManagerConfig, DaemonState, DaemonType
from ringrift.health.run_status import STATUS_KEY, read_address
from ringrift.status import HealthCheckResult
from ringrift.testing.sample_run import idle_config, idle_run

CONFIG = "hex8_2p"


class Slow:
    """A coordinator of a user's own that is not well."""

    def health_check(self):
        return HealthCheckResult.degraded("slow")


def test_an_ill_coordinator_is_told_only_while_coordinator_health_monitor_runs():
    async def body(machine):
        async def cause(number):
            name = f"mine-{number}"
            register_coordinator(Slow(), name)

            async def is_told():
                told = machine.heard("COORDINATOR_HEALTH_DEGRADED")
                return name in {each["coordinator_name"] for each in told}

            return is_told

        await machine.shows_lever("coordinator_health_monitor", cause)

    lived(body)


def test_a_change_of_the_whole_is_told_only_while_system_health_monitor_runs():
    async def body(machine):
        wire_health_events()

        async def told():
            alerts = [each for each in machine.heard("HEALTH_ALERT") if each["alert_type"] == "system_health"]
            return len(alerts)

        async def cause(number):
            before = await told()
            failed = {"daemon_name": f"daemon-{number}", "node_id": "a", "error": "it is broken"}
            for each in range(10 * number):
                named = {**failed, "daemon_name": f"daemon-{number}-{each}"}
                await machine.router.publish("DAEMON_PERMANENTLY_FAILED", named, "test")

            async def is_told():
                return await told() > before

            return is_told

        await machine.shows_lever("system_health_monitor", cause)

    lived(body)


def test_a_broken_promise_of_the_supervisor_is_told_only_while_daemon_watchdog_runs():
    async def body(machine):
        unit = machine.manager.supervisor.units[DaemonType.EVENT_ROUTER]

        async def told():
            alerts = machine.heard("HEALTH_ALERT")
            return len([each for each in alerts if each["alert_type"] == "supervisor_self_check"])

        async def cause(_number):
            before = await told()
            unit.info.state = DaemonState.FAILED  # while it runs

            async def is_told():
                if await told() == before:
                    return False
                unit.info.state = DaemonState.RUNNING
                return True

            return is_told

        await machine.shows_lever("daemon_watchdog", cause, within_s=120.0)

    lived(body)


def test_a_config_that_gets_nowhere_is_told_only_while_progress_watchdog_runs():
    async def body(machine):
        games = 0

        async def say():
            while True:
                configs = {CONFIG: idle_config(games=games)}
                status = idle_run(at_s=machine.runtime.now_s(), configs=configs)
                await machine.here.kv.put(STATUS_KEY, msgspec.json.encode(status))
                await machine.runtime.sleep(10.0)

        async def cause(_number):
            nonlocal games
            games += 1  # and from now on nothing
            before = len(machine.heard("PROGRESS_STALL_DETECTED"))

            async def is_told():
                return len(machine.heard("PROGRESS_STALL_DETECTED")) > before

            return is_told

        saying = asyncio.create_task(say())
        await machine.shows_lever("progress_watchdog", cause)
        saying.cancel()

    lived(body)


async def test_the_page_and_the_probes_answer_only_while_health_server_runs():
    def answers():
        address = read_address(get_settings().coordination_dir)
        if address is None:
            return False
        try:
            with urllib.request.urlopen(f"{address.url}/health", timeout=5.0) as answer:
                return answer.status == 200
        except urllib.error.HTTPError as error:
            return error.code == 503  # it answers that the run is not well
        except urllib.error.URLError:
            return False

    manager = DaemonManager(DaemonManagerConfig(loop_watchdog=False), bus=get_router())
    try:
        assert await manager.start(DaemonType.HEALTH_SERVER, wait_for_deps=True)
        assert await asyncio.to_thread(answers)
        assert await manager.stop(DaemonType.HEALTH_SERVER)
        assert not await asyncio.to_thread(answers)
        assert await manager.start(DaemonType.HEALTH_SERVER)
        assert await asyncio.to_thread(answers)
    finally:
        await manager.shutdown()
        await get_router().stop()


# Daemon: the test that stops it and sees the machine do without.
SHOWN_BY = {
    "coordinator_health_monitor": test_an_ill_coordinator_is_told_only_while_coordinator_health_monitor_runs,
    "daemon_watchdog": test_a_broken_promise_of_the_supervisor_is_told_only_while_daemon_watchdog_runs,
    "health_server": test_the_page_and_the_probes_answer_only_while_health_server_runs,
    "progress_watchdog": test_a_config_that_gets_nowhere_is_told_only_while_progress_watchdog_runs,
    "system_health_monitor": test_a_change_of_the_whole_is_told_only_while_system_health_monitor_runs,
}
