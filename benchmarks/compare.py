"""Is it as fast as before? The benchmarks of two versions, in turn, on one machine.

    python benchmarks/compare.py COMMIT                        # every figure below, seven rounds
    python benchmarks/compare.py COMMIT publish --rounds 3

Each round runs each benchmark once in a checkout of COMMIT and once in this tree, each installed with its own
source, program and entry points, so that what disturbs the machine disturbs both. A figure is a ratio to the
peer that the same run measured, where there is one. It holds if its median is no more than 5 % worse than
before, or if the two medians are closer than the rounds of one version are to each other.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmark import Result

ROOT = Path(__file__).parent.parent
ALLOWED = 0.05
ROUNDS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number of a benchmark's result."""

    benchmark: str
    name: str
    of: Callable[[Result], float]
    more_is_better: bool = True

    def worse_by(self, before: float, now: float) -> float:
        """How much worse *now* is, as a share of *before*; negative if it is better."""
        return (before - now) / before if self.more_is_better else (now - before) / before


FIGURES = (
    Figure(benchmark="publish", name="1 handler, x pyee", of=lambda found: found["ratios"]["pyee_1"]),
    Figure(benchmark="publish", name="10 handlers, x pyee", of=lambda found: found["ratios"]["pyee_10"]),
    Figure(
        benchmark="queue_throughput",
        name="jobs/s, x bare loop",
        of=lambda found: found["ratios"]["bare"]["ratio"],
    ),
    Figure(
        benchmark="queue_latency",
        name="add to claim, ms",
        of=lambda found: found["p50_ms"],
        more_is_better=False,
    ),
    Figure(
        benchmark="supervised_child",
        name="restart, x bare child's start",
        of=lambda found: found["ringrift"]["p50_ms"] / found["bare_child"]["p50_ms"],
        more_is_better=False,
    ),
    Figure(
        benchmark="data_transfer",
        name="one large file, x rsync",
        of=lambda found: found["rsync_over_ours"]["large, first"],
    ),
    Figure(
        benchmark="data_transfer",
        name="many small files, x rsync",
        of=lambda found: found["rsync_over_ours"]["small, first"],
    ),
    Figure(
        benchmark="selfplay_speed",
        name="connect_four_2p network, of the matrix rate",
        of=lambda found: next(row["of_matrix_rate"] for row in found["rows"] if row["cached"]),
    ),
    Figure(
        benchmark="footprint",
        name="control process, MB",
        of=lambda found: found["resident_mb"],
        more_is_better=False,
    ),
    Figure(
        benchmark="footprint",
        name="control process, % of a core",
        of=lambda found: found["control_cpu_percent"],
        more_is_better=False,
    ),
)


def main() -> int:
    options = _parser().parse_args()
    figures = [each for each in FIGURES if not options.names or each.benchmark in options.names]
    if not figures:
        sys.exit(f"there are figures of: {', '.join(dict.fromkeys(each.benchmark for each in FIGURES))}")
    found: dict[str, dict[str, list[Result]]] = {}
    with checkout(options.commit) as before:
        for number in range(options.rounds):
            for name in dict.fromkeys(each.benchmark for each in figures):
                versions = [("before", before), ("now", Version(ROOT, Path(sys.executable)))]
                # Whoever comes first finds a cooler processor and an emptier disk: each does by turns.
                for which, version in versions if number % 2 == 0 else reversed(versions):
                    print(f"round {number + 1} of {options.rounds}: {name}, {which}", flush=True)
                    result = one_run(version, name, quick=options.quick)
                    found.setdefault(name, {"before": [], "now": []})[which].append(result)
        if options.json:
            options.json.write_text(json.dumps(found, indent=2) + "\n")
    rows = [judged(figure, found[figure.benchmark]) for figure in figures]
    print(f"\n{'figure':<62}{'before':>10}{'now':>10}{'worse by':>10}{'spread':>9}")
    for row in rows:
        print(
            f"{row['figure']:<62}{row['before']:>10.3f}{row['now']:>10.3f}"
            f"{row['worse_by']:>+10.1%}{row['spread']:>9.1%}  {'holds' if row['holds'] else 'WORSE'}"
        )
    return 0 if all(row["holds"] for row in rows) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", help="the version to compare with")
    parser.add_argument("names", nargs="*", help="benchmarks; all that have a figure if none is named")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--quick", action="store_true", help="small sizes of each benchmark")
    parser.add_argument("--json", type=Path, help="write every round's results to this file")
    return parser


@dataclass(frozen=True, slots=True)
class Version:
    tree: Path
    python: Path


@contextmanager
def checkout(commit: str) -> Iterator[Version]:
    """The tree of *commit*, installed in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="ringrift-before-") as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield Version(tree, installed(tree, Path(folder) / "venv"))
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def installed(tree: Path, folder: Path) -> Path:
    """The interpreter of a new environment with the program of *tree*, and the libraries of this one."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python*/site-packages")
    # A folder named in a .pth file comes last, and the .pth files in it, ours among them, are not read.
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--editable", str(tree)], check=True)
    return python


def one_run(version: Version, name: str, *, quick: bool) -> Result:
    """What the benchmark *name* of *version* finds."""
    out = version.tree / "benchmarks" / f".{name}.json"
    argv = [str(version.python), str(version.tree / "benchmarks" / "run_all.py"), name, "--json", str(out)]
    # A missed target makes its exit code 1; without a file there is no result.
    ran = subprocess.run(
        [*argv, *(["--quick"] if quick else [])],
        env={**os.environ, "PATH": f"{version.python.parent}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    if not out.exists():
        sys.exit(f"{name} of {version.tree} ended with {ran.returncode}:\n{ran.stdout}{ran.stderr}")
    result: Result = json.loads(out.read_text())[name]
    out.unlink()
    return result


def judged(figure: Figure, found: dict[str, list[Result]]) -> dict[str, Any]:
    """The figure of both versions, and whether it is as good as before."""
    before, now = ([figure.of(result) for result in found[which]] for which in ("before", "now"))
    middle_before, middle_now = median(before), median(now)
    # The wider of the two, without the extreme rounds: one disturbed round says nothing of a version.
    spread = max(_spread(before), _spread(now))
    worse_by = figure.worse_by(middle_before, middle_now)
    return {
        "figure": f"{figure.benchmark}: {figure.name}",
        "before": middle_before,
        "now": middle_now,
        "worse_by": worse_by,
        "spread": spread,
        "holds": worse_by <= max(ALLOWED, spread),
    }


def _spread(values: list[float]) -> float:
    inner = sorted(values)[1:-1] if len(values) > 4 else values
    return (max(inner) - min(inner)) / median(values)


if __name__ == "__main__":
    sys.exit(main())
