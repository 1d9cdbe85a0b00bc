"""Measure the whole loop: `ringrift run` from an empty folder, by the processor time of all its processes.

    python scripts/prove_run.py run --configs connect_four_2p --seeds 1 2 3 --marks 705 1800 --out runs/loop
    python scripts/prove_run.py evaluate --out runs/loop
    python scripts/prove_run.py report --out runs/loop

`run` makes one run for each config and seed, with default settings, one after the other; `--cores-each 2`
binds each to two cores of its own and has as many side by side as there are cores; `--together` is one run of
all configs. Whenever the processor time of all processes of a run passes a mark, what it publishes by then is
kept, with the network that plays and what the facts say. The run ends after the last mark, or after
`--minutes`. `evaluate` plays what was kept against fixed opponents, by `scripts/learn.py evaluate`; it may
run later and elsewhere. `report` writes `report.json`, `report.md` and a plot for each config. Everything
lies in files as it comes, so each command can be cut off and given again.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from measured_run import measure
from prove_report import write_report

from ringrift.games.registry import load_game
from ringrift.jobs.files import read_json, seal_json
from ringrift.learning.facts.records import RINGRIFT_BOARDS

LEARN = Path(__file__).with_name("learn.py")
TOGETHER = "together"
TWELVE = [f"{board}_{players}p" for board in sorted(RINGRIFT_BOARDS) for players in (2, 3, 4)]
WAIT_S = 1.0


def main(argv: Sequence[str]) -> int:
    options = parser().parse_args(argv)
    done: int = {"run": run, "one": one, "evaluate": evaluate, "report": report}[options.command](options)
    return done


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="make the runs and keep what they publish")
    running.add_argument("--configs", nargs="+", default=["connect_four_2p"], help="or `twelve`")
    running.add_argument("--seeds", type=int, nargs="+", default=[1])
    running.add_argument("--cores-each", type=int, default=0, help="0: one run at a time on all cores")
    running.add_argument("--together", action="store_true", help="one run of all configs")
    single = commands.add_parser("one", help="make one run; `run` starts these")
    single.add_argument("--config", required=True)
    single.add_argument("--seed", type=int, required=True)
    single.add_argument("--cores", type=int, nargs="*", default=[])
    for command in (running, single):
        command.add_argument("--marks", type=float, nargs="*", default=[705.0, 1800.0], help="processor s")
        command.add_argument("--minutes", type=float, default=120.0, help="at most")
        command.add_argument("--keep-data", action="store_true", help="do not remove the runs' folders")
    judging = commands.add_parser("evaluate", help="play what was kept against fixed opponents")
    judging.add_argument("--parallel", type=int, default=1)
    judging.add_argument("--champions-only", action="store_true", help="not the networks that played")
    judging.add_argument("--games", type=int, default=None, help="else 400, RingRift 200")
    for command in (running, single, judging, commands.add_parser("report", help="write table and plots")):
        command.add_argument("--out", type=Path, required=True)
    return top


# Runs.


def run(options: argparse.Namespace) -> int:
    configs = TWELVE if options.configs == ["twelve"] else options.configs
    wanted = [",".join(configs)] if options.together else configs
    pairs = [(config, seed) for seed in options.seeds for config in wanted]
    commands = [
        [
            *("one", "--config", config, "--seed", str(seed), "--out", str(options.out)),
            *("--minutes", str(options.minutes), "--marks", *(f"{mark:g}" for mark in options.marks)),
            *(["--keep-data"] if options.keep_data else []),
        ]
        for config, seed in pairs
        if not (run_folder(options.out, config, seed) / "end.json").exists()
    ]
    cores = sorted(os.sched_getaffinity(0))
    each = options.cores_each or len(cores)
    places = [cores[at : at + each] for at in range(0, len(cores) - each + 1, each)]
    return in_places([[sys.executable, __file__, *command] for command in commands], places)


def in_places(commands: list[list[str]], places: list[list[int]]) -> int:
    """Start each command as soon as one of *places*, each some cores, is free; 0 if all went well."""
    waiting, codes = list(commands), []
    busy: dict[int, subprocess.Popen[bytes]] = {}
    while waiting or busy:
        for place in range(len(places)):
            if waiting and place not in busy:
                cores = [str(core) for core in places[place]]
                busy[place] = subprocess.Popen([*waiting.pop(0), *(["--cores", *cores] if cores else [])])
        for place, started in list(busy.items()):
            try:
                codes.append(started.wait(WAIT_S))
            except subprocess.TimeoutExpired:
                continue
            del busy[place]
    return max(codes, default=0)


def one(options: argparse.Namespace) -> int:
    if options.cores:
        os.sched_setaffinity(0, options.cores)
    folder = run_folder(options.out, options.config, options.seed)
    folder.mkdir(parents=True, exist_ok=True)
    cores = len(os.sched_getaffinity(0))
    about = {
        "configs": options.config.split(","),
        "seed": options.seed,
        "cores": cores,
        "machine": f"{cores} of {os.cpu_count()} cores, {cpu_name()}",
        "marks": options.marks,
    }
    seal_json(folder / "about.json", about)
    code = measure(folder, about, minutes=options.minutes, keep=kept_path)
    if code == 0 and not options.keep_data:
        shutil.rmtree(folder / "data")
    return code


def run_folder(out: Path, config: str, seed: int) -> Path:
    return out / (TOGETHER if "," in config else config) / f"seed{seed}"


def kept_path(folder: Path, config: str, role: str, mark: float) -> Path:
    """Where the *role* (champion, generator) of *config* at *mark* is kept, for `learn.py evaluate`.

    It takes a folder of seeds; each role of each run has its own, so that they can be played side by side.
    """
    seed = folder.name.removeprefix("seed")
    kept = folder / "kept" / config / role / f"seed{seed}"
    kept.mkdir(parents=True, exist_ok=True)
    seal_json(kept / "settings.json", {"config": config, "simulations": simulations_of(config)})
    return kept / f"{mark:06.0f}.safetensors"


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


# Evaluation.


def simulations_of(config: str) -> int:
    return 100 if config.startswith("connect_four") else 32


def evaluate(options: argparse.Namespace) -> int:
    commands = []
    for kept in sorted(options.out.glob("*/seed*/kept/*/*/")):
        config, role = kept.parent.name, kept.name
        if role == "generator" and options.champions_only:
            continue
        is_ringrift = config.rsplit("_", 1)[0] in RINGRIFT_BOARDS
        against = ["mcts", "heuristic"] if is_ringrift else ["mcts", "mcts:1000", "solver"]
        games = options.games or (200 if is_ringrift else 400)
        load_game(config)  # compiles the rules once, not in every process
        commands.append(
            [
                *(sys.executable, str(LEARN), "evaluate", "--out", str(kept), "--against", *against),
                *("--games", str(games), "--simulations", str(simulations_of(config))),
            ]
        )
    return in_places(commands, [[]] * options.parallel)


# Results.


def report(options: argparse.Namespace) -> int:
    runs = list(finished_runs(options.out))
    write_report(options.out, runs)
    sys.stdout.write((options.out / "report.md").read_text(encoding="utf8"))
    return 0 if runs else 1


def finished_runs(out: Path) -> Iterator[dict[str, Any]]:
    """Every run of which something is known, also one that was cut off."""
    for about in sorted(out.glob("*/seed*/about.json")):
        folder = about.parent
        marks = [read_json(path) for path in sorted(folder.glob("mark-*.json"))]
        end, latest = folder / "end.json", folder / "latest.json"
        known = [*marks, *(read_json(path) for path in (latest, end) if path.exists())]
        results = [
            {"config": path.parent.parent.name, "role": path.parent.name, **each}
            for path in sorted(folder.glob("kept/*/*/results.json"))
            for each in read_json(path)
        ]
        if known:
            yield {
                **read_json(about),
                "marks": marks,
                "end": max(known, key=lambda each: each["cpu_s"]),
                "whole": end.exists(),
                "results": results,
            }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
