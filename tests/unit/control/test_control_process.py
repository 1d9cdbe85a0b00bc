"""The control process where something on its way up does not come."""

import asyncio

import pytest

from ringrift.control.process import run_control_process
from ringrift.coordination.daemon_manager import get_daemon_manager
from ringrift.coordination.master_loop_guard import is_master_loop_running
from ringrift.daemons.types import DaemonType
from ringrift.work.worker.local import LocalWorker


class NeverReady:
    async def run(self, *, on_ready):
        await asyncio.Event().wait()


async def test_a_stop_while_a_daemon_hangs_in_its_start_does_not_wait_for_it():
    get_daemon_manager().register_factory(DaemonType.HEALTH_SERVER, NeverReady)
    stop, started = asyncio.Event(), []
    running = asyncio.create_task(
        run_control_process(profile="standard", stop=stop, on_started=started.append)
    )
    async with asyncio.timeout(60):
        while not get_daemon_manager().is_running(DaemonType.EVENT_ROUTER):
            await asyncio.sleep(0.01)
        stop.set()
        await running
    assert started == []
    assert not any(get_daemon_manager().is_running(daemon) for daemon in DaemonType)
    assert not is_master_loop_running()


async def test_a_run_whose_workers_cannot_be_kept_alive_ends_with_the_reason(monkeypatch):
    async def broken(_worker):
        raise RuntimeError("no worker can be kept")

    monkeypatch.setattr(LocalWorker, "run", broken)
    started = []
    async with asyncio.timeout(60):
        with pytest.raises(RuntimeError, match="no worker can be kept"):
            await run_control_process(profile="minimal", stop=asyncio.Event(), on_started=started.append)
    assert started
    assert not is_master_loop_running()
