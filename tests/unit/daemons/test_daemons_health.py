"""How daemons are judged: health checks, restarts that follow, liveness, and a loop that stands still."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from daemons_kit import HOUR_S, Crasher, Pressure, Steady, Stubborn, in_simulation, make_manager, own_type

from ringrift.daemons.reactions import NOBODY, Incident
from ringrift.daemons.types import DaemonInfo, DaemonState, DaemonType
from ringrift.events.unified_router import Surroundings, UnifiedEventRouter
from ringrift.testing.simulation import SimulatedRuntime

MINE, NEEDED, OTHER = own_type("MINE"), own_type("NEEDED"), own_type("OTHER")


def test_a_daemon_whose_start_nobody_noted_has_no_uptime() -> None:
    assert DaemonInfo(MINE, state=DaemonState.RUNNING).uptime_seconds == 0.0
    assert DaemonInfo(MINE, state=DaemonState.RUNNING, start_time=4e9).uptime_seconds == 0.0
    assert DaemonInfo(MINE, state=DaemonState.RUNNING, start_time=1.0).uptime_at(3.5) == 2.5
    assert DaemonInfo(MINE, start_time=1.0).uptime_at(3.5) == 0.0


@pytest.mark.parametrize("answer", [None, "fine", {"message": "fine"}])
def test_a_check_that_says_nothing_is_not_taken_for_health(answer: Any) -> None:
    async def main() -> None:
        manager, daemon = make_manager(), Steady()
        daemon.healthy = answer
        manager.register_factory(MINE, daemon, startup_grace_period=0, health_check_interval=10)
        await manager.start(MINE)
        await asyncio.sleep(11)
        health = manager.get_all_daemon_health()[MINE]
        assert not health["healthy"]
        assert "says nothing" in health["message"]
        await manager.shutdown()

    in_simulation(main)


def test_a_healthy_run_is_restarted_at_once_and_a_short_one_is_not() -> None:
    async def main() -> None:
        manager, crasher = make_manager(), Crasher(after_s=100.0)
        manager.register_factory(MINE, crasher)
        await manager.start(MINE)
        await asyncio.sleep(101)
        assert crasher.starts == [0.0, pytest.approx(100.0)]
        crasher.after_s = 1.0
        await asyncio.sleep(102)
        assert manager.get_status()[MINE].state is DaemonState.RESTARTING
        await asyncio.sleep(15)
        assert crasher.starts[3] - 201.0 >= 4.5
        await manager.shutdown()

    in_simulation(main)


def test_one_bad_answer_changes_nothing_three_in_a_row_restart() -> None:
    async def main() -> None:
        manager, daemon = make_manager(), Steady()
        manager.register_factory(MINE, daemon, startup_grace_period=0, health_check_interval=10)
        await manager.start(MINE)
        await asyncio.sleep(15)
        for healthy, seconds in ((False, 20), (True, 10)) * 5:
            daemon.healthy = healthy
            await asyncio.sleep(seconds)
        assert daemon.lives == 1
        daemon.healthy = {"healthy": False, "message": "no progress"}
        await asyncio.sleep(45)
        assert daemon.lives == 2
        assert "no progress" in (manager.get_status()[MINE].last_error or "")
        daemon.healthy = True
        await manager.shutdown()

    in_simulation(main)


def test_a_daemon_that_is_always_unhealthy_makes_no_restart_storm() -> None:
    async def main() -> None:
        manager, daemon = make_manager(), Steady()
        daemon.healthy = False
        manager.register_factory(MINE, daemon, startup_grace_period=0, health_check_interval=1)
        await manager.start(MINE)
        await asyncio.sleep(24 * HOUR_S - 60)
        assert daemon.lives <= 6
        assert manager.is_permanently_failed(MINE)
        await manager.shutdown()

    in_simulation(main)


def test_no_verdict_within_the_grace_period_and_each_daemon_at_its_own_interval() -> None:
    async def main() -> None:
        manager, often, rarely = make_manager(), Steady(), Steady()
        manager.register_factory(MINE, often, startup_grace_period=300, health_check_interval=10)
        manager.register_factory(OTHER, rarely, startup_grace_period=300, health_check_interval=100)
        await manager.start_all([MINE, OTHER])
        await asyncio.sleep(299)
        assert (often.health_checks, rarely.health_checks) == (0, 0)
        await asyncio.sleep(1001)
        assert 98 <= often.health_checks <= 101
        assert 9 <= rarely.health_checks <= 11
        await manager.shutdown()

    in_simulation(main)


def test_a_health_check_that_hangs_or_raises_counts_as_unhealthy() -> None:
    class Hanging(Steady):
        async def health_check(self) -> bool:  # type: ignore[override]
            await asyncio.sleep(HOUR_S)
            return True

    class Raising(Steady):
        def health_check(self) -> bool:
            raise ValueError("cannot tell")

    async def main() -> None:
        manager, hanging, raising, well = make_manager(), Hanging(), Raising(), Steady()
        for daemon_type, daemon in ((MINE, hanging), (OTHER, raising), (NEEDED, well)):
            manager.register_factory(daemon_type, daemon, startup_grace_period=0, health_check_interval=5)
        await manager.start_all([MINE, OTHER, NEEDED])
        await asyncio.sleep(100)
        assert min(hanging.lives, raising.lives) >= 2
        assert (well.lives, well.health_checks >= 18) == (1, True)
        await manager.shutdown()

    in_simulation(main)


def test_liveness_falls_with_a_critical_daemon_and_only_with_one() -> None:
    async def main() -> None:
        manager, critical, usual = make_manager(), Crasher(after_s=1.0), Crasher(after_s=1.0)
        manager.register_factory(DaemonType.MEMORY_MONITOR, critical, depends_on=[], capability="")
        manager.register_factory(MINE, usual)
        assert not manager.liveness_probe(), "no run is not a healthy one"
        await manager.start(MINE)
        await asyncio.sleep(2)
        assert manager.get_status()[MINE].state is DaemonState.RESTARTING
        assert manager.liveness_probe()
        await manager.start(DaemonType.MEMORY_MONITOR)
        await asyncio.sleep(2)
        probe = manager.liveness_probe()
        assert not probe
        assert probe["alive"] is False
        assert probe["down"] == ["memory_monitor"]
        assert probe["uptime_seconds"] > 0
        await asyncio.sleep(HOUR_S)
        assert manager.get_degraded_daemons() == [DaemonType.MEMORY_MONITOR]
        assert not manager.is_permanently_failed(DaemonType.MEMORY_MONITOR)
        await manager.stop(DaemonType.MEMORY_MONITOR)
        probe = manager.liveness_probe()
        assert (bool(probe), probe["down"], probe["stopped"]) == (False, [], ["memory_monitor"])
        await manager.shutdown()
        assert not manager.liveness_probe()

    in_simulation(main)


def test_what_does_not_run_is_not_healthy_and_says_why() -> None:
    async def main() -> None:
        manager = make_manager()
        manager.register_factory(MINE, Steady())
        assert not any(each["healthy"] for each in manager.get_all_daemon_health().values())
        await manager.start(MINE)
        up = manager.get_all_daemon_health()[MINE]
        assert (up["healthy"], up["expected"]) == (True, True)
        await manager.stop(MINE)
        stopped = manager.get_all_daemon_health()[MINE]
        assert (stopped["healthy"], stopped["state"], stopped["expected"]) == (False, "stopped", False)
        assert stopped["message"] == "stopped on purpose"
        assert "not built yet" in manager.get_all_daemon_health()[DaemonType.VAST_IDLE]["message"]
        assert manager.health_check().healthy, "a stop on purpose is no fault of the run"
        await manager.start(MINE)
        manager.supervisor.units[MINE].health = (True, "running")
        await manager.shutdown()
        ended = manager.get_all_daemon_health()[MINE]
        assert (ended["healthy"], ended["message"]) == (False, "stopped on purpose")

    in_simulation(main)


def test_a_critical_daemon_that_rests_is_not_down() -> None:
    """One without `pause()` is stopped instead, and backpressure is no illness."""

    async def main() -> None:
        manager, daemon = make_manager(), Crasher(after_s=HOUR_S)
        rests = DaemonType.MEMORY_MONITOR
        manager.register_factory(rests, daemon, depends_on=[], capability="", pausable=True)
        await manager.start(rests)
        pressure = Pressure(manager, "a queue is full")
        await manager.reactions.on_backpressure_activated({"level": "high"})
        await asyncio.sleep(1)
        assert not manager.is_running(rests)
        assert manager.liveness_probe()
        assert manager.get_all_daemon_health()[rests]["healthy"]
        assert "memory_monitor" not in manager.readiness_probe()["reason"]
        pressure.reason = ""
        await manager.reactions.on_backpressure_released({})
        await asyncio.sleep(1)
        assert manager.is_running(rests)
        assert manager.liveness_probe()
        await manager.shutdown()

    in_simulation(main)


def test_blocks_of_the_loop_are_sent_around_once_a_minute_and_only_long_ones() -> None:
    async def main() -> None:
        runtime = SimulatedRuntime()
        router = UnifiedEventRouter(surroundings=Surroundings(runtime=runtime))
        alerts: list[dict[str, Any]] = []
        router.subscribe("HEALTH_ALERT", lambda event: alerts.append(dict(event.payload)))
        manager = make_manager(runtime=runtime, bus=router)
        manager.register_factory(MINE, Steady())
        await manager.start(MINE)
        for at_s, blocked_s, culprit in (
            (0.0, 0.1, "short"),
            (0.0, 2.0, "eater"),
            (30.0, 2.0, "eater"),
            (70.0, 2.0, "eater"),
            (70.0, 2.0, NOBODY),
        ):
            manager.reactions.loop_was_blocked(Incident(at_s, blocked_s, culprit, culprit, "x.py:1", ""))
        await asyncio.sleep(1)
        assert [alert["details"]["daemon"] for alert in alerts] == ["eater", "eater"]
        await manager.shutdown()
        await router.stop()

    in_simulation(main)


def test_a_start_that_hangs_and_ignores_cancellation_is_left_behind_at_its_limit() -> None:
    class HungStart(Stubborn):
        async def start(self) -> None:
            await self()

    async def main() -> None:
        manager, hung, loop = make_manager(force_kill_timeout=2.0), HungStart(), asyncio.get_running_loop()
        manager.register_factory(MINE, lambda: hung, ready_timeout=10.0)
        assert not await manager.start(MINE)
        assert loop.time() == pytest.approx(12.0)
        assert manager.get_status()[MINE].leaked
        await asyncio.sleep(HOUR_S)
        assert hung.lives == 1
        hung.let_go.set()
        await asyncio.sleep(0.01)
        assert not manager.get_status()[MINE].leaked
        await manager.shutdown()

    in_simulation(main)
