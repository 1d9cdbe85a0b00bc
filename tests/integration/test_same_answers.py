"""Every public getter of numbers, status and health answers in a second process as in the control process.

What it answers is what the control process says of the same moment, or unknown (None): never a zero, an empty
list or "stopped" that is only true of the object in the asking process. Questions are found by name on all
public paths, so a new getter is held to it without being listed here.
"""

import asyncio
import json
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from loop_under_test import CONFIG, Loop, until
from public_answers import SLOWEST_S

from ringrift.engine.opening import open_engine
from ringrift.engine.run_reports import REPORT_KEY
from ringrift.runtime import SystemRuntime
from ringrift.settings import load_settings

HERE = Path(__file__).parent
DEADLINE_S = 120.0
ASKING_S = 2.0
CLOCK_S = 30.0  # what is a time or an age may differ by so much: reports are some seconds old

# About the asking process itself, whichever runs: what is meant is what happens in it.
OF_THE_PROCESS = {
    "get_all_metrics": "coordinators that this process listed",
    "get_bootstrap_status": "whether this process has brought its coordinators up",
    "get_bridge_manager().get_stats": "blocking calls of this process",
    "get_coordinator_stats": "the router of this process",
    "get_data_bus()": "callbacks of this process",
    "get_event_bus()": "callbacks of this process",
    "get_event_coordinator()": "the router of this process",
    "get_event_stats": "the router of this process",
    "get_handler_metrics": "handlers that this process wrapped",
    "get_integration_status": "the router of this process",
    "get_orchestrator_roles()": "roles that this process holds",
    "get_router()": "the router of this process",
    "get_stage_event_bus()": "callbacks of this process",
}
# Numbers of a process among answers that are the same everywhere.
OWN_LEAVES = ("session_",)
# What falls to nothing when a run stops, truly.
NONE_WANTED = {
    ("get_daemon_manager().health_check", "/details/daemons_total"): "daemons that ought to be up",
    ("get_daemon_manager().health_summary", "/total"): "daemons that ought to be up",
    ("get_health_manager().get_system_health_score", ""): "unknown is not healthy; the level says unknown",
    ("get_system_health_score", ""): "unknown is not healthy; the level says unknown",
}
OF_THE_LIVING = ("running", "subscri", "uptime", "active", "slots", "connected", "healthy", "score", "alive")


def leaves(value, path=""):
    if isinstance(value, dict) and value:
        for name, each in value.items():
            yield from leaves(each, f"{path}/{name}")
    else:
        yield path, value


def is_own(question):
    return question in OF_THE_PROCESS or f"{question.partition('()')[0]}()" in OF_THE_PROCESS


def is_unknown(value):
    return value is None or value == "unknown"


def is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def agrees(value, before, after):
    """Whether *value* is of a moment between *before* and *after*."""
    if is_unknown(value) or value in (before, after):
        return True
    if not all(map(is_number, (value, before, after))):
        return False
    low, high = min(before, after), max(before, after)
    clock = low > 1e9  # seconds since the epoch
    return low - 1e-6 <= value <= high + 1e-6 or (clock and low - CLOCK_S <= value <= high + CLOCK_S)


def differences(second, before, after):
    """Question and place of every answer of *second* that is neither the run's nor unknown."""
    for question, told in second.items():
        if is_own(question):
            continue
        first, last = dict(leaves(before[question]["answer"])), dict(leaves(after[question]["answer"]))
        for place, value in leaves(told["answer"]):
            if any(word in place for word in OWN_LEAVES):
                continue
            if "uptime" in place or "_age" in place or place.endswith(("timestamp", "at_s")):
                close = is_unknown(value) or abs(value - (last.get(place) or 0.0)) <= CLOCK_S
                if not close:
                    yield question, place, value, last.get(place)
            elif value in ({}, []) and place not in first and place not in last:
                yield question, place, value, "something"
            elif not agrees(value, first.get(place), last.get(place)):
                yield question, place, value, (first.get(place), last.get(place))


def zeros_of_unknown(second, live):
    """What the run had and an answer about the stopped run denies."""
    for question, told in second.items():
        if is_own(question):
            continue
        found = dict(leaves(told["answer"]))
        for place, value in leaves(live[question]["answer"]):
            gone = found.get(place)
            if (question, place) in NONE_WANTED or any(
                word in place for word in (*OF_THE_LIVING, *OWN_LEAVES)
            ):
                continue
            if is_number(value) and value and gone == 0 and not isinstance(gone, bool):
                yield question, place, gone, value


def changed(found, earlier):
    """What the facts say otherwise than before, although nothing was done meanwhile."""
    for question, names in KEPT.items():
        for name in names:
            told, then = found[question]["answer"][name], earlier[question]["answer"][name]
            if told != then:
                yield question, name, told, then


# Questions about a run alone, and what of their answers is a constant or a limit.
OF_A_RUN = (
    "get_coordination_facade().get_system_health",
    "get_health_manager().get_status",
    "get_health_score",
    "get_job_scheduler().get_stats",
    "get_model_coordinator().get_status",
    "get_pipeline_status",
    "get_selfplay_stats",
    "get_queue_populator().get_stats",
    "get_selfplay_orchestrator().get_status",
    "get_system_health",
    "get_task_stats",
    "get_training_coordinator().get_status",
    "get_training_coordinator().health_check",
    "get_training_status",
    "get_work_queue_status",
)
KNOWN_ANYWAY = ("slots_max",)
# Those of them that also have records of what people's own programs do, which there are none of.
OF_THE_FACTS = ("get_pipeline_status", "get_selfplay_stats", "get_task_stats", "get_training_status")
# What the facts of a run say, which a start of it does not change.
KEPT = {
    "get_pipeline_status": ("promotions", "iterations_completed", "games_generated", "stages"),
    "get_selfplay_stats": ("total_games", "completed_tasks", "failed_tasks"),
    "get_task_stats": ("active", "completed", "failed"),
    "get_training_status": ("running", "completed", "failed", "slots", "by_workers"),
}


class AskedLoop(Loop):
    """A run whose control process can be asked."""

    def __init__(self, folder):
        super().__init__(folder, tiny=True)
        self.ask = folder / "ask"

    def start(self):
        words = [HERE / "asked_control.py", self.ask, "run", "--plain", "--no-open"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *map(str, words), "--configs", CONFIG, "--workers", "2"],
                env=self.environment(),
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def asked(self):
        """What the control process answers."""
        told = self.ask.with_suffix(".json")
        self.ask.touch()

        async def is_told():
            return told.exists()

        await until(is_told, "an answer", self)
        found = json.loads(told.read_text())
        told.unlink()
        return found

    def second(self, *questions):
        """What a process that has nothing to do with the run answers: to all questions, or to these."""
        words = [sys.executable, str(HERE / "public_answers.py"), *questions]
        done = subprocess.run(
            words, env=self.environment(), capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["left_running"] == []
        return found["answers"]

    def told_again(self):
        """Whether the control process has written a report that it began after this."""
        now_s = time.time()

        async def is_told():
            settings = load_settings({"RINGRIFT_DATA_DIR": str(self.data)}).settings
            engine = await open_engine(settings, SystemRuntime())
            try:
                entry = await engine.kv.get(REPORT_KEY)
            finally:
                await engine.close()
            # What is in it was asked for at most a moment before it was written.
            return entry is not None and json.loads(entry.value)["at_s"] > now_s + ASKING_S

        return is_told

    def command(self, *words):
        done = subprocess.run(
            [sys.executable, "-m", "ringrift.cli", *words, "--json"],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        return json.loads(done.stdout) if done.returncode == 0 else {}


@pytest.fixture
def loop(tmp_path):
    loop = AskedLoop(tmp_path)
    yield loop
    loop.kill_everything()


def content_of(folder):
    """The names of all files but those that SQLite makes to look, and all that the databases hold."""
    files = {path for path in folder.rglob("*") if not path.name.endswith(("-shm", "-wal"))}
    found = {}
    for path in files:
        if path.suffix == ".db":
            with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
                found[path] = tuple(database.iterdump())
    return files, found


def check(found):
    assert not found, "\n".join(map(str, found))


@pytest.mark.timeout(400)
async def test_a_second_process_is_told_what_the_run_knows(loop):
    loop.start()

    async def promoted():
        configs = loop.command("status").get("configs", {})
        return bool(configs.get(CONFIG, {}).get("promotions"))

    async def at_rest():
        queue = loop.command("status")["queue"]
        return not any(states.get("claimed") for states in queue.values())

    await until(promoted, "a first champion", loop)
    loop.command("pause")
    await until(at_rest, "the end of all jobs", loop)
    before = await loop.asked()
    await until(loop.told_again(), "another report", loop)
    second = await asyncio.to_thread(loop.second)
    after = await loop.asked()
    assert set(second) == set(before)
    check(list(differences(second, before, after)))
    check([(name, each["took_s"]) for name, each in second.items() if each["took_s"] > SLOWEST_S])

    assert await loop.end() == 0
    content = content_of(loop.data)
    stopped, again = loop.second(), loop.second()
    assert content_of(loop.data) == content, "looking changed something"
    check(list(differences(again, stopped, stopped)))
    check(list(zeros_of_unknown(stopped, after)))
    check(list(changed(stopped, after)))

    loop.start()

    async def runs_again():
        told = await asyncio.to_thread(loop.second, "get_pipeline_status")
        return told["get_pipeline_status"]["answer"]["run_state"] not in (None, "stopped")

    await until(runs_again, "the run after its stop", loop)
    await until(at_rest, "the end of all jobs", loop)
    before = await loop.asked()
    await until(loop.told_again(), "another report", loop)
    second = await asyncio.to_thread(loop.second)
    check(list(differences(second, before, await loop.asked())))
    check(list(changed(before, after)))
    check(list(changed(second, after)))


@pytest.mark.parametrize("somebody_made_a_store", [False, True])
async def test_where_no_run_was_the_numbers_of_a_run_are_unknown_and_none_is_made(
    loop, somebody_made_a_store
):
    """Tools that keep records of their own make their store when they are used; those are not asked here."""
    if somebody_made_a_store:
        settings = load_settings({"RINGRIFT_DATA_DIR": str(loop.data)}).settings
        await (await open_engine(settings, SystemRuntime())).close()
    asked = sorted(OF_A_RUN if not somebody_made_a_store else OF_THE_FACTS)
    found = loop.second(*asked)
    assert loop.data.exists() is somebody_made_a_store
    assert set(found) == set(asked)
    check([(name, each) for name, each in found.items() if "raised" in str(each)])
    invented = [
        (name, place, value)
        for name, each in found.items()
        for place, value in leaves(each["answer"])
        if is_number(value) and not place.endswith(("timestamp", "at_s", *KNOWN_ANYWAY))
    ]
    check(invented)
