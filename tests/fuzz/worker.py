"""The process that runs a target on one input after the other, within limits; the driver watches it.

The input under way is written down before it runs, so whatever ends the process (a crash in compiled code, a
hang) leaves the culprit behind. An exception is a finding: it is saved, and the loop goes on.
"""

import argparse
import faulthandler
import hashlib
import importlib
import importlib.util
import json
import os
import random
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import structlog
from tests.fuzz.covered_places import COUNTED, Coverage
from tests.fuzz.mutation import mutated

SIZE_MAX = 1 << 20
HANG_S = 60.0  # on the wall clock: only what never ends, however busy the machine is
LEAST_S = 10.0  # of new inputs, even if imports and kept inputs took all the time
SLOW_S = 10.0  # of processor time for one input
MEMORY_MB = 512  # beyond what the target needs to be imported


def name_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def load_target(name: str) -> ModuleType:
    return importlib.import_module(f"tests.fuzz.targets.{name}")


def seeds_of(target: ModuleType) -> list[bytes]:
    return list(target.seeds()) if hasattr(target, "seeds") else list(target.SEEDS)


def files_in(*folders: Path) -> Iterator[bytes]:
    for folder in folders:
        for path in sorted(folder.glob("*")) if folder.is_dir() else []:
            if path.is_file():
                yield path.read_bytes()


def signature(error: BaseException) -> str:
    """What makes two exceptions the same finding: the type and the innermost places in the repository."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(COUNTED)
    ]
    places = [f"{Path(frame.filename).name}:{frame.name}" for frame in frames[-3:]]
    return f"{type(error).__name__} {' '.join(places)}"


class Session:
    """Runs inputs of one target and keeps what it learned in the state folder."""

    def __init__(self, name: str, state: Path, findings: Path, coverage: Coverage | None) -> None:
        self.name = name
        self.began_s = time.monotonic()
        self.state = state
        self.findings = findings
        self.target = load_target(name)
        self.coverage = coverage
        self.kept: list[bytes] = []
        self.runs = 0
        self.found: set[str] = set()
        self.findings_max = 1 << 62
        self._current = os.open(state / "current", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        self._hang = (state / "hang.txt").open("w")

    def limit(self) -> None:
        """Hold the process to its memory from here on; the imports before are not counted."""
        pages = (
            int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
        )
        size = pages * resource.getpagesize() + (getattr(self.target, "MEMORY_MB", MEMORY_MB) << 20)
        if pages:
            resource.setrlimit(resource.RLIMIT_AS, (size, size))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def run(self, data: bytes) -> bool:
        """Run one input; say whether it reached something new."""
        os.ftruncate(self._current, 0)
        os.pwrite(self._current, data, 0)
        faulthandler.dump_traceback_later(getattr(self.target, "HANG_S", HANG_S), exit=True, file=self._hang)
        began_s = time.process_time()
        try:
            if self.coverage is None:
                self.target.run(data)
            else:
                with self.coverage.watch():
                    self.target.run(data)
        except BaseException as error:
            sys.settrace(None)
            if isinstance(error, KeyboardInterrupt):
                raise
            kind = "memory" if isinstance(error, MemoryError) else "error"
            self.report(kind, data, signature(error), "".join(traceback.format_exception(error)))
        finally:
            faulthandler.cancel_dump_traceback_later()
        used_s = time.process_time() - began_s
        if used_s > getattr(self.target, "SLOW_S", SLOW_S):
            self.report("slow", data, f"slow {self.name}", f"{used_s:.1f} s of processor time\n")
        self.runs += 1
        return bool(self.coverage and self.coverage.new)

    def report(self, kind: str, data: bytes, mark: str, text: str) -> None:
        if mark in self.found or len(self.found) >= self.findings_max:
            return
        self.found.add(mark)
        save_finding(self.findings, self.name, kind, data, text)

    def note(self) -> None:
        places = len(self.coverage.seen) if self.coverage else 0
        facts = {"runs": self.runs, "places": places, "kept": len(self.kept)}
        (self.state / "facts.json").write_text(json.dumps(facts))


def save_finding(folder: Path, name: str, kind: str, data: bytes, text: str) -> Path:
    """Write the input and, beside it, what happened and the command that repeats it."""
    home = folder / name
    home.mkdir(parents=True, exist_ok=True)
    path = home / f"{kind}-{name_of(data)}"
    path.write_bytes(data)
    again = f"python -m tests.fuzz {name} --replay {path}"
    path.with_suffix(".txt").write_text(f"{again}\n\n{text}", encoding="utf8", errors="backslashreplace")
    return path


def replay_all(session: Session, inputs: list[bytes]) -> None:
    for data in inputs:
        if session.run(data):
            session.kept.append(data)
    session.note()


def changed_by_target(
    mutate: Callable[[bytes, random.Random], bytes] | None, data: bytes, rng: random.Random
):
    """What the target's own changes make of *data*; None if it has none, or they cannot make sense of it."""
    if mutate is None:
        return None
    try:
        return mutate(data, rng)[:SIZE_MAX]
    except Exception:
        return None


def own_loop(session: Session, inputs: list[bytes], seconds: float, runs_max: int, seed: int) -> None:
    """Mutate kept inputs; keep what reaches new places."""
    rng = random.Random(seed)
    mutate: Callable[[bytes, random.Random], bytes] | None = getattr(session.target, "mutate", None)
    pool = inputs or [b""]
    end_s = max(session.began_s + seconds, time.monotonic() + min(seconds, LEAST_S))
    noted_s = 0.0
    while time.monotonic() < end_s and session.runs < runs_max and len(session.found) < session.findings_max:
        # New inputs are more likely to lead on than old ones.
        parent = pool[-1 - int(len(pool) * rng.random() ** 2)]
        data = changed_by_target(mutate, parent, rng) if rng.random() < 0.7 else None
        if data is None:
            data = mutated(parent, pool, rng, SIZE_MAX)
        if session.run(data):
            pool.append(data)
            session.kept.append(data)
            (session.state / "new" / name_of(data)).write_bytes(data)
        if time.monotonic() - noted_s > 2:
            noted_s = time.monotonic()
            session.note()
    session.note()


def atheris_loop(session: Session, inputs: list[bytes], seconds: float, seed: int) -> None:
    """Hand the loop to libFuzzer; it ends the process itself when the time is up."""
    atheris = importlib.import_module("atheris")
    folder = session.state / "new"
    for data in inputs:
        (folder / name_of(data)).write_bytes(data)
    mutate = getattr(session.target, "mutate", None)

    def run(data: bytes) -> None:
        session.run(data)
        if session.runs % 200 == 0:
            session.note()

    def change(data: bytes, size_max: int, number: int) -> bytes:
        rng = random.Random(number)
        made = changed_by_target(mutate, data, rng) if rng.random() < 0.5 else None
        return atheris.Mutate(data, size_max) if made is None else made[:size_max]

    options = [f"-max_total_time={max(1, int(seconds))}", f"-seed={seed}", f"-max_len={SIZE_MAX}",
               "-timeout=3600", "-rss_limit_mb=0", "-verbosity=0",
               f"-artifact_prefix={session.state}/", str(folder)]  # fmt: skip
    atheris.Setup([session.name, *options], run, **({"custom_mutator": change} if mutate else {}))
    atheris.Fuzz()


def minimized(session: Session, seeds: list[bytes], inputs: list[bytes], bytes_max: int) -> list[bytes]:
    """Return few small inputs that together reach, beyond the seeds, what all of them reach."""
    chosen, total = [], 0
    for data in seeds:
        session.run(data)
    for data in sorted(inputs, key=lambda data: (len(data), data)):
        if session.run(data) and total + len(data) <= bytes_max:
            chosen.append(data)
            total += len(data)
    return chosen


def write_no_log() -> None:
    """Render every line of the product's log and write it nowhere: a long session's would fill the disk."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("--mode", choices=("replay", "own", "atheris", "minimize"), required=True)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--findings", type=Path, required=True)
    parser.add_argument("--inputs", type=Path, action="append", default=[])
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--runs-max", type=int, default=1 << 62)
    parser.add_argument("--findings-max", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bytes-max", type=int, default=0)
    parser.add_argument("--only", type=Path)
    parser.add_argument("--skip", action="append", default=[], help="inputs that ended an earlier process")
    return parser.parse_args()


def main() -> None:
    asked = parse_arguments()
    (asked.state / "new").mkdir(parents=True, exist_ok=True)
    if asked.mode == "atheris":
        atheris = importlib.import_module("atheris")
        # What numba compiles must stay as it was written: loaded before the rest, which is instrumented.
        for compiled in ("ringrift.games.connect_four", "ringrift.games.ringrift.game"):
            if importlib.util.find_spec("numba") is not None:
                importlib.import_module(compiled)
        with atheris.instrument_imports(include=["ringrift"]):
            load_target(asked.target)
    session = Session(
        asked.target, asked.state, asked.findings, None if asked.mode == "atheris" else Coverage()
    )
    seeds = seeds_of(session.target)
    inputs = (
        [asked.only.read_bytes()] if asked.only else list(dict.fromkeys([*seeds, *files_in(*asked.inputs)]))
    )
    inputs = [data for data in inputs if name_of(data) not in asked.skip]
    session.findings_max = asked.findings_max
    write_no_log()
    session.limit()
    if asked.mode == "atheris":
        atheris_loop(session, inputs, asked.seconds, asked.seed)
    elif asked.mode == "minimize":
        for data in minimized(session, seeds, inputs, asked.bytes_max):
            (asked.state / "new" / name_of(data)).write_bytes(data)
    else:
        replay_all(session, inputs)
        if asked.mode == "own":
            own_loop(session, inputs, asked.seconds, asked.runs_max, asked.seed)


if __name__ == "__main__":
    main()
