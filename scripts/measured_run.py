"""One `ringrift run`: the processor time of all its processes counted, and what it publishes kept.

The measuring process adopts every orphan of the run, so the run's processes are always its descendants: the
living ones are read from /proc, each with its finished children, and those that it waited for itself are in
its own account. It starts nothing else, and what it does itself does not count.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from ringrift.cli.command import use_data_folder
from ringrift.cli.data_folder import ask_engine
from ringrift.errors import RingRiftError
from ringrift.files import file_sha256
from ringrift.jobs.files import seal_json
from ringrift.learning.facts.facts import AnyFact, JobEnded, JobIssued, Promoted, Rejected
from ringrift.learning.facts.ledger import read_facts
from ringrift.learning.facts.records import BucketRules, Model, ShardState
from ringrift.learning.facts.state import ConfigState, fold
from ringrift.runtime import SystemRuntime

LOOK_S, NOTE_S, LATEST_S, STOP_S_MAX, COPY_LOOKS_MAX = 1.0, 10.0, 120.0, 120.0, 60
PR_SET_CHILD_SUBREAPER = 36
TICKS_S = float(os.sysconf("SC_CLK_TCK"))
# How a person would split the time of jobs; what is no job is told by the command line of its process.
KINDS = {
    "selfplay": "self-play",
    "train": "training",
    "evaluate": "judging",
    "tournament": "judging",
    "validate": "checking",
    "recompute": "checking",
    "export": "export",
}
CLOCK = SystemRuntime()
Keep = Callable[[Path, str, str, float], Path]


# Processor time.


class Process(NamedTuple):
    """A line of /proc/PID/stat, as far as it counts."""

    pid: int
    parent: int
    begun: int  # with the number, who it is
    own_s: float
    children_s: float  # of those that it waited for, and theirs


class ProcessTimes:
    """What the descendants of this process have used."""

    def __init__(self, *, adopts: bool = True) -> None:
        """This process *adopts* the orphans among them from now on."""
        if adopts and ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "this system lets no process adopt orphans")
        self.run_pid = 0
        self.total_s = 0.0
        self._own: dict[tuple[int, int], tuple[str, float]] = {}  # process: its part in the run, seconds

    def look(self) -> float:
        """The processor seconds of the run so far: everything that runs, has run or was started by that."""
        self._wait_for_orphans()
        living = descendants(os.getpid(), all_processes())
        parts = self._parts(living)
        for each in living:
            self._own[each.pid, each.begun] = (parts[each.pid], each.own_s)
        running_s = sum(each.own_s + each.children_s for each in living)
        # A process that ends between two reads is missed once and in its parent's account the next time.
        self.total_s = max(self.total_s, waited_s() + running_s)
        return self.total_s

    def by_part(self) -> dict[str, float]:
        found: Counter[str] = Counter()
        for part, own_s in self._own.values():
            found[part] += own_s
        return dict(found)

    def _wait_for_orphans(self) -> None:
        """The run itself is waited for by who started it."""
        for each in all_processes():
            if each.parent == os.getpid() and each.pid != self.run_pid:
                os.waitpid(each.pid, os.WNOHANG)

    def _parts(self, living: Sequence[Process]) -> dict[int, str]:
        parts: dict[int, str] = {self.run_pid: "control"}
        for each in living:  # parents before their children
            words = command_line(each.pid)
            if each.pid == self.run_pid:
                continue
            if not words and (each.pid, each.begun) in self._own:  # it has ended
                parts[each.pid] = self._own[each.pid, each.begun][0]
            elif "ringrift.work.worker.main" in words:
                parts[each.pid] = "workers"
            elif "ringrift.jobs.host" in words and parts.get(each.parent) != "hosts":
                parts[each.pid] = "hosts"
            elif "ringrift.jobs" in words or parts.get(each.parent) in ("hosts", "jobs"):
                parts[each.pid] = "jobs"
            else:
                parts[each.pid] = parts.get(each.parent, "control")
        return parts


def all_processes() -> list[Process]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text(encoding="utf8", errors="replace")
            except OSError:  # it has ended
                continue
            fields = text.rpartition(")")[2].split()
            own, children = (sum(map(int, fields[at : at + 2])) / TICKS_S for at in (11, 13))
            found.append(Process(int(entry.name), int(fields[1]), int(fields[19]), own, children))
    return found


def descendants(root: int, processes: Iterable[Process]) -> list[Process]:
    """Parents before their children, without *root*."""
    children: dict[int, list[Process]] = {}
    for each in processes:
        children.setdefault(each.parent, []).append(each)
    found, parents = [], [root]
    while parents:
        below = [each for parent in parents for each in children.get(parent, ())]
        found += below
        parents = [each.pid for each in below]
    return found


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def waited_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# The run.


def measure(folder: Path, about: dict[str, Any], *, minutes: float, keep: Keep) -> int:
    """Run, keep and note until the last mark or for *minutes*; 0 if the run ended well."""
    data = folder / "data"
    shutil.rmtree(data, ignore_errors=True)
    use_data_folder(data)
    times, marks = ProcessTimes(), sorted(about["marks"])
    os.environ["RINGRIFT_LEARNING"] = json.dumps({"seed": about["seed"]})
    configs = about["configs"]
    command = [sys.executable, "-m", "ringrift.cli", "run", "--configs", ",".join(configs)]
    began_s = CLOCK.now_s()
    with (folder / "run.log").open("wb") as output, (folder / "progress.jsonl").open("w") as progress:
        run = subprocess.Popen(
            [*command, "--data", str(data), "--plain", "--no-open"], stdout=output, stderr=output
        )
        times.run_pid = run.pid
        keeper = Keeper(folder, configs, keep, began_s)
        noted_s = latest_s = began_s
        try:
            while not has_ended(run) and CLOCK.now_s() - began_s < 60 * minutes:
                spent_s = times.look()
                if CLOCK.now_s() - noted_s >= NOTE_S:
                    noted_s = CLOCK.now_s()
                    line = {"s": noted_s - began_s, "cpu_s": spent_s, **times.by_part()}
                    progress.write(json.dumps({key: round(value, 1) for key, value in line.items()}) + "\n")
                    progress.flush()
                if CLOCK.now_s() - latest_s >= LATEST_S:
                    latest_s = CLOCK.now_s()
                    keeper.note("latest.json", {}, times)
                if marks and spent_s >= marks[0] and keeper.keep_mark(marks[0], times):
                    marks.pop(0)
                if about["marks"] and not marks:
                    break
        finally:
            times.look()
            run.send_signal(signal.SIGTERM)
            code = run.wait(STOP_S_MAX)
    # All that ran is waited for by now: the system's own count, and no look at living processes.
    more = {"code": code, "cpu_s_last_look": round(times.total_s, 1), "cpu_s_waited": round(waited_s(), 1)}
    times.look()
    keeper.note("end.json", more, times)
    return 0 if code == 0 else 1


def has_ended(run: subprocess.Popen[bytes]) -> bool:
    try:
        run.wait(LOOK_S)
    except subprocess.TimeoutExpired:
        return False
    return True


class Keeper:
    """Copies what a run publishes, and writes down what its facts say."""

    def __init__(self, folder: Path, configs: Sequence[str], keep: Keep, began_s: float) -> None:
        self._folder, self._configs, self._keep, self._began_s = folder, configs, keep, began_s
        self._looks = 0

    def keep_mark(self, mark: float, times: ProcessTimes) -> bool:
        """False while a file is just being replaced: the next look will do."""
        kept = {}
        for config in self._configs:
            state = fold(config, self._facts(config), bucket_rules=BucketRules())
            published = self._published(state, self._keep(self._folder, config, "champion", mark))
            self._looks += 1
            if published is None and state.champion is not None and self._looks < COPY_LOOKS_MAX:
                return False
            if state.generator is not None:
                path = self._keep(self._folder, config, "generator", mark)
                self._copy(state.models[state.generator], path)
            kept[config] = {"champion": published, "generator": state.generator}
        self._looks = 0
        self.note(f"mark-{mark:06.0f}.json", {"mark": mark, "kept": kept}, times)
        return True

    def note(self, name: str, more: dict[str, Any], times: ProcessTimes) -> None:
        now_s = CLOCK.now_s()
        told = {
            config: what_facts_say(self._facts(config), config, self._began_s) for config in self._configs
        }
        jobs: Counter[str] = Counter()
        for each in told.values():
            jobs.update(each["cpu_s"])
        parts = times.by_part()
        beside = {part: parts.get(part, 0.0) for part in ("control", "workers", "hosts")}
        rest = times.total_s - sum(jobs.values()) - sum(beside.values())
        split = {**jobs, **beside, "under way or lost": rest}
        noted = {
            **more,
            "s": round(now_s - self._began_s, 1),
            "cpu_s": round(times.total_s, 1),
            "split": {part: round(used, 1) for part, used in split.items()},
            "configs": told,
        }
        seal_json(self._folder / name, noted)
        say(f"{self._folder}: {name} after {noted['s']:.0f} s, {noted['cpu_s']:.0f} s of processor time")

    def _facts(self, config: str) -> list[AnyFact]:
        try:
            return ask_engine(lambda engine: read_facts(engine.kv, config))
        except RingRiftError as error:
            say(f"{config}: {error}")
            return []

    def _published(self, state: ConfigState, path: Path) -> str | None:
        """The digest of what is published, copied as it is there; None if it is not whole."""
        source = self._folder / "data" / "models" / f"canonical_{state.config}.safetensors"
        for each in (path, path.with_suffix(".json")):
            try:
                shutil.copyfile(source.with_suffix(each.suffix), each)
            except FileNotFoundError:
                return None
        model = state.models.get(file_sha256(path))
        if model is None or file_sha256(path.with_suffix(".json")) != model.card:
            for each in (path, path.with_suffix(".json")):
                each.unlink()
            return None
        return model.digest

    def _copy(self, model: Model, path: Path) -> None:
        for digest, target in ((model.digest, path), (model.card, path.with_suffix(".json"))):
            shutil.copyfile(self._folder / "data" / "blobs" / digest[:2] / digest, target)


# What the facts say.


def what_facts_say(facts: Sequence[AnyFact], config: str, began_s: float) -> dict[str, Any]:
    """The numbers of a config that a run is judged by."""
    state = fold(config, facts, bucket_rules=BucketRules())
    issued = {fact.job_id: fact for fact in facts if isinstance(fact, JobIssued)}
    ended = [
        (issued[fact.job_id].kind, fact.report)
        for fact in facts
        if isinstance(fact, JobEnded) and fact.report is not None
    ]
    cpu_s: Counter[str] = Counter()
    for kind, report in ended:
        cpu_s[KINDS.get(kind, "other jobs")] += report.cpu_s
    waits_s: dict[str, list[float]] = {}
    for fact in facts:
        if isinstance(fact, JobEnded) and fact.report is not None:
            order = issued[fact.job_id]
            waits_s.setdefault(order.kind, []).append(fact.report.started_s - order.at_s)
    starts_s = [report.start_s for _, report in ended if report.start_s is not None]
    promoted = [fact.at_s for fact in facts if isinstance(fact, Promoted)]
    files = {file for model in state.models.values() for file in model.sample_files}
    trained = {digest for file in files for digest in state.samples[file].shards}
    untrained_rows = sum(
        shard.rows
        for shard in state.shards.values()
        if shard.state is ShardState.CHECKED and shard.digest not in trained
    )
    return {
        "games": state.games,
        "rows": state.rows,
        "steps": int(state.bucket.spent),
        "steps_share": round(state.bucket.spent / (4 * state.rows), 4) if state.rows else None,
        "untrained_rows_share": round(untrained_rows / state.rows, 4) if state.rows else None,
        "jobs": dict(Counter(kind for kind, _ in ended)),
        "wait_s": {kind: round(median(each), 1) for kind, each in sorted(waits_s.items())},
        "start_s": round(median(starts_s), 2) if starts_s else None,
        "start_share": round(state.starting_s / state.timed_s, 4) if state.timed_s else None,
        "failed": sum(isinstance(fact, JobEnded) and bool(fact.error) for fact in facts),
        "cpu_s": {kind: round(used, 1) for kind, used in sorted(cpu_s.items())},
        "trainings": len(state.models),
        "verdicts": sum(isinstance(fact, Promoted | Rejected) for fact in facts),
        "promotions": len(promoted),
        "first_promotion_s": round(promoted[0] - began_s, 1) if promoted else None,
        "champion": state.champion,
        "champion_number": number_of(state, state.champion),
        "generator_number": number_of(state, state.generator),
        "idle_s_max": longest_idle_s(
            [(report.started_s, report.started_s + report.wall_s) for _, report in ended],
            since_s=began_s,
            until_s=CLOCK.now_s() if not (ended and state.open_jobs) else began_s,
        ),
    }


def number_of(state: ConfigState, digest: str | None) -> int | None:
    return None if digest is None else state.models[digest].number


def longest_idle_s(busy: Iterable[tuple[float, float]], *, since_s: float, until_s: float) -> float:
    """The longest time without a job between the two times; no *busy* one counts beyond its end."""
    free_s, longest = since_s, 0.0
    for start_s, end_s in (*sorted(busy), (until_s, until_s)):
        longest, free_s = max(longest, start_s - free_s), max(free_s, end_s)
    return round(longest, 1)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
