"""`get_runner` of the documents: a daemon for as long as a task of one's own."""

import asyncio

import pytest
from app.coordination.daemon_manager import get_daemon_manager
from app.coordination.daemon_runners import get_runner
from app.coordination.daemon_types import DaemonType

from ringrift.engine.opening import close_engine
from ringrift.errors import ConfigError


async def test_a_runner_runs_its_daemon_until_it_is_cancelled():
    manager = get_daemon_manager()
    task = asyncio.create_task(get_runner(DaemonType.EVENT_ROUTER)())
    while not manager.is_running(DaemonType.EVENT_ROUTER):
        assert not task.done()
        await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.wait({task}, timeout=60)
    assert not manager.is_running(DaemonType.EVENT_ROUTER)
    await manager.shutdown()
    await close_engine()


def test_a_daemon_that_is_not_built_says_so_before_it_runs():
    with pytest.raises(ConfigError, match="vast_idle cannot run: capability not built yet: idle_shutdown"):
        get_runner(DaemonType.VAST_IDLE)
