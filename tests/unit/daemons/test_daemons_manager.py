"""The manager's promises beside what broke elsewhere: dependencies, pauses, memory, events."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
import structlog
from daemons_kit import HOUR_S, Crasher, Steady, Stubborn, in_simulation, make_manager, own_type

from ringrift.coordination.daemon_manager import DaemonManager, get_daemon_manager, reset_daemon_manager
from ringrift.daemons.registry import DependencyValidationError
from ringrift.daemons.types import DaemonManagerConfig, DaemonType
from ringrift.errors import ConfigError
from ringrift.events.unified_router import Surroundings, UnifiedEventRouter
from ringrift.runtime import system_runtime
from ringrift.testing.simulation import SimulatedRuntime

MINE, NEEDED, OTHER = own_type("MINE"), own_type("NEEDED"), own_type("OTHER")


def test_a_name_stands_for_its_daemon_and_an_unknown_one_for_none() -> None:
    async def main() -> None:
        manager = make_manager()
        manager.register_factory(MINE, Steady())
        assert await manager.start("mine")  # type: ignore[arg-type]
        assert manager.is_running(MINE)
        for unknown in ("nonsense", own_type("NEVER_REGISTERED")):
            assert not await manager.start(unknown)  # type: ignore[arg-type]
            assert not await manager.stop(unknown)  # type: ignore[arg-type]
            assert not manager.is_running(unknown)  # type: ignore[arg-type]
            assert not manager.is_permanently_failed(unknown)  # type: ignore[arg-type]
            assert not manager.readiness_probe([unknown])  # type: ignore[list-item]
            assert not await manager.restart_failed_daemon(unknown)  # type: ignore[arg-type]
            manager.clear_permanently_failed(unknown)  # type: ignore[arg-type]
        await manager.shutdown()

    in_simulation(main)


def test_daemons_that_would_wait_for_each_other_are_refused_by_their_names_when_the_last_is_registered() -> (
    None
):
    async def main() -> None:
        manager = make_manager()
        manager.register_factory(MINE, Steady(), depends_on=[NEEDED])
        manager.register_factory(NEEDED, Steady(), depends_on=[OTHER])
        with pytest.raises(ConfigError, match=r"depend on each other: .*mine.*needed.*other"):
            manager.register_factory(OTHER, Steady(), depends_on=[MINE])
        manager.register_factory(OTHER, Steady())
        assert await manager.start(MINE, wait_for_deps=True)
        await manager.shutdown()

    in_simulation(main)


def test_a_start_before_its_dependency_waits_for_it_and_says_so() -> None:
    async def main() -> None:
        manager = make_manager()
        manager.register_factory(NEEDED, Steady())
        manager.register_factory(MINE, Steady(), depends_on=[NEEDED])
        assert not await manager.start(MINE)
        assert manager.why(MINE) == "waits for needed"
        assert manager.get_status()[MINE].last_error is None  # nothing failed
        health = manager.get_all_daemon_health()[MINE]
        assert (health["healthy"], health["message"]) == (False, "waits for needed")
        await asyncio.sleep(HOUR_S)
        assert not manager.is_running(MINE)
        assert await manager.start(NEEDED)
        await asyncio.sleep(1)
        assert manager.is_running(MINE)
        await manager.shutdown()

    in_simulation(main)


def test_a_start_whose_dependency_can_never_come_is_refused_and_leaves_no_wish_behind() -> None:
    async def main() -> None:
        manager = make_manager()
        manager.register_factory(MINE, Steady(), depends_on=[DaemonType.IDLE_RESOURCE])
        manager.register_factory(OTHER, Steady(), depends_on=[NEEDED])
        for waits in (False, True):
            assert not await manager.start(MINE, wait_for_deps=waits)
            assert "needs idle_resource: capability not built yet" in (
                manager.get_status()[MINE].last_error or ""
            )
            assert not await manager.start(OTHER, wait_for_deps=waits)
            assert manager.get_status()[OTHER].last_error == "needs needed: needed is not registered"
        assert manager.why(MINE) == manager.why(OTHER) == "not started"
        await manager.shutdown()

    in_simulation(main)


def test_a_daemon_of_your_own_needs_only_what_you_say_also_under_a_name_of_the_product() -> None:
    async def main() -> None:
        manager = make_manager()
        manager.register_factory(DaemonType.AUTO_SYNC, Steady())
        assert await manager.start(DaemonType.AUTO_SYNC)
        assert manager.get_status()[DaemonType.AUTO_SYNC].depends_on == []
        await manager.shutdown()

    in_simulation(main)


def test_a_refused_start_keeps_the_error_that_led_to_it() -> None:
    async def main() -> None:
        manager = make_manager()
        manager.register_factory(MINE, Crasher(), max_restarts=1)
        await manager.start(MINE)
        await asyncio.sleep(HOUR_S)
        assert manager.is_permanently_failed(MINE)
        assert manager.get_status()[MINE].restart_count == 1
        for _ in range(3):
            assert not await manager.start(MINE)
            assert not (await manager.start_all([MINE]))[MINE]
        assert manager.get_status()[MINE].last_error == "RuntimeError: broken"
        await manager.shutdown()

    in_simulation(main)


def test_a_log_that_raises_leaves_nobody_waiting_and_starts_no_storm() -> None:
    def refuse(*_: Any) -> str:
        raise OSError("no space left")

    class Broken:
        lives = 0

        async def run(self, *, on_ready: Any) -> None:
            Broken.lives += 1
            raise RuntimeError("broken")

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        manager = make_manager()
        manager.register_factory(MINE, Broken)
        task = asyncio.create_task(manager.start(MINE))
        await asyncio.sleep(0)
        structlog.configure(processors=[refuse])
        await asyncio.wait({task}, timeout=HOUR_S)
        structlog.reset_defaults()
        assert task.done()
        assert task.exception() is not None or task.result() is False
        assert Broken.lives == 1
        await manager.shutdown()

    in_simulation(main)


def test_a_manager_left_on_a_closed_loop_can_still_be_shut_down() -> None:
    manager = make_manager(runtime=system_runtime())
    manager.register_factory(MINE, Steady())
    assert asyncio.run(manager.start(MINE))
    asyncio.run(manager.shutdown())
    assert not manager.is_running(MINE)
    assert manager.get_status()["running"] is False


def test_a_manager_on_another_live_loop_is_not_shut_down_behind_its_back() -> None:
    manager = make_manager(runtime=system_runtime())
    manager.register_factory(MINE, Steady())
    with asyncio.Runner() as runner:
        runner.run(manager.start(MINE))
        with pytest.raises(ConfigError, match="another event loop"):
            asyncio.run(manager.shutdown())
        runner.run(manager.shutdown())


def test_a_start_that_waits_for_its_dependencies_starts_them() -> None:
    async def main() -> None:
        manager, loop = make_manager(), asyncio.get_running_loop()
        manager.register_factory(OTHER, Steady())
        manager.register_factory(NEEDED, Steady(), depends_on=[OTHER])
        manager.register_factory(MINE, Steady(), depends_on=[NEEDED])
        assert await manager.start(MINE, wait_for_deps=True)
        assert manager.is_running(NEEDED)
        assert manager.is_running(OTHER)
        assert loop.time() == pytest.approx(0)
        await manager.shutdown()

    in_simulation(main)


def test_a_start_waits_no_longer_than_its_limit_for_a_dependency_that_does_not_come_up() -> None:
    async def main() -> None:
        manager, loop = make_manager(dependency_wait_timeout=12.0), asyncio.get_running_loop()
        manager.register_factory(NEEDED, Steady())
        manager.register_factory(MINE, Steady(), depends_on=[NEEDED])
        manager.pause(NEEDED)
        manager.supervisor.units[NEEDED].stops_to_pause = True
        assert not await manager.start(MINE, wait_for_deps=True)
        assert loop.time() == pytest.approx(12.0)
        assert manager.why(MINE) == "waits for needed"
        manager.resume(NEEDED)
        await asyncio.sleep(1)
        assert manager.is_running(MINE)
        await manager.shutdown()

    in_simulation(main)


def test_a_missing_soft_dependency_degrades_unless_the_row_is_strict() -> None:
    async def main() -> None:
        manager = make_manager()
        manager.register_factory(NEEDED, Steady())
        manager.register_factory(MINE, Steady(), soft_depends_on=(NEEDED,))
        manager.register_factory(OTHER, Steady(), soft_depends_on=(NEEDED,), startup_mode="strict")
        assert await manager.start(MINE)
        info = manager.get_status()[MINE]
        assert (info.degraded_mode, info.missing_soft_deps) == (True, [NEEDED])
        assert not await manager.start(OTHER)
        await manager.start(NEEDED)
        await asyncio.sleep(1)
        assert manager.is_running(OTHER)
        assert not manager.get_status()[OTHER].degraded_mode
        await manager.shutdown()

    in_simulation(main)


def test_start_all_refuses_a_graph_that_cannot_start() -> None:
    async def main() -> None:
        manager = make_manager()
        manager.register_factory(NEEDED, Steady(), depends_on=[MINE])
        with pytest.raises(DependencyValidationError, match="needed -> mine"):
            manager.register_factory(MINE, Steady(), depends_on=[NEEDED])
        manager.register_factory(MINE, Steady())
        with pytest.raises(DependencyValidationError, match="neither listed nor running"):
            await manager.start_all([NEEDED])
        with pytest.raises(ValueError, match="coordinator, training_node"):
            await manager.start_profile("nonsense")
        await manager.shutdown()

    in_simulation(main)


def test_a_daemon_without_pause_is_stopped_while_paused_and_comes_back() -> None:
    async def main() -> None:
        manager, lives = make_manager(), []

        async def plain() -> None:
            lives.append(1)
            await asyncio.get_running_loop().create_future()

        manager.register_factory(MINE, plain)
        await manager.start(MINE)
        assert manager.pause(MINE)
        await asyncio.sleep(1)
        assert not manager.is_running(MINE)
        assert "asked for" in manager.why(MINE)
        manager.resume(MINE)
        await asyncio.sleep(1)
        assert manager.is_running(MINE)
        assert len(lives) == 2
        await manager.shutdown()

    in_simulation(main)


def test_a_pause_outlives_a_crash_and_a_disk_pause_runs_out_by_itself() -> None:
    async def main() -> None:
        manager, daemon = make_manager(), Steady()
        manager.register_factory(MINE, daemon, pausable=True)
        await manager.start(MINE)
        react = manager.reactions
        await react.on_disk_space_low({"node_id": "elsewhere", "usage_percent": 99})
        await react.on_disk_space_low({"node_id": "here", "usage_percent": 84})
        await asyncio.sleep(1)
        assert not daemon.paused
        await react.on_disk_space_low({"node_id": "here", "usage_percent": 91})
        await asyncio.sleep(1)
        assert daemon.paused
        daemon.paused = False
        task = manager.get_status()[MINE].task
        assert task is not None
        task.cancel()
        await asyncio.sleep(30)
        assert (daemon.lives, daemon.paused) == (2, True)
        await asyncio.sleep(1000)
        assert not daemon.paused
        await manager.shutdown()

    in_simulation(main)


def test_little_memory_refuses_all_but_critical_daemons() -> None:
    async def main() -> None:
        manager = make_manager(memory_percent=93.0)
        manager.register_factory(MINE, Steady())
        manager.register_factory(DaemonType.MEMORY_MONITOR, Steady(), depends_on=[], capability="")
        assert not await manager.start(MINE)
        assert "93 %" in (manager.get_status()[MINE].last_error or "")
        assert await manager.start(DaemonType.MEMORY_MONITOR)
        await manager.shutdown()

    in_simulation(main)


def test_a_crash_loop_and_giving_up_are_told_once_each_over_the_router() -> None:
    async def main() -> None:
        runtime = SimulatedRuntime()
        router = UnifiedEventRouter(surroundings=Surroundings(runtime=runtime))
        said: list[tuple[str, dict[str, Any]]] = []
        router.subscribe(None, lambda event: said.append((event.event_type, dict(event.payload))))
        manager = make_manager(runtime=runtime, bus=router)
        manager.register_factory(MINE, Crasher())
        await manager.start(MINE)
        await asyncio.sleep(10 * HOUR_S)
        names = [name for name, _ in said]
        assert names.count("DAEMON_CRASH_LOOP_DETECTED") == 1
        assert names.count("DAEMON_PERMANENTLY_FAILED") == 1
        changes = [(p["old_status"], p["new_status"]) for name, p in said if name == "DAEMON_STATUS_CHANGED"]
        assert changes[:3] == [("stopped", "running"), ("running", "restarting"), ("restarting", "running")]
        assert (len(changes), changes[-1]) == (12, ("running", "failed"))
        await manager.shutdown()
        await router.stop()

    in_simulation(main)


def test_a_bus_that_fails_disturbs_no_daemon() -> None:
    class BrokenBus:
        async def publish(self, event_type: Any, payload: Any = None, source: str = "") -> None:
            raise ValueError("no")

        def subscribe(self, event_type: Any, callback: Any) -> None:
            return

        def unsubscribe(self, event_type: Any, callback: Any) -> None:
            return

    async def main() -> None:
        manager, daemon = make_manager(bus=BrokenBus()), Steady()
        manager.register_factory(MINE, daemon)
        assert await manager.start(MINE)
        await manager.shutdown()
        assert daemon.alive == 0

    in_simulation(main)


def test_a_cascade_of_crashes_makes_its_category_wait_together() -> None:
    async def main() -> None:
        manager = make_manager()
        crashers = {own_type(f"CASCADE_{i}"): Crasher(after_s=400.0) for i in range(6)}
        for daemon_type, crasher in crashers.items():
            manager.register_factory(daemon_type, crasher)
        await manager.start_all(list(crashers))
        await asyncio.sleep(401)  # all crash together, after runs that would be restarted at once
        assert sum(len(crasher.starts) for crasher in crashers.values()) == 6
        assert not manager.can_restart(next(iter(crashers)))[0]
        assert "misc" in manager.get_status()["circuit_breaker"]
        await asyncio.sleep(121)
        assert sum(len(crasher.starts) for crasher in crashers.values()) == 12
        await manager.shutdown()

    in_simulation(main)


@pytest.mark.parametrize(
    "wrong",
    [
        {"health_check_interval": 0},
        {"shutdown_timeout": -1},
        {"shutdown_timeout": 0},
        {"max_restart_attempts": -1},
        {"memory_limit_percent": 0},
        {"recovery_cooldown": "soon"},
        {"auto_start": "yes"},
        {"auto_start": 1},
        {"health_check_interval": True},
        {"max_restart_attempts": 2.5},
    ],
)
def test_an_unsafe_config_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        DaemonManagerConfig(**wrong)


def test_registering_is_refused_while_it_runs_and_for_unknown_keywords() -> None:
    async def main() -> None:
        manager = make_manager()
        manager.register_factory(MINE, Steady())
        await manager.start(MINE)
        with pytest.raises(ConfigError, match="stop it"):
            manager.register_factory(MINE, Steady())
        with pytest.raises(ConfigError, match="color"):
            manager.register_factory(OTHER, Steady(), color="red")
        with pytest.raises(ConfigError, match="callable"):
            manager.register_factory(OTHER, "not a factory")  # type: ignore[arg-type]
        await manager.shutdown()

    in_simulation(main)


def takes_two(first: int, second: int) -> None:
    """A function that nobody can call as a factory."""


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"daemon_type": "my_daemon"}, 'DaemonType.register("MY_DAEMON")'),
        ({"daemon_type": None}, "None is no daemon type"),
        ({"factory": takes_two}, "missing a required argument: 'first'"),
        ({"depends_on": "event_router"}, "depends_on"),
        ({"depends_on": ["my_daemon"]}, "'my_daemon' is no daemon type"),
        ({"depends_on": 5}, "depends_on"),
        ({"depends_on": [OTHER]}, "depends on itself"),
        ({"soft_depends_on": NEEDED}, "soft_depends_on"),
        ({"health_check_interval": "often"}, "health_check_interval"),
        ({"health_check_interval": 0}, "health_check_interval"),
        ({"health_check_interval": float("nan")}, "health_check_interval"),
        ({"auto_restart": "no"}, "auto_restart"),
        ({"max_restarts": "many"}, "max_restarts"),
        ({"max_restarts": -1}, "max_restarts"),
        ({"max_restarts": True}, "max_restarts"),
        ({"category": "colorful"}, "category"),
        ({"isolation": "island"}, "isolation"),
        ({"startup_mode": "maybe"}, "startup_mode"),
        ({"pausable": "yes"}, "pausable"),
        ({"profiles": "standard"}, "profiles"),
        ({"profiles": ["nonsense"]}, "nonsense"),
        ({"capability": "flying"}, "flying"),
        ({"settings": "kind=all"}, "settings"),
        ({"deprecated_for": "my_daemon"}, "'my_daemon' is no daemon type"),
        ({"startup_grace_period": "long"}, "startup_grace_period"),
        ({"ready_timeout": -1.0}, "ready_timeout"),
        ({"delay_s": "soon"}, "delay_s"),
        ({"jitter_share": 2}, "jitter_share"),
    ],
)
def test_a_wrong_argument_is_refused_at_once_and_leaves_the_manager_as_it_was(
    wrong: dict[str, Any], text: str
) -> None:
    async def main() -> None:
        manager = make_manager()
        before = manager.get_status()["daemons"]
        given: dict[str, Any] = {"daemon_type": OTHER, "factory": Steady(), **wrong}
        with pytest.raises(ConfigError, match=re.escape(text)):
            manager.register_factory(**given)
        assert manager.get_status()["daemons"] == before
        manager.register_factory(MINE, Steady())
        assert await manager.start(MINE)
        assert manager.health_check().healthy
        await manager.shutdown()

    in_simulation(main)


def test_a_daemon_is_registered_under_its_name_as_text_once_the_name_is_known() -> None:
    async def main() -> None:
        manager, _, _ = make_manager(), own_type("MINE"), own_type("NEEDED")
        manager.register_factory("mine", Steady(), depends_on=["needed"])  # type: ignore[arg-type, list-item]
        manager.register_factory("needed", Steady(), profiles={"minimal"}, category="sync")  # type: ignore[arg-type]
        assert await manager.start(MINE, wait_for_deps=True)
        assert manager.get_status()["daemons"]["needed"]["category"] == "sync"
        await manager.shutdown()

    in_simulation(main)


def test_calls_with_arguments_of_another_kind_say_what_is_wrong() -> None:
    async def main() -> None:
        manager = make_manager()
        with pytest.raises(ConfigError, match="profile='coordinator'"):
            await manager.start_all("coordinator")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="'nonsense' is no daemon type"):
            await manager.start_all(["nonsense"])  # type: ignore[list-item]
        with pytest.raises(ConfigError, match="several daemon types"):
            manager.readiness_probe("event_router")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="within_seconds"):
            manager.get_recent_restarts("an hour")  # type: ignore[arg-type]
        for timeout in (-1, "soon"):
            with pytest.raises(ConfigError, match="timeout"):
                await manager.shutdown(timeout=timeout)  # type: ignore[arg-type]

    in_simulation(main)


@pytest.mark.parametrize(
    "wrong", [{"config": {"auto_start": True}}, {"registry": {}}, {"ledger": "file"}, {"bus": "events"}]
)
def test_a_manager_of_wrong_parts_is_refused_when_it_is_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        DaemonManager(**wrong)


def test_the_manager_of_the_process_has_the_configuration_of_the_first_call_and_refuses_another() -> None:
    asked = DaemonManagerConfig(max_restart_attempts=2)
    manager = get_daemon_manager(asked)
    assert manager.config == asked
    assert get_daemon_manager() is manager
    assert get_daemon_manager(DaemonManagerConfig(max_restart_attempts=2)) is manager
    assert DaemonManager.get_instance() is manager
    with pytest.raises(ConfigError, match="another configuration"):
        get_daemon_manager(DaemonManagerConfig(max_restart_attempts=3))
    with pytest.raises(ConfigError, match="DaemonManagerConfig"):
        get_daemon_manager({"max_restart_attempts": 2})  # type: ignore[arg-type]
    reset_daemon_manager()
    assert not DaemonManager.has_instance()
    assert get_daemon_manager().config == DaemonManagerConfig()
    with pytest.raises(ConfigError, match="another configuration"):
        get_daemon_manager(asked)


@pytest.mark.parametrize("name", [5, "", "lower", "WITH SPACE"])
def test_a_name_that_can_name_no_daemon_is_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match="no daemon name"):
        DaemonType.register(name)


def test_a_manager_that_shuts_down_is_not_repaired() -> None:
    """The watch that repairs it is one of its daemons, and runs on while others take their time to stop."""

    async def main() -> None:
        manager, slow = make_manager(), Stubborn()
        manager.register_factory(MINE, slow)
        await manager.start(MINE)
        stopping = asyncio.create_task(manager.shutdown(timeout=5.0))
        await asyncio.sleep(1)
        manager.repair()
        await stopping
        assert not manager.health_rounds_alive
        slow.let_go.set()

    in_simulation(main)


def test_a_manager_that_was_shut_down_can_be_used_again() -> None:
    async def main() -> None:
        manager, daemon = make_manager(), Steady()
        manager.register_factory(MINE, daemon, startup_grace_period=0, health_check_interval=1)
        for life in (1, 2, 3):
            assert await manager.start(MINE)
            checks = daemon.health_checks
            await asyncio.sleep(10)
            assert daemon.health_checks > checks
            await manager.shutdown()
            assert (daemon.alive, daemon.lives) == (0, life)

    in_simulation(main)
