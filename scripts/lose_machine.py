"""Wipe the machine of a fast `ringrift run` at random moments and bring it back from its archive each time.

    python scripts/lose_machine.py --rounds 50 --seed 1 --json lost.json

All processes are killed with `kill -9` and the data folder is taken away; `ringrift data restore` fills an
empty one from a drive, what came back is compared with what was there, and the run goes on. A small program
stands in the place of all jobs. Exit code 1 if anything that the last backup had is lost or different.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "integration"))

from loop_under_test import Loop
from lost_machine import LostMachine, prepare_drive, states_of_a_drive

from ringrift.runtime import system_runtime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="how often the machine is lost")
    parser.add_argument("--seed", type=int, default=1, help="draws when")
    parser.add_argument("--json", type=Path, help="where to write the result")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ringrift-lost-", ignore_cleanup_errors=True) as folder:
        result = asyncio.run(lose(options.rounds, options.seed, Path(folder)))
    say(json.dumps(result, indent=2))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 1 if result["problems"] else 0


async def lose(rounds: int, seed: int, folder: Path) -> dict[str, Any]:
    """Lose the machine so often, stop at the first problem, and tell how it went."""
    runtime, lots = system_runtime(), random.Random(seed)
    begun_s, drive = runtime.monotonic_s(), folder / "drive"
    archive = prepare_drive(drive)
    machine = LostMachine(Loop(folder, tiny=True), archive, lambda: states_of_a_drive(drive), seed=seed)
    try:
        while len(machine.rounds) < rounds and not machine.problems:
            await machine.lose_and_restore(states=lots.choice((1, 1, 2, 3)), wait_s=6.0)
            shutil.rmtree(folder / f"lost-{len(machine.rounds) - 1}", ignore_errors=True)
            say(f"{len(machine.rounds)}: {machine.rounds[-1]}")
        problems = machine.problems or await machine.finish()
    finally:
        machine.loop.kill_everything()
    last = machine.rounds[-1]
    return {
        "seed": seed,
        "rounds": len(machine.rounds),
        "facts": last["facts"],
        "games": last["games"],
        "promotions": last["promotions"],
        "facts_after_the_last_backup": sum(each["facts_lost"] for each in machine.rounds),
        "games_after_the_last_backup": sum(each["games_lost"] for each in machine.rounds),
        "promotions_after_the_last_backup": sum(each["promotions_lost"] for each in machine.rounds),
        "states_in_the_archive": len(states_of_a_drive(drive)),
        "slowest_restore_s": max(each["restore_s"] for each in machine.rounds),
        "wall_s": round(runtime.monotonic_s() - begun_s),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[2]:.1f}",
        "problems": problems,
    }


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
