"""Simulate machines of many sizes, and draw how their time is divided while workers come and go.

    python scripts/draw_effort.py --slots 1 2 16 64 1000 --out docs/learning

The loop's own decisions run on simulated workers (`tests/simulation/effort_world.py`). After a while three
more workers come for each that is there, and later they go again. Writes `effort.json` and a plot for each
size. Exit code 1 if a share has not settled 10 minutes after a change, crosses its final value more than
twice, or a config is without work for longer than its bound.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "simulation"))

from effort_world import EffortWorld, settling, shares_over_time

from ringrift.jobs.plotting import line_plot
from ringrift.jobs.sealing import read_json, seal_json
from ringrift.testing.simulation import simulate

CONFIGS = ("square8_2p", "hex8_2p", "connect_four_2p")
TIMES = 4  # as many workers, for a while
WINDOW_S, STEP_S = 600.0, 60.0
SETTLED_S_MAX, CROSSINGS_MAX, IDLE_S_MAX = 600.0, 2, 600.0
BAND, JOBS_S = 0.03, 60.0


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 2, 16])
    parser.add_argument("--hours", type=float, default=0.5, help="between two changes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(argv)
    path = options.out / "effort.json"
    results = read_json(path) if path.exists() else {}
    for slots in options.slots:
        shares, found = lived(slots, options.hours, options.seed)
        results[str(slots)] = found
        seal_json(path, results)
        (options.out / f"effort_{slots}.svg").write_text(drawn(slots, shares), encoding="utf8")
        sys.stdout.write(f"{slots} slots: {found}\n")
    return 0 if all(results[str(slots)]["met"] for slots in options.slots) else 1


def lived(slots: int, hours: float, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The shares over time of a machine with so many slots, and how they came to their values."""
    changes = ((hours, TIMES * slots), (2 * hours, slots))
    world = EffortWorld(seed, configs=CONFIGS, slots=slots, changes=changes)
    began_s = time.process_time()
    simulate(world.run(3 * hours))
    shares = shares_over_time(world.served, window_s=WINDOW_S, step_s=STEP_S)
    band = BAND + JOBS_S / WINDOW_S / slots  # two of the longest jobs more or less in the window
    settled = {
        f"{group} after change {number}": settling(
            points,
            change_s=3600 * hours * number,
            until_s=3600 * hours * (number + 1) - WINDOW_S,
            band=band,
        )
        for number in (1, 2)
        for group, points in shares.items()
    }
    states = [world.controller.state(config) for config in CONFIGS]
    found = {
        "hours": 3 * hours,
        "jobs": len(world.served),
        "trainings": sum(len(state.models) for state in states),
        "promotions": {state.config: len(state.promotions) for state in states},
        "steps_share": {state.config: round(state.bucket.spent / 4 / state.rows, 3) for state in states},
        "idle_s_max": {config: round(world.truth.longest_idle_s[config], 1) for config in CONFIGS},
        "busy": [busy_share(world, hours, number, each) for number, each in enumerate((1, TIMES, 1))],
        "shares": {name: round(each.final, 3) for name, each in settled.items()},
        "settled_s_max": max(each.settled_s for each in settled.values()),
        "crossings_max": max(each.crossings for each in settled.values()),
        "band": round(band, 3),
        "simulated_in_cpu_s": round(time.process_time() - began_s, 1),
    }
    found["met"] = (
        found["settled_s_max"] <= SETTLED_S_MAX
        and found["crossings_max"] <= CROSSINGS_MAX
        and max(found["idle_s_max"].values()) <= IDLE_S_MAX
        and all(found["promotions"].values())
    )
    return shares, found


def busy_share(world: EffortWorld, hours: float, number: int, times: int) -> float:
    """How much of the time of all slots was worked between two changes."""
    began_s, until_s = 3600 * hours * number, 3600 * hours * (number + 1)
    worked_s = sum(max(0.0, min(each.end_s, until_s) - max(each.start_s, began_s)) for each in world.served)
    return round(worked_s / (until_s - began_s) / (world.slots_first * times), 3)


def drawn(slots: int, shares: dict[str, Any]) -> str:
    series = {group: [(at_s / 60, 100 * share) for at_s, share in points] for group, points in shares.items()}
    title = f"{slots} slots, then {TIMES * slots}, then {slots}: how their time is divided"
    return line_plot(title, series, x_label="minutes", y_label="% of 10 minutes")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
