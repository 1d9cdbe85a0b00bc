"""Simulate machines of many sizes, and draw how their time is divided while slots and GPUs come and go.

    python scripts/draw_effort.py --slots 1 2 16 64 256 1000 --configs 1 3 12 --out docs/learning

The loop's own decisions run simulated workers (`tests/simulation/effort_world.py`). Every machine begins
fresh; then every 20 minutes something changes: a GPU comes to its first 16 slots and goes again, and slots
come (four times as many) and workers go (to a quarter), in the order that keeps the largest at --slots.

The share of a kind of work is that of the last five minutes. Its final value is its mean over the last ten
minutes before the next change. It has settled when it stays within a band around that: 3 points, and one of
the longest jobs more or less in the five minutes. It crosses its final value when it leaves the band on one
side after the other. Five minutes in which the change came are left out, so 300 s is the least there is; and
where the band is above 13 points, one job is too much of five minutes for any share to settle.

Writes `effort.json` and a plot for each size. Exit code 1 if a share settles later than 10 minutes after a
change, crosses its final value more than twice, a config is without work for longer than half a minute and
the longest job of each other config, or more of the candidates that are really worse than the champion are
promoted than the test's error rate allows.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "simulation"))

from effort_world import (
    SLOTS_PER_WORKER,
    STEP_S,
    WINDOW_S,
    EffortWorld,
    Machine,
    measured,
    shares_over_time,
)

from ringrift.jobs.files import read_json, seal_json
from ringrift.statistics.line_plot import line_plot
from ringrift.testing.simulation import simulate

BOARDS = ("square8", "hex8", "square19", "hexagonal")
CONFIGS = {
    1: ("square8_2p",),
    3: ("square8_2p", "hex8_4p", "square19_4p"),
    12: tuple(f"{board}_{players}p" for board in BOARDS for players in (2, 3, 4)),
}
PHASE_S = 1200.0


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 2, 16])
    parser.add_argument("--configs", type=int, nargs="+", default=[1, 3, 12], choices=list(CONFIGS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(argv)
    path = options.out / "effort.json"
    missed = False
    for slots in options.slots:
        for number in options.configs:
            name = f"{slots} slot{'s' * (slots > 1)}, {number} config{'s' * (number > 1)}"
            found, drawing = lived(name, machines_of(slots), CONFIGS[number], options.seed)
            seal_json(path, {**(read_json(path) if path.exists() else {}), name: found})
            (options.out / f"effort_{slots}_{number}.svg").write_text(drawing, encoding="utf8")
            sys.stdout.write(f"{name}: {found}\n")
            sys.stdout.flush()
            missed = missed or bool(found["missed"])
    return int(missed)


def machines_of(slots: int) -> list[Machine]:
    """What there is one after the other."""
    gpu = min(slots, SLOTS_PER_WORKER)
    come = ("slots come", 4 * slots if slots < 4 else slots)
    go = ("workers go", slots if slots < 4 else slots // 4)
    others = [come, go] if slots < 4 else [go, come]
    steps = [("at first", slots, 0), ("a GPU comes", slots, gpu), ("the GPU goes", slots, 0)]
    steps += [(what, number, 0) for what, number in others]
    return [Machine(at * PHASE_S, number, gpus, what) for at, (what, number, gpus) in enumerate(steps)]


def lived(
    name: str, machines: Sequence[Machine], configs: Sequence[str], seed: int
) -> tuple[dict[str, Any], str]:
    """What such a machine shows, and the plot of it."""
    world, until_s = EffortWorld(seed, configs=configs, machines=machines), len(machines) * PHASE_S
    began_s = time.process_time()
    simulate(world.run(until_s))
    took_s = round(time.process_time() - began_s, 1)
    found = {**measured(world, until_s=until_s), "simulated_in_cpu_s": took_s}
    shares = shares_over_time(world.served, window_s=WINDOW_S, step_s=STEP_S)
    return found, drawn(name, machines, shares)


def drawn(name: str, machines: Sequence[Machine], shares: dict[str, Any]) -> str:
    series = {group: [(at_s / 60, 100 * share) for at_s, share in points] for group, points in shares.items()}
    title = f"{name}: % of the work of the last five minutes"
    after = "; ".join(f"{each.from_s / 60:.0f}: {each.what}" for each in machines[1:])
    return line_plot(title, series, x_label=f"minutes ({after})", y_label="%")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
