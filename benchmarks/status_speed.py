"""What `ringrift status` costs, its process's start included, with 1,000,000 games and 10,000 queued items.

The folder is that of `planning_pass.py`. Each round starts a bare interpreter (`python -c pass`),
`ringrift status` and `ringrift status --json` in turn, so that all meet the same machine. Wall time is that
of somebody who waits; processor time (user and system) also tells on a machine with other work. Target:
under 200 ms of wall time.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import benchmark
from planning_pass import CONFIG, fill_queue, write_history
from ringrift.coordination.event_router import get_router
from ringrift.engine.opening import open_engine
from ringrift.learning.announcements import Silent
from ringrift.learning.controller import Controller
from ringrift.learning.loop import StatusWriter
from ringrift.learning.plan.rules import LearningRules
from ringrift.runtime import SystemRuntime
from ringrift.settings import load_settings

WALL_MS_MAX = 200.0


def run(quick: bool) -> benchmark.Result:
    games, queued, rounds = (64_000, 1_000, 5) if quick else (1_000_000, 10_000, 30)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_make_run(Path(folder), games, queued))
        status = [_program(), "status", "--data", folder]
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "ringrift status": status,
            "ringrift status --json": [*status, "--json"],
        }
        environ = _with_compiled_code(Path(folder) / "compiled")
        for argv in commands.values():
            _taken_ms(argv, environ)
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(rounds):
            for name, argv in commands.items():
                taken[name].append(_taken_ms(argv, environ))
    rows = {
        name: {
            "wall_ms": median(wall for wall, _ in of),
            "wall_ms_best": min(wall for wall, _ in of),
            "cpu_ms": median(cpu for _, cpu in of),
        }
        for name, of in taken.items()
    }
    slowest = max(rows[name]["wall_ms"] for name in rows)
    return {"games": games, "queued": queued, "rounds": rounds, "rows": rows, "met": slowest < WALL_MS_MAX}


def _program() -> str:
    """The installed command, as people start it."""
    return str(Path(sys.executable).with_name("ringrift"))


def _with_compiled_code(folder: Path) -> dict[str, str]:
    """As where it is installed: the first start has compiled everything, also if this environment forbids."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(folder)}


async def _make_run(folder: Path, games: int, queued: int) -> None:
    settings, runtime = load_settings({"RINGRIFT_DATA_DIR": str(folder)}).settings, SystemRuntime(seed=1)
    engine = await open_engine(settings, runtime)
    await write_history(engine, games)
    await fill_queue(engine, queued)
    controller = Controller(engine, runtime, LearningRules(), announcer=Silent())
    await controller.open([CONFIG])
    await controller.reconcile()
    await StatusWriter(engine, runtime, settings, controller, router=get_router()).write("running")
    await engine.close()


def _taken_ms(argv: list[str], environ: dict[str, str]) -> tuple[float, float]:
    """Wall and processor time of one process, from before its start to after its end."""
    with open(os.devnull, "wb") as nowhere:
        to_nowhere = [(os.POSIX_SPAWN_DUP2, nowhere.fileno(), 1)]
        began_s = time.perf_counter()
        pid = os.posix_spawn(argv[0], argv, environ, file_actions=to_nowhere)
        _, code, used = os.wait4(pid, 0)
        wall_s = time.perf_counter() - began_s
    if code:
        sys.exit(f"{' '.join(argv)} ended with {os.waitstatus_to_exitcode(code)}")
    return 1000 * wall_s, 1000 * (used.ru_utime + used.ru_stime)


def table(result: benchmark.Result) -> str:
    lines = [
        f"{result['games']:,} games, {result['queued']:,} queued items, {result['rounds']} rounds",
        f"{'':<24}{'wall ms':>10}{'best':>8}{'cpu ms':>8}",
    ]
    for name, row in result["rows"].items():
        lines.append(f"{name:<24}{row['wall_ms']:>10.0f}{row['wall_ms_best']:>8.0f}{row['cpu_ms']:>8.0f}")
    return "\n".join([*lines, f"wanted: under {WALL_MS_MAX:.0f} ms of wall time"])


if __name__ == "__main__":
    sys.exit(benchmark.command(run, table, __doc__))
