"""What broke in systems like this one, rows 11 to 20: each must not happen here."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from daemons_kit import HOUR_S, Crasher, Election, Pressure, Steady, in_simulation, make_manager, own_type

from ringrift.coordination.daemon_manager import DaemonManager
from ringrift.daemons import reactions
from ringrift.daemons.planning import BACKPRESSURE, NOT_LEADER
from ringrift.daemons.reactions import LoopWatchdog
from ringrift.daemons.registry import product_registry
from ringrift.daemons.restarts import JsonLedger, MemoryLedger
from ringrift.daemons.types import DaemonState, DaemonType
from ringrift.errors import Unavailable
from ringrift.events.catalog.event_types import DataEventType
from ringrift.events.unified_router import Surroundings, UnifiedEventRouter
from ringrift.runtime import SystemRuntime
from ringrift.status import HealthCheckResult
from ringrift.testing.simulation import SimulatedRuntime

MINE = own_type("MINE")
OTHER = own_type("OTHER")


def test_11_every_event_the_manager_hears_or_says_is_in_the_catalog() -> None:
    async def main() -> None:
        for name in (*make_manager().reactions.handlers, *DaemonManager.emits):
            assert name in DataEventType.__members__

    in_simulation(main)


def test_11_backpressure_over_the_real_router_pauses_and_releases() -> None:
    async def main() -> None:
        runtime = SimulatedRuntime()
        router = UnifiedEventRouter(surroundings=Surroundings(runtime=runtime))
        said: list[tuple[str, dict[str, Any]]] = []
        router.subscribe(None, lambda event: said.append((event.event_type, dict(event.payload))))
        manager, daemon = make_manager(runtime=runtime, bus=router), Steady()
        manager.register_factory(MINE, daemon, pausable=True)
        pressure = Pressure(manager)
        await manager.start(MINE)
        pressure.reason = "queue"
        await router.publish("BACKPRESSURE_ACTIVATED", {"level": "high", "reason": "queue"}, "test")
        await asyncio.sleep(0.1)
        assert daemon.paused
        pressure.reason = ""
        await router.publish("BACKPRESSURE_RELEASED", {"reason": "drained"}, "test")
        await asyncio.sleep(0.1)
        assert not daemon.paused
        await manager.shutdown()
        started = [payload for name, payload in said if name == "DAEMON_STARTED"]
        assert started[0]["daemon_name"] == "mine"
        assert started[0]["node_id"] == "here"
        assert [name for name, _ in said].count("DAEMON_STOPPED") == 1
        assert not router.has_subscribers("BACKPRESSURE_ACTIVATED")  # nothing is left behind
        await router.stop()

    in_simulation(main)


def test_11_backpressure_is_what_was_measured_whatever_somebody_says() -> None:
    async def main() -> None:
        runtime = SimulatedRuntime()
        router = UnifiedEventRouter(surroundings=Surroundings(runtime=runtime))
        manager, daemon = make_manager(runtime=runtime, bus=router), Steady()
        manager.register_factory(MINE, daemon, pausable=True)
        pressure = Pressure(manager)
        await manager.start(MINE)
        await router.publish("BACKPRESSURE_ACTIVATED", {"level": "stop", "reason": "hearsay"}, "somebody")
        await asyncio.sleep(1)
        assert not daemon.paused, "nothing was measured"
        pressure.reason = "a queue is full"
        await asyncio.sleep(15)
        assert daemon.paused, "also where the event was lost"
        assert manager.why_resting(MINE, BACKPRESSURE) == "backpressure: a queue is full"
        await router.publish("BACKPRESSURE_RELEASED", {"reason": "hearsay"}, "somebody")
        await asyncio.sleep(HOUR_S)
        assert daemon.paused, "measured again and again"
        await manager.shutdown()
        await router.stop()

    in_simulation(main)


def test_11_a_pressure_that_nobody_can_measure_any_more_holds_nothing_for_long() -> None:
    async def main() -> None:
        manager, daemon = make_manager(), Steady()
        manager.register_factory(MINE, daemon, pausable=True)
        Pressure(manager, "a queue is full")
        await manager.start(MINE)
        await asyncio.sleep(1)
        assert daemon.paused

        async def away() -> str:
            raise Unavailable("the store is away")

        manager.reactions.pressure = away
        await asyncio.sleep(5)
        assert daemon.paused, "one look that fails says nothing"
        await asyncio.sleep(40)
        assert not daemon.paused
        await manager.shutdown()

    in_simulation(main)


async def test_12_the_loop_watchdog_names_the_daemon_that_blocks_the_loop() -> None:
    incidents: list[Any] = []
    watchdog = LoopWatchdog(SystemRuntime(), noted_s=0.03, asked_every_s=0.01, on_incident=incidents.append)

    def caught() -> list[Any]:  # a busy machine holds up the loop as well, and the watchdog itself
        return [each for each in incidents if each.daemon == "game_eater" and each.blocked_s > 0.1]

    async def culprit() -> None:
        async with asyncio.timeout(60):
            while not caught():
                await asyncio.sleep(0.05)
                time.sleep(0.25)

    watchdog.start()
    try:
        await asyncio.create_task(culprit(), name="daemon:game_eater")
    finally:
        watchdog.stop()
    assert "culprit" in caught()[0].where
    assert "time.sleep(0.25)" in caught()[0].stack
    assert caught()[0].blocked_s < 60.0
    assert watchdog.status()["incidents"] >= 1


async def test_a_loop_that_waits_for_something_to_do_is_not_woken(monkeypatch) -> None:
    looks: list[bool] = []
    asked: list[Any] = []
    loop, is_waiting = asyncio.get_running_loop(), reactions._is_waiting

    def looked(frame: Any) -> bool:
        looks.append(is_waiting(frame))
        return looks[-1]

    monkeypatch.setattr(reactions, "_is_waiting", looked)
    ask = loop.call_soon_threadsafe
    monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *args: (asked.append(args), ask(*args)))
    watchdog = LoopWatchdog(SystemRuntime(), noted_s=60.0, dumped_s=60.0, asked_every_s=0.01)
    watchdog.start()
    try:
        async with asyncio.timeout(60):
            while looks.count(True) < 20:
                await asyncio.sleep(0.1)
    finally:
        watchdog.stop()
    assert len(asked) == looks.count(False)


async def test_a_loop_that_waits_for_another_program_is_blocked() -> None:
    """It waits with a selector then, too, but not for something to do."""
    incidents: list[Any] = []
    watchdog = LoopWatchdog(SystemRuntime(), noted_s=0.03, asked_every_s=0.01, on_incident=incidents.append)

    def caught() -> list[Any]:
        return [each for each in incidents if each.daemon == "caller" and "communicate" in each.stack]

    async def caller() -> None:
        for _ in range(20):
            await asyncio.sleep(0.05)
            subprocess.run([sys.executable, "-c", "import time; time.sleep(0.5)"], capture_output=True)
            await asyncio.sleep(0.05)
            if caught():
                return

    watchdog.start()
    try:
        await asyncio.create_task(caller(), name="daemon:caller")
    finally:
        watchdog.stop()
    assert caught()
    assert "caller" in caught()[0].where


def test_13_forty_six_hung_starts_take_one_time_limit_and_a_stop_of_all_takes_one_too() -> None:
    class Hung:
        async def start(self) -> None:
            await asyncio.sleep(10 * HOUR_S)

    class SlowToStop:
        async def start(self) -> None:
            return

        async def stop(self) -> None:
            await asyncio.sleep(0.67)

    async def main() -> None:
        manager, loop = make_manager(), asyncio.get_running_loop()
        hung = [own_type(f"HUNG_{index}") for index in range(46)]
        slow = [own_type(f"SLOW_{index}") for index in range(45)]
        for daemon_type in hung:
            manager.register_factory(daemon_type, Hung, auto_restart=False)
        for daemon_type in slow:
            manager.register_factory(daemon_type, SlowToStop)
        began = loop.time()
        result = await manager.start_all([*hung, *slow])
        assert loop.time() - began == pytest.approx(30.0)
        assert [result[t] for t in hung] == [False] * 46
        assert "not ready within 30 s" in result.reasons[hung[0]]
        assert all(result[t] for t in slow)
        began = loop.time()
        await manager.shutdown()
        assert loop.time() - began < 1.0

    in_simulation(main)


def test_14_a_manager_made_outside_any_loop_serves_one_loop_after_the_other() -> None:
    manager, daemon = make_manager(runtime=SystemRuntime()), Steady()
    manager.register_factory(MINE, daemon)

    async def one_life() -> None:
        results = await asyncio.gather(*(manager.start(MINE) for _ in range(50)))
        assert all(results)
        await manager.shutdown()

    for _ in range(3):
        asyncio.run(one_life())
    assert (daemon.lives, daemon.alive) == (3, 0)


def test_15_two_hundred_restarts_leave_no_task_no_file_and_no_history_behind() -> None:
    async def main() -> None:
        manager = make_manager(recovery_cooldown=0.0, stable_time=0.5)
        crasher = Crasher(after_s=1.0)
        manager.register_factory(MINE, crasher, max_restarts=1000)
        await manager.start(MINE)
        await asyncio.sleep(5.5)
        tasks, files = len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))
        await asyncio.sleep(200)
        assert len(crasher.starts) >= 200
        assert len(asyncio.all_tasks()) == tasks
        assert len(os.listdir("/proc/self/fd")) <= files
        await asyncio.sleep(2 * HOUR_S)
        assert manager.get_recent_restarts(within_seconds=10 * HOUR_S).get(MINE, 0) <= 2 * 1000
        await manager.shutdown()
        assert len(asyncio.all_tasks()) == 1

    in_simulation(main)


def test_17_a_budget_that_was_spent_stays_spent_over_a_restart_of_the_manager(tmp_path: Path) -> None:
    path = tmp_path / "coordination" / "daemon_restarts.json"

    async def first() -> None:
        manager = make_manager(ledger=JsonLedger(path), runtime=SystemRuntime(), recovery_cooldown=0.0)
        manager.register_factory(MINE, Crasher(), max_restarts=2, delay_s=0.0, delay_s_max=0.0)
        await manager.start(MINE)
        async with asyncio.timeout(60):
            while not manager.is_permanently_failed(MINE):
                await asyncio.sleep(0.01)
        await manager.shutdown()

    async def second() -> None:
        manager, daemon = make_manager(ledger=JsonLedger(path), runtime=SystemRuntime()), Steady()
        manager.register_factory(MINE, daemon)
        assert manager.is_permanently_failed(MINE)
        assert not await manager.start(MINE)
        manager.clear_permanently_failed(MINE)
        assert await manager.start(MINE)
        await manager.shutdown()

    async def third() -> None:
        manager = make_manager(ledger=JsonLedger(path), runtime=SystemRuntime())
        manager.register_factory(MINE, Steady())
        assert not manager.is_permanently_failed(MINE)

    for life in (first, second, third):
        asyncio.run(life())


def test_17_a_budget_cleared_by_a_script_without_a_loop_is_cleared_for_the_next_process(
    tmp_path: Path,
) -> None:
    store = JsonLedger(tmp_path / "restarts.json")

    async def spend() -> None:
        manager = make_manager(runtime=SystemRuntime(), ledger=store)
        manager.register_factory(MINE, Crasher(), max_restarts=0)
        await manager.start(MINE)
        while not manager.is_permanently_failed(MINE):
            await asyncio.sleep(0.001)
        await manager.shutdown()

    asyncio.run(spend())
    assert make_manager(ledger=store, runtime=SystemRuntime()).is_permanently_failed(MINE)
    make_manager(ledger=store, runtime=SystemRuntime()).clear_permanently_failed(MINE)
    assert not make_manager(ledger=store, runtime=SystemRuntime()).is_permanently_failed(MINE)


def test_17_a_deprecated_face_is_refused_beside_its_successor_and_left_out_of_profiles() -> None:
    async def main() -> None:
        manager, new, old = make_manager(), Steady(), Steady()
        manager.register_factory(DaemonType.AUTO_SYNC, new, depends_on=[], capability="")
        manager.register_factory(DaemonType.EPHEMERAL_SYNC, old, depends_on=[], capability="")
        result = await manager.start_all([DaemonType.AUTO_SYNC, DaemonType.EPHEMERAL_SYNC])
        assert result == {DaemonType.AUTO_SYNC: True, DaemonType.EPHEMERAL_SYNC: False}
        assert "use auto_sync" in result.reasons[DaemonType.EPHEMERAL_SYNC]
        assert not await manager.start(DaemonType.EPHEMERAL_SYNC)
        await manager.stop(DaemonType.AUTO_SYNC)
        assert await manager.start(DaemonType.EPHEMERAL_SYNC)
        await manager.shutdown()

    in_simulation(main)


@pytest.mark.parametrize("order", [1, -1])
def test_17_of_two_old_names_of_one_daemon_one_runs(order: int) -> None:
    async def main() -> None:
        one, other = [DaemonType.EPHEMERAL_SYNC, DaemonType.CLUSTER_DATA_SYNC][::order]
        manager, daemons = make_manager(), {one: Steady(), other: Steady()}
        for name, daemon in daemons.items():
            manager.register_factory(name, daemon, depends_on=[], capability="")
        assert await manager.start(one)
        assert await manager.start(one), "it is no other name of itself"
        assert not await manager.start(other)
        last_error = str(manager.get_status()[other].last_error)
        assert f"{one} does the same and is running; stop {one} first" in last_error
        assert daemons[other].lives == 0
        await manager.stop(one)
        assert await manager.start(other)
        assert daemons[one].alive == 0
        await manager.shutdown()

    in_simulation(main)


def test_17_every_daemon_that_can_run_is_in_a_profile() -> None:
    """An old name may be in none, if what took its place is."""
    specs = {spec.daemon_type: spec for spec in product_registry()}
    can_run = [specs[spec.deprecated_for or spec.daemon_type] for spec in specs.values() if spec.entry_point]
    assert [spec.daemon_type for spec in can_run if not spec.profiles] == []


@pytest.mark.parametrize("answer", [True, {"healthy": True}, HealthCheckResult.ok(), None])
@pytest.mark.parametrize("style", ["run", "run_ready", "start_async", "start_sync", "function", "factory"])
def test_18_daemons_of_every_shape_run(style: str, answer: Any) -> None:
    class Shaped:
        def health_check(self) -> Any:
            return answer

    async def forever(self: Any) -> None:
        await asyncio.get_running_loop().create_future()

    async def ready_then_forever(self: Any, *, on_ready: Any) -> None:
        on_ready()
        await forever(self)

    async def start_async(self: Any) -> None:
        return

    methods = {
        "run": {"run": forever},
        "run_ready": {"run": ready_then_forever},
        "start_async": {"start": start_async, "wait_for_shutdown": forever},
        "start_sync": {"start": lambda self: None, "stop": lambda self: None},
    }

    async def as_function() -> None:
        await forever(None)

    async def as_factory() -> Any:
        return type("Made", (Shaped,), methods["run_ready"])()

    async def main() -> None:
        manager = make_manager()
        chosen: Any = {"function": as_function, "factory": as_factory}.get(style)
        chosen = chosen or type("Made", (Shaped,), methods[style])
        manager.register_factory(MINE, chosen, startup_grace_period=0, health_check_interval=1)
        assert await manager.start(MINE)
        await asyncio.sleep(HOUR_S)
        assert manager.is_running(MINE)
        assert manager.get_lifecycle_summary()["total_restarts"] == 0
        # A check that says nothing restarts nothing, and is not taken for health either.
        says_nothing = answer is None and style != "function"
        assert manager.get_all_daemon_health()[MINE]["healthy"] is not says_nothing
        await manager.shutdown()

    in_simulation(main)


def test_19_a_host_without_a_cluster_runs_what_it_can_and_trips_nothing() -> None:
    async def main() -> None:
        manager = make_manager()
        registry = product_registry()
        planned = {t for t in DaemonType if registry[t].unavailable_reason}
        needed = {need for t in planned for need in registry[t].depends_on} - planned
        for built in needed:
            manager.register_factory(built, Steady(), depends_on=[], capability="")
        result = await manager.start_all([*needed, *planned])
        assert {t for t, up in result.items() if up} == needed
        assert all("capability not built yet" in reason for reason in result.reasons.values())
        await asyncio.sleep(HOUR_S)
        assert manager.liveness_probe()
        assert manager.get_status()["circuit_breaker"] == {}
        assert manager.get_recent_restarts() == {}
        await manager.shutdown()

    in_simulation(main)


def test_19_a_standby_steps_down_and_its_dependents_still_start() -> None:
    async def main() -> None:
        manager, leader, follower = make_manager(), Steady(), Steady()
        manager.register_factory(MINE, leader, leader_only=True)
        manager.register_factory(OTHER, follower, depends_on=[MINE])
        election = Election(manager)
        for turn in ("elsewhere", "here", "elsewhere"):
            election.leads = turn == "here"
            await manager.reactions.on_leader_elected({"leader_id": turn})
            await manager.start_all([MINE, OTHER])
            await asyncio.sleep(60)
            assert leader.alive == (1 if turn == "here" else 0)
            assert follower.alive == 1  # the leader runs what it needs
        assert NOT_LEADER in manager.why(MINE)
        assert manager.liveness_probe()
        await manager.shutdown()

    in_simulation(main)


def test_20_a_manager_made_by_hand_reads_and_writes_no_counters_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        manager = make_manager(ledger=MemoryLedger())
        manager.register_factory(MINE, Crasher(), max_restarts=1)
        await manager.start(MINE)
        await asyncio.sleep(HOUR_S)
        assert manager.is_permanently_failed(MINE)
        await manager.shutdown()

    in_simulation(main)
    assert list(tmp_path.iterdir()) == []


def test_20_an_unknown_health_is_not_taken_for_a_good_one() -> None:
    async def main() -> None:
        manager, daemon = make_manager(), Steady()
        daemon.healthy = {"message": "no verdict"}
        manager.register_factory(MINE, daemon, startup_grace_period=0, health_check_interval=1)
        await manager.start(MINE)
        await asyncio.sleep(2.5)
        assert not manager.get_all_daemon_health()[MINE]["healthy"]
        assert manager.get_status()[MINE].state is DaemonState.RUNNING
        await manager.shutdown()

    in_simulation(main)
