"""Kill the processes of a fast `ringrift run` at random moments, and audit what is left each time.

    python scripts/kill_loop.py --kills 100 --jobs real --json survival.json

The run learns Connect Four with a tiny net and a few games a job. `--jobs tiny` puts a small program in the
place of all jobs, so that a kill costs some seconds less. Exit code 1 if anything was lost, counted twice or
left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "integration"))

from loop_under_test import Killer, watched_loop

from ringrift.runtime import system_runtime

PROGRESS_EVERY = 3  # strikes; in between the next kill may come before the run has recovered


def main() -> int:
    options = _parser().parse_args()
    with tempfile.TemporaryDirectory(prefix="ringrift-kills-", ignore_cleanup_errors=True) as folder:
        result = asyncio.run(survive(options.kills, options.seed, Path(folder), tiny=options.jobs == "tiny"))
    say(table(result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 1 if result["problems"] else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="how often something is killed with -9")
    parser.add_argument("--seed", type=int, default=1, help="draws whom, how and when")
    parser.add_argument("--jobs", choices=("real", "tiny"), default="real")
    parser.add_argument("--json", type=Path, help="where to write the result")
    return parser


async def survive(kills: int, seed: int, folder: Path, *, tiny: bool) -> dict[str, Any]:
    """Kill so often, stop at the first problem, and tell how it went."""
    runtime = system_runtime()
    begun_s = runtime.monotonic_s()
    async with watched_loop(folder, tiny=tiny) as (loop, audit):
        killer = Killer(loop, audit, seed=seed, tiny=tiny)
        loop.start()
        while killer.kills < kills and not killer.problems:
            await killer.strike()
            strikes = sum(killer.done.values())
            if strikes % PROGRESS_EVERY == 0:
                await killer.goes_on()
                say(f"{killer.kills} kills, {audit.state.facts} facts at the last audit")
        if not killer.problems:
            await killer.goes_on()
            await killer.finish()
        state = audit.state
        return {
            "jobs": "tiny" if tiny else "real",
            "seed": seed,
            "kills": killer.kills,
            "deeds": dict(killer.done.most_common()),
            "jobs_under_way_at_a_deed": dict(killer.running.most_common()),
            "control_process_starts": loop.starts,
            "facts": state.facts,
            "games_acknowledged": len(audit.games),
            "games_checked": state.games,
            "rows": state.rows,
            "models": len(state.models),
            "promotions": len(state.promotions),
            "rollbacks": state.rollbacks,
            "rejections": state.rejections,
            "slowest_recovery_s": round(killer.slowest_s, 1),
            "wall_s": round(runtime.monotonic_s() - begun_s),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[2]:.1f}",
            "problems": killer.problems,
        }


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def table(result: dict[str, Any]) -> str:
    lines = ["| what | |", "|---|---|"]
    for name, value in result.items():
        told = value
        if isinstance(value, dict):
            told = ", ".join(f"{key} {times}" for key, times in value.items())
        elif isinstance(value, list):
            told = "; ".join(map(str, value)) or "none"
        lines.append(f"| {name.replace('_', ' ')} | {told} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
