"""Set the wall clock of each process of a fast `ringrift run` by a day, forward and back, at random moments.

    python scripts/step_clocks.py --minutes 10 --json clocks.json

Every process has a clock of its own, which is right, a day ahead or a day behind for some seconds at a time.
In between processes are killed and paused, so that leases have to run out and others have to take over. Exit
code 1 if anything was lost, counted twice, dated wrongly, or held for longer than its lease.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "integration"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from kill_loop import say, table
from loop_under_test import LEASE_S, Killer, watched_loop, with_stepping_clocks

from ringrift.runtime import system_runtime
from ringrift.testing.loop_audit import wrong_times

DEEDS = ("worker", "control", "workers paused", "all", "job", "all paused")
STUCK_S = 60.0  # a process takes some seconds to start on a busy machine; a day is what a wrong clock costs


def main() -> int:
    options = _parser().parse_args()
    with tempfile.TemporaryDirectory(prefix="ringrift-clocks-", ignore_cleanup_errors=True) as folder:
        tiny = options.jobs == "tiny"
        result = asyncio.run(survive(options.minutes * 60, options.seed, Path(folder), tiny=tiny))
    say(table(result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 1 if result["problems"] else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1, help="draws the clocks, and whom to kill when")
    parser.add_argument("--jobs", choices=("real", "tiny"), default="tiny")
    parser.add_argument("--json", type=Path, help="where to write the result")
    return parser


async def survive(
    for_s: float, seed: int, folder: Path, *, tiny: bool, deeds_max: int | None = None
) -> dict[str, Any]:
    """Run for so long, or for so many deeds, stop at the first problem, and tell how it went."""
    runtime = system_runtime()
    begun_s, began_s = runtime.monotonic_s(), runtime.now_s()
    async with watched_loop(folder, tiny=tiny) as (loop, audit):
        steps = with_stepping_clocks(loop, seed=seed)
        killer = Killer(loop, audit, seed=seed, tiny=tiny)
        loop.start()
        await killer.goes_on()
        deeds = 0
        while runtime.monotonic_s() - begun_s < for_s and deeds != deeds_max and not killer.problems:
            await killer.strike(DEEDS[deeds % len(DEEDS)])
            deeds += 1
            await killer.goes_on()
            killer.problems += await wrong_times(
                audit.engine, audit.config, began_s=began_s, now_s=runtime.now_s(), lease_s=LEASE_S
            )
            say(f"{deeds} deeds, {audit.state.facts} facts at the last audit")
        if killer.slowest_s > STUCK_S:
            killer.problems.append(f"nothing went on for {killer.slowest_s:.0f} s")
        if not killer.problems:
            await killer.finish()
        seen = [line.split() for line in steps.read_text(encoding="ascii").splitlines()]
        return {
            "jobs": "tiny" if tiny else "real",
            "seed": seed,
            "processes_that_read_a_clock": len({pid for pid, _ in seen}),
            "settings_of_a_clock_that_were_read": dict(Counter(offset for _, offset in seen)),
            "deeds": dict(killer.done.most_common()),
            "control_process_starts": loop.starts,
            "facts": audit.state.facts,
            "games_acknowledged": len(audit.games),
            "promotions": len(audit.state.promotions),
            "events_in_the_log": (await audit.engine.events.bounds()).last,
            "slowest_recovery_s": round(killer.slowest_s, 1),
            "wall_s": round(runtime.monotonic_s() - begun_s),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[2]:.1f}",
            "problems": killer.problems,
        }


if __name__ == "__main__":
    sys.exit(main())
