"""The verbs of a manager whose daemons run in another process: requests that the run carries out."""

import asyncio
from contextlib import asynccontextmanager

import msgspec
import pytest
from daemons_kit import Steady, make_manager, own_type, rows

from ringrift.coordination.daemon_manager import get_daemon_manager
from ringrift.coordination.daemon_runners import get_runner
from ringrift.daemons.registry import DaemonSpec
from ringrift.daemons.requests import DaemonRequests, RequestCarrier
from ringrift.daemons.types import DaemonType
from ringrift.engine.leases import CONTROL_LEASE, LeaseConfig, NamedLease
from ringrift.engine.opening import close_engine, get_engine
from ringrift.engine.run_reports import REPORT_KEY, RunReport, reported_getters
from ringrift.errors import Conflict
from ringrift.process import process_scope
from ringrift.runtime import system_runtime
from ringrift.settings import Settings, load_settings

BASE, NEEDS_IT = DaemonType.EVALUATION, DaemonType.AUTO_PROMOTION
MINE = own_type("MINE")


@pytest.fixture(autouse=True)
async def folder(tmp_path):
    process_scope().put(Settings, load_settings({"RINGRIFT_DATA_DIR": str(tmp_path / "data")}).settings)
    yield
    await get_daemon_manager().shutdown()
    await close_engine()
    process_scope().clear()


@asynccontextmanager
async def run_elsewhere():
    """As a control process: it holds the lease, carries requests out and reports. Gives its manager."""
    kv, runtime = (await get_engine()).kv, system_runtime()
    lease = NamedLease(
        kv, runtime, CONTROL_LEASE, holder="the run", config=LeaseConfig(lease_s=60.0, renew_s=5.0)
    )
    assert await lease.try_acquire()
    specs = [DaemonSpec(daemon_type=daemon) for daemon in (BASE, NEEDS_IT)]
    manager = make_manager(runtime=runtime, registry=rows(*specs))
    manager.register_factory(BASE, Steady())
    manager.register_factory(NEEDS_IT, Steady(), depends_on=[BASE])

    async def report():
        answers = {getter.name: getter.ask() for getter in reported_getters(manager) if not getter.waits}
        answers = {name: getattr(each, "to_dict", lambda each=each: each)() for name, each in answers.items()}
        said = RunReport(at_s=runtime.now_s(), answers=answers)
        await kv.put(REPORT_KEY, msgspec.json.encode(said, enc_hook=str))

    carrier = RequestCarrier(kv, manager, runtime, report=report)
    await carrier.before_start()
    await manager.start_all([BASE])
    await report()
    carrying = asyncio.create_task(carrier.run())
    try:
        yield manager
    finally:
        carrying.cancel()
        await asyncio.wait({carrying})
        await manager.shutdown()
        await lease.release()


async def asked(daemon):
    return await DaemonRequests((await get_engine()).kv).get(daemon.value)


async def test_a_stop_and_a_start_act_on_the_run_and_are_seen_at_once():
    async with run_elsewhere() as run:
        manager = get_daemon_manager()
        assert manager.is_running(BASE)
        assert await manager.stop(BASE, reason="the board is needed")
        assert not run.is_running(BASE)
        assert not manager.is_running(BASE)
        assert "the board is needed" in manager.why(BASE)
        health = manager.get_all_daemon_health()[BASE]
        assert (health["healthy"], health["state"]) == (False, "stopped")
        request = await asked(BASE)
        assert (request.reason, request.holds_down, bool(request.by)) == ("the board is needed", True, True)
        assert await manager.start(BASE)
        assert run.is_running(BASE)
        assert manager.is_running(BASE)
        assert await manager.restart_failed_daemon(NEEDS_IT)
        assert run.is_running(NEEDS_IT)
        # One of which the run says nothing does not run there, and the run cannot start it.
        assert not await manager.start(DaemonType.AUTO_EXPORT)
        assert "no daemon auto_export" in manager.why(DaemonType.AUTO_EXPORT)


async def test_a_start_with_what_it_needs_brings_that_up_in_the_run():
    async with run_elsewhere() as run:
        manager = get_daemon_manager()
        assert await manager.stop(BASE)
        assert await manager.start(NEEDS_IT, wait_for_deps=True)
        assert run.is_running(NEEDS_IT)


async def test_what_would_have_no_effect_is_refused():
    async with run_elsewhere() as run:
        manager = get_daemon_manager()
        for act in (manager.stop_all, manager.start_all, lambda: manager.start_profile("standard")):
            with pytest.raises(Conflict, match="run in another process"):
                await act()
        for pause in (manager.pause, manager.resume):
            with pytest.raises(Conflict, match="run in another process"):
                await asyncio.to_thread(pause, BASE)
        with pytest.raises(Conflict, match="runs in another process"):
            await get_runner(BASE)()
        assert run.is_running(BASE)
        assert await asked(BASE) is None
        assert not await manager.stop("no daemon")  # type: ignore[arg-type]


async def test_a_daemon_of_ones_own_runs_here_beside_the_run():
    async with run_elsewhere():
        manager, own = get_daemon_manager(), Steady()
        manager.register_factory(MINE, own)
        assert await manager.start(MINE)
        assert own.alive == 1
        assert await manager.stop(BASE), "with one of its own it still asks the run for the others"
        assert (await asked(BASE)).holds_down
        assert manager.pause(MINE)
        assert await manager.stop(MINE)
        assert own.alive == 0


async def test_without_a_run_the_daemons_are_those_of_this_process():
    async with run_elsewhere():
        pass
    manager, own = get_daemon_manager(), Steady()
    manager.register_factory(BASE, own, depends_on=[])
    assert await manager.start(BASE)
    assert await manager.stop(BASE)
    assert await asked(BASE) is None
