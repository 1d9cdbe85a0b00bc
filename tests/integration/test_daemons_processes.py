"""Daemons in processes of their own, with real processes and real signals."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from ringrift.coordination.daemon_manager import DaemonManager
from ringrift.daemons.child_process import LOG_BYTES_MAX, ChildDied, ChildHangs, ProcessDaemon, ProcessLimits
from ringrift.daemons.types import DaemonManagerConfig, DaemonState, DaemonType

PYTHON = sys.executable
CHILD_MODULE = """
import asyncio, os, signal, subprocess, sys, time

async def forever():
    await asyncio.Event().wait()

async def talks():
    for _ in range(3 * 1024):
        os.write(1, b"y" * 1024)
    await forever()

async def returns():
    return None

async def raises():
    print("the reason", file=sys.stderr, flush=True)
    raise RuntimeError("in the child")

class Ready:
    def __init__(self, settings):
        self.settings = settings
    async def run(self, *, on_ready):
        await asyncio.sleep(0.2)
        with open(self.settings["path"], "w") as file:
            file.write(str(os.getpid()))
        on_ready()
        await forever()

def holds_the_interpreter():
    time.sleep(1000)

class WithGrandchild:
    def __init__(self, settings):
        self.settings = settings
    async def run(self, *, on_ready):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        with open(self.settings["path"], "w") as file:
            file.write(f"{os.getpid()} {child.pid}")
        on_ready()
        await forever()
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "child_daemons.py").write_text(CHILD_MODULE)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    return "child_daemons"


async def eventually(condition: Callable[[], object], *, within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def started(daemon: ProcessDaemon) -> asyncio.Task[None]:
    ready = asyncio.Event()
    task = asyncio.create_task(daemon.run(on_ready=ready.set))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait({task, waiting}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    assert ready.is_set() or task.done()
    waiting.cancel()
    return task


async def test_a_child_is_ready_only_when_its_start_is_over(module: str, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    daemon = ProcessDaemon.for_entry_point(f"{module}:Ready", {"path": str(path)})
    task = await started(daemon)
    assert int(path.read_text()) == daemon.pid
    assert daemon.health_check().healthy
    pid = daemon.pid
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pid is not None
    assert not is_alive(pid)


async def test_the_end_of_a_child_says_how_and_why(module: str, tmp_path: Path) -> None:
    await ProcessDaemon.for_entry_point(f"{module}:returns").run()
    with pytest.raises(ChildDied, match=r"exited with code 1.*RuntimeError: in the child"):
        await ProcessDaemon.for_entry_point(f"{module}:raises", output=tmp_path / "log").run()
    with pytest.raises(ChildDied, match="was killed by SIGKILL"):
        await ProcessDaemon([PYTHON, "-c", "import os; os.kill(os.getpid(), 9)"]).run()


async def test_a_child_that_ignores_term_is_killed_with_everything_it_started(tmp_path: Path) -> None:
    path = tmp_path / "pids"
    program = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal, time; "
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)'])\n"
        "open(sys.argv[1], 'w').write(f'{os.getpid()} {child.pid} ')\n"
        "time.sleep(1000)"
    )
    daemon = ProcessDaemon([PYTHON, "-c", program, str(path)], limits=ProcessLimits(term_s=0.2))
    task = await started(daemon)
    await eventually(lambda: path.exists() and path.read_text().endswith(" "))
    pids = [int(word) for word in path.read_text().split()]
    began_s = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert 0.15 < time.monotonic() - began_s < 30.0
    await eventually(lambda: not any(is_alive(pid) for pid in pids))


async def test_a_second_cancellation_goes_straight_to_the_kill(tmp_path: Path) -> None:
    path = tmp_path / "deaf"
    program = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open(sys.argv[1], 'w'); "
        "time.sleep(1000)"
    )
    daemon = ProcessDaemon([PYTHON, "-c", program, str(path)], limits=ProcessLimits(term_s=600.0))
    task = await started(daemon)
    pid = daemon.pid
    assert pid is not None
    await eventually(path.exists)
    task.cancel()
    await asyncio.sleep(0.1)
    assert is_alive(pid)
    task.cancel()
    _, pending = await asyncio.wait({task}, timeout=60)  # a tenth of what it would have been given
    assert not pending
    await eventually(lambda: not is_alive(pid))


async def test_a_child_that_stands_still_is_noticed_and_ended(module: str) -> None:
    daemon = ProcessDaemon.for_entry_point(f"{module}:forever", limits=ProcessLimits(silence_s_max=6.0))
    task = await started(daemon)
    pid = daemon.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(ChildHangs, match="silent"):
        await asyncio.wait_for(task, timeout=60)
    assert not is_alive(pid)


async def test_pausing_stops_the_process_where_it_stands(module: str) -> None:
    daemon = ProcessDaemon.for_entry_point(f"{module}:forever", limits=ProcessLimits(silence_s_max=6.0))
    task = await started(daemon)
    assert daemon.pid is not None
    daemon.pause()
    await eventually(lambda: psutil.Process(daemon.pid).status() == psutil.STATUS_STOPPED)
    await asyncio.sleep(7.5)  # longer than the silence that counts as hanging
    assert not task.done()
    daemon.resume()
    await eventually(lambda: psutil.Process(daemon.pid).status() != psutil.STATUS_STOPPED)
    task.cancel()
    await asyncio.wait({task}, timeout=60)


async def test_the_output_is_kept_within_bounds_while_the_child_runs(module: str, tmp_path: Path) -> None:
    path = tmp_path / "out.log"
    path.write_bytes(b"x" * (LOG_BYTES_MAX + 1))
    daemon = ProcessDaemon.for_entry_point(f"{module}:talks", output=path)
    task = await started(daemon)
    assert path.with_suffix(".log.1").stat().st_size == LOG_BYTES_MAX
    await eventually(lambda: path.with_suffix(".log.1").read_bytes().startswith(b"y"))
    await eventually(lambda: path.stat().st_size < LOG_BYTES_MAX)  # emptied after its end was moved aside
    task.cancel()
    await asyncio.wait({task}, timeout=60)


async def test_the_manager_restarts_a_killed_child_at_once_and_stops_it_for_good(module: str) -> None:
    manager = DaemonManager(
        DaemonManagerConfig(stable_time=0.0, recovery_cooldown=0.0), memory_percent=lambda: 1.0
    )
    mine = DaemonType.register("PROCESS_CHILD")
    manager.register_factory(mine, lambda: ProcessDaemon.for_entry_point(f"{module}:forever"))
    assert await manager.start(mine)
    first = manager.get_status()[mine].instance
    pid = first.pid
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: manager.get_status()[mine].instance not in (None, first))
    await eventually(lambda: manager.is_running(mine))
    second_pid = manager.get_status()[mine].instance.pid
    assert second_pid != pid
    assert "SIGKILL" in manager.get_status()[mine].last_error
    assert await manager.stop(mine)
    assert not is_alive(second_pid)
    assert manager.get_status()[mine].state is DaemonState.STOPPED
    await manager.shutdown()


SUPERVISOR = """
import asyncio, sys
from ringrift.daemons.child_process import ProcessDaemon
from ringrift.coordination.daemon_manager import DaemonManager
from ringrift.daemons.types import DaemonType

async def main():
    manager = DaemonManager(memory_percent=lambda: 1.0)
    own, foreign = DaemonType.register("OWN"), DaemonType.register("FOREIGN")
    settings = {"path": sys.argv[1]}
    manager.register_factory(
        own, lambda: ProcessDaemon.for_entry_point("child_daemons:WithGrandchild", settings))
    sleep = [sys.executable, "-c", "import time; time.sleep(1000)"]
    manager.register_factory(foreign, lambda: ProcessDaemon(sleep))
    await manager.start_all([own, foreign])
    with open(sys.argv[2], "w") as file:
        file.write(str(manager.get_status()[foreign].instance.pid))
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_16_kill_9_of_the_supervisor_leaves_no_orphan_and_no_zombie(
    module: str, tmp_path: Path
) -> None:
    own, foreign = tmp_path / "own", tmp_path / "foreign"
    supervisor = subprocess.Popen([PYTHON, "-c", SUPERVISOR, str(own), str(foreign)])
    try:
        await eventually(lambda: foreign.exists() and foreign.read_text())
        pids = [int(word) for word in f"{own.read_text()} {foreign.read_text()}".split()]
        assert len(pids) == 3
        assert all(is_alive(pid) for pid in pids)
    finally:
        supervisor.kill()
        supervisor.wait(timeout=10)
    await eventually(lambda: not any(is_alive(pid) for pid in pids))


async def test_16_restarts_leave_no_zombie(module: str) -> None:
    manager = DaemonManager(
        DaemonManagerConfig(stable_time=0.0, recovery_cooldown=0.0), memory_percent=lambda: 1.0
    )
    mine = DaemonType.register("SHORT_LIVED")
    manager.register_factory(
        mine, lambda: ProcessDaemon([PYTHON, "-c", "raise SystemExit(1)"]), max_restarts=30
    )
    await manager.start(mine)
    await eventually(lambda: manager.get_lifecycle_summary()["total_restarts"] >= 10)
    files = len(os.listdir("/proc/self/fd"))
    await eventually(lambda: manager.get_lifecycle_summary()["total_restarts"] >= 20)
    assert len(os.listdir("/proc/self/fd")) <= files + 4
    await manager.shutdown()
    zombies = [c for c in psutil.Process().children() if c.status() == psutil.STATUS_ZOMBIE]
    assert zombies == []
