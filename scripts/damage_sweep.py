"""Damage every kind of durable file of a run, and see whether anybody is told something wrong.

    python scripts/damage_sweep.py --flips 200 --parallel 4 --results damage.jsonl
    python scripts/damage_sweep.py --results damage.jsonl --table docs/damage.md

A run of tiny jobs learns until two promotions, with an archive on a drive, is killed, and all of it is copied
once for each damage: a file of some kind is cut, emptied, deleted, replaced by the one of an earlier moment,
or has one bit flipped at a random place. Then those who read such files look at the copy, in a process that
is forked for that from a warm one; for some cases of each kind a real `ringrift run` of two seconds comes
first. What they say is compared with what they say of the undamaged copy:

    noticed    a command failed with a reason, or says something that it does not say of the undamaged copy
    harmless   nothing was said, and every number is that of the undamaged copy
    WRONG      a number is another, and nobody named the file or said that something is damaged or missing
    traceback  a program broke off, or a run ended with an exit code that it should not have

Each result is a line of the results file as soon as it is there; a second call with the same file goes on
where the first one ended. The second form of the command makes the table from the results and damages
nothing. Exit code 1 if anything was wrong or broke off.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import json
import os
import platform
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "integration"))

from click.testing import CliRunner
from damage_run import (
    ARCHIVE,
    DATA,
    GAMES,
    NODE_RECORD,
    TRACES,
    UNDER_WAY,
    kinds_of_files,
    link_copy,
    loop_in,
    make_run,
    promised_files,
)
from loop_under_test import CONFIG
from structlog.testing import capture_logs

from ringrift.cli.main import app
from ringrift.coordination.coordinator_config import get_settings
from ringrift.data.protection.promise_store import PromiseStore
from ringrift.data.transfer.contract import CHUNK_BYTES
from ringrift.data.transfer.http.wire import data_secret
from ringrift.data.transfer.receiving import MetadataFolder, open_intake
from ringrift.engine.opening import close_engine, get_engine
from ringrift.errors import RingRiftError
from ringrift.learning.announcements import Silent
from ringrift.learning.controller import Controller
from ringrift.learning.facts.facts import Promoted
from ringrift.learning.facts.high_water import check_not_lost
from ringrift.learning.facts.ledger import read_facts
from ringrift.learning.facts.store_check import require_sound_database, require_whole_store
from ringrift.learning.plan.rules import learning_rules
from ringrift.process import process_scope
from ringrift.runtime import system_runtime
from ringrift.settings import load_settings
from ringrift.tls import own_files
from ringrift.web.server import http_token

RUNTIME = system_runtime()
DAMAGES = ("cut", "emptied", "deleted", "older")
FLIPPED = "bit flipped"
VERDICTS = ("noticed", "harmless", "WRONG", "traceback")
BAD = VERDICTS[2:]
REFUSED, BROKEN = 2, "Traceback (most recent call last)"
NUMBERS = ("games", "rows", "champion", "promotions")
DAMAGE_WORDS = (
    "amaged", "missing", "is gone", "not here", "lost", "older than the run", "has fewer", "are others than",
    "not what was", "does not fit", "cannot be read", "is empty", "ends after", "not a SQLite",
    "another one than", "nothing says how far", "there is no archive",
)  # fmt: skip
WHY_MAX = 1_000
CASE_S_MAX = 600.0
PROGRESS_S = 2.0
READ_BY_REPLAY = ("database", "write-ahead log", "index of the log", "high-water mark", "settings")
RULES = "ringrift.games.tool"
RESTORED = "restored"  # the folder of a copy into which its archive is restored


# --- one damage ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """One file of a copy, damaged in one way; *real*: a real run comes before all who look."""

    kind: str
    damage: str
    seed: int
    real: bool = False

    def apply(self, place: Path, then: Path, files: list[Path]) -> str:
        """Damage one of *files*; returns what was done, or nothing if it cannot be done to any."""
        lots = random.Random(f"{self.kind} {self.damage} {self.seed}")
        fitting = [each for each in files if self.damage == "deleted" or (place / each).stat().st_size]
        if self.damage == "older":
            fitting = [each for each in fitting if _is_other(then / each, place / each)]
        if not fitting:
            return ""
        inside = lots.choice(fitting)
        path = place / inside
        content = path.read_bytes()
        path.unlink()  # it may be the same file as that of the undamaged copy
        if self.damage == "deleted":
            return f"{inside} deleted"
        if self.damage == "older":
            shutil.copyfile(then / inside, path)
            done = f"{inside} from an earlier moment"
        elif self.damage == "emptied":
            path.write_bytes(b"")
            done = f"{inside} emptied"
        else:
            spot = lots.randrange(len(content))
            bit = lots.randrange(8)
            if self.damage == "cut":
                path.write_bytes(content[:spot])
                done = f"{inside} cut after {spot} of {len(content)} bytes"
            else:
                path.write_bytes(content[:spot] + bytes([content[spot] ^ 1 << bit]) + content[spot + 1 :])
                done = f"{inside} bit {bit} of byte {spot} flipped"
        path.chmod(0o600)
        return done


def _is_other(first: Path, second: Path) -> bool:
    return first.is_file() and first.read_bytes() != second.read_bytes()


# --- looking ------------------------------------------------------------------------------------------------


def look(kind: str, place: Path, variables: dict[str, str]) -> dict[str, Any]:
    """What those who read files of *kind* say of *place*, in a process that is forked from this one."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            with os.fdopen(writing, "w") as out:
                json.dump(_look_here(kind, place, variables), out)
        except Exception as error:  # noqa: BLE001 - nothing of the process that was forked may go on here
            traceback.print_exception(error)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as source:
        told = source.read()
    os.waitpid(child, 0)
    return json.loads(told) if told else {"traceback": "the process died"}


def _look_here(kind: str, place: Path, variables: dict[str, str]) -> dict[str, Any]:
    gc.disable()
    os.environ.update(variables | {"RINGRIFT_DATA_DIR": str(place / DATA)})
    os.chdir(place)
    found: dict[str, Any] = {}
    if kind == GAMES:
        _recorded(found, place)
    elif kind.startswith(ARCHIVE):
        _command(found, "check", "data", "check", "--json")
        os.environ["RINGRIFT_DATA_DIR"] = str(place / RESTORED)
        _command(found, "restore", "data", "restore", "--json")
        _command(found, "restored status", "status", "--json")
    else:
        _command(found, "status", "status", "--json")
        _command(found, "doctor", "doctor", "--quick", "--json")
        if kind in ("", *READ_BY_REPLAY):
            _command(found, "replay", "replay", CONFIG, "--json")
        if kind in ("", "settings") or kind.startswith("dead letters"):
            _command(found, "letters", "events", "dlq", "list", "--json")
        _work(found, "start", _start_once)
        if kind.startswith(NODE_RECORD):
            _work(found, "node", _node_once)
    found["modules"] = [name for name in sys.modules if name.startswith("ringrift.")]
    text = json.dumps(found).replace(str(place), "PLACE")
    whole: dict[str, Any] = json.loads(text)
    return whole


def _command(found: dict[str, Any], name: str, *words: str) -> None:
    done = CliRunner().invoke(app, list(words))
    found[name] = {"code": done.exit_code, "out": done.stdout, "err": done.stderr}
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        found["traceback"] = f"{name}: {type(done.exception).__name__}: {done.exception}"
    process_scope().clear()


def _work(found: dict[str, Any], name: str, work: Callable[[], Any]) -> None:
    with capture_logs() as said:
        try:
            found[name] = asyncio.run(work())
        except RingRiftError as error:
            found[name] = {"refused": str(error)}
        except Exception as error:  # noqa: BLE001 - whatever breaks off is what is looked for
            found[name] = {}
            found["traceback"] = f"{name}: {type(error).__name__}: {error}"
    lines = [str(line) for line in said if line.get("log_level") != "info"]
    found["logged"] = [*found.get("logged", ()), *lines]
    process_scope().clear()


def _recorded(found: dict[str, Any], place: Path) -> None:
    rules = import_module(RULES)  # it loads a compiler, which makes every fork slow: only where it is needed
    for _, report in rules.check_trace_files(sorted((place / TRACES).iterdir())):
        told = {"refused": str(report)} if isinstance(report, RingRiftError) else asdict(report)
        if told.get("difference"):
            told = {"refused": f"it does not fit the rules: {told['difference']}"}
        found["recorded"] = told
    found.setdefault("recorded", {"refused": "there is no file"})  # as the command says of a name


async def _start_once() -> dict[str, Any]:
    """As the control process starts, and one pass of the loop; no workers, so nothing new is played."""
    settings, runtime = get_settings(), system_runtime()
    http_token(settings)
    data_secret(settings)
    if settings.health_tls:
        own_files(settings, runtime).context()
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
        state = controller.state(CONFIG)
        await controller.reconcile()
        return {
            "facts_before": len(before),
            "games": state.games,
            "rows": state.rows,
            "champion": state.champion,
            "promotions": sum(isinstance(fact, Promoted) for fact in before),
        }
    finally:
        await close_engine()


async def _node_once() -> dict[str, Any]:
    """As the data server and the daemons of a node read what they wrote: nothing promised may be deleted."""
    settings, runtime = get_settings(), system_runtime()
    record, lost = PromiseStore(settings.blob_dir, runtime), []
    for digest in promised_files(settings.data_dir):
        if not (why := record.begin(digest, reason="the sweep tries")):
            lost.append(digest)
        elif "promised" not in why:
            raise RingRiftError(why)
    intake = open_intake(settings, runtime, node=settings.node_name or "")
    cards = MetadataFolder(intake.folder).lists()
    arrived = {file.card.digest: repr(file) for _, files in cards for file in files}
    incoming = intake.incoming(hashlib.sha256(UNDER_WAY).hexdigest(), len(UNDER_WAY))
    chunks = [UNDER_WAY[at : at + CHUNK_BYTES] for at in range(0, len(UNDER_WAY), CHUNK_BYTES)]
    hashes = [hashlib.sha256(chunk).digest() for chunk in chunks]
    for position in incoming.missing(0, hashes):
        incoming.write(position, hashes[position], memoryview(chunks[position]))
    intake.seal(incoming, "the sweep")
    return {"promised, may go": len(lost), "arrived": arrived}


# --- judging ------------------------------------------------------------------------------------------------


def numbers_of(found: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """What was said that can be right or wrong; a command that refused said no number."""
    numbers: dict[str, Any] = {}
    for name in ("status", "restored status"):
        if (told := _answer(found, name)) is not None:
            status = told.get("configs", {}).get(CONFIG, {})
            numbers |= {f"{name} {each}": status.get(each) for each in NUMBERS}
    for name, fields in (
        ("letters", ("letters",)),
        ("replay", ("facts",)),
        ("check", ("files", "games", "states")),
        ("restore", ("state",)),
    ):
        if (told := _answer(found, name)) is not None:
            numbers |= {f"{name} {each}": told.get(each) for each in fields}
    for name in ("start", "node", "recorded"):
        if name in found and "refused" not in found[name]:
            numbers |= {f"{name} {each}": value for each, value in found[name].items()}
    if "node arrived" in numbers:  # words that are lost cost nothing; other words would be believed
        numbers["node arrived"] = dict(numbers["node arrived"].items() - base["node"]["arrived"].items())
    return numbers


def _answer(found: dict[str, Any], name: str) -> dict[str, Any] | None:
    """What a command answered; None if it refused or was not asked."""
    if name not in found or found[name]["code"] == REFUSED or not found[name]["out"].strip():
        return None
    told: dict[str, Any] = json.loads(found[name]["out"])
    return told


def judge(found: dict[str, Any], base: dict[str, Any], done: str = "") -> tuple[str, str]:
    """The verdict on what was said after *done*, and what it rests on.

    A wrong number is noticed only if somebody names the damaged file, or says that something is damaged,
    missing or older; whatever else is said beside it does not excuse it. What comes out of an archive must
    be told by whoever restores it: nobody checks an archive first.
    """
    commands = [each for each in found.values() if isinstance(each, dict) and "err" in each]
    if "traceback" in found or any(BROKEN in each["err"] + each["out"] for each in commands):
        return "traceback", str(found.get("traceback", "in the output"))
    said = _said(found, base)
    now, then = numbers_of(found, base), numbers_of(base, base)
    wrong = {name: (value, then[name]) for name, value in now.items() if _is_wrong(found, value, then[name])}
    every = [text for texts in said.values() for text in texts]
    if not wrong:
        return ("noticed", every[0]) if every else ("harmless", "")
    by_restore = [text for name in ("restore", "restored status") for text in said.get(name, ())]
    excuses = [by_restore if name.startswith("restore") else every for name in wrong]
    named = [[text for text in texts if _names_damage(text, done)] for texts in excuses]
    return ("noticed", named[0][0]) if all(named) else ("WRONG", f"{wrong}; said: {every}")


def _is_wrong(found: dict[str, Any], value: Any, then: Any) -> bool:
    """A run that went on for a moment may know more, and never less."""
    if "run" not in found:
        return bool(value != then)
    return isinstance(then, int) and (not isinstance(value, int) or value < then)


def _said(found: dict[str, Any], base: dict[str, Any]) -> dict[str, list[str]]:
    """What each says that it does not say of the undamaged copy."""
    said: dict[str, list[str]] = {}
    for name, told in found.items():
        if not isinstance(told, dict):
            continue
        before = base.get(name, {})
        if "refused" in told:
            said[name] = [told["refused"]]
        elif "err" in told:
            known = {_normal(line) for line in before.get("err", "").splitlines()}
            lines = [line for line in told["err"].splitlines() if line.strip() and _normal(line) not in known]
            said[name] = [*(["\n".join(lines)] if lines else []), *_answered(name, told, before)]
    events = {_event(each) for each in base.get("logged", ())}
    said["logged"] = [line for line in found.get("logged", ()) if _event(line) not in events]
    lines = {_normal(line) for line in base.get("run", ())}
    said["run"] = [line for line in found.get("run", ()) if _normal(line) not in lines]
    return said


def _answered(name: str, told: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """What an answer says of damage."""
    answer = _answer({name: told}, name) or {}
    if name == "doctor":
        known = {_normal(each) for each in _findings(before)}
        return sorted(each for each in _findings(told) if _normal(each) not in known)
    if name == "replay" and answer.get("divergences"):
        return ["replay: a decision does not follow; a fact is not what was written"]
    if name == "check":
        return [f"damaged: {each['key']}: {each['why']}" for each in answer.get("damaged", ())]
    if name == "restore":
        failed = [f"damaged: {digest}: {why}" for digest, why in answer.get("failed", {}).items()]
        return [*failed, *(f"missing: {digest}" for digest in answer.get("missing", ()))]
    return []


def _names_damage(text: str, done: str) -> bool:
    name = Path(done.partition(" ")[0]).name
    return (bool(name) and name in text) or any(word in text for word in DAMAGE_WORDS)


def _findings(doctor: dict[str, Any]) -> set[str]:
    told = json.loads(doctor.get("out") or "{}").get("findings", ())
    return {f"{each['check']}: {each['text']}" for each in told}


def _normal(text: str) -> str:
    """Without what differs from one moment to the next: times, sizes, shares. Damage has other words."""
    return text if any(word in text for word in DAMAGE_WORDS) else re.sub(r"[0-9]+([.,:][0-9]+)*", "#", text)


def _event(line: str) -> str:
    return line.partition("'event': '")[2].partition("'")[0]


def run_really(place: Path) -> tuple[str, list[str]]:
    """`ringrift run` for two seconds; returns what is wrong with how it went, and what it said of damage."""
    loop = loop_in(place)
    command = [sys.executable, "-m", "ringrift.cli", "run", "--plain", "--no-open", "--for", "2s"]
    command += ["--configs", CONFIG, "--workers", "1"]
    try:
        done = subprocess.run(
            command,
            env=loop.environment(),
            cwd=place,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CASE_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        loop.kill_everything()
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
    """A run, and what becomes of damaged copies of it."""

    def __init__(self, folder: Path, now: Path, then: Path) -> None:
        self.folder, self.now, self.then = folder, now, then
        self.files = kinds_of_files(now)
        if find_spec("numba") is None:  # without it the rules cannot be asked
            self.files.pop(GAMES)
        self._bases: dict[str, dict[str, Any]] = {}
        self._run_said: list[str] | None = None
        self._warm()

    def cases(self, *, flips: int, others: int, real: int = 0) -> list[Case]:
        """Every kind damaged in every way, so many times; the first *real* of each with a real run, too."""
        made = [
            Case(kind, damage, seed)
            for kind in self.files
            for damage, times in (*((each, others) for each in DAMAGES), (FLIPPED, flips))
            for seed in range(times)
        ]
        read_by_a_run = [case for case in made if case.kind != GAMES and case.seed < real]
        return [*made, *(Case(case.kind, case.damage, case.seed, real=True) for case in read_by_a_run)]

    def check(self, case: Case) -> tuple[str, str, str]:
        """Damage a copy and look; returns what was done, the verdict and why. Nothing done: not possible."""
        base = self.base(case.kind)
        if case.kind == GAMES:
            _recorded({}, self.now)  # here, so that what it compiles is there after each fork
        done, found = self._of_copy(case.kind, case)
        if not done:
            return "", "", ""
        if case.real:
            if self._run_said is None:
                self._run_said = self._of_copy(case.kind, None, real=True)[1].get("run", [])
            base = {**base, "run": self._run_said}
        return done, *judge(found, base, done)

    def base(self, kind: str) -> dict[str, Any]:
        """What those who read files of *kind* say of the undamaged copy."""
        readers = next((each for each in (ARCHIVE, NODE_RECORD, GAMES) if kind.startswith(each)), "")
        if readers not in self._bases:
            self._bases[readers] = self._of_copy(readers, None)[1]
        return self._bases[readers]

    def _warm(self) -> None:
        """Load here, once, what those who look load in a process of their own."""
        for kind in ("", ARCHIVE, NODE_RECORD):
            for name in self.base(kind)["modules"]:
                import_module(name)
        load_settings({}, config_file=self.now / "ringrift.toml")
        gc.freeze()

    def _of_copy(self, kind: str, case: Case | None, *, real: bool = False) -> tuple[str, dict[str, Any]]:
        with tempfile.TemporaryDirectory(dir=self.folder, ignore_cleanup_errors=True) as folder:
            place = Path(folder) / "place"
            link_copy(self.now, place)
            done = "nothing" if case is None else case.apply(place, self.then, self.files[case.kind])
            if not done:
                return "", {}
            real = real or (case is not None and case.real)
            problem, said = run_really(place) if real else ("", [])
            found = look(kind, place, {"NO_COLOR": "1"}) | ({"run": said} if real else {})
            return done, found | ({"traceback": problem} if problem else {})


@contextmanager
def working_folder() -> Iterator[Path]:
    """In memory where that is possible: no damage depends on the disk."""
    memory = Path("/dev/shm")
    where = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(
        prefix="ringrift-damage-", dir=where, ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


def sweep(options: argparse.Namespace, folder: Path) -> None:
    """Make the run, and do the cases that the results file does not have yet."""
    begun_s = RUNTIME.monotonic_s()
    work = Sweep(folder, *make_run(folder))
    cases = work.cases(flips=options.flips, others=options.others, real=options.real)
    cases = [case for case in cases if not options.kind or case.kind in options.kind]
    random.Random(options.seed).shuffle(cases)
    end_s = begun_s + options.minutes * 60 if options.minutes else float("inf")
    do_cases(work, cases, options.results, parallel=options.parallel, end_s=end_s)
    _append(options.results, {"minutes": (RUNTIME.monotonic_s() - begun_s) / 60})


def do_cases(
    work: Sweep, cases: Sequence[Case], results: Path, *, parallel: int, end_s: float = float("inf")
) -> None:
    """Do what the results file does not have yet, in several processes, until the time is over."""
    known = {_key(each) for each in read_results(results)}
    left = [case for case in cases if _key(asdict(case)) not in known]
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    _append(results, {"files": {kind: len(files) for kind, files in work.files.items()}, "machine": machine})
    children = []
    for number in range(parallel):
        child = os.fork()
        if child == 0:
            try:
                _do_part(work, sorted(left[number::parallel], key=_is_last), results, end_s)
            except Exception as error:  # noqa: BLE001 - the same
                traceback.print_exception(error)
            os._exit(0)
        children.append(child)
    _wait_for(children, results, done_before=len(cases) - len(left), cases=len(cases))


def _is_last(case: Case) -> bool:
    return case.kind == GAMES


def _do_part(work: Sweep, cases: Sequence[Case], results: Path, end_s: float) -> None:
    for case in cases:
        if RUNTIME.monotonic_s() >= end_s:
            return
        before_s = _processor_s()
        done, verdict, why = work.check(case)
        told = {"done": done, "verdict": verdict, "why": why[:WHY_MAX]}
        _append(results, asdict(case) | told | {"processor_s": round(_processor_s() - before_s, 3)})
        if verdict in BAD:
            sys.stderr.write(f"\n{verdict}: {done}: {why[:WHY_MAX]}\n")


def _processor_s() -> float:
    spent = [resource.getrusage(each) for each in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in spent)


def _wait_for(children: list[int], results: Path, *, done_before: int, cases: int) -> None:
    """Tell how far it is until the last part is done."""
    begun_s = RUNTIME.monotonic_s()
    while children:
        asyncio.run(RUNTIME.sleep(PROGRESS_S))
        children = [child for child in children if os.waitpid(child, os.WNOHANG) == (0, 0)]
        found = [each for each in read_results(results) if "verdict" in each]
        bad = sum(each["verdict"] in BAD for each in found)
        passed = f"{(RUNTIME.monotonic_s() - begun_s) / 60:.1f} minutes, {done_before} before"
        sys.stderr.write(f"\r{len(found)} of {cases} cases, {bad} bad, {passed} ")
        sys.stderr.flush()
    sys.stderr.write("\n")


# --- results ------------------------------------------------------------------------------------------------


def read_results(path: Path) -> list[dict[str, Any]]:
    """The lines of a results file; the last one may have been cut off."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines if line]


def _append(path: Path, told: dict[str, Any]) -> None:
    """In one write, so that the lines of several processes stay whole."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, json.dumps(told).encode() + b"\n")
    finally:
        os.close(descriptor)


def _key(told: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(told.get(each) for each in ("kind", "damage", "seed", "real"))


def summary(results: Iterable[dict[str, Any]]) -> str:
    """The results as a table, with what they are."""
    files: dict[str, int] = {}
    machines, minutes, tally = set(), 0.0, defaultdict[tuple[str, str], Counter[str]](Counter)
    cases, real, processor_s = 0, 0, 0.0
    for each in results:
        files |= each.get("files", {})
        machines |= {each["machine"]} if "machine" in each else set()
        minutes += each.get("minutes", 0.0)
        if each.get("verdict"):
            tally[each["kind"], each["damage"]][each["verdict"]] += 1
            cases, real = cases + 1, real + each["real"]
            processor_s += each["processor_s"]
    bad = sum(found[each] for found in tally.values() for each in BAD)
    lines = [
        f"{cases:,} cases, {real:,} of them with a real `ringrift run`; {bad or 'none'} wrong or broken off. "
        f"{processor_s / max(1, cases):.2f} s of a processor for a case, {minutes:.0f} minutes "
        f"({'; '.join(sorted(machines))}).",
        "",
        "| kind of file | files | " + " | ".join((*DAMAGES, FLIPPED)) + " |",
        "|---|---|" + "---|" * (len(DAMAGES) + 1),
    ]
    for kind in sorted(files):
        cells = []
        for damage in (*DAMAGES, FLIPPED):
            found = tally[kind, damage]
            cells.append(", ".join(f"{found[each]} {each}" for each in VERDICTS if found[each]) or "-")
        lines.append(f"| {kind} | {files[kind]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def replace_table(page: Path, text: str) -> None:
    head, _, rest = page.read_text(encoding="utf-8").partition("<!-- table -->")
    tail = rest.partition("<!-- end -->")[2]
    page.write_text(f"{head}<!-- table -->\n{text}\n<!-- end -->{tail}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--results", type=Path, required=True, help="a line for each case; it is gone on with"
    )
    parser.add_argument("--flips", type=int, default=200, help="flipped bits for each kind of file")
    parser.add_argument("--others", type=int, default=20, help="each other damage for each kind of file")
    parser.add_argument("--real", type=int, default=1, help="so many of each also with a real `ringrift run`")
    parser.add_argument("--parallel", type=int, default=1, help="processes, each with a part of the cases")
    parser.add_argument("--minutes", type=float, default=0.0, help="end after this time; 0: when all is done")
    parser.add_argument("--kind", action="append", help="only this kind of file; may be repeated")
    parser.add_argument("--seed", type=int, default=1, help="draws the order")
    parser.add_argument("--table", type=Path, help="damage nothing; put the results into this page")
    options = parser.parse_args()
    if not options.table:
        with working_folder() as folder:
            sweep(options, folder)
    results = read_results(options.results)
    text = summary(results)
    if options.table:
        replace_table(options.table, text)
    sys.stdout.write(f"{text}\n")
    return 1 if any(each.get("verdict") in BAD for each in results) else 0


if __name__ == "__main__":
    sys.exit(main())
