"""Damage every kind of durable file of a run, and see whether anybody is told something wrong.

    python scripts/damage_sweep.py --flips 200 --table docs/damage.md

A run of tiny jobs learns until two promotions, is killed, and its folder is copied once for each damage: a
file of some kind is cut, emptied, deleted, replaced by the one of an earlier moment, or has one bit flipped
at a random place. Then `status`, `doctor`, `replay`, `events dlq list` and the start of the run with one pass
of its loop look at the copy, in a process that is forked for that from a warm one; for one case in `--real` a
real `ringrift run` of two seconds comes first. What they say is compared with what they say of the undamaged
folder:

    noticed    a command failed with a reason, or says something that it does not say of the undamaged folder
    harmless   nothing was said, and every number is that of the undamaged folder
    WRONG      a number is another, and nobody named the file or said that something is damaged or missing
    traceback  a program broke off, or a run ended with an exit code that it should not have

Exit code 1 if anything was wrong or broke off.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "integration"))

from click.testing import CliRunner
from loop_under_test import CONFIG, Loop
from structlog.testing import capture_logs

from ringrift.bootstrap.run_options import RunOptions, set_run_options
from ringrift.cli.main import app
from ringrift.engine.opening import close_engine, get_engine
from ringrift.errors import RingRiftError
from ringrift.learning.announcing import Silent
from ringrift.learning.controller import Controller
from ringrift.learning.facts import Promoted
from ringrift.learning.high_water import check_not_lost, mark_path
from ringrift.learning.ledger import read_facts
from ringrift.learning.rules import learning_rules
from ringrift.learning.run_check import require_sound_database, require_whole_store
from ringrift.process import process_scope
from ringrift.runtime import system_runtime
from ringrift.settings import get_settings

COMMANDS = ("status", "doctor", "replay", "letters")
RUNTIME = system_runtime()
DAMAGES = ("cut", "emptied", "deleted", "older")
FLIPPED = "bit flipped"
VERDICTS = ("noticed", "harmless", "WRONG", "traceback")
REFUSED, BROKEN = 2, "Traceback (most recent call last)"
NUMBERS = ("games", "rows", "champion", "promotions")
DAMAGE_WORDS = (
    "amaged", "missing", "is gone", "not here", "lost", "older than the run", "has fewer", "are others than",
    "not what was", "does not fit", "cannot be read", "is empty", "ends after", "not a SQLite",
    "another one than", "nothing says how far",
)  # fmt: skip
PROMOTED = '"fact":"promoted"'
MORE_FACTS = 5
CASE_S_MAX = 600.0
LEARN_S_MAX = 300.0


# --- the run ------------------------------------------------------------------------------------------------


def make_run(folder: Path, *, promotions: int = 2) -> tuple[Path, Path]:
    """Learn, keep the folder as it was after the first promotion, learn on, and kill; return (now, then)."""
    loop, then = Loop(folder, tiny=True), folder / "then"
    asyncio.run(_learn(loop, 1))
    loop.kill_everything()
    _copy(loop.data, then)
    asyncio.run(_learn(loop, promotions, facts=_facts(loop.data) + MORE_FACTS))
    loop.kill_everything()
    now = folder / "now"
    _copy(loop.data, now)
    return now, then


async def _learn(loop: Loop, promotions: int, *, facts: int = 0) -> None:
    loop.start()
    end_s = RUNTIME.monotonic_s() + LEARN_S_MAX
    while RUNTIME.monotonic_s() < end_s:
        await RUNTIME.sleep(0.3)
        done = _facts(loop.data, PROMOTED) >= promotions and _facts(loop.data) >= facts
        if done and mark_path(loop.data).exists():
            await RUNTIME.sleep(1.5)  # until the mark has seen it
            return
    raise TimeoutError(loop.last_words())


def _facts(data: Path, with_text: str = "") -> int:
    database = data / "coordination" / "coordinator.db"
    if not database.exists():
        return 0
    with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as db:
        query = "SELECT count(*) FROM kv WHERE key LIKE 'learning/fact/%' AND instr(CAST(value AS TEXT), ?)"
        return int(db.execute(query, (with_text,)).fetchone()[0])


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("*.wake"))


def kinds_of_files(data: Path) -> dict[str, list[Path]]:
    """Every file of the folder by its kind, as paths inside it."""
    blobs = _blob_kinds(data)
    found: defaultdict[str, list[Path]] = defaultdict(list)
    for path in sorted(each for each in data.rglob("*") if each.is_file() and not each.is_symlink()):
        inside = path.relative_to(data)
        found[_kind(inside, blobs)].append(inside)
    return dict(sorted(found.items()))


def _kind(inside: Path, blobs: dict[str, str]) -> str:
    top, name = inside.parts[0], inside.name
    if top == "blobs":
        return f"blob: {blobs.get(name, 'not named by a fact')}"
    if top == "coordination":
        for ending, kind in (
            ("coordinator.db", "database"),
            ("coordinator.db-wal", "write-ahead log"),
            ("coordinator.db-shm", "index of the log"),
            ("dead_letter_queue.db", "dead letters"),
            ("dead_letter_queue.db-wal", "dead letters: log"),
            ("dead_letter_queue.db-shm", "dead letters: index"),
        ):
            if name == ending:
                return kind
        return "locks, pids, addresses"
    if name == "high_water.json":
        return "high-water mark"
    if top == "jobs":
        return "job folders"
    return {"models": "published models", "logs": "logs"}.get(top, "secrets and small files")


def _blob_kinds(data: Path) -> dict[str, str]:
    """The kind of every artifact, by the reports in the database."""
    found: dict[str, str] = {}
    database = data / "coordination" / "coordinator.db"
    with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as db:
        for (value,) in db.execute("SELECT value FROM kv WHERE key LIKE 'learning/fact/%' ORDER BY key"):
            for artifact in (json.loads(value).get("report") or {}).get("artifacts", ()):
                found[artifact["digest"]] = artifact["kind"]
    return found


# --- one damage ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """One file of a copy, damaged in one way."""

    kind: str
    damage: str
    seed: int

    def apply(self, data: Path, then: Path, files: list[Path]) -> str:
        """Damage one of *files*; returns what was done, or nothing if it cannot be done to any."""
        lots = random.Random(f"{self.kind} {self.damage} {self.seed}")
        fitting = [each for each in files if self.damage in ("deleted",) or (data / each).stat().st_size]
        if self.damage == "older":
            fitting = [each for each in fitting if _is_other(then / each, data / each)]
        if not fitting:
            return ""
        inside = lots.choice(fitting)
        path = data / inside
        content = path.read_bytes() if self.damage != "deleted" else b""
        path.chmod(0o600)
        if self.damage == "deleted":
            path.unlink()
            return f"{inside} deleted"
        if self.damage == "older":
            shutil.copyfile(then / inside, path)
            return f"{inside} from an earlier moment"
        if self.damage == "emptied":
            path.write_bytes(b"")
            return f"{inside} emptied"
        place = lots.randrange(len(content))
        if self.damage == "cut":
            path.write_bytes(content[:place])
            return f"{inside} cut after {place} of {len(content)} bytes"
        bit = lots.randrange(8)
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
        return f"{inside} bit {bit} of byte {place} flipped"


def _is_other(first: Path, second: Path) -> bool:
    return first.is_file() and first.read_bytes() != second.read_bytes()


# --- looking ------------------------------------------------------------------------------------------------


def look(data: Path, variables: dict[str, str]) -> dict[str, Any]:
    """What the commands say of *data*, in a process of its own that is forked from this one."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "w") as out:
            json.dump(_look_here(data, variables), out)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as source:
        told = source.read()
    os.waitpid(child, 0)
    return json.loads(told) if told else {"traceback": "the process died"}


def _look_here(data: Path, variables: dict[str, str]) -> dict[str, Any]:
    os.environ.update(variables | {"RINGRIFT_DATA_DIR": str(data)})
    os.chdir(data.parent)
    process_scope().clear()
    found: dict[str, Any] = {}
    for name, words in (
        ("status", ("status", "--json")),
        ("doctor", ("doctor", "--quick", "--json")),
        ("replay", ("replay", CONFIG, "--json")),
        ("letters", ("events", "dlq", "list", "--json")),
    ):
        done = CliRunner().invoke(app, list(words))
        found[name] = {"code": done.exit_code, "out": done.stdout, "err": done.stderr}
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            found["traceback"] = f"{name}: {type(done.exception).__name__}: {done.exception}"
        process_scope().clear()
    try:
        with capture_logs() as said:
            found["start"] = asyncio.run(_start_once())
    except RingRiftError as error:
        found["start"] = {"refused": str(error)}
    except Exception as error:  # noqa: BLE001 - whatever breaks off is what is looked for
        found["start"] = {}
        found["traceback"] = f"start: {type(error).__name__}: {error}"
    found["logged"] = [line for line in map(str, said) if "'log_level': 'info'" not in line]
    return found


async def _start_once() -> dict[str, Any]:
    """As the control process starts, and one pass of the loop; no workers, so nothing new is played."""
    settings, runtime = get_settings(), system_runtime()
    set_run_options(RunOptions(configs=(CONFIG,), workers=1))
    check_not_lost(settings)
    engine = await get_engine()
    try:
        await require_sound_database(settings)
        await require_whole_store(
            engine.kv, runtime, database=settings.coordinator_db, data_dir=settings.data_dir
        )
        before = await read_facts(engine.kv, CONFIG)
        controller = Controller(engine, runtime, learning_rules(settings.learning or {}), announcer=Silent())
        await controller.open([CONFIG])
        await controller.reconcile()
        state = controller.state(CONFIG)
        return {
            "facts_before": len(before),
            "games": state.games,
            "rows": state.rows,
            "champion": state.champion,
            "promotions": sum(isinstance(fact, Promoted) for fact in before),
        }
    finally:
        await close_engine()


def numbers_of(found: dict[str, Any]) -> dict[str, Any]:
    """What was said that can be right or wrong; a command that refused said no number."""
    numbers: dict[str, Any] = {}
    if found["status"]["code"] != REFUSED:
        status = json.loads(found["status"]["out"] or "{}").get("configs", {}).get(CONFIG, {})
        numbers |= {f"status {name}": status.get(name) for name in NUMBERS}
    if found["letters"]["code"] != REFUSED:
        numbers["dead letters"] = json.loads(found["letters"]["out"] or "{}").get("letters")
    if found["replay"]["code"] != REFUSED:
        numbers["replay facts"] = json.loads(found["replay"]["out"] or "{}").get("facts")
    if "refused" not in found["start"]:
        numbers |= {f"start {name}": found["start"].get(name) for name in ("facts_before", *NUMBERS)}
    return numbers


def judge(found: dict[str, Any], base: dict[str, Any], done: str = "") -> tuple[str, str]:
    """The verdict on what was said after *done*, and what it rests on.

    A wrong number is noticed only if somebody names the damaged file, or says that something is damaged,
    missing or older; whatever else is said beside it does not excuse it.
    """
    if "traceback" in found or any(BROKEN in found[each]["err"] + found[each]["out"] for each in COMMANDS):
        return "traceback", str(found.get("traceback", "in the output"))
    said = _said(found, base)
    now, then = numbers_of(found), numbers_of(base)
    wrong = {name: (value, then[name]) for name, value in now.items() if _is_wrong(found, value, then[name])}
    if wrong:
        named = [text for text in said if _names_damage(text, done)]
        return ("noticed", named[0]) if named else ("WRONG", f"{wrong}; said: {said}")
    return ("noticed", said[0]) if said else ("harmless", "")


def _is_wrong(found: dict[str, Any], value: Any, then: Any) -> bool:
    """A run that went on for a moment may know more, and never less."""
    if "run" not in found:
        return bool(value != then)
    return isinstance(then, int) and (not isinstance(value, int) or value < then)


def _said(found: dict[str, Any], base: dict[str, Any]) -> list[str]:
    """What is said that is not said of the undamaged folder."""
    said = [found[name]["err"].strip() for name in COMMANDS if found[name]["code"] == REFUSED]
    said += [found["start"]["refused"]] if "refused" in found["start"] else []
    said += [err] if (err := found["status"]["err"].strip()) else []
    known = {_normal(each) for each in _findings(base)}
    said += sorted(each for each in _findings(found) if _normal(each) not in known)
    if json.loads(found["replay"]["out"] or "{}").get("divergences"):
        said.append("replay: a decision does not follow; a fact is not what was written")
    events = {_event(each) for each in base["logged"]}
    said += [line for line in found["logged"] if _event(line) not in events]
    lines = {_normal(line) for line in base.get("run", ())}
    said += [line for line in found.get("run", ()) if _normal(line) not in lines]
    return list(dict.fromkeys(said))


def _names_damage(text: str, done: str) -> bool:
    name = Path(done.partition(" ")[0]).name
    return (bool(name) and name in text) or any(word in text for word in DAMAGE_WORDS)


def _findings(found: dict[str, Any]) -> set[str]:
    told = json.loads(found["doctor"]["out"] or "{}").get("findings", ())
    return {f"{each['check']}: {each['text']}" for each in told}


def _normal(text: str) -> str:
    """Without what differs from one moment to the next: times, sizes, shares. Damage has other words."""
    return text if any(word in text for word in DAMAGE_WORDS) else re.sub(r"[0-9]+([.,:][0-9]+)*", "#", text)


def _event(line: str) -> str:
    return line.partition("'event': '")[2].partition("'")[0]


def run_really(data: Path, loop: Loop) -> tuple[str, list[str]]:
    """`ringrift run` for two seconds; returns what is wrong with how it went, and what it said of damage."""
    command = [sys.executable, "-m", "ringrift.cli", "run", "--plain", "--no-open", "--for", "2s"]
    command += ["--configs", CONFIG, "--workers", "1", "--data", str(data)]
    try:
        done = subprocess.run(
            command, env=loop.environment(), capture_output=True, text=True, timeout=CASE_S_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        return f"run: it had not ended after {CASE_S_MAX:g} s", []
    return judge_run(done.returncode, done.stdout, done.stderr)


def judge_run(code: int, out: str, err: str) -> tuple[str, list[str]]:
    """A run ends well, or refuses with a reason; anything else is broken."""
    if BROKEN in out + err or code not in (0, REFUSED) or (code == REFUSED and not err.strip()):
        return f"run: exit code {code}: {(out + err)[-2000:]}", []
    lines = (out + err).splitlines()
    return "", [line for line in lines if any(word in line for word in DAMAGE_WORDS)]


# --- the sweep ----------------------------------------------------------------------------------------------


class Sweep:
    """A run, and what becomes of damaged copies of its folder."""

    def __init__(self, folder: Path, now: Path, then: Path) -> None:
        self.folder, self.now, self.then = folder, now, then
        self.loop = Loop(folder, tiny=True)
        self.files = kinds_of_files(self.now)
        self.base = self._of_copy(None)[1]

    def cases(self, *, flips: int, others: int) -> list[Case]:
        return [
            Case(kind, damage, seed)
            for kind in self.files
            for damage, times in (*((each, others) for each in DAMAGES), (FLIPPED, flips))
            for seed in range(times)
        ]

    def check(self, case: Case, *, really: bool = False) -> tuple[str, str, str]:
        """Damage a copy and look; returns what was done, the verdict and why. Nothing done: not possible."""
        done, found = self._of_copy(case, really=really)
        if not done:
            return "", "", ""
        if really and "run" not in self.base:
            self.base["run"] = self._of_copy(None, really=True)[1].get("run", [])
        return done, *judge(found, self.base, done)

    def _of_copy(self, case: Case | None, *, really: bool = False) -> tuple[str, dict[str, Any]]:
        with tempfile.TemporaryDirectory(dir=self.folder, ignore_cleanup_errors=True) as place:
            data = Path(place) / "data"
            shutil.copytree(self.now, data, symlinks=True)
            done = "nothing" if case is None else case.apply(data, self.then, self.files[case.kind])
            if not done:
                return "", {}
            problem, said = run_really(data, self.loop) if really else ("", [])
            found = look(data, self.loop.variables) | ({"run": said} if really else {})
            return done, found | ({"traceback": problem} if problem else {})


def sweep(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    begun_s = RUNTIME.monotonic_s()
    now, then = make_run(folder)
    work = Sweep(folder, now, then)
    tally: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    bad, real = [], 0
    cases = work.cases(flips=options.flips, others=options.others)
    cases = [case for case in cases if not options.kind or case.kind in options.kind]
    random.Random(options.seed).shuffle(cases)
    for number, case in enumerate(cases):
        if options.minutes and RUNTIME.monotonic_s() - begun_s > options.minutes * 60:
            break
        really = options.real and number % options.real == 0
        done, verdict, why = work.check(case, really=bool(really))
        if not done:
            continue
        real += bool(really)
        tally[case.kind, case.damage][verdict] += 1
        if verdict in VERDICTS[2:]:
            bad.append({"case": f"{case.kind}, {case.damage}, {case.seed}", "done": done, "why": why})
            sys.stderr.write(f"{verdict}: {done}: {why}\n")
    return {
        "tally": {f"{kind}|{damage}": dict(found) for (kind, damage), found in sorted(tally.items())},
        "bad": bad,
        "cases": sum(sum(found.values()) for found in tally.values()),
        "real_runs": real,
        "minutes": (RUNTIME.monotonic_s() - begun_s) / 60,
        "files": {kind: len(files) for kind, files in work.files.items()},
    }


def table(result: dict[str, Any]) -> str:
    lines = [
        "| kind of file | files | " + " | ".join((*DAMAGES, FLIPPED)) + " |",
        "|---|---|" + "---|" * (len(DAMAGES) + 1),
    ]
    for kind, files in result["files"].items():
        cells = []
        for damage in (*DAMAGES, FLIPPED):
            found = result["tally"].get(f"{kind}|{damage}", {})
            cells.append(", ".join(f"{found[each]} {each}" for each in VERDICTS if each in found) or "-")
        lines.append(f"| {kind} | {files} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--flips", type=int, default=200, help="flipped bits for each kind of file")
    parser.add_argument("--others", type=int, default=20, help="each other damage for each kind of file")
    parser.add_argument("--real", type=int, default=50, help="a real `ringrift run` for one case in so many")
    parser.add_argument("--minutes", type=float, default=0.0, help="end after this time; 0: when all is done")
    parser.add_argument("--kind", action="append", help="only this kind of file; may be repeated")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("--table", type=Path, help="the page whose table is replaced")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ringrift-damage-", ignore_cleanup_errors=True) as folder:
        result = sweep(options, Path(folder))
    text = table(result)
    sys.stdout.write(f"{text}\n\n{result['cases']} cases in {result['minutes']:.0f} minutes\n")
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if options.table:
        page = options.table.read_text(encoding="utf-8")
        head, _, rest = page.partition("<!-- table -->")
        tail = rest.partition("<!-- end -->")[2]
        told = f"{result['cases']} cases, {result['real_runs']} of them with a real `ringrift run`"
        body = f"<!-- table -->\n{told}, {result['minutes']:.0f} minutes.\n\n{text}\n<!-- end -->"
        options.table.write_text(head + body + tail, encoding="utf-8")
    return 1 if result["bad"] else 0


if __name__ == "__main__":
    sys.exit(main())
