"""A fast loop as a user starts it, and somebody who kills its processes at random moments.

`Loop` is the run and all its processes, found by the data folder in their environment. `Killer` draws from a
seed whom to kill, how and when. Everything else about the run is looked at from outside, by `LoopAudit`.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

from ringrift.engine.opening import open_engine
from ringrift.engine.work_rules import ENDED
from ringrift.errors import Unavailable
from ringrift.jobs.host import ROOM_VARIABLE
from ringrift.jobs.shards.storage import open_shard
from ringrift.learning.facts.ledger import prefix_of
from ringrift.learning.plan.rules import learning_rules
from ringrift.runtime import SystemRuntime
from ringrift.settings import load_settings
from ringrift.testing.loop_audit import LoopAudit, damaged_blobs
from ringrift.work.job.folder import JobFolders

CONFIG = "connect_four_2p"
LEASE_S = 4.0
GONE_S = 120.0
UP_S = 180.0  # at most until a process of a kind is there
TINY_JOBS = Path(__file__).with_name("tiny_jobs.py")
KINDS = ("selfplay", "validate", "export", "train", "evaluate")
FAST = {
    "simulations": 2,
    "evaluation_simulations": 2,
    "selfplay_job_s": 0.5,
    "selfplay_games_first": 16,
    "selfplay_slots": 16,
    "batch": 16,
    "window_base": 2000,
    "bucket": {"chunk_steps": 480, "cap_steps": 10_000_000, "rows_first_min": 150},
    "rating_games": 4,
    "rating_opponents": ["random"],
    "evaluation_games": 8,
    # A model of some seconds is no stronger than the last: one that is hardly weaker has to do.
    "promotion": {
        "elo0": -300.0,
        "elo1": 0.0,
        "games_max": 24,
        "chunk_games": 12,
        "floor_2p": 0.05,
        "floor_games_min": 4,
        "floor_games_max": 8,
    },
    "retry_s": 0.2,
    "breaker_s": 2.0,
}


class Loop:
    """`ringrift run` on a folder: started, killed, stopped, looked at."""

    def __init__(self, folder, *, tiny, learning=FAST, workers=2, commands=None):
        self.data, self.learning, self.workers = folder / "data", learning, workers
        self.folder, self.log = folder, folder / "run.log"
        self.process = None
        self.starts = 0
        self._logged_before = [0, 0, 0]
        tiny_jobs = {kind: ["{python}", "-I", "-S", str(TINY_JOBS)] for kind in KINDS} if tiny else {}
        jobs = {kind: {"command": words} for kind, words in {**tiny_jobs, **(commands or {})}.items()}
        self.variables = {
            "RINGRIFT_DATA_DIR": str(self.data),
            "RINGRIFT_HEALTH_PORT": "0",
            "RINGRIFT_LEARNING": json.dumps(learning),
            "RINGRIFT_JOBS": json.dumps(jobs),
            "RINGRIFT_JOB_LEASE": str(LEASE_S),
            "RINGRIFT_JOB_GRACE_PERIOD": "10",
            "NO_COLOR": "1",
        }

    def start(self):
        """Start it as it was started before, whatever happened in between."""
        command = ["run", "--plain", "--no-open", "--configs", CONFIG, "--workers", str(self.workers)]
        self._logged_before = [len(text) for text in self._texts()]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ringrift.cli", *command],
                env=self.environment(),
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.starts += 1

    def environment(self):
        return {**os.environ, **self.variables}

    @property
    def is_up(self):
        return self.process is not None and self.process.poll() is None

    def processes(self):
        """Every process that belongs to the run, by what it is."""
        found = {"control": [], "worker": [], "host": [], "job": [], "guard": [], "other": []}
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                    continue
                environ = process.environ()
                where = process.cwd() if ROOM_VARIABLE in environ else environ.get("RINGRIFT_JOB_OUT", "")
                ours = where.startswith(f"{self.data}/")
                if ours or environ.get("RINGRIFT_DATA_DIR") == str(self.data):
                    found[_role(process, environ)].append(process)
        return found

    async def end(self, number=signal.SIGTERM):
        """Ask it to stop; return its exit code."""
        self.process.send_signal(number)
        return await asyncio.to_thread(self.process.wait, 120)

    async def all_gone(self):
        """Wait until nothing is left of it; return what would not go."""
        end_s = time.monotonic() + GONE_S
        while True:
            left = [process for group in self.processes().values() for process in group]
            if not left or time.monotonic() > end_s:
                return left
            await asyncio.sleep(0.1)

    def kill_everything(self):
        for group in self.processes().values():
            for process in group:
                hit(process, signal.SIGKILL)
        if self.process is not None:
            self.process.wait(60)

    def words_since_start(self):
        """What the control process and the workers logged since the control process was last started."""
        told = zip(self._texts(), self._logged_before, strict=True)
        return "\n".join(text[before:] for text, before in told)

    def last_words(self):
        return "\n".join(text[-3000:] for text in self._texts())

    def _texts(self):
        logs = (self.log, *(self.data / "logs" / name for name in ("worker.log", "worker-prepare.log")))
        return [path.read_text() if path.exists() else "" for path in logs]


def _role(process, environ):
    words = process.cmdline()
    if any(word.endswith("guard_main.py") for word in words):
        return "guard"
    if ROOM_VARIABLE in environ:
        return "host"
    if "RINGRIFT_JOB_ITEM" in environ:
        return "job"
    if "ringrift.work.worker.main" in words:
        return "worker"
    return "control" if "ringrift.cli" in words else "other"


def hit(process, number):
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def tiny_games(path):
    return [game["id"] for game in json.loads(path.read_bytes())["games"]]


def real_games(path):
    with open_shard(path) as shard:
        return [summary.game_id for summary in shard.summaries()]


@asynccontextmanager
async def watched_loop(folder, *, tiny, **options):
    """A loop that is not started yet, and the eyes on it. Nothing of it is left at the end."""
    loop = Loop(folder, tiny=tiny, **options)
    settings = load_settings({"RINGRIFT_DATA_DIR": str(loop.data)}).settings
    engine = await open_engine(settings, SystemRuntime())
    audit = LoopAudit(engine, CONFIG, learning_rules(loop.learning), tiny_games if tiny else real_games)
    try:
        yield loop, audit
    finally:
        loop.kill_everything()
        await engine.close()


def with_stepping_clocks(loop, *, seed):
    """Let each process of *loop* see a wall clock of its own; return the file that says what they saw."""
    steps = loop.folder / "clock_steps.log"
    paths = [str(Path(__file__).parents[1] / "stepping_clock"), os.environ.get("PYTHONPATH", "")]
    loop.variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    loop.variables |= {"TEST_CLOCK_SEED": str(seed), "TEST_CLOCK_LOG": str(steps)}
    return steps


async def until(true, what, loop, *, within_s=300.0):
    """Wait for a condition while the run is up."""
    end_s = time.monotonic() + within_s
    while not await true():
        assert time.monotonic() < end_s, f"{what} did not come about in {within_s} s\n{loop.last_words()}"
        assert loop.is_up, f"the run ended by itself\n{loop.last_words()}"
        await asyncio.sleep(0.05)


# --- the killer ---------------------------------------------------------------------------------------------

# What is done, and how often by comparison.
DEEDS = {
    "job": 4,
    "worker": 3,
    "control": 3,
    "all": 3,
    "guard": 1,
    "control and guards": 1,
    "workers and guards": 1,
    "workers paused": 1,
    "all paused": 0.5,  # as when a laptop sleeps
    "stop": 1,
    "ringrift stop": 0.5,
}
DEEDS_OF_REAL_JOBS = {**DEEDS, "host": 2}  # tiny ones are programs that workers start
KILLED = {
    "all": ("guard", "control", "worker", "host", "job", "other"),
    "control": ("control",),
    "control and guards": ("guard", "control"),
    "workers and guards": ("guard", "worker"),
}
WITHOUT_KILL = {"workers paused", "all paused", "stop", "ringrift stop"}
UP_TO_S = {"tiny": 2.0, "real": 8.0}


@dataclass
class Killer:
    """Kills, restarts what only a person would restart, and has every state audited."""

    loop: Loop
    audit: LoopAudit
    seed: int
    tiny: bool
    done: Counter = field(default_factory=Counter)
    running: Counter = field(default_factory=Counter)  # what jobs were under way at a kill
    problems: list = field(default_factory=list)
    slowest_s: float = 0.0  # from a deed to the next job that ended well

    def __post_init__(self):
        self._lots = random.Random(self.seed)
        self._deeds = DEEDS if self.tiny else DEEDS_OF_REAL_JOBS
        self._deck = self._lots.sample(list(self._deeds), len(self._deeds))
        self._turned = False  # the loop took something in since the last audit

    @property
    def kills(self):
        """How often something was killed with `kill -9`."""
        return sum(times for deed, times in self.done.items() if deed not in WITHOUT_KILL)

    async def strike(self, deed=None, *, while_runs=None):
        """One deed at a random moment, each once before any twice; afterwards the run is up again.

        With *while_runs*, a kind of tiny jobs, the moment is one in which such a job is at work.
        """
        if while_runs is None:
            await self._until_the_moment()
            await self._strike(deed)
            return
        hold = self.loop.folder / f"hold-{while_runs}"
        hold.touch()
        try:
            await until(partial(self._runs, while_runs), f"a {while_runs} job", self.loop)
            await self._strike(deed)
        finally:
            hold.unlink()

    async def _runs(self, kind):
        return any(_kind_of(process) == kind for process in self.loop.processes()["job"])

    async def _strike(self, deed):
        if deed is None and not self._deck:
            deed = self._lots.choices(list(self._deeds), weights=list(self._deeds.values()))[0]
        deed = deed or self._deck.pop()
        found = await self._found_for(deed)
        if deed in found and not found[deed]:
            deed = "control"
        self.done[deed] += 1
        self.running.update(_kind_of(process) for process in found["job"])
        await self._do(deed, found)
        if not self.loop.is_up:
            where = f"after {deed} ({sum(self.done.values())})"
            self.problems += [f"{where}: {each}" for each in await self._check_the_dead()]
            self.loop.start()

    async def _until_the_moment(self):
        """Mostly while jobs run, but also while it starts, recovers or waits."""
        end_s = time.monotonic() + self._lots.choice((0.0, 15.0, 15.0))
        while time.monotonic() < end_s and self.loop.is_up and not self.loop.processes()["job"]:
            await asyncio.sleep(0.05)
        await asyncio.sleep(self._lots.uniform(0.0, UP_TO_S["tiny" if self.tiny else "real"]))

    async def _found_for(self, deed):
        """The processes, with one to do it to as soon as there is one."""
        end_s = time.monotonic() + UP_S
        while True:
            found = self.loop.processes()
            is_missing = deed in found and not found[deed]
            if not is_missing or not self.loop.is_up or time.monotonic() > end_s:
                return found
            await asyncio.sleep(0.05)

    async def _do(self, deed, found):
        control = self.loop.process
        if deed in ("workers paused", "all paused"):
            roles = ("worker",) if deed == "workers paused" else tuple(found)
            await _pause([process for role in roles for process in found[role]])
        elif deed == "stop":
            code = await self.loop.end()
            if code not in (0, -signal.SIGTERM):  # the latter while Python itself starts
                self.problems.append(f"stopped with exit code {code}")
        elif deed == "ringrift stop":
            command = [sys.executable, "-m", "ringrift.cli", "stop", "--json", "--data", str(self.loop.data)]
            done = await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=150)
            if done.returncode:
                self.problems.append(f"ringrift stop: {done.stderr.decode()}")
            elif json.loads(done.stdout)["stopped"]:  # else it came before the run had said that it runs
                control.wait(60)
        else:
            for role in KILLED.get(deed, (deed,)):
                if role == "control":
                    control.kill()
                    control.wait(60)
                # A role alone is one process of it; among others it is all of that role.
                for process in found[role] if deed in KILLED else [self._lots.choice(found[role])]:
                    hit(process, signal.SIGKILL)

    async def _check_the_dead(self):
        """Nothing may be left of a run whose control process is gone, and all it wrote must hold."""
        left = await self.loop.all_gone()
        problems = [f"left behind: {process}" for process in left]
        for process in left:
            hit(process, signal.SIGKILL)
        problems += await self.audit.look(recovered=self._turned)
        self._turned = False
        problems += [f"damaged blob {name}" for name in damaged_blobs(self.loop.data / "blobs")]
        words = self.loop.words_since_start()
        if (found := words.find("Traceback")) >= 0:
            problems.append(f"a traceback in the logs: {words[max(0, found - 500) : found + 4000]}")
        return problems

    async def goes_on(self, *, within_s=300.0):
        """Wait for a job that ends well after this moment."""
        begun_s, served = time.monotonic(), await self._ended_well()

        async def more():
            return await self._ended_well() > served

        await until(more, "the next result", self.loop, within_s=within_s)
        self._turned = True
        self.slowest_s = max(self.slowest_s, time.monotonic() - begun_s)

    async def _ended_well(self):
        entries = await self.audit.engine.kv.entries(prefix_of(CONFIG))
        return sum(b'"job_ended"' in each.value and b'"report":{' in each.value for each in entries)

    async def finish(self):
        """Stop it in peace and audit for the last time."""
        code = await self.loop.end()
        self.problems += [f"at the end: {each}" for each in await self._check_the_dead()]
        self.problems += [f"left in the jobs' folder: {name}" for name in await self._folders_of_ended()]
        if code:
            self.problems.append(f"the last stop ended with code {code}")
        return self.problems

    async def _folders_of_ended(self):
        """Folders whose items are done; a worker that was started again removes them."""
        left = []
        for folder in JobFolders(self.loop.data / "jobs").all():
            record = folder.read_record()
            item = None if record is None else await self.audit.engine.queue.get(record.item_id)
            if item is None or item.state in ENDED:
                left.append(folder.path.name)
        return left


async def _pause(processes):
    """For longer than a lease."""
    for process in processes:
        hit(process, signal.SIGSTOP)
    await asyncio.sleep(LEASE_S * 1.5)
    for process in processes:
        hit(process, signal.SIGCONT)


def _kind_of(process):
    try:
        return process.environ().get("RINGRIFT_JOB_KIND", "?")
    except (psutil.Error, OSError):
        return "?"


def has_stopped(pid):
    """Whether each of its threads has."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)


async def stop_between_writes(process, kv):
    """One that is stopped while it writes keeps everybody from writing until it goes on; that is known."""
    for _ in range(30):
        process.send_signal(signal.SIGSTOP)
        while not has_stopped(process.pid):  # until then it may begin to write after all
            await asyncio.sleep(0.001)
        try:
            async with asyncio.timeout(3):
                await kv.put("test/stopped", b"")
                return
        except (TimeoutError, Unavailable):
            process.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.05)
    raise AssertionError("it is always writing")
