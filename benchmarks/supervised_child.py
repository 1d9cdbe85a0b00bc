"""A supervised child is killed with -9: how long until it runs again?

The same Python child under our supervisor, under supervisord (when installed), and started bare, which is
the floor that no supervisor can go below. Every child says itself when it runs, so all three are measured
the same way: from just before the kill (for the floor: the spawn) to the child's first own statement.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog

from benchmark import command
from ringrift.coordination.daemon_manager import DaemonManager
from ringrift.daemons.child_process import ProcessDaemon
from ringrift.daemons.types import DaemonManagerConfig, DaemonType

LIMIT_MS = 100.0
RAN_S = 0.3  # each life lasts at least this long before the kill
CHILD = """
import os, sys, time
fd = os.open(sys.argv[1], os.O_WRONLY)
os.write(fd, f"{os.getpid()} {time.monotonic()}\\n".encode())
os.close(fd)
while True: time.sleep(1000)
"""


class Reports:
    """The children's reports, through a named pipe."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "reports"
        os.mkfifo(self.path)
        # Held open for writing too, so that it never ends between two children.
        self._fd = os.open(self.path, os.O_RDWR)

    @property
    def argv(self) -> list[str]:
        return [sys.executable, "-c", CHILD, str(self.path)]

    def next(self) -> tuple[int, float]:
        pid, at_s = os.read(self._fd, 200).split()
        return int(pid), float(at_s)

    def close(self) -> None:
        os.close(self._fd)


def measure_kills(reports: Reports, kills: int) -> list[float]:
    pid, _ = reports.next()
    times_ms = []
    for _ in range(kills):
        time.sleep(RAN_S)
        killed_s = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        pid, running_s = reports.next()
        times_ms.append((running_s - killed_s) * 1000)
    return times_ms


def measure_ours(folder: Path, kills: int) -> list[float]:
    reports = Reports(folder)

    async def main() -> list[float]:
        # A life of RAN_S counts as healthy, so every kill is the first crash after a healthy run.
        config = DaemonManagerConfig(stable_time=RAN_S / 2, recovery_cooldown=0.0)
        manager = DaemonManager(config)
        child = DaemonType.register("BENCHMARK_CHILD")
        manager.register_factory(child, lambda: ProcessDaemon(reports.argv), max_restarts=10 * kills)
        await manager.start(child)
        try:
            return await asyncio.to_thread(measure_kills, reports, kills)
        finally:
            await manager.shutdown(timeout=5.0, force=True)

    try:
        return asyncio.run(main())
    finally:
        reports.close()


@contextmanager
def supervisord(folder: Path, argv: list[str]) -> Iterator[None]:
    script = folder / "child.py"
    script.write_text(CHILD)
    config = folder / "supervisord.conf"
    config.write_text(
        f"[supervisord]\nnodaemon=true\nlogfile=/dev/null\nlogfile_maxbytes=0\npidfile={folder}/pid\n"
        f"[program:child]\ncommand={sys.executable} {script} {argv[-1]}\nautorestart=true\nstartsecs=0\n"
        "stdout_logfile=NONE\nstderr_logfile=NONE\n"
    )
    program = Path(sys.executable).with_name("supervisord")
    process = subprocess.Popen(
        [str(program), "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)


def measure_supervisord(folder: Path, kills: int) -> list[float]:
    reports = Reports(folder)
    try:
        with supervisord(folder, reports.argv):
            return measure_kills(reports, kills)
    finally:
        reports.close()


def measure_floor(folder: Path, kills: int) -> list[float]:
    reports = Reports(folder)
    times_ms = []
    try:
        for _ in range(kills):
            spawned_s = time.monotonic()
            with subprocess.Popen(reports.argv, start_new_session=True) as process:
                _, running_s = reports.next()
                times_ms.append((running_s - spawned_s) * 1000)
                process.kill()
    finally:
        reports.close()
    return times_ms


def _in_folder(measure: Callable[[Path, int], list[float]], kills: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        times_ms = measure(Path(folder), kills)
    return {"kills": len(times_ms), "p50_ms": statistics.median(times_ms), "max_ms": max(times_ms)}


def run(quick: bool = False) -> dict[str, Any]:
    """Measure all three in one run."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    kills = 20 if quick else 40
    result: dict[str, Any] = {
        "bare_child": _in_folder(measure_floor, kills),
        "ringrift": _in_folder(measure_ours, kills),
    }
    if Path(sys.executable).with_name("supervisord").exists() or shutil.which("supervisord"):
        result["supervisord"] = _in_folder(measure_supervisord, 5 if quick else 20)
    result["limit_ms"] = LIMIT_MS
    result["met"] = result["ringrift"]["p50_ms"] <= LIMIT_MS
    return result


def table(result: dict[str, Any]) -> str:
    """Return the numbers for people."""
    lines = [f"{'supervisor':<12}  {'kills':>5}  {'p50 ms':>8}  {'max ms':>8}"]
    for name in ("bare_child", "ringrift", "supervisord"):
        if row := result.get(name):
            lines.append(f"{name:<12}  {row['kills']:>5}  {row['p50_ms']:>8.1f}  {row['max_ms']:>8.1f}")
    lines.append(f"limit: {LIMIT_MS:.0f} ms p50 -> {'met' if result['met'] else 'MISSED'}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(command(run, table, __doc__))
