"""What broke in systems like this one, rows 1 to 10: each must not happen here."""

from __future__ import annotations

import asyncio

import pytest
from daemons_kit import (
    HOUR_S,
    Crasher,
    Election,
    Pressure,
    Steady,
    Stubborn,
    in_simulation,
    make_manager,
    own_type,
)

from ringrift.daemons.planning import NOT_LEADER
from ringrift.daemons.registry import check_registry_health
from ringrift.daemons.types import DaemonState, DaemonType
from ringrift.runtime import SystemRuntime

MINE = own_type("MINE")
OTHER = own_type("OTHER")
CHILD = own_type("CHILD")


def test_01_a_daemon_that_was_given_up_is_revived_by_nobody() -> None:
    async def main() -> None:
        manager, crasher = make_manager(), Crasher()
        manager.register_factory(MINE, crasher, max_restarts=3)
        await manager.start(MINE)
        await manager.start(DaemonType.DAEMON_WATCHDOG)
        await asyncio.sleep(10 * HOUR_S)
        assert len(crasher.starts) == 4  # the first start and three restarts
        assert manager.is_permanently_failed(MINE)
        info = manager.get_status()[MINE]
        assert (info.state, info.last_error) == (DaemonState.FAILED, "RuntimeError: broken")
        assert info.restart_count == 3
        assert not await manager.start(MINE)
        assert "clear_permanently_failed" in manager.can_restart(MINE)[1]
        manager.clear_permanently_failed(MINE)
        assert await manager.start(MINE)
        await manager.shutdown()

    in_simulation(main)


def test_02_what_was_stopped_on_purpose_or_never_asked_for_stays_down() -> None:
    async def main() -> None:
        manager = make_manager()
        mine, other = Steady(), Steady()
        manager.register_factory(MINE, mine)
        manager.register_factory(OTHER, other)
        await manager.start(MINE)
        assert await manager.stop(MINE)
        await asyncio.sleep(10 * HOUR_S)
        assert (mine.lives, other.lives) == (1, 0)
        assert manager.why(MINE) == "stopped on purpose"
        await manager.shutdown()

    in_simulation(main)


def test_02_a_safety_stop_is_not_undone() -> None:
    async def main() -> None:
        manager, daemon = make_manager(), Steady()
        manager.register_factory(MINE, daemon, leader_only=True, split_brain_stop=True)
        await manager.start(MINE)
        react, election = manager.reactions, Election(manager)
        election.leads = False
        await react.on_leader_elected({"leader_id": "here"})
        await asyncio.sleep(10 * HOUR_S)
        assert (daemon.alive, daemon.lives) == (0, 1)
        assert NOT_LEADER in manager.why(MINE)
        await react.on_split_brain_detected({"leaders_seen": ["a", "b"]})
        for say in (react.on_leader_elected, react.on_split_brain_resolved):
            await say({"leader_id": "here", "canonical_leader": "here"})  # words, and no proof
            await asyncio.sleep(10 * HOUR_S)
            assert (daemon.alive, daemon.lives) == (0, 1)
        election.leads = True
        await react.on_leader_elected({"leader_id": "elsewhere"})
        await asyncio.sleep(1)
        assert (daemon.alive, daemon.lives) == (1, 2)
        await manager.shutdown()

    in_simulation(main)


def test_nothing_stops_because_an_event_says_that_another_one_leads() -> None:
    async def main() -> None:
        manager, daemon = make_manager(), Steady()
        manager.register_factory(MINE, daemon, leader_only=True, split_brain_stop=True)
        await manager.start(MINE)
        for proof in (None, True):  # nobody is elected here; and this process holds its lease
            if proof:
                Election(manager).leads = True
            await manager.reactions.on_leader_elected({"leader_id": "evil"})
            await manager.reactions.on_leader_lost({"old_leader_id": "here", "reason": "evil says so"})
            await manager.reactions.on_split_brain_detected({"leaders_seen": ["evil", "here"]})
            await asyncio.sleep(HOUR_S)
            assert (daemon.alive, daemon.lives) == (1, 1)
        await manager.shutdown()

    in_simulation(main)


@pytest.mark.parametrize("event", ["leader_elected", "leader_lost", "split_brain_detected"])
def test_every_word_about_leadership_stops_the_loop_only_where_it_cannot_prove_its_lease(event: str) -> None:
    async def main() -> None:
        manager, loop, view = make_manager(), Steady(), Steady()
        manager.register_factory(DaemonType.DATA_PIPELINE, loop)
        manager.register_factory(MINE, view)
        await manager.start_all([DaemonType.DATA_PIPELINE, MINE])
        election, hear = Election(manager), getattr(manager.reactions, f"on_{event}")
        await hear({})
        await asyncio.sleep(1)
        assert (loop.alive, loop.lives) == (1, 1)
        election.leads = False
        await hear({})
        await asyncio.sleep(1)
        assert (loop.alive, view.alive) == (0, 1)
        assert NOT_LEADER in manager.why(DaemonType.DATA_PIPELINE)
        await manager.shutdown()

    in_simulation(main)


def test_a_lease_that_could_not_be_looked_at_for_a_moment_stops_the_loop_for_that_moment() -> None:
    async def main() -> None:
        manager, loop = make_manager(), Steady()
        manager.register_factory(DaemonType.DATA_PIPELINE, loop)
        await manager.start(DaemonType.DATA_PIPELINE)

        async def fail() -> bool:
            raise OSError("the store is away")

        async def hang() -> bool:
            await asyncio.sleep(HOUR_S)
            return True

        for lives, prove in enumerate((fail, hang), start=1):
            manager.reactions.leads = prove
            await manager.reactions.on_leader_lost({})
            await asyncio.sleep(1)
            assert (loop.alive, loop.lives) == (0, lives)
            manager.reactions.leadership_proved()
            await asyncio.sleep(1)
            assert (loop.alive, loop.lives) == (1, lives + 1)
        await manager.shutdown()

    in_simulation(main)


def test_a_split_brain_holds_what_two_leaders_must_not_do_until_it_is_resolved() -> None:
    async def main() -> None:
        manager, careful = make_manager(), Steady()
        manager.register_factory(MINE, careful, split_brain_stop=True)
        await manager.start(MINE)
        election, react = Election(manager), manager.reactions
        election.leads = False
        await react.on_leader_elected({})
        await asyncio.sleep(1)
        assert careful.alive == 1  # followers do this, too
        await react.on_split_brain_detected({})
        await asyncio.sleep(1)
        assert careful.alive == 0
        await react.on_split_brain_resolved({})
        await asyncio.sleep(1)
        assert careful.alive == 1
        await manager.shutdown()

    in_simulation(main)


def test_03_a_daemon_that_returns_at_once_is_done_and_bounces_nobody() -> None:
    async def main() -> None:
        manager, child, runs = make_manager(), Steady(), []

        async def returns() -> None:
            runs.append(1)

        manager.register_factory(MINE, returns)
        manager.register_factory(CHILD, child, depends_on=[MINE])
        assert await manager.start(MINE)
        await asyncio.sleep(0)
        assert await manager.start(CHILD)
        await asyncio.sleep(10 * HOUR_S)
        assert (len(runs), child.lives, child.alive) == (1, 1, 1)
        info = manager.get_status()[MINE]
        assert (info.state, info.completed) == (DaemonState.STOPPED, True)
        assert manager.readiness_probe()
        await manager.shutdown()

    in_simulation(main)


def test_03_a_crash_bounces_only_dependents_whose_row_asks() -> None:
    async def main() -> None:
        manager, calm, follower = make_manager(), Steady(), Steady()
        crasher = Crasher(after_s=100.0)
        manager.register_factory(MINE, crasher)
        manager.register_factory(CHILD, calm, depends_on=[MINE])
        manager.register_factory(OTHER, follower, depends_on=[MINE], restarts_with_dependency=True)
        await manager.start_all([MINE, CHILD, OTHER])
        await asyncio.sleep(150)
        assert len(crasher.starts) == 2
        assert (calm.lives, follower.lives) == (1, 2)
        await manager.shutdown()

    in_simulation(main)


def test_04_health_and_pause_reach_the_real_daemon() -> None:
    async def main() -> None:
        manager, daemon = make_manager(), Steady()
        manager.register_factory(
            MINE, daemon, health_check_interval=10, startup_grace_period=0, pausable=True
        )
        await manager.start(MINE)
        assert manager.get_status()[MINE].instance is daemon
        await asyncio.sleep(100)
        assert daemon.health_checks >= 8
        react = manager.reactions
        pressure = Pressure(manager, "a queue is full")
        await react.on_backpressure_activated({"level": "high"})
        await asyncio.sleep(0)
        assert daemon.paused
        pressure.reason = ""
        await react.on_backpressure_released({})
        await asyncio.sleep(0)
        assert not daemon.paused
        await manager.shutdown()
        assert manager.get_status()[MINE].instance is None

    in_simulation(main)


@pytest.mark.parametrize(
    "error",
    [ValueError("v"), KeyError("k"), TypeError("t"), SystemExit(3), AssertionError(), OSError(5, "io")],
)
def test_05_every_exception_is_a_crash_and_stop_still_works(error: BaseException) -> None:
    async def main() -> None:
        manager, crasher = make_manager(), Crasher(error)
        manager.register_factory(MINE, crasher)
        assert await manager.start(MINE)  # it is up when its task is; what it does then is its own affair
        await asyncio.sleep(0.1)
        info = manager.get_status()[MINE]
        assert info.state is DaemonState.RESTARTING
        assert info.last_error
        assert await manager.stop(MINE)
        assert manager.get_status()[MINE].state is DaemonState.STOPPED
        await asyncio.sleep(HOUR_S)
        assert len(crasher.starts) == 1
        await manager.shutdown()

    in_simulation(main)


def test_05_a_failed_import_is_kept_and_not_repeated() -> None:
    async def main() -> None:
        manager, crasher = make_manager(), Crasher(ImportError("no module named torch"))
        manager.register_factory(MINE, crasher)
        await manager.start(MINE)
        await asyncio.sleep(10 * HOUR_S)
        info = manager.get_status()[MINE]
        assert (info.state, len(crasher.starts)) == (DaemonState.IMPORT_FAILED, 1)
        assert "torch" in (info.import_error or "")
        assert not await manager.restart_failed_daemon(MINE)
        crasher.error = RuntimeError("later")
        assert await manager.restart_failed_daemon(MINE, force=True)
        await manager.shutdown()

    in_simulation(main)


def test_06_stopping_ends_the_daemons_own_loop_and_restarts_never_double_it() -> None:
    async def main() -> None:
        manager, daemon = make_manager(), Steady()
        manager.register_factory(MINE, daemon)
        for _ in range(20):
            await manager.start(MINE)
            await manager.stop(MINE)
            assert daemon.alive == 0
        started = [manager.start(MINE) for _ in range(5)]
        assert await asyncio.gather(*started) == [True] * 5
        assert (daemon.alive, daemon.most_alive) == (1, 1)
        await manager.shutdown()
        assert daemon.alive == 0

    in_simulation(main)


def test_06_an_object_with_start_and_stop_is_stopped_with_its_task() -> None:
    class OldStyle:
        def __init__(self) -> None:
            self.calls: list[str] = []

        async def start(self) -> None:
            self.calls.append("start")

        async def stop(self) -> None:
            await asyncio.sleep(0.1)
            self.calls.append("stop")

    async def main() -> None:
        manager, daemon = make_manager(), OldStyle()
        manager.register_factory(MINE, lambda: daemon)
        assert await manager.start(MINE)
        assert await manager.stop(MINE)
        assert daemon.calls == ["start", "stop"]
        await manager.shutdown()

    in_simulation(main)


def test_07_a_task_that_swallows_cancellation_is_reported_and_waited_for_no_longer() -> None:
    async def main() -> None:
        manager, stubborn, other = (
            make_manager(shutdown_timeout=1.0, force_kill_timeout=0.5),
            Stubborn(),
            Steady(),
        )
        manager.register_factory(MINE, stubborn)
        manager.register_factory(OTHER, other)
        await manager.start(MINE)
        loop = asyncio.get_running_loop()
        began = loop.time()
        stopping = asyncio.create_task(manager.stop(MINE))
        await asyncio.sleep(0)
        assert await manager.start(OTHER)
        assert loop.time() == began  # nobody waits behind the stop
        assert not await stopping
        assert loop.time() - began == pytest.approx(1.5)
        info = manager.get_status()[MINE]
        assert (info.leaked, info.task, info.state) == (True, None, DaemonState.STOPPED)
        assert not manager.get_all_daemon_health()[MINE]["healthy"]
        assert not await manager.start(MINE)  # a second instance beside it would be worse
        assert "ignores cancellation" in manager.why(MINE)
        stubborn.let_go.set()
        await asyncio.sleep(0.01)
        assert not manager.get_status()[MINE].leaked
        stubborn.let_go.clear()
        assert await manager.start(MINE)
        stubborn.let_go.set()
        await manager.shutdown()

    in_simulation(main)


def test_07_shutdown_keeps_its_limits_whatever_the_daemons_do() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        manager = make_manager()
        stubborn = [Stubborn() for _ in range(5)]
        for index, daemon in enumerate(stubborn):
            manager.register_factory(own_type(f"STUBBORN_{index}"), daemon)
            await manager.start(own_type(f"STUBBORN_{index}"))
        began = loop.time()
        await manager.shutdown(timeout=10.0, force=True)
        assert loop.time() - began <= 10.0 + 0.1
        for daemon in stubborn:
            daemon.let_go.set()
        await asyncio.sleep(0.01)

    in_simulation(main)


def test_08_shutdown_during_a_health_check_is_prompt() -> None:
    class SlowHealth(Steady):
        async def health_check(self) -> bool:  # type: ignore[override]
            await asyncio.sleep(4.0)
            return True

    async def main() -> None:
        manager = make_manager()
        manager.register_factory(MINE, SlowHealth(), health_check_interval=1, startup_grace_period=0)
        await manager.start(MINE)
        await asyncio.sleep(2.0)  # a check is under way
        began = asyncio.get_running_loop().time()
        await manager.shutdown()
        assert asyncio.get_running_loop().time() - began < 0.1

    in_simulation(main)


def test_09_every_call_of_the_documents_exists_and_answers() -> None:
    async def main() -> None:
        manager = make_manager()
        assert not manager.readiness_probe()
        assert "not started" in manager.readiness_probe()["reason"]
        manager.register_factory(MINE, Steady())
        await manager.start(MINE)
        assert manager.readiness_probe([MINE])
        assert not manager.readiness_probe([MINE, DaemonType.AUTO_SYNC])
        assert "auto_sync" in manager.readiness_probe([DaemonType.AUTO_SYNC])["reason"]
        assert manager.health_summary()["status"] == "healthy"
        assert manager.get_lifecycle_summary()["total_restarts"] == 0
        assert manager.get_failed_daemons() == []
        assert manager.get_degraded_daemons() == []
        assert manager.get_recent_restarts() == {}
        assert manager.can_restart(MINE) == (True, "")
        assert not manager.can_restart(DaemonType.VAST_IDLE)[0]
        assert manager.health_check().healthy
        await manager.shutdown()
        assert not manager.health_check().healthy

    in_simulation(main)


def test_09_the_registry_names_only_entry_points_whose_modules_exist() -> None:
    assert check_registry_health().details["missing_runners"] == []


def test_10_a_manager_left_on_a_closed_loop_starts_afresh_on_the_next() -> None:
    daemon = Steady()
    manager = make_manager(runtime=SystemRuntime())  # made where no loop runs
    manager.register_factory(MINE, daemon)

    async def first() -> None:
        assert await manager.start(MINE)
        await asyncio.sleep(0)
        assert daemon.alive == 1

    async def second() -> None:
        assert await manager.start(MINE)
        assert (daemon.alive, daemon.lives) == (1, 2)
        await manager.shutdown()

    asyncio.run(first())  # nobody shuts the manager down
    assert daemon.alive == 0
    asyncio.run(second())
