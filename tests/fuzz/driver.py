"""Fuzzes every reader of outside data: runs each target in a limited process, keeps corpus and findings.

A finding is an exception that the target did not expect, a hang, a process that died, too much memory or
too much processor time. README.md beside this file says how to use it and how to add a target.
"""

import argparse
import concurrent.futures
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.worker import name_of, save_finding

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
REGRESSIONS = HERE / "regressions"
FINDINGS = HERE / "findings"
CORPUS_BYTES_MAX = 150_000


def target_names() -> list[str]:
    return sorted(path.stem for path in (HERE / "targets").glob("*.py") if not path.stem.startswith("_"))


@dataclass(frozen=True)
class Plan:
    """What is asked of one target."""

    name: str
    seconds: float
    runs_max: int
    findings_max: int
    seed: int
    engine: str
    corpus: Path
    findings: Path
    corpus_stays: bool = False


@dataclass(frozen=True)
class Outcome:
    name: str
    runs: int
    places: int
    seconds: float
    findings: tuple[Path, ...]

    def line(self) -> str:
        found = f"{len(self.findings)} FINDINGS" if self.findings else "no finding"
        return f"{self.name:16} {self.seconds:7.1f} s {self.runs:10} runs {self.places:6} places  {found}"


class Target:
    """One target's processes, one after the other, until its time is up."""

    def __init__(self, plan: Plan, state: Path) -> None:
        self.plan = plan
        self.state = state
        self.runs = 0
        self.places = 0
        self._skip: list[str] = []

    def fuzz(self) -> Outcome:
        began_s = time.monotonic()
        before = self._findings()
        with_atheris = importlib.util.find_spec("atheris") is not None
        engines = {"own": ["own"], "atheris": ["atheris"]}.get(
            self.plan.engine, ["own", "atheris"] if with_atheris else ["own"]
        )
        for engine in engines:
            self._run_engine(engine, self.plan.seconds / len(engines))
        if not self.plan.corpus_stays:
            self._keep_corpus()
        found = tuple(sorted(path for path, _ in self._findings() - before))
        return Outcome(self.plan.name, self.runs, self.places, time.monotonic() - began_s, found)

    def _findings(self) -> set[tuple[Path, int]]:
        home = self.plan.findings / self.plan.name
        return {(path, path.stat().st_mtime_ns) for path in home.glob("*") if path.suffix != ".txt"}

    def _run_engine(self, engine: str, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        bounds = ["--runs-max", str(self.plan.runs_max), "--findings-max", str(self.plan.findings_max)]
        for death in range(self.plan.findings_max):
            left_s = max(0.0, end_s - time.monotonic()) if death else seconds
            code = self.work(engine, "--seconds", str(left_s), "--seed", str(self.plan.seed + death), *bounds)
            self._gather()
            facts = self.state / "facts.json"
            if facts.exists():
                noted = json.loads(facts.read_text())
                self.runs += noted["runs"]
                self.places = max(self.places, noted["places"])
                facts.unlink()
            if code == 0:
                return
            self._report_death(code)

    def work(self, mode: str, *arguments: str) -> int:
        """Run one process; return its exit status."""
        inputs = (self.plan.corpus, CORPUS, REGRESSIONS, self.state / "kept")
        folders = [str(folder / self.plan.name) for folder in inputs]
        command = [sys.executable, "-m", "tests.fuzz.worker", self.plan.name, "--mode", mode,
                   "--state", str(self.state), "--findings", str(self.plan.findings),
                   *arguments]  # fmt: skip
        for folder in dict.fromkeys(folders):
            command += ["--inputs", folder]
        for name in self._skip:
            command += ["--skip", name]
        scratch = self.state / "tmp"
        scratch.mkdir(exist_ok=True)
        environment = {**os.environ, "TMPDIR": str(scratch), "RINGRIFT_DATA_DIR": str(scratch / "data"),
                       "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0",
                       "MALLOC_ARENA_MAX": "1"}  # fmt: skip
        with (self.state / "log.txt").open("wb") as log:
            code = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=log, stderr=log, check=False
            ).returncode
        shutil.rmtree(scratch, ignore_errors=True)
        return code

    def _gather(self) -> None:
        """Keep what this process found as input for the next."""
        kept = self.state / "kept" / self.plan.name
        kept.mkdir(parents=True, exist_ok=True)
        for path in (self.state / "new").glob("*"):
            path.replace(kept / path.name)

    def _report_death(self, code: int) -> None:
        current = self.state / "current"
        data = current.read_bytes() if current.exists() else b""
        self._skip.append(name_of(data))
        hang = (self.state / "hang.txt").read_text() if (self.state / "hang.txt").exists() else ""
        log = (self.state / "log.txt").read_text(errors="replace")[-4000:]
        if hang:
            kind, text = "hang", hang
        else:
            how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            kind, text = "died", f"the process ended with {how}\n\n{log}"
        save_finding(self.plan.findings, self.plan.name, kind, data, text)

    def _keep_corpus(self) -> None:
        """Replace the kept corpus by a small one that reaches all that was reached."""
        code = self.work("minimize", "--bytes-max", str(CORPUS_BYTES_MAX))
        if code != 0:
            return
        home = self.plan.corpus / self.plan.name
        home.mkdir(parents=True, exist_ok=True)
        fresh = {path.name: path.read_bytes() for path in (self.state / "new").glob("*")}
        for path in home.glob("*"):
            if path.name not in fresh:
                path.unlink()
        for name, data in fresh.items():
            (home / name).write_bytes(data)


def fuzz(plan: Plan) -> Outcome:
    memory = Path("/dev/shm")
    where = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=where) as folder:
        outcome = Target(plan, Path(folder)).fuzz()
    print(outcome.line(), flush=True)
    return outcome


def replay(name: str, path: Path) -> int:
    """Run one input as the fuzz loop would; print what it finds."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        state = Path(folder)
        plan = Plan(name, 0, 0, 1, 0, "own", state / "corpus", state / "findings")
        code = Target(plan, state).work("replay", "--only", str(path.resolve()))
        texts = [found.read_text() for found in (state / "findings").rglob("*.txt")]
        log = (state / "log.txt").read_text(errors="replace")
        print("\n".join(texts) or log or "no finding")
        return 1 if code or texts else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="NAME", help=f"of: {', '.join(target_names())}")
    parser.add_argument("--all", action="store_true", help="every target")
    parser.add_argument("--seconds", type=float, default=60, help="for each target")
    parser.add_argument("--runs-max", type=int, default=1 << 62)
    parser.add_argument("--findings-max", type=int, default=10, help="stop a target after so many")
    parser.add_argument("--parallel", type=int, default=1, help="targets at a time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=("auto", "own", "atheris"), default="auto")
    parser.add_argument("--out", type=Path, help="corpus and findings go here instead of into the tree")
    parser.add_argument("--corpus-stays", action="store_true", help="do not rewrite it at the end")
    parser.add_argument("--replay", type=Path, help="run this one input")
    return parser.parse_args()


def main() -> int:
    asked = parse_arguments()
    names = target_names() if asked.all else asked.targets
    unknown = [name for name in names if not (HERE / "targets" / f"{name}.py").exists()]
    if unknown or not names:
        print(f"unknown: {unknown}" if unknown else "name targets or say --all", file=sys.stderr)
        return 2
    if asked.replay:
        return replay(names[0], asked.replay)
    corpus = asked.out / "corpus" if asked.out else CORPUS
    findings = asked.out / "findings" if asked.out else FINDINGS
    bounds = (asked.seconds, asked.runs_max, asked.findings_max)
    folders = (corpus.resolve(), findings.resolve())
    plans = [Plan(name, *bounds, asked.seed, asked.engine, *folders, asked.corpus_stays) for name in names]
    with concurrent.futures.ThreadPoolExecutor(max(1, asked.parallel)) as pool:
        outcomes = list(pool.map(fuzz, plans))
    for outcome in outcomes:
        for path in outcome.findings:
            print(f"\n{path.with_suffix('.txt').read_text()}")
    return 1 if any(outcome.findings for outcome in outcomes) else 0
