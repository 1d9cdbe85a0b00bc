"""Daemons under the names of the documents: runners, factories, adapters, life, numbers."""

import asyncio

import pytest

from ringrift.coordination import daemon_lifecycle, daemon_runners
from ringrift.coordination.daemon_adapters import (
    DaemonAdapter,
    PromotionDaemonAdapter,
    adapt,
)
from ringrift.coordination.daemon_factory import create_daemon, get_daemon_factory
from ringrift.coordination.daemon_factory_implementations import (
    get_entry_points,
    get_factory_implementation,
)
from ringrift.coordination.daemon_lifecycle import (
    Phase,
    get_all_lifecycles,
    get_lifecycle,
    next_actions,
    pause_daemon,
    plan,
    restart_daemon,
    resume_daemon,
    start_daemon,
    stop_daemon,
)
from ringrift.coordination.daemon_manager import get_daemon_manager
from ringrift.coordination.daemon_metrics import get_all_daemon_metrics, get_daemon_metrics
from ringrift.coordination.daemon_stats import collect_daemon_stats, get_daemon_stats
from ringrift.coordination.sync_base import SyncDaemonBase
from ringrift.daemons.running import EntryPoint
from ringrift.daemons.types import DaemonState, DaemonType
from ringrift.engine.opening import close_engine
from ringrift.errors import ConfigError
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.status import CoordinatorStatus

ROUTER = DaemonType.EVENT_ROUTER


@pytest.fixture(autouse=True)
async def ended():
    yield
    await get_daemon_manager().shutdown(timeout=5.0, force=True)
    await close_engine()


class Mine:
    """A daemon as somebody else wrote it."""

    def __init__(self):
        self.runs = 0

    async def start(self):
        self.runs += 1

    async def stop(self):
        self.runs -= 1


# --- runners --------------------------------------------------------------------------------------------


def test_every_daemon_type_has_its_runner():
    for daemon_type in DaemonType:
        runner = getattr(daemon_runners, f"create_{daemon_type.value}")
        assert asyncio.iscoroutinefunction(runner)
        assert daemon_type.name in runner.__doc__


async def test_a_runner_runs_its_daemon_until_it_is_cancelled():
    manager = get_daemon_manager()
    task = asyncio.create_task(daemon_runners.create_event_router())
    async with asyncio.timeout(20):
        while not manager.is_running(ROUTER):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not manager.is_running(ROUTER)


async def test_the_runner_of_what_is_not_built_says_so():
    missing = [each for each in DaemonType if each not in daemon_runners.get_all_runners()]
    assert DaemonType.NODE_RECOVERY in missing
    with pytest.raises(ConfigError, match="node_recovery cannot run: capability not built yet"):
        await daemon_runners.create_node_recovery()


# --- making ---------------------------------------------------------------------------------------------


async def test_a_daemon_is_made_without_running():
    made = await create_daemon(DaemonType.QUALITY_MONITOR)
    assert type(made).__name__ == "QualityMonitorDaemon"
    assert not made.is_running
    assert not get_daemon_manager().is_running(DaemonType.QUALITY_MONITOR)


async def test_the_factory_says_what_it_cannot_make():
    factory = get_daemon_factory()
    assert ROUTER in factory.registered_types()
    ok, why = factory.can_create(DaemonType.NODE_RECOVERY)
    assert not ok
    assert "not built yet" in why
    with pytest.raises(ConfigError, match="cannot be made: capability not built yet"):
        await factory.create(DaemonType.NODE_RECOVERY)


def test_every_entry_point_leads_to_a_function():
    for daemon_type in get_entry_points():
        assert callable(get_factory_implementation(daemon_type))
    with pytest.raises(ConfigError, match="not built yet"):
        get_factory_implementation(DaemonType.NODE_RECOVERY)


class OwnSync(SyncDaemonBase):
    """A sync of a user's own."""

    async def _run_cycle(self):
        """Nothing to do."""


@pytest.mark.parametrize(
    "made_by",
    [
        "ringrift.coordination.sync_coordinator:AutoSyncDaemon",
        "ringrift.coordination.training_activity_daemon:TrainingActivityDaemon",
        f"{__name__}:OwnSync",
    ],
)
async def test_a_daemon_hears_through_the_router_that_it_is_handed_also_among_its_further_keywords(made_by):
    own = UnifiedEventRouter()
    offered = {"router": own, "manager": None, "name": "own_sync", "interval_s": 5.0}
    assert (await EntryPoint(made_by, offered)()).router is own


# --- adapters -------------------------------------------------------------------------------------------


async def test_an_adapter_is_a_handle_on_the_managers_daemon():
    adapter = DaemonAdapter("event_router")
    assert adapter.health_check().status is CoordinatorStatus.STOPPED
    assert await adapter.start()
    assert adapter.is_running
    assert get_daemon_manager().is_running(ROUTER)
    assert adapter.health_check().healthy
    assert adapter.info.state is DaemonState.RUNNING
    assert await adapter.stop()
    assert adapter.why == "stopped on purpose"


def test_an_adapter_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="is no daemon type"):
        DaemonAdapter("no_such_daemon")
    assert PromotionDaemonAdapter().daemon_type is DaemonType.AUTO_PROMOTION


async def test_an_object_of_ones_own_becomes_a_daemon():
    mine = Mine()
    adapter = adapt(mine, "MY_OLD_DAEMON")
    assert await adapter.start()
    assert mine.runs == 1
    assert get_daemon_manager().is_running(DaemonType("my_old_daemon"))
    assert await adapter.stop()
    assert mine.runs == 0


def test_what_cannot_live_is_no_daemon():
    with pytest.raises(ConfigError, match="neither run"):
        adapt(object(), "MY_STONE")


# --- life and numbers -----------------------------------------------------------------------------------


async def test_the_life_of_a_daemon_by_the_supervisors_rules():
    before = get_lifecycle(ROUTER)
    assert (before.phase, before.wanted, before.why) == (Phase.ABSENT, False, "not started")
    assert await start_daemon(ROUTER)
    up = get_lifecycle(ROUTER)
    assert (up.phase, up.state, up.why, up.next_action) == (Phase.UP, DaemonState.RUNNING, "", "")
    assert next_actions() == ()
    assert await restart_daemon(ROUTER)
    assert get_lifecycle(ROUTER).phase is Phase.UP
    assert await stop_daemon(ROUTER)
    assert get_lifecycle(ROUTER).why == "stopped on purpose"
    assert set(get_all_lifecycles()) >= set(DaemonType)


def test_all_lives_are_told_from_one_plan(monkeypatch):
    plans = []
    monkeypatch.setattr(daemon_lifecycle, "plan", lambda *a, **k: plans.append(plan(*a, **k)) or plans[-1])
    lives = get_all_lifecycles()
    assert len(plans) == 1
    assert all(get_lifecycle(each) == life for each, life in lives.items())


async def test_a_paused_daemon_says_why():
    adapter = adapt(Mine(), "MY_PAUSED_DAEMON")
    await adapter.start()
    assert pause_daemon(adapter.daemon_type)
    life = get_lifecycle(adapter.daemon_type)
    assert (*life.holds, *life.pauses) == ("asked for",)
    assert resume_daemon(adapter.daemon_type)
    assert get_lifecycle(adapter.daemon_type).holds == ()


def test_an_unknown_daemon_has_no_life():
    stranger = DaemonType.register("MY_STRANGER")
    with pytest.raises(ConfigError, match="is not registered"):
        get_lifecycle(stranger)
    with pytest.raises(ConfigError, match="is not registered"):
        get_daemon_metrics(stranger)


async def test_metrics_and_numbers_are_those_of_the_manager():
    idle = get_daemon_metrics(ROUTER)
    assert (idle.state, idle.uptime_s, idle.restarts) == ("stopped", None, 0)
    assert collect_daemon_stats().uptime_s_mean is None
    assert collect_daemon_stats().manager_uptime_s is None
    await start_daemon(ROUTER)
    running = get_daemon_metrics(ROUTER)
    assert running.healthy
    assert running.uptime_s >= 0.0
    assert running.to_dict()["daemon_type"] == "event_router"
    stats = get_daemon_stats()
    assert stats["running"] == 1
    assert stats["total"] == len(get_all_daemon_metrics())
    assert stats["manager_uptime_s"] is not None
