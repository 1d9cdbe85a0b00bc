"""What a getter hands out while the daemon runs is that daemon, and not another object of its kind."""

import pytest
from public_answers import questions

from ringrift.coordination.daemon_manager import get_daemon_manager
from ringrift.daemons.types import DaemonType
from ringrift.process import process_scope

MORE = (DaemonType.UNIFIED_PROMOTION, DaemonType.JOB_SCHEDULER, DaemonType.TRAINING_DATA_SYNC)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("RINGRIFT_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("RINGRIFT_HEALTH_PORT", "0")
    monkeypatch.setenv("RINGRIFT_DATA_PORT", "0")
    process_scope().clear()
    yield
    process_scope().clear()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_every_getter_of_a_daemon_gives_the_one_that_runs():
    manager = get_daemon_manager()
    await manager.start_all(profile="standard")
    for daemon in MORE:
        await manager.start(daemon, wait_for_deps=True)
    try:
        running = [info.instance for info in manager.get_status().values() if info.state == "running"]
        found = {}
        for name, getter in questions().items():
            if not name.endswith("()") or name == "get_engine_blocking()":
                continue
            thing = getter()
            alike = [daemon for daemon in running if type(daemon) is type(thing)]
            if alike:
                found[name] = any(daemon is thing for daemon in alike)
        assert {"get_feedback_loop_controller()", "get_quality_monitor()"} <= found.keys()
        assert [name for name, is_it in found.items() if not is_it] == []
    finally:
        await manager.shutdown(timeout=10.0, force=True)
